"""Task ownership: every background task has an owner that awaits it (style §3, concurrency)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from octavo.runtime.errors import InvariantViolation
from octavo.runtime.request_trace import context_of_no_request
from octavo.runtime.unexpected import report_broken

_log = logging.getLogger("octavo.tasks")

OnFailure = Callable[[str, BaseException], None]


class TaskOwner:
    """Owns background tasks of one component and ends them with it.

    A task that fails is logged and reported to `on_failure(name, error)`; it is never silently
    dropped. Without `on_failure` a broken promise of our own goes to the loop's watcher, which ends
    a server. `close()` cancels what still runs and waits for it; it may be called more than once.
    """

    def __init__(self, name: str, on_failure: OnFailure | None = None) -> None:
        self._name = name
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be started any more."""
        return self._closed

    def spawn(
        self, coro: Coroutine[Any, Any, object], *, name: str, of_request: bool = False
    ) -> asyncio.Task[Any]:
        """Start `coro` as a task of this owner; must not be called after `close()`.

        Unless it is `of_request` it belongs to no trace, whoever starts it (`request_trace`).
        """
        if self._closed:
            coro.close()
            raise RuntimeError(f"{self._name} is closed, cannot start {name}")
        task = asyncio.get_running_loop().create_task(
            coro,
            name=f"{self._name}:{name}",
            context=None if of_request else context_of_no_request(),
        )
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        try:
            _log.error("task %s failed: %r", task.get_name(), error, exc_info=error)
        finally:  # whatever a log handler raises
            if self._on_failure is not None:
                self._on_failure(task.get_name(), error)
            elif isinstance(error, InvariantViolation):
                report_broken(task.get_name(), error)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._closed = True
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
