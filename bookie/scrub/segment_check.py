"""Reads one segment from end to end, and says what of it is not as it was written (6.15).

Every batch by its checksum, every record by its own, every entry by the place that the index names
for it. What lies between two batches that hold is a bad spot; whether an entry in it is damaged is
decided by reading that entry, and which entries are looked for there is asked of the index, never
of the damaged segment. Blocking; runs on the scrub thread and paces itself. It changes nothing.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    SORTED_BASE,
    TRAILER_BYTES,
    BatchInfo,
    RecordType,
    SegmentHeader,
    batch_records,
    claimed_batch_end,
    decode_segment_header,
    find_batch_magic,
    footer_offset,
    has_footer_magic,
    read_batch,
    segment_name,
    trailer_offset,
)
from octavo.bookie.reclaim.pace import Pace
from octavo.bookie.storage.index import Index, Location, Suspect
from octavo.bookie.storage.index_walk import ROWS_PER_STEP, rows_into
from octavo.bookie.storage.reads import is_intact
from octavo.bookie.storage.suspects import SUSPECTS_MAX
from octavo.proto.entry import HEADER as ENTRY_HEADER
from octavo.proto.entry import HEADER_BYTES as ENTRY_HEADER_BYTES
from octavo.runtime.disk import Disk, FileReader
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion

WINDOW_BYTES = 1 << 20
"""Read at a time."""
BATCH_MAX_BYTES = 2 * MAX_RECORD_BYTES
"""No batch is larger: what claims to be is a bad spot."""
ENTRY_COST_BYTES = 512
"""What looking at an entry counts as, besides its bytes: it is paced, too."""
SPOTS_MAX = 1024
"""Bad spots of one segment that are kept apart; what follows the last is one with it."""
DAMAGED_MAX = SUSPECTS_MAX
"""Damaged entries that one check tells of; another check of the segment tells of the others."""
EXPLAINED_MAX = 100_000
"""Segments of which is remembered that their count is too large."""
LACKING_MAX = 4096
"""Entries that the index lacks which one check tells of; the next pass tells of the others."""

Spot = tuple[int, int]
"""From which offset to which a segment is bad."""


class Findings(NamedTuple):
    """What one look at a segment found."""

    number: int
    nbytes: int
    """Bytes that were read."""
    entries: int
    """Entries that are as they were written."""
    live_bytes: int
    """Bytes of those that the index looks for here."""
    spots: tuple[Spot, ...] = ()
    damaged: tuple[Suspect, ...] = ()
    """Entries that the index looks for here, and that cannot be read."""
    lacking: tuple[Suspect, ...] = ()
    """Sound entries of ledgers that are stored here, which the index has at no place."""
    gone: bool = False
    """There is no such file, and nothing is looked for in it: it was removed meanwhile."""

    @property
    def is_damaged(self) -> bool:
        """The segment cannot be trusted."""
        return bool(self.spots or self.damaged)


@dataclass
class _Seen:
    """What is known of a segment so far."""

    number: int
    nbytes: int = 0
    entries: int = 0
    live_bytes: int = 0
    spots: list[Spot] = field(default_factory=list[Spot])
    lacking: list[Suspect] = field(default_factory=list[Suspect])

    def spot(self, start: int, end: int) -> None:
        """Something between these is bad."""
        if self.spots:
            first, last = self.spots[-1]
            if (start <= last and first <= end) or len(self.spots) == SPOTS_MAX:
                self.spots.pop()
                start, end = min(start, first), max(end, last)
        self.spots.append((start, end))


class SegmentChecker:
    """Looks at segments of one store that are not written to any more.

    Args:
        pace: bytes a second; its `stop()` ends a check with Stopped.
        forget_pages: what was read leaves the page cache, as it did when it was written (ADR 8).
    """

    def __init__(
        self,
        folder: pathlib.Path,
        disk: Disk,
        index: Index,
        pace: Pace,
        *,
        forget_pages: bool,
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._index = index
        self._pace = pace
        self._forget_pages = forget_pages
        self._explained: dict[int, int] = {}
        """Segment → its count of live bytes that was found too large, and harmless (6.15)."""

    def check(self, number: int) -> Findings:
        """Everything about one segment; raises Stopped, StorageFailed when the index fails."""
        counted = self._index.live_bytes(number)
        seen = _Seen(number)
        try:
            file = self._disk.open(self._folder / segment_name(number))
        except FileNotFoundError:
            return self._missing(seen)
        except OSError:
            return self._judged(seen, None, counted, whole=True)
        try:
            whole = self._scan(file, seen)
            return self._judged(seen, file, counted, whole=whole)
        finally:
            file.close()

    def read(self, location: Location) -> bytes:
        """The bytes at a place, as far as they can be read (blocking)."""
        try:
            file = self._disk.open(self._folder / segment_name(location.segment))
        except OSError:
            return b""
        try:
            self._pace.spend(location.length + ENTRY_COST_BYTES)
            return self._read(file, location.offset, location.length)
        finally:
            file.close()

    # --- the segment by itself --------------------------------------------------------------

    def _scan(self, file: FileReader, seen: _Seen) -> bool:
        """Read it all; True: nothing of what it says can be believed."""
        size = file.size()
        try:
            header = decode_segment_header(self._read(file, 0, HEADER_BYTES))
        except (CorruptEntry, UnsupportedVersion):
            is_empty = not self._has_bytes(file, 0, size)  # a creation that a crash cut short
            if not is_empty:
                seen.spot(0, size)
            return not is_empty
        if header.number != seen.number:
            seen.spot(0, size)
            return True
        log_end = self._log_end(seen.number)
        end = self._scan_footer(file, header, size, seen)
        position = self._scan_batches(file, header, end, log_end, seen)
        self._scan_tail(file, position, end, log_end, seen, has_footer=end < size)
        return False

    def _log_end(self, number: int) -> int | None:
        """Where the log went on from, if the next segment is there to say so: what lies behind
        that belongs to nobody (ADR 14)."""
        if number >= SORTED_BASE:
            return None
        try:
            file = self._disk.open(self._folder / segment_name(number + 1))
        except OSError:
            return None
        try:
            header = decode_segment_header(self._read(file, 0, HEADER_BYTES))
        except (CorruptEntry, UnsupportedVersion):
            return None
        finally:
            file.close()
        went_on = header.durable_up_to
        return went_on.offset if went_on.segment == number else None

    def _scan_footer(self, file: FileReader, header: SegmentHeader, size: int, seen: _Seen) -> int:
        """Where the footer begins, or the end of a file without one."""
        offset, size = self._find_footer(file, header, size)
        if offset is None:
            return size
        footer = self._read(file, offset, size - offset)
        seen.nbytes += len(footer)
        self._pace.spend(len(footer))
        if footer_offset(footer, header, offset) != offset:
            seen.spot(offset, size)
        return offset

    def _find_footer(
        self, file: FileReader, header: SegmentHeader, size: int
    ) -> tuple[int | None, int]:
        """Where the footer begins by the words of its last bytes, and where it ends: preallocated
        zeros may follow it, which a power cut gave back."""
        ends = [size]
        last = self._last_byte(file, size)
        ends += [end for end in range(last + 1, last + 5) if end < size]
        for end in ends:
            tail = self._read(file, max(0, end - TRAILER_BYTES), min(end, TRAILER_BYTES))
            offset = trailer_offset(tail, header)
            if offset is not None and HEADER_BYTES <= offset < end:
                return offset, end
        return None, size

    def _last_byte(self, file: FileReader, size: int) -> int:
        """Where the last byte lies that is not zero."""
        end = size
        while end > 0:
            start = max(0, end - WINDOW_BYTES)
            data = self._read(file, start, end - start).rstrip(b"\0")
            if data:
                return start + len(data) - 1
            end = start
        return 0

    def _scan_batches(
        self,
        file: FileReader,
        header: SegmentHeader,
        end: int,
        log_end: int | None,
        seen: _Seen,
    ) -> int:
        """Look at all batches; returns where the last one ends."""
        position = base = HEADER_BYTES
        data = b""
        while position < end:
            batch = read_batch(data, position - base, len(data), header, header.salt)
            if batch is None and base + len(data) < end:
                wanted = self._batch_bytes(file, header, position, end)
                if wanted and (position > base or wanted > len(data)):
                    base, data = position, self._window(file, position, wanted, end, seen)
                    batch = read_batch(data, 0, len(data), header, header.salt)
            if batch is None:
                found = self._next_batch(file, header, position + 1, end)
                if found is None:
                    return position
                seen.spot(position, found)
                position = base = found
                data = b""
                continue
            is_log = log_end is None or base + batch.offset < log_end
            self._scan_records(data, base, batch, seen, is_log=is_log)
            position = base + batch.end
        return position

    def _window(self, file: FileReader, position: int, wanted: int, end: int, seen: _Seen) -> bytes:
        size = min(max(WINDOW_BYTES, wanted), end - position)
        data = self._read(file, position, size)
        if self._forget_pages:
            file.drop_cached(position, size)
        seen.nbytes += len(data)
        self._pace.spend(len(data))
        return data

    def _batch_bytes(self, file: FileReader, header: SegmentHeader, position: int, end: int) -> int:
        """How long the batch at `position` claims to be; 0: there is none, or it cannot be."""
        claimed = claimed_batch_end(self._read(file, position, 64), header)
        fits = claimed <= min(BATCH_MAX_BYTES, end - position)
        return claimed if fits else 0

    def _next_batch(
        self, file: FileReader, header: SegmentHeader, position: int, end: int
    ) -> int | None:
        """The first valid batch from `position` on."""
        while position < end:
            data = self._read(file, position, min(WINDOW_BYTES, end - position))
            self._pace.spend(len(data))
            at = find_batch_magic(data, 0)
            while at >= 0:
                start = position + at
                wanted = self._batch_bytes(file, header, start, end)
                whole = self._read(file, start, wanted) if wanted else b""
                if read_batch(whole, 0, len(whole), header, header.salt) is not None:
                    return start
                at = find_batch_magic(data, at + 1)
            # An unreadable piece is passed over as a whole; a magic may lie across two pieces.
            position += max(WINDOW_BYTES - 3, 1)
        return None

    def _scan_records(
        self, data: bytes, base: int, batch: BatchInfo, seen: _Seen, *, is_log: bool
    ) -> None:
        count, known_of, known = 0, -1, False
        try:
            for record in batch_records(data, batch):
                if record.type != RecordType.ENTRY or len(record.data) < ENTRY_HEADER_BYTES:
                    continue
                count += 1
                ledger_id, entry_id = ENTRY_HEADER.unpack_from(record.data)[:2]
                place = Location(seen.number, base + record.offset, len(record.data))
                if not is_intact(record.data, ledger_id, entry_id, place.length):
                    seen.spot(place.offset, place.offset + place.length)
                    continue
                seen.entries += 1
                found = self._index.locate(ledger_id, entry_id)
                if found == place:
                    seen.live_bytes += place.length
                elif found is None and is_log and len(seen.lacking) < LACKING_MAX:
                    if ledger_id != known_of:
                        known_of, known = ledger_id, self._index.ledger(ledger_id) is not None
                    if known:  # else its ledger was deleted
                        seen.lacking.append(Suspect(ledger_id, entry_id, place, has_row=False))
        except CorruptEntry:
            seen.spot(base + batch.offset, base + batch.end)
        self._pace.spend(count * ENTRY_COST_BYTES)

    def _scan_tail(
        self,
        file: FileReader,
        position: int,
        end: int,
        log_end: int | None,
        seen: _Seen,
        *,
        has_footer: bool,
    ) -> None:
        """What lies behind the last batch: a bad spot, or nobody's."""
        is_sorted = seen.number >= SORTED_BASE
        if log_end is not None and position < log_end:
            seen.spot(position, log_end)
        elif position >= end:
            if is_sorted and not has_footer and self._index.live_bytes(seen.number):
                seen.spot(position, position + 1)  # it was cut short behind a batch
        elif has_footer or is_sorted or has_footer_magic(self._read(file, position, 4)):
            seen.spot(position, end)

    # --- what the index looks for in it -----------------------------------------------------

    def _missing(self, seen: _Seen) -> Findings:
        rows = rows_into(self._index, seen.number, self._rest)
        lost = [Suspect(*row, has_row=True) for row in itertools.islice(rows, DAMAGED_MAX)]
        return Findings(seen.number, 0, 0, 0, damaged=tuple(lost), gone=not lost)

    def _judged(
        self, seen: _Seen, file: FileReader | None, counted: int, *, whole: bool
    ) -> Findings:
        damaged: list[Suspect] = []
        unseen = counted > seen.live_bytes and self._explained.get(seen.number) != counted
        if whole or seen.spots or unseen:
            damaged = self._damaged(seen, file, whole=whole)
            if unseen and not (damaged or seen.spots):
                if len(self._explained) >= EXPLAINED_MAX:
                    self._explained.clear()
                self._explained[seen.number] = counted
        return Findings(
            seen.number,
            seen.nbytes,
            seen.entries,
            seen.live_bytes,
            tuple(seen.spots),
            tuple(damaged),
            tuple(seen.lacking),
        )

    def _damaged(self, seen: _Seen, file: FileReader | None, *, whole: bool) -> list[Suspect]:
        """Entries that the index looks for in bad spots, or where no entry was met."""
        damaged: list[Suspect] = []
        elsewhere = 0
        for row in rows_into(self._index, seen.number, self._rest):
            if not whole and not _touches(row[2], seen.spots):
                elsewhere += row[2].length
            elif len(damaged) < DAMAGED_MAX and not self._is_sound(file, *row):
                damaged.append(Suspect(*row, has_row=True))
        if elsewhere > seen.live_bytes:  # some row names a place where no entry begins
            for row in rows_into(self._index, seen.number, self._rest):
                is_open = len(damaged) < DAMAGED_MAX and not _touches(row[2], seen.spots)
                if is_open and not self._is_sound(file, *row):
                    damaged.append(Suspect(*row, has_row=True))
        return damaged

    def _is_sound(
        self, file: FileReader | None, ledger_id: int, entry_id: int, place: Location
    ) -> bool:
        self._pace.spend(place.length + ENTRY_COST_BYTES)
        entry = b"" if file is None else self._read(file, place.offset, place.length)
        return is_intact(entry, ledger_id, entry_id, place.length)

    # --- parts ------------------------------------------------------------------------------

    def _rest(self) -> None:
        self._pace.look_up(ROWS_PER_STEP)

    @staticmethod
    def _read(file: FileReader, offset: int, size: int) -> bytes:
        """Bytes of a file; none where they cannot be read, which is a bad spot."""
        try:
            return file.read_at(offset, size)
        except OSError:
            return b""

    def _has_bytes(self, file: FileReader, position: int, end: int) -> bool:
        """Whether anything but zeros lies there, or something that cannot be read."""
        while position < end:
            wanted = min(WINDOW_BYTES, end - position)
            data = self._read(file, position, wanted)
            if len(data) < wanted or data.strip(b"\0"):
                return True
            position += len(data)
        return False


def _touches(place: Location, spots: Iterable[Spot]) -> bool:
    return any(start < place.offset + place.length and place.offset < end for start, end in spots)
