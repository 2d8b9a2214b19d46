"""When a broker gives bundles away because they are for others (O-3, F145)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from octavo.runtime.clock import Clock
from octavo.serving.config import BrokerConfig
from octavo.serving.fleet import Fleet

STEP_S = 1.0
DRAINED_STEP_S = 0.1
"""How soon a broker that was just drained begins."""


class Held(NamedTuple):
    """What is asked of the owner of bundles."""

    bundles: Callable[[], Collection[int]]
    certain: Callable[[], bool]
    """Whether they are surely its own."""
    may_give: Callable[[], bool]
    """False while it stops."""
    give: Callable[[int], Awaitable[None]]


class Balance:
    """Gives away what is for others.

    At once if this broker may own nothing, else when who may own has not changed for
    `ownership_settle_s`, and `ownership_moves_per_step` at a time.
    """

    def __init__(
        self, broker_id: str, fleet: Fleet, config: BrokerConfig, clock: Clock, held: Held
    ) -> None:
        self._me = broker_id
        self._fleet = fleet
        self._config = config
        self._clock = clock
        self._held = held
        self._seen: list[str] = []
        self._since_s = clock.monotonic()

    async def run(self) -> None:
        """For as long as the broker lives."""
        longest_s = min(STEP_S, self._config.ownership_settle_s or 0.01)
        while True:
            await self._clock.sleep(min(longest_s, DRAINED_STEP_S))
            step = self.step(self._clock.monotonic())
            await asyncio.gather(*map(self._held.give, step))

    def step(self, now_s: float) -> list[int]:
        """What to give away now."""
        eligible, certain = self._fleet.eligible(), self._held.certain()
        # After a pause what is known of brokers and bundles is old, whatever the state says.
        if eligible != self._seen or not certain:
            self._seen, self._since_s = eligible, now_s
        is_drained = self._me not in eligible
        if is_drained and not self._fleet.is_marked(self._me):
            return []  # not registered at this moment: nothing is known
        settled = now_s - self._since_s >= self._config.ownership_settle_s
        if not certain or not self._held.may_give() or not (settled or is_drained):
            return []
        surplus = self._fleet.excess(self._held.bundles(), self._me)
        return surplus if is_drained else surplus[: self._config.ownership_moves_per_step]
