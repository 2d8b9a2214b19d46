"""The cluster-wide ledger id allocator (spec/ledger.md §2.3), and the epoch of ids.

id = (epoch << 31) | v, where v is drawn by an atomic fetch-and-add on `<root>/idgen/<epoch>`.
The epoch in use is the value of `<root>/idgen`. Rotation keeps ids increasing in allocation
order: a value at or above ROTATE_AT is never used, and an epoch ends only after such a value was
drawn from it, so nothing usable can be drawn from an ended epoch afterwards.
"""

from __future__ import annotations

from contextlib import suppress

from octavo.metadata.paths import Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, Versioned
from octavo.runtime.clock import Clock
from octavo.runtime.errors import KeyExists, MetadataCorrupt, UnknownOutcome, VersionConflict
from octavo.runtime.ids import LedgerId
from octavo.runtime.invariant import invariant

ROTATE_AT = (1 << 31) - (1 << 20)
"""ID-2: counters are signed 32-bit in ZooKeeper; leave them long before they wrap."""

EPOCH_MAX = (1 << 32) - 1
DRAWS_MAX = 16
"""Lost replies and rotations tolerated in one allocation."""


class LedgerIdAllocator:
    """Draws ledger ids that are never used twice in the life of a cluster (INV-11)."""

    def __init__(self, store: MetadataStore, paths: Paths, clock: Clock) -> None:
        self._store = store
        self._paths = paths
        self._writes = SettledWrites(store, clock)
        self._epoch: int | None = None

    async def allocate(self) -> LedgerId:
        """The next id.

        Raises MetadataUnavailable, or UnknownOutcome after repeated lost replies.
        """
        for _ in range(DRAWS_MAX):
            epoch = self._epoch if self._epoch is not None else (await self._read_epoch())[0]
            self._epoch = epoch
            try:
                value = await self._store.fetch_add(self._paths.idgen_epoch(epoch))
            except UnknownOutcome:
                continue  # ID-3: the number is burnt, gaps are legal
            invariant(value > 0, f"ledger id counter {epoch} wrapped to {value} (ID-2)")
            if value < ROTATE_AT:
                return LedgerId((epoch << 31) | value)
            await self._rotate(epoch)
        raise UnknownOutcome("no ledger id could be drawn")

    async def read_epoch(self) -> int:
        """The epoch in use; raises MetadataUnavailable."""
        return (await self._read_epoch())[0]

    async def last_id(self) -> int:
        """The largest id that can have been drawn so far, as of now; raises MetadataUnavailable,
        or MetadataCorrupt."""
        epoch = await self.read_epoch()
        found = await self._writes.read(self._paths.idgen_epoch(epoch))
        return (epoch << 31) | (0 if found is None else max(0, int(found.version)))

    async def raise_epoch(self) -> int:
        """Begin a new epoch, above every id drawn so far; returns it.

        Must be done once after a backup of the metadata was restored: ids drawn since then are
        unknown to it (INV-11). Allocators that drew before go on with the old epoch: their
        processes must not live on.
        """
        before, _ = await self._read_epoch()
        for _ in range(DRAWS_MAX):
            await self._rotate(before)
            epoch, _ = await self._read_epoch()
            if epoch > before:
                return epoch
        raise UnknownOutcome("the epoch of ledger ids could not be raised")

    async def _rotate(self, ended: int) -> None:
        current, version = await self._read_epoch()
        if current == ended:
            invariant(ended < EPOCH_MAX, "ledger id epochs are used up")
            with suppress(KeyExists):  # another allocator made it
                await self._writes.create(self._paths.idgen_epoch(ended + 1), b"", lasting=True)
            # Another allocator moved the pointer, or may have: it is read again in any case.
            with suppress(VersionConflict, UnknownOutcome):
                await self._writes.put(self._paths.idgen, b"%d" % (ended + 1), version)
        self._epoch = None

    async def _read_epoch(self) -> tuple[int, int]:
        found = await self._writes.read(self._paths.idgen)
        if found is None:
            try:
                version = await self._writes.create(self._paths.idgen, b"0", lasting=True)
                return 0, version
            except (KeyExists, UnknownOutcome):  # whoever made it, the pointer says what counts
                found = await self._writes.read(self._paths.idgen)
        return self._parse(found)

    def _parse(self, found: Versioned | None) -> tuple[int, int]:
        if found is None or not found.value.isdigit() or int(found.value) > EPOCH_MAX:
            raise MetadataCorrupt(f"{self._paths.idgen} does not hold an epoch")
        return int(found.value), found.version
