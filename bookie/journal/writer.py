"""Group commit of one append stream on one dedicated thread (spec/ledger.md §6.4, B-6..B-9).

The loop submits items; the commit thread takes all that are queued (up to `group_max_bytes`),
writes them as one batch, syncs once, and acknowledges all through one `call_soon_threadsafe`;
meanwhile the next group forms. Any failed write or sync ends the thread (fail-stop, B-8): nothing
after it is ever acknowledged and no sync is retried. A segment that cannot be allocated refuses
ordinary items with DISK_FULL and the stream lives on (6.13).
"""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.bookie.faults import is_full
from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.journal.segment import (
    BATCH_HEADER_BYTES,
    CONTROL,
    MAX_SEGMENT_BYTES,
    Position,
    Record,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
)
from octavo.proto.bookie_wire import Status
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Appender, Disk
from octavo.runtime.doorbell import Doorbell
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError, StorageFailed
from octavo.runtime.invariant import invariant
from octavo.runtime.telemetry import get_logger

JOIN_BELOW_BYTES = 8 * 1024
"""Items whose entries are smaller on average are joined into one buffer: fewer iovecs, fewer crc
calls."""
RESERVE_RECORDS = 1000
"""Fences and recovery are queued beyond the ordinary bound by this much (B-9, 6.13)."""
RESERVE_STEP_BYTES = 256 * 1024
"""Size of the segments that fences and recovery get when there is no space for a whole one."""
LAZY_ITEMS_MAX = 256
"""With so many items queued a group is written, even when none of them asks for a sync (RD-6)."""
LAZY_SHARE = 0.5
"""Lazy items may fill this part of the queue: they never cost an add its place (B-9)."""


_log = get_logger("octavo.bookie.journal")


def segment_name(number: int) -> str:
    """File name of a segment; names sort as numbers do."""
    return f"{number:016x}.seg"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or None for another file."""
    stem, dot, suffix = name.partition(".")
    if not dot or suffix != "seg" or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


@dataclass(frozen=True)
class JournalOptions:
    """Limits of one stream."""

    segment_bytes: int
    group_max_bytes: int
    queue_max_records: int
    queue_max_bytes: int
    page_cache_bytes: int | None = None
    """Written bytes that stay in the page cache; None leaves it to the operating system."""
    idle_mark_s: float = 1.0
    """B-15: an idle stream writes one empty batch after this long, which proves the batch before
    it."""


class _NoSpaceError(OSError):
    """No space for a new segment: the one disk error that is not fail-stop (6.13)."""


def _batch_size(records: int, nbytes: int) -> int:
    return BATCH_HEADER_BYTES + 4 * records + nbytes


def _batch_bytes(items: list[JournalItem]) -> int:
    records = nbytes = 0
    for item in items:  # a frame less per item than a generator takes
        records += item.records
        nbytes += item.nbytes
    return _batch_size(records, nbytes)


class JournalWriter:
    """The only writer of a stream.

    Args:
        template: identity written into every segment header (stream, instance, incarnation).
        on_durable: called on the commit thread after a sync that covers records and before they
            are acknowledged, with the durable end of the log: evidence outside of the segment
            (ADR 14). An OSError is fail-stop.
        sink: called on the commit thread with what became durable, in stream order; may block.
        on_failure: called on the loop once when the stream has stopped for good.
        on_roll: called on the loop after a new segment was created.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        disk: Disk,
        template: SegmentHeader,
        options: JournalOptions,
        *,
        clock: Clock,
        entropy: Entropy,
        on_durable: Callable[[Position], None],
        sink: Callable[[CommittedGroup | RetiredSegment], None],
        on_failure: Callable[[BaseException], None],
        on_roll: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._header = template
        self._options = options
        self._clock = clock
        self._entropy = entropy
        self._on_durable = on_durable
        self._sink = sink
        self._on_failure = on_failure
        self._on_roll = on_roll
        self._bell = Doorbell()
        self._queue: deque[JournalItem] = deque()  # the loop appends, the commit thread pops
        self._stopping = False
        self._urgent_in = 0  # items that are not lazy, ever submitted; written by the loop
        self._urgent_out = 0  # of these, ever taken; written by the commit thread
        self._failed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # The rest belongs to the commit thread, or to open() before it runs.
        self._appender: Appender | None = None
        self._allocated = 0
        self._next_number = 0
        self._sequence = 0
        self._salt = 0
        self._unproven = (
            False  # a batch with records is not yet named durable by a later one (B-15)
        )
        # Read by the loop; each is written by one side only.
        self.queued_records = 0
        self.queued_bytes = 0
        self.sync_started_s: float | None = None
        self.bytes_written = 0
        self.syncs = 0
        self.durable = template.durable_up_to
        self.recorded = template.durable_up_to
        """Durable end of the last batch with records, or where a segment is appended to: what may
        be published as evidence. Empty batches do not count, they hold nothing to lose."""

    @property
    def segment(self) -> int:
        """Number of the segment being written."""
        return self._header.number

    # --- the loop's side --------------------------------------------------------------------

    def open(
        self, number: int, durable_up_to: Position, carried: Sequence[Sequence[Record]] = ()
    ) -> list[Record]:
        """Create the first segment, as the log's continuation from `durable_up_to` (blocking).

        `carried` are the batches found behind that position, which nothing proves durable: they are
        written again and synced here. Returns their records with where they lie now. Raises
        OSError; then nothing of the new segment counts.
        """
        sizes = [_batch_size(len(batch), sum(len(r.data) for r in batch)) for batch in carried]
        self._create_segment(number, durable_up_to, self._options.segment_bytes, carried=sum(sizes))
        moved = [record for batch in carried for record in self._carry(batch, durable_up_to)]
        appender = self._appender
        assert appender is not None
        if carried:
            appender.sync()
        self.durable = self.recorded = Position(number, appender.position)
        return moved

    def _carry(self, batch: Sequence[Record], durable_up_to: Position) -> list[Record]:
        appender = self._appender
        assert appender is not None
        words = [record.type << 24 | len(record.data) for record in batch]
        data = [record.data for record in batch]
        nbytes = sum(map(len, data))
        # It claims nothing of this segment to be durable, for nothing of it is.
        head = encode_batch(
            self._salt, self._header.number, self._sequence, durable_up_to, words, data, nbytes
        )
        offset = appender.position + len(head)
        moved: list[Record] = []
        for record in batch:
            moved.append(record._replace(offset=offset))
            offset += len(record.data)
        appender.write([head, *data])
        if appender.position != offset:
            raise StorageFailed(f"a batch ends at {appender.position}, expected {offset}")
        self._sequence += 1
        return moved

    def start(self) -> None:
        """Start the commit thread; the running loop receives acknowledgements."""
        if self._appender is None or self._thread is not None:
            raise IllegalStateError("the stream needs open() once before start()")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="journal-commit", daemon=True)
        self._thread.start()

    def has_room(
        self, records: int, nbytes: int, *, reserve: bool = False, lazy: bool = False
    ) -> bool:
        """True if an item of this size may be submitted now (B-9)."""
        most = self._options.queue_max_records
        if lazy:
            most = int(most * LAZY_SHARE)
        elif reserve:
            most += RESERVE_RECORDS
        return (
            not self._failed
            and self.queued_records + records <= most
            and self.queued_bytes + nbytes <= self._options.queue_max_bytes * (2 if reserve else 1)
        )

    def fill(self) -> float:
        """How full the queue is, 0..1."""
        options = self._options
        return max(
            self.queued_records / options.queue_max_records,
            self.queued_bytes / options.queue_max_bytes,
        )

    def submit(self, item: JournalItem) -> None:
        """Queue an item; `has_room()` must have said yes since the last submit. Order of calls is
        order on disk.

        A lazy item waits for the next group, `idle_mark_s` at most; many of them make a group.
        """
        self.queued_records += item.records
        self.queued_bytes += item.nbytes
        self._queue.append(item)
        if item.lazy:
            # The first one starts the thread's timer, for an idle stream sleeps without one.
            if len(self._queue) in (1, LAZY_ITEMS_MAX):
                self._bell.ring()
        else:
            self._urgent_in += 1
            if self._urgent_in - self._urgent_out == 1:  # else the thread is awake, or rung for
                self._bell.ring()

    def abandon(self) -> None:
        """Close a stream that was opened and never started, giving its unused space back; what was
        carried over counts or not as the next boot finds it. Never raises."""
        appender, self._appender = self._appender, None
        if appender is None:
            return
        for step in (appender.trim, appender.close):
            try:
                step()
            except OSError as error:
                _log.warning("segment-not-closed", cause=str(error))

    def stop(self) -> None:
        """Write what is queued, prove it with an empty batch, retire the segment, end the thread
        (blocking)."""
        self._stopping = True
        self._bell.ring()
        if self._thread is not None:
            self._thread.join()

    def _acknowledge(self, items: list[JournalItem], status: Status) -> None:
        if self._failed:
            return
        for item in items:
            self.queued_records -= item.records
            self.queued_bytes -= item.nbytes
        try:
            for item in items:
                item.on_done(status)
        except Exception as error:  # noqa: BLE001 - whatever a callback broke: fail-stop
            # The items behind it stay unanswered; the failure drops their connections.
            self._report_failure(error)

    def _report_failure(self, error: BaseException) -> None:
        self._failed = True
        self._on_failure(error)

    # --- the commit thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (items := self._gather()) is not None:
                self._commit(items)
            self._retire()
        except Exception as error:  # noqa: BLE001 - B-8: whatever failed, the process must stop
            self._call_loop(self._report_failure, error)

    def _call_loop(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: nobody is left to tell

    def _gather(self) -> list[JournalItem] | None:
        """Items of the next group; empty for an idle mark; None to stop."""
        while self._urgent_in == self._urgent_out and not self._stopping:
            if len(self._queue) >= LAZY_ITEMS_MAX:
                break
            waiting = self._unproven or bool(self._queue)
            if not self._bell.wait(self._options.idle_mark_s if waiting else None):
                break
        queue = self._queue
        if not queue:
            return None if self._stopping and not self._unproven else []
        items: list[JournalItem] = []
        room = self._options.group_max_bytes
        while queue and (not items or queue[0].nbytes <= room):
            item = queue.popleft()
            room -= item.nbytes
            if not item.lazy:
                self._urgent_out += 1
            items.append(item)
        return items

    def _commit(self, items: list[JournalItem]) -> None:
        size = _batch_bytes(items)
        assert self._appender is not None
        if items and not self._fits(size):
            items = self._roll(items, size)
            if not items:
                return
        self._write(items)
        if items:
            # The loop wakes for an acknowledgement and wants the interpreter, so that comes late.
            self._sink(CommittedGroup(self._header.number, items, self.durable))
            self._call_loop(self._acknowledge, items, Status.OK)
            if self._options.page_cache_bytes is not None:
                self._appender.drop_cached(self._options.page_cache_bytes)

    def _roll(self, items: list[JournalItem], size: int) -> list[JournalItem]:
        """Go on in a new segment; returns the items that may be written, refusing others with
        DISK_FULL."""
        old_header, old_appender = self._header, self._appender
        assert old_appender is not None
        if not self._try_segment(self._options.segment_bytes, size):
            self._refuse([item for item in items if not item.reserve])
            items = [item for item in items if item.reserve]
            size = _batch_bytes(items)
            if not items or self._fits(size):
                return items
            if not (self._try_segment(RESERVE_STEP_BYTES, size) or self._try_segment(0, size)):
                self._refuse(items)
                return []
        self._on_durable(self.durable)
        self._sink(RetiredSegment(old_header, old_appender))
        self._call_loop(self._on_roll, self._header.number)
        return items

    def _fits(self, size: int) -> bool:
        """True if a batch of this size and the mark behind it lie within what was allocated: so
        nothing but an allocation ever meets a full disk."""
        assert self._appender is not None
        return self._appender.position + size + BATCH_HEADER_BYTES <= self._allocated

    def _try_segment(self, wanted_bytes: int, room: int) -> bool:
        """Go on in a new segment if there is space for it."""
        try:
            self._create_segment(self._next_number, self.durable, wanted_bytes, room=room)
        except _NoSpaceError:
            return False
        return True

    def _refuse(self, items: list[JournalItem]) -> None:
        if items:
            self._call_loop(self._acknowledge, items, Status.DISK_FULL)

    def _create_segment(
        self,
        number: int,
        durable_up_to: Position,
        wanted_bytes: int,
        *,
        room: int = 0,
        carried: int = 0,
    ) -> None:
        """Reserve space, write the header, sync file, sync directory; then it may be appended to
        (§6.2). `room`: bytes of the first batch, which must fit; `carried`: what a boot writes
        again before anything else."""
        header = self._header._replace(
            number=number,
            segment_uuid=self._entropy.uuid(),
            created_ms=self._clock.wall_ms(),
            durable_up_to=durable_up_to,
            carried_bytes=carried,
        )
        encoded = encode_segment_header(header)
        size = max(wanted_bytes, len(encoded) + carried + room + BATCH_HEADER_BYTES)
        invariant(size <= MAX_SEGMENT_BYTES, f"segment of {size} bytes")
        path = self._directory / segment_name(number)
        try:
            appender = self._disk.create(path, size)
            self._next_number = number + 1  # never used again, even if this one is given up
            try:
                appender.write([encoded])
                appender.sync()
                self._disk.sync_dir(self._directory)
            except OSError:
                appender.close()
                raise
        except OSError as error:
            if not is_full(error):
                raise
            self._give_up(path)
            raise _NoSpaceError(*error.args) from error
        self._allocated = size
        self._appender = appender
        self._header = header
        self._salt = header.salt
        self._sequence = 0
        self.durable = self.recorded = Position(number, appender.position)

    def _give_up(self, path: pathlib.Path) -> None:
        """Remove a segment whose creation found no space; nothing was stored in it, and one that
        stays is left out by the next boot."""
        try:
            self._disk.unlink(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _log.warning("segment-not-removed", path=str(path), cause=str(error))

    def _write(self, items: list[JournalItem]) -> None:
        appender = self._appender
        assert appender is not None
        words: list[int] = []
        data: list[Buffer] = []
        nbytes = 0
        for item in items:
            for kind, ledger_id, value in item.controls:
                words.append(kind << 24 | CONTROL.size)
                data.append(CONTROL.pack(ledger_id, value))
            entries = item.entries
            words.extend(map(len, entries))
            if item.run is not None:
                data.append(item.run)
            elif item.nbytes < JOIN_BELOW_BYTES * len(entries):
                data.append(b"".join(entries))
            else:
                data.extend(entries)
            nbytes += item.nbytes
        start = appender.position
        head = encode_batch(
            self._salt, self._header.number, self._sequence, self.durable, words, data, nbytes
        )
        offset = start + len(head)
        for item in items:
            item.offset = offset
            offset += item.nbytes
        appender.write([head, *data])
        if appender.position != offset:
            raise StorageFailed(f"batch at {start} ends at {appender.position}, expected {offset}")
        self._sync(appender)
        self._sequence += 1
        self._unproven = bool(items)
        self.durable = Position(self._header.number, offset)
        if items:
            self.recorded = self.durable
            self._on_durable(self.durable)
        self.bytes_written += offset - start

    def _sync(self, appender: Appender) -> None:
        self.sync_started_s = self._clock.monotonic()
        appender.sync()
        self.sync_started_s = None
        self.syncs += 1

    def _retire(self) -> None:
        assert self._appender is not None
        self._sink(RetiredSegment(self._header, self._appender))
