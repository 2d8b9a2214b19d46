"""Stream records as changes of the index: one code for live groups and for replay (ledger §6.7)."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.bookie.journal.item import CommittedGroup
from octavo.bookie.journal.segment import FooterBuilder, Position, Record, RecordType
from octavo.bookie.storage.index import Index, LedgerState
from octavo.bookie.storage.index_jobs import Erase, finish
from octavo.bookie.storage.keyed_index import (
    COUNT,
    ENTRY_KEY,
    ENTRY_VALUE,
    IDENTITY_KEY,
    LEDGER_KEY,
    LEDGER_STATE,
    MARK_KEY,
    MARK_VALUE,
    SEGMENT_KEY,
    doom_key,
    entry_key,
)
from octavo.proto.entry import HEADER
from octavo.runtime.errors import UnsupportedVersion
from octavo.runtime.invariant import invariant


class IndexApplier:
    """Turns stream records into index batches, in stream order. One thread only.

    Replay and the live index writer use the same code, so that a replayed record and a live one
    give the same keys; applying a record twice changes nothing but counters, which are covered by
    the mark (B-14).
    """

    def __init__(self, index: Index, stream: int) -> None:
        self._index = index
        self._mark_key = MARK_KEY.pack(b"m", stream)
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
        key, value = ENTRY_KEY.pack, ENTRY_VALUE.pack
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

    def add_records(self, segment: int, records: Iterable[Record]) -> None:
        """Add replayed records in stream order; what a start after a kill spends its time with.

        What is counted for each ledger is summed up until another record of a ledger follows.
        """
        put, unpack = self._batch.put, HEADER.unpack_from
        key, value = ENTRY_KEY.pack, ENTRY_VALUE.pack
        counted: dict[int, list[int]] = {}  # by ledger: last entry, LAC, entries, bytes
        added_bytes = 0
        for record in records:
            if record.type != RecordType.ENTRY:
                self._sum_up(segment, counted, added_bytes)
                counted, added_bytes = {}, 0
                self.add_record(segment, record)
                put = self._batch.put  # a deletion commits
                continue
            data = record.data
            length = len(data)
            ledger_id, entry_id, lac, _, _ = unpack(data)
            put(key(b"e", ledger_id, entry_id), value(segment, record.offset, length))
            sums = counted.get(ledger_id)
            if sums is None:
                counted[ledger_id] = [entry_id, lac, 1, length]
            else:
                if entry_id > sums[0]:
                    sums[0] = entry_id
                if lac > sums[1]:
                    sums[1] = lac
                sums[2] += 1
                sums[3] += length
            added_bytes += length
        self._sum_up(segment, counted, added_bytes)

    def _sum_up(self, segment: int, counted: dict[int, list[int]], added_bytes: int) -> None:
        for ledger_id, (last, lac, count, nbytes) in counted.items():
            self._entries(ledger_id, last, lac, count, nbytes)
        self._add_live(segment, added_bytes)

    def add_record(self, segment: int, record: Record) -> None:
        """Add one replayed record."""
        if record.type == RecordType.ENTRY:
            ledger_id, entry_id, lac, _, _ = HEADER.unpack_from(record.data)
            length = len(record.data)
            self._batch.put(
                entry_key(ledger_id, entry_id), ENTRY_VALUE.pack(segment, record.offset, length)
            )
            self._entries(ledger_id, entry_id, lac, 1, length)
            self._add_live(segment, length)
            return
        try:
            kind = RecordType(record.type)
        except ValueError:
            raise UnsupportedVersion(f"journal record of unknown type {record.type}") from None
        ledger_id, value = record.control()
        if kind is RecordType.DELETE:
            self._erase(ledger_id)
        else:
            self._control(kind, ledger_id, value)

    def _erase(self, ledger_id: int) -> None:
        """A replayed deletion: at this place of the stream, whole, because entries that were added
        behind it may follow."""
        self.commit(self._mark)
        finish(Erase(ledger_id), self._index)

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
        if kind is RecordType.DELETE:  # live: whoever submitted it has the rest done piecemeal
            self._batch.put(doom_key(ledger_id), b"d")
            return
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
        self._batch.put(IDENTITY_KEY, identity)

    def commit(self, mark: Position) -> None:
        """Write all that was added since the last commit with the mark that covers it (B-10)."""
        invariant(mark >= self._mark, f"durable mark would go back from {self._mark} to {mark}")
        put = self._batch.put
        for ledger_id, state in self._states.items():
            put(LEDGER_KEY.pack(b"l", ledger_id), LEDGER_STATE.pack(*state))
        for segment, nbytes in self._live.items():
            put(SEGMENT_KEY.pack(b"s", segment), COUNT.pack(nbytes))
        put(self._mark_key, MARK_VALUE.pack(*mark))
        self._index.write(self._batch)
        self._mark = mark
        self._states.clear()
        self._live.clear()
        self._batch = self._index.new_batch()
