"""Reading entries back from segments: bounded handles, coalesced preads, digests (ledger §6.5).

Blocking; runs in reader threads. Its answer is one of: entries, "the index has no such key", or
EIO. Damage is never absence (R2): a missing or short segment, a wrong id, a bad digest and any
error of the index or the disk are EIO, and so is everything unforeseen.
"""

from __future__ import annotations

import pathlib
import threading
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from octavo.bookie.journal.segment import segment_name
from octavo.bookie.storage.index import Index, Location
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER, HEADER_BYTES, digest_of
from octavo.runtime.checksum import Buffer
from octavo.runtime.disk import Disk, FileReader
from octavo.runtime.errors import StorageFailed
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.bookie.reads")

OPEN_SEGMENTS_MAX = 64
COALESCE_GAP_BYTES = 16 * 1024
"""Entries of one ledger that lie this close are fetched with one pread, other ledgers' bytes
between included.
"""
COALESCE_MAX_BYTES = 4 * 1024 * 1024
MOVES_MAX = 4
"""How often one read follows an entry that compaction moves under it, before it is EIO."""
PINNED_RATIO = 2
"""A view keeps alive all that it is a view of, until the reply is sent: entries that would keep
more than this many times their own size are copied, so that a reply's size bounds its memory.
"""


class ReadResult(NamedTuple):
    """Outcome of a run read: OK with at least one entry, or why there is none."""

    status: Status
    entries: list[Buffer]


class SegmentFiles:
    """Open segment files, at most OPEN_SEGMENTS_MAX when idle; a file in use is never closed."""

    def __init__(self, directory: pathlib.Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._lock = threading.Lock()
        self._open: OrderedDict[int, FileReader] = OrderedDict()
        self._users: dict[int, int] = {}
        self._forgotten: set[int] = set()  # close when the last user leaves

    @contextmanager
    def use(self, number: int) -> Generator[FileReader, None, None]:
        """The file of a segment, kept open while in the context; raises OSError."""
        with self._lock:
            reader = self._open.get(number)
            if reader is None:
                reader = self._disk.open(self._directory / segment_name(number))
                self._open[number] = reader
            self._open.move_to_end(number)
            self._users[number] = self._users.get(number, 0) + 1
        try:
            yield reader
        finally:
            with self._lock:
                self._users[number] -= 1
                if not self._users[number]:
                    del self._users[number]
                    if number in self._forgotten:
                        self._drop(number)
                self._evict()

    def _evict(self) -> None:
        for number in list(self._open):
            if len(self._open) <= OPEN_SEGMENTS_MAX:
                return
            if number not in self._users:
                self._open.pop(number).close()

    def forget(self, number: int) -> None:
        """A segment is removed: close its file, at once or after its last reader, who still gets
        what he asked for (B-20)."""
        with self._lock:
            if number in self._users:
                self._forgotten.add(number)
            else:
                self._drop(number)

    def _drop(self, number: int) -> None:
        self._forgotten.discard(number)
        reader = self._open.pop(number, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for reader in self._open.values():
                reader.close()
            self._open.clear()


class EntryReader:
    """Looks entries up in the index and fetches them from their segments."""

    def __init__(self, index: Index, files: SegmentFiles) -> None:
        self._index = index
        self._files = files

    def read_run(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        pending: Mapping[int, Buffer],
    ) -> ReadResult:
        """Entries first, first+1, … while they are there and fit; the first always fits (RD-4).

        `pending` holds entries that were not yet in the index when the request was taken; it is
        looked at first, because an entry leaves it only after the index shows it (B-5).
        """
        try:
            return self._read_run(ledger_id, first, max_count, max_bytes, pending)
        except (StorageFailed, OSError) as error:
            _log.warning("read-failed", ledger_id=ledger_id, entry_id=first, cause=str(error))
            return ReadResult(Status.EIO, [])
        except Exception as error:  # noqa: BLE001 - §6.5: the default branch is EIO
            _log.error("read-failed", ledger_id=ledger_id, entry_id=first, cause=repr(error))
            return ReadResult(Status.EIO, [])

    def _read_run(
        self,
        ledger_id: int,
        first: int,
        max_count: int,
        max_bytes: int,
        pending: Mapping[int, Buffer],
    ) -> ReadResult:
        entries: list[Buffer] = []
        room = max_bytes
        next_id, end = first, first + max_count
        shared = False
        moves = 0
        while next_id < end:
            waiting = pending.get(next_id)
            if waiting is not None:
                if entries and len(waiting) > room:
                    break
                entries.append(waiting)
                shared = True
                room -= len(waiting)
                next_id += 1
                continue
            run = self._index.locate_run(ledger_id, next_id, end - next_id, room)
            if not run:
                if not entries:
                    return ReadResult(Status.NO_SUCH_ENTRY, [])
                break
            taken, complete = _fit(run, room, bool(entries))
            found = self._fetch(ledger_id, next_id, taken)
            entries += found
            room -= sum(map(len, found))
            next_id += len(found)
            if len(found) < len(taken):
                if entries:
                    break
                # Moved or deleted behind our look into the index (B-20)? Else it is damage.
                moved = self._index.locate(ledger_id, next_id) != taken[0]
                if moved and moves < MOVES_MAX:
                    moves += 1
                    continue
                return ReadResult(Status.EIO, [])
            if not complete:
                break
        return ReadResult(Status.OK, _unpinned(entries) if shared else entries)

    def _fetch(self, ledger_id: int, first: int, run: Sequence[Location]) -> list[Buffer]:
        """The entries at `run`, views of what was read, up to the first one that is damaged.

        Copies instead of views where the gaps between them are most of what was read.
        """
        entries: list[Buffer] = []
        for group in _coalesce(run):
            start = group[0].offset
            size = group[-1].offset + group[-1].length - start
            sparse = size > PINNED_RATIO * sum(location.length for location in group)
            try:
                with self._files.use(group[0].segment) as file:
                    data = memoryview(file.read_at(start, size))
            except OSError:
                return entries
            for location in group:
                at = location.offset - start
                entry = data[at : at + location.length]
                if not is_intact(entry, ledger_id, first + len(entries), location.length):
                    return entries
                entries.append(bytes(entry) if sparse else entry)
        return entries


def _unpinned(entries: list[Buffer]) -> list[Buffer]:
    """The entries, copied if as views they keep much larger frames of their writers alive."""
    views = [entry for entry in entries if isinstance(entry, memoryview)]
    pinned = sum({id(view.obj): memoryview(view.obj).nbytes for view in views}.values())
    if pinned <= PINNED_RATIO * sum(map(len, views)):
        return entries
    return list(map(bytes, entries))


def _fit(run: Sequence[Location], room: int, have_some: bool) -> tuple[list[Location], bool]:
    """As many locations as fit in `room`, at least one unless `have_some`; whether that is all."""
    taken: list[Location] = []
    for location in run:
        if (taken or have_some) and location.length > room:
            return taken, False
        taken.append(location)
        room -= location.length
    return taken, True


def _coalesce(run: Sequence[Location]) -> Iterator[list[Location]]:
    """Cut a run into groups that one pread fetches."""
    group: list[Location] = []
    for location in run:
        if group:
            last = group[-1]
            gap = location.offset - (last.offset + last.length)
            size = location.offset + location.length - group[0].offset
            near = 0 <= gap <= COALESCE_GAP_BYTES and size <= COALESCE_MAX_BYTES
            if location.segment != last.segment or not near:
                yield group
                group = []
        group.append(location)
    if group:
        yield group


def is_intact(entry: Buffer, ledger_id: int, entry_id: int, length: int) -> bool:
    """True if these bytes are that entry: whole, right ids, right digest (E-2)."""
    if len(entry) != length or length < HEADER_BYTES:
        return False
    stored_ledger, stored_entry, _, _, crc = HEADER.unpack_from(entry)
    if stored_ledger != ledger_id or stored_entry != entry_id:
        return False
    return digest_of(entry) == int(crc)
