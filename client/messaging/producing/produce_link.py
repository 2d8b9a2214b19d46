"""One long-lived Produce stream to one broker (design.md §10: never one RPC per batch).

Batches queue in an outbox while the last message is being written; the next message takes what
queued, up to a count and a size. A stream that ends is reported once, with everything it carried.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import grpc

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.progress import ProgressClock, until_silent
from octavo.client.messaging.cluster.throttles import Throttle
from octavo.client.messaging.cluster.transport import ProduceCall
from octavo.client.messaging.producing.actions import Send
from octavo.client.messaging.producing.recent_sends import RecentSends
from octavo.client.messaging.producing.terms import Terms
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error
from octavo.proto.produce_wire import ProduceItem, encode_produce
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import BrokerUnavailable, OctavoError

_log = ClientLog("octavo.client")

MESSAGE_BATCHES_MAX = 16
MESSAGE_BYTES_TARGET = 1 << 20
"""A message takes batches until one of the two is reached."""

OnAcks = Callable[[Sequence[pb.ProduceAck], float], None]
OnLost = Callable[[str, OctavoError], None]
OnWritten = Callable[[Sequence[int], float], None]


class ProduceLink:
    """The stream to one broker; `push` from the loop, replies through callbacks on the loop.

    The outbox is bounded by the core: at most `max_in_flight` batches per partition.
    """

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        *,
        on_acks: OnAcks,
        on_lost: OnLost,
        on_written: OnWritten,
    ) -> None:
        self.address = address
        self.recent = RecentSends()
        self._progress = ProgressClock()
        self._throttle = Throttle(address, cluster.clock)
        self._cluster = cluster
        self._now_s = cluster.clock.monotonic
        self._on_acks = on_acks
        self._on_lost = on_lost
        self._on_written = on_written
        self._outbox: deque[tuple[Send, Buffer, Terms, str]] = deque()
        self._owed: set[int] = set()
        """What the silence of the broker is judged by: sent, and neither answered nor, with acks=0,
        written. As bounded as the outbox, and emptied with the stream."""
        self._unheard = False
        """Whether this stream took batches over that nobody will answer (acks=0)."""
        self._queued = asyncio.Event()
        self._call: ProduceCall | None = None
        self._writing = False
        self._written = asyncio.Event()

    def push(
        self, send: Send, payload: Buffer, terms: Terms, now_s: float, traceparent: str = ""
    ) -> None:
        """Queue one encoded batch."""
        self._outbox.append((send, payload, terms, traceparent))
        self._owed.add(send.correlation)
        self.recent.sent(send.correlation, now_s)
        self._progress.asked(now_s)
        self._queued.set()

    async def run(self) -> None:
        """Keep a stream while there is something to send; ends only by cancellation."""
        while True:
            await self._queued.wait()
            error = await self._session()
            self._outbox.clear()
            self._owed.clear()
            self._unheard = False
            self.recent.clear()
            self._progress.cleared()
            self._queued.clear()
            self._on_lost(self.address, error)

    async def _session(self) -> OctavoError:
        """One stream from first to last message; returns why it ended."""
        call = self._call = self._cluster.transport.produce_stream(self.address)
        reader = asyncio.ensure_future(self._read(call))
        writer = asyncio.ensure_future(self._write(call))
        watcher = asyncio.ensure_future(self._silence())
        # The reader knows the status of the RPC, the writer only that it ended.
        tasks = (reader, writer, watcher)
        for task in tasks:
            task.add_done_callback(self._part_ended)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(task for task in tasks if task in done).result()
        finally:
            self._call = None
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _part_ended(self, task: asyncio.Task[OctavoError]) -> None:
        """Say what ended a part of the stream: the session raises one of them, and none if it is
        cancelled."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the produce stream to %s ends by a fault: %r", self.address, error)

    async def _silence(self) -> OctavoError:
        """Ends when the broker fell silent although it owes acknowledgements."""
        cluster = self._cluster
        return await until_silent(
            self.address, self._progress, cluster.clock, cluster.calls.responds
        )

    async def _read(self, call: ProduceCall) -> OctavoError:
        try:
            while True:
                reply = await call.read()
                if not isinstance(reply, pb.ProduceReply):  # end of stream
                    return BrokerUnavailable(f"{self.address}: closed the produce stream")
                if reply.throttle_ms:
                    self._throttle.told(reply.throttle_ms, self._cluster.config.client_id)
                now_s, acks = self._now_s(), reply.acks
                self._heard([ack.correlation for ack in acks], now_s)
                for ack in acks:
                    self.recent.answered(ack.correlation)
                self._on_acks(acks, now_s)
        except grpc.aio.AioRpcError as error:
            self._cluster.calls.note_failure(self.address, error)
            return from_rpc_error(error, self.address)

    async def _write(self, call: ProduceCall) -> OctavoError:
        try:
            while True:
                if not self._outbox:
                    self._queued.clear()
                    await self._queued.wait()
                await self._throttle.over()
                items = self._next_message()
                self._writing = True
                await call.write(encode_produce(items))
                self._writing = False
                self._written.set()
                taken = [item.correlation for item in items if item.acks == 0]
                if taken:  # no answer will say so
                    now_s = self._now_s()
                    self._unheard = True
                    self._heard(taken, now_s)
                    self._on_written(taken, now_s)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, self.address)
        except asyncio.InvalidStateError:
            return BrokerUnavailable(f"{self.address}: the produce stream ended")

    def _heard(self, correlations: Sequence[int], now_s: float) -> None:
        """The stream moved. A broker may answer a batch of acks=0, too: it counts once."""
        before = len(self._owed)
        self._owed.difference_update(correlations)
        self._progress.heard(now_s, before - len(self._owed))

    async def written_out(self, timeout_s: float) -> None:
        """What was sent with acks=0 reached the broker, which has seen the end of the stream.

        Best effort, at most `timeout_s`: nobody waits for replies of such batches (A4). Without any
        it returns at once.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while any(send.acks == 0 for send, *_ in self._outbox) or self._writing:
                    self._written.clear()
                    await self._written.wait()
                call = self._call  # the stream may end, and with it this one, while we wait
                if call is not None and self._unheard:
                    await call.done_writing()
                    await call.code()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    def _next_message(self) -> list[ProduceItem]:
        items: list[ProduceItem] = []
        size_bytes = 0
        while self._outbox and len(items) < MESSAGE_BATCHES_MAX:
            send, payload, terms, traceparent = self._outbox[0]
            if size_bytes and size_bytes + len(payload) > MESSAGE_BYTES_TARGET:
                break
            self._outbox.popleft()
            size_bytes += len(payload)
            items.append(
                ProduceItem(
                    send.correlation,
                    send.topic,
                    send.partition,
                    terms.acks,
                    payload,
                    send.topic_id,
                    terms.min_insync_replicas,
                    send.writer_epoch,
                    traceparent,
                )
            )
        return items
