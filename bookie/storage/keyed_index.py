"""Keys and values of an index, and the questions that ordered pairs of bytes answer (ledger §6.7).

    e|ledger|entry  segment u64, offset u32, length u32
    l|ledger        LedgerState
    s|segment       live entry bytes u64
    m|stream        segment u64, offset u64
    d|ledger        its deletion has begun
    x|ledger|entry  segment u64, offset u32, length u32, has_row u8: suspected by a scrub
    n|name          a note
    i               identity of the data directory

Keys are big-endian, so that the order of their bytes is the order of their numbers.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from octavo.bookie.journal.segment import Position
from octavo.bookie.storage.index import (
    ENTRY_RUNS_MAX,
    MAX_ENTRY_ID,
    Batch,
    LedgerState,
    Location,
    OnDamage,
    Suspect,
)
from octavo.runtime.errors import StorageDamaged

ENTRY_KEY = struct.Struct(">cqq")
ENTRY_VALUE = struct.Struct(">QII")
SUSPECT_VALUE = struct.Struct(">QII?")
LEDGER_KEY = struct.Struct(">cq")
LEDGER_STATE = struct.Struct(">?QqqqQQ")
SEGMENT_KEY = struct.Struct(">cQ")
COUNT = struct.Struct(">Q")
MARK_KEY = struct.Struct(">cI")
MARK_VALUE = struct.Struct(">QQ")
IDENTITY_KEY = b"i"


def ledger_key(ledger_id: int) -> bytes:
    """Index key of a ledger's state."""
    return LEDGER_KEY.pack(b"l", ledger_id)


def doom_key(ledger_id: int) -> bytes:
    """Index key that says that a ledger's deletion has begun."""
    return LEDGER_KEY.pack(b"d", ledger_id)


def note_key(name: bytes) -> bytes:
    """Index key of a note."""
    return b"n" + name


def entry_key(ledger_id: int, entry_id: int) -> bytes:
    """Index key of an entry."""
    return ENTRY_KEY.pack(b"e", ledger_id, entry_id)


def suspect_key(ledger_id: int, entry_id: int) -> bytes:
    """Index key that says that an entry is suspected."""
    return ENTRY_KEY.pack(b"x", ledger_id, entry_id)


class KeyedIndex(ABC):
    """The reading half of every Index, over `get` and `scan` of what keeps its pairs.

    Args:
        name: what errors call it.
    """

    def __init__(self, name: str, on_damage: OnDamage) -> None:
        self.name = name
        self._on_damage = on_damage

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None: no such key."""

    @abstractmethod
    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` to below `high` in order with values, as of one moment.

        Raises rather than end early.
        """

    @abstractmethod
    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Apply a batch, made by `new_batch()`, atomically."""

    @abstractmethod
    def flush(self) -> None:
        """Make everything applied so far survive a crash (blocking)."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close (blocking)."""

    def _unpack(self, layout: struct.Struct, value: bytes) -> tuple[Any, ...]:
        """The fields of a value; one of another size was not written by us."""
        if len(value) != layout.size:
            what = f"a value of {len(value)} bytes where {layout.size} belong"
            damaged = StorageDamaged(f"an index read failed: {self.name}: {what}", file=self.name)
            self._on_damage(damaged)
            raise damaged
        return layout.unpack(value)

    def mark(self, stream: int) -> Position | None:
        """Position up to which the index holds every record of the stream."""
        value = self.get(MARK_KEY.pack(b"m", stream))
        return None if value is None else Position(*self._unpack(MARK_VALUE, value))

    def identity(self) -> bytes | None:
        """Identity of the data directory this index belongs to."""
        return self.get(IDENTITY_KEY)

    def locate(self, ledger_id: int, entry_id: int) -> Location | None:
        """Where an entry lies, or None: no such key."""
        value = self.get(ENTRY_KEY.pack(b"e", ledger_id, entry_id))
        return None if value is None else Location(*self._unpack(ENTRY_VALUE, value))

    def locate_run(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int
    ) -> list[Location]:
        """Locations of entries first, first+1, … while there is no gap (see `Index`)."""
        location = self.locate(ledger_id, first) if first <= MAX_ENTRY_ID else None
        if location is None:
            return []
        run = [location]
        room = max_bytes - location.length
        if max_count > 1 and room >= 0 and first < MAX_ENTRY_ID:
            high = entry_key(ledger_id, min(first + max_count, MAX_ENTRY_ID))
            for key, value in self.scan(entry_key(ledger_id, first + 1), high):
                if key != entry_key(ledger_id, first + len(run)):
                    break
                location = Location(*self._unpack(ENTRY_VALUE, value))
                run.append(location)
                room -= location.length
                if room < 0:
                    break
        return run

    def entry_runs(
        self, ledger_id: int, first: int, last: int
    ) -> tuple[list[tuple[int, int]], int]:
        """Entries of first..last as runs, and how far was looked (see `Index`)."""
        runs: list[tuple[int, int]] = []
        high = entry_key(ledger_id, min(last + 1, MAX_ENTRY_ID))
        for key, _ in self.scan(entry_key(ledger_id, first), high):
            entry = int(ENTRY_KEY.unpack(key)[2])
            if runs and runs[-1][1] + 1 == entry:
                runs[-1] = (runs[-1][0], entry)
            elif len(runs) == ENTRY_RUNS_MAX:
                return runs, entry - 1
            else:
                runs.append((entry, entry))
        return runs, last

    def ledger(self, ledger_id: int) -> LedgerState | None:
        """State of a ledger, or None when no record of it was ever applied."""
        value = self.get(LEDGER_KEY.pack(b"l", ledger_id))
        return None if value is None else LedgerState._make(self._unpack(LEDGER_STATE, value))

    def entries_of(self, ledger_id: int, first: int, max_count: int) -> list[tuple[int, Location]]:
        """Ids from `first` on and locations of a ledger's entries, gaps or not."""
        found: list[tuple[int, Location]] = []
        if first > MAX_ENTRY_ID or max_count < 1:
            return found
        high = entry_key(ledger_id, MAX_ENTRY_ID) + b"\0"
        for key, value in self.scan(entry_key(ledger_id, first), high):
            found.append((ENTRY_KEY.unpack(key)[2], Location(*self._unpack(ENTRY_VALUE, value))))
            if len(found) == max_count:
                break
        return found

    def rows_from(
        self, ledger_id: int, entry_id: int, max_count: int
    ) -> list[tuple[int, int, Location]]:
        """Entries of all ledgers in order (see `Index`)."""
        found: list[tuple[int, int, Location]] = []
        for key, value in self.scan(entry_key(ledger_id, entry_id), b"f"):
            _, ledger, entry = ENTRY_KEY.unpack(key)
            found.append((ledger, entry, Location(*self._unpack(ENTRY_VALUE, value))))
            if len(found) == max_count:
                break
        return found

    def suspects(self, max_count: int) -> list[Suspect]:
        """Entries that a scrub suspects (see `Index`)."""
        found: list[Suspect] = []
        for key, value in self.scan(b"x", b"y"):
            _, ledger_id, entry_id = ENTRY_KEY.unpack(key)
            *place, has_row = self._unpack(SUSPECT_VALUE, value)
            found.append(Suspect(ledger_id, entry_id, Location(*place), has_row))
            if len(found) == max_count:
                break
        return found

    def ledgers(self) -> list[tuple[int, bool]]:
        """Every ledger of which some record was applied, and whether entries were among them."""
        found: list[tuple[int, bool]] = []
        for key, value in self.scan(b"l", b"m"):
            state = LedgerState._make(self._unpack(LEDGER_STATE, value))
            found.append((LEDGER_KEY.unpack(key)[1], state.entries > 0))
        return found

    def doomed(self) -> list[int]:
        """Ledgers whose deletion has begun and not ended (6.14)."""
        return [LEDGER_KEY.unpack(key)[1] for key, _ in self.scan(b"d", b"e")]

    def note(self, name: bytes) -> bytes | None:
        """What was put under `note_key(name)`."""
        return self.get(note_key(name))

    def live_bytes(self, segment: int) -> int:
        """Bytes of entries that lie in a segment, or more (see `Index`)."""
        value = self.get(SEGMENT_KEY.pack(b"s", segment))
        return 0 if value is None else int(self._unpack(COUNT, value)[0])

    def segments(self) -> list[int]:
        """Segments that hold, or held, entries."""
        low, high = SEGMENT_KEY.pack(b"s", 0), b"t"
        return [SEGMENT_KEY.unpack(key)[1] for key, _ in self.scan(low, high)]
