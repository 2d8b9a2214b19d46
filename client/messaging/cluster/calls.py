"""Asking brokers: one of them, whichever answers, or again and again until time is over.

Owns which addresses are known, which of them fell silent, and the limits of attempts; every failure
becomes an OctavoError. Runs on the client's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from octavo.client.messaging.cluster.progress import PROBE_S, SILENT_S, SilentBrokers
from octavo.client.messaging.cluster.transport import BrokerTransport
from octavo.client.messaging.config import ClientConfig
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error
from octavo.runtime.clock import Clock
from octavo.runtime.deadline import Deadline
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    BrokerUnavailable,
    IllegalStateError,
    OctavoError,
    RequestTimedOut,
    Throttled,
)
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from octavo.proto.broker_pb2_grpc import BrokerAsyncStub
    from octavo.proto.groups_pb2_grpc import GroupsAsyncStub

_log = ClientLog("octavo.client")
T = TypeVar("T")

ATTEMPT_TIMEOUT_S = 5.0
"""One try against one broker when any broker will do; then the next is asked."""
ATTEMPT_MIN_S = 0.02
"""An attempt with less time than this would only say that it had none."""
SAY_WAITING_EVERY_S = 10.0
"""Whoever waits for a cluster hears at once why, and then no more often than this."""
Call = Callable[
    ["BrokerAsyncStub", float],  # pyright: ignore[reportGeneralTypeIssues]
    Awaitable[T],
]
"""One RPC against a stub with a timeout in seconds."""
GroupCall = Callable[
    ["GroupsAsyncStub", float],  # pyright: ignore[reportGeneralTypeIssues]
    Awaitable[T],
]
"""The same against a coordinator of groups."""


def never_left(error: grpc.aio.AioRpcError) -> bool:
    """Whether a failed RPC surely reached nobody: there was no connection. False when in doubt."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (
        "failed to connect" in details or "DNS resolution failed" in details
    )


def is_silence(error: OctavoError) -> bool:
    """Whether `error` only says that no broker answered, and not what one answered."""
    return isinstance(error, BrokerUnavailable | RequestTimedOut)


def with_answer(error: OctavoError, answered: OctavoError | None) -> OctavoError:
    """`error`; one that no broker gave becomes what a broker `answered` before it, and says both.

    An answer that is final, such as "no such topic", is only told: it may be out of date.
    """
    if answered is None or not is_silence(error):
        return error
    kind = type(answered) if answered.retriable else type(error)
    return kind(
        f"{answered.cause} (the last answer before the time ended; then {error.cause})",
        hint=answered.hint,
        **{**answered.details, **error.details},
    )


class Calls:
    """The requests of one client."""

    def __init__(
        self,
        servers: tuple[str, ...],
        config: ClientConfig,
        clock: Clock,
        entropy: Entropy,
        transport: BrokerTransport,
    ) -> None:
        self.config = config
        self.clock = clock
        self.entropy = entropy
        self.transport = transport
        self.tasks = TaskOwner("octavo-client")
        self.silent = SilentBrokers()
        self.request_timeout_s = config.request_timeout_ms / 1000
        """How long one request may take."""
        self._bootstrap = servers
        self._brokers: list[str] = []
        self._preferred = 0
        self._probes: dict[str, asyncio.Task[bool]] = {}
        self._said_s = -SAY_WAITING_EVERY_S
        self._closed = False

    async def close(self) -> None:
        """Close every connection. Calls under way in other tasks end with IllegalStateError."""
        self._closed = True
        try:
            await self.tasks.close()
        finally:  # also when it is cancelled
            await self.transport.close()

    def check_open(self) -> None:
        """Raise IllegalStateError once the client is closed."""
        if self._closed:
            raise IllegalStateError("the client was closed during the call")

    def _check_not_closed_meanwhile(self) -> None:
        """Tell who was not cancelled itself that closing ended what it waited for.

        A task that is being cancelled must end by that: one that retries would take an error for
        one more failure, go on, and closing would wait for it for ever.
        """
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            self.check_open()

    def brokers_are(self, addresses: list[str]) -> None:
        """The brokers of the cluster as one of them told; they are asked before the bootstrap."""
        self._brokers = addresses

    def _addresses(self) -> list[str]:
        known = list(dict.fromkeys([*self._brokers, *self._bootstrap]))
        turn = self._preferred % len(known)
        return self.silent.last(known[turn:] + known[:turn])

    def backoff(self) -> Backoff:
        """Delays between attempts, as configured."""
        return Backoff(
            self.entropy,
            initial_s=self.config.retry_backoff_ms / 1000,
            max_s=self.config.retry_backoff_max_ms / 1000,
        )

    async def ask(self, address: str, call: Call[T], timeout_s: float) -> T:
        """One RPC to one broker; raises OctavoError."""
        return await self._answer(
            address, lambda: call(self.transport.stub(address), max(timeout_s, 0.001))
        )

    def ask_group(
        self, address: str, call: GroupCall[T], timeout_s: float
    ) -> Coroutine[Any, Any, T]:
        """One RPC to one broker as a coordinator of groups; awaited, it raises OctavoError."""
        return self._answer(
            address, lambda: call(self.transport.groups(address), max(timeout_s, 0.001))
        )

    async def _answer(self, address: str, asked: Callable[[], Awaitable[T]]) -> T:
        self.check_open()
        try:
            reply = await asked()
        except (asyncio.CancelledError, grpc.aio.UsageError):
            self._check_not_closed_meanwhile()  # closing the channel cancels what is under way
            raise
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self.silent.fell_silent(address)
            raise from_rpc_error(error, address) from error
        self.silent.answered(address)
        return reply

    async def watched(
        self, address: str, attempt: Callable[[], Awaitable[T]], *, held_s: float = 0.0
    ) -> T:
        """What the attempt brings; RequestTimedOut once the broker is silent, as it is for streams:
        no answer for SILENT_S, and none to a trifle within PROBE_S. One that is slow is waited for.
        A request that it may keep for `held_s` is given so long before.

        The request may have reached the broker, and may still be carried out.
        """
        self.check_open()
        patience = asyncio.timeout(None)
        try:
            async with patience:
                watcher = self.tasks.spawn(
                    self._until_silent(address, patience, held_s), name="patience"
                )
                try:
                    return await attempt()
                finally:
                    watcher.cancel()
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise RequestTimedOut(f"{address}: the broker fell silent during a request") from error

    async def _until_silent(self, address: str, patience: asyncio.Timeout, held_s: float) -> None:
        wait_s = held_s + SILENT_S
        while True:
            await self.clock.sleep(wait_s)
            wait_s = SILENT_S
            if not await self.responds(address):
                patience.reschedule(asyncio.get_running_loop().time())
                return

    def note_failure(self, address: str, error: grpc.aio.AioRpcError) -> None:
        """A stream failed: whoever is still named as an owner there is not asked again and again,
        each time later, but looked for, until the broker answers a try on the side."""
        if never_left(error):
            self.silent.fell_silent(address)

    async def responds(self, address: str) -> bool:
        """Whether a broker answers a trifle within PROBE_S; simultaneous callers share the try."""
        return await self._shared(self.probe(address))

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """The result of a task that others wait for too."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                self._check_not_closed_meanwhile()  # closing ended the task, nobody the caller
            raise

    def probe(self, address: str) -> asyncio.Task[bool]:
        """The try of one broker that is under way, or a new one; it remembers what came of it."""
        task = self._probes.get(address)
        if task is None or task.done():  # done: cancelled before it began
            task = self.tasks.spawn(self._try(address), name=f"probe {address}")
            self._probes[address] = task
        return task

    async def _try(self, address: str) -> bool:
        request = pb.MetadataRequest()  # names no topic: answered without a look into any store
        try:
            await self.ask(
                address, lambda stub, limit: stub.Metadata(request, timeout=limit), PROBE_S
            )
        except OctavoError as error:
            _log.info("broker %s does not answer: %s", address, error.cause)
            self.silent.fell_silent(address)
            return False
        finally:
            self._probes.pop(address, None)
        return True

    async def ask_any(
        self, call: Call[T], timeout_s: float, attempt_s: float = ATTEMPT_TIMEOUT_S
    ) -> T:
        """One RPC to whichever broker answers, until `timeout_s` is over: see `any_of`."""
        return await self.any_of(
            lambda address, limit_s: self.ask(address, call, limit_s), timeout_s, attempt_s
        )

    async def any_of(
        self,
        attempt: Callable[[str, float], Awaitable[T]],
        timeout_s: float,
        attempt_s: float = ATTEMPT_TIMEOUT_S,
    ) -> T:
        """An attempt at one address after the other, until one answers or `timeout_s` is over.

        Raises BrokerUnavailable naming every address tried and why it failed; its detail
        `unanswered` counts attempts that may have reached a broker which then said nothing. A
        broker whose quota asks for a longer wait than there is time is one that failed: others have
        quotas of their own (X24). Throttled if no attempt went unanswered.
        """
        deadline = Deadline(self.clock, timeout_s)
        backoff = self.backoff()
        failures: dict[str, str] = {}
        unanswered = 0
        throttled: Throttled | None = None
        while True:
            for address in self._addresses():
                if failures and deadline.passed:
                    break
                try:
                    limit_s = deadline.left_s(attempt_s)
                    return await self.watched(address, partial(attempt, address, limit_s))
                except (BrokerUnavailable, RequestTimedOut, Throttled) as error:
                    throttled = error if isinstance(error, Throttled) else throttled
                    failures[address] = error.cause
                    unanswered += isinstance(error, RequestTimedOut)
                    self._preferred += 1
            tried = "; ".join(failures.values())
            delay = backoff.next_s()
            if deadline.left_s() <= delay:
                if throttled is not None and not unanswered:
                    raise throttled
                # Less than a second is what other tries left: whoever reads this gave more.
                within = f" within {timeout_s:.3g} s" if timeout_s >= 1 else ""
                raise BrokerUnavailable(
                    f"no broker answered{within}: {tried}", unanswered=unanswered
                )
            self.say_waiting(f"no broker answers yet: {tried}", deadline)
            await self.clock.sleep(delay)

    def say_waiting(self, why: str, deadline: Deadline) -> None:
        """Warn that something is waited for, at once but not again and again."""
        now_s = self.clock.monotonic()
        if now_s - self._said_s >= SAY_WAITING_EVERY_S and deadline.left_s() > 1.0:
            self._said_s = now_s
            _log.warning("%s (trying for another %.3g s)", why, deadline.left_s())

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        timeout_s: float,
        also: type[OctavoError] | None = None,
    ) -> T:
        """Repeat `attempt` with back-off while its error is retriable (or is `also`).

        When the time ends an attempt without an answer, the error is the last one answered.
        """
        deadline = Deadline(self.clock, timeout_s)
        backoff = self.backoff()
        answered: OctavoError | None = None
        while True:
            try:
                return await attempt()
            except OctavoError as error:
                again = error.retriable or (also is not None and isinstance(error, also))
                delay = backoff.next_s()
                if not again or deadline.left_s() <= delay:
                    raise with_answer(error, answered) from error.__cause__
                if not is_silence(error):
                    answered = error
                if also is not None and isinstance(error, also):
                    self.say_waiting(error.cause, deadline)
                last = error
            await self.clock.sleep(delay)
            if deadline.left_s() < ATTEMPT_MIN_S:  # it slept longer than it was told
                raise with_answer(last, answered) from last.__cause__
