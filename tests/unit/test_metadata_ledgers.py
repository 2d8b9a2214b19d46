"""The ledger catalog against the in-memory store and its faults (spec/ledger.md §2.2-2.4)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.metadata.keys import GET_MANY_MAX
from octavo.metadata.ledger_ids import ROTATE_AT
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.memory import MemoryCluster
from octavo.runtime.errors import (
    Fenced,
    IllegalStateError,
    InvalidRequest,
    InvariantViolation,
    KeyMissing,
    MetadataCorrupt,
    MetadataUnavailable,
    NoSuchLedger,
    UnknownOutcome,
    VersionConflict,
)
from octavo.runtime.ids import EntryId, LedgerId
from tests.unit.metadata_stores import PATHS, QUORUM, ledger_catalog, members, new_ledger

# --- ids (§2.3) --------------------------------------------------------------------------------


async def test_id1_ids_are_unique_and_increase_across_allocators() -> None:
    cluster = MemoryCluster()
    catalogs = [ledger_catalog(cluster.connect()) for _ in range(3)]
    drawn = [await catalog.allocate_id() for _ in range(5) for catalog in catalogs]
    assert drawn == sorted(set(drawn))
    crowd = await asyncio.gather(*(c.allocate_id() for c in catalogs * 20))
    assert len(set(crowd)) == 60
    assert min(crowd) > max(drawn)


async def test_id2_rotation_near_2_31_keeps_ids_increasing_for_stale_allocators_too() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    first, second = ledger_catalog(store), ledger_catalog(cluster.connect())
    drawn = [await first.allocate_id(), await second.allocate_id()]
    cluster.force_version(PATHS.idgen_epoch(0), ROTATE_AT - 3)
    for _ in range(4):
        drawn += [await first.allocate_id(), await second.allocate_id()]
    assert drawn == sorted(set(drawn))
    assert drawn[-1] >> 31 == 1
    assert drawn[-1] & 0x7FFFFFFF < 10
    assert cluster.snapshot()[PATHS.idgen].value == b"1"
    fresh = await ledger_catalog(cluster.connect()).allocate_id()
    assert fresh > drawn[-1]


async def test_id2_two_allocators_rotate_at_once() -> None:
    cluster = MemoryCluster()
    catalogs = [ledger_catalog(cluster.connect()) for _ in range(4)]
    before = [await catalog.allocate_id() for catalog in catalogs]
    cluster.force_version(PATHS.idgen_epoch(0), ROTATE_AT)
    drawn = await asyncio.gather(*(catalog.allocate_id() for catalog in catalogs))
    assert len(set(drawn)) == 4
    assert min(drawn) > max(before)
    assert cluster.snapshot()[PATHS.idgen].value == b"1"


async def test_id2_wrapped_counter_stops_the_allocator() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    await catalog.allocate_id()
    cluster.force_version(PATHS.idgen_epoch(0), (1 << 31) - 1)
    with pytest.raises(InvariantViolation):
        await catalog.allocate_id()


async def test_id3_lost_reply_burns_an_id() -> None:
    store = MemoryCluster().connect()
    catalog = ledger_catalog(store)
    first = await catalog.allocate_id()
    store.faults.lose_reply("fetch_add")
    assert await catalog.allocate_id() == first + 2


async def test_id_allocation_reports_an_absent_store() -> None:
    store = MemoryCluster().connect()
    catalog = ledger_catalog(store)
    await catalog.allocate_id()
    store.suspend()
    with pytest.raises(MetadataUnavailable):
        await catalog.allocate_id()


async def test_damaged_epoch_pointer_is_not_replaced() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    await store.create(PATHS.idgen, b"seven")
    with pytest.raises(MetadataCorrupt):
        await ledger_catalog(store).allocate_id()


# --- create ------------------------------------------------------------------------------------


async def test_created_ledger_is_open_on_its_ensemble() -> None:
    cluster = MemoryCluster()
    created = await ledger_catalog(cluster.connect()).create(
        QUORUM, members(), custom={"kind": "topic"}, degraded=True
    )
    read = await ledger_catalog(cluster.connect()).read(created.metadata.ledger_id)
    assert read == created
    assert read.metadata.state is LedgerState.OPEN
    assert read.metadata.fragments == ((0, members()),)
    assert read.metadata.custom == {"kind": "topic"}
    assert read.metadata.degraded


@pytest.mark.parametrize("executed", [True, False])
async def test_m3_creation_with_lost_reply_makes_exactly_one_ledger(executed: bool) -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    catalog = ledger_catalog(store)
    if executed:
        store.faults.lose_reply("create")
    await catalog.allocate_id()  # makes the counter, consumes the fault on it
    store.faults.lost.clear()
    (store.faults.lose_reply if executed else store.faults.lose_request)("create")
    created = await new_ledger(catalog)
    assert [ledger_id async for ledger_id in catalog.walk()] == [created.metadata.ledger_id]
    assert await catalog.read(created.metadata.ledger_id) == created


async def test_ml3_created_id_exceeds_the_given_one() -> None:
    catalog = ledger_catalog(MemoryCluster().connect())
    drafted = await catalog.draft(QUORUM, members(), above=7)
    assert drafted.ledger_id == 8


async def test_illegal_ensemble_is_never_stored() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    with pytest.raises(MetadataCorrupt):
        await catalog.create(QUORUM, members(1, 2))
    with pytest.raises(InvalidRequest):
        await catalog.create(QUORUM._replace(ack=4), members())
    assert [ledger_id async for ledger_id in catalog.walk()] == []


# --- read --------------------------------------------------------------------------------------


async def test_m4_absence_seen_by_a_lagging_follower_proves_nothing() -> None:
    cluster = MemoryCluster()
    lagging = cluster.connect()
    lagging.lag()
    created = await new_ledger(ledger_catalog(cluster.connect()))
    assert await lagging.get(PATHS.ledger(created.metadata.ledger_id)) is None
    assert await ledger_catalog(lagging).read(created.metadata.ledger_id) == created


async def test_r1_barrier_read_sees_the_newest_record() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    created = await new_ledger(catalog)
    lagging = cluster.connect()
    lagging.lag()
    recovering = await catalog.cas(created, created.metadata.in_recovery())
    follower = ledger_catalog(lagging)
    assert await follower.read(created.metadata.ledger_id) == created
    assert await follower.read(created.metadata.ledger_id, barrier=True) == recovering


async def test_absent_ledger_is_no_such_ledger() -> None:
    with pytest.raises(NoSuchLedger):
        await ledger_catalog(MemoryCluster().connect()).read(LedgerId(3))


async def test_absence_is_not_concluded_while_the_store_is_away() -> None:
    store = MemoryCluster().connect()
    store.suspend()
    with pytest.raises(MetadataUnavailable):
        await ledger_catalog(store).read(LedgerId(3))


# --- compare and set ---------------------------------------------------------------------------


async def test_m1_second_compare_and_set_on_one_version_is_refused() -> None:
    catalog = ledger_catalog(MemoryCluster().connect())
    created = await new_ledger(catalog)
    await catalog.cas(created, created.metadata.in_recovery())
    with pytest.raises(VersionConflict):
        await catalog.cas(created, created.metadata.closed(EntryId(1), 1))


@pytest.mark.parametrize("executed", [True, False])
async def test_m3_compare_and_set_with_lost_reply_is_settled_by_reading_back(
    executed: bool,
) -> None:
    store = MemoryCluster().connect()
    catalog = ledger_catalog(store)
    created = await new_ledger(catalog)
    (store.faults.lose_reply if executed else store.faults.lose_request)("put")
    updated = await catalog.cas(created, created.metadata.in_recovery())
    assert updated.version == created.version + 1
    assert await catalog.read(created.metadata.ledger_id) == updated


async def test_m3_lost_request_overtaken_by_another_writer_is_a_conflict() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    catalog, rival = ledger_catalog(store), ledger_catalog(cluster.connect())
    created = await new_ledger(catalog)
    store.faults.lose_request("put")
    store.faults.lose_request("barrier")  # gives the rival time before the first re-read
    task = asyncio.ensure_future(catalog.cas(created, created.metadata.in_recovery()))
    await rival.cas(created, created.metadata.closed(EntryId(1), 1))
    with pytest.raises(VersionConflict):
        await task


async def test_m3_unsettled_compare_and_set_is_unknown_never_refused() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    catalog = ledger_catalog(store)
    created = await new_ledger(catalog)
    store.faults.lose_reply("put")
    for _ in range(8):
        store.faults.lose_request("barrier")
    with pytest.raises(UnknownOutcome):
        await catalog.cas(created, created.metadata.in_recovery())


async def test_update_checks_its_precondition_again_after_a_conflict() -> None:
    cluster = MemoryCluster()
    mine, rival = ledger_catalog(cluster.connect()), ledger_catalog(cluster.connect())
    created = await new_ledger(mine)
    await rival.cas(created, created.metadata.in_recovery())
    seen: list[LedgerState] = []

    def change(found: LedgerMetadata) -> LedgerMetadata:
        seen.append(found.state)
        return found.in_recovery()

    with pytest.raises(IllegalStateError):
        await mine.update(created.metadata.ledger_id, change, known=created)
    assert seen == [LedgerState.OPEN, LedgerState.IN_RECOVERY]


async def test_update_to_an_equal_record_writes_nothing() -> None:
    catalog = ledger_catalog(MemoryCluster().connect())
    created = await new_ledger(catalog)
    assert await catalog.update(created.metadata.ledger_id, lambda found: found) == created


async def test_compare_and_set_of_a_deleted_ledger_is_no_such_ledger() -> None:
    catalog = ledger_catalog(MemoryCluster().connect())
    created = await new_ledger(catalog)
    await catalog.delete(created)
    with pytest.raises(NoSuchLedger):
        await catalog.cas(created, created.metadata.in_recovery())


# --- the writer's close (M-2) ------------------------------------------------------------------


async def test_m2_close_meeting_the_same_end_is_success() -> None:
    cluster = MemoryCluster()
    writer, rival = ledger_catalog(cluster.connect()), ledger_catalog(cluster.connect())
    created = await new_ledger(writer)
    closed = await rival.cas(created, created.metadata.closed(EntryId(4), 40))
    assert await writer.close_as_writer(created, EntryId(4), 40) == closed


@pytest.mark.parametrize("end", [(3, 40), (4, 41)])
async def test_m2_close_meeting_another_end_is_fenced(end: tuple[int, int]) -> None:
    cluster = MemoryCluster()
    writer, rival = ledger_catalog(cluster.connect()), ledger_catalog(cluster.connect())
    created = await new_ledger(writer)
    await rival.cas(created, created.metadata.closed(EntryId(end[0]), end[1]))
    with pytest.raises(Fenced):
        await writer.close_as_writer(created, EntryId(4), 40)


async def test_m2_close_meeting_recovery_is_fenced() -> None:
    cluster = MemoryCluster()
    writer, rival = ledger_catalog(cluster.connect()), ledger_catalog(cluster.connect())
    created = await new_ledger(writer)
    await rival.cas(created, created.metadata.in_recovery())
    with pytest.raises(Fenced):
        await writer.close_as_writer(created, EntryId(4), 40)


async def test_close_after_a_replicator_changed_an_older_fragment_succeeds() -> None:
    cluster = MemoryCluster()
    writer, replicator = ledger_catalog(cluster.connect()), ledger_catalog(cluster.connect())
    created = await new_ledger(writer)
    changed = await writer.cas(
        created, created.metadata.with_ensemble_change(EntryId(3), members(1, 2, 4))
    )
    old, new = members(3)[0], members(9)[0]
    await replicator.cas(changed, changed.metadata.with_member_replaced(EntryId(0), old, new))
    closed = await writer.close_as_writer(changed, EntryId(5), 50)
    assert closed.metadata.is_closed_at(5, 50)
    assert closed.metadata.members_for(0)[2] == new


async def test_m3_close_with_lost_reply_is_success() -> None:
    store = MemoryCluster().connect()
    catalog = ledger_catalog(store)
    created = await new_ledger(catalog)
    store.faults.lose_reply("put")
    closed = await catalog.close_as_writer(created, EntryId(4), 40)
    assert closed.metadata.is_closed_at(4, 40)


# --- delete and walk ---------------------------------------------------------------------------


async def test_delete_is_conditional_and_idempotent() -> None:
    catalog = ledger_catalog(MemoryCluster().connect())
    created = await new_ledger(catalog)
    newer = await catalog.cas(created, created.metadata.in_recovery())
    with pytest.raises(VersionConflict):
        await catalog.delete(created)
    await catalog.delete(newer)
    await catalog.delete(newer)
    with pytest.raises(NoSuchLedger):
        await catalog.read(created.metadata.ledger_id)


@pytest.mark.parametrize("executed", [True, False])
async def test_m3_delete_with_lost_reply_deletes(executed: bool) -> None:
    store = MemoryCluster().connect()
    catalog = ledger_catalog(store)
    created = await new_ledger(catalog)
    (store.faults.lose_reply if executed else store.faults.lose_request)("delete")
    await catalog.delete(created)
    with pytest.raises(NoSuchLedger):
        await catalog.read(created.metadata.ledger_id)


async def test_l3_deleting_prunes_empty_directories_and_creation_makes_them_again() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    first, second = await new_ledger(catalog), await new_ledger(catalog)
    await catalog.delete(first)
    await catalog.delete(second)
    assert not [key for key in cluster.snapshot() if key.startswith(PATHS.ledgers + "/")]
    third = await new_ledger(catalog)
    assert [ledger_id async for ledger_id in catalog.walk()] == [third.metadata.ledger_id]


async def test_l2_walk_is_in_id_order_across_directories() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    wanted = [0, 1, 9_999, 10_000, 123_456_789, (1 << 31) + 1, (5 << 31) | 7, (1 << 63) - 1]
    for ledger_id in reversed(wanted):
        await store.create(PATHS.ledger(LedgerId(ledger_id)), b"")
    walked = [ledger_id async for ledger_id in ledger_catalog(store).walk()]
    assert walked == wanted


async def test_l2_error_on_the_way_aborts_the_walk() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    for ledger_id in (1, 20_000):
        await store.create(PATHS.ledger(LedgerId(ledger_id)), b"")
    walk = ledger_catalog(store).walk()
    assert await anext(walk) == 1
    store.suspend()
    with pytest.raises(MetadataUnavailable):
        await anext(walk)


async def test_m7_unreadable_record_is_counted_and_skipped_but_exists() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    ledgers = [await new_ledger(catalog) for _ in range(3)]
    broken = ledgers[1].metadata.ledger_id
    cluster.corrupt(PATHS.ledger(broken), b"\xffnot a record")
    readable = [found.metadata.ledger_id async for found in catalog.walk_records()]
    assert readable == [ledgers[0].metadata.ledger_id, ledgers[2].metadata.ledger_id]
    assert catalog.corrupt_records == 1
    assert broken in [ledger_id async for ledger_id in catalog.walk()]
    with pytest.raises(MetadataCorrupt):
        await catalog.read(broken)


async def test_m7_many_records_are_read_as_each_alone() -> None:
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    made = [await new_ledger(catalog) for _ in range(GET_MANY_MAX + 3)]
    ids = [one.metadata.ledger_id for one in made]
    assert await catalog.read_many(ids) == made
    await catalog.delete(made[1])
    cluster.corrupt(PATHS.ledger(ids[2]), b"\xffnot a record")
    found = await catalog.read_many(ids)
    assert isinstance(found[1], NoSuchLedger)
    assert isinstance(found[2], MetadataCorrupt)
    assert catalog.corrupt_records == 1
    assert [found[0], *found[3:]] == [made[0], *made[3:]]
    parts = [some async for some in catalog.walk_found(5)]
    assert max(map(len, parts)) == 5
    walked = {ledger_id: read for some in parts for ledger_id, read in some}
    assert list(walked) == [ids[0], *ids[2:]]
    assert walked[ids[-1]] == made[-1]
    assert isinstance(walked[ids[2]], MetadataCorrupt)


async def test_m4_of_many_records_what_is_absent_or_old_is_read_behind_a_barrier() -> None:
    cluster = MemoryCluster()
    writer, store = ledger_catalog(cluster.connect()), cluster.connect()
    catalog = ledger_catalog(store)
    first = await new_ledger(writer)
    before = cluster.tree.copy()
    changed = await writer.cas(first, first.metadata.in_recovery())
    late = await new_ledger(writer)
    ids = [first.metadata.ledger_id, late.metadata.ledger_id]
    store._stale = before  # pyright: ignore[reportPrivateUsage]
    assert await catalog.read_many(ids) == [first, late]
    assert await catalog.read_many(ids) == [changed, late], "the barrier caught up"
    store._stale = before  # pyright: ignore[reportPrivateUsage]
    assert await catalog.read_many(ids[:1]) == [changed], "what was seen does not go back"


async def test_deleted_key_is_reported_as_missing_when_nobody_settles_it() -> None:
    store = MemoryCluster().connect()
    with pytest.raises(KeyMissing):
        await store.delete(PATHS.ledger(LedgerId(5)), expected=0)
