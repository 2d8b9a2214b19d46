"""What a bookie asks of its index: where each entry lies, and the state of each ledger (§6.7).

The index is a cache of the journal (R5): it never leads it (B-5), it can always be rebuilt from it.
The durable mark travels in the same batch as the keys it covers (B-10), and batches survive in the
order in which they were written, so the mark that survives a crash never exceeds what the index
holds.

    Index       one open index     RocksIndex, MemoryIndex, FrozenIndex, all over KeyedIndex
    IndexEngine where they come from, by folder              RocksEngine, MemoryEngine

One contract suite (`tests/contract/test_index.py`) judges all of them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.bookie.journal.segment import Position
from octavo.runtime.errors import StorageDamaged

MAX_ENTRY_ID = (1 << 63) - 1

OnDamage = Callable[[StorageDamaged], None]
"""Told of each damage, on the thread that met it, so that the next start builds the index anew."""


class Location(NamedTuple):
    """Where an entry's bytes lie."""

    segment: int
    offset: int
    length: int


class Suspect(NamedTuple):
    """An entry that cannot be read where it lies, or that the index does not show (6.15)."""

    ledger_id: int
    entry_id: int
    location: Location
    """Where its bytes lie, or were."""
    has_row: bool
    """The index names that place; False: the segment lists it there, and the index nowhere."""


ENTRY_RUNS_MAX = 4096
"""Runs of entries that one listing tells."""


class LedgerState(NamedTuple):
    """What the index knows of one ledger, as of the records applied."""

    fenced: bool = False
    admitted_tag: int = 0
    """Tag of the incarnation that was admitted to write this ledger; 0 for none (6.12)."""
    explicit_lac: int = -1
    header_lac: int = -1
    """Largest LAC seen in an entry's header (RD-5)."""
    last_entry: int = -1
    entries: int = 0
    nbytes: int = 0

    @property
    def lac(self) -> int:
        """RD-5: the largest LAC this bookie has heard of."""
        return max(self.explicit_lac, self.header_lac)


class Batch(Protocol):
    """Changes that are applied together."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove a key, whether it is there or not."""
        ...


class Index(Protocol):
    """One open index. Reads from any thread; writes from one thread only.

    Errors raise a StorageFailed; absence is an answer, damage never is (INV-9).
    """

    def mark(self, stream: int) -> Position | None:
        """Position up to which the index holds every record of the stream."""
        ...

    def identity(self) -> bytes | None:
        """Identity of the data directory this index belongs to."""
        ...

    def locate(self, ledger_id: int, entry_id: int) -> Location | None:
        """Where an entry lies, or None: no such key."""
        ...

    def locate_run(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int
    ) -> list[Location]:
        """Locations of entries first, first+1, … while there is no gap; at most `max_count`.

        Ends with the entry that exceeds `max_bytes`: a caller that reads no further looks at no
        more keys than it uses, and sees that there is more.
        """
        ...

    def entry_runs(
        self, ledger_id: int, first: int, last: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Entries of first..last as runs, ENTRY_RUNS_MAX at most; and how far was looked."""
        ...

    def ledger(self, ledger_id: int) -> LedgerState | None:
        """State of a ledger, or None when no record of it was ever applied."""
        ...

    def entries_of(self, ledger_id: int, first: int, max_count: int) -> list[tuple[int, Location]]:
        """Ids from `first` on and locations of a ledger's entries, gaps or not."""
        ...

    def rows_from(
        self, ledger_id: int, entry_id: int, max_count: int
    ) -> list[tuple[int, int, Location]]:
        """(ledger, entry, where) of entries of all ledgers, in order, from this one on."""
        ...

    def suspects(self, max_count: int) -> list[Suspect]:
        """Entries that a scrub found damaged and that may be so still (6.15), in order."""
        ...

    def ledgers(self) -> list[tuple[int, bool]]:
        """Every ledger of which some record was applied, and whether entries were among them."""
        ...

    def doomed(self) -> list[int]:
        """Ledgers whose deletion has begun and not ended (6.14)."""
        ...

    def note(self, name: bytes) -> bytes | None:
        """What was put under `note_key(name)`."""
        ...

    def live_bytes(self, segment: int) -> int:
        """Bytes of entries that lie in a segment, or more: an entry that a recovery add brought to
        another place is still counted here."""
        ...

    def segments(self) -> list[int]:
        """Segments that hold, or held, entries."""
        ...

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply a batch, made by `new_batch()`, atomically."""
        ...

    def flush(self) -> None:
        """Make everything applied so far survive a crash (blocking)."""
        ...

    def close(self) -> None:
        """Flush and close (blocking)."""
        ...


class IndexEngine(Protocol):
    """Opens the indexes of data folders; each of them once at a time (StorageUnavailable)."""

    def open(self, folder: pathlib.Path, write_buffer_bytes: int, on_damage: OnDamage) -> Index:
        """The index in `folder`, an empty one if there is none (blocking)."""
        ...

    def open_frozen(self, folder: pathlib.Path, on_damage: OnDamage) -> Index:
        """The index in `folder` as it is, which nothing changes: writes stay in memory (6.13).

        Raises StorageDamaged when there is none.
        """
        ...

    def put_aside(self, folder: pathlib.Path, now_ms: int) -> None:
        """Keep a closed, unusable index beside `folder`, for who wants to know why (blocking).

        Older ones that were kept go; nothing is done when `folder` holds none.
        """
        ...
