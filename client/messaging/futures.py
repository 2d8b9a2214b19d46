"""Completion of sends: one completion per batch, and light futures that point into it.

Resolving a batch of a thousand records is one operation; a `SendFuture` is two references. Waiting
works from any thread and from any asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial

from octavo.client.messaging.records import RecordMetadata
from octavo.runtime.errors import OctavoError, RequestTimedOut

_log = logging.getLogger("octavo.client")
_LOCK = threading.Lock()
"""Guards the few fields that waiting and resolving share; held for an instant, per batch."""


class Completion:
    """The outcome of one batch: pending, then once and for ever acknowledged or failed.

    Invariant: after `done` is True no field changes any more.
    """

    __slots__ = (
        "_callbacks",
        "_event",
        "base_offset",
        "done",
        "duplicate",
        "error",
        "observed",
        "partition",
        "timestamps_ms",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamps_ms: Sequence[int] = []
        self.base_offset = -1
        self.duplicate = False
        self.error: OctavoError | None = None
        self.done = False
        self.observed = False
        """Somebody asked for the outcome, so close() need not report it."""
        self._callbacks: list[Callable[[], object]] | None = None
        self._event: threading.Event | None = None

    def succeed(self, base_offset: int, *, duplicate: bool = False) -> None:
        """The batch is stored; -1 when its offset is not known."""
        self.base_offset = base_offset
        self.duplicate = duplicate
        self._finish()

    def fail(self, error: OctavoError) -> None:
        """The batch was refused, or its fate stayed unknown for too long."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        with _LOCK:
            if self.done:
                return
            self.done = True
            callbacks, self._callbacks = self._callbacks, None
            event = self._event
        if event is not None:
            event.set()
        for callback in callbacks or ():
            try:
                callback()
            except Exception:  # noqa: BLE001  a user's callback must not stop the others
                _log.exception("a send callback failed")

    def when_done(self, callback: Callable[[], object]) -> None:
        """Run `callback` when done, at once if it is."""
        self.observed = True
        with _LOCK:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout_s: float | None) -> bool:
        """Block the calling thread until done; False when `timeout_s` passed first."""
        self.observed = True
        with _LOCK:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout_s)

    async def wait_async(self) -> None:
        """Suspend the calling task until done; cancellation leaves the batch alone."""
        if self.done:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        seen = self.observed
        self.when_done(partial(_wake, loop, waiter))
        self.observed = seen  # waiting is not looking at the outcome
        await waiter


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    """Resolve `waiter` from any thread; a loop that is gone needs no answer."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class SendFuture:
    """Where one record will be: `result()` blocks a thread, `await` suspends a task."""

    __slots__ = ("_completion", "_index")

    def __init__(self, completion: Completion, index: int) -> None:
        self._completion = completion
        self._index = index

    def done(self) -> bool:
        """Whether the record is acknowledged or failed."""
        return self._completion.done

    def exception(self, timeout: float | None = None) -> OctavoError | None:
        """The error of the send, None when acknowledged; RequestTimedOut after `timeout` s."""
        if not self._completion.wait(timeout):
            raise RequestTimedOut(f"not acknowledged within {timeout} s; the send goes on")
        return self._completion.error

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
        self._completion.when_done(partial(callback, self))

    def _metadata(self) -> RecordMetadata:
        done = self._completion
        offset = done.base_offset + self._index if done.base_offset >= 0 else -1
        return RecordMetadata(done.topic, done.partition, offset, done.timestamps_ms[self._index])

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        self._completion.observed = True
        if not self._completion.done:
            yield from self._completion.wait_async().__await__()
        if self._completion.error is not None:
            raise self._completion.error
        return self._metadata()

    def __repr__(self) -> str:
        state = "pending"
        if self._completion.done:
            state = repr(self._completion.error) if self._completion.error else "acknowledged"
        return f"<SendFuture {self._completion.topic}-{self._completion.partition} {state}>"
