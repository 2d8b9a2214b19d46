"""A loop whose time passes only while nothing is to be done: seconds of silence cost nothing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Idle(selectors.SelectSelector):
    """Looks at sockets without waiting; what it would have waited is added to the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen on this loop")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _AtOnce(ThreadPoolExecutor):
    """Does on the loop what is meant for a thread."""

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  handed on to who waits
            future.set_exception(error)
        return future


class VirtualLoop(asyncio.SelectorEventLoop):
    """For what stays on one loop: no sockets, and no threads but `asyncio.to_thread`, whose work
    takes no time."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)
        self.set_default_executor(_AtOnce(1))

    def time(self) -> float:
        return self._idle.now_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """It has no threads to wait for; a thread that says so would come when it likes."""
