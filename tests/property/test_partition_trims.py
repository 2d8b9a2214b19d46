"""Trims and retention of a partition's core in a hostile world, and bugs it finds (R1-R4, I10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from octavo.proto.segments import Segment
from octavo.runtime.errors import OctavoError
from octavo.serving.partition.actions import Action, AnswerTrims, Trim
from octavo.serving.partition.core import PartitionCore
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.retention import Retention
from octavo.serving.partition.trims import TO_THE_END, Trims
from tests.partition_core_world import World
from tests.partition_truth import BrokenRule

SCHEDULES = 150
SEEDS_MAX = 300
STEPS = 200
Bug = type[Trims] | type[Retention] | type[PartitionCore]


class TrimsAboveWhatIsReadable(Trims):
    def ask(self, before: int) -> list[Action]:
        actions = super().ask(TO_THE_END)
        self._before = self._log.end_offset if before == TO_THE_END else before
        return actions


class TrustsAnyOpenLedger(Trims):
    """I10: a snapshot that is not durable does not outlive its writer."""

    def next_trim(self, segment: OpenSegment | None) -> Trim | None:
        found = super().next_trim(segment)
        return found._replace(open_snapshot=segment.ledger_id) if found and segment else found


class AnswersWhateverWasListed(Trims):
    """Who asked for more while a trim was on its way waits for that."""

    def done(self) -> list[Action]:
        return self.answered(self._log.log_start)


class ForgetsWhoAsked(Trims):
    def answered(self, outcome: int | OctavoError) -> list[Action]:
        return [a for a in super().answered(outcome) if isinstance(outcome, int)]


class TellsItBeforeItIsListed(Trims):
    def ask(self, before: int) -> list[Action]:
        return [*super().ask(before), AnswerTrims(self._before or 0)]


class TellsWhatWasAsked(Trims):
    """The log's start is what the list says: it may have been above already."""

    def done(self) -> list[Action]:
        asked = self._before
        actions = super().done()
        return [AnswerTrims(asked)] if actions and asked is not None else actions


class TrimsWhileItLeaves(PartitionCore):
    def leave(self) -> list[Action]:
        return [action for action in super().leave() if not isinstance(action, AnswerTrims)]


class KeepsItsStart(PartitionCore):
    def list_changed(self, log_start: int, *, decommissioned: bool = False) -> list[Action]:
        return []


class RollsNothing(Retention):
    """R3: idle topics empty too."""

    def _is_past(self, opened: OpenSegment, cut: int, now_ms: int) -> bool:
        return False


class OpensNoLedger(Retention):
    """I10: the last segment goes only when the snapshot lies in another one."""

    def _check(
        self, segments: Sequence[Segment], opened: OpenSegment | None, now_ms: int, now_s: float
    ) -> list[Action]:
        actions = super()._check(segments, opened, now_ms, now_s)
        self.wants_ledger = False
        return actions


class TrustsAnotherClock(Retention):
    def _check(
        self, segments: Sequence[Segment], opened: OpenSegment | None, now_ms: int, now_s: float
    ) -> list[Action]:
        return super()._check(segments, opened, now_ms + 3_600_000, now_s)


class ForgetsTheLastLook(Retention):
    """What could not be dropped when it was due is dropped later."""

    @staticmethod
    def _can_drop(closed: Sequence[Segment], opened: OpenSegment | None, cut: int) -> bool:
        return False


class LooksAtTheOldest(Retention):
    """R1: the newest append counts."""

    def tick(
        self, segments: Sequence[Segment], opened: OpenSegment | None, now_ms: int, now_s: float
    ) -> list[Action]:
        older = [replace(one, last_append_ms=one.first_append_ms) for one in segments]
        return super().tick(older, opened, now_ms, now_s)


BUGS: list[Bug] = [
    TrimsAboveWhatIsReadable,
    TrustsAnyOpenLedger,
    AnswersWhateverWasListed,
    ForgetsWhoAsked,
    TellsItBeforeItIsListed,
    TellsWhatWasAsked,
    TrimsWhileItLeaves,
    KeepsItsStart,
    RollsNothing,
    OpensNoLedger,
    TrustsAnotherClock,
    ForgetsTheLastLook,
    LooksAtTheOldest,
]


def run(seed: int, hostile: float, bug: Bug | None) -> Counter[str]:
    core = bug if bug is not None and issubclass(bug, PartitionCore) else PartitionCore
    world = World(seed, core, hostile=hostile)
    if bug is not None and issubclass(bug, Trims):
        world.core.trims.__class__ = bug
    if bug is not None and issubclass(bug, Retention):
        world.core.retention.__class__ = bug
    return world.run(STEPS).tally


def test_r4_trims_are_listed_answered_and_keep_a_snapshot() -> None:
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        total += run(1_000 + seed, 0.3, None)
    assert min(total["trims"], total["Trim"], total["dropped"], total["retention"]) > SCHEDULES // 6


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    def breaks(seed: int, hostile: float) -> bool:
        try:
            run(seed, hostile, bug)
        except (BrokenRule, OctavoError, AssertionError, IndexError):
            return True
        return False

    assert any(breaks(seed, hostile) for seed in range(SEEDS_MAX) for hostile in (0.0, 0.4))
