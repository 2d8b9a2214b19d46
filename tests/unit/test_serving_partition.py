"""One partition's life over an in-memory storage layer and a real metadata catalog."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import LedgerState
from octavo.proto import batch as batches
from octavo.proto.compression import Codec
from octavo.proto.segment_entries import ProducerSnapshot, Snapshot, decode_snapshot
from octavo.runtime.errors import (
    MIN_INSYNC_DETAIL,
    CorruptBatch,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    Throttled,
)
from octavo.serving.partition import loading
from octavo.serving.partition.log import ACKS_NONE, ACKS_ONE, Answer, Appended, Conditions
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.partition.read_path import offset_for_time, read_at
from octavo.serving.partition.shell import PartitionShell
from tests.serving_rig import (
    NAME,
    NOW_MS,
    Answers,
    Rig,
    make_batch,
    produce,
    settle,
    until,
)


async def read_all(shell: PartitionShell, offset: int = 0) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from `offset` to the high watermark."""
    out: list[tuple[int, bytes]] = []
    while offset < shell.high_watermark:
        found = await read_at(shell.view(), offset, 1 << 20, at_least_one=True)
        for payload in found.batches:
            rows = batches.decode_rows(payload)
            out.extend(
                (o, value or b"")
                for o, value in zip(rows.offsets, rows.values, strict=True)
                if o >= offset
            )
        assert found.next_offset > offset
        offset = found.next_offset
    return out


async def test_first_produce_opens_a_ledger_lazily_with_a_snapshot_as_entry_0(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    assert broker.backend.created == 0
    first = await produce(shell, make_batch([b"a", b"b"]))
    second = await produce(shell, make_batch([b"c"]))
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert broker.backend.created == 1
    (stored,) = rig.bookies.ledgers.values()
    assert [entry[36] for entry in stored.entries] == [0xB8, 0xB7, 0xB7]
    assert await read_all(shell) == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_batch_carries_owner_epoch_and_append_time_and_the_same_body(rig: Rig) -> None:
    shell = await rig.broker().open()
    sent = make_batch([b"payload"])
    await produce(shell, sent)
    found = await read_at(shell.view(), 0, 1 << 20, at_least_one=True)
    header = batches.verify(found.batches[0])
    assert header.owner_epoch == shell.owner_epoch == 1
    assert header.append_time_ms > 0
    assert found.batches[0][80:] == sent[80:]


async def test_clean_unload_closes_with_a_footer_and_the_next_owner_goes_on(rig: Rig) -> None:
    first = rig.broker()
    shell = await first.open()
    for i in range(5):
        await produce(shell, make_batch([b"%d" % i], pid=9, epoch=0, sequence=i))
    await shell.close(5.0)
    record = await first.catalog.read(NAME.topic_id, 0)
    assert record is not None
    (segment,) = record.state.segments
    assert (segment.base_offset, segment.end_offset) == (0, 5)
    stored = rig.bookies.ledgers[segment.ledger_id]
    assert stored.entries[-1][36] == 0xB9
    assert segment.last_entry == len(stored.entries) - 1
    with pytest.raises(NotLeader):
        shell.append(make_batch(), -1, lambda _: None)

    second = rig.broker()
    moved = await second.open()
    assert moved.owner_epoch == 2
    assert moved.high_watermark == 5
    assert [value for _, value in await read_all(moved)] == [b"0", b"1", b"2", b"3", b"4"]
    again = await produce(moved, make_batch([b"4"], pid=9, epoch=0, sequence=4))
    assert again == Appended(4, again.append_time_ms, duplicate=True)
    assert (await produce(moved, make_batch([b"5"], pid=9, epoch=0, sequence=5))).base_offset == 5


async def test_f032_an_assertion_that_fails_is_refused_before_writing(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    answers = Answers()
    one = make_batch([b"s0"], pid=3, epoch=0, sequence=0)
    shell.append(one, -1, answers.reply, Conditions(min_insync_replicas=2))
    await answers.wait(1)
    with pytest.raises(NotEnoughReplicas) as caught:
        shell.append(make_batch([b"s1"], pid=3, epoch=0, sequence=1), -1, _never, Conditions(3))
    assert caught.value.details == {MIN_INSYNC_DETAIL: 2}
    assert shell.high_watermark == 1
    shell.adopt(broker.settings(min_insync_replicas="3"))
    shell.append(make_batch([b"s1"], pid=3, epoch=0, sequence=1), -1, answers.reply, Conditions(3))
    await answers.wait(2)
    shell.adopt(broker.settings(min_insync_replicas="2"))
    shell.append(  # its answer was lost: it is stored, whatever the topic asks for by now
        make_batch([b"s1"], pid=3, epoch=0, sequence=1), -1, answers.reply, Conditions(3)
    )
    await answers.wait(3)
    last = answers.all[-1]
    assert isinstance(last, Appended)
    assert (last.base_offset, last.duplicate) == (1, True)


def _never(answer: Answer) -> None:
    raise AssertionError(f"refused and answered {answer}")


async def test_w5_owner_killed_before_any_reply_gives_duplicates_with_offsets(rig: Rig) -> None:
    old = rig.broker()
    dead = await old.open()
    answers = Answers()
    for i in range(5):
        dead.append(make_batch([b"s%d" % i], pid=3, epoch=0, sequence=i), -1, answers.reply)
    await answers.wait(5)  # Qa reached; the replies are "lost" with the process

    new = await rig.broker().open()
    assert new.high_watermark == 5
    retried = [
        await produce(new, make_batch([b"s%d" % i], pid=3, epoch=0, sequence=i)) for i in range(5)
    ]
    assert [(a.base_offset, a.duplicate) for a in retried] == [(i, True) for i in range(5)]
    assert new.high_watermark == 5  # I7: no new records


async def test_w6_append_that_never_became_durable_is_appended_at_the_new_owner(rig: Rig) -> None:
    old = rig.broker()
    shell = await old.open()
    await produce(shell, make_batch([b"first"]))
    rig.bookies.hold = True
    answers = Answers()
    shell.append(make_batch([b"s0"], pid=3, epoch=0, sequence=0), -1, answers.reply)
    new = await rig.broker().open()  # fences; the recovery finds nothing of s0
    rig.bookies.release()
    (answer,) = await answers.wait(1)
    assert isinstance(answer, NotLeader)  # A8: nothing that says "not written"
    retried = await produce(new, make_batch([b"s0"], pid=3, epoch=0, sequence=0))
    assert (retried.base_offset, retried.duplicate) == (1, False)
    assert [value for _, value in await read_all(new)] == [b"first", b"s0"]


async def test_two_owners_for_ever_never_both_append(rig: Rig) -> None:
    """Ledger §8.3: both brokers stay convinced that they own the partition."""
    one, two = rig.broker(), rig.broker()
    acked: dict[int, bytes] = {}
    shells = [await one.open(), await two.open()]
    answers: list[tuple[bytes, Answers]] = []
    for turn in range(60):
        side = turn % 2 if turn % 7 else (turn + 1) % 2
        value = b"%d/%d" % (turn, side)
        collected = Answers()
        answers.append((value, collected))
        try:
            shells[side].append(make_batch([value]), -1, collected.reply)
        except NotLeader:
            shells[side] = await (one, two)[side].open()
        if turn % 3 == 0:
            await asyncio.sleep(0)
    await settle()
    for shell in shells:
        if shell.gone is None:
            await produce(shell, make_batch([b"last"])) if shell is shells[0] else None
    final = await rig.broker().open()
    for value, collected in answers:
        for answer in collected.all:
            if isinstance(answer, Appended):
                assert answer.base_offset not in acked
                acked[answer.base_offset] = value
    assert len(acked) > 10
    log = dict(await read_all(final))
    assert sorted(log) == list(range(final.high_watermark))
    for offset, value in acked.items():
        assert log[offset] == value  # INV-13: acknowledged once, where it was said


async def test_zombie_that_was_fenced_answers_not_leader_and_says_so(rig: Rig) -> None:
    one, two = rig.broker(), rig.broker()
    zombie = await one.open()
    await produce(zombie, make_batch([b"a"]))
    owner = await two.open()
    await produce(owner, make_batch([b"b"]))
    with pytest.raises(NotLeader):
        await produce(zombie, make_batch([b"lost"]))
    assert isinstance(one.gone[0], NotLeader)
    assert [value for _, value in await read_all(owner)] == [b"a", b"b"]


async def test_evicted_writer_recovers_and_resends_what_is_not_in_the_ledger(rig: Rig) -> None:
    """ML-6 with autorecovery's eviction (A-6): the list is still ours."""
    broker = rig.broker()
    shell = await broker.open()
    await produce(shell, make_batch([b"a"]))
    rig.bookies.hold = True
    answers = Answers()
    for i in range(4):
        shell.append(make_batch([b"p%d" % i], pid=5, epoch=0, sequence=i), -1, answers.reply)
    rig.bookies.survivors = lambda unacknowledged: 2  # recovery finds two of the four
    (ledger_id,) = rig.bookies.ledgers
    await broker.backend.recover_ledger(rig.bookies.writers[0].ledger_id)
    rig.bookies.release()
    got = await answers.wait(4)
    assert [a.base_offset for a in got if isinstance(a, Appended)] == [1, 2, 3, 4]
    assert await read_all(shell) == [
        (0, b"a"),
        (1, b"p0"),
        (2, b"p1"),
        (3, b"p2"),
        (4, b"p3"),
    ]
    record = await broker.catalog.read(NAME.topic_id, 0)
    assert record is not None
    first, second = record.state.segments
    assert (first.ledger_id, first.end_offset, second.base_offset) == (ledger_id, 3, 3)


async def test_lost_close_is_settled_by_recovery_not_by_memory(rig: Rig) -> None:
    """W-9: Pulsar #7490 rolled with a remembered length."""
    broker = rig.broker()
    shell = await broker.open()
    await produce(shell, make_batch([b"a"]))
    rig.bookies.fail_close = True
    assert await shell.roll() == 1
    await produce(shell, make_batch([b"b"]))
    assert await read_all(shell) == [(0, b"a"), (1, b"b")]


async def test_size_roll_is_invisible_and_covers_many_segments(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open(segment_bytes="65536")
    answers = Answers()
    for i in range(40):
        shell.append(make_batch([b"%02d" % i + bytes(8000)]), -1, answers.reply)
        await asyncio.sleep(0)
    await answers.wait(40)
    offsets = [a.base_offset for a in answers.all if isinstance(a, Appended)]
    assert offsets == list(range(40))
    values = [value[:2] for _, value in await read_all(shell)]
    assert values == [b"%02d" % i for i in range(40)]
    record = await broker.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert len(record.state.segments) >= 4


async def test_reads_after_the_tail_was_evicted_come_from_storage(rig: Rig) -> None:
    broker = rig.broker(tail_cache_bytes=0)
    shell = await broker.open(segment_bytes="65536")
    for i in range(30):
        await produce(shell, make_batch([b"%02d" % i + bytes(6000)]))
    assert not shell.view().tail.holds(29)
    assert [value[:2] for _, value in await read_all(shell)] == [b"%02d" % i for i in range(30)]
    assert [o for o, _ in await read_all(shell, 17)] == list(range(17, 30))


async def test_crashed_segments_are_read_by_binary_search(rig: Rig) -> None:
    first = rig.broker()
    shell = await first.open()
    for i in range(50):
        await produce(shell, make_batch([b"%02d" % i, b"x"]))
    second = rig.broker()
    moved = await second.open()
    for offset in (0, 1, 2, 37, 98, 99):
        found = await read_at(moved.view(), offset, 1, at_least_one=True)
        header = batches.decode_header(found.batches[0])
        assert header.base_offset <= offset < header.next_offset


async def test_not_enough_bookies_is_said_and_nothing_is_acknowledged(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    rig.bookies.live = 1
    with pytest.raises(NotEnoughReplicas):
        await produce(shell, make_batch([b"no"], pid=4, epoch=0, sequence=0))
    with pytest.raises(NotEnoughReplicas):
        shell.append(make_batch([b"no"]), -1, lambda _: None)
    rig.bookies.live = 3
    done = await produce(shell, make_batch([b"yes"], pid=4, epoch=0, sequence=0))
    assert (done.base_offset, done.duplicate) == (0, False)


async def test_degraded_ledger_is_used_and_rolled_when_bookies_are_back(rig: Rig) -> None:
    """A6 and the ruling of design §4."""
    broker = rig.broker()
    shell = await broker.open()
    rig.bookies.live = 2
    await produce(shell, make_batch([b"a"]))
    assert shell.degraded
    rig.bookies.live = 3
    rig.bookies.writers[-1].wants_roll = True
    shell.tick()
    await until(lambda: broker.backend.created == 1 and not shell.degraded)
    await produce(shell, make_batch([b"b"]))
    assert not shell.degraded
    assert await read_all(shell) == [(0, b"a"), (1, b"b")]


async def test_without_permission_no_degraded_ledger_is_opened(rig: Rig) -> None:
    shell = await rig.broker(allow_degraded_ledgers=False).open()
    rig.bookies.live = 2
    with pytest.raises(NotEnoughReplicas):
        await produce(shell, make_batch())


async def test_a8_timed_out_batch_stays_pending_and_its_retry_attaches(rig: Rig) -> None:
    broker = rig.broker(produce_timeout_s=0.001)
    shell = await broker.open()
    await produce(shell, make_batch([b"a"]))
    rig.bookies.hold = True
    answers = Answers()
    shell.append(make_batch([b"b"], pid=1, epoch=0, sequence=0), -1, answers.reply)
    await asyncio.sleep(0.01)
    shell.tick()
    (late,) = await answers.wait(1)
    assert late.code == "REQUEST_TIMED_OUT"  # type: ignore[union-attr]
    shell.append(make_batch([b"b"], pid=1, epoch=0, sequence=0), -1, answers.reply)
    rig.bookies.release()
    _, attached = await answers.wait(2)
    assert isinstance(attached, Appended)
    assert (attached.base_offset, shell.high_watermark) == (1, 2)


async def test_w4_retry_of_an_acknowledged_batch_is_a_duplicate(rig: Rig) -> None:
    shell = await rig.broker().open()
    sent = [make_batch([b"s%d" % i], pid=1, epoch=0, sequence=i) for i in range(6)]
    for one in sent:
        await produce(shell, one)
    again = await produce(shell, sent[1])
    assert (again.base_offset, again.duplicate) == (1, True)
    outside = await produce(shell, sent[0])  # the window holds five
    assert (outside.base_offset, outside.duplicate) == (-1, True)
    assert shell.high_watermark == 6


async def test_acks_one_answers_at_the_first_copy_in_order(rig: Rig) -> None:
    shell = await rig.broker().open()
    await produce(shell, make_batch([b"a"]))
    rig.bookies.hold = True
    rig.bookies.first_copies = True
    ones, alls = Answers(), Answers()
    shell.append(make_batch([b"b"]), ACKS_ONE, ones.reply)
    shell.append(make_batch([b"c"]), ACKS_ONE, ones.reply)
    shell.append(make_batch([b"d"]), -1, alls.reply)
    got = await ones.wait(2)
    assert [a.base_offset for a in got if isinstance(a, Appended)] == [1, 2]
    assert alls.all == []
    assert shell.high_watermark == 1  # A3: not visible before Qa
    rig.bookies.release()
    await alls.wait(1)
    assert len(ones.all) == 2


async def test_acks_none_is_answered_without_an_offset(rig: Rig) -> None:
    shell = await rig.broker().open()
    done = await produce(shell, make_batch([b"a"]), ACKS_NONE)
    assert done.base_offset == -1
    await until(lambda: shell.high_watermark == 1)


async def test_sequence_gap_is_refused_with_the_last_sequence(rig: Rig) -> None:
    shell = await rig.broker().open()
    await produce(shell, make_batch([b"a", b"b"], pid=1, epoch=0, sequence=0))
    with pytest.raises(OutOfOrderSequence) as caught:
        shell.append(make_batch([b"c"], pid=1, epoch=0, sequence=5), -1, lambda _: None)
    assert caught.value.details["last_sequence"] == 1


async def test_refused_batches_change_nothing(rig: Rig) -> None:
    shell = await rig.broker().open(max_message_bytes="1000")
    good = make_batch([b"a"], pid=1, epoch=0, sequence=0)
    corrupt = good[:-1] + bytes([good[-1] ^ 1])
    for batch, acks, wanted in (
        (corrupt, -1, CorruptBatch),
        (b"\xb7" * 10, -1, CorruptBatch),
        (make_batch([bytes(2000)]), -1, MessageTooLarge),
        (make_batch([b"a"], timestamp_ms=NOW_MS + 10**12), -1, InvalidTimestamp),
        (good, 1, InvalidRequest),  # A5
    ):
        with pytest.raises(wanted):
            shell.append(batch, acks, lambda _: None)
    assert (await produce(shell, good)).base_offset == 0


@pytest.mark.parametrize("limit", ["", str(1 << 20), str(4 << 20), "100"])
async def test_f153_a_topic_takes_records_of_its_limit_and_names_it_above(
    rig: Rig, limit: str
) -> None:
    broker = rig.broker()
    shell = await (broker.open(max_message_bytes=limit) if limit else broker.open())
    size = int(limit or 1 << 20)
    for number, good in enumerate((size - 1, size)):
        assert (await produce(shell, make_batch([bytes(good)]))).base_offset == number
    for codec in (Codec.LZ4, Codec.NONE):  # the size counts before compression
        if codec == Codec.NONE and size == batches.MAX_RECORD_BYTES:
            continue  # no batch is so large
        bad = batches.encode([NOW_MS], [None], [bytes(size + 300)], codec=codec)
        with pytest.raises(MessageTooLarge, match=rf"max.message.bytes is {size}") as caught:
            shell.append(bad, -1, lambda _: None)
        assert "max.message.bytes of up to 4194304" in caught.value.hint
    many = make_batch([bytes(100)] * 20)  # a topic without a limit of its own takes any batch
    if limit == "100":
        with pytest.raises(MessageTooLarge):
            shell.append(many, -1, lambda _: None)
    else:
        assert (await produce(shell, many)).base_offset == 2


async def test_pending_is_bounded(rig: Rig) -> None:
    shell = await rig.broker(partition_pending_batches=3).open()
    await produce(shell, make_batch())
    rig.bookies.hold = True
    for _ in range(3):
        shell.append(make_batch(), -1, lambda _: None)
    with pytest.raises(Throttled):
        shell.append(make_batch(), -1, lambda _: None)


async def test_offsets_by_time_across_segments(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    for i in range(6):
        await produce(shell, make_batch([b"a", b"b"], timestamp_ms=NOW_MS + 1000 * i))
        if i % 2:
            await shell.roll()
    for i in range(6):
        found = await offset_for_time(shell.view(), NOW_MS + 1000 * i - 1)
        assert found == (2 * i, NOW_MS + 1000 * i)
    assert await offset_for_time(shell.view(), NOW_MS + 10**7) is None


async def test_a_segment_whose_newest_time_is_not_known_is_looked_into(rig: Rig) -> None:
    """Not known is not "older"."""
    shell = await rig.broker().open()
    for i in range(4):
        await produce(shell, make_batch([b"a"], timestamp_ms=NOW_MS + 1000 * i))
        if i % 2:
            await shell.roll()
    view = shell.view()
    unknown = tuple(replace(segment, max_timestamp_ms=None) for segment in view.segments)
    assert len(unknown) == 2
    view = view._replace(segments=unknown)
    for i in range(4):
        found = await offset_for_time(view, NOW_MS + 1000 * i)
        assert found == (i, NOW_MS + 1000 * i)
    assert await offset_for_time(view, NOW_MS + 10**7) is None


async def test_roll_of_an_empty_partition_makes_no_ledger(rig: Rig) -> None:
    broker = rig.broker()
    shell = await broker.open()
    assert await shell.roll() == 0
    assert broker.backend.created == 0
    await produce(shell, make_batch())
    assert await shell.roll() == 1
    assert await shell.roll() == 1
    record = await broker.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert [s.end_offset for s in record.state.segments] == [1]


async def test_many_crashes_leave_no_empty_ledgers_in_the_list(rig: Rig) -> None:
    for i in range(5):
        shell = await rig.broker().open()
        rig.bookies.hold = True
        shell.append(make_batch([b"lost"]), -1, lambda _: None)
        await until(lambda n=i: len(rig.bookies.writers) == n + 1)
        await settle()
        rig.bookies.hold = False
    final = rig.broker()
    shell = await final.open()
    record = await final.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert record.state.segments == ()
    assert len(record.state.trash) + len(rig.bookies.deleted) == 5
    await produce(shell, make_batch([b"a"]))  # the driver sweeps on its way (ML-9)
    await until(lambda: len(rig.bookies.deleted) == 5)


async def test_snapshots_bound_the_replay(rig: Rig) -> None:
    broker = rig.broker(snapshot_interval_records=10)
    shell = await broker.open()
    for i in range(35):
        await produce(shell, make_batch([b"v"], pid=2, epoch=0, sequence=i))
    (stored,) = rig.bookies.ledgers.values()
    assert sum(entry[36] == 0xB8 for entry in stored.entries) == 4
    moved = await rig.broker().open()
    again = await produce(moved, make_batch([b"v"], pid=2, epoch=0, sequence=34))
    assert (again.base_offset, again.duplicate) == (34, True)


@pytest.mark.parametrize(("at_once", "is_beside"), [(0, True), (100, False)])
async def test_a_large_snapshot_is_taken_over_beside_the_loop_and_only_the_newest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_once: int, is_beside: bool
) -> None:
    """20,000 producers take half a second: other partitions of the broker go on meanwhile.

    A few are read here: a thread would cost each of a thousand partitions more.
    """
    monkeypatch.setattr(loading, "PRODUCERS_AT_ONCE", at_once)
    decoded: list[int] = []
    restored: list[int] = []
    restore = ProducerStates[object].restore

    def watched_decode(payload: bytes) -> Snapshot:
        decoded.append(threading.get_ident())
        return decode_snapshot(payload)

    def watched_restore(
        self: ProducerStates[object], snapshots: Iterable[ProducerSnapshot]
    ) -> None:
        found = list(snapshots)
        if found:
            restored.append(threading.get_ident())
        restore(self, found)

    monkeypatch.setattr(loading, "decode_snapshot", watched_decode)
    monkeypatch.setattr(ProducerStates, "restore", watched_restore)
    shell = await rig.broker(snapshot_interval_records=5).open()
    for i in range(17):
        await produce(shell, make_batch([b"v"], pid=2, epoch=0, sequence=i))
    moved = await rig.broker().open()
    again = await produce(moved, make_batch([b"v"], pid=2, epoch=0, sequence=16))
    assert (again.base_offset, again.duplicate) == (16, True)
    assert (len(decoded), len(restored)) == (1, 1)
    assert (threading.get_ident() not in decoded + restored) is is_beside


async def test_lost_list_write_is_settled_and_the_ledger_used(rig: Rig) -> None:
    """ML-7: the reply to the list CAS is lost, the write happened."""
    broker = rig.broker()
    shell = await broker.open()
    broker.store.faults.lose_reply("put")
    await produce(shell, make_batch([b"a"]))
    assert await read_all(shell) == [(0, b"a")]
    record = await broker.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert len(record.state.segments) == 1
    assert LedgerState.OPEN is rig.bookies.writers[0].metadata.state
