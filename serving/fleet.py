"""The brokers of the cluster, who of them may own bundles, and which one each bundle is for."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo
from octavo.metadata.drains import Drains
from octavo.metadata.placements import Placements
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.placement import eligible, preferred_owners

ANNOUNCE_S = 1.0
"""How long the metadata store has to note that a broker is about to stop."""

_log = get_logger("octavo.serving.fleet")


class Fleet:
    """Answers from what was last seen; every broker computes the same.

    Args:
        placements: bundles that were moved by decision.
        bundles: how many there are.
    """

    def __init__(
        self, brokers: BrokerDirectory, drains: Drains, placements: Placements, bundles: int
    ) -> None:
        self.brokers = brokers
        self.drains = drains
        self.placements = placements
        self.bundles = bundles

    async def start(self) -> None:
        """Load and follow the brokers and what was decided of them; raises MetadataUnavailable."""
        await self.brokers.start()
        await self.drains.start()
        await self.placements.start()

    async def close(self) -> None:
        """Follow no more."""
        await self.placements.close()
        await self.drains.close()
        await self.brokers.close()

    def eligible(self, *, without: str = "") -> list[str]:
        """Ids of brokers that may be given bundles, in order: not drained, not about to stop.

        `without` is one that takes nothing, whatever is known of it.
        """
        ids = (broker.broker_id for broker in self.brokers.live())
        live = [broker_id for broker_id in ids if broker_id != without]
        leaving = self.drains.leaving()
        return eligible(eligible(live, leaving), self.drains.drained() | leaving)

    def is_marked(self, broker_id: str) -> bool:
        """Whether the broker is drained or about to stop."""
        return broker_id in self.drains.drained() | self.drains.leaving()

    def preferred(self, bundle: int) -> BrokerInfo | None:
        """The broker that should have the bundle; None when no broker lives."""
        return self.wanted_owners().get(bundle)

    def wanted_owners(self, *, without: str = "") -> dict[int, BrokerInfo]:
        """The same for all bundles; empty when no broker lives but `without`."""
        live = {broker.broker_id: broker for broker in self.brokers.live()}
        eligible = self.eligible(without=without)
        owners = preferred_owners(self.bundles, eligible, self.placements.brokers())
        return {bundle: live[owner] for bundle, owner in enumerate(owners)}

    async def announce_leaving(self, broker_id: str) -> None:
        """Tell the others that this broker is about to stop, if the metadata store takes it."""
        try:
            async with asyncio.timeout(ANNOUNCE_S):
                await self.drains.begin_leaving(broker_id)
        except (OctavoError, TimeoutError) as error:  # then it is told by what others find
            _log.info("leaving-not-announced", cause=str(error))

    def is_first(self, broker_id: str) -> bool:
        """Whether it is the one of the live brokers that does what only one has to do."""
        return broker_id == min((one.broker_id for one in self.brokers.live()), default="")

    def excess(self, held: Collection[int], me: str) -> list[int]:
        """Bundles that `me` holds although they are for another broker, in order."""
        wanted = self.wanted_owners()
        others = {bundle for bundle, broker in wanted.items() if broker.broker_id != me}
        return sorted(others.intersection(held))
