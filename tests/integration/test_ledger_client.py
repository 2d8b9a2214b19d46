"""The ledger client over real sockets: fake bookies for every fault, memory metadata."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from octavo.client.ledger import LedgerReader, LedgerState, LedgerWriter, Quorum
from octavo.metadata.store import SessionState, Versioned
from octavo.proto.bookie_wire import FrameType, Status
from octavo.proto.entry import payload_of
from octavo.runtime.errors import (
    Fenced,
    LedgerClosed,
    MessageTooLarge,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughReplicas,
    OctavoError,
    ReadUnknown,
    UnknownOutcome,
)
from octavo.runtime.ids import EntryId
from tests.fix_ledger import FAST, PATIENT, FakeCluster, until

Q332 = Quorum(3, 3, 2)


async def write(writer: LedgerWriter, *payloads: bytes) -> None:
    await asyncio.gather(*(writer.append(payload) for payload in payloads))


async def payloads(reader: LedgerReader, first: int = 0, count: int = 100) -> list[bytes]:
    entries = await reader.read(EntryId(first), max_count=count, max_bytes=1 << 20)
    return [payload_of(entry) for entry in entries]


async def test_write_close_read_back(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {"kind": "test"})
    await write(writer, b"a", b"", b"c" * 70_000)
    closed = await writer.close()
    assert (closed.state, closed.last_entry, closed.length) == (LedgerState.CLOSED, 2, 70_001)
    reader = await client.open_reader(writer.ledger_id)
    assert await payloads(reader) == [b"a", b"", b"c" * 70_000]
    assert await payloads(reader, 1, 1) == [b""]
    with pytest.raises(NoSuchEntry):
        await payloads(reader, 3)
    await reader.close()
    for bookie in ledgers.bookies:
        assert set(bookie.ledger(writer.ledger_id).entries) == {0, 1, 2}


async def test_striped_ledger_e_above_qw(ledgers: FakeCluster) -> None:
    await ledgers.add_bookie()
    client = await ledgers.client()
    writer = await client.create_ledger(Quorum(4, 2, 2), {})
    expected = [b"%d" % i for i in range(25)]
    await write(writer, *expected)
    await writer.close()
    reader = await client.open_reader(writer.ledger_id)
    assert await payloads(reader) == expected
    copies = sum(len(b.ledger(writer.ledger_id).entries) for b in ledgers.bookies)
    assert copies == 50
    await reader.close()


async def test_callbacks_come_in_entry_order_and_first_copy_before_done(
    ledgers: FakeCluster,
) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    events: list[tuple[str, int]] = []
    for _ in range(20):
        writer.add(
            b"x",
            lambda entry, error: events.append(("done" if error is None else "error", entry)),
            lambda entry: events.append(("first", entry)),
        )
    await until(lambda: len(events) == 40)
    assert [e for kind, e in events if kind == "done"] == list(range(20))
    assert [e for kind, e in events if kind == "first"] == list(range(20))
    for entry in range(20):
        assert events.index(("first", entry)) < events.index(("done", entry))


async def test_one_bookie_away_ledger_goes_on_degraded_then_revives_it(
    ledgers: FakeCluster,
) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    lost = ledgers.bookies[0]
    await lost.stop()
    await write(writer, b"1", b"2")
    assert writer.stopped is None
    assert writer.degraded
    await lost.start()
    await until(lambda: not writer.degraded)
    await write(writer, b"3")
    await until(lambda: 3 in lost.ledger(writer.ledger_id).entries)  # perhaps the third to have it
    await writer.close()
    assert len(writer.metadata.fragments) == 1


async def test_failed_bookie_is_replaced_by_a_spare(ledgers: FakeCluster) -> None:
    """C-1..C-6: the pending entries reach the new member before they are confirmed."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    spare = await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    victim = ledgers.bookie(writer.metadata.last_fragment[1][1].bookie_id)
    await victim.stop()
    await write(writer, b"1", b"2")
    await until(lambda: len(writer.metadata.fragments) == 2)
    assert client.counters.ensemble_changes == 1
    start, members = writer.metadata.last_fragment
    assert 1 <= start <= 3  # at the LAC of that moment, plus one
    assert spare.bookie_id in {m.bookie_id for m in members}
    await write(writer, b"3")
    await writer.close()
    await until(lambda: set(spare.ledger(writer.ledger_id).entries) >= set(range(start, 4)))
    reader = await client.open_reader(writer.ledger_id)
    stored = [b"0", b"1", b"2", b"3"]
    assert await payloads(reader) == stored[:start]  # a read stays inside a fragment
    assert await payloads(reader, start) == stored[start:]
    await reader.close()


async def test_two_bookies_away_stops_the_handle_and_reports_unknown(
    ledgers: FakeCluster,
) -> None:
    """3.7, W-6: pending adds are UNKNOWN, never failed; the close decides."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    reasons: list[OctavoError] = []
    writer.on_stopped(reasons.append)
    for bookie in ledgers.bookies[:2]:
        await bookie.stop()
    with pytest.raises(UnknownOutcome) as info:
        await writer.append(b"1")
    assert info.value.details["entry_id"] == 1
    assert isinstance(reasons[0], NotEnoughReplicas)
    with pytest.raises(LedgerClosed):
        await writer.append(b"2")
    closed = await writer.close()  # W-9: legal, at the LAC
    assert (closed.last_entry, closed.length) == (0, 1)


async def test_silent_bookie_times_out_and_does_not_hold_the_others(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    ledgers.bookies[0].silent.add(FrameType.ADD)
    await write(writer, b"0")
    assert writer.in_flight_bytes > 0  # W-4: still accounted
    await until(lambda: writer.degraded)
    assert writer.in_flight_bytes == 0
    await write(writer, b"1")
    await writer.close()


async def test_overloaded_bookie_gets_the_entries_again(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    slow = ledgers.bookies[0]
    slow.statuses[FrameType.ADD] = [Status.OVERLOADED, Status.NOT_ADMITTED_RETRY]
    await write(writer, b"0")
    await until(lambda: 0 in slow.ledger(writer.ledger_id).entries)
    await until(lambda: writer.in_flight_bytes == 0)
    assert not writer.degraded


async def test_bad_digest_is_sent_again_on_a_new_connection(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    odd = ledgers.bookies[0]
    odd.statuses[FrameType.ADD] = [Status.BAD_DIGEST]
    await write(writer, b"0")
    await until(lambda: 0 in odd.ledger(writer.ledger_id).entries)
    assert odd.received.count(FrameType.HELLO) == 2
    odd.statuses[FrameType.ADD] = [Status.BAD_DIGEST]
    writer.add(b"1", lambda entry, error: None)
    await until(lambda: writer.stopped is not None)  # twice: stop
    assert isinstance(writer.stopped, LedgerClosed)


async def test_read_only_bookie_is_replaced_without_quarantine(ledgers: FakeCluster) -> None:
    client = await ledgers.client(PATIENT)
    writer = await client.create_ledger(Q332, {})
    await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    full = ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id)
    full.statuses[FrameType.ADD] = [Status.READONLY]
    await write(writer, b"0")
    await until(
        lambda: full.bookie_id not in {m.bookie_id for m in writer.metadata.last_fragment[1]}
    )
    assert client.pool.quarantined() == set()


async def test_wiped_bookie_is_replaced_by_its_new_incarnation(ledgers: FakeCluster) -> None:
    """B-26, WRONG_INCARNATION: the same machine may come back as a new member."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    bookie = ledgers.bookies[0]
    await bookie.unregister()
    bookie.wipe()
    await bookie.register(ledgers.store, ledgers.paths)
    await until(lambda: client.directory.find(bookie.bookie_id) is not None)
    bookie.cut()
    await write(writer, b"1")
    await until(lambda: len(writer.metadata.fragments) == 2)
    member = next(m for m in writer.metadata.last_fragment[1] if m.bookie_id == bookie.bookie_id)
    assert member.incarnation == bookie.incarnation


async def test_recovery_evicts_the_writer_and_closes(ledgers: FakeCluster) -> None:
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0", b"1", b"22")
    closed = await second.recover_ledger(writer.ledger_id)
    assert (closed.last_entry, closed.length) == (2, 4)
    assert second.counters.recoveries["closed"] == 1
    assert sum(second.counters.recovery_seconds.counts) == 1
    with pytest.raises(UnknownOutcome) as info:
        await writer.append(b"zombie")
    assert info.value.details["reason"] == "FENCED"
    with pytest.raises(Fenced):
        await writer.append(b"again")
    with pytest.raises(Fenced):
        await writer.close()
    assert await second.recover_ledger(writer.ledger_id) == closed


async def test_recovery_of_an_empty_ledger(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    closed = await client.recover_ledger(writer.ledger_id)
    assert (closed.last_entry, closed.length) == (-1, 0)
    with pytest.raises(UnknownOutcome):
        await writer.append(b"x")
    with pytest.raises(Fenced):
        await writer.append(b"y")


async def test_close_meeting_the_same_end_is_success(ledgers: FakeCluster) -> None:
    """M-2."""
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0")
    await second.recover_ledger(writer.ledger_id)
    assert (await writer.close()).last_entry == 0


async def test_close_meeting_another_end_is_fenced(ledgers: FakeCluster) -> None:
    """M-2: recovery may keep an entry the writer never confirmed."""
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0")
    for bookie in ledgers.bookies:
        bookie.mute.add(FrameType.ADD)
    unknown = asyncio.ensure_future(writer.append(b"1"))
    await until(lambda: all(1 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    for bookie in ledgers.bookies:
        bookie.mute.clear()
    assert (await second.recover_ledger(writer.ledger_id)).last_entry == 1
    with pytest.raises(UnknownOutcome):
        await unknown
    with pytest.raises(Fenced):
        await writer.close()


async def test_recovery_keeps_an_entry_with_one_copy_and_writes_it_back(
    ledgers: FakeCluster,
) -> None:
    """R-5, R-14: one valid copy is positive; INV-6: it has Qa copies before the close."""
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0")
    for bookie in ledgers.bookies[1:]:
        bookie.silent.add(FrameType.ADD)
    writer.add(b"1", lambda entry, error: None)
    await until(lambda: 1 in ledgers.bookies[0].ledger(writer.ledger_id).entries)
    for bookie in ledgers.bookies:
        bookie.silent.clear()
    ledgers.bookies[2].silent.add(FrameType.READ)  # or two negatives might come first, legally
    closed = await second.recover_ledger(writer.ledger_id)
    assert closed.last_entry == 1
    holders = [b for b in ledgers.bookies if 1 in b.ledger(writer.ledger_id).entries]
    assert len(holders) >= 2


async def test_recovery_with_one_bookie_away_and_not_with_two(ledgers: FakeCluster) -> None:
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0", b"1")
    await ledgers.bookies[0].stop()
    await ledgers.bookies[1].stop()
    with pytest.raises(ReadUnknown):
        await second.recover_ledger(writer.ledger_id, timeout_s=0.3)
    state = (await second.catalog.read(writer.ledger_id)).metadata.state
    assert state is LedgerState.IN_RECOVERY  # nothing was guessed
    assert second.counters.recoveries == {"closed": 0, "undecided": 1, "conflict": 0, "gone": 0}
    assert second.counters.recovery_seconds.total == 0  # only of those that ended well
    await ledgers.bookies[1].start()
    assert (await second.recover_ledger(writer.ledger_id)).last_entry == 1


async def test_damage_is_never_a_negative(ledgers: FakeCluster) -> None:
    """R-15: EIO and UNKNOWN leave the ledger IN_RECOVERY."""
    first, second = await ledgers.client(), await ledgers.client()
    writer = await first.create_ledger(Q332, {})
    await write(writer, b"0")
    for bookie in ledgers.bookies[:2]:
        bookie.statuses[FrameType.READ] = [Status.EIO] * 1000
    with pytest.raises(ReadUnknown):
        await second.recover_ledger(writer.ledger_id, timeout_s=0.3)
    for bookie in ledgers.bookies[:2]:
        bookie.statuses.clear()
    assert (await second.recover_ledger(writer.ledger_id)).last_entry == 0


async def test_two_recoverers_agree(ledgers: FakeCluster) -> None:
    first, second, third = [await ledgers.client() for _ in range(3)]
    writer = await first.create_ledger(Q332, {})
    await write(writer, *(b"%d" % i for i in range(30)))
    results = await asyncio.gather(
        second.recover_ledger(writer.ledger_id), third.recover_ledger(writer.ledger_id)
    )
    assert results[0] == results[1]
    assert results[0].last_entry == 29


async def test_degraded_creation_and_refusal(ledgers: FakeCluster) -> None:
    """Ruling of design.md §4 on 3.7."""
    client = await ledgers.client()
    await ledgers.bookies[2].unregister()
    await until(lambda: len(client.directory.live()) == 2)
    writer = await client.create_ledger(Q332, {})
    assert writer.metadata.degraded
    assert client.counters.degraded_ledgers == 1
    assert writer.metadata.quorum == Quorum(2, 2, 2)
    await write(writer, b"0")
    assert not writer.wants_roll
    with pytest.raises(NotEnoughReplicas):
        await client.create_ledger(Q332, {}, allow_degraded=False)
    await ledgers.bookies[2].register(ledgers.store, ledgers.paths)
    await until(lambda: writer.wants_roll)
    for bookie in ledgers.bookies[1:]:
        await bookie.unregister()
    await until(lambda: len(client.directory.live()) == 1)
    with pytest.raises(NotEnoughReplicas):
        await client.create_ledger(Q332, {})


async def test_ensemble_shrinks_to_qw(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Quorum(5, 3, 2), {})
    assert writer.metadata.quorum == Q332
    assert not writer.metadata.degraded


async def test_metadata_outage_does_not_stop_an_open_ledger(ledgers: FakeCluster) -> None:
    """design.md §4: ZooKeeper is off the data path, even when a bookie fails meanwhile."""
    client = await ledgers.client()
    await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    ledgers.stores[0].suspend()
    victim = ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id)
    await victim.stop()
    await write(writer, b"1", b"2")
    assert writer.stopped is None
    assert writer.degraded
    ledgers.stores[0].resume()
    await until(lambda: not writer.degraded)
    assert len(writer.metadata.fragments) == 2


@pytest.mark.parametrize("loss", ["reply", "request"])
async def test_lost_answers_of_the_store_are_settled(ledgers: FakeCluster, loss: str) -> None:
    """M-3: for the ensemble change (C-4) and for the closing CAS."""
    client = await ledgers.client()
    await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    faults = ledgers.stores[0].faults
    lose = faults.lose_reply if loss == "reply" else faults.lose_request
    lose("put")
    await ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id).stop()
    await write(writer, b"1")
    await until(lambda: not writer.degraded)
    await write(writer, b"2")
    lose("put")
    closed = await writer.close()
    assert closed.last_entry == 2
    assert (await client.catalog.read(writer.ledger_id)).metadata == closed


async def test_c4_change_of_unknown_outcome_confirms_nothing(ledgers: FakeCluster) -> None:
    """INV-2, INV-10: the compare-and-set is executed, its reply lost, a recoverer raises the
    version, and then the store is away. Entry 2 reached one member of the old ensemble and is in
    no majority: were it reported now, recovery would close below it."""
    client = await ledgers.client(PATIENT)
    rival = await ledgers.client()
    store = ledgers.stores[0]
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    await writer.append(b"0")
    a, b, c = (ledgers.bookie(m.bookie_id) for m in writer.metadata.last_fragment[1])
    await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    a.mute.add(FrameType.ADD)  # stores the entry; its acknowledgement comes late
    b.silent.add(FrameType.ADD)
    told: list[tuple[int, OctavoError | None]] = []
    writer.add(b"1", lambda entry, error: told.append((entry, error)))
    await until(lambda: 1 in a.ledger(writer.ledger_id).entries)
    store.faults.lose_reply("put")
    plain_barrier, plain_get = store.barrier, store.get
    raised = asyncio.Event()

    async def barrier() -> None:
        if not raised.is_set():
            raised.set()
            base = await rival.catalog.read(writer.ledger_id, barrier=True)
            await rival.catalog.cas(base, base.metadata.in_recovery())
        await plain_barrier()

    async def get(key: str) -> Versioned | None:
        found = await plain_get(key)
        if raised.is_set():
            store.suspend()  # right after the read that was to settle it
        return found

    store.barrier, store.get = barrier, get  # type: ignore[method-assign]
    await c.stop()
    writer.add(b"2", lambda entry, error: told.append((entry, error)))
    await until(lambda: store.session_state is SessionState.SUSPENDED)
    writer.lane_acked(writer._lanes[0], 1, 1)  # pyright: ignore[reportPrivateUsage]
    assert told == []  # unknown is unknown, however long the store stays away
    store.barrier, store.get = plain_barrier, plain_get  # type: ignore[method-assign]
    store.resume()
    await until(lambda: writer.stopped is not None)  # now it is known: IN_RECOVERY
    assert isinstance(writer.stopped, Fenced)
    assert [entry for entry, _ in told] == [1, 2]
    assert all(isinstance(error, UnknownOutcome) for _, error in told)


async def test_explicit_lac_reaches_readers_of_an_idle_ledger(ledgers: FakeCluster) -> None:
    """RD-6, RD-7."""
    client, other = await ledgers.client(), await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    reader = await other.open_reader(writer.ledger_id)
    assert await reader.last_add_confirmed() == -1
    waiting = asyncio.ensure_future(reader.wait_beyond(EntryId(-1), 5.0))
    await write(writer, b"0")
    assert await waiting == 0
    assert await payloads(reader) == [b"0"]
    assert await reader.wait_beyond(EntryId(0), 0.1) == 0
    await writer.close()
    assert await reader.wait_beyond(EntryId(0), 5.0) == 0  # CLOSED: returns at once
    await reader.close()


async def test_a_writers_own_reader_knows_its_lac_at_once(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    reader = await client.open_reader(writer.ledger_id)
    await write(writer, b"0", b"1")
    assert await payloads(reader) == [b"0", b"1"]
    await reader.close()


async def test_asking_the_lac_does_not_wait_for_a_hung_bookie(ledgers: FakeCluster) -> None:
    """RD-8: coverage is enough."""
    client = await ledgers.client()
    other = await ledgers.client(replace(FAST, request_timeout_s=60.0))
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"0")
    await write(writer, b"1")  # carries LAC 0
    ledgers.bookies[0].silent.add(FrameType.READ_LAC)
    reader = await other.open_reader(writer.ledger_id)
    async with asyncio.timeout(30):
        assert await reader.last_add_confirmed() >= 0
    await reader.close()


async def test_reader_skips_damaged_and_dead_replicas(ledgers: FakeCluster) -> None:
    """RD-2, E-2: the first valid copy wins."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"good")
    await writer.close()
    await until(lambda: all(0 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    members = writer.metadata.last_fragment[1]
    damaged = ledgers.bookie(members[0].bookie_id).ledger(writer.ledger_id)
    damaged.entries[0] = damaged.entries[0][:-1] + b"X"
    await ledgers.bookie(members[1].bookie_id).stop()
    reader = await client.open_reader(writer.ledger_id)
    assert await payloads(reader) == [b"good"]
    await reader.close()


async def test_speculative_read_goes_round_a_slow_replica(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"x")
    await writer.close()
    await until(lambda: all(0 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    slow = ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id)
    slow.silent.add(FrameType.READ)
    reader = await client.open_reader(writer.ledger_id)
    assert await payloads(reader) == [b"x"]
    before = slow.received.count(FrameType.READ)
    assert await payloads(reader) == [b"x"]
    assert slow.received.count(FrameType.READ) == before  # asked last from now on
    await reader.close()


async def test_absence_needs_every_replica(ledgers: FakeCluster) -> None:
    """RD-3."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await write(writer, b"x")
    await writer.close()
    await until(lambda: all(0 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    for bookie in ledgers.bookies:
        bookie.lose(writer.ledger_id, 0)
    reader = await client.open_reader(writer.ledger_id)
    with pytest.raises(NoSuchEntry, match="data loss"):
        await payloads(reader)
    await ledgers.bookies[0].stop()
    with pytest.raises(ReadUnknown):
        await payloads(reader)
    await reader.close()


async def test_budget_throttles_and_is_released_per_copy(ledgers: FakeCluster) -> None:
    """W-10: counted until each of the Qw sends is answered."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    slow = ledgers.bookies[0]
    slow.hold[FrameType.ADD] = gate = asyncio.Event()
    await write(writer, b"x" * 1000)
    assert writer.in_flight_bytes == 1036
    assert client.pool.in_flight_bytes == 1036
    gate.set()
    await until(lambda: writer.in_flight_bytes == 0)
    assert client.pool.in_flight_bytes == 0
    await writer.wait_capacity()


async def test_too_large_is_refused_before_an_id_is_assigned(ledgers: FakeCluster) -> None:
    """E-4."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    with pytest.raises(MessageTooLarge):
        writer.add(bytes(5 * 1024 * 1024 + 1), lambda entry, error: None)
    assert await writer.append(bytes(5 * 1024 * 1024)) == 0


async def test_cancelled_append_still_counts(ledgers: FakeCluster) -> None:
    """W-5."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    task = asyncio.ensure_future(writer.append(b"0"))
    await asyncio.sleep(0)
    task.cancel()
    await write(writer, b"1")
    assert writer.last_add_confirmed == 1


async def test_delete_and_missing_ledger(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.close()
    await client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.open_reader(writer.ledger_id)
    with pytest.raises(NoSuchLedger):
        await client.recover_ledger(writer.ledger_id)
    assert client.counters.recoveries["gone"] == 1
