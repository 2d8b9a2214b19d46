"""Marks, locks, holds and switches of autorecovery (A-3, A-4, A-8, A-9, 7.4)."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from octavo.metadata.memory import MemoryCluster
from octavo.metadata.repairs import (
    AuditReport,
    BookieAway,
    BookieHold,
    HoldKind,
    RepairCatalog,
    RepairMark,
)
from octavo.metadata.store import MetadataStore
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.ids import LedgerId, Member
from tests.unit.metadata_stores import PATHS, ImpatientClock, members

ONE, TWO, THREE = members()


def catalog(store: MetadataStore) -> RepairCatalog:
    return RepairCatalog(store, PATHS, clock=ImpatientClock())


async def test_a_mark_is_merged_and_keeps_its_first_time() -> None:
    repairs = catalog(MemoryCluster().connect())
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE}), marked_ms=10))
    await repairs.mark(RepairMark(LedgerId(5), frozenset({TWO}), short=True, marked_ms=99))
    found = await repairs.read(LedgerId(5))
    assert found is not None
    assert found.mark == RepairMark(LedgerId(5), frozenset({ONE, TWO}), True, 10)


async def test_the_same_mark_twice_is_no_write() -> None:
    repairs = catalog(MemoryCluster().connect())
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE})))
    before = await repairs.read(LedgerId(5))
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE})))
    assert await repairs.read(LedgerId(5)) == before


async def test_a8_a_mark_that_changed_is_not_removed() -> None:
    repairs = catalog(MemoryCluster().connect())
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE})))
    old = await repairs.read(LedgerId(5))
    assert old is not None
    await repairs.mark(RepairMark(LedgerId(5), frozenset({TWO})))
    assert not await repairs.remove(old)
    new = await repairs.read(LedgerId(5))
    assert new is not None
    assert await repairs.remove(new)
    assert await repairs.remove(new), "twice is no error"
    assert await repairs.read(LedgerId(5)) is None


async def test_marks_are_listed_in_order_and_bounded_and_leave_no_directories() -> None:
    store = MemoryCluster().connect()
    repairs = catalog(store)
    for number in (7, 3, 10_000_000_007, 5):
        await repairs.mark(RepairMark(LedgerId(number), short=True))
    assert await repairs.marked(10) == [3, 5, 7, 10_000_000_007]
    assert await repairs.marked(2) == [3, 5]
    for number in (7, 3, 10_000_000_007, 5):
        found = await repairs.read(LedgerId(number))
        assert found is not None
        await repairs.remove(found)
    assert await repairs.marked(10) == []
    assert await store.children(PATHS.under_replicated) == []


async def test_a4_every_mark_comes_up_though_more_stand_before_it_than_are_looked_at() -> None:
    repairs = catalog(MemoryCluster().connect())
    numbers = [3 * n for n in range(9)] + [10_000 * n for n in range(1, 9)]
    for number in numbers:
        await repairs.mark(RepairMark(LedgerId(number), short=True))
    entropy = SeededEntropy(1)
    seen: set[int] = set()
    for _ in range(200):
        some = await repairs.marked(4, order=entropy.shuffled)
        assert len(set(some)) == 4
        seen.update(some)
    assert seen == set(numbers)


async def test_a_lost_reply_to_a_mark_is_settled() -> None:
    store = MemoryCluster().connect()
    repairs = catalog(store)
    store.faults.lose_reply("create")
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE})))
    assert await repairs.marked(10) == [5]


async def test_a4_one_lock_for_a_ledger() -> None:
    cluster = MemoryCluster()
    mine, other = catalog(cluster.connect()), catalog(cluster.connect())
    lock = await mine.lock(LedgerId(5), b"me")
    assert lock is not None
    assert lock.held
    assert await other.lock(LedgerId(5), b"you") is None
    assert await other.lock(LedgerId(6), b"you") is not None
    await lock.release()
    assert await other.lock(LedgerId(5), b"you") is not None


async def test_a9_a_lock_is_not_believed_after_its_session() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    lock = await catalog(store).lock(LedgerId(5), b"me")
    assert lock is not None
    store.suspend()
    assert not lock.held, "out of contact: it may be gone"
    cluster.expire(store)
    store.resume()
    assert not lock.held, "another session: another holder"
    assert await catalog(cluster.connect()).lock(LedgerId(5), b"you") is not None


async def test_one_auditor_which_may_resign() -> None:
    cluster = MemoryCluster()
    mine, other = catalog(cluster.connect()), catalog(cluster.connect())
    assert not await mine.auditor()
    assert await mine.elect(b"me")
    assert await mine.elect(b"me"), "it stays"
    assert not await other.elect(b"you")
    await other.resign(b"you")
    assert await other.auditor(), "nobody resigns for another"
    await mine.resign(b"me")
    assert await other.elect(b"you")


async def test_the_switch_and_the_report() -> None:
    repairs = catalog(MemoryCluster().connect())
    assert not await repairs.disabled()
    for wanted in (True, True, False, False):
        await repairs.set_disabled(wanted)
        assert await repairs.disabled() is wanted
    assert await repairs.report() is None
    for short in (1, 0):
        report = AuditReport(5, 10, short, 2, 3, "bookie-1", frozenset({b"n1", b"n2"}))
        await repairs.set_report(report)
        assert await repairs.report() == report


async def test_a1_the_first_who_misses_a_bookie_is_right() -> None:
    repairs = catalog(MemoryCluster().connect())
    await repairs.miss(BookieAway("bookie-1", "rack-1", 100))
    await repairs.miss(BookieAway("bookie-1", "", 900))
    assert await repairs.away() == {"bookie-1": BookieAway("bookie-1", "rack-1", 100)}
    await repairs.found_again("bookie-1")
    await repairs.found_again("bookie-1")
    assert await repairs.away() == {}


async def test_the_last_decision_about_a_bookie_counts() -> None:
    repairs = catalog(MemoryCluster().connect())
    assert await repairs.hold_of("bookie-1") is None
    for kind in HoldKind:
        await repairs.hold(BookieHold(ONE, kind))
        assert await repairs.hold_of("bookie-1") == BookieHold(ONE, kind)
    assert await repairs.holds() == {"bookie-1": BookieHold(ONE, HoldKind.RETIRED)}
    await repairs.release("bookie-1")
    assert await repairs.holds() == {}


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"\x08\x01\x1a\x04nope"])
def test_m7_a_damaged_mark_is_no_mark(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt):
        RepairMark.from_bytes(data)


def test_a_newer_mark_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        RepairMark.from_bytes(b"\x08\x02")


def test_marks_round_trip() -> None:
    member = Member("a@b", uuid.UUID(int=9))
    mark = RepairMark(LedgerId(9), frozenset({member}), True, 77)
    assert RepairMark.from_bytes(mark.to_bytes()) == mark


@pytest.mark.parametrize("operation", ["get", "barrier", "put", "delete", "create", "children"])
@pytest.mark.parametrize("executed", [True, False], ids=["reply lost", "request lost"])
async def test_lost_messages_change_nothing_of_what_is_known(
    operation: str, executed: bool
) -> None:
    """M-3: mark, merge, hold, report, unmark, each with one loss."""
    store = MemoryCluster().connect()
    repairs = catalog(store)

    def lose() -> None:
        store.faults.lost.clear()
        (store.faults.lose_reply if executed else store.faults.lose_request)(operation)

    lose()
    await repairs.mark(RepairMark(LedgerId(5), frozenset({ONE})))
    lose()
    await repairs.mark(RepairMark(LedgerId(5), frozenset({TWO})))
    lose()
    await repairs.hold(BookieHold(ONE, HoldKind.DRAINING))
    lose()
    await repairs.hold(BookieHold(ONE, HoldKind.READONLY))
    lose()
    await repairs.set_report(AuditReport(1, 2, 3))
    store.faults.lost.clear()
    found = await repairs.read(LedgerId(5))
    assert found is not None
    assert found.mark.members == {ONE, TWO}
    assert await repairs.hold_of("bookie-1") == BookieHold(ONE, HoldKind.READONLY)
    assert await repairs.report() == AuditReport(1, 2, 3)
    lose()
    assert await repairs.remove(found)
    store.faults.lost.clear()
    assert await repairs.read(LedgerId(5)) is None


async def test_two_auditors_mark_at_once_and_nothing_is_lost() -> None:
    """7.1: two for a moment are harmless."""
    cluster = MemoryCluster()
    catalogs = [catalog(cluster.connect()) for _ in range(4)]
    marks = [RepairMark(LedgerId(5), frozenset({one})) for one in (ONE, TWO, THREE, ONE)]
    await asyncio.gather(*(one.mark(mark) for one, mark in zip(catalogs, marks, strict=True)))
    found = await catalogs[0].read(LedgerId(5))
    assert found is not None
    assert found.mark.members == {ONE, TWO, THREE}


async def test_removing_a_mark_leaves_its_neighbours() -> None:
    repairs = catalog(MemoryCluster().connect())
    for number in (5, 6):
        await repairs.mark(RepairMark(LedgerId(number), short=True))
    found = await repairs.read(LedgerId(5))
    assert found is not None
    await repairs.remove(found)
    assert await repairs.marked(10) == [6]


async def test_m7_a_key_that_is_no_mark_hides_no_other() -> None:
    store = MemoryCluster().connect()
    repairs = catalog(store)
    await store.create(f"{PATHS.under_replicated}/000/0000/0000/0000/x", b"")
    await repairs.mark(RepairMark(LedgerId(5), short=True))
    assert await repairs.marked(10) == [5]


async def test_m7_a_hold_that_cannot_be_read_is_an_error() -> None:
    store = MemoryCluster().connect()
    await store.create(PATHS.bookie_hold("bookie-1"), b"\xff")
    with pytest.raises(MetadataCorrupt):
        await catalog(store).hold_of("bookie-1")
