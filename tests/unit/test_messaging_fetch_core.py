"""The reading core: positions, prefetch, seeks, damage (F2, F3, F5, F8, F9)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.reading.fetch_core import (
    PARTIAL_WAIT_MS,
    UNKNOWN_TOPIC_ATTEMPTS,
    Answer,
    FetchCore,
    FetchLimits,
    Plan,
    Reading,
)
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.records import TopicPartition
from octavo.proto import batch as batch_format
from octavo.runtime.errors import (
    CorruptBatch,
    IllegalStateError,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    RequestRejected,
    UnknownTopic,
)
from tests.broker_model import PartitionModel

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def made(prefetch: int = 1 << 20, partition: int = 1 << 20) -> FetchCore:
    core = FetchCore(
        FetchLimits(
            max_bytes=1 << 20,
            partition_bytes=1 << 20,
            prefetch_bytes=prefetch,
            prefetch_partition_bytes=partition,
            max_wait_ms=500,
        )
    )
    core.assign([P0, P1])
    for reading in core.readings.values():
        reading.owner = "a"
    return core


def log(*counts: int) -> PartitionModel:
    model = PartitionModel()
    number = 0
    for count in counts:
        values: list[bytes | None] = [b"%d" % (number + n) for n in range(count)]
        model.append(batch_format.encode([5] * count, [b"k"] * count, values), 9)
        number += count
    return model


def answer(core: FetchCore, plan: Plan, models: dict[TopicPartition, PartitionModel]) -> None:
    for ask in plan.asks:
        model = models[ask.reading.where]
        batches, following = model.read(ask.offset, 1 << 20)
        core.answered(ask, Answer(batches, following, model.log_start, model.end, None), 1.0)


def only_p0(core: FetchCore, position: int = 0) -> Reading:
    core.seek(P0, position)
    core.reading(P1).paused = True
    return core.reading(P0)


def ask(core: FetchCore, now: float = 0.0) -> Plan:
    plan = core.plan("a", now)
    assert plan is not None
    return plan


def test_records_in_order_and_the_position_follows_what_was_handed_out() -> None:
    core = made()
    reading = only_p0(core)
    answer(core, ask(core), {P0: log(3, 2)})
    assert [record.offset for record in core.take_records(2)] == [0, 1]
    assert reading.position == 2
    assert [record.value for record in core.take_records(10)] == [b"2", b"3", b"4"]
    assert (reading.position, reading.fetch_at, core.buffered_bytes) == (5, 5, 0)
    assert core.take_records(10) == []


def test_records_below_the_position_are_dropped() -> None:  # F2
    core = made()
    only_p0(core, 2)
    answer(core, ask(core), {P0: log(5)})
    assert [record.offset for record in core.take_records(10)] == [2, 3, 4]


def test_f3_control_tail_moves_the_position_without_records() -> None:
    core = made()
    reading = only_p0(core)
    model = log(2)
    model.append_control(1)
    answer(core, ask(core), {P0: model})
    assert len(core.take_records(10)) == 2
    assert reading.position == 3
    model.append_control(1)
    answer(core, ask(core), {P0: model})
    assert reading.position == 4  # nobody polled: lag can reach 0 all the same


def test_f3_next_offset_is_adopted_when_no_batch_comes() -> None:
    core = made()
    reading = only_p0(core)
    (one,) = ask(core).asks
    core.answered(one, Answer([], 17, 0, 17, None), 0.0)
    assert (reading.position, reading.fetch_at) == (17, 17)


def test_f8_after_a_seek_nothing_old_is_delivered() -> None:
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(5)})
    late = ask(core)
    core.seek(P0, 1)
    assert core.take_records(10) == []
    answer(core, late, {P0: log(5, 5)})  # asked before the seek
    assert core.take_records(10) == []
    answer(core, ask(core), {P0: log(5)})
    assert core.take_records(10)[0].offset == 1


def test_f8_seek_before_assignment() -> None:
    with pytest.raises(IllegalStateError):
        made().seek(TopicPartition("t", 9), 0)


def test_prefetch_is_bounded_per_partition_and_in_total() -> None:
    core = made(partition=100)
    core.seek(P0, 0)
    core.seek(P1, 0)
    answer(core, ask(core), {P0: log(50), P1: PartitionModel()})
    assert core.reading(P0).buffered_bytes > 100
    plan = ask(core)
    assert [one.reading.where for one in plan.asks] == [P1]
    assert plan.max_wait_ms == PARTIAL_WAIT_MS  # P0 may drain while this waits
    core = made(prefetch=100)
    core.seek(P0, 0)
    answer(core, ask(core), {P0: log(50)})
    core.seek(P1, 0)
    assert core.plan("a", 0.0) is None


def test_partitions_take_turns() -> None:  # F108
    core = made()
    core.seek(P0, 0)
    core.seek(P1, 0)
    answer(core, ask(core), {P0: log(10), P1: log(10)})
    firsts = [core.take_records(3)[0].partition for _ in range(4)]
    assert set(firsts[:2]) == {0, 1}


def test_paused_partitions_are_neither_asked_nor_handed_out() -> None:
    core = made()
    reading = only_p0(core)
    answer(core, ask(core), {P0: log(2)})
    reading.paused = True
    assert core.take_records(10) == []
    assert core.plan("a", 0.0) is None
    reading.paused = False
    assert len(core.take_records(10)) == 2


def damaged(model: PartitionModel, index: int) -> list[bytes]:
    batches = list(model.batches)
    batches[index] = batches[index][:-1] + bytes([batches[index][-1] ^ 1])
    return batches


def test_f9_damage_is_refetched_once_then_raised_and_never_skipped() -> None:
    core = made()
    reading = only_p0(core)
    model = log(2, 2)
    (one,) = ask(core).asks
    core.answered(one, Answer(damaged(model, 1), 4, 0, 4, None), 1.0)
    assert len(core.take_records(10)) == 2
    assert core.take_error() is None
    (one,) = ask(core).asks
    assert one.offset == 2
    core.answered(one, Answer(damaged(model, 1)[1:], 4, 0, 4, None), 1.0)
    error = core.take_error()
    assert isinstance(error, CorruptBatch)
    assert (error.details["partition"], error.details["offset"]) == (0, 2)
    assert reading.position == 2
    answer(core, ask(core), {P0: model})
    assert [record.offset for record in core.take_records(10)] == [2, 3]


def test_f9_a_good_refetch_hides_the_damage() -> None:
    core = made()
    only_p0(core)
    model = log(2)
    (one,) = ask(core).asks
    core.answered(one, Answer(damaged(model, 0), 2, 0, 2, None), 1.0)
    answer(core, ask(core), {P0: model})
    assert len(core.take_records(10)) == 2
    assert core.take_error() is None


def test_f9_a_batch_that_does_not_decode_counts_as_damage() -> None:
    core = made()
    only_p0(core)
    body = b"\0" * 8
    bad = batch_format.seal([body], 3, (1, 1), flags=0, codec=0, producer=(-1, -1, -1), schema_id=0)
    for _ in range(2):
        (one,) = ask(core).asks
        core.answered(one, Answer([bytes(bad)], 3, 0, 3, None), 1.0)
        assert core.take_records(10) == []
    assert isinstance(core.take_error(), CorruptBatch)


def refuse(core: FetchCore, error: OctavoError, now: float = 10.0) -> OctavoError | None:
    (one,) = ask(core, now).asks
    return core.answered(one, Answer([], 0, 0, 0, error), now + 0.1)


def test_not_leader_follows_the_hint_at_once() -> None:
    core = made()
    reading = only_p0(core)
    refuse(core, NotLeader("moved", owner_address="b"))
    assert (reading.owner, reading.retry_at_s) == ("b", 0.0)
    reading.owner = "a"
    refuse(core, NotLeader("moved", owner_address="b"))
    assert reading.retry_at_s > 10.0  # a second time: with back-off


def test_unknown_topic_is_retried_then_raised() -> None:
    core = made()
    reading = only_p0(core)
    for number in range(UNKNOWN_TOPIC_ATTEMPTS):
        assert core.take_error() is None
        reading.owner = "a"
        refuse(core, UnknownTopic("none"), 10.0 * (number + 1))
    assert isinstance(core.take_error(), UnknownTopic)


def test_other_refusals_are_raised_after_the_buffered_records() -> None:  # F7
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(2)})
    refuse(core, RequestRejected("no"))
    assert core.take_error() is None
    core.take_records(10)
    assert isinstance(core.take_error(), RequestRejected)
    assert core.take_error() is None


def test_f5_out_of_range_is_for_the_shell() -> None:
    core = made()
    only_p0(core)
    error = OffsetOutOfRange("no")
    assert refuse(core, error) is error


def test_a_failed_request_frees_its_partitions_and_forgets_the_owner() -> None:
    core = made()
    reading = only_p0(core)
    plan = ask(core)
    assert core.plan("a", 0.0) is None
    core.failed(plan, 5.0)
    assert (reading.owner, reading.asked) == ("", False)
    assert core.ownerless(4.0) == []
    assert core.ownerless(5.0) == [reading]


def test_limits_stop_in_the_middle_of_a_batch_and_later_polls_go_on() -> None:
    core = made()
    reading = only_p0(core)
    answer(core, ask(core), {P0: log(5)})
    assert [r.offset for r in core.take_records(10, {P0: 3})] == [0, 1, 2]
    assert reading.position == 3
    assert core.take_records(10, {P0: 3}) == []
    assert [r.offset for r in core.take_records(10)] == [3, 4]


def test_reassignment_keeps_the_state_of_kept_partitions() -> None:
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(2)})
    assert core.assign([P0]) == []
    assert len(core.take_records(10)) == 2
    (fresh,) = core.assign([P1])
    assert fresh.where == P1
    assert core.buffered_bytes == 0


def test_paused_buffers_are_given_up_when_another_partition_needs_the_room() -> None:
    core = made(prefetch=100)
    core.seek(P0, 0)
    answer(core, ask(core), {P0: log(50)})
    core.take_records(3)
    core.reading(P0).paused = True
    core.seek(P1, 0)
    assert [one.reading.where for one in ask(core).asks] == [P1]
    assert core.buffered_bytes == 0
    core.reading(P0).paused = False
    answer(core, ask(core), {P0: log(50)})
    assert core.take_records(1)[0].offset == 3  # fetched again: nothing is lost with the buffer


def test_nothing_is_asked_for_behind_the_ends_of_the_reading_under_way() -> None:
    core = made()
    core.seek(P0, 5)
    core.seek(P1, 0)
    core.ends = {P0: 5, P1: 2}
    assert [one.reading.where for one in ask(core).asks] == [P1]
    core.ends = None
    assert [one.reading.where for one in ask(core).asks] == [P0]


def test_each_broker_gets_its_share_of_the_budget() -> None:
    core = made(prefetch=1000)
    core.seek(P0, 0)
    core.seek(P1, 0)
    core.reading(P1).owner = "b"
    assert ask(core).max_bytes == 500


@pytest.mark.parametrize("what", ["error", "paused", "asked", "full", "past"])
def test_what_waits_for_something_else_has_no_time_to_wake_for(what: str) -> None:
    core = made(partition=10)
    reading = only_p0(core)
    reading.retry_at_s = 3.0
    assert core.next_retry_s("a", 2.0) == 3.0
    match what:
        case "error":
            reading.error = RequestRejected("no")
        case "paused":
            reading.paused = True
        case "asked":
            reading.asked = True
        case "full":
            reading.retry_at_s = 0.0
        case _:
            reading.retry_at_s = 1.0
    assert core.next_retry_s("a", 2.0) is None


def test_handout_parks_releases_forgets_and_keeps_order() -> None:
    core = made()
    core.seek(P0, 0)
    core.seek(P1, 0)
    answer(core, ask(core), {P0: log(3), P1: log(3)})
    handout = Handout()
    handout.ready.extend(core.take_records(10))
    first = handout.take(1)[0]
    other = P1 if first.topic_partition == P0 else P0
    handout.park([other])
    assert {record.topic_partition for record in handout.ready} == {first.topic_partition}
    assert handout.first_offset(other) == 0
    handout.release([other])
    assert [r.offset for r in handout.ready if r.topic_partition == other] == [0, 1, 2]
    handout.park([other])
    handout.keep([other])
    assert (list(handout.ready), handout.first_offset(first.topic_partition)) == ([], None)
    assert [record.offset for record in handout.drain()] == [0, 1, 2]
    assert handout.first_offset(other) is None
