"""Completion of sends: one completion per batch, and light futures that point into it.

Resolving a batch of a thousand records is one operation; a `SendFuture` is two references. Waiting
works from any thread and from any asyncio loop, from signal handlers and finalisers too: there is
no lock here, only single steps of which each is whole.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial

from octavo.client.messaging.producing.sections import suspended
from octavo.client.messaging.records import RecordMetadata
from octavo.client.messaging.user_code import ClientLog, leave_later
from octavo.runtime.errors import IllegalStateError, OctavoError, RequestTimedOut

_log = ClientLog("octavo.client")


class Repeatable(partial[object]):
    """A callback of the client's own, which may run again when an exception ended it."""


class Completion:
    """The outcome of one batch: pending, then once and for ever acknowledged or failed.

    One thread resolves it, `resolver` when that is known. Invariant: after `done` is True no field
    changes any more.
    """

    __slots__ = (
        "_callbacks",
        "base_offset",
        "done",
        "duplicate",
        "error",
        "observed",
        "partition",
        "resolver",
        "timestamps_ms",
        "topic",
    )

    def __init__(self, topic: str, partition: int, resolver: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self.resolver = resolver
        """Ident of the thread whose loop will resolve it; a wait on that thread would never end."""
        self.timestamps_ms: Sequence[int] = []
        self.base_offset = -1
        self.duplicate = False
        self.error: OctavoError | None = None
        self.done = False
        self.observed = False
        """Somebody asked for the outcome, so close() need not report it."""
        self._callbacks: list[Callable[[], object]] = []

    @property
    def records(self) -> int:
        """How many records share it."""
        return len(self.timestamps_ms)

    def succeed(self, base_offset: int, *, duplicate: bool = False) -> None:
        """The batch is stored; -1 when its offset is not known. Repeatable, like `fail`."""
        if not self.done:
            self.base_offset = base_offset
            self.duplicate = duplicate
        self._finish()

    def fail(self, error: OctavoError) -> None:
        """The batch was refused, or its fate stayed unknown for too long.

        The first outcome counts. Whoever was interrupted in it may repeat it: what was not run
        then is run now.
        """
        if not self.done:
            self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._callbacks:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        """Whoever takes a callback out of the list runs it: each runs once.

        Nothing is called between taking one and running it, so none is lost to an exception out of
        a signal handler, and the others are run before that goes on.
        """
        try:
            while self._callbacks:
                try:
                    callback = self._callbacks[0]
                    del self._callbacks[0]
                except IndexError:  # another thread took the last one
                    return
                try:
                    callback()
                except Exception:  # noqa: BLE001  a user's callback must not stop the others
                    _log.exception("a send callback failed")
                except BaseException as leave:  # noqa: BLE001  nor may it end the client's loop
                    if isinstance(callback, Repeatable):  # the client's own, struck by a handler
                        self._callbacks.insert(0, callback)
                    leave_later(leave)
        finally:
            if self._callbacks:
                self._run_callbacks()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Run `callback` when done, at once if it is."""
        self.observed = True
        self.follow(callback)

    def follow(self, callback: Callable[[], object]) -> None:
        """As `when_done`, for the client's own ends: nobody has looked at the outcome by it."""
        if self.done:
            callback()
            return
        self._callbacks.append(callback)
        if self.done:  # meanwhile: nobody else may look at the list again
            self._run_callbacks()

    def wait(self, timeout_s: float | None) -> bool:
        """Block the calling thread until done; False when `timeout_s` passed first.

        Raises IllegalStateError on the thread that would have to resolve it.
        """
        self.observed = True
        if self.done:
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        if threading.get_ident() == self.resolver:
            raise IllegalStateError(
                "waiting for a record on the loop that sends it would never end",
                hint="await the future; in a done-callback, hand the work to another thread",
            )
        bell = threading.Lock()
        bell.acquire()
        self.when_done(bell.release)
        with suspended():
            limit_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
            return bell.acquire(timeout=limit_s)

    async def wait_async(self) -> None:
        """Suspend the calling task until done; cancellation leaves the batch alone."""
        if self.done:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self.follow(Repeatable(_wake, loop, waiter))  # waiting is not looking at the outcome
        await waiter


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """Resolve `waiter` from any thread; a loop that is gone needs no answer."""
    try:
        loop.call_soon_threadsafe(_settle, waiter)
    except RuntimeError:
        _log.debug("a loop that waited for a record has ended")


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SendFuture:
    """Where one record will be: `result()` blocks a thread, `await` suspends a task."""

    __slots__ = ("_index", "completion")

    def __init__(self, completion: Completion, index: int) -> None:
        self.completion = completion
        self._index = index

    def done(self) -> bool:
        """Whether the record is acknowledged or failed."""
        return self.completion.done

    def exception(self, timeout: float | None = None) -> OctavoError | None:
        """The error of the send, None when acknowledged; RequestTimedOut after `timeout` s."""
        if not self.completion.wait(timeout):
            raise RequestTimedOut(f"not acknowledged within {timeout} s; the send goes on")
        return self.completion.error

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; raises the send's error, or RequestTimedOut after `timeout` s."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call `callback(self)` when done, at once if it is.

        It runs on the client's loop and must not block.
        """
        self.completion.when_done(partial(callback, self))

    def _metadata(self) -> RecordMetadata:
        done = self.completion
        offset = done.base_offset + self._index if done.base_offset >= 0 else -1
        stamp_ms = done.timestamps_ms[self._index]
        return RecordMetadata(done.topic, done.partition, offset, stamp_ms, done.duplicate)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        self.completion.observed = True
        if not self.completion.done:
            yield from self.completion.wait_async().__await__()
        if self.completion.error is not None:
            raise self.completion.error
        return self._metadata()

    def __repr__(self) -> str:
        state = "pending"
        if self.completion.done:
            error = self.completion.error
            state = repr(error) if error else f"acknowledged at offset {self._metadata().offset}"
        return f"<SendFuture {self.completion.topic}-{self.completion.partition} {state}>"
