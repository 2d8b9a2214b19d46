"""The index of a bookie that found no space to start (spec/ledger.md §6.13).

The one on disk, opened without writing, and above it in memory what the journal holds beyond its
mark.

Nothing is changed on disk. It ends when the bookie opens its storage again with space.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.bookie.journal.segment import Record, RecordType
from octavo.bookie.ledgers import ids_of
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import Batch, Index, OnDamage
from octavo.bookie.storage.keyed_index import KeyedIndex
from octavo.bookie.storage.sorted_pairs import GONE, MemoryBatch, SortedPairs

NOWHERE = 0
"""Number of no segment: what lies there is unreadable, never absent."""


class FrozenIndex(KeyedIndex):
    """Reads as the index `below` does; what is written stays in memory, `flush()` does nothing."""

    def __init__(self, below: KeyedIndex, on_damage: OnDamage) -> None:
        super().__init__(below.name, on_damage)
        self._below = below
        self._above = SortedPairs()

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        return MemoryBatch()

    def write(self, batch: Batch) -> None:
        """Apply a batch in memory; raises StorageFull beyond KEYS_MAX."""
        assert isinstance(batch, MemoryBatch)
        self._above.update(batch.changes)

    def flush(self) -> None:
        """Nothing of it is meant to survive."""

    def close(self) -> None:
        """Close what lies below."""
        self._below.close()

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None: no such key."""
        value = self._above.get(key)
        if value is None:
            return self._below.get(key)
        return None if value is GONE else value

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` to below `high` in order with values; raises rather than end early."""
        return (pair for pair in self._merged(low, high) if pair[1] is not GONE)

    def _merged(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        above = self._above.between(low, high)
        place = 0
        for key, value in self._below.scan(low, high):
            while place < len(above) and above[place][0] < key:
                yield above[place]
                place += 1
            if place < len(above) and above[place][0] == key:
                yield above[place]
                place += 1
            else:
                yield key, value
        yield from above[place:]


def add_unproven(index: Index, applier: IndexApplier, record: Record) -> None:
    """Note a record of the log that nothing proves durable and no space is left to write again.

    Its entry is neither readable (it may vanish, B-3) nor absent (it may have been acknowledged),
    unless a durable copy is known. A fence or admission of that kind grants nothing and is left
    out.
    """
    if record.type != RecordType.ENTRY:
        return
    ledger_id, entry_id = ids_of(record.data)[:2]
    if index.locate(ledger_id, entry_id) is None:
        applier.add_record(NOWHERE, record)
