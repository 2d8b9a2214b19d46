"""Bundles that an operator moves: where to, and how that is noted (O-3).

Nothing moves here: the owner of the bundle follows what is noted and hands it over (`balance`).
"""

from __future__ import annotations

from collections import Counter

from octavo.metadata.bundles import BundleRegistry
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, Throttled
from octavo.runtime.suggestion import did_you_mean
from octavo.serving.fleet import Fleet
from octavo.serving.shedding.board import LoadBoard

ATTEMPTS_MAX = 8
"""How often one request meets the decision of another before it is told so."""
LIKE_SHARE = 0.05
"""Brokers whose usage differs by less are alike; the one with fewer bundles is chosen."""


class Unloads:
    """Places bundles on brokers that may serve them."""

    def __init__(
        self, fleet: Fleet, registry: BundleRegistry, board: LoadBoard, clock: Clock
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._board = board
        self._clock = clock

    def check(self, bundle: int) -> None:
        """Raises InvalidRequest unless there is such a bundle."""
        if not 0 <= bundle < self._fleet.bundles:
            raise InvalidRequest(
                f"there is no bundle {bundle}",
                hint=f"bundles are numbered from 0 to {self._fleet.bundles - 1}",
            )

    async def unload(self, bundle: int, away_from: str, to: str) -> None:
        """Note that the bundle is for `to`, or with "" for any other broker than `away_from`.

        Once it is, or will be, with another one the second form is done. Raises InvalidRequest,
        Throttled, MetadataUnavailable, or UnknownOutcome: then it may be noted.
        """
        self.check(bundle)
        for _ in range(ATTEMPTS_MAX):
            owner = await self._registry.owner(bundle)
            before = await self._fleet.placements.read()
            chosen = to
            if to:
                self._check_may_serve(to)
            else:
                placed = before.brokers.get(bundle, "")
                if placed not in ("", away_from) and placed in self._fleet.eligible():
                    return
                chosen = await self._choose({away_from, owner.broker_id if owner else ""})
            if before.brokers.get(bundle) == chosen:
                return
            if await self._fleet.placements.replace(before, {**before.brokers, bundle: chosen}):
                return
        raise Throttled("where bundles are served is being changed by others")

    def _check_may_serve(self, broker_id: str) -> None:
        live = sorted(broker.broker_id for broker in self._fleet.brokers.live())
        if broker_id not in live:
            raise InvalidRequest(
                f"no broker is called {broker_id!r}", hint=did_you_mean(broker_id, live)
            )
        if broker_id not in self._fleet.eligible():
            raise InvalidRequest(
                f"{broker_id} takes nothing: it is drained or about to stop",
                hint="choose another one, or end that with `octavo brokers undrain`",
            )

    async def _choose(self, but: set[str]) -> str:
        """The idlest broker; one whose load is not known only if no other is."""
        others = [broker for broker in self._fleet.eligible() if broker not in but]
        if not others:
            raise InvalidRequest(
                "no other broker may serve the bundle", hint="start or undrain another one first"
            )
        owners = await self._registry.owners()
        counts = Counter(owner.broker_id for owner in owners.values())
        loads = self._board.fresh(self._clock.monotonic())

        def rank(broker: str) -> tuple[bool, int, int, str]:
            usage = loads[broker].usage if broker in loads else 0.0
            return broker not in loads, round(usage / LIKE_SHARE), counts[broker], broker

        return min(others, key=rank)
