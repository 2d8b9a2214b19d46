"""Adds, fences, LACs and reads of one bookie on a real disk (spec/ledger.md §5, §6)."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from octavo.bookie.ledgers import Ledger
from octavo.bookie.storage.index import Location
from octavo.proto.bookie_wire import Status
from octavo.runtime.disk import Appender
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.bookie_rig import DEADLINE_S, BookieRig, FaultyDisk, entry, flip, until


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data") as made:
        yield made


def object_of(rig: BookieRig, ledger_id: int) -> Ledger:
    return rig.server.store._table.by_id[ledger_id]  # pyright: ignore[reportPrivateUsage]


async def settled(rig: BookieRig, ledger_id: int) -> Ledger:
    """The ledger's object once the index answers for all of it."""
    found = object_of(rig, ledger_id)
    await until(lambda: not found.pending and not found.pins)
    return found


async def location(rig: BookieRig, ledger_id: int, entry_id: int) -> Location:
    await settled(rig, ledger_id)
    boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
    found = await asyncio.to_thread(boot.index.locate, ledger_id, entry_id)
    assert found is not None
    return found


async def test_add_then_read(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    entries = [entry(ledger, i) for i in range(5)]
    assert await rig.add(*entries) == [Status.OK] * 5
    assert await rig.read(ledger, 0, 10) == (Status.OK, entries)
    await settled(rig, ledger)
    assert await rig.read(ledger, 1, 3) == (Status.OK, entries[1:4])
    assert await rig.read(ledger, 5) == (Status.NO_SUCH_ENTRY, [])
    assert await rig.read(ledger + 1, 0) == (Status.NO_SUCH_LEDGER, [])


async def test_reads_mix_index_and_pending(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    first = [entry(ledger, i) for i in range(3)]
    await rig.add(*first)
    await settled(rig, ledger)
    rig.disk.gate.clear()
    task = asyncio.create_task(rig.add(entry(ledger, 3), entry(ledger, 4)))
    await until(lambda: len(object_of(rig, ledger).pending) == 2)
    assert await rig.read(ledger, 1, 9) == (
        Status.OK,
        [*first[1:], entry(ledger, 3), entry(ledger, 4)],
    )
    assert await rig.read(ledger, 3, 2) == (Status.OK, [entry(ledger, 3), entry(ledger, 4)])
    rig.disk.gate.set()
    assert await task == [Status.OK] * 2


async def test_rd4_reads_are_bounded_but_never_empty(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(*(entry(ledger, i, b"x" * 1000) for i in range(10)))
    await settled(rig, ledger)
    answer = await rig.server.store.read(ledger, 0, 10, 2500, fence=False, salvage=False)
    assert len(answer.entries) == 2
    answer = await rig.server.store.read(ledger, 0, 10, 1, fence=False, salvage=False)
    assert len(answer.entries) == 1
    assert answer.lac == 8


async def test_acknowledged_only_after_sync(rig: BookieRig) -> None:
    """B-4: no reply before the sync that covers the entry."""
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    rig.disk.gate.clear()
    task = asyncio.create_task(rig.add(entry(ledger, 1)))
    await until(lambda: 1 in object_of(rig, ledger).pending)
    before = rig.disk.syncs
    assert not task.done()
    rig.disk.gate.set()
    assert await task == [Status.OK]
    assert rig.disk.syncs > before


async def test_b6_what_queues_during_a_sync_shares_the_next_one(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    rig.disk.gate.clear()
    tasks = [asyncio.create_task(rig.add(entry(ledger, i))) for i in range(1, 101)]
    await until(lambda: 100 in object_of(rig, ledger).pending)
    before = rig.disk.syncs
    rig.disk.gate.set()
    for task in tasks:
        assert await task == [Status.OK]
    assert rig.disk.syncs - before <= 3


async def test_b3_duplicates(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0), entry(ledger, 1))
    await settled(rig, ledger)
    assert await rig.add(entry(ledger, 0)) == [Status.OK]
    assert await rig.add(entry(ledger, 0, b"other")) == [Status.CONFLICT]
    assert rig.server.store.stats.conflicts == 1
    assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])


async def test_b3_duplicate_of_a_pending_entry_waits_for_its_sync(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    rig.disk.gate.clear()
    first = asyncio.create_task(rig.add(entry(ledger, 1)))
    await until(lambda: 1 in object_of(rig, ledger).pending)
    again = asyncio.create_task(rig.add(entry(ledger, 1)))
    other = asyncio.create_task(rig.add(entry(ledger, 1, b"other")))
    assert await other == [Status.CONFLICT]
    assert not again.done()
    rig.disk.gate.set()
    assert await first == [Status.OK]
    assert await again == [Status.OK]


async def test_two_adds_of_one_old_id_cannot_both_be_new(rig: BookieRig) -> None:
    """INV-5: looks into the index for one entry are serialised."""
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 9))
    one, two = entry(ledger, 3, b"one"), entry(ledger, 3, b"two")
    results = await asyncio.gather(rig.add(one), rig.add(two))
    assert sorted(status for (status,) in results) == [Status.OK, Status.CONFLICT]
    kept = one if results[0] == [Status.OK] else two
    assert await rig.read(ledger, 3) == (Status.OK, [kept])


async def test_out_of_order_and_mixed_ledgers(rig: BookieRig) -> None:
    a, b = await rig.ledger(), await rig.ledger()
    batch = [entry(a, 5), entry(b, 0), entry(a, 2), entry(b, 1), entry(a, 2), b"junk"]
    statuses = await rig.add(*batch)
    assert statuses == [Status.OK] * 5 + [Status.BAD_DIGEST]
    assert await rig.read(a, 2, 9) == (Status.OK, [entry(a, 2)])
    assert await rig.read(b, 0, 9) == (Status.OK, [entry(b, 0), entry(b, 1)])


async def test_insane_ids_are_refused(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    statuses = await rig.add(entry(ledger, 1, lac=1), entry(ledger, 1, lac=-2))
    assert statuses == [Status.BAD_REQUEST, Status.BAD_REQUEST]


# --- admission ---------------------------------------------------------------------------------


async def test_b31_refusals(rig: BookieRig) -> None:
    other = Member("elsewhere", rig.entropy.uuid())
    foreign = await rig.ledger(other)
    assert await rig.add(entry(foreign, 0)) == [Status.FENCED]
    assert await rig.add(entry(987654, 0)) == [Status.FENCED]
    closing = await rig.ledger()
    await rig.catalog.update(closing, lambda metadata: metadata.in_recovery())
    assert await rig.add(entry(closing, 0)) == [Status.FENCED]
    reads = rig.server.store._desk.reads  # pyright: ignore[reportPrivateUsage]
    assert await rig.add(entry(closing, 1)) == [Status.FENCED]
    assert rig.server.store._desk.reads == reads  # pyright: ignore[reportPrivateUsage]
    # Not being a member may change with the next ensemble change: it is never remembered.
    await rig.catalog.update(
        foreign, lambda md: md.with_ensemble_change(EntryId(0), (rig.server.member,))
    )
    assert await rig.add(entry(foreign, 0)) == [Status.OK]


async def test_b31_metadata_store_away(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    admitted = await rig.ledger()
    await rig.add(entry(admitted, 0))
    rig.metadata.suspend()
    try:
        assert await rig.add(entry(ledger, 0)) == [Status.NOT_ADMITTED_RETRY]
        assert await rig.add(entry(admitted, 1)) == [Status.OK], "R7: open ledgers keep writing"
    finally:
        rig.metadata.resume()
    assert await rig.add(entry(ledger, 0)) == [Status.OK]


async def test_b32_recovery_adds(rig: BookieRig) -> None:
    other = Member("elsewhere", rig.entropy.uuid())
    foreign = await rig.ledger(other)
    assert await rig.add(entry(foreign, 4), recovery=True) == [Status.OK]
    assert not object_of(rig, foreign).admitted, "B-34: recovery never creates an admit"
    assert await rig.add(entry(987654, 0), recovery=True) == [Status.NO_SUCH_LEDGER]


async def test_one_question_for_many_adds(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    desk = rig.server.store._desk  # pyright: ignore[reportPrivateUsage]
    before = desk.reads
    results = await asyncio.gather(*(rig.add(entry(ledger, i)) for i in range(50)))
    assert all(result == [Status.OK] for result in results)
    assert desk.reads == before + 1
    assert (await rig.read(ledger, 0, 50))[1] == [entry(ledger, i) for i in range(50)]


# --- fences ------------------------------------------------------------------------------------


async def fence(rig: BookieRig, ledger: LedgerId) -> tuple[Status, int]:
    answer = await rig.server.store.fence(ledger)
    return answer.status, answer.lac


async def test_fence_refuses_ordinary_adds_for_ever(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0), entry(ledger, 1))
    assert await fence(rig, ledger) == (Status.OK, 0)
    assert await rig.add(entry(ledger, 2)) == [Status.FENCED]
    assert await rig.add(entry(ledger, 2), recovery=True) == [Status.OK]
    assert await fence(rig, ledger) == (Status.OK, 1)


async def test_r2_a_ledger_never_heard_of_is_fenced_too(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    assert await fence(rig, ledger) == (Status.OK, -1)
    assert await rig.add(entry(ledger, 0)) == [Status.FENCED]
    await rig.crash()
    assert await rig.add(entry(ledger, 0)) == [Status.FENCED], "INV-8"
    assert await rig.read(ledger, 0, fence=True) == (Status.NO_SUCH_ENTRY, [])


@pytest.mark.parametrize("repeated", [False, True])
async def test_h2_no_fence_reply_before_its_record_is_durable(
    rig: BookieRig, repeated: bool
) -> None:
    """B-F2: for fences, repeated fences and fenced reads with positive or negative outcome."""
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    await settled(rig, ledger)
    rig.disk.gate.clear()
    tasks: list[asyncio.Task[object]] = []
    if repeated:
        tasks.append(asyncio.create_task(rig.server.store.fence(ledger)))
        await until(lambda: object_of(rig, ledger).fenced)
    tasks += [
        asyncio.create_task(rig.server.store.fence(ledger)),
        asyncio.create_task(rig.read(ledger, 0, fence=True)),
        asyncio.create_task(rig.read(ledger, 7, fence=True)),
    ]
    await until(lambda: len(object_of(rig, ledger).fence_waiters) == len(tasks))
    assert not any(task.done() for task in tasks)
    assert await rig.add(entry(ledger, 1)) == [Status.FENCED], "B-F1: refused before it is durable"
    rig.disk.gate.set()
    await asyncio.gather(*tasks)
    assert tasks[-2].result() == (Status.OK, [entry(ledger, 0)])
    assert tasks[-1].result() == (Status.NO_SUCH_ENTRY, [])


async def test_h3_an_accepted_add_is_never_a_negative_to_a_fenced_read(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    rig.disk.gate.clear()
    add = asyncio.create_task(rig.add(entry(ledger, 1)))
    await until(lambda: 1 in object_of(rig, ledger).pending)
    read = asyncio.create_task(rig.read(ledger, 1, fence=True))
    await until(lambda: bool(object_of(rig, ledger).fence_waiters))
    rig.disk.gate.set()
    assert await read == (Status.OK, [entry(ledger, 1)])
    assert await add == [Status.OK]


async def test_bf3_a_fence_during_admission_wins(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    add = asyncio.create_task(rig.add(entry(ledger, 0)))
    status, _ = await fence(rig, ledger)
    assert status is Status.OK
    (result,) = await add
    read = await rig.read(ledger, 0, fence=True)
    stored = (Status.OK, [entry(ledger, 0)])
    assert (result, read) in (
        (Status.OK, stored),
        (Status.FENCED, (Status.NO_SUCH_ENTRY, [])),
    )


# --- LAC ---------------------------------------------------------------------------------------


async def test_rd5_rd6_lac(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    assert (await rig.server.store.read_lac(ledger, -1, 0)).status is Status.NO_SUCH_LEDGER
    assert await rig.server.store.write_lac(ledger, 5) is Status.NO_SUCH_LEDGER
    await rig.add(entry(ledger, 0), entry(ledger, 1), entry(ledger, 2))
    answer = await rig.server.store.read_lac(ledger, -1, 0)
    assert (answer.status, answer.lac, answer.last_entry) == (Status.OK, 1, 2)
    assert await rig.server.store.write_lac(ledger, 2) is Status.OK
    assert await rig.server.store.write_lac(ledger, 1) is Status.OK
    assert (await rig.server.store.read_lac(ledger, 1, 5)).lac == 2
    await settled(rig, ledger)
    await rig.crash()
    assert (await rig.server.store.read_lac(ledger, -1, 0)).lac == 2


async def test_rd7_long_poll(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0), entry(ledger, 1))

    def poll(previous: int) -> asyncio.Task[object]:
        return asyncio.create_task(rig.server.store.read_lac(ledger, previous, DEADLINE_S))

    first = poll(0)
    await until(lambda: len(object_of(rig, ledger).pollers) == 1)
    await rig.add(entry(ledger, 2))
    assert getattr(await first, "lac", None) == 1
    second = poll(1)
    await until(lambda: len(object_of(rig, ledger).pollers) == 1)
    await rig.server.store.write_lac(ledger, 2)
    assert getattr(await second, "lac", None) == 2
    third = poll(2)
    await until(lambda: len(object_of(rig, ledger).pollers) == 1)
    await fence(rig, ledger)
    assert getattr(await third, "fenced", None) is True
    expired = await rig.server.store.read_lac(ledger, 2, 0.01)
    assert expired.lac == 2
    assert object_of(rig, ledger).pollers == []


# --- overload, disk full, fail-stop --------------------------------------------------------------


async def test_b9_a_full_queue_answers_overloaded(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", queue_max_records=10) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        rig.disk.gate.clear()
        tasks = [asyncio.create_task(rig.add(entry(ledger, i))) for i in range(1, 11)]
        await until(lambda: len(object_of(rig, ledger).pending) >= 10)
        assert await rig.add(entry(ledger, 11)) == [Status.OVERLOADED]
        recovery = asyncio.create_task(rig.add(entry(ledger, 11), recovery=True))
        fenced = asyncio.create_task(rig.server.store.fence(ledger))
        rig.disk.gate.set()
        assert [await task for task in tasks] == [[Status.OK]] * 10
        assert await recovery == [Status.OK], "recovery and fences have room of their own"
        assert (await fenced).status is Status.OK
        assert await rig.read(ledger, 12) == (Status.NO_SUCH_ENTRY, [])


async def test_disk_full_refuses_adds_and_goes_read_only(tmp_path: pathlib.Path) -> None:
    """6.13: ENOSPC at allocation is not fail-stop; fences and reads go on; space coming back
    heals."""
    async with BookieRig(tmp_path / "data", segment_bytes=8192) as rig:
        ledger = await rig.ledger()
        assert await rig.add(entry(ledger, 0, b"a" * 4000)) == [Status.OK]
        rig.disk.no_space = True
        rig.disk.space = (0, 1 << 40)
        assert await rig.add(entry(ledger, 1, b"b" * 6000)) == [Status.DISK_FULL]
        assert 1 not in object_of(rig, ledger).pending
        assert await rig.add(entry(ledger, 1, b"b" * 10)) == [Status.READONLY]
        keys = rig.cluster.snapshot
        await until(lambda: "/octavo/bookies/rw/bookie-1" not in keys())
        assert "/octavo/bookies/ro/bookie-1" in keys()
        assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0, b"a" * 4000)])
        assert await rig.read(ledger, 1) == (Status.NO_SUCH_ENTRY, [])
        # The refused entry carried a LAC: a fact about other entries, which is kept (RD-5).
        assert await fence(rig, ledger) == (Status.OK, 0)
        assert await rig.add(entry(ledger, 1)) == [Status.FENCED]
        assert not rig.server.failed.done()
        rig.disk.no_space = False
        rig.disk.space = None
        await until(lambda: rig.server._state == "rw")  # pyright: ignore[reportPrivateUsage]
        other = await rig.ledger()
        assert await rig.add(entry(other, 0, b"c" * 6000)) == [Status.OK]


async def test_a_fence_that_finds_no_space_says_so_and_keeps_refusing(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path / "data", segment_bytes=4096) as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await rig.add(entry(ledger, 0, b"a" * 3800))
        await settled(rig, ledger)
        rig.disk.no_space = True
        assert await fence(rig, other) == (Status.DISK_FULL, -1)
        rig.disk.no_space = False
        assert await rig.add(entry(other, 0)) == [Status.FENCED]
        assert await fence(rig, other) == (Status.OK, -1)


@pytest.mark.parametrize("what", ["fail_sync", "fail_write"])
async def test_b8_a_failed_write_or_sync_is_fail_stop(rig: BookieRig, what: str) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    setattr(rig.disk, what, True)
    replies: list[object] = []
    rig.server.store.add([entry(ledger, 1)], 100, recovery=False, reply=replies.append)
    error = await asyncio.wait_for(asyncio.shield(rig.server.failed), DEADLINE_S)
    assert isinstance(error, OSError)
    setattr(rig.disk, what, False)
    assert await rig.add(entry(ledger, 2)) == [Status.OVERLOADED], "nothing is accepted any more"
    assert replies == [], "never acknowledged, and the sync is not retried"
    assert not rig.server.ready


# --- read taxonomy -------------------------------------------------------------------------------


async def damaged(rig: BookieRig) -> tuple[LedgerId, pathlib.Path, Location]:
    ledger = await rig.ledger()
    await rig.add(*(entry(ledger, i) for i in range(3)))
    where = await location(rig, ledger, 1)
    return ledger, rig.segments()[where.segment - 1], where


async def test_r2_every_flipped_byte_is_eio(rig: BookieRig) -> None:
    ledger, path, where = await damaged(rig)
    for offset in range(where.offset, where.offset + where.length):
        flip(path, offset)
        assert await rig.read(ledger, 1) == (Status.EIO, [])
        assert await rig.read(ledger, 0, 3) == (Status.OK, [entry(ledger, 0)])
        flip(path, offset)
    assert await rig.read(ledger, 0, 3) == (Status.OK, [entry(ledger, i) for i in range(3)])
    assert rig.server.store.stats.unreadable == where.length


async def test_h8_short_or_missing_segment_is_eio(rig: BookieRig) -> None:
    ledger, path, where = await damaged(rig)
    await rig.stop()
    await rig.start()
    os.truncate(path, where.offset + 5)
    assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])
    assert await rig.read(ledger, 1) == (Status.EIO, [])
    await rig.stop()
    path.unlink()
    await rig.start()  # below the durable mark: B-13, served as EIO, repaired later
    for entry_id in range(3):
        assert await rig.read(ledger, entry_id) == (Status.EIO, [])
        assert await rig.read(ledger, entry_id, fence=True) == (Status.EIO, [])
    assert await rig.read(ledger, 3) == (Status.NO_SUCH_ENTRY, [])


async def test_swapped_records_are_eio(rig: BookieRig) -> None:
    """A valid record in the wrong place is caught by the ids in its header (E-2)."""
    ledger = await rig.ledger()
    one, two = entry(ledger, 0, b"same size"), entry(ledger, 1, b"SAME SIZE")
    await rig.add(one, two)
    first, second = await location(rig, ledger, 0), await location(rig, ledger, 1)
    fd = os.open(rig.segments()[first.segment - 1], os.O_RDWR)
    os.pwrite(fd, two, first.offset)
    os.pwrite(fd, one, second.offset)
    os.close(fd)
    assert await rig.read(ledger, 0) == (Status.EIO, [])
    assert await rig.read(ledger, 1) == (Status.EIO, [])


async def test_recovery_add_repairs_an_unreadable_copy(rig: BookieRig) -> None:
    """6.15: verbatim bytes go to a new location; an ordinary add is told EIO."""
    ledger, path, where = await damaged(rig)
    flip(path, where.offset + 40)
    assert await rig.add(entry(ledger, 1)) == [Status.EIO]
    assert await rig.add(entry(ledger, 1), recovery=True) == [Status.OK]
    assert await rig.read(ledger, 1) == (Status.OK, [entry(ledger, 1)])


async def test_reads_in_flight_are_bounded(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", reads_in_flight_max=1) as rig:
        ledger = await rig.ledger()
        await rig.add(entry(ledger, 0))
        rig.disk.gate.clear()
        held = asyncio.create_task(rig.read(ledger, 0, fence=True))
        await until(lambda: bool(object_of(rig, ledger).fence_waiters))
        assert await rig.read(ledger, 0) == (Status.OVERLOADED, [])
        rig.disk.gate.set()
        assert await held == (Status.OK, [entry(ledger, 0)])


async def test_adds_queue_behind_undecided_ones_of_their_ledger(rig: BookieRig) -> None:
    """While the first adds wait for admission nothing overtakes them, so no index look-ups
    follow."""
    ledger = await rig.ledger()
    replies: list[int] = []

    def reply_of(first: int) -> Callable[[object], None]:
        return lambda _: replies.append(first)

    for first in range(0, 200, 10):
        entries = [entry(ledger, i) for i in range(first, first + 10)]
        rig.server.store.add(entries, 1000, recovery=False, reply=reply_of(first))
        await asyncio.sleep(0)
    await until(lambda: len(replies) == 20)
    assert replies == sorted(replies)
    assert (await rig.read(ledger, 0, 200))[1] == [entry(ledger, i) for i in range(200)]


# --- duplicates share the fate of the copy they duplicate (B-3) --------------------------------


class NoRoomToRoll(FaultyDisk):
    """Holds the creation of the next segment, then has no space for it."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.armed = False

    def create(self, path: pathlib.Path, preallocate_bytes: int) -> Appender:
        if self.armed:
            self.entered.set()
            assert self.go.wait(60)
            raise OSError(errno.ENOSPC, "injected: no space")
        return super().create(path, preallocate_bytes)


@pytest.mark.parametrize("recovery", [False, True])
async def test_b3_duplicate_of_a_refused_entry_is_refused(
    tmp_path: pathlib.Path, recovery: bool
) -> None:
    rig = BookieRig(tmp_path / "data", segment_bytes=1 << 16)
    rig.disk = disk = NoRoomToRoll()
    async with rig:
        ledger = await rig.ledger()
        assert await rig.add(entry(ledger, 0)) == [Status.OK]
        disk.armed = True
        big = entry(ledger, 1, b"x" * 70_000)
        first = asyncio.create_task(rig.add(big))
        await asyncio.to_thread(disk.entered.wait, 20)
        again = [asyncio.create_task(rig.add(big, recovery=recovery)) for _ in range(3)]
        duplicates = rig.server.store._undecided.duplicates  # pyright: ignore[reportPrivateUsage]
        await until(lambda: len(duplicates) == 1)
        disk.go.set()
        assert await first == [Status.DISK_FULL]
        for task in again:
            assert await task == [Status.DISK_FULL]
        assert len(duplicates) == 0, "nothing is kept of answered requests"
        assert (await rig.read(ledger, 1))[0] is Status.NO_SUCH_ENTRY
        disk.armed = False
        await rig.crash()
        assert await rig.add(big) == [Status.OK]
        assert await rig.read(ledger, 1) == (Status.OK, [big])


async def test_b3_the_same_entry_twice_in_one_request(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    assert await rig.add(entry(ledger, 0), entry(ledger, 0)) == [Status.OK, Status.OK]
    assert await rig.add(entry(ledger, 1), entry(ledger, 1)) == [Status.OK, Status.OK]


async def test_b8_duplicate_of_an_entry_whose_sync_fails_is_never_ok(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    assert await rig.add(entry(ledger, 0)) == [Status.OK]
    rig.disk.gate.clear()
    rig.disk.fail_sync = True
    tasks = [asyncio.create_task(rig.add(entry(ledger, 1))) for _ in range(2)]
    await until(lambda: 1 in object_of(rig, ledger).pending)
    rig.disk.gate.set()
    await asyncio.wait_for(asyncio.shield(rig.server.failed), 30)
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
