"""Copies the live entries of segments into a new one, sorted by ledger and entry (B-19).

A sorted segment has the layout of any other (`octavo.bookie.journal.segment`), a number of its own
space, and is never replayed. It counts from the moment the index names it, which is after it, its
footer and its name were synced. Blocking; runs on the compaction thread, and paces itself.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from octavo.bookie.journal.segment import (
    BATCH_HEADER_BYTES,
    HEADER_BYTES,
    SORTED_BASE,
    START,
    FooterBuilder,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
    segment_name,
)
from octavo.bookie.reclaim.pace import Pace, Stopped
from octavo.bookie.reclaim.segment_rows import SegmentRows, has_footer, read_rows
from octavo.bookie.storage.index import Index, Location
from octavo.bookie.storage.index_jobs import Move
from octavo.bookie.storage.index_walk import rows_into
from octavo.bookie.storage.reads import SegmentFiles, is_intact
from octavo.runtime.checksum import Buffer
from octavo.runtime.disk import Appender, Disk
from octavo.runtime.telemetry import get_logger

BATCH_BYTES = 1 << 20
"""Entries that are written together."""
SYNC_BYTES = 4 << 20
"""A copy is synced in steps of this size, so that no sync of the journal waits for a large one."""
ROWS_PER_PAUSE = 256
"""Entries that are looked up before other threads get their turn."""
FOOTER_ROW_BYTES = 40
"""More than a row of a footer takes."""

_log = get_logger("octavo.bookie.compaction")


class Copy(NamedTuple):
    """What was copied."""

    size_bytes: int
    """Of the new file; 0: nothing was live, and there is no file."""
    moves: list[Move]
    damaged: dict[int, int]
    """Source → entries that could not be copied (B-21)."""


class LiveRows(NamedTuple):
    """The live entries of a segment."""

    rows: list[tuple[int, int, Location]]
    """(ledger, entry, where)."""
    known: bool
    """False: some of the segment cannot be read."""


class SortedCopier:
    """Reads segments, compares them with the index, and copies what is live.

    Args:
        is_left: whether a segment is damaged, so that the index alone says what is live in it.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        disk: Disk,
        files: SegmentFiles,
        index: Index,
        pace: Pace,
        *,
        is_left: Callable[[int], bool],
    ) -> None:
        self._is_left = is_left
        self._folder = folder
        self._disk = disk
        self._files = files
        self._index = index
        self._pace = pace

    def live_rows(self, number: int) -> LiveRows:
        """Entries of a segment to which the index points: exactly there (B-18)."""
        if self._is_left(number):
            named = rows_into(self._index, number, self._rest)
            return LiveRows(list(named), True)
        try:
            with self._files.use(number) as file:
                is_unused = number >= SORTED_BASE and not self._index.live_bytes(number)
                if is_unused and not has_footer(file):
                    return LiveRows([], True)  # B-21: never finished, and nothing points into it
                found = read_rows(file)
        except OSError as error:
            _log.error("segment-unreadable", segment=number, cause=str(error))
            return LiveRows([], False)
        if found.header is not None and found.header.number != number:
            return LiveRows([], False)
        rows = self._live(number, found)
        # Bytes behind the last batch hold nothing only if nothing is counted but what was found.
        counted = sum(location.length for _, _, location in rows)
        is_known = not found.torn or self._index.live_bytes(number) <= counted
        return LiveRows(rows, found.complete and is_known)

    def _live(self, number: int, found: SegmentRows) -> list[tuple[int, int, Location]]:
        rows: list[tuple[int, int, Location]] = []
        for looked_at, (ledger_id, entry_id, offset, length) in enumerate(found.rows):
            if looked_at % ROWS_PER_PAUSE == ROWS_PER_PAUSE - 1:
                self._rest()
            location = Location(number, offset, length)
            if self._index.locate(ledger_id, entry_id) == location:
                rows.append((ledger_id, entry_id, location))
        return rows

    def _rest(self) -> None:
        self._pace.look_up(ROWS_PER_PAUSE)

    def copy(self, sources: Sequence[int], header: SegmentHeader) -> Copy:
        """Copy what is live in `sources` into the segment of `header`.

        Raises OSError; a file without space is removed before that. Raises Stopped likewise.
        """
        rows: list[tuple[int, int, Location]] = []
        damaged: dict[int, int] = {}
        for source in sources:
            found = self.live_rows(source)
            rows += found.rows
            if not found.known:
                damaged[source] = 0
        if not rows:
            return Copy(0, [], damaged)
        rows.sort()
        path = self._folder / segment_name(header.number)
        wanted = HEADER_BYTES + sum(location.length + FOOTER_ROW_BYTES for _, _, location in rows)
        appender = self._disk.create(path, wanted)
        try:
            return self._write(appender, header, rows, damaged)
        except (OSError, Stopped):
            self._give_up(path)
            raise
        finally:
            appender.close()

    def _write(
        self,
        appender: Appender,
        header: SegmentHeader,
        rows: list[tuple[int, int, Location]],
        damaged: dict[int, int],
    ) -> Copy:
        appender.write([encode_segment_header(header)])
        footer, moves = FooterBuilder(), list[Move]()
        synced = 0
        for sequence, batch in enumerate(self._batches(rows, damaged)):
            nbytes = sum(len(entry) for _, _, _, entry in batch)
            words = [len(entry) for _, _, _, entry in batch]
            data: list[Buffer] = [entry for _, _, _, entry in batch]
            offset = appender.position + BATCH_HEADER_BYTES + 4 * len(words)
            head = encode_batch(header.salt, header.number, sequence, START, words, data, nbytes)
            appender.write([head, *data])
            for ledger_id, entry_id, source, entry in batch:
                target = Location(header.number, offset, len(entry))
                moves.append(Move(ledger_id, entry_id, source, target))
                footer.add(ledger_id, entry_id, offset, len(entry))
                offset += len(entry)
            if appender.position - synced >= SYNC_BYTES:
                appender.sync()
                appender.drop_cached(0)
                synced = appender.position
            self._pace.spend(nbytes)
        appender.write(footer.encode(header, appender.position))
        appender.trim()
        appender.sync()
        appender.drop_cached(0)
        self._disk.sync_dir(self._folder)
        return Copy(appender.position, moves, damaged)

    def _batches(
        self, rows: list[tuple[int, int, Location]], damaged: dict[int, int]
    ) -> Iterator[list[tuple[int, int, Location, bytes]]]:
        batch: list[tuple[int, int, Location, bytes]] = []
        room = BATCH_BYTES
        for ledger_id, entry_id, location in rows:
            entry = self._read(location)
            if not is_intact(entry, ledger_id, entry_id, location.length):
                damaged[location.segment] = damaged.get(location.segment, 0) + 1
                _log.error(
                    "entry-damaged",
                    ledger_id=ledger_id,
                    entry_id=entry_id,
                    segment=location.segment,
                    offset=location.offset,
                )
                continue
            if batch and len(entry) > room:
                yield batch
                batch, room = [], BATCH_BYTES
            batch.append((ledger_id, entry_id, location, entry))
            room -= len(entry)
        if batch:
            yield batch

    def _read(self, location: Location) -> bytes:
        """An entry's bytes; none of them where they cannot be read."""
        try:
            with self._files.use(location.segment) as file:
                return file.read_at(location.offset, location.length)
        except OSError as error:
            _log.error("segment-unreadable", segment=location.segment, cause=str(error))
            return b""

    def _give_up(self, path: pathlib.Path) -> None:
        try:
            self._disk.unlink(path)
        except OSError as error:  # the next round finds it without a footer, and unused
            _log.warning("copy-not-removed", file=path.name, cause=str(error))

    def remove(self, number: int) -> None:
        """Remove a segment for good; raises OSError."""
        self._files.forget(number)
        with contextlib.suppress(FileNotFoundError):  # an earlier process ended behind this
            self._disk.unlink(self._folder / segment_name(number))
        self._disk.sync_dir(self._folder)
