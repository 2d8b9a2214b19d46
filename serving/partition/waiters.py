"""Who asked one partition for something and waits for its outcome."""

from __future__ import annotations

import asyncio

from octavo.runtime.errors import OctavoError


class OffsetWaiters:
    """All of them are answered together, with an offset: one roll, or trim, serves them all."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self) -> asyncio.Future[int]:
        """One more."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def answer(self, outcome: int | OctavoError) -> None:
        """Tell everybody the offset, or why there is none."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if isinstance(outcome, OctavoError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
