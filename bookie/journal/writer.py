"""The shell of the append stream: one commit thread does what `JournalCore` asks (§6.4, B-6..B-9).

The loop submits items; the commit thread takes all that are queued (up to `group_max_bytes`),
writes them as one batch, syncs once, and acknowledges all through one `call_soon_threadsafe`;
meanwhile the next group forms. What is written when, and what a failure means, is decided in
`octavo.bookie.journal.core`.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from octavo.bookie.journal.actions import (
    Acknowledge,
    Action,
    CreateSegment,
    DropSegment,
    End,
    EnterSegment,
    Fail,
    NoteDurable,
    Publish,
    SyncDirectory,
    SyncSegment,
    WriteBatch,
    WriteCarried,
    WriteHeader,
)
from octavo.bookie.journal.core import JournalCore, Step
from octavo.bookie.journal.item import (
    CommittedGroup,
    JournalItem,
    RetiredSegment,
    body_of_items,
    body_of_records,
)
from octavo.bookie.journal.options import JournalOptions
from octavo.bookie.journal.queue import JournalQueue
from octavo.bookie.journal.segment import (
    Position,
    Record,
    SegmentHeader,
    encode_batch,
    encode_segment_header,
    segment_name,
)
from octavo.proto.bookie_wire import Status
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.disk import Appender, Disk
from octavo.runtime.doorbell import Doorbell
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError
from octavo.runtime.histogram import GROUP_RECORDS, SYNC_SECONDS, Histogram
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import Worker

_NO_OUTCOME: list[Action] = []

_log = get_logger("octavo.bookie.journal")


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
        self._page_cache_bytes = options.page_cache_bytes
        self._clock = clock
        self._entropy = entropy
        self._on_durable = on_durable
        self._sink = sink
        self._on_failure = on_failure
        self._on_roll = on_roll
        self._bell = Doorbell()
        self._worker = Worker("journal-commit", self._run, self._report_failure)
        self._queue = JournalQueue(options)
        self.has_room = self._queue.has_room  # asked for each frame: no hop
        self.fill = self._queue.fill
        self._rung_s = 0.0
        self.add_seconds = Histogram(SYNC_SECONDS)
        """Of each group, from its oldest add to its acknowledgement; the loop writes it."""
        self.group_sizes = Histogram(GROUP_RECORDS)
        """Records of each group; the loop writes it."""
        self.sync_seconds = Histogram(SYNC_SECONDS)
        """Syncs of any kind; the commit thread writes it."""
        # The rest belongs to the commit thread, or to open() before it runs.
        self._core = JournalCore(template, options, self._queue)
        self._appender: Appender | None = None
        self._making: Appender | None = None  # of the segment that does not count yet
        self._file: Appender | None = None  # the one of both that is written to
        self._salt = 0
        self._carried: Sequence[Sequence[Record]] = ()
        self._moved: list[Record] = []
        self._failure: Exception | None = None
        self._do: dict[type[Action], Callable[[Any], list[Action]]] = {
            CreateSegment: self._create,
            WriteHeader: self._write_header,
            SyncSegment: self._sync,
            SyncDirectory: self._sync_directory,
            DropSegment: self._drop,
            EnterSegment: self._enter,
            WriteCarried: self._write_carried,
            WriteBatch: self._write_items,
            Acknowledge: self._answer,
            End: self._end,
            Fail: self._fail,
        }
        """What carries out an action; returns the core's answer to the outcome, if it has one."""

    # --- what others look at ----------------------------------------------------------------

    @property
    def segment(self) -> int:
        """Number of the segment being written."""
        return self._core.header.number

    @property
    def durable(self) -> Position:
        """Up to here everything is synced."""
        return self._core.durable

    @property
    def recorded(self) -> Position:
        """Durable end of the last batch with records: what may be published as evidence."""
        return self._core.recorded

    @property
    def unproven(self) -> bool:
        """Whether the last batch with records is not yet named durable by a later one (B-15)."""
        return self._core.unproven

    @property
    def sync_started_s(self) -> float | None:
        """Since when the sync of a batch is under way (B-9)."""
        return self._core.sync_started_s

    @property
    def bytes_written(self) -> int:
        """Bytes of batches, since the start."""
        return self._core.bytes_written

    @property
    def syncs(self) -> int:
        """Syncs of batches, since the start."""
        return self._core.syncs

    @property
    def queued_records(self) -> int:
        """Records that were submitted and not answered yet."""
        return self._queue.queued_records

    @property
    def queued_bytes(self) -> int:
        """Their bytes."""
        return self._queue.queued_bytes

    # --- the loop's side --------------------------------------------------------------------

    def open(
        self, number: int, durable_up_to: Position, carried: Sequence[Sequence[Record]] = ()
    ) -> list[Record]:
        """Create the first segment, as the log's continuation from `durable_up_to` (blocking).

        `carried` are the batches found behind that position, which nothing proves durable: they are
        written again and synced here. Returns their records with where they lie now. Raises
        OSError; then nothing of the new segment counts.
        """
        self._carried = carried
        sizes = [(len(batch), sum(len(r.data) for r in batch)) for batch in carried]
        self._drive(self._core.open(number, durable_up_to, sizes))
        moved, self._moved, self._carried = self._moved, [], ()
        return moved

    def start(self) -> None:
        """Start the commit thread; the running loop receives acknowledgements."""
        if self._core.step is not Step.READY:
            raise IllegalStateError("the stream needs open() once before start()")
        self._worker.start(asyncio.get_running_loop())

    def submit(self, item: JournalItem) -> None:
        """Queue an item; `has_room()` must have said yes since the last submit. Order of calls is
        order on disk.

        A lazy item waits for the next group, `idle_mark_s` at most; many of them make a group.
        """
        if self._queue.submit(item):
            self._rung_s = self._clock.monotonic()
            self._bell.ring()
        item.submitted_s = self._rung_s

    def abandon(self) -> None:
        """Close a stream that was opened and never started, giving its unused space back; what was
        carried over counts or not as the next boot finds it. Never raises."""
        appender, self._appender = self._appender, None
        if appender is not None:
            _try(appender.trim)
            _try(appender.close)

    def stop(self) -> None:
        """Write what is queued, prove it with an empty batch, retire the segment, end the thread
        (blocking)."""
        self._queue.closed = True
        self._bell.ring()
        self._worker.join()

    def _acknowledge(self, items: list[JournalItem], status: Status) -> None:
        queue = self._queue
        if queue.refusing:
            return
        before = queue.queued_records
        queue.settle(items)
        self._measure(items, before - queue.queued_records)
        try:
            for item in items:
                item.on_done(status)
        except Exception as error:  # noqa: BLE001 - whatever a callback broke: fail-stop
            # The items behind it stay unanswered; the failure drops their connections.
            self._report_failure(error)

    def _measure(self, items: list[JournalItem], records: int) -> None:
        """Once for a group; lazy items wait on purpose, and do not count."""
        self.group_sizes.observe(records)
        for item in items:
            if not item.lazy:
                self.add_seconds.observe(self._clock.monotonic() - item.submitted_s)
                return

    def _report_failure(self, error: BaseException) -> None:
        self._queue.refusing = True
        self._on_failure(error)

    # --- the commit thread ------------------------------------------------------------------

    def _run(self) -> None:
        core, clock, bell = self._core, self._clock, self._bell
        while core.step is not Step.ENDED:
            now_s = clock.monotonic()
            try:
                actions = core.wake(now_s)
            except Exception as error:  # noqa: BLE001 - B-8: as any other failure of the stream
                actions = core.failed(error)
            if actions:
                self._drive(actions)
                continue
            deadline_s = core.next_deadline_s()
            bell.wait(None if deadline_s is None else max(0.0, deadline_s - now_s))

    def _drive(self, actions: list[Action]) -> None:
        """Do what the core asks and tell it what came of it, until it waits for other events.

        Raises what made it fail.
        """
        do = self._do
        while actions:
            outcome = _NO_OUTCOME
            try:
                for action in actions:
                    if isinstance(action, NoteDurable):  # in every group: no hop
                        self._on_durable(action.position)
                    elif isinstance(action, Publish):
                        self._sink(action.group)
                    else:
                        outcome = do[type(action)](action)
            except Exception as error:  # noqa: BLE001 - B-8: the core says what it means
                outcome = self._core.failed(error)
            actions = outcome
        if self._failure is not None:
            raise self._failure

    # --- one method for each action ---------------------------------------------------------

    def _sync(self, _action: SyncSegment) -> list[Action]:
        assert self._file is not None
        began_s = self._clock.monotonic()
        self._file.sync()
        self.sync_seconds.observe(self._clock.monotonic() - began_s)
        return self._core.synced()

    def _answer(self, action: Acknowledge) -> list[Action]:
        self._worker.tell(self._acknowledge, action.items, action.status)
        if self._page_cache_bytes is not None and self._file is not None:
            self._file.drop_cached(self._page_cache_bytes)
        return _NO_OUTCOME

    def _create(self, action: CreateSegment) -> list[Action]:
        path = self._directory / segment_name(action.number)
        self._file = self._making = self._disk.create(path, action.size_bytes)
        return self._core.file_created(self._entropy.uuid(), self._clock.wall_ms())

    def _write_header(self, action: WriteHeader) -> list[Action]:
        return self._write([encode_segment_header(action.header)])

    def _sync_directory(self, _action: SyncDirectory) -> list[Action]:
        self._disk.sync_dir(self._directory)
        return self._core.directory_synced(self._clock.monotonic())

    def _write_carried(self, action: WriteCarried) -> list[Action]:
        records = self._carried[action.which]
        offset = action.offset
        for record in records:
            self._moved.append(record._replace(offset=offset))
            offset += len(record.data)
        words, data = body_of_records(records)
        segment, sequence, claims = action.segment, action.sequence, action.durable_up_to
        nbytes = offset - action.offset
        head = encode_batch(self._salt, segment, sequence, claims, words, data, nbytes)
        return self._write([head, *data])

    def _write_items(self, action: WriteBatch) -> list[Action]:
        words, data = body_of_items(action.items)
        segment, sequence, claims, _, nbytes = action
        head = encode_batch(self._salt, segment, sequence, claims, words, data, nbytes)
        return self._write([head, *data])

    def _write(self, buffers: list[Buffer]) -> list[Action]:
        file = self._file
        assert file is not None
        file.write(buffers)
        return self._core.written(file.position)

    def _enter(self, action: EnterSegment) -> list[Action]:
        full, self._appender, self._making = self._appender, self._making, None
        self._salt = action.header.salt
        if action.retired is not None and full is not None:
            self._sink(RetiredSegment(action.retired, full))
            self._worker.tell(self._on_roll, action.header.number)
        return _NO_OUTCOME

    def _drop(self, action: DropSegment) -> list[Action]:
        making, self._making, self._file = self._making, None, self._appender
        if making is not None:
            making.close()
            self._disk.unlink(self._directory / segment_name(action.number))
            self._disk.sync_dir(self._directory)
        return self._core.segment_dropped(self._clock.monotonic())

    def _end(self, action: End) -> list[Action]:
        """The index thread seals the last segment, and closes its file."""
        if self._appender is not None:
            self._sink(RetiredSegment(action.retired, self._appender))
        return _NO_OUTCOME

    def _fail(self, action: Fail) -> list[Action]:
        """Close the files: what was not synced counts or not, as the next boot finds it."""
        self._failure = action.error
        for file in (self._making, self._appender):
            if file is not None:
                _try(file.close)
        self._file = self._making = self._appender = None
        return _NO_OUTCOME


def _try(step: Callable[[], None]) -> None:
    try:
        step()
    except OSError as error:
        _log.warning("segment-not-closed", cause=str(error))
