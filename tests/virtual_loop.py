"""A loop whose time passes only while nothing is to be done: seconds of silence cost nothing."""

from __future__ import annotations

import asyncio
import selectors


class _Idle(selectors.SelectSelector):
    """Looks at sockets without waiting; what it would have waited is added to the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen on this loop")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For what stays on one loop: no threads, no sockets."""

    def __init__(self) -> None:
        self._idle = _Idle()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now_s
