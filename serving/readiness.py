"""What a broker tells health checks: started, and for each service whether it takes work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NoReturn

from octavo.proto.health import STARTED, HealthBoard
from octavo.serving.fleet import Fleet
from octavo.serving.liveness.standing import Standing
from octavo.serving.ownership import Ownership

LOOK_S = 1.0
"""How often readiness is looked at when nothing tells of a change."""


class Readiness:
    """Of one broker. A drained or stopping one is not ready, though it serves what it still has.

    Args:
        services: those that take work of clients.
        always: those that other brokers need for as long as it runs.
    """

    def __init__(
        self, broker_id: str, fleet: Fleet, services: Sequence[str], always: Sequence[str]
    ) -> None:
        self._broker_id = broker_id
        self._fleet = fleet
        self._services = services
        self._always = (STARTED, *always)
        self.board = HealthBoard((*services, *always))

    async def tell(self, standing: Standing, ownership: Ownership) -> None:
        """Interface §4.3: it has back what it claimed, and is to have anything."""
        is_wanted = not self._fleet.is_marked(self._broker_id)
        has_all = standing.is_registered and not standing.is_paused() and not ownership.lost
        await self.board.tell(
            {
                **dict.fromkeys(self._always, True),
                **dict.fromkeys(self._services, is_wanted and has_all),
            }
        )

    async def follow(self, standing: Standing, ownership: Ownership) -> NoReturn:
        """A drain shows before the first bundle goes: giving one away takes several requests."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._fleet.drains.wait_changed()
            await self.tell(standing, ownership)
