"""Background tasks that survive whoever cancels all tasks of a loop.

A task that was cancelled by somebody else ends without a word, and what it did for a reader would
never be done. It is begun again by the next call of the reader, not at once: at the end of a loop
nothing new may start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from octavo.runtime.tasks import TaskOwner

T = TypeVar("T")


class LostTasks:
    """Owns tasks, and knows how to do again what the lost ones did.

    Args:
        wake: called when a task was lost, to end the waits of calls under way.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._tasks = TaskOwner(name)
        self._wake = wake
        self._lost: list[Callable[[], None]] = []
        self.closed = False

    def spawn(self, coro: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Start a task whose waiters see how it ended."""
        return self._tasks.spawn(coro, name=name)

    def start(
        self,
        coro: Coroutine[object, object, object],
        name: str,
        again: Callable[[], None],
        *,
        of_request: bool = False,
    ) -> asyncio.Task[object]:
        """Start a task that nobody waits for; `again` does its work anew if it gets lost.

        `of_request`: as of `TaskOwner.spawn`.
        """
        task: asyncio.Task[object] = self._tasks.spawn(coro, name=name, of_request=of_request)
        task.add_done_callback(lambda ended: self._ended(ended, again))
        return task

    def _ended(self, task: asyncio.Task[object], again: Callable[[], None]) -> None:
        if task.cancelled() and not self.closed:
            self._lost.append(again)
            self._wake()

    @property
    def lost(self) -> bool:
        """Whether `restart` has something to do."""
        return bool(self._lost)

    def restart(self) -> None:
        """Begin again what was lost."""
        while self._lost:
            self._lost.pop()()

    async def close(self) -> None:
        """Cancel every task and wait until all have ended; harmless when repeated."""
        self.closed = True
        self._lost.clear()
        await self._tasks.close()
