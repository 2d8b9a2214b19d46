"""Which tier a cluster has: the id that stands in the marker of the brokers' `tier_root` (ADR 75).

Written once by the first broker that meets a `tier_root`, and never changed. A folder without it is
not the cluster's tier, however much it looks like one.
"""

from __future__ import annotations

import uuid

from octavo.metadata.paths import Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, Versioned
from octavo.runtime.clock import Clock
from octavo.runtime.errors import KeyExists, MetadataCorrupt


class TierCatalog:
    """The one record. Each call raises MetadataUnavailable and MetadataCorrupt."""

    def __init__(self, store: MetadataStore, paths: Paths, clock: Clock) -> None:
        self._writes = SettledWrites(store, clock)
        self._key = paths.tier

    async def tier_id(self) -> str:
        """Of the cluster's tier; empty: it surely has none yet."""
        found = await self._writes.read(self._key)
        return "" if found is None else self._parsed(found)

    async def name(self, tier_id: str) -> str:
        """Make `tier_id` the cluster's, unless it has one; the one it has then.

        Raises UnknownOutcome too.
        """
        try:
            await self._writes.create(self._key, tier_id.encode(), lasting=True)
        except KeyExists:
            return await self.tier_id()
        return tier_id

    def _parsed(self, found: Versioned) -> str:
        try:
            return uuid.UUID(found.value.decode()).hex
        except ValueError as error:
            raise MetadataCorrupt(f"{self._key} is not the id of a tier") from error
