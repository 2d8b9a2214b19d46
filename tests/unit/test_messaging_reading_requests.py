"""What is asked for, when, and of whom: turns, pauses, room, streams that break (F2, F8)."""

from __future__ import annotations

from octavo.client.messaging.reading.readings import (
    Answer,
    FindOwner,
    Interrupt,
    OpenStream,
    Plan,
    Tell,
    Wake,
)
from octavo.client.messaging.records import TopicPartition
from octavo.proto import batch as batch_format
from octavo.proto.batch import BatchHeader
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import InvariantViolation
from tests.reading_rig import P0, P1, Core, answer, ask, log, made, only_p0


def two_brokers(prefetch: int) -> tuple[Core, Plan]:
    """P0 at broker a, which was asked, and P1 at b."""
    core = made(prefetch=prefetch)
    core.at(P0, 0)
    plan = ask(core)
    core.reading(P1).owner = "b"
    core.at(P1, 0)
    return core, plan


def test_f2_no_partition_is_first_in_every_request() -> None:
    core = made()
    core.at(P0, 0)
    core.at(P1, 0)
    firsts: list[TopicPartition] = []
    for _ in range(4):
        plan = ask(core)
        firsts.append(plan.asks[0].reading.where)
        core.answered(plan, {}, 0.0)
    assert firsts == [P0, P1, P0, P1]


def test_a_broker_without_room_is_woken_by_the_reply_that_makes_some() -> None:
    core, plan = two_brokers(prefetch=1000)
    assert plan.max_bytes == 1000  # P1 had no position yet
    assert core.plan("b", 0.0) is None
    assert Wake("b") in core.answered(plan, {P0: Answer([], 0, None)}, 0.0)
    after = core.plan("b", 0.0)
    assert after is not None
    assert after.max_bytes == 500


def test_a_reply_that_changes_nothing_costs_nothing() -> None:
    core = made()
    only_p0(core)
    assert core.answered(ask(core), {P0: Answer([], 0, None)}, 0.0) == []
    assert core.answered(ask(core), {P0: Answer([], 3, None)}, 0.0) == [Tell()]


def test_pauses_between_failed_requests_grow_until_one_is_answered() -> None:
    core = made()
    pauses: list[float] = []
    now = 0.0
    for number in range(6):
        core.reading(P0).owner = "a"
        only_p0(core)
        if number == 5:
            core.answered(ask(core, now), {P0: Answer([], 0, None)}, now)
        core.request_failed(ask(core, now), now)
        until_s = core.requests.streams["a"].retry_at_s
        assert core.plan("a", until_s - 0.001) is None
        pauses.append(until_s - now)
        now = until_s
    assert pauses[3] > 3 * pauses[0]
    assert pauses[5] < pauses[0] * 1.6  # the first one again, but for jitter


def test_resume_ends_the_wait_of_a_request_that_leaves_the_partition_out() -> None:
    core = made()
    core.at(P0, 0)
    core.at(P1, 0)
    core.pause([P0], 0.0)
    plan = ask(core)
    assert [one.reading.where for one in plan.asks] == [P1]
    assert Interrupt("a") in core.resume([P0], 0.0)
    core.request_interrupted(plan, 0.0)
    assert {one.reading.where for one in ask(core).asks} == {P0, P1}
    assert Interrupt("a") not in core.resume([P0], 0.0)  # nothing was paused


def test_a_fault_of_our_own_at_a_broker_is_raised_and_its_buffers_are_fetched_again() -> None:
    core = made()
    reading = only_p0(core)
    answer(core, ask(core), {P0: log(4)})
    core.take_records(1)
    ask(core)
    assert Tell() in core.stream_broken("a", InvariantViolation("ours"), 1.0)
    core.validate()
    assert (reading.position, reading.fetch_at, reading.buffered_bytes) == (1, 1, 0)
    assert isinstance(core.take_error(), InvariantViolation)
    core.said(1.0)
    assert core.plan("a", 1.0) is None  # after a pause
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert Wake("a") in core.tick(due_s)
    answer(core, ask(core, due_s), {P0: log(4)})
    assert [record.offset for record in core.take_records(9)] == [1, 2, 3]


def test_a_lost_stream_is_opened_again_with_what_was_asked_there() -> None:
    core = made()
    only_p0(core)
    plan = ask(core)
    actions = core.stream_lost("a", 0.0)
    assert [OpenStream("a"), Wake("a")] == [one for one in actions if one != Tell()]
    assert ask(core).asks == plan.asks
    core.validate()


def test_a_search_that_names_a_new_owner_opens_its_stream() -> None:
    core = made()
    reading = only_p0(core)
    reading.owner = ""
    (work,) = (one for one in core.said(0.0) if isinstance(one, FindOwner))
    assert [OpenStream("b"), Wake("b")] == core.found(work, "b", 0.0)
    assert core.plan("b", 0.0) is not None


def test_f2_a_batch_wholly_below_the_position_changes_nothing() -> None:
    core = made()
    reading = only_p0(core, 4)
    model = log(4, 2)
    below = Answer([model.batches[0]], 4, None)
    assert core.answered(ask(core), {P0: below}, 0.0) == []
    assert (reading.fetch_at, reading.buffered_bytes, len(reading.buffer)) == (4, 0, 0)
    core.validate()


def test_f8_rows_after_a_part_of_a_batch_was_handed_out_whole_do_not_come_twice() -> None:
    core = made()
    only_p0(core)
    answer(core, ask(core), {P0: log(6)})
    assert [record.offset for record in core.take_records(1)] == [0]

    def part(
        _: TopicPartition, batch: Buffer, header: BatchHeader, first: int, end: int
    ) -> list[int]:
        return [at for at in batch_format.decode_rows(batch).offsets if first <= at < end]

    assert core.buffers.take_batches(1 << 20, part, {P0: 4}) == [[1, 2, 3]]
    assert [record.offset for record in core.take_records(9)] == [4, 5]
