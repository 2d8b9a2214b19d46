"""The index of a bookie that found no space to start (spec/ledger.md §6.13).

The one on disk, opened without writing, and above it in memory what the journal holds beyond its
mark.

Nothing is changed on disk. It ends when the bookie opens its storage again with space.
"""

from __future__ import annotations

import bisect
import pathlib
from collections.abc import Callable, Iterator

from octavo.bookie.journal.segment import Record, RecordType
from octavo.bookie.ledgers import ids_of
from octavo.bookie.storage.index import Batch, EntryIndex, IndexApplier
from octavo.runtime.errors import StorageDamaged, StorageFull

KEYS_MAX = 2_000_000
"""Keys kept in memory, some 400 MB; a journal that holds more beyond the mark needs space to
start.
"""

NOWHERE = 0
"""Number of no segment: what lies there is unreadable, never absent."""


class _MemoryBatch:
    def __init__(self) -> None:
        self.changes: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value


class FrozenIndex(EntryIndex):
    """Reads as EntryIndex does; what is written stays in memory, and `flush()` does nothing."""

    def __init__(self, path: pathlib.Path, *, on_damage: Callable[[StorageDamaged], None]) -> None:
        super().__init__(path, 1 << 20, read_only=True, on_damage=on_damage)
        self._above: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = None  # sorted keys; None after a write

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        return _MemoryBatch()

    def write(self, batch: Batch) -> None:
        """Apply a batch in memory; raises StorageFull beyond KEYS_MAX."""
        assert isinstance(batch, _MemoryBatch)
        self._above.update(batch.changes)
        self._order = None
        if len(self._above) > KEYS_MAX:
            raise StorageFull(f"the journal holds more than {KEYS_MAX} keys that are not indexed")

    def flush(self) -> None:
        """Nothing of it is meant to survive."""

    def _get(self, key: bytes) -> bytes | None:
        value = self._above.get(key)
        return super()._get(key) if value is None else value

    def _scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        order = self._order
        if order is None:
            order = self._order = sorted(self._above)
        position, end = bisect.bisect_left(order, low), bisect.bisect_left(order, high)
        for key, value in super()._scan(low, high):
            while position < end and order[position] < key:
                yield order[position], self._above[order[position]]
                position += 1
            if position < end and order[position] == key:
                position += 1
            yield key, self._above.get(key, value)
        for key in order[position:end]:
            yield key, self._above[key]


def add_unproven(index: EntryIndex, applier: IndexApplier, record: Record) -> None:
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
