"""The member of a group, step by step (RB10 to RB13): what it says, and what its user hears."""

from __future__ import annotations

import pytest

from octavo.client.messaging.membership.member_core import MemberCore
from octavo.client.messaging.membership.values import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Action,
    Beat,
    Begin,
    Drop,
    GiveUp,
    MemberSettings,
    MemberState,
    Refused,
    Slot,
    Start,
    Stop,
    Task,
    Told,
)
from octavo.proto.group_records import Subscription
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import InvariantViolation

A, B, C = (Slot("t", number, b"id") for number in range(3))


class TakesTheNewestInBetween(MemberCore):
    """RB11, planted: a further reply replaces the change that is being carried out."""

    def answered(self, sequence: int, told: Told, now_s: float) -> list[Action]:
        self._change = None
        return super().answered(sequence, told, now_s)


class Play:
    """A member whose coordinator answers as it is told, at once."""

    core_type: type[MemberCore] = MemberCore

    def __init__(self, *, auto_commit: bool = False, idle_s: float = 300.0) -> None:
        settings = MemberSettings(auto_commit=auto_commit, max_poll_interval_s=idle_s)
        self.core = self.core_type(settings, SeededEntropy(1))
        self.now_s = 100.0
        self.beat: Beat | None = None
        self.seen: list[Action] = []
        self.do(self.core.subscribe(Subscription(frozenset({"t"})), self.now_s))
        self.do(self.core.entered(self.now_s))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Beat):
                assert self.beat is None
                self.beat = action
            elif isinstance(action, GiveUp):
                assert self.beat is not None
                assert self.beat.sequence == action.sequence
                self.beat = None
        self.seen += actions
        self.core.validate()

    def told(self, epoch: int, number: int, *slots: Slot) -> None:
        beat, self.beat = self.beat, None
        assert beat is not None
        told = Told(epoch, number, frozenset(slots))
        self.do(self.core.answered(beat.sequence, told, self.now_s))

    def quiet(self, epoch: int, after_s: float = 3.0) -> None:
        """The coordinator held it, and has nothing to tell."""
        self.now_s += after_s
        beat, self.beat = self.beat, None
        assert beat is not None
        self.do(self.core.answered(beat.sequence, Told(epoch), self.now_s))

    def user(self, task: Task, *slots: Slot) -> None:
        duty = self.core.duty
        assert duty is not None
        assert (duty.task, duty.slots) == (task, slots)
        self.core.begun(duty)
        self.do(self.core.done(duty, self.now_s))

    def found(self) -> None:
        begin = next(one for one in reversed(self.seen) if isinstance(one, Begin))
        self.do(self.core.positions_known(begin.number, self.now_s))

    def joined(self, *slots: Slot) -> Play:
        self.told(1, 1, *slots)
        self.found()
        self.user(Task.ASSIGNED, *slots)
        return self

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.do(self.core.tick(self.now_s))


def state(play: Play) -> MemberState:
    return play.core.state


def test_rb11_an_assignment_step_by_step() -> None:
    play = Play(auto_commit=True).joined(A, B)
    assert state(play) is MemberState.STABLE
    play.seen.clear()
    play.told(1, 2, A, C)
    assert play.seen[0] == Stop((B,))
    assert state(play) is MemberState.RECONCILING
    play.user(Task.COMMIT, B)
    waiting = play.beat
    play.user(Task.REVOKED, B)
    assert waiting is not None
    assert GiveUp(waiting.sequence) in play.seen, "the coordinator holds it, and waits for this"
    assert play.beat is not None
    assert (play.beat.owned, play.beat.applied) == (frozenset({A}), 2)
    assert Drop((B,)) in play.seen
    assert state(play) is MemberState.ACKNOWLEDGING
    assert play.core.duty is None, "where C begins is looked up"
    play.found()
    play.user(Task.ASSIGNED, C)
    assert Start((C,)) in play.seen
    assert play.core.owned == {A, C}


def test_rb11_a_further_reply_is_taken_afterwards() -> None:
    play = Play().joined(A, B)
    play.told(1, 2, A)
    play.told(1, 3, C)
    play.user(Task.REVOKED, B)
    play.user(Task.ASSIGNED)
    play.user(Task.REVOKED, A)
    assert play.beat is not None
    assert play.beat.applied == 3
    play.found()
    play.user(Task.ASSIGNED, C)


def test_rb11_that_is_not_so_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Play, "core_type", TakesTheNewestInBetween)
    with pytest.raises((AssertionError, InvariantViolation)):
        test_rb11_a_further_reply_is_taken_afterwards()


def test_rb10_everything_is_said_after_an_unknown_outcome() -> None:
    play = Play().joined(A)
    play.quiet(1)
    beat = play.beat
    assert beat is not None
    assert (beat.subscription, beat.owned) == (None, None)
    play.beat = None
    play.do(play.core.unanswered(beat.sequence, play.now_s))
    assert play.beat is None, "after a pause"
    play.pass_time(1.0)
    assert play.beat is not None
    assert play.beat.owned == {A}
    assert play.core.owned == {A}, "RB12: it goes on meanwhile"


def test_rb10_a_changed_subscription_is_said_at_once() -> None:
    play = Play().joined(A)
    wanted = Subscription(frozenset({"u"}))
    play.do(play.core.subscribe(wanted, play.now_s))
    assert play.beat is not None
    assert play.beat.subscription == wanted


def test_rb12_it_stops_by_its_own_clock_before_the_coordinator_does() -> None:
    play = Play().joined(A)
    play.quiet(1)
    play.pass_time(35.9)  # 38.9 since the newest answered one was sent
    assert play.core.owned == {A}
    play.pass_time(0.2)
    assert play.core.owned == set()
    assert Drop((A,)) in play.seen
    assert play.beat is None, "on_lost comes first"
    play.user(Task.LOST, A)
    assert play.beat is not None
    assert play.beat.epoch == 0


def test_rb12_a_refused_member_joins_again_under_its_id() -> None:
    play = Play().joined(A)
    beat, play.beat = play.beat, None
    assert beat is not None
    play.do(play.core.refused(beat.sequence, Refused.FENCED, play.now_s))
    assert state(play) is MemberState.FENCED
    play.user(Task.LOST, A)
    play.told(5, 2, B)
    play.found()
    play.user(Task.ASSIGNED, B)
    assert play.core.epoch == 5


def test_rb6_who_was_replaced_is_no_member_any_more() -> None:
    play = Play().joined(A)
    beat, play.beat = play.beat, None
    assert beat is not None
    play.do(play.core.refused(beat.sequence, Refused.FATAL, play.now_s))
    play.user(Task.LOST, A)
    play.do(play.core.entered(play.now_s))
    assert state(play) is MemberState.FATAL
    assert play.beat is None


def test_rb13_who_asks_for_nothing_leaves_and_a_later_call_joins() -> None:
    play = Play(idle_s=10.0).joined(A)
    play.core.left(play.now_s)
    for _ in range(3):
        play.quiet(1)
    assert play.core.owned == {A}
    play.pass_time(1.1)
    assert play.core.owned == set()
    assert play.beat is not None
    assert play.beat.epoch == LEAVE_EPOCH
    play.quiet(LEAVE_EPOCH, 0.0)
    assert play.beat is None
    play.do(play.core.entered(play.now_s))
    play.user(Task.LOST, A)
    assert play.beat is not None
    assert play.beat.epoch == 0


def test_rb13_the_end_is_a_revocation_and_a_goodbye() -> None:
    for stays, epoch in ((False, LEAVE_EPOCH), (True, STATIC_LEAVE_EPOCH)):
        play = Play().joined(A, B)
        play.do(play.core.part(play.now_s))
        assert Stop((A, B)) in play.seen
        play.user(Task.REVOKED, A, B)
        assert play.beat is None, "no heartbeat between the callback and the goodbye"
        play.do(play.core.leave(play.now_s, stays=stays))
        assert play.beat is not None
        assert play.beat.epoch == epoch
        play.quiet(epoch, 0.0)
        assert state(play) is MemberState.UNSUBSCRIBED
        assert play.core.next_deadline_s() is None


def test_a_goodbye_that_nobody_hears_is_given_up() -> None:
    play = Play().joined(A)
    play.do(play.core.part(play.now_s))
    play.user(Task.REVOKED, A)
    play.do(play.core.leave(play.now_s))
    for _ in range(5):
        beat, play.beat = play.beat, None
        assert beat is not None
        play.do(play.core.unanswered(beat.sequence, play.now_s))
        play.pass_time(2.0)
    assert play.beat is None
    assert state(play) is MemberState.UNSUBSCRIBED


def test_a_coordinator_that_holds_nothing_is_not_asked_for_ever() -> None:
    play = Play().joined(A)
    asked = 0
    while play.beat is not None:
        play.quiet(1, 0.001)
        asked += 1
    assert asked == 3
    play.pass_time(3.0)
    assert play.beat is not None


def test_a_duty_that_was_interrupted_before_it_began_is_due_again() -> None:
    play = Play().joined(A)
    play.told(1, 2)
    duty = play.core.duty
    assert duty is not None
    play.core.begun(duty)
    assert play.core.duty is None
    assert play.core.in_callback
    play.do(play.core.not_begun(duty))
    assert play.core.duty == duty


def test_a_loss_in_the_middle_of_a_revocation_is_about_the_rest() -> None:
    play = Play().joined(A, B)
    play.told(1, 2, A)
    duty = play.core.duty
    assert duty is not None
    play.core.begun(duty)
    play.pass_time(50.0)
    assert play.core.duty is None, "the callback is not over"
    play.do(play.core.done(duty, play.now_s))
    play.user(Task.LOST, A)
