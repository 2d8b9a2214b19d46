"""Rules of spec/ledger.md at a ledger client among fake bookies, one test each, named by rule."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from octavo.client.ledger import Quorum
from octavo.client.segments.reader import DescribedLedgers
from octavo.proto.bookie_wire import FrameType, Status
from octavo.proto.entry import decode_header, encode_header, payload_of, verify
from octavo.proto.segments import Segment
from octavo.runtime.errors import NoSuchEntry, NoSuchLedger, OctavoError, ReadUnknown
from octavo.runtime.ids import EntryId, Member
from tests.fix_ledger import FakeCluster, until

Q332 = Quorum(3, 3, 2)


async def test_inv4_entries_are_dense_in_the_order_sent_and_confirmed(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    confirmed: list[int] = []

    def done(entry: EntryId, error: OctavoError | None) -> None:
        assert error is None
        confirmed.append(entry)

    for turn in range(20):
        for i in range(10):
            assert writer.add(b"%d" % (10 * turn + i), done) == 10 * turn + i
        await asyncio.sleep(0)
        if turn == 10:
            ledgers.bookies[0].cut()
    await until(lambda: len(confirmed) == 200)
    record = await writer.close()
    assert confirmed == list(range(200))
    assert record.last_entry == 199
    reader = await client.open_reader(writer.ledger_id)
    entries: list[bytes] = []
    while len(entries) < 200:  # a read ends with the fragment that the cut ended, wherever that is
        first = EntryId(len(entries))
        read = await reader.read(first, max_count=500, max_bytes=1 << 20)
        entries.extend(payload_of(entry) for entry in read)
    assert entries == [b"%d" % i for i in range(200)]


async def test_w1_e3_encoded_once_and_never_rewritten(ledgers: FakeCluster) -> None:
    """Every copy has the same bytes, also one re-sent to a spare after the LAC moved on."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    spare = await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    victim = ledgers.bookie(writer.metadata.last_fragment[1][2].bookie_id)
    victim.silent.add(FrameType.ADD)
    others = [b for b in ledgers.bookies if b not in (victim, spare)]
    for bookie in others[1:]:
        bookie.hold[FrameType.ADD] = asyncio.Event()
    for _ in range(5):
        writer.add(b"xyz", lambda entry, error: None)
    await until(lambda: 4 in spare.ledger(writer.ledger_id).entries)
    for bookie in others[1:]:
        bookie.hold[FrameType.ADD].set()
    await until(lambda: writer.last_add_confirmed == 4)
    kept = [b.ledger(writer.ledger_id).entries for b in (*others, spare)]
    await until(lambda: all(4 in entries for entries in kept))
    for entry in range(5):
        copies = {bytes(entries[entry]) for entries in kept}
        assert len(copies) == 1
        header = verify(copies.pop())
        assert (header.entry_id, header.length) == (entry, 3 * (entry + 1))
        assert header.lac <= entry - 1


async def test_e2_a_copy_with_another_id_is_unknown_not_absent(ledgers: FakeCluster) -> None:
    """A valid digest does not make entry 7 an answer to the question for entry 0."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    await writer.close()
    foreign = encode_header(writer.ledger_id, 7, 6, 1, b"0") + b"0"
    for bookie in ledgers.bookies:
        bookie.ledger(writer.ledger_id).entries[0] = foreign
    reader = await client.open_reader(writer.ledger_id)
    with pytest.raises(ReadUnknown):
        await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)


async def test_r9_recovery_asks_bookies_not_the_handle(ledgers: FakeCluster) -> None:
    """Entries above the handle's LAC that bookies hold are recovered, by the same client."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    for bookie in ledgers.bookies[1:]:
        bookie.mute.add(FrameType.ADD)
    writer.add(b"1", lambda entry, error: None)
    await until(lambda: all(1 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    writer.abandon("test")
    for bookie in ledgers.bookies:
        bookie.mute.clear()
    assert writer.last_add_confirmed == 0
    assert (await client.recover_ledger(writer.ledger_id)).last_entry == 1


async def test_r12_a_newer_incarnation_counts_for_the_fence_and_knows_nothing(
    ledgers: FakeCluster,
) -> None:
    """Two wiped members of three answer the fence, and none of their absences is a "no"."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    writer.abandon("test")
    keeper = ledgers.bookies[0]
    await until(lambda: 0 in keeper.ledger(writer.ledger_id).entries)
    for bookie in ledgers.bookies[1:]:
        await bookie.unregister()
        bookie.wipe()
        bookie.cut()
        await bookie.register(ledgers.store, ledgers.paths)
    keeper.silent.add(FrameType.READ)
    keeper.silent.add(FrameType.FENCE)
    with pytest.raises(ReadUnknown):
        await client.recover_ledger(writer.ledger_id, 0.5)
    keeper.silent.clear()
    with pytest.raises(ReadUnknown):  # entry 1 is neither present nor absent
        await client.recover_ledger(writer.ledger_id, 0.5)


async def test_r16_recovery_asks_every_replica_with_the_fence_flag(ledgers: FakeCluster) -> None:
    """No early negative of the first two, no preference for a good one, no cached end."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    reader = await client.open_reader(writer.ledger_id)
    await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    writer.abandon("test")
    for bookie in ledgers.bookies:
        bookie.received.clear()
    assert (await client.recover_ledger(writer.ledger_id)).last_entry == 0
    for bookie in ledgers.bookies:
        assert FrameType.READ in bookie.received
        assert bookie.ledger(writer.ledger_id).fenced


async def test_r19_rd1_copies_beyond_the_end_are_never_read(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    await writer.close()
    stray = encode_header(writer.ledger_id, 1, 0, 2, b"1") + b"1"
    for bookie in ledgers.bookies:
        bookie.ledger(writer.ledger_id).entries[1] = stray
        bookie.ledger(writer.ledger_id).lac = 1
    reader = await client.open_reader(writer.ledger_id)
    got = await reader.read(EntryId(0), max_count=10, max_bytes=1 << 20)
    assert [payload_of(e) for e in got] == [b"0"]
    with pytest.raises(NoSuchEntry):
        await reader.read(EntryId(1), max_count=1, max_bytes=1 << 20)
    assert await reader.last_add_confirmed() == 0


async def test_rd1_an_open_ledger_is_read_up_to_its_lac(ledgers: FakeCluster) -> None:
    """An entry that bookies hold and nobody has confirmed is not shown."""
    client, other = await ledgers.client(), await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    unconfirmed = encode_header(writer.ledger_id, 1, 0, 2, b"1") + b"1"
    for bookie in ledgers.bookies:
        bookie.ledger(writer.ledger_id).entries[1] = unconfirmed
    reader = await other.open_reader(writer.ledger_id)
    assert await reader.wait_beyond(EntryId(-1), 5.0) == 0
    assert len(await reader.read(EntryId(0), max_count=10, max_bytes=1 << 20)) == 1
    with pytest.raises(NoSuchEntry):
        await reader.read(EntryId(1), max_count=1, max_bytes=1 << 20)


async def test_rd2_the_replica_that_answered_is_asked_again(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    await writer.close()
    reader = await client.open_reader(writer.ledger_id)
    first = ledgers.bookie(writer.metadata.last_fragment[1][0].bookie_id)
    first.statuses[FrameType.READ] = [Status.EIO]
    for bookie in ledgers.bookies:
        bookie.received.clear()
    for _ in range(5):
        await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    counts = sorted(b.received.count(FrameType.READ) for b in ledgers.bookies)
    assert counts == [0, 1, 5], "the damaged one once, then one good replica for all"
    assert first.received.count(FrameType.READ) == 1


async def test_rd9_reading_never_fences_and_recovery_says_who(
    ledgers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    described = DescribedLedgers({b.bookie_id: b.address for b in ledgers.bookies}, "test")
    segment = Segment(writer.ledger_id, 0, ledger_record=writer.metadata.to_bytes())
    for reader in (await client.open_reader(writer.ledger_id), described.open(segment)):
        await reader.last_add_confirmed()
        await reader.wait_beyond(EntryId(0), 0.01)
        await reader.close()
    await described.close()
    assert not any(FrameType.FENCE in b.received for b in ledgers.bookies)
    assert not any(b.ledger(writer.ledger_id).fenced for b in ledgers.bookies)
    await writer.append(b"1")
    writer.abandon("test")
    with caplog.at_level(logging.INFO, "octavo.ledger"):
        await client.recover_ledger(writer.ledger_id)
    assert f"{client.config.client_name} recovers ledger {writer.ledger_id}" in caplog.text


async def test_rd9_ledgers_that_are_described_need_no_metadata_store(ledgers: FakeCluster) -> None:
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"a")
    await writer.append(b"b")
    record = await writer.close()
    described = DescribedLedgers({b.bookie_id: b.address for b in ledgers.bookies}, "test")
    segment = Segment(record.ledger_id, 0, ledger_record=record.to_bytes())
    for _ in range(2):  # closing a reader leaves the connections to the next one
        reader = described.open(segment)
        entries = await reader.read(EntryId(0), max_count=100, max_bytes=1 << 20)
        assert [bytes(payload_of(entry)) for entry in entries] == [b"a", b"b"]
        await reader.close()
    await described.close()


async def test_rd9_a_described_ledger_that_went_is_no_data_loss(
    ledgers: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Compaction and retention delete ledgers that a long job has yet to read; it is told so."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"a")
    record = await writer.close()
    described = DescribedLedgers({b.bookie_id: b.address for b in ledgers.bookies}, "test")
    segment = Segment(record.ledger_id, 0, ledger_record=record.to_bytes())
    reader = described.open(segment)
    one, *others = ledgers.bookies
    for bookie in others:
        del bookie.ledgers[record.ledger_id]
    (entry,) = await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    assert bytes(payload_of(entry)) == b"a", "one copy is enough"
    del one.ledgers[record.ledger_id]
    with pytest.raises(NoSuchLedger, match="compacted, trimmed or moved") as caught:
        await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    assert "trash_delay_ms" in caught.value.hint
    assert "data loss" not in caplog.text
    await reader.close()
    listed = await client.open_reader(record.ledger_id)
    with pytest.raises(NoSuchEntry, match="data loss"):
        await listed.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    await listed.close()
    await described.close()


async def test_rd10_a_stale_handle_reads_the_record_again(ledgers: FakeCluster) -> None:
    """The ensemble of a closed ledger was rewritten; the handle's watch told it nothing."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"0")
    await writer.close()
    spare = await ledgers.add_bookie()
    await until(lambda: len(client.directory.live()) == 4)
    reader = await client.open_reader(writer.ledger_id)
    stale = reader.metadata
    ((_, members),) = stale.fragments
    data = ledgers.bookies[0].ledger(writer.ledger_id).entries[0]
    spare.ledger(writer.ledger_id).entries[0] = data
    moved = client.directory.find(spare.bookie_id)
    assert moved is not None
    versioned = await client.catalog.read(writer.ledger_id)
    rewritten = stale.with_member_replaced(EntryId(0), members[0], moved.member)
    await client.catalog.cas(versioned, rewritten)
    await until(lambda: reader.metadata != stale)
    reader._view.metadata = stale  # pyright: ignore[reportPrivateUsage]
    for bookie in ledgers.bookies[:3]:
        await bookie.stop()
    got = await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
    assert decode_header(got[0]).entry_id == 0
    assert reader.metadata == rewritten


async def test_a_reader_of_a_known_record_reads_it_anew_when_no_replica_answers(
    ledgers: FakeCluster,
) -> None:
    """RD-10: entries moved to another bookie since the record was read."""
    client = await ledgers.client()
    writer = await client.create_ledger(Q332, {})
    await writer.append(b"x")
    closed = await writer.close()
    await until(lambda: all(0 in b.ledger(writer.ledger_id).entries for b in ledgers.bookies))
    reader = client.reader_of(closed)

    async def read() -> bytes:
        (found,) = await reader.read(EntryId(0), max_count=1, max_bytes=1 << 20)
        return payload_of(found)

    assert await read() == b"x"
    first, *others = closed.last_fragment[1]
    spare = await ledgers.add_bookie()
    old = ledgers.bookie(first.bookie_id)
    spare.ledger(writer.ledger_id).entries.update(old.ledger(writer.ledger_id).entries)
    moved = (Member(spare.bookie_id, spare.incarnation), *others)
    await client.catalog.update(
        writer.ledger_id, lambda record: replace(record, fragments=((EntryId(0), moved),))
    )
    assert await read() == b"x"  # of the replicas that it knows
    for bookie in ledgers.bookies:
        if bookie is not spare:
            bookie.lose(writer.ledger_id, 0)
    assert await read() == b"x"
    assert reader.metadata.last_fragment[1] == moved
    await reader.close()
