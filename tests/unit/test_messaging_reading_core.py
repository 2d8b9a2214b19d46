"""The reading core: positions, prefetch, seeks, damage (F2, F3, F5, F8, F9)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.reading.positions import (
    UNKNOWN_TOPIC_ATTEMPTS,
)
from octavo.client.messaging.reading.readings import (
    Action,
    Answer,
    FindOwner,
    Interrupt,
    LookUp,
    OpenStream,
    OwnerIs,
    Tell,
    Wake,
)
from octavo.client.messaging.reading.requests import PARTIAL_WAIT_MS
from octavo.client.messaging.records import TopicPartition
from octavo.proto import batch as batch_format
from octavo.runtime.errors import (
    CorruptBatch,
    IllegalStateError,
    NotLeader,
    RequestRejected,
    UnknownTopic,
)
from tests.broker_model import PartitionModel
from tests.reading_rig import P0, P1, answer, ask, log, made, only_p0, refuse


def test_records_in_order_and_the_position_follows_what_was_handed_out() -> None:
    core = made()
    reading = only_p0(core)
    answer(core, ask(core), {P0: log(3, 2)})
    assert [record.offset for record in core.take_records(2)] == [0, 1]
    assert reading.position == 2
    assert [record.value for record in core.take_records(10)] == [b"2", b"3", b"4"]
    assert (reading.position, reading.fetch_at, core.buffers.buffered_bytes) == (5, 5, 0)
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
    core.answered(ask(core), {P0: Answer([], 17, None)}, 0.0)
    assert (reading.position, reading.fetch_at) == (17, 17)


def test_f8_after_a_seek_nothing_old_is_delivered() -> None:
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(5)})
    late = ask(core)
    core.at(P0, 1)
    assert core.take_records(10) == []
    answer(core, late, {P0: log(5, 5)})  # asked before the seek
    assert core.take_records(10) == []
    answer(core, ask(core), {P0: log(5)})
    assert core.take_records(10)[0].offset == 1


def test_f8_seek_before_assignment() -> None:
    with pytest.raises(IllegalStateError):
        made().at(TopicPartition("t", 9), 0)


def test_prefetch_is_bounded_per_partition_and_in_total() -> None:
    core = made(partition=100)
    core.at(P0, 0)
    core.at(P1, 0)
    answer(core, ask(core), {P0: log(50), P1: PartitionModel()})
    assert core.reading(P0).buffered_bytes > 100
    plan = ask(core)
    assert [one.reading.where for one in plan.asks] == [P1]
    assert plan.max_wait_ms == PARTIAL_WAIT_MS  # P0 may drain while this waits
    core = made(prefetch=100)
    core.at(P0, 0)
    answer(core, ask(core), {P0: log(50)})
    core.at(P1, 0)
    assert core.plan("a", 0.0) is None


def test_partitions_take_turns() -> None:  # F108
    core = made()
    core.at(P0, 0)
    core.at(P1, 0)
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
    core.answered(ask(core), {P0: Answer(damaged(model, 1), 4, None)}, 1.0)
    assert len(core.take_records(10)) == 2
    assert core.take_error() is None
    plan = ask(core)
    assert plan.asks[0].offset == 2
    core.answered(plan, {P0: Answer(damaged(model, 1)[1:], 4, None)}, 1.0)
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
    core.answered(ask(core), {P0: Answer(damaged(model, 0), 2, None)}, 1.0)
    answer(core, ask(core), {P0: model})
    assert len(core.take_records(10)) == 2
    assert core.take_error() is None


def test_f9_a_batch_that_does_not_decode_counts_as_damage() -> None:
    core = made()
    only_p0(core)
    body = b"\0" * 8
    bad = batch_format.seal([body], 3, (1, 1), flags=0, codec=0, producer=(-1, -1, -1), schema_id=0)
    for _ in range(2):
        core.answered(ask(core), {P0: Answer([bytes(bad)], 3, None)}, 1.0)
        assert core.take_records(10) == []
    assert isinstance(core.take_error(), CorruptBatch)


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


def test_a_failed_request_frees_its_partitions_and_forgets_the_owner() -> None:
    core = made()
    reading = only_p0(core)
    plan = ask(core)
    assert core.plan("a", 0.0) is None
    core.request_failed(plan, 4.0)
    assert (reading.owner, reading.asked) == ("", False)
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert due_s > 4.0
    assert core.tick(4.0) == []
    assert core.tick(due_s) == [FindOwner(reading, fresh=True, avoid="")]


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
    core.assign([P0], None, 0.0)
    assert len(core.take_records(10)) == 2
    (begun,) = (one for one in core.assign([P1], None, 0.0) if isinstance(one, LookUp))
    assert [mark.reading.where for mark in begun.marks] == [P1]
    assert core.buffers.buffered_bytes == 0


def test_paused_buffers_are_given_up_when_another_partition_needs_the_room() -> None:
    core = made(prefetch=100)
    core.at(P0, 0)
    answer(core, ask(core), {P0: log(50)})
    core.take_records(3)
    core.reading(P0).paused = True
    core.at(P1, 0)
    plan = ask(core)
    assert [one.reading.where for one in plan.asks] == [P1]
    assert core.buffers.buffered_bytes == 0
    core.request_interrupted(plan, 0.0)
    core.reading(P1).paused = True
    core.resume([P0], 0.0)
    answer(core, ask(core), {P0: log(50)})
    assert core.take_records(1)[0].offset == 3  # fetched again: nothing is lost with the buffer


def test_nothing_is_asked_for_behind_the_ends_of_the_reading_under_way() -> None:
    core = made()
    core.at(P0, 5)
    core.at(P1, 0)
    core.focus({P0: 5, P1: 2}, 0.0)
    plan = ask(core)
    assert [one.reading.where for one in plan.asks] == [P1]
    core.request_interrupted(plan, 0.0)
    core.reading(P1).paused = True
    core.focus(None, 0.0)
    assert [one.reading.where for one in ask(core).asks] == [P0]


def test_each_broker_gets_its_share_of_the_budget() -> None:
    core = made(prefetch=1000)
    core.at(P0, 0)
    core.at(P1, 0)
    core.reading(P1).owner = "b"
    assert ask(core).max_bytes == 500


@pytest.mark.parametrize("what", ["error", "paused", "asked", "past"])
def test_what_waits_for_something_else_has_no_time_to_wake_for(what: str) -> None:
    core = made()
    reading = only_p0(core)
    reading.retry_at_s = 3.0
    core.said(2.0)
    assert core.next_deadline_s() == 3.0
    match what:
        case "error":
            reading.error = RequestRejected("no")
        case "paused":
            reading.paused = True
        case "asked":
            reading.asked = True
        case _:
            reading.retry_at_s = 1.0
    core.said(2.0)
    assert core.next_deadline_s() is None


def test_handout_parks_releases_forgets_and_keeps_order() -> None:
    core = made()
    core.at(P0, 0)
    core.at(P1, 0)
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


# --- owners and streams -------------------------------------------------------------------------


def test_a_first_owner_opens_a_stream_and_an_interrupted_request_is_asked_again() -> None:
    core = made()
    core.reading(P1).paused = True
    first: list[Action] = [Interrupt("a"), OpenStream("a"), Wake("a"), Tell()]
    assert core.seek(P0, 0, 0.0) == first
    plan = ask(core)
    assert core.plan("a", 0.0) is None  # one at a time
    assert core.request_interrupted(plan, 0.0) == [Wake("a")]
    assert [one.offset for one in ask(core).asks] == [0]
    assert core.stream_lost("a", 0.0) == [OpenStream("a"), Wake("a")]


def test_a_new_owner_is_remembered_for_others() -> None:
    core = made()
    only_p0(core)
    actions = refuse(core, NotLeader("moved", owner_address="b"))
    assert OwnerIs(P0, "b") in actions
    assert [action for action in actions if isinstance(action, OpenStream)] == [OpenStream("b")]


def test_what_requests_under_way_may_bring_counts_in_the_budget() -> None:
    core = made(prefetch=1000)
    core.at(P0, 0)
    core.at(P1, 0)
    core.reading(P1).owner = "b"
    core.said(0.0)
    first, second = core.plan("a", 0.0), core.plan("b", 0.0)
    assert first is not None
    assert second is not None
    assert (first.max_bytes, second.max_bytes) == (500, 500)
    core.request_interrupted(first, 0.0)
    third = core.plan("a", 0.0)
    assert third is not None
    assert third.max_bytes == 500
    core.validate()


# --- giving back --------------------------------------------------------------------------------


def test_f9_what_reached_nobody_is_handed_out_again() -> None:
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(5)})
    touched = core.buffers.taking = {}
    assert len(core.take_records(3)) == 3
    assert touched[P0] == 0
    core.go_back(touched, 0.0)
    assert core.buffers.buffered_bytes == 0
    answer(core, ask(core), {P0: log(5)})
    assert [record.offset for record in core.take_records(9)] == [0, 1, 2, 3, 4]


def test_a_position_that_moved_elsewhere_meanwhile_stays() -> None:
    core = made()
    only_p0(core, 5)
    core.go_back({P0: 7, TopicPartition("t", 9): 1}, 0.0)
    assert core.reading(P0).position == 5
    core.seek_by([P0], "latest", 0.0)
    core.go_back({P0: 3}, 0.0)
    assert core.reading(P0).position == -1
