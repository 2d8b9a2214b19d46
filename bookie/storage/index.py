"""The RocksDB index: where each entry lies, and the state of each ledger (ledger §6.1, §6.7).

It is a cache of the journal (R5): it never leads it (B-5), it can always be rebuilt from it.
RocksDB's own log is off; one column family; the durable mark travels in the same WriteBatch as the
keys it covers (B-10), so the mark that survives a crash never exceeds what the index holds. Reads
use explicit iterators and check their status: dictionary-style iteration of the binding ends early
and silently on damage.

    e|ledger|entry  segment u64, offset u32, length u32
    l|ledger        LedgerState
    s|segment       live entry bytes u64
    m|stream        segment u64, offset u64
    i               identity of the data directory

Keys are big-endian, so that the order of their bytes is the order of their numbers.
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import rocksdict

from octavo.bookie.faults import from_rocksdb
from octavo.bookie.journal.item import CommittedGroup
from octavo.bookie.journal.segment import FooterBuilder, Position, Record, RecordType
from octavo.proto.entry import HEADER
from octavo.runtime.errors import StorageDamaged, StorageFailed, UnsupportedVersion
from octavo.runtime.invariant import invariant

_ENTRY_KEY = struct.Struct(">cqq")
_ENTRY_VALUE = struct.Struct(">QII")
_LEDGER_KEY = struct.Struct(">cq")
_SEGMENT_KEY = struct.Struct(">cQ")
_COUNT = struct.Struct(">Q")
_MARK_KEY = struct.Struct(">cI")
_MARK_VALUE = struct.Struct(">QQ")
_IDENTITY_KEY = b"i"
_LEDGER_STATE = struct.Struct(">?QqqqQQ")
MAX_ENTRY_ID = (1 << 63) - 1


class Location(NamedTuple):
    """Where an entry's bytes lie."""

    segment: int
    offset: int
    length: int


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


def entry_key(ledger_id: int, entry_id: int) -> bytes:
    """Index key of an entry."""
    return _ENTRY_KEY.pack(b"e", ledger_id, entry_id)


class Batch(Protocol):
    """Changes that are applied together."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key."""
        ...


class EntryIndex:
    """One open RocksDB. Reads from any thread; writes from one thread only.

    Errors raise a StorageFailed; `on_damage` is told of each StorageDamaged, on the thread that met
    it, so that the next start builds the index anew.
    """

    def __init__(
        self,
        path: pathlib.Path,
        write_buffer_bytes: int,
        *,
        read_only: bool = False,
        on_damage: Callable[[StorageDamaged], None] = lambda _error: None,
    ) -> None:
        self._path = str(path)
        self._on_damage = on_damage
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(3)
        options.set_paranoid_checks(True)
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_format_version(5)
        table.set_block_cache(rocksdict.Cache(32 << 20))
        options.set_block_based_table_factory(table)
        self._write_options = rocksdict.WriteOptions()
        # The stub calls this property a method.
        setattr(self._write_options, "disable_wal", True)  # noqa: B010
        try:
            access = (
                rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
            )
            self._db = rocksdict.Rdict(str(path), options=options, access_type=access)
        except Exception as error:
            raise from_rocksdb("the index cannot be opened", str(path), error) from error

    def close(self) -> None:
        """Flush and close."""
        try:
            self._db.close()
        except Exception as error:
            raise from_rocksdb("closing the index failed", self._path, error) from error

    # --- reads ------------------------------------------------------------------------------

    def _get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._failed("an index read failed", error) from error
        return value

    def _failed(self, what: str, error: Exception) -> StorageFailed:
        failed = from_rocksdb(what, self._path, error)
        if isinstance(failed, StorageDamaged):
            self._on_damage(failed)
        return failed

    def _unpack(self, layout: struct.Struct, value: bytes) -> tuple[Any, ...]:
        """The fields of a value; one of another size was not written by us."""
        if len(value) != layout.size:
            raise self._failed("an index read failed", ValueError(f"value of {len(value)} bytes"))
        return layout.unpack(value)

    def _scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `low` to below `high` with values; raises when the iterator ended early."""
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(high)
        options.set_verify_checksums(True)
        try:
            iterator = self._db.iter(options)
            iterator.seek(low)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._failed("an index scan failed", error) from error

    def mark(self, stream: int) -> Position | None:
        """Position up to which the index holds every record of the stream."""
        value = self._get(_MARK_KEY.pack(b"m", stream))
        return None if value is None else Position(*self._unpack(_MARK_VALUE, value))

    def identity(self) -> bytes | None:
        """Identity of the data directory this index belongs to."""
        return self._get(_IDENTITY_KEY)

    def locate(self, ledger_id: int, entry_id: int) -> Location | None:
        """Where an entry lies, or None: no such key."""
        value = self._get(_ENTRY_KEY.pack(b"e", ledger_id, entry_id))
        return None if value is None else Location(*self._unpack(_ENTRY_VALUE, value))

    def locate_run(
        self, ledger_id: int, first: int, max_count: int, max_bytes: int
    ) -> list[Location]:
        """Locations of entries first, first+1, … while there is no gap; at most `max_count`.

        Ends with the entry that exceeds `max_bytes`: a caller that reads no further looks at no
        more keys than it uses, and sees that there is more.
        """
        location = self.locate(ledger_id, first)
        if location is None:
            return []
        run = [location]
        room = max_bytes - location.length
        if max_count > 1 and room >= 0:
            high = entry_key(ledger_id, min(first + max_count, MAX_ENTRY_ID))
            for key, value in self._scan(entry_key(ledger_id, first + 1), high):
                if key != entry_key(ledger_id, first + len(run)):
                    break
                location = Location(*self._unpack(_ENTRY_VALUE, value))
                run.append(location)
                room -= location.length
                if room < 0:
                    break
        return run

    def ledger(self, ledger_id: int) -> LedgerState | None:
        """State of a ledger, or None when no record of it was ever applied."""
        value = self._get(_LEDGER_KEY.pack(b"l", ledger_id))
        return None if value is None else LedgerState._make(self._unpack(_LEDGER_STATE, value))

    def live_bytes(self, segment: int) -> int:
        """Bytes of entries the index says lie in a segment."""
        value = self._get(_SEGMENT_KEY.pack(b"s", segment))
        return 0 if value is None else int(self._unpack(_COUNT, value)[0])

    def segments(self) -> list[int]:
        """Segments that hold, or held, entries."""
        low, high = _SEGMENT_KEY.pack(b"s", 0), b"t"
        return [_SEGMENT_KEY.unpack(key)[1] for key, _ in self._scan(low, high)]

    # --- writes -----------------------------------------------------------------------------

    def new_batch(self) -> Batch:
        """An empty batch for `write()`."""
        return rocksdict.WriteBatch(raw_mode=True)

    def write(self, batch: Batch) -> None:
        """Apply a batch, made by `new_batch()`, atomically."""
        try:
            assert isinstance(batch, rocksdict.WriteBatch)
            self._db.write(batch, self._write_options)
        except Exception as error:
            raise self._failed("an index write failed", error) from error

    def flush(self) -> None:
        """Make everything applied so far survive a crash (blocking)."""
        try:
            self._db.flush(True)
        except Exception as error:
            raise self._failed("an index flush failed", error) from error


class IndexApplier:
    """Turns stream records into index batches, in stream order. One thread only.

    Replay and the live index writer use the same code, so that a replayed record and a live one
    give the same keys; applying a record twice changes nothing but counters, which are covered by
    the mark (B-14).
    """

    def __init__(self, index: EntryIndex, stream: int) -> None:
        self._index = index
        self._mark_key = _MARK_KEY.pack(b"m", stream)
        self._mark = index.mark(stream) or Position(0, 0)
        self._batch = index.new_batch()
        self._states: dict[int, LedgerState] = {}
        self._live: dict[int, int] = {}

    @property
    def mark(self) -> Position:
        """The last mark written."""
        return self._mark

    def add_group(self, group: CommittedGroup, footer: FooterBuilder) -> None:
        """Add a live group (the hot path) and list its entries in the segment's footer."""
        put = self._batch.put
        key, value = _ENTRY_KEY.pack, _ENTRY_VALUE.pack
        segment = group.segment
        added_bytes = 0
        for item in group.items:
            offset = item.offset
            for kind, ledger_id, argument in item.controls:
                self._control(kind, ledger_id, argument)
                offset += 16
            current = last = lac = first = -1
            count = nbytes = 0
            for (ledger_id, entry_id, entry_lac, _, _), entry in zip(
                item.heads, item.entries, strict=True
            ):
                length = len(entry)
                put(key(b"e", ledger_id, entry_id), value(segment, offset, length))
                footer.add(ledger_id, entry_id, offset, length)
                offset += length
                if ledger_id != current:
                    if count:
                        self._entries(current, last, lac, count, nbytes)
                    current, last, lac, count, nbytes = ledger_id, first, first, 0, 0
                if entry_id > last:
                    last = entry_id
                if entry_lac > lac:
                    lac = entry_lac
                count += 1
                nbytes += length
                added_bytes += length
            if count:
                self._entries(current, last, lac, count, nbytes)
        self._add_live(segment, added_bytes)

    def add_record(self, segment: int, record: Record) -> None:
        """Add one replayed record."""
        if record.type == RecordType.ENTRY:
            ledger_id, entry_id, lac, _, _ = HEADER.unpack_from(record.data)
            length = len(record.data)
            self._batch.put(
                entry_key(ledger_id, entry_id), _ENTRY_VALUE.pack(segment, record.offset, length)
            )
            self._entries(ledger_id, entry_id, lac, 1, length)
            self._add_live(segment, length)
            return
        try:
            kind = RecordType(record.type)
        except ValueError:
            raise UnsupportedVersion(f"journal record of unknown type {record.type}") from None
        self._control(kind, *record.control())

    def _state(self, ledger_id: int) -> LedgerState:
        state = self._states.get(ledger_id)
        if state is None:
            state = self._index.ledger(ledger_id) or LedgerState()
        return state

    def _entries(self, ledger_id: int, last: int, lac: int, count: int, nbytes: int) -> None:
        old = self._state(ledger_id)
        self._states[ledger_id] = LedgerState(
            old.fenced,
            old.admitted_tag,
            old.explicit_lac,
            max(old.header_lac, lac),
            max(old.last_entry, last),
            old.entries + count,
            old.nbytes + nbytes,
        )

    def _control(self, kind: RecordType, ledger_id: int, value: int) -> None:
        state = self._state(ledger_id)
        if kind is RecordType.FENCE:
            state = state._replace(fenced=True)
        elif kind is RecordType.ADMIT:
            state = state._replace(admitted_tag=value)
        else:
            state = state._replace(explicit_lac=max(state.explicit_lac, value))
        self._states[ledger_id] = state

    def _add_live(self, segment: int, nbytes: int) -> None:
        if nbytes:
            known = self._live.get(segment)
            base = self._index.live_bytes(segment) if known is None else known
            self._live[segment] = base + nbytes

    def set_identity(self, identity: bytes) -> None:
        """Name the data directory this index belongs to."""
        self._batch.put(_IDENTITY_KEY, identity)

    def commit(self, mark: Position) -> None:
        """Write all that was added since the last commit with the mark that covers it (B-10)."""
        invariant(mark >= self._mark, f"durable mark would go back from {self._mark} to {mark}")
        put = self._batch.put
        for ledger_id, state in self._states.items():
            put(_LEDGER_KEY.pack(b"l", ledger_id), _LEDGER_STATE.pack(*state))
        for segment, nbytes in self._live.items():
            put(_SEGMENT_KEY.pack(b"s", segment), _COUNT.pack(nbytes))
        put(self._mark_key, _MARK_VALUE.pack(*mark))
        self._index.write(self._batch)
        self._mark = mark
        self._states.clear()
        self._live.clear()
        self._batch = self._index.new_batch()
