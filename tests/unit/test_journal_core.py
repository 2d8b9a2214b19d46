"""JournalCore step by step: what it asks for in which order, and what each failure means."""

from __future__ import annotations

import errno
import uuid
from typing import TypeVar

import pytest

from octavo.bookie.journal.actions import (
    Acknowledge,
    Action,
    CreateSegment,
    DropSegment,
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
from octavo.bookie.journal.item import CommittedGroup, JournalItem
from octavo.bookie.journal.options import JournalOptions
from octavo.bookie.journal.queue import JournalQueue
from octavo.bookie.journal.segment import (
    BATCH_HEADER_BYTES,
    HEADER_BYTES,
    MAX_SEGMENT_BYTES,
    START,
    Position,
    SegmentHeader,
)
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import InvariantViolation, StorageFailed

OPTIONS = JournalOptions(
    segment_bytes=3000,
    group_max_bytes=900,
    queue_max_records=24,
    queue_max_bytes=4000,
    idle_mark_s=1.0,
)
T = TypeVar("T")


def only(actions: list[Action], kind: type[T]) -> T:
    """The one action of a kind."""
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


# --- each failure at each step -----------------------------------------------------------------


def a_core(*, open_it: bool = True, carried: list[tuple[int, int]] | None = None) -> JournalCore:
    """A core that is ready in segment 1, or was asked to open it."""
    template = SegmentHeader(0, uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=0), 0, 0, START)
    core = JournalCore(template, OPTIONS, JournalQueue(OPTIONS))
    core.open(1, START, carried or [])
    if open_it:
        make_segment(core)
        assert core.step is Step.READY
    return core


def make_segment(core: JournalCore) -> list[Action]:
    """Nothing fails; returns what is asked for once the name is synced."""
    core.file_created(uuid.UUID(int=3), 5)
    core.written(HEADER_BYTES)
    core.synced()
    return core.directory_synced(0.0)


def an_item(nbytes: int = 100, *, reserve: bool = False, lazy: bool = False) -> JournalItem:
    head = (1, 0, -1, 0, 0)
    return JournalItem([head], [bytes(nbytes)], lambda _: None, reserve=reserve, lazy=lazy)


def at_step(step: Step, items: list[JournalItem]) -> JournalCore:
    """A core with these items taken that waits at `step` of a roll, or of the write."""
    core = a_core()
    if step not in (Step.WRITE, Step.SYNC):
        core._end = core._allocated - 100  # pyright: ignore[reportPrivateUsage]
        core.durable = core.recorded = Position(1, core._end)  # pyright: ignore[reportPrivateUsage]
    for item in items:
        core.queue.submit(item)
    core.wake(1.0)
    if step is Step.SYNC:
        core.written(core._write_end)  # pyright: ignore[reportPrivateUsage]
    if core.step is Step.CREATE and step is not Step.CREATE:
        core.file_created(uuid.UUID(int=4), 6)
    if core.step is Step.HEAD and step is not Step.HEAD:
        core.written(HEADER_BYTES)
    if core.step is Step.HEAD_SYNC and step is not Step.HEAD_SYNC:
        core.synced()
    assert core.step is step
    core.validate()
    return core


CREATING = (Step.CREATE, Step.HEAD, Step.HEAD_SYNC, Step.NAME_SYNC)
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", [*CREATING, Step.WRITE, Step.SYNC], ids=lambda step: step.name)
def test_b8_and_613_what_a_failure_means_at_each_step(step: Step, number: int) -> None:
    """No space for a segment refuses adds; anything else ends the stream."""
    ordinary, fence = an_item(), an_item(reserve=True)
    core = at_step(step, [ordinary, fence])
    error = OSError(number, "injected")
    actions = core.failed(error)
    core.validate()
    if number == errno.EIO or step not in CREATING:
        assert actions == [Fail(error)]
        assert core.failed(OSError(errno.EIO, "again")) == []
        with pytest.raises(InvariantViolation, match="waits for nothing: failed"):
            core.wake(4.0)
        return
    assert actions == [DropSegment(2)], "nothing is told or written before that is done"
    told, again = core.segment_dropped(3.0)
    assert told == Acknowledge([ordinary], Status.DISK_FULL)
    assert isinstance(again, CreateSegment)
    assert again.number == (2 if step is Step.CREATE else 3), "a number given to a file is used up"
    assert again.size_bytes == 256 * 1024
    core.failed(error)
    (smallest,) = core.segment_dropped(4.0)
    assert isinstance(smallest, CreateSegment)
    assert smallest.size_bytes < 1000, "just the fence and the mark behind it"
    core.failed(error)
    assert core.segment_dropped(5.0) == [Acknowledge([fence], Status.DISK_FULL)]
    assert core.step is Step.READY
    assert core.header.number == 1, "the stream lives on where it was"


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_boot_without_space_fails_whatever_it_lacked(number: int) -> None:
    core = a_core(open_it=False)
    error = OSError(number, "injected")
    actions = core.failed(error)
    if number != errno.EIO:
        assert actions == [DropSegment(1)]
        actions = core.segment_dropped(1.0)
    assert actions == [Fail(error)]


def test_613_a_segment_without_space_that_stays_is_fail_stop() -> None:
    """Its header may name an end of the log that lies before what would be acknowledged next."""
    core = at_step(Step.NAME_SYNC, [an_item(), an_item(reserve=True)])
    core.failed(OSError(errno.ENOSPC, "the name is not synced"))
    error = OSError(errno.ENOSPC, "nor is the removal")
    assert core.failed(error) == [Fail(error)]


@pytest.mark.parametrize("short_by", [1, 100, 10_000])
def test_b8_a_short_write_is_fail_stop(short_by: int) -> None:
    core = at_step(Step.WRITE, [an_item()])
    (failure,) = core.written(core._write_end - short_by)  # pyright: ignore[reportPrivateUsage]
    assert isinstance(failure, Fail)
    assert isinstance(failure.error, StorageFailed)


def test_an_event_out_of_turn_is_refused() -> None:
    core = a_core()
    for event in (
        core.synced,
        lambda: core.directory_synced(0.0),
        lambda: core.file_created(uuid.UUID(int=1), 1),
        lambda: core.open(1, START, []),
        lambda: core.segment_dropped(0.0),
    ):
        with pytest.raises(InvariantViolation, match="the stream waits for work"):
            event()


# --- what is asked for, in order ---------------------------------------------------------------


def test_b6_a_group_is_written_synced_noted_shown_and_told_in_this_order() -> None:
    core = a_core()
    items = [an_item(100), an_item(50)]
    assert [core.queue.submit(item) for item in items] == [True, False], "one ring for both"
    (batch,) = core.wake(1.0)
    assert batch == WriteBatch(1, 0, Position(1, HEADER_BYTES), items, 150)
    end = HEADER_BYTES + BATCH_HEADER_BYTES + 8 + 150
    assert [item.offset for item in items] == [end - 150, end - 50]
    assert core.written(end) == [SyncSegment()]
    assert core.sync_started_s == 1.0
    mark = Position(1, end)
    assert core.synced() == [
        NoteDurable(mark),
        Publish(CommittedGroup(1, items, mark)),
        Acknowledge(items, Status.OK),
    ]
    assert (core.durable, core.recorded, core.syncs) == (mark, mark, 1)
    assert core.sync_started_s is None


def test_b15_an_idle_stream_proves_its_last_batch_once() -> None:
    core = a_core()
    core.queue.submit(an_item())
    commit(core, 1.0)
    assert core.unproven
    assert core.wake(1.0) == []
    assert core.next_deadline_s() == 2.0
    assert core.wake(1.9) == []
    recorded = core.recorded
    commit(core, 2.0)
    assert (core.unproven, core.recorded) == (False, recorded)
    assert core.durable > recorded, "the mark itself is durable, and nothing to publish"
    assert core.wake(9.0) == []
    assert core.next_deadline_s() is None


def test_rd6_lazy_items_wait_for_others_for_time_or_for_many() -> None:
    core = a_core()
    assert core.queue.submit(an_item(lazy=True)), "the first one starts the timer"
    assert core.wake(1.0) == []
    assert core.next_deadline_s() == 2.0
    assert not core.queue.submit(an_item(lazy=True))
    assert core.wake(1.5) == []
    assert core.queue.submit(an_item()), "an add takes them along"
    assert len(only(core.wake(1.6), WriteBatch).items) == 3


def test_a_roll_names_the_proven_end_and_writes_only_once_it_counts() -> None:
    core = at_step(Step.CREATE, [an_item()])
    end = core.durable
    header = only(core.file_created(uuid.UUID(int=9), 77), WriteHeader).header
    assert header.durable_up_to == end
    assert (header.number, header.created_ms, header.carried_bytes) == (2, 77, 0)
    assert core.written(HEADER_BYTES) == [SyncSegment()]
    assert core.synced() == [SyncDirectory()]
    assert core.durable == end, "nothing of the new segment counts yet"
    note, enter, batch = core.directory_synced(3.0)
    assert note == NoteDurable(Position(2, HEADER_BYTES))
    assert isinstance(enter, EnterSegment)
    assert enter.retired is not None
    assert (enter.header.number, enter.retired.number) == (2, 1)
    assert isinstance(batch, WriteBatch)
    assert (batch.segment, batch.sequence) == (2, 0)


def test_b17_what_a_boot_carries_over_claims_nothing_and_is_synced_first() -> None:
    core = a_core(open_it=False, carried=[(1, 10), (2, 30)])
    first_bytes, second_bytes = BATCH_HEADER_BYTES + 4 + 10, BATCH_HEADER_BYTES + 8 + 30
    asked = make_segment(core)
    assert only(asked, EnterSegment).header.carried_bytes == first_bytes + second_bytes
    first = only(asked, WriteCarried)
    assert (first.which, first.sequence, first.durable_up_to) == (0, 0, START)
    end = HEADER_BYTES + first_bytes + second_bytes
    second = only(core.written(HEADER_BYTES + first_bytes), WriteCarried)
    assert (second.which, second.sequence, second.durable_up_to) == (1, 1, START)
    assert second.offset == end - 30
    assert core.durable == START
    assert core.written(end) == [SyncSegment()]
    assert core.synced() == []
    assert core.durable == core.recorded == Position(1, end)


def test_a_segment_is_never_larger_than_offsets_can_say() -> None:
    core = a_core()
    core.queue.submit(an_item())
    core._options = JournalOptions(MAX_SEGMENT_BYTES + 1, 900, 24, 4000)  # pyright: ignore[reportPrivateUsage]
    core._end = core._allocated  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvariantViolation, match="segment of"):
        core.wake(1.0)


def commit(core: JournalCore, now_s: float) -> None:
    (batch,) = core.wake(now_s)
    assert isinstance(batch, WriteBatch)
    core.written(core._write_end)  # pyright: ignore[reportPrivateUsage]
    core.synced()
    core.validate()
