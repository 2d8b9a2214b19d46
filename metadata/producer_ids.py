"""Producer ids from blocks of 1000, never used twice (I1).

One atomic fetch-and-add reserves a block; a lost reply burns it. Ids need no order, so blocks
per broker are fine here, unlike for ledgers (ID-3).
"""

from __future__ import annotations

from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.runtime.errors import UnknownOutcome
from octavo.runtime.invariant import invariant

BLOCK_IDS = 1000
DRAWS_MAX = 8
"""Lost replies tolerated in one reservation."""


class ProducerIdAllocator:
    """Hands out producer ids of one broker process."""

    def __init__(self, store: MetadataStore, paths: Paths) -> None:
        self._store = store
        self._key = paths.producer_ids
        self._next = 0
        self._end = 0

    async def allocate(self) -> int:
        """A producer id nobody else has or had; raises MetadataUnavailable, UnknownOutcome."""
        if self._next >= self._end:
            block = await self._reserve()
            if self._next >= self._end:  # another call may have reserved meanwhile
                self._next = (block - 1) * BLOCK_IDS
                self._end = self._next + BLOCK_IDS
        allocated = self._next
        self._next += 1
        return allocated

    async def _reserve(self) -> int:
        for _ in range(DRAWS_MAX):
            try:
                block = await self._store.fetch_add(self._key)
            except UnknownOutcome:
                continue
            invariant(block > 0, f"producer id blocks wrapped to {block}")
            return block
        raise UnknownOutcome("no block of producer ids could be reserved")
