"""The cores of a scrub: damage is never forgotten, never believed, always repaired (6.15)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from octavo.bookie.reclaim.compaction_actions import Hold
from octavo.bookie.scrub.quarantine_core import Outcome, QuarantineCore
from octavo.bookie.scrub.scrub_actions import (
    KeepFindings,
    MarkShort,
    PassEnded,
    Progress,
    QuarantineAction,
    ScrubAction,
)
from octavo.bookie.scrub.scrub_core import ScrubCore
from octavo.bookie.storage.index import Suspect
from octavo.runtime.errors import InvariantViolation
from tests.scrub_world import LIMITS, QUARANTINE, BrokenPromise, ScrubWorld

WORLDS = 150
TURNS = 60


def told(
    seed: int, scrub: type[ScrubCore] = ScrubCore, quarantine: type[QuarantineCore] = QuarantineCore
) -> ScrubWorld:
    def make(progress: Progress, now_s: float) -> ScrubCore:
        return scrub(LIMITS, progress, first_s=now_s, now_s=now_s, now_ms=int(now_s * 1000))

    world = ScrubWorld(seed, make, lambda: quarantine(QUARANTINE))
    world.run(TURNS)
    world.settle()
    return world


def test_615_whatever_fails_damage_is_found_kept_and_repaired() -> None:
    worlds = [told(seed) for seed in range(WORLDS)]
    for count in ("passes", "repairs", "kills", "evacuated"):
        assert sum(getattr(world, count) for world in worlds) > WORLDS, count


# --- planted bugs: what the worlds would miss, they would not prove ------------------------------


class ForgetsFindings(ScrubCore):
    """Says that a segment is done, and keeps what was found afterwards."""

    def checked(
        self, *, damaged: bool, free_bytes: int, now_s: float, now_ms: int
    ) -> list[ScrubAction]:
        actions = super().checked(
            damaged=damaged, free_bytes=free_bytes, now_s=now_s, now_ms=now_ms
        )
        if actions and isinstance(actions[0], KeepFindings):
            return self._done(now_s, now_ms)
        return actions


class SkipsTheNext(ScrubCore):
    """Notes one segment more than was read."""

    def _done(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        if self._queue and not self.is_urgent:
            self._current = self._queue.pop()
        return super()._done(now_s, now_ms)


class EndsEarly(ScrubCore):
    """A pass ends when it is interrupted."""

    def _pause(self, now_s: float) -> list[ScrubAction]:
        if self._in_pass:
            self._in_pass = False
            super()._pause(now_s)
            return [PassEnded(self._pass_segments, 0.0)]
        return super()._pause(now_s)


class ReadsWithoutSpace(ScrubCore):
    """Goes on below the reserve."""

    def saved(self, now_s: float, now_ms: int) -> list[ScrubAction]:
        self._low = False
        return super().saved(now_s, now_ms)


class ForgetsWhoIsUrgent(ScrubCore):
    """Never reads what somebody met damage in, when a copy waits for it."""

    def suspect(self, number: int, now_s: float) -> None:
        del number, now_s

    def next_deadline_s(self) -> float | None:
        due_s = super().next_deadline_s()
        return None if due_s is None or self.passes else due_s


class MarksTooEarly(QuarantineCore):
    """Asks for repair before a restart would know why."""

    def found(
        self, number: int, suspects: Iterable[Suspect], *, damaged: bool
    ) -> list[QuarantineAction]:
        actions = super().found(number, suspects, damaged=damaged)
        marks = [MarkShort(s.ledger_id) for s in suspects]
        return [*marks, *actions]


class MarksOnce(QuarantineCore):
    """Trusts its mark for ever; whoever looked before us removes it."""

    def settled(
        self, outcomes: Iterable[tuple[Suspect, Outcome]], now_s: float
    ) -> list[QuarantineAction]:
        actions = super().settled(outcomes, now_s)
        for ledger_id in self._marked:
            self._marked[ledger_id] = float("inf")
        return actions


class BelievesAnything(QuarantineCore):
    """Takes what cannot be read for repaired."""

    def settled(
        self, outcomes: Iterable[tuple[Suspect, Outcome]], now_s: float
    ) -> list[QuarantineAction]:
        return super().settled([(s, Outcome.SOUND) for s, _ in outcomes], now_s)


class EmptiesTooEarly(QuarantineCore):
    """A damaged segment is copied from while entries in it wait."""

    def hold_of(self, number: int) -> Hold:
        return Hold.LEFT if number in self._segments else Hold.NONE


class ForgetsAtTheStart(QuarantineCore):
    """Does not take up what the last process suspected."""

    def restored(
        self, segments: Iterable[int], suspects: Iterable[Suspect], now_s: float
    ) -> list[QuarantineAction]:
        del suspects
        return super().restored(segments, (), now_s)


class LooksOnce(QuarantineCore):
    """Looks at its suspects once."""

    def wake(self, now_s: float) -> list[QuarantineAction]:
        actions = super().wake(now_s)
        self._due_s = None
        return actions


class NeverLeaves(QuarantineCore):
    """Keeps damaged segments for ever."""

    def _evacuate_free(self, *numbers: int) -> list[QuarantineAction]:
        del numbers
        return []


def finds(
    scrub: type[ScrubCore] = ScrubCore, quarantine: type[QuarantineCore] = QuarantineCore
) -> bool:
    for seed in range(WORLDS):
        try:
            told(seed, scrub, quarantine)
        except (BrokenPromise, InvariantViolation):
            return True
    return False


@pytest.mark.parametrize(
    "bug", [ForgetsFindings, SkipsTheNext, EndsEarly, ReadsWithoutSpace, ForgetsWhoIsUrgent]
)
def test_a_bug_of_the_walk_is_found(bug: type[ScrubCore]) -> None:
    assert finds(scrub=bug)


@pytest.mark.parametrize(
    "bug",
    [
        MarksTooEarly,
        MarksOnce,
        BelievesAnything,
        EmptiesTooEarly,
        ForgetsAtTheStart,
        LooksOnce,
        NeverLeaves,
    ],
)
def test_a_bug_of_quarantine_is_found(bug: type[QuarantineCore]) -> None:
    assert finds(quarantine=bug)
