"""Producer ids from blocks of 1000, never used twice (I1).

One atomic fetch-and-add reserves a block; a lost reply burns it. Ids need no order, so blocks
per broker are fine here, unlike for ledgers (ID-3). id = (epoch << 40) | n with the epoch of ledger
ids: after a backup of the metadata was restored, an id drawn since that backup would make the first
batches of a new producer pass for copies of an older one's (ADR 23).
"""

from __future__ import annotations

from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.errors import UnknownOutcome
from octavo.runtime.invariant import invariant

BLOCK_IDS = 1000
EPOCH_SHIFT = 40
EPOCH_MAX = (1 << (62 - EPOCH_SHIFT)) - 1
"""Ids are positive in 64 bits, signed, and the highest of their bits is that of kept producers."""
DRAWS_MAX = 8
"""Lost replies tolerated in one reservation."""


class ProducerIdAllocator:
    """Hands out producer ids of one broker process."""

    def __init__(self, store: MetadataStore, paths: Paths, clock: Clock) -> None:
        self._store = store
        self._epochs = LedgerIdAllocator(store, paths, clock)
        self._key = paths.producer_ids
        self._next = 0
        self._end = 0

    async def epoch(self) -> int:
        """Of the ids that are drawn now; it grows when a backup is restored (ADR 23)."""
        return await self._epochs.read_epoch()

    async def allocate(self) -> int:
        """A producer id nobody else has or had; raises MetadataUnavailable, UnknownOutcome."""
        if self._next >= self._end:
            first = await self._reserve()
            if self._next >= self._end:  # another call may have reserved meanwhile
                self._next = first
                self._end = self._next + BLOCK_IDS
        allocated = self._next
        self._next += 1
        return allocated

    async def _reserve(self) -> int:
        """The first id of a block."""
        epoch = await self._epochs.read_epoch()
        invariant(epoch <= EPOCH_MAX, "producer id epochs are used up")
        for _ in range(DRAWS_MAX):
            try:
                block = await self._store.fetch_add(self._key)
            except UnknownOutcome:
                continue
            invariant(
                0 < block <= (1 << EPOCH_SHIFT) // BLOCK_IDS, f"block {block} of producer ids"
            )
            return (epoch << EPOCH_SHIFT) + (block - 1) * BLOCK_IDS
        raise UnknownOutcome("no block of producer ids could be reserved")
