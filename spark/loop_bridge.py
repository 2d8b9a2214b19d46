"""An async iterator consumed from ordinary code: its loop runs in a thread of its own.

Spark pulls rows at its own pace and may not come back for minutes; connections must stay alive
and the next chunk should be on its way meanwhile. So the loop never stops while the consumer
works, and never runs more than `items_max` items ahead of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from octavo.runtime.workers import Worker

T = TypeVar("T")


class _Bridge(Generic[T]):
    def __init__(self, make: Callable[[], AsyncIterator[T]], items_max: int) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._items: deque[T] = deque()  # at most items_max, kept so by _room
        self._ended = False
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._room = asyncio.Semaphore(items_max)
        self._main: asyncio.Task[None] | None = None
        self._stopping = False  # touched by the loop's thread only
        self._worker = Worker("octavo-scan", self._run, self._end)

    def start(self) -> None:
        self._worker.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            error: BaseException | None = None
            try:
                runner.run(self._pump())
            except asyncio.CancelledError:
                pass  # the consumer left
            except BaseException as problem:  # noqa: BLE001 (handed to the consumer)
                error = problem
            # Before the loop closes: whoever sees `_ended` false under the lock may still call it.
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify()

    async def _pump(self) -> None:
        self._main = asyncio.current_task()
        if self._stopping:
            return
        source = self._make()
        try:
            async for item in source:
                await self._room.acquire()
                with self._changed:
                    self._items.append(item)
                    self._changed.notify()
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()

    def next(self) -> tuple[bool, T | None]:
        """(True, item), or (False, None) at the end; raises what the source raised."""
        with self._changed:
            while not self._items and not self._ended:
                self._changed.wait()
            if self._items:
                item = self._items.popleft()
                if not self._ended:
                    self._loop.call_soon_threadsafe(self._room.release)
                return True, item
            if self._error is not None:
                raise self._error
            return False, None

    def stop(self) -> None:
        """Cancel the source and wait until its loop has closed."""
        with self._changed:
            if not self._ended:
                self._loop.call_soon_threadsafe(self._cancel)
        self._worker.join()

    def _cancel(self) -> None:
        self._stopping = True
        if self._main is not None:
            self._main.cancel()


def iterate(make: Callable[[], AsyncIterator[T]], items_max: int) -> Iterator[T]:
    """Items of the async iterator that `make` creates, in a loop of its own.

    Closing the generator early cancels the source and waits for its clean-up.
    """
    bridge: _Bridge[T] = _Bridge(make, items_max)
    bridge.start()
    try:
        while True:
            more, item = bridge.next()
            if not more:
                return
            yield item  # type: ignore[misc]
    finally:
        bridge.stop()
