"""Where a partition is read from: ranges, resets, first positions, lives of a topic (F5, F6)."""

from __future__ import annotations

import pytest

from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.reading.positions import (
    ABOVE_END_ATTEMPTS,
    Offsets,
    Range,
)
from octavo.client.messaging.reading.readings import (
    Action,
    AskRange,
    FindOwner,
    LearnTopic,
    LifeIsOver,
    LookUp,
    Say,
    Tell,
)
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvariantViolation,
    LogTruncated,
    NoOffsetForPartition,
    OctavoError,
    OffsetOutOfRange,
    RequestRejected,
    RequestTimedOut,
)
from tests.reading_rig import P0, P1, Core, made, only_p0, refuse

# --- ranges and resets (F5) ---------------------------------------------------------------------


def ranged(core: Core, told: Range | OctavoError, now: float = 10.0) -> list[Action]:
    """P0 is refused as out of range, and the range is told, or not."""
    core.reading(P0).retry_at_s = 0.0
    actions = refuse(core, OffsetOutOfRange("no"), now)
    (work,) = (action for action in actions if isinstance(action, AskRange))
    if isinstance(told, OctavoError):
        return core.failed(work, told, now)
    return core.found(work, told, now)


def looked_for(actions: list[Action]) -> list[str | int]:
    return [action.policy for action in actions if isinstance(action, LookUp)]


def test_f5_inside_the_range_reading_goes_on() -> None:  # a stale owner refused it
    core = made()
    reading = only_p0(core, 5)
    ranged(core, Range(0, 5))
    assert (reading.position, reading.error, reading.out_of_range) == (5, None, False)


def test_f5_below_the_start_the_reset_policy_says_where_after_a_pause() -> None:
    core = made(reset="earliest")
    reading = only_p0(core, 5)
    actions = ranged(core, Range(7, 9))
    assert looked_for(actions) == []
    assert any(isinstance(action, Say) for action in actions)
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert looked_for(core.tick(due_s)) == ["earliest"]
    assert reading.position == -1


def test_f5_above_the_end_it_is_asked_again_before_it_counts() -> None:
    core = made(reset="none")
    reading = only_p0(core, 5)
    for number in range(ABOVE_END_ATTEMPTS):
        ranged(core, Range(0, 4), 10.0 + number)
        assert core.take_error() is None
    ranged(core, Range(0, 4), 20.0)
    error = core.take_error()
    assert isinstance(error, LogTruncated)
    assert error.details == {"log_start": 0, "end": 4}
    assert reading.position == 5


def test_f5_a_seek_begins_to_count_anew_how_often_a_position_is_above_the_end() -> None:
    core = made(reset="none")
    for _ in range(3):
        only_p0(core, 5)
        for number in range(ABOVE_END_ATTEMPTS):
            ranged(core, Range(0, 4), 10.0 + number)
        assert core.take_error() is None


def test_a_fault_of_our_own_while_a_range_is_asked_for_is_raised() -> None:
    core = made(reset="earliest")
    reading = only_p0(core, 5)
    assert Tell() in ranged(core, InvariantViolation("ours"))
    assert isinstance(core.take_error(), InvariantViolation)
    assert reading.position == 5


def test_f5_a_range_that_nobody_tells_moves_nothing() -> None:
    core = made(reset="earliest")
    reading = only_p0(core, 5)
    for number in range(20):
        assert looked_for(ranged(core, RequestTimedOut("no"), 10.0 * (number + 1))) == []
    assert (reading.position, reading.error) == (5, None)


def test_f5_the_range_of_another_topic_proves_nothing() -> None:
    core = made(reset="earliest")
    reading = only_p0(core, 5)
    reading.topic_id = b"mine"
    assert LearnTopic("t") in ranged(core, Range(7, 9, b"other"))
    assert reading.position == 5


def test_f6_an_offset_that_the_user_named_and_that_is_none_is_an_error() -> None:
    core = made(reset="earliest")
    only_p0(core)
    core.seek(P0, 9, 0.0, chosen=True)
    for number in range(ABOVE_END_ATTEMPTS + 1):
        ranged(core, Range(0, 4), 10.0 + number)
    error = core.take_error()
    assert isinstance(error, OffsetOutOfRange)
    assert error.details["end"] == 4


# --- first positions (F6) -----------------------------------------------------------------------


def begun(core: Core, policy: str | int = "earliest") -> LookUp:
    (work,) = (a for a in core.assign([P0], policy, 0.0) if isinstance(a, LookUp))
    return work


def test_f6_a_position_is_looked_up_once() -> None:
    core = made()
    core.assign([], None, 0.0)
    work = begun(core, "latest")
    assert looked_for(core.said(1.0)) == []  # under way
    core.found(work, Offsets({P0: 7}, {P0: b"id"}), 1.0)
    assert (core.reading(P0).position, core.reading(P0).topic_id) == (7, b"id")
    assert looked_for(core.said(9.0)) == []
    core.validate()


def test_f6_a_failed_look_up_is_repeated_after_a_pause_and_after_its_error_was_raised() -> None:
    core = made()
    core.assign([], None, 0.0)
    core.failed(begun(core), RequestRejected("no"), 1.0)
    assert core.next_deadline_s() is None
    assert isinstance(core.take_error(), RequestRejected)
    core.said(1.0)
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert due_s > 1.0
    assert looked_for(core.tick(due_s)) == ["earliest"]


def test_f6_with_policy_none_every_poll_is_told() -> None:
    core = made(reset="none")
    core.assign([], None, 0.0)
    assert Tell() in core.assign([P0], None, 0.0)
    assert isinstance(core.take_error(), NoOffsetForPartition)
    core.said(0.0)
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert core.tick(due_s) == [Tell()]
    assert isinstance(core.take_error(), NoOffsetForPartition)


def test_f8_a_look_up_that_a_seek_overtook_changes_nothing() -> None:
    core = made()
    core.assign([], None, 0.0)
    work = begun(core)
    assert work.wanted
    core.seek(P0, 3, 0.0)
    assert not work.wanted
    core.found(work, Offsets({P0: 7}, {}), 1.0)
    assert core.reading(P0).position == 3


def test_f8_a_lost_look_up_that_a_seek_overtook_does_not_begin_the_new_one_twice() -> None:
    core = made()
    core.assign([], None, 0.0)
    late = begun(core)
    assert looked_for(core.seek_by([P0], "latest", 0.0)) == ["latest"]
    assert looked_for(core.lost(late, 1.0)) == []
    core.validate()


@pytest.mark.parametrize("kind", [LookUp, FindOwner, AskRange])
def test_work_whose_task_was_cancelled_by_somebody_is_begun_again(kind: type) -> None:
    core = made()
    core.assign([], None, 0.0)
    first = begun(core)
    work: LookUp | FindOwner | AskRange = first
    if kind is not LookUp:
        actions = core.found(first, Offsets({P0: 0}, {}), 0.0)
        (work,) = (one for one in actions if isinstance(one, FindOwner))
    if kind is AskRange:
        core.found(work, "a", 0.0)
        actions = refuse(core, OffsetOutOfRange("no"))
        (work,) = (action for action in actions if isinstance(action, AskRange))
    assert core.lost(work, 20.0) == [work]


# --- lives of a topic ---------------------------------------------------------------------------


def view(number: int, partitions: int = 2) -> TopicView:
    return TopicView("t", partitions, ("a",) * partitions, topic_id=b"life %d" % number)


def test_the_next_life_of_a_followed_topic_is_read_from_its_start() -> None:  # F6
    views = {"t": view(1)}
    core = made(views=views)
    core.assign([P0, P1], None, 0.0, followed=["t"])
    core.at(P0, 5)
    core.at(P1, 5)
    views["t"] = view(2, partitions=1)
    actions = core.view_changed(views["t"], 0.0)
    assert looked_for(actions) == ["earliest"]  # although the policy is latest
    assert list(core.readings) == [P0]
    assert any(isinstance(action, Say) for action in actions)


def test_a_position_in_a_life_that_is_over_is_an_error_without_the_name() -> None:
    views = {"t": view(1)}
    core = made(views=views)
    only_p0(core, 5)
    actions = refuse(core, InconsistentTopicId("another"))
    assert LifeIsOver("t", b"life 1") in actions
    assert isinstance(core.take_error(), InconsistentTopicId)
    assert core.reading(P0).position == 5


def test_a_reading_up_to_known_ends_does_not_go_on_in_another_topic() -> None:
    """Its ends are of the topic that is gone: they say nothing of the one that has the name."""
    views = {"t": view(1)}
    core = made(views=views)
    core.assign([P0, P1], None, 0.0, followed=["t"])
    only_p0(core, 5)
    core.focus({P0: 9}, 0.0)
    refuse(core, InconsistentTopicId("another"))
    assert isinstance(core.take_error(), InconsistentTopicId)
    views["t"] = view(2)
    core.view_changed(views["t"], 11.0)
    assert isinstance(core.take_error(), InconsistentTopicId)
    assert core.reading(P0).position == 5


def test_a_look_up_in_another_topic_than_metadata_know_is_done_again() -> None:
    """Taken in, it would be over at once, and looked up again without end."""
    views = {"t": view(1)}
    core = made(views=views)
    core.assign([], None, 0.0)
    work = begun(core)
    assert LearnTopic("t") in core.found(work, Offsets({P0: 7}, {P0: b"life 2"}), 1.0)
    assert (core.reading(P0).position, core.reading(P0).error) == (-1, None)
    due_s = core.next_deadline_s()
    assert due_s is not None
    assert due_s > 1.0
    views["t"] = view(2)
    (again,) = (action for action in core.tick(due_s) if isinstance(action, LookUp))
    core.found(again, Offsets({P0: 7}, {P0: b"life 2"}), due_s)
    assert core.reading(P0).position == 7


def test_f6_a_partition_that_came_later_begins_at_its_start_beside_others_by_the_policy() -> None:
    core = made()
    core.assign([], None, 0.0)
    actions = core.assign([P0, P1], {P1: "earliest"}, 0.0)
    looks = {action.policy: action.marks for action in actions if isinstance(action, LookUp)}
    assert {policy: [mark.reading.where for mark in marks] for policy, marks in looks.items()} == {
        "latest": [P0],
        "earliest": [P1],
    }
    core.validate()
