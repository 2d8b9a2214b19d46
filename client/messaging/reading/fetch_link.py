"""One long-lived Fetch stream to one broker.

One request is out at a time, and the wait for its reply can be interrupted.
"""

from __future__ import annotations

import asyncio

import grpc

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.progress import ProgressClock
from octavo.client.messaging.cluster.throttles import Throttle
from octavo.client.messaging.cluster.transport import FetchCall
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error
from octavo.runtime.errors import BrokerUnavailable, OctavoError, RequestTimedOut


class FetchLink:
    """The stream to one broker and the wish to interrupt what it waits for.

    gRPC does not wake a write on a stream that is cancelled while it opens, so an interruption
    ends our own wait and then throws the stream away.
    """

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self.wake = asyncio.Event()
        """Set when there may be something to ask for."""
        self.interrupted = False
        """Whether the last exchange was ended by `interrupt`."""
        self._cluster = cluster
        self.tasks: list[asyncio.Task[object]] = []
        """Those that work on this stream."""
        self.progress = ProgressClock()
        self.throttle = Throttle(address, cluster.clock)
        self._silent: OctavoError | None = None
        """Why the exchange under way was given up."""
        self._call: FetchCall | None = None
        self._waiting: asyncio.Timeout | None = None

    def interrupt(self) -> None:
        """End the exchange under way, if there is one; its reply is not wanted any more."""
        if self._waiting is not None and not self.interrupted:
            self.interrupted = True
            self._end_wait(self._waiting)

    def give_up(self, silent: OctavoError) -> None:
        """The broker fell silent: the exchange under way fails with this error."""
        self.progress.cleared()
        if self._waiting is not None:
            self._silent = silent
            self._end_wait(self._waiting)

    @staticmethod
    def _end_wait(waiting: asyncio.Timeout) -> None:
        if not waiting.expired():  # else it is about to end
            waiting.reschedule(asyncio.get_running_loop().time())

    def drop(self) -> None:
        """Close the stream; the next exchange opens a new one."""
        self.progress.cleared()
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def end(self) -> None:
        """Close the stream for ever, with the tasks that work on it.

        A cancelled task keeps its frames, and they this link and its call: forget it.
        """
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.cancel()
        self.drop()

    async def exchange(self, request: pb.FetchRequest, limit_s: float, long_poll_s: float) -> bytes:
        """Write one request and read its reply; OctavoError and a dropped stream on failure.

        The broker may keep it for `long_poll_s` without being silent.
        """
        address = self.address
        self.interrupted = False
        self._silent = None
        clock = self._cluster.clock
        try:
            async with asyncio.timeout(limit_s) as self._waiting:
                if (call := self._call) is None:
                    call = self._call = self._cluster.transport.fetch_stream(address)
                self.progress.asked(clock.monotonic(), long_poll_s=long_poll_s)
                await call.write(request)
                reply = await call.read()  # also of a stream that was dropped meanwhile: it says so
            self.progress.heard(clock.monotonic(), 1)
            if isinstance(reply, bytes):
                return reply
            raise BrokerUnavailable(f"{address}: closed the fetch stream")
        except TimeoutError:
            self.drop()
            if self._silent is not None:
                raise self._silent from None
            raise RequestTimedOut(f"{address}: no fetch reply within {limit_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            self.drop()
            self._cluster.calls.note_failure(address, error)
            raise from_rpc_error(error, address) from error
        except asyncio.InvalidStateError:
            self.drop()
            raise BrokerUnavailable(f"{address}: the fetch stream ended") from None
        except asyncio.CancelledError:
            self.drop()
            if _being_cancelled():
                raise
            raise BrokerUnavailable(f"{address}: the fetch stream was cancelled") from None
        except BaseException:
            self.drop()
            raise
        finally:
            self._waiting = None


def _being_cancelled() -> bool:
    """Whether the current task itself is asked to end, not only its RPC."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
