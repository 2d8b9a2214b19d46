"""The worker's shell over real clients, wire and records, with bookies that misbehave on command:
what it copies, when it changes a record, and when it leaves everything as it was (A-4..A-9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from octavo.client.autorecovery.auditor import Auditor
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.settings import RepairSettings
from octavo.client.autorecovery.worker import Attempt, LedgerRepairer
from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.ledgers import LedgerState, Quorum, VersionedLedger
from octavo.metadata.repairs import AuditReport, RepairCatalog, RepairMark
from octavo.proto.bookie_wire import FrameType, Status
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.ids import EntryId, LedgerId, Member
from tests.fake_bookie import FakeBookie
from tests.fix_ledger import FakeCluster, until

CLOCK = SystemClock()
COUNT = 10


class Scene(NamedTuple):
    """Four bookies, one ledger on three of them, and who repairs it."""

    cluster: FakeCluster
    client: LedgerClient
    repairs: RepairCatalog
    repairer: LedgerRepairer
    ledger_id: LedgerId

    async def record(self) -> VersionedLedger:
        return await self.client.catalog.read(self.ledger_id, barrier=True)

    async def members(self) -> list[str]:
        return [m.bookie_id for m in (await self.record()).metadata.last_fragment[1]]

    async def bookie(self, slot: int) -> FakeBookie:
        return self.cluster.bookie((await self.members())[slot])

    async def spare(self) -> FakeBookie:
        named = await self.members()
        return next(b for b in self.cluster.bookies if b.bookie_id not in named)

    async def mark(self, *members: Member) -> None:
        await self.repairs.mark(RepairMark(self.ledger_id, frozenset(members), not members))

    async def lose(self, slot: int) -> Member:
        """Its process and registration are gone, and the ledger is marked."""
        gone = await self.bookie(slot)
        await gone.unregister()
        await gone.stop()
        member = Member(gone.bookie_id, gone.incarnation)
        await self.mark(member)
        return member

    async def attempt(self) -> Attempt:
        lock = await self.repairs.lock(self.ledger_id, b"me")
        assert lock is not None
        try:
            return await self.repairer.repair(self.ledger_id, lock)
        finally:
            await lock.release()

    def held(self, bookie: FakeBookie) -> list[int]:
        return sorted(bookie.ledger(self.ledger_id).entries)


async def _scene(cluster: FakeCluster, *, close: bool = True, grace_s: float = 0.0) -> Scene:
    await cluster.add_bookie()
    client = await cluster.client()
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    for number in range(COUNT):
        await writer.append(b"%d" % number)
    await until(
        lambda: sum(len(b.ledger(writer.ledger_id).entries) for b in cluster.bookies) == 3 * COUNT
    )
    if close:
        await writer.close()
    return _scene_of(cluster, client, writer.ledger_id, grace_s)


def _scene_of(
    cluster: FakeCluster, client: LedgerClient, ledger_id: LedgerId, grace_s: float
) -> Scene:
    store = cluster.stores[0]
    repairs = RepairCatalog(store, cluster.paths, clock=CLOCK)
    cookies = CookieCatalog(store, cluster.paths, clock=CLOCK, entropy=SystemEntropy())
    fleets = FleetReader(store, cookies, client.directory, repairs)
    repairer = LedgerRepairer(
        client,
        repairs,
        fleets,
        settings=RepairSettings(open_fragment_grace_s=grace_s),
        clock=CLOCK,
        entropy=SystemEntropy(),
    )
    return Scene(cluster, client, repairs, repairer, ledger_id)


@pytest_asyncio.fixture
async def scene(ledgers: FakeCluster) -> AsyncIterator[Scene]:
    yield await _scene(ledgers)


async def test_a_lost_slot_is_copied_and_then_named(scene: Scene) -> None:
    lost = await scene.lose(1)
    spare = await scene.spare()
    before = await scene.record()
    attempt = await scene.attempt()
    assert attempt.whole, attempt
    after = await scene.record()
    assert after.version == before.version + 1
    assert after.metadata.last_fragment[1][1] == Member(spare.bookie_id, spare.incarnation)
    assert lost not in after.metadata.last_fragment[1]
    assert scene.held(spare) == list(range(COUNT))
    assert await scene.repairs.read(scene.ledger_id) is None
    assert scene.repairer.stats.entries_copied == COUNT
    assert scene.repairer.stats.slots_replaced == 1


async def test_a_short_slot_is_filled_without_a_word_in_the_record(scene: Scene) -> None:
    short = await scene.bookie(2)
    for entry in (0, 4, 5, COUNT - 1):
        short.lose(scene.ledger_id, entry)
    await scene.mark()
    before = await scene.record()
    assert (await scene.attempt()).whole
    assert scene.held(short) == list(range(COUNT))
    assert await scene.record() == before
    assert scene.repairer.stats.entries_copied == 4


async def test_a_record_that_was_written_meanwhile_is_planned_anew(scene: Scene) -> None:
    """G-4: the copies were listed before somebody wrote the record: they prove nothing now."""
    await scene.lose(0)
    spare = await scene.spare()
    spare.hold[FrameType.LIST_ENTRIES] = told = asyncio.Event()
    attempt = asyncio.create_task(scene.attempt())
    await until(lambda: FrameType.LIST_ENTRIES in spare.received)
    before = await scene.record()
    await scene.client.catalog.cas(before, before.metadata)
    told.set()
    assert (await attempt).whole
    assert spare.received.count(FrameType.LIST_ENTRIES) >= 2, "it was asked again"
    assert (await scene.record()).version == before.version + 2
    assert scene.held(spare) == list(range(COUNT))


async def test_a_record_that_keeps_changing_is_left(scene: Scene) -> None:
    await scene.lose(0)
    spare = await scene.spare()
    spare.hold[FrameType.LIST_ENTRIES] = told = asyncio.Event()
    attempt = asyncio.create_task(scene.attempt())
    for number in range(1, 4):
        await until(lambda: spare.received.count(FrameType.LIST_ENTRIES) == number)  # noqa: B023
        found = await scene.record()
        await scene.client.catalog.cas(found, found.metadata)
        told.set()
        spare.hold[FrameType.LIST_ENTRIES] = told = asyncio.Event()
    ended = await attempt
    assert not ended.whole
    assert ended.outdated
    assert spare.bookie_id not in await scene.members()
    assert await scene.repairs.read(scene.ledger_id) is not None


@pytest.mark.parametrize("frame", [FrameType.LIST_ENTRIES, FrameType.ADD, FrameType.READ])
@pytest.mark.parametrize("status", [Status.OVERLOADED, Status.UNKNOWN, Status.READONLY])
async def test_a_target_that_refuses_is_never_named(
    scene: Scene, frame: FrameType, status: Status
) -> None:
    await scene.lose(1)
    spare = await scene.spare()
    before = await scene.record()
    spare.statuses[frame] = [status] * COUNT
    attempt = await scene.attempt()
    assert not attempt.whole
    assert await scene.record() == before
    assert await scene.repairs.read(scene.ledger_id) is not None
    spare.statuses.clear()
    assert (await scene.attempt()).whole
    assert scene.held(spare) == list(range(COUNT))


async def test_a_silent_target_is_given_up(scene: Scene) -> None:
    await scene.lose(1)
    spare = await scene.spare()
    spare.silent.add(FrameType.ADD)
    before = await scene.record()
    assert not (await scene.attempt()).whole
    assert await scene.record() == before


async def test_a7_what_no_source_has_keeps_its_mark_and_is_counted(scene: Scene) -> None:
    await scene.lose(1)
    for slot in (0, 2):
        (await scene.bookie(slot)).lose(scene.ledger_id, 3)
    before = await scene.record()
    attempt = await scene.attempt()
    assert (attempt.whole, attempt.unreadable) == (False, True)
    assert "3" in attempt.cause
    assert scene.repairer.stats.entries_unreadable >= 1
    assert await scene.record() == before
    assert await scene.repairs.read(scene.ledger_id) is not None


async def test_a9_a_lock_that_may_be_gone_changes_nothing(scene: Scene) -> None:
    await scene.lose(1)
    spare = await scene.spare()
    spare.hold[FrameType.LIST_ENTRIES] = told = asyncio.Event()
    lock = await scene.repairs.lock(scene.ledger_id, b"me")
    assert lock is not None
    attempt = asyncio.create_task(scene.repairer.repair(scene.ledger_id, lock))
    await until(lambda: FrameType.LIST_ENTRIES in spare.received)
    before = await scene.record()
    scene.cluster.meta.expire(scene.cluster.stores[0])
    told.set()
    assert not (await attempt).whole
    assert await scene.record() == before


async def test_the_mark_of_a_deleted_ledger_goes(scene: Scene) -> None:
    await scene.mark()
    await scene.client.catalog.delete(await scene.record())
    assert (await scene.attempt()).whole
    assert await scene.repairs.read(scene.ledger_id) is None
    assert (await scene.attempt()).whole, "and one without a mark needs nothing"


async def test_a6_a_writer_gets_its_time_and_is_then_evicted(ledgers: FakeCluster) -> None:
    scene = await _scene(ledgers, close=False, grace_s=2.0)
    lost = await scene.lose(1)
    attempt = await scene.attempt()
    assert not attempt.whole
    assert 0 < attempt.pause_s <= 2.0
    assert (await scene.record()).metadata.state is LedgerState.OPEN
    await asyncio.sleep(attempt.pause_s)  # the grace is wall-clock time
    assert (await scene.attempt()).whole
    record = (await scene.record()).metadata
    assert record.state is LedgerState.CLOSED
    assert record.last_entry == EntryId(COUNT - 1)
    assert lost not in record.last_fragment[1]
    assert scene.repairer.stats.recoveries_forced == 1


async def test_a6_nobody_is_evicted_for_copies_that_nobody_could_take(ledgers: FakeCluster) -> None:
    scene = await _scene(ledgers, close=False)
    spare = await scene.spare()
    await spare.unregister()
    await spare.stop()
    await until(lambda: len(scene.client.directory.live()) == 3)
    await scene.lose(1)
    attempt = await scene.attempt()
    assert not attempt.whole
    assert "no other bookie" in attempt.cause
    assert (await scene.record()).metadata.state is LedgerState.OPEN
    assert scene.repairer.stats.recoveries_forced == 0


# --- ledgers that were opened with too few bookies (ADR 47) ------------------------------------


async def _degraded(ledgers: FakeCluster) -> Scene:
    """Opened on two bookies of three, closed; the third, and a fourth one, are there now."""
    away = ledgers.bookies.pop()
    await away.unregister()
    await away.stop()
    client = await ledgers.client()
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    for number in range(COUNT):
        await writer.append(b"%d" % number)
    assert writer.metadata.degraded
    await writer.close()
    for _ in range(2):
        await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    scene = _scene_of(ledgers, client, writer.ledger_id, 0.0)
    await scene.mark()
    return scene


async def test_a_degraded_ledger_grows_to_the_copies_that_were_wanted(ledgers: FakeCluster) -> None:
    scene = await _degraded(ledgers)
    before = await scene.record()
    assert (tuple(before.metadata.quorum), before.metadata.wanted_copies) == ((2, 2, 2), 3)
    attempt = await scene.attempt()
    assert attempt.whole, attempt
    after = await scene.record()
    assert after.version == before.version + 1
    assert (tuple(after.metadata.quorum), after.metadata.degraded) == ((3, 3, 2), False)
    joined = scene.cluster.bookie(after.metadata.last_fragment[1][2].bookie_id)
    assert scene.held(joined) == list(range(COUNT))
    assert joined.bookie_id not in {m.bookie_id for m in before.metadata.last_fragment[1]}
    assert scene.repairer.stats.ledgers_grown == 1
    assert await scene.repairs.read(scene.ledger_id) is None
    reader = await scene.client.open_reader(scene.ledger_id)
    read = await reader.read(EntryId(0), max_count=COUNT, max_bytes=1 << 20)
    assert len(read) == COUNT


async def test_a10_copies_that_lie_side_by_side_move_apart_and_no_further(
    ledgers: FakeCluster,
) -> None:
    """A-10: machines come later. Each move leaves a ledger that is whole, and the last one none."""
    client = await ledgers.client()
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    for number in range(COUNT):
        await writer.append(b"%d" % number)
    scene = _scene_of(ledgers, client, writer.ledger_id, 0.0)
    before = await scene.members()
    for rack in ("r1", "r2", "r3"):
        await ledgers.add_bookie(domain=rack)
    await until(lambda: len(client.directory.live()) == 6)
    await scene.mark()
    assert (await scene.attempt()).whole
    assert await scene.members() == before, "its writer still uses them"
    await writer.close()
    await scene.mark()
    attempt = await scene.attempt()
    assert attempt.whole, attempt
    members = await scene.members()
    domains = [ledgers.bookie(name).domain for name in members]
    assert len(set(domains)) == 3, domains
    assert len(set(members) & set(before)) == 1, "what may stay stays"
    assert scene.repairer.stats.slots_moved_apart == 2
    for slot in range(3):
        assert scene.held(await scene.bookie(slot)) == list(range(COUNT))
    version = (await scene.record()).version
    await scene.mark()
    assert (await scene.attempt()).whole
    assert (await scene.record()).version == version, "there is no better place"


async def test_a10_an_auditor_marks_copies_that_could_lie_apart_and_calls_none_missing(
    ledgers: FakeCluster,
) -> None:
    """While a bookie is away nothing is moved: what it may lack comes first."""
    client = await ledgers.client()
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    await writer.append(b"x")
    await writer.close()
    scene = _scene_of(ledgers, client, writer.ledger_id, 0.0)
    store = ledgers.stores[0]
    cookies = CookieCatalog(store, ledgers.paths, clock=CLOCK, entropy=SystemEntropy())
    gone = Cookie("gone", await cookies.cluster_id(), uuid.uuid4())
    auditor = Auditor(
        client.catalog,
        scene.repairs,
        FleetReader(store, cookies, client.directory, scene.repairs),
        ReplicaCheck(BookieCalls(client.pool), timeout_s=5.0, clock=CLOCK),
        settings=RepairSettings(fleet_poll_s=0.02, audit_interval_s=0.05, audit_recheck_s=0.05),
        rule=client.config.domain_rule,
        name="auditor",
        nonce=b"auditor",
        clock=CLOCK,
    )

    async def looks() -> AuditReport:
        before = auditor.report
        await until(lambda: auditor.report is not None and auditor.report is not before)
        assert auditor.report is not None
        return auditor.report

    task = asyncio.create_task(auditor.run())
    try:
        await looks()
        assert await scene.repairs.read(scene.ledger_id) is None, "there is no better place"
        kept = await cookies.create_cookie(gone)
        await ledgers.add_bookie(domain="r1")
        await until(lambda: len(client.directory.live()) == 4)
        for _ in range(2):
            await looks()
        assert await scene.repairs.read(scene.ledger_id) is None, "a bookie is away"
        await cookies.delete_cookie(kept)
        async with asyncio.timeout(30):
            while await scene.repairs.read(scene.ledger_id) is None:
                report = await looks()
                assert (report.short, report.unchecked) == (0, 0)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("frame", [FrameType.LIST_ENTRIES, FrameType.ADD, FrameType.READ])
async def test_no_record_grows_by_a_bookie_that_did_not_prove_its_copies(
    ledgers: FakeCluster, frame: FrameType
) -> None:
    scene = await _degraded(ledgers)
    before = await scene.record()
    named = await scene.members()
    for bookie in scene.cluster.bookies:
        if bookie.bookie_id not in named:
            bookie.statuses[frame] = [Status.UNKNOWN] * COUNT
    attempt = await scene.attempt()
    assert not attempt.whole
    assert await scene.record() == before
    assert await scene.repairs.read(scene.ledger_id) is not None


async def test_a_record_that_was_written_while_it_should_grow_is_planned_anew(
    ledgers: FakeCluster,
) -> None:
    scene = await _degraded(ledgers)
    named = await scene.members()
    others = [b for b in scene.cluster.bookies if b.bookie_id not in named]
    gate = asyncio.Event()
    for bookie in others:
        bookie.hold[FrameType.LIST_ENTRIES] = gate
    attempt = asyncio.create_task(scene.attempt())
    await until(lambda: any(FrameType.LIST_ENTRIES in b.received for b in others))
    before = await scene.record()
    await scene.client.catalog.cas(before, before.metadata)
    gate.set()
    assert (await attempt).whole
    after = await scene.record()
    assert after.version == before.version + 2
    assert tuple(after.metadata.quorum) == (3, 3, 2)


async def test_without_a_bookie_to_spare_a_degraded_ledger_stays_and_nobody_tries(
    ledgers: FakeCluster,
) -> None:
    scene = await _degraded(ledgers)
    for bookie in scene.cluster.bookies[2:]:
        await bookie.unregister()
    await until(lambda: len(scene.client.directory.live()) == 2)
    before = await scene.record()
    assert (await scene.attempt()).whole, "nothing that could be done is left"
    assert await scene.record() == before
