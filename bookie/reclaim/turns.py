"""Waiting for a core's deadline, or for somebody who is in a hurry."""

from __future__ import annotations

import asyncio

from octavo.runtime.clock import Clock


async def wait_turn(asked: asyncio.Event, deadline_s: float | None, clock: Clock) -> None:
    """Return at the deadline, or once `asked` is set, which is cleared then."""
    wait_s = 0.0 if deadline_s is None else max(0.0, deadline_s - clock.monotonic())
    try:
        async with asyncio.timeout(wait_s):
            await asked.wait()
    except TimeoutError:
        return
    asked.clear()
