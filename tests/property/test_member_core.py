"""The member of a group at a real coordinator in a hostile world, and bugs that this must find."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.membership.member_core import MemberCore
from octavo.client.messaging.membership.values import (
    Action,
    Drop,
    Duty,
    Refused,
    Stop,
    Task,
    Told,
)
from octavo.runtime.errors import InvariantViolation
from tests.member_world import MemberWorld

SEEDS = 40
SEEDS_PER_BUG = 20


@settings(max_examples=SEEDS, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_gp3_gp5_gp6_rb11_whatever_happens_in_the_group(seed: int) -> None:
    MemberWorld(seed).run()


def test_the_worlds_are_hostile_and_partitions_change_hands() -> None:
    done = [MemberWorld(seed).run() for seed in range(10)]
    assert sum(world.hand_overs for world in done) > 25


# --- planted bugs: each breaks one rule -----------------------------------------------------------


class GoesOnDelivering(MemberCore):
    """RB11 step 1: what goes is handed out until its callback is over."""

    def _done(self) -> list[Action]:
        return [action for action in super()._done() if not isinstance(action, Stop)]


class AcknowledgesFirst(MemberCore):
    """RB11 steps 3 and 4: the coordinator hears of it before the user is through."""

    def begun(self, duty: Duty) -> None:
        super().begun(duty)
        if duty.task is Task.REVOKED and self._change is not None:
            self.owned = self.owned.difference(duty.slots)


class ReportsWhatItSaw(MemberCore):
    """The number of an assignment is taken for carried out when it arrives."""

    def answered(self, sequence: int, told: Told, now_s: float) -> list[Action]:
        actions = super().answered(sequence, told, now_s)
        self._applied = self._seen
        return actions


class GoesOnForEver(MemberCore):
    """RB12: it does not stop by its own clock."""

    def next_deadline_s(self) -> float | None:
        return None if self.beats.under_way is not None else super().next_deadline_s()

    def tick(self, now_s: float) -> list[Action]:
        if self.beats.late_at_s < math.inf:
            self.beats.late_at_s = now_s + self.beats.limit_s
        return super().tick(now_s)


class TrustsItsTimer(MemberCore):
    """RB12: who stood still hands out what it had until its timer rings."""

    def entered(self, now_s: float) -> list[Action]:
        return super().entered(-math.inf)


class JoinsBeforeLost(MemberCore):
    """RB12: it joins again before its user knows that everything is lost."""

    @property
    def _speaks(self) -> bool:
        return self._active or bool(self.leaving)


class KeepsWhatWasLost(MemberCore):
    """RB12: a refused member hands out what it had."""

    def refused(self, sequence: int, refused: Refused, now_s: float) -> list[Action]:
        actions = super().refused(sequence, refused, now_s)
        return [action for action in actions if not isinstance(action, Drop)]


class SaysNothingAgain(MemberCore):
    """RB10: after an unknown outcome it does not say everything."""

    def unanswered(self, sequence: int, now_s: float) -> list[Action]:
        actions = super().unanswered(sequence, now_s)
        self.beats.full = False
        return actions


class OverlooksGaps(MemberCore):
    """An assignment that never came has taken nothing away. (It may have: a static member that is
    back inherits what its former process had to give up.)"""

    def answered(self, sequence: int, told: Told, now_s: float) -> list[Action]:
        if told.assigned is not None:
            self._seen = max(self._seen, told.number - 1)
        return super().answered(sequence, told, now_s)


class WaitsWithTheAcknowledgement(MemberCore):
    """RB11 step 4: what was given up is said with no list of what is owned."""

    def _say_at_once(self, now_s: float) -> None:
        pass


BUGS: dict[type[MemberCore], int] = {
    GoesOnDelivering: 0,
    AcknowledgesFirst: 0,
    ReportsWhatItSaw: 0,
    GoesOnForEver: 0,
    TrustsItsTimer: 0,
    JoinsBeforeLost: 0,
    OverlooksGaps: 295,
    KeepsWhatWasLost: 0,
    SaysNothingAgain: 0,
    WaitsWithTheAcknowledgement: 0,
}
"""With the seed at which the search begins."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[MemberCore]) -> None:
    for seed in range(BUGS[bug], BUGS[bug] + SEEDS_PER_BUG):
        try:
            MemberWorld(seed, bug).run()
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"{SEEDS_PER_BUG} worlds did not show: {bug.__doc__}")
