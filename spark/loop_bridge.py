"""Iterators between ordinary code and event loops, in both directions.

An async iterator consumed from ordinary code (`iterate`) runs on the process's own event loop.

Spark pulls rows at its own pace and may not come back for minutes; connections must stay alive
and the next chunk should be on its way meanwhile. So the loop never stops while the consumer
works, and never runs more than `items_max` items ahead of it. It is the same for all scans of a
process and ends with it: what one task has connected, the next one uses.

Ordinary items consumed on an event loop (`pulled`) are made in a thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Generic, TypeVar

from octavo.runtime.tasks import TaskOwner
from octavo.runtime.workers import Worker

T = TypeVar("T")


class ScanLoop:
    """The event loop of this process for reading, in a thread of its own that never blocks exit."""

    _current: ScanLoop | None = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.tasks = TaskOwner("octavo-scan")
        self.loop = asyncio.new_event_loop()
        Worker("octavo-scan", self._run, lambda _error: None).start()

    @classmethod
    def current(cls) -> ScanLoop:
        """That of this process; one that was made before a fork belongs to the parent."""
        with cls._making:
            if cls._current is None or cls._current._pid != os.getpid():
                cls._current = cls()
            return cls._current

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


class _Bridge(Generic[T]):
    def __init__(self, make: Callable[[], AsyncIterator[T]], items_max: int) -> None:
        self._make = make
        self._changed = threading.Condition()
        self._items: deque[T] = deque()  # at most items_max, kept so by _room
        self._ended = False
        self._error: BaseException | None = None
        self._scan_loop = ScanLoop.current()
        self._room = asyncio.Semaphore(items_max)
        self._task: asyncio.Task[None] | None = None  # touched by the loop's thread only

    def start(self) -> None:
        self._scan_loop.loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._scan_loop.tasks.spawn(self._run(), name="scan")
        self._task.add_done_callback(self._end)

    async def _run(self) -> None:
        try:
            await self._pump()
        except asyncio.CancelledError:
            raise  # the consumer left
        except BaseException as problem:  # noqa: BLE001 (handed to the consumer)
            self._error = problem

    def _end(self, _task: asyncio.Task[None]) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    async def _pump(self) -> None:
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
                self._scan_loop.loop.call_soon_threadsafe(self._room.release)
                return True, item
            if self._error is not None:
                raise self._error
            return False, None

    def stop(self) -> None:
        """Cancel the source and wait until it has cleaned up."""
        self._scan_loop.loop.call_soon_threadsafe(self._cancel)
        with self._changed:
            while not self._ended:
                self._changed.wait()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def iterate(make: Callable[[], AsyncIterator[T]], items_max: int) -> Iterator[T]:
    """Items of the async iterator that `make` creates, on the loop of this process.

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


async def pulled(items: Iterable[T]) -> AsyncGenerator[T]:
    """Items that Spark makes as they are asked for, which may take minutes for the next one.

    The loop goes on meanwhile: what is sent is acknowledged before its time has run out
    (`delivery_timeout_ms`). A cancelled caller leaves the item that is being made to its thread;
    the end of `asyncio.run` waits for that.
    """
    iterator = iter(items)
    while True:
        item = await asyncio.to_thread(next, iterator, None)
        if item is None:
            return
        yield item
