"""A bookie gives up copies that no record asks it for, under the ledger's lock (G-4)."""

from __future__ import annotations

import asyncio
import pathlib
import uuid

import pytest

from octavo.bookie.reclaim.reclaimer import Reclaimer
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.bookie_rig import ROOT, BookieRig, entry, until

OTHER = Member("bookie-2", uuid.UUID(int=2))
COUNT = 6
SETTINGS: dict[str, object] = {
    "gc_interval_s": 0.05,
    "gc_confirm_s": 0.05,
    "gc_reads_per_s": 100_000.0,
    "gc_surplus_interval_s": 0.05,
    "gc_surplus_quiet_s": 0.05,
    "disk_reserve_segments": 0.0,
}


def rig_of(folder: pathlib.Path, **settings: object) -> BookieRig:
    return BookieRig(folder / "data", None, **{**SETTINGS, **settings})


def reclaimer_of(rig: BookieRig) -> Reclaimer:
    return rig.server._open.reclaimer  # pyright: ignore[reportPrivateUsage]


async def stored(rig: BookieRig, ledger: LedgerId) -> list[tuple[int, int]]:
    return (await rig.server.store.list_entries(ledger, 0, 1000)).runs


def repairs_of(rig: BookieRig) -> RepairCatalog:
    return RepairCatalog(rig.metadata, Paths(ROOT), clock=rig.clock)


async def a_ledger(
    rig: BookieRig, *, close: bool = True, member: Member | None = None, lock: bool = False
) -> LedgerId:
    """A ledger that was written here, and which `member` has now in the bookie's place."""
    ledger = await rig.ledger()
    for entry_id in range(COUNT):
        assert await rig.add(entry(ledger, entry_id)) == [Status.OK]
    me = rig.server.member

    def change(record: LedgerMetadata) -> LedgerMetadata:
        closed = record.closed(EntryId(COUNT - 1), 10 * COUNT)
        return closed.with_member_replaced(EntryId(0), me, member or OTHER) if close else record

    if lock:
        assert await repairs_of(rig).lock(ledger, b"worker") is not None
    await rig.catalog.update(ledger, change)
    return ledger


async def indexed(rig: BookieRig, ledger: LedgerId) -> None:
    known = rig.server.store._table.by_id[ledger]  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not known.pending)


async def looked_again(rig: BookieRig, ledger: LedgerId) -> None:
    """Wait until several passes have looked at it."""
    calls = 0
    catalog = reclaimer_of(rig).collector._witness.catalog  # pyright: ignore[reportPrivateUsage]
    read = catalog.read

    async def counted(ledger_id: LedgerId, *, barrier: bool = False) -> object:
        nonlocal calls
        calls += ledger_id == ledger
        return await read(ledger_id, barrier=barrier)

    catalog.read = counted  # type: ignore[method-assign, assignment]
    try:
        await until(lambda: calls >= 6)
    finally:
        del catalog.read


async def test_copies_that_no_record_asks_for_go_and_may_come_back(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        kept = await rig.ledger()
        assert await rig.add(entry(kept, 0)) == [Status.OK]
        ledger = await a_ledger(rig)
        before = (await rig.catalog.read(ledger)).metadata
        surplus = reclaimer_of(rig).surplus
        await until(lambda: surplus.ledgers_deleted == 1)
        assert await rig.read(ledger, 0) == (Status.NO_SUCH_LEDGER, [])
        assert await stored(rig, kept) == [(0, 0)]
        found = await rig.catalog.read(ledger, barrier=True)
        assert found.metadata == before, "the record says what it said"
        assert await repairs_of(rig).lock(ledger, b"worker") is not None, "it was given back"
        assert await rig.add(entry(ledger, 3), recovery=True) == [Status.OK]
        await rig.crash()
        assert await rig.read(ledger, 3) == (Status.OK, [entry(ledger, 3)])
        assert (await rig.read(ledger, 2))[0] is Status.NO_SUCH_ENTRY


@pytest.mark.parametrize("why", ["open", "named", "older incarnation", "locked", "distrusted"])
async def test_what_may_be_wanted_stays(tmp_path: pathlib.Path, why: str) -> None:
    async with rig_of(tmp_path) as rig:
        me = rig.server.member
        member = {"named": me, "older incarnation": Member("bookie-1", uuid.UUID(int=9))}.get(why)
        collector = reclaimer_of(rig).collector
        if why == "distrusted":
            core = collector.core
            core.memory = core.memory._replace(doubt="an older copy of the metadata was put back")
        ledger = await a_ledger(rig, close=why != "open", member=member, lock=why == "locked")
        if why == "distrusted":
            passes = collector.stats.passes
            await until(lambda: collector.stats.passes > passes + 5)
        else:
            await looked_again(rig, ledger)
        assert await stored(rig, ledger) == [(0, COUNT - 1)]
        assert reclaimer_of(rig).surplus.ledgers_deleted == 0


async def test_nobody_is_told_of_copies_that_may_be_given_up(tmp_path: pathlib.Path) -> None:
    """G-5: who writes meanwhile is heard, and the copies stay."""
    async with rig_of(tmp_path, gc_surplus_interval_s=1000.0, gc_surplus_quiet_s=1000.0) as rig:
        ledger = await a_ledger(rig)
        await indexed(rig, ledger)
        deletions = rig.server.store.deletions
        assert await deletions.condemn(ledger)
        assert not await deletions.condemn(ledger), "it is in somebody's hands"
        assert (await rig.server.store.list_entries(ledger, 0, 9)).status is Status.OVERLOADED
        assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])
        deletions.spare(ledger)
        deletions.spare(ledger)
        assert await stored(rig, ledger) == [(0, COUNT - 1)]
        assert rig.server.store._table.by_id[ledger].pins == 0  # pyright: ignore[reportPrivateUsage]
        assert await deletions.condemn(ledger)
        rig.disk.gate.clear()
        adding = asyncio.create_task(rig.add(entry(ledger, COUNT), recovery=True))
        await asyncio.sleep(0)
        assert not await deletions.delete_condemned(ledger)
        rig.disk.gate.set()
        assert await adding == [Status.OK]
        await indexed(rig, ledger)
        assert await stored(rig, ledger) == [(0, COUNT)]


async def test_a_lock_is_given_back_when_the_storage_is_opened_again(
    tmp_path: pathlib.Path,
) -> None:
    """6.13: the session goes on, and a ledger that stays locked is never repaired."""
    async with rig_of(tmp_path) as rig:
        reclaimer = reclaimer_of(rig)
        catalog = reclaimer.collector._witness.catalog  # pyright: ignore[reportPrivateUsage]
        written = asyncio.Event()

        async def never(old: object, new: object) -> object:
            written.set()
            return await asyncio.Event().wait()

        catalog.cas = never  # type: ignore[method-assign, assignment]
        ledger = await a_ledger(rig)
        await asyncio.wait_for(written.wait(), 30)
        assert await repairs_of(rig).lock(ledger, b"worker") is None
        await reclaimer.close()
        assert await repairs_of(rig).lock(ledger, b"worker") is not None
