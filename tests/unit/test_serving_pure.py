"""The pure parts of a broker: settings, placement, lists, offsets, caches, budgets, codecs."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import replace

import pytest

from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.metadata.topics import PartitionState
from octavo.proto.batch import decode_header
from octavo.proto.segment_entries import (
    AbortedTransaction,
    Footer,
    OpenTransaction,
    ProducerSnapshot,
    SegmentFigures,
    Snapshot,
    WindowItem,
    decode_footer,
    decode_snapshot,
    encode_footer,
    encode_snapshot,
    is_batch,
    is_footer,
    is_snapshot,
)
from octavo.proto.segments import Segment
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    ConfigError,
    CorruptEntry,
    InvalidConfig,
    InvalidReplicationFactor,
    InvariantViolation,
    NotLeader,
    UnsupportedVersion,
)
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.serving import segments as lists
from octavo.serving.budget import ByteBudget
from octavo.serving.cache import ColdCache, TailCache
from octavo.serving.config import BrokerConfig
from octavo.serving.fetch import FetchResult
from octavo.serving.partition.log import ACKS_ALL, ACKS_ONE, Answer, Appended, PartitionLog
from octavo.serving.placement import bundle_of, preferred_owners
from octavo.serving.segments import RollLimits, RollReason
from octavo.serving.topic_config import check_replication, parse_topic_config, settings_of
from tests.serving_rig import make_batch, make_config

TOPIC_ID = uuid.UUID(int=3)


# --- settings ---------------------------------------------------------------------------------


def test_topic_settings_are_parsed_and_defaults_fill_the_rest() -> None:
    config = {"retention.ms": "-1", "cleanup.policy": "delete", "segment.bytes": "1048576"}
    settings = parse_topic_config(config, make_config())
    assert (settings.segment_ms, settings.segment_bytes) == (604_800_000, 1 << 20)
    assert (settings.replication_factor, settings.min_insync_replicas) == (3, 2)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention.msx": "1"}, "did you mean 'retention.ms'"),
        ({"segment.ms": "soon"}, "whole number"),
        ({"segment.ms": "-2"}, "between 1000"),
        ({"retention.ms": "-2"}, "between -1"),
        ({"retention.bytes": "5 MB"}, "whole number"),
        ({"cleanup.policy": "compct"}, "did you mean 'compact'"),
        ({"cleanup.policy": ""}, "known names: compact, delete"),
        ({"min.cleanable.dirty.ratio": "half"}, "must be a number"),
        ({"min.cleanable.dirty.ratio": "1.1"}, "between 0 and 1"),
        ({"min.cleanable.dirty.ratio": "nan"}, "between 0 and 1"),
        ({"min.compaction.lag.ms": "-1"}, "between 0"),
        ({"max.compaction.lag.ms": "0"}, "between 1"),
        ({"delete.retention.ms": "1d"}, "whole number"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}, "exceeds max.compaction"),
        ({"segment.bytes": "10"}, "between 65536"),
        ({"cleanup.policy": "shred"}, "known names: compact, delete"),
        ({"min.insync.replicas": "4"}, "exceeds replication.factor"),
        ({"min.insync.replicas": "1"}, "could lose"),
        ({"max.message.bytes": str(5 << 20)}, "between"),
        ({"retention.ms": "1" * 2000}, "too long"),
    ],
)
def test_wrong_topic_settings_say_what_is_wrong(config: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_topic_config(config, make_config())
    assert text in str(caught.value)


def test_smaller_replication_factor_lowers_the_default_quorum() -> None:
    settings = parse_topic_config({"replication.factor": "1"}, make_config())
    assert (settings.replication_factor, settings.min_insync_replicas) == (1, 1)


def test_replication_factor_above_live_bookies_is_refused() -> None:
    settings = parse_topic_config({"replication.factor": "5"}, make_config())
    with pytest.raises(InvalidReplicationFactor):
        check_replication(settings, 4)
    check_replication(settings, 5)


def test_stored_settings_of_a_newer_build_do_not_stop_a_partition() -> None:
    stored = {"retention.ms": "5", "shiny.new": "1", "segment.ms": "nonsense"}
    settings = settings_of(stored, make_config())
    assert settings.segment_ms == 604_800_000


def test_broker_settings_are_checked_against_each_other() -> None:
    with pytest.raises(ConfigError, match="ensemble_size"):
        BrokerConfig.load(broker_id="b", write_quorum=4)
    with pytest.raises(ConfigError, match="max_send_bytes"):
        BrokerConfig.load(broker_id="b", fetch_max_bytes=63 << 20)
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(broker_id="b", segment_byte=1)
    assert "segment_bytes" in caught.value.hint


# --- placement --------------------------------------------------------------------------------


@pytest.mark.parametrize("brokers", range(1, 9))
def test_bundles_are_spread_evenly(brokers: int) -> None:
    """F145: owners differ by at most one."""
    owners = preferred_owners(64, [f"b{i}" for i in range(brokers)])
    counts = Counter(owners)
    assert len(counts) == brokers
    assert max(counts.values()) - min(counts.values()) <= 1


def test_few_bundles_move_when_a_broker_comes_or_goes() -> None:
    for count in range(2, 7):
        before = preferred_owners(64, [f"b{i}" for i in range(count)])
        after = preferred_owners(64, [f"b{i}" for i in range(count + 1)])
        moved = sum(a != b for a, b in zip(before, after, strict=True))
        assert moved <= 2 * 64 / (count + 1)


def test_placement_depends_on_the_set_of_brokers_only() -> None:
    assert preferred_owners(64, ["a", "b", "c"]) == preferred_owners(64, ["c", "a", "b", "a"])
    assert preferred_owners(64, []) == ()
    assert {bundle_of(TOPIC_ID, p, 64) for p in range(500)} == set(range(64))
    assert bundle_of(TOPIC_ID, 0, 64) == bundle_of(uuid.UUID(int=3), 0, 64)


def test_a_moved_bundle_is_for_the_broker_it_was_moved_to_and_no_other_bundle_moves_for_it() -> (
    None
):
    owners = preferred_owners(8, ["a", "b"])
    other = {"a": "b", "b": "a"}[owners[3]]
    moved = preferred_owners(8, ["a", "b"], {3: other})
    assert moved[3] == other
    assert [*moved[:3], *moved[4:]] == [*owners[:3], *owners[4:]]
    # Who cannot own bundles gets none; neither has a bundle that does not exist any effect.
    assert preferred_owners(8, ["a", "b"], {3: "gone", 99: "a"}) == owners
    assert preferred_owners(8, [], {3: "a"}) == ()


# --- segment lists ----------------------------------------------------------------------------


def closed_ledger(ledger_id: int, last_entry: int, length: int = 10) -> LedgerMetadata:
    members = tuple(Member(f"b{i}", SeededEntropy(i).uuid()) for i in range(3))
    return LedgerMetadata(
        LedgerId(ledger_id),
        Quorum(3, 3, 2),
        LedgerState.CLOSED,
        ((EntryId(0), members),),
        EntryId(last_entry),
        length,
    )


def segment(ledger_id: int, base: int, end: int | None, last_entry: int = 5) -> Segment:
    return Segment(LedgerId(ledger_id), base, end, last_entry=EntryId(last_entry))


STATE = PartitionState(
    TOPIC_ID,
    0,
    segments=(segment(1, 0, 10), segment(3, 10, 25), segment(4, 25, None)),
    owner_epoch=7,
    max_ledger_id_ever=4,
)


def test_ml4_opener_recovers_segments_without_counts_and_the_last_two() -> None:
    assert [s.ledger_id for s in lists.to_recover(STATE)] == [3, 4]


def test_ml4_claim_fills_counts_and_raises_the_epoch() -> None:
    sealed = lists.sealed_segment(STATE.segments[2], closed_ledger(4, 8), 30, SegmentFigures())
    claimed = lists.claimed(STATE, {LedgerId(4): sealed}, 1000)
    assert (claimed.owner_epoch, claimed.segments[-1].end_offset) == (8, 30)
    assert claimed.trash == ()
    STATE.check_successor(claimed)
    assert lists.end_of(claimed) == 30


def test_ml4_claim_needs_all_counts() -> None:
    with pytest.raises(InvariantViolation):
        lists.claimed(STATE, {}, 1000)


def test_empty_ledgers_go_to_the_trash() -> None:
    empty = lists.sealed_segment(STATE.segments[2], closed_ledger(4, -1, 0), 25, SegmentFigures())
    claimed = lists.claimed(STATE, {LedgerId(4): empty}, 1000)
    assert [s.ledger_id for s in claimed.segments] == [1, 3]
    assert [(t.ledger_id, t.since_ms) for t in claimed.trash] == [(4, 1000)]
    rolled = lists.advanced(STATE, sealed=empty, opened=(LedgerId(9), 25), now_ms=2000)
    assert [s.ledger_id for s in rolled.segments] == [1, 3, 9]
    STATE.check_successor(rolled)


def test_counts_come_from_a_closed_ledger_only() -> None:
    closed = closed_ledger(4, 8)
    still_open = replace(closed, state=LedgerState.OPEN, last_entry=None, length=None)
    with pytest.raises(InvariantViolation, match="CLOSED"):
        lists.sealed_segment(STATE.segments[2], still_open, 30, SegmentFigures())
    with pytest.raises(InvariantViolation):
        lists.sealed_segment(STATE.segments[1], closed, 30, SegmentFigures())


def test_ml9_trash_waits_and_is_verified_again() -> None:
    state = lists.emptied(STATE, "topic deleted", 1000)
    assert state.owner_epoch == 8
    assert lists.due_trash(state, 1500, 600) == []
    due = lists.due_trash(state, 1600, 600)
    assert [t.ledger_id for t in due] == [1, 3, 4]
    back = replace(state, segments=STATE.segments[:1])
    assert [t.ledger_id for t in lists.due_trash(back, 1600, 600)] == [3, 4]
    assert lists.without_trash(state, due).trash == ()


def test_segment_at_skips_segments_without_records() -> None:
    found = (segment(1, 0, 10), segment(2, 10, 10), segment(3, 10, 20))
    assert [
        s.ledger_id if (s := lists.segment_at(found, offset)) else None
        for offset in (-1, 0, 9, 10, 19, 20)
    ] == [None, 1, 1, 3, 3, None]


LIMITS = RollLimits(1000, 60_000, 3)


@pytest.mark.parametrize(
    ("size", "age_ms", "wants", "live", "reason"),
    [
        (999, 59_999, False, 3, None),
        (1000, 0, False, 3, RollReason.SIZE),
        (0, 60_000, False, 3, RollReason.AGE),
        (1000, 60_000, False, 2, None),  # A6: postponed while a spare is missing
        (4000, 0, False, 2, RollReason.SIZE),
        (0, 0, True, 3, RollReason.WRITER),
    ],
)
def test_roll_reasons(
    size: int, age_ms: float, wants: bool, live: int, reason: RollReason | None
) -> None:
    found = lists.roll_reason(
        LIMITS, size_bytes=size, age_ms=age_ms, writer_wants=wants, live_bookies=live
    )
    assert found is reason


# --- offsets and the fate of batches ----------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def __call__(self, answer: Answer) -> None:
        self.answers.append(answer)


def admit(log: PartitionLog, values: int = 1, now_ms: int = 100) -> Told:
    batch = make_batch([b"v"] * values)
    append = log.admit(batch, decode_header(batch), now_ms, 0.0)
    told = Told()
    append.wait(ACKS_ALL, told)
    return told


def send_all(log: PartitionLog, first_entry: int) -> None:
    for append in list(log.queued_batches()):
        log.sent_as(append, EntryId(first_entry))
        first_entry += 1


def test_offsets_are_dense_and_the_high_watermark_follows_durability() -> None:
    log = PartitionLog(owner_epoch=2, log_start=0, end_offset=10)
    admit(log, 3)
    admit(log, 2)
    assert (log.high_watermark, log.end_offset) == (10, 15)
    send_all(log, 1)
    first = log.durable(1)
    assert (first.header.base_offset, first.header.owner_epoch) == (10, 2)
    assert log.high_watermark == 13
    with pytest.raises(InvariantViolation):
        log.durable(7)


def test_append_times_never_go_back() -> None:
    log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
    for now_ms in (100, 50, 120):
        admit(log, now_ms=now_ms)
    send_all(log, 0)
    assert [log.durable(i).header.append_time_ms for i in range(3)] == [100, 100, 120]


def test_ml6_resolve_splits_by_the_closed_ledgers_last_entry() -> None:
    log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
    for _ in range(5):
        admit(log)
    send_all(log, 1)
    admit(log)  # queued while the ledger is down
    assert [a.entry_id for a in log.resolve(2)] == [1, 2]
    assert (log.high_watermark, log.sent, log.queued, log.end_offset) == (2, 0, 4, 6)
    send_all(log, 1)
    for i in range(4):
        assert log.durable(1 + i).header.base_offset == 2 + i


def test_a8_only_batches_in_no_ledger_may_be_called_not_written() -> None:
    log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
    admit(log)
    send_all(log, 1)
    admit(log)
    admit(log)
    dropped = log.drop_queued()
    assert [a.header.base_offset for a in dropped] == [2, 1]
    assert (log.end_offset, log.pending) == (1, 1)


def test_answers_come_once_and_in_append_order() -> None:
    log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
    told = admit(log)
    (append,) = log.queued_batches()
    append.wait(ACKS_ONE, told)
    append.answer_one()
    append.answer(append.appended())
    append.answer(NotLeader("late"))
    assert told.answers == [Appended(0, 100), Appended(0, 100)]


def test_a4_first_copies_answer_in_order() -> None:
    log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
    for _ in range(3):
        admit(log)
    send_all(log, 1)
    one, two, three = log.sent_batches()
    assert log.first_copy(two) == []
    assert log.first_copy(one) == [one, two]
    log.durable(1)
    assert log.first_copy(three) == [three]


# --- caches and budgets -----------------------------------------------------------------------


def test_tail_cache_is_bounded_and_first_in_first_out_over_partitions() -> None:
    cache = TailCache(5 * (1000 + 120))
    one, two = cache.tail(), cache.tail()
    for i in range(4):
        one.append(i, i + 1, bytes(1000))
        two.append(i, i + 1, bytes(1000))
    assert cache.used_bytes <= cache.limit_bytes
    assert (one.start_offset, two.start_offset) == (2, 1)
    assert not one.holds(1)
    assert one.holds(3)
    assert one.bytes_from(2) == 2000
    for offset in (2, 3):
        one.read(offset, 1 << 20, at_least_one=True)  # F078: readers never change the order
    one.append(4, 5, bytes(1000))
    assert two.start_offset == 2
    two.close()
    assert cache.used_bytes == len(one) * 1120


def test_tail_reads_whole_batches_within_the_limit() -> None:
    tail = TailCache(1 << 20).tail()
    for i in range(0, 10, 2):
        tail.append(i, i + 2, b"%d" % i * 100)
    found = tail.read(3, 250, at_least_one=False)
    assert (found.batches, found.next_offset) == ([b"2" * 100, b"4" * 100], 6)
    assert tail.read(3, 50, at_least_one=False).batches == []
    assert tail.read(3, 50, at_least_one=True).next_offset == 4
    with pytest.raises(InvariantViolation):
        tail.append(99, 100, b"hole")


def test_tail_of_many_batches_forgets_in_place() -> None:
    cache = TailCache(100 * (10 + 120))
    tail = cache.tail()
    for i in range(10_000):
        tail.append(i, i + 1, bytes(10))
    assert len(tail) == 100
    assert tail.read(9_950, 25, at_least_one=True).next_offset == 9_952


def test_cold_cache_forgets_the_least_recently_used() -> None:
    cache = ColdCache(3 * (100 + 120))
    for i in range(3):
        cache.put(1, i, bytes(100))
    assert cache.get(1, 0) is not None
    cache.put(1, 3, bytes(100))
    assert [cache.get(1, i) is not None for i in range(4)] == [True, False, True, True]


def test_a_written_reply_keeps_no_bytes_outside_of_the_budget() -> None:
    """BP-2: a stream holds its last reply until the next, which may wait for the budget."""
    budget = ByteBudget(100)
    assert budget.try_take(80)
    result = FetchResult(bytes(40), budget, 80)
    result.written()
    result.written()
    assert (result.message, budget.taken_bytes) == (b"", 0)


async def test_byte_budget_serves_in_order_and_survives_cancellation() -> None:
    budget = ByteBudget(100)
    await budget.take(80)
    assert not budget.try_take(30)
    order: list[str] = []

    async def taker(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    big = asyncio.ensure_future(taker("big", 60))
    small = asyncio.ensure_future(taker("small", 10))
    await asyncio.sleep(0)
    assert order == []  # small does not overtake
    big.cancel()
    await asyncio.gather(big, return_exceptions=True)
    await asyncio.sleep(0)
    assert order == ["small"]
    await small
    budget.release(90)
    assert budget.taken_bytes == 0
    await budget.take(1000)  # one demand above the limit passes when nothing is taken
    assert budget.taken_bytes == 1000


# --- codecs -----------------------------------------------------------------------------------

SNAPSHOT = Snapshot(
    TOPIC_ID,
    3,
    1 << 40,
    9,
    1_700_000_000_000,
    SegmentFigures(1, 2, 3, 4),
    (
        ProducerSnapshot(1, 2, 30, 5, (WindowItem(0, 9, 100, 7), WindowItem(10, 30, 110, 8))),
        ProducerSnapshot(1 << 50, 0, 2147483647, 5, (WindowItem(2147483647, 2147483647, 0, 1),)),
    ),
    (OpenTransaction(5, 77),),
    (AbortedTransaction(6, 1, 2),),
)
FOOTER = Footer(0, 100, 42, SegmentFigures(1, 2, 3, 4), [0, 50], [1, 20], [-(1 << 63), 7])


def test_snapshot_round_trip() -> None:
    data = encode_snapshot(SNAPSHOT)
    assert decode_snapshot(data) == SNAPSHOT
    assert (is_snapshot(data), is_batch(data), is_footer(data)) == (True, False, False)


def test_footer_round_trip() -> None:
    data = encode_footer(FOOTER)
    found = decode_footer(data)
    assert [list(c) for c in (found.offsets, found.entries, found.max_timestamps_before)] == [
        [0, 50],
        [1, 20],
        [-(1 << 63), 7],
    ]
    assert found[:4] == FOOTER[:4]
    assert is_footer(data)


@pytest.mark.parametrize("data", [encode_snapshot(SNAPSHOT), encode_footer(FOOTER)])
def test_every_damaged_byte_and_every_cut_is_noticed(data: bytes) -> None:
    decode = decode_snapshot if is_snapshot(data) else decode_footer
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        with pytest.raises((CorruptEntry, UnsupportedVersion)):
            decode(damaged)
        with pytest.raises(CorruptEntry):
            decode(data[:at])
