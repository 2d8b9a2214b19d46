"""The commit thread as the core's shell, on a disk that remembers what was synced."""

from __future__ import annotations

import asyncio
import errno
import pathlib
import random
import threading
import uuid
from collections.abc import Sequence
from typing import TypeVar

import pytest

from octavo.bookie.journal.item import CommittedGroup, JournalItem, RetiredSegment
from octavo.bookie.journal.options import JournalOptions
from octavo.bookie.journal.replay import judge, span_records
from octavo.bookie.journal.segment import (
    MAX_SEGMENT_BYTES,
    START,
    Position,
    RecordType,
    SegmentHeader,
    segment_name,
)
from octavo.bookie.journal.segment import segment_number as number_of
from octavo.bookie.journal.writer import JournalWriter
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock, ManualClock, SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import IllegalStateError, InvariantViolation
from tests.bookie_rig import DEADLINE_S, until
from tests.power_cut_disk import PowerCutDisk

T = TypeVar("T")
FOLDER = pathlib.Path("/journal")
INSTANCE = uuid.UUID(int=7)
OPTIONS = JournalOptions(
    segment_bytes=2000,
    group_max_bytes=1 << 20,
    queue_max_records=100,
    queue_max_bytes=1 << 20,
    idle_mark_s=60.0,
)


class Disk(PowerCutDisk):
    """Calls named in `fails` raise their errno, once."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(random.Random(seed))
        self.fails: dict[str, int] = {}

    def tick(self, what: str, path: pathlib.Path) -> None:
        number = self.fails.pop(what, None)
        if number is not None:
            raise OSError(number, "injected", str(path))
        super().tick(what, path)


class AllButRemovals(random.Random):
    """Draws by which all that was written and not synced reaches the platter."""

    def random(self) -> float:
        return 0.0

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[-1]


class Stream:
    """A writer in segment 1 and what it reported."""

    def __init__(self, disk: Disk, clock: Clock | None = None) -> None:
        self.disk = disk
        self.noted: list[Position] = []
        self.published: list[CommittedGroup | RetiredSegment] = []
        self.failures: list[BaseException] = []
        self.rolls: list[int] = []
        self.threads: set[str] = set()
        zero = uuid.UUID(int=0)
        self.writer = JournalWriter(
            FOLDER,
            disk,
            SegmentHeader(0, INSTANCE, zero, zero, 0, 0, START),
            OPTIONS,
            clock=clock or SystemClock(),
            entropy=SeededEntropy(1),
            on_durable=self.noted.append,
            sink=self._sink,
            on_failure=self.failures.append,
            on_roll=self.rolls.append,
        )
        self.writer.open(1, START)

    @staticmethod
    def told_never(status: Status) -> None:
        raise AssertionError(f"answered {status.name}")

    def _sink(self, work: CommittedGroup | RetiredSegment) -> None:
        self.threads.add(threading.current_thread().name)
        self.published.append(work)

    async def add(self, data: bytes, *, reserve: bool = False) -> Status:
        told: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        head = (1, 0, -1, 0, 0)
        self.writer.submit(JournalItem([head], [data], told.set_result, reserve=reserve))
        return await asyncio.wait_for(told, DEADLINE_S)

    async def stop(self) -> None:
        await asyncio.to_thread(self.writer.stop)

    def measured(self) -> tuple[int, int, int, float]:
        """How many groups, acknowledged adds of groups, syncs, and records of all groups."""
        writer = self.writer
        groups, adds, syncs = (
            sum(one.counts) for one in (writer.group_sizes, writer.add_seconds, writer.sync_seconds)
        )
        return groups, adds, syncs, writer.group_sizes.total


def log_of(disk: Disk) -> list[bytes]:
    """The entries that a boot finds."""

    def load(number: int) -> bytes:
        return disk.read(FOLDER / segment_name(number))

    numbers = sorted(n for name in disk.list(FOLDER) if (n := number_of(name)) is not None)
    verdict = judge(START, numbers, load, INSTANCE)
    assert verdict.problems == []
    return [
        bytes(record.data)
        for span in (*verdict.spans, *verdict.tail)
        for _, records in span_records(span, load(span.segment))
        for record in records
    ]


@pytest.mark.parametrize("call", ["write", "sync", "sync-dir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
async def test_613_a_segment_without_space_does_not_come_back(call: str, number: int) -> None:
    """INV-1: its header, synced already, would end the log before what is acknowledged next."""
    disk = Disk()
    stream = Stream(disk)
    stream.writer.start()
    assert await stream.add(b"first" * 200) is Status.OK
    disk.fails = {call: number}
    assert await stream.add(b"large" * 200) is Status.DISK_FULL, "no space to roll"
    assert await stream.add(b"small") is Status.OK, "there is place for it where the log is"
    disk.dead = True  # the machine stops; the idle mark was not written yet
    await stream.stop()
    disk.rng = AllButRemovals()
    disk.changes = [change for change in disk.changes if change[2] is not None]
    disk.restart(power=True)
    assert log_of(disk) == [b"first" * 200, b"small"]


async def test_613_a_segment_that_cannot_be_removed_ends_the_stream() -> None:
    disk = Disk()
    stream = Stream(disk)
    stream.writer.start()
    assert await stream.add(b"first" * 200) is Status.OK
    disk.fails = {"sync-dir": errno.ENOSPC, "unlink": errno.EIO}
    lost = asyncio.ensure_future(stream.add(b"large" * 200))
    await until(lambda: bool(stream.failures))
    await stream.stop()
    assert [getattr(error, "errno", 0) for error in stream.failures] == [errno.EIO]
    assert not stream.writer.has_room(1, 1)
    lost.cancel()


async def test_items_are_written_published_and_told_in_order() -> None:
    stream = Stream(Disk())
    stream.writer.start()
    told = await asyncio.gather(*(stream.add(b"%02d" % i * 100) for i in range(40)))
    assert told == [Status.OK] * 40
    await stream.stop()
    groups = [work for work in stream.published if isinstance(work, CommittedGroup)]
    assert [bytes(e) for g in groups for i in g.items for e in i.entries] == log_of(stream.disk)
    assert [g.mark for g in groups] == sorted(g.mark for g in groups)
    assert set(g.mark for g in groups) <= set(stream.noted)
    retired = [work for work in stream.published if isinstance(work, RetiredSegment)]
    assert [piece.header.number for piece in retired] == [1, *stream.rolls]
    assert len(stream.rolls) >= 1
    assert stream.threads == {"journal-commit"}
    assert not stream.failures
    assert not stream.writer.unproven, "B-15: a stop proves the last batch"


@pytest.mark.parametrize("call", ["write", "sync"])
async def test_b8_a_failure_closes_the_files_and_nothing_more_is_told(call: str) -> None:
    disk = Disk()
    stream = Stream(disk)
    closed: list[int] = []
    appender = stream.writer._appender  # pyright: ignore[reportPrivateUsage]
    assert appender is not None
    appender.close = lambda: closed.append(1)  # type: ignore[method-assign]
    stream.writer.start()
    disk.fails = {call: errno.EIO}
    lost = [asyncio.ensure_future(stream.add(b"%d" % i)) for i in range(3)]
    await until(lambda: bool(stream.failures))
    await stream.stop()
    assert not any(one.done() for one in lost)
    assert [getattr(error, "errno", 0) for error in stream.failures] == [errno.EIO]
    assert closed == [1], "each boot in place opens new ones (ADR 20)"
    for one in lost:
        one.cancel()


async def test_b8_a_mistake_of_the_core_closes_the_files_too() -> None:
    """An item that no segment can hold is refused by `has_room`; here nobody asked."""
    stream = Stream(Disk())
    closed: list[int] = []
    appender = stream.writer._appender  # pyright: ignore[reportPrivateUsage]
    assert appender is not None
    appender.close = lambda: closed.append(1)  # type: ignore[method-assign]
    item = JournalItem([], [], stream.told_never)
    item.nbytes = MAX_SEGMENT_BYTES
    stream.writer.start()
    stream.writer.submit(item)
    await until(lambda: bool(stream.failures))
    await stream.stop()
    assert [type(error) for error in stream.failures] == [InvariantViolation]
    assert closed == [1]


async def test_a_boot_that_finds_no_space_raises_it_and_leaves_no_segment() -> None:
    disk = Disk()
    disk.fails = {"sync-dir": errno.ENOSPC}
    with pytest.raises(OSError, match="injected") as caught:
        Stream(disk)
    assert caught.value.errno == errno.ENOSPC
    assert disk.list(FOLDER) == []


async def test_a_stream_is_opened_once_and_started_once() -> None:
    stream = Stream(Disk())
    stream.writer.start()
    with pytest.raises(IllegalStateError, match="started before"):
        stream.writer.start()
    await stream.stop()
    with pytest.raises(IllegalStateError, match="open"):
        stream.writer.start()


async def test_groups_are_measured_once_each_and_lazy_items_wait_on_purpose() -> None:
    stream = Stream(Disk())
    before = stream.measured()[2]  # of the segment's header
    stream.writer.start()
    assert await stream.add(b"one") is Status.OK
    assert await stream.add(b"two") is Status.OK
    groups, adds, syncs, records = stream.measured()
    assert (groups, adds, records) == (2, 2, 2)
    assert syncs - before >= 2
    assert stream.writer.add_seconds.total >= stream.writer.sync_seconds.total / syncs
    told: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
    control = (RecordType.EXPLICIT_LAC, 1, 0)
    stream.writer.submit(JournalItem([], [], told.set_result, controls=(control,), lazy=True))
    await stream.stop()  # it waits for nothing else
    assert await asyncio.wait_for(told, DEADLINE_S) is Status.OK
    assert stream.measured()[:2] == (3, 2)


async def test_an_add_that_waits_in_the_queue_counts_from_when_it_was_queued() -> None:
    clock = ManualClock()
    stream = Stream(Disk(), clock)
    stream.writer.start()
    told: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
    stream.writer.submit(JournalItem([(1, 0, -1, 0, 0)], [b"x"], told.set_result))
    clock.advance(0.5)  # before the answer, which comes on this loop, can be met
    assert await asyncio.wait_for(told, DEADLINE_S) is Status.OK
    assert stream.writer.add_seconds.total == pytest.approx(0.5)
    await stream.stop()
