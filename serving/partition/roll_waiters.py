"""Who asked for a roll of one partition and waits for its end."""

from __future__ import annotations

import asyncio

from octavo.runtime.errors import OctavoError


class RollWaiters:
    """All of them are answered together: one roll serves everybody who asked."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self) -> asyncio.Future[int]:
        """One more; its result is the high watermark after the roll."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def answer(self, outcome: int | OctavoError) -> None:
        """Tell everybody the high watermark, or why there was no roll."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if isinstance(outcome, OctavoError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
