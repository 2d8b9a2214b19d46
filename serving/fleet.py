"""The brokers of the cluster, who of them may own bundles, and which one each bundle is for."""

from __future__ import annotations

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo
from octavo.metadata.drains import Drains
from octavo.serving.placement import eligible, preferred_owners


class Fleet:
    """Answers from what was last seen; every broker computes the same.

    Args:
        bundles: how many there are.
    """

    def __init__(self, brokers: BrokerDirectory, drains: Drains, bundles: int) -> None:
        self.brokers = brokers
        self.drains = drains
        self._bundles = bundles

    def eligible(self) -> list[str]:
        """Ids of brokers that may be given bundles, in order: not drained, not about to stop."""
        live = [broker.broker_id for broker in self.brokers.live()]
        leaving = self.drains.leaving()
        return eligible(eligible(live, leaving), self.drains.drained() | leaving)

    def is_marked(self, broker_id: str) -> bool:
        """Whether the broker is drained or about to stop."""
        return broker_id in self.drains.drained() | self.drains.leaving()

    def preferred(self, bundle: int) -> BrokerInfo | None:
        """The broker that should have the bundle; None when no broker lives."""
        return self.wanted_owners().get(bundle)

    def wanted_owners(self) -> dict[int, BrokerInfo]:
        """The same for all bundles."""
        live = {broker.broker_id: broker for broker in self.brokers.live()}
        owners = preferred_owners(self._bundles, self.eligible())
        return {bundle: live[owner] for bundle, owner in enumerate(owners)}
