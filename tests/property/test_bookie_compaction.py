"""Which segments are removed and copied, whatever fails on the way (B-18..B-21, 6.13)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.bookie.reclaim.compaction_actions import (
    Action,
    CheckSegment,
    CopyLive,
    FlushIndex,
    Hold,
    RemoveSegment,
    RepointCopied,
    Report,
    SegmentUse,
    Survey,
    TakeSurvey,
)
from octavo.bookie.reclaim.compaction_core import (
    SOURCES_MAX,
    CompactionCore,
    CompactionLimits,
    Step,
)

SEGMENT_BYTES = 1000
LIMITS = CompactionLimits(
    check_s=60.0,
    minor_ratio=0.2,
    minor_interval_s=3600.0,
    major_ratio=0.8,
    major_interval_s=86_400.0,
    output_bytes=SEGMENT_BYTES,
    reserve_bytes=2 * SEGMENT_BYTES,
    last_reserve_bytes=1200,
    full_ratio=0.9,
    retry_s=86_400.0,
)
SORTED = 1 << 40
WORLDS = 300
TURNS = 60
MakeCore = Callable[[float], CompactionCore]


class BrokenPromise(AssertionError):
    """Entries were lost, or space was taken that is kept back, or dead segments stay."""


def real_core(now_s: float) -> CompactionCore:
    return CompactionCore(LIMITS, now_s=now_s)


class SpaceWorld:
    """Segments that hold entries, and an index of which any crash takes back what was not flushed.

    An entry is a number; `index` says in which segment it is read, `kept` what of that a crash
    leaves.
    """

    def __init__(self, seed: int, make_core: MakeCore = real_core) -> None:
        self._rng = random.Random(seed)
        self._make_core = make_core
        self.now_s = 0.0
        self.core = make_core(0.0)
        self.segments: dict[int, set[int]] = {}
        self.damaged: set[int] = set()  # segments of which some cannot be read
        self.index: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.free_bytes = 20 * SEGMENT_BYTES
        self.open_segment = 1
        self._next_entry = 0
        self._copy: dict[int, int] = {}
        self._copied_from: dict[int, int] = {}
        self.removed = self.copies = self.no_spaces = 0
        self._quiet = False  # no faults

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self._live()
            self.now_s += self._rng.choice((1.0, 61.0, 3601.0, 86_401.0))
            self._turn()

    def settle(self) -> None:
        """Without faults: nothing that holds nothing stays."""
        self._quiet = True
        self.free_bytes = 20 * SEGMENT_BYTES
        self._flush()
        for _ in range(4):
            self.now_s += 2 * LIMITS.retry_s
            self._turn()
        for number in self._sealed():
            if number not in self.damaged and not self._live_in(number):
                raise BrokenPromise(f"segment {number} holds nothing and stays")

    def _live(self) -> None:
        rng = self._rng
        for _ in range(rng.randrange(30)):
            self._next_entry += 1
            self.segments.setdefault(self.open_segment, set()).add(self._next_entry)
            self.index[self._next_entry] = self.open_segment
            if len(self.segments[self.open_segment]) >= 10:
                self.open_segment += 1
        for entry in list(self.index):
            if rng.random() < 0.05:
                del self.index[entry]
        if rng.random() < 0.05 and self.segments:
            self.damaged.add(rng.choice(sorted(self.segments)))
        self.free_bytes = rng.choice((20, 3, 2, 1)) * SEGMENT_BYTES + rng.randrange(SEGMENT_BYTES)
        if rng.random() < 0.2:
            self._flush()

    def _flush(self) -> None:
        self.kept = dict(self.index)

    def _crash(self) -> None:
        """The index goes back; what it names must be there."""
        deleted = self.kept.keys() - self.index.keys()
        for entry, number in self.kept.items():
            if number not in self.segments and entry not in deleted:
                raise BrokenPromise(f"entry {entry} lay in segment {number}, which is gone")
        # What was added since is replayed; what was deleted since is deleted again.
        for entry, number in self.index.items():
            self.kept.setdefault(entry, self._copied_from.get(entry, number))
        self.index = {e: n for e, n in self.kept.items() if e not in deleted}
        self.kept = dict(self.index)
        self.core = self._make_core(self.now_s)

    # --- actions ----------------------------------------------------------------------------

    def _turn(self) -> None:
        actions = self.core.wake(self.now_s)
        for _ in range(5000):
            self.core.validate()
            if not actions:
                return
            following: list[Action] = []
            for action in actions:
                if not self._quiet and self._rng.random() < 0.02:
                    self._crash()
                    return
                if not self._quiet:
                    self._drop_some()
                following += self._act(action)
            actions = following
        raise BrokenPromise("the round does not end")

    def _act(self, action: Action) -> list[Action]:
        core = self.core
        if isinstance(action, FlushIndex):
            self._flush()
            return core.flushed(self.open_segment, self.now_s)
        if isinstance(action, TakeSurvey):
            assert action.below == self.open_segment
            uses = [SegmentUse(n, self._size(n), 100 * self._live_in(n)) for n in self._sealed()]
            return core.surveyed(Survey(uses, self.free_bytes, 100_000), self.now_s)
        if isinstance(action, CheckSegment):
            is_whole = action.number not in self.damaged
            live = 100 * self._live_in(action.number)
            return core.checked(live_bytes=live, complete=is_whole, now_s=self.now_s)
        if isinstance(action, RemoveSegment):
            return self._remove(action.number)
        if isinstance(action, CopyLive):
            return self._copy_live(action.sources)
        if isinstance(action, RepointCopied):
            return self._repoint()
        assert isinstance(action, Report)
        return []

    def _drop_some(self) -> None:
        """Entries go at any time."""
        for entry in list(self.index):
            if self._rng.random() < 0.01:
                del self.index[entry]

    def _remove(self, number: int) -> list[Action]:
        if number >= self.open_segment and number < SORTED:
            raise BrokenPromise(f"segment {number} is still written to, or replayed")
        if self._live_in(number):
            raise BrokenPromise(f"segment {number} is removed with entries in it")
        kept = [e for e, n in self.kept.items() if n == number and e in self.index]
        if kept:
            raise BrokenPromise(f"a crash leaves entries {kept} in segment {number}")
        if number in self.damaged:
            raise BrokenPromise(f"segment {number} is removed, of which some cannot be read")
        del self.segments[number]
        self.removed += 1
        return self.core.removed_segment(self.now_s)

    def _copy_live(self, sources: tuple[int, ...]) -> list[Action]:
        assert 0 < len(sources) <= SOURCES_MAX
        wanted = {e: n for e, n in self.index.items() if n in sources}
        kept_back = LIMITS.last_reserve_bytes
        if self.free_bytes >= LIMITS.reserve_bytes:
            kept_back = LIMITS.reserve_bytes
        if self.free_bytes - 100 * len(wanted) < kept_back and wanted:
            raise BrokenPromise("a copy takes space that is kept back")
        if not self._quiet and self._rng.random() < 0.1:
            self.no_spaces += 1
            return self.core.no_space(self.now_s)
        damaged = [n for n in sources if n in self.damaged]
        wanted = {e: n for e, n in wanted.items() if n not in damaged or e % 2}
        number = max([SORTED, *self.segments]) + 1
        self._copied_from = wanted
        self._copy = dict.fromkeys(wanted, number)
        if not wanted:
            return self.core.copied(SegmentUse(number, 0, 0), damaged, self.now_s)
        self.segments[number] = set(wanted)
        self.copies += 1
        made = SegmentUse(number, self._size(number), 100 * len(wanted))
        return self.core.copied(made, damaged, self.now_s)

    def _repoint(self) -> list[Action]:
        for entry, number in self._copy.items():
            if self.index.get(entry) == self._copied_from[entry]:
                self.index[entry] = number
        return self.core.repointed(self.now_s)

    def _sealed(self) -> list[int]:
        return sorted(n for n in self.segments if n < self.open_segment or n > SORTED)

    def _live_in(self, number: int) -> int:
        return sum(n == number for n in self.index.values())

    def _size(self, number: int) -> int:
        return 100 * len(self.segments[number]) + 300


def test_nothing_live_is_removed_and_nothing_dead_stays() -> None:
    removed = copies = no_spaces = 0
    for seed in range(WORLDS):
        world = SpaceWorld(seed)
        world.run(TURNS)
        world.settle()
        removed += world.removed
        copies += world.copies
        no_spaces += world.no_spaces
    assert removed > 10 * WORLDS
    assert copies > WORLDS
    assert no_spaces > WORLDS // 10


# --- planted bugs ------------------------------------------------------------------------------


class NoLook(CompactionCore):
    """Removes what it copied from without comparing its entries with the index."""

    def checked(self, *, live_bytes: int, complete: bool, now_s: float) -> list[Action]:
        del live_bytes, complete
        return super().checked(live_bytes=0, complete=True, now_s=now_s)


class Incomplete(CompactionCore):
    """Takes what it cannot read for empty (B-21)."""

    def checked(self, *, live_bytes: int, complete: bool, now_s: float) -> list[Action]:
        del complete
        return super().checked(live_bytes=live_bytes, complete=True, now_s=now_s)


class NoFlush(CompactionCore):
    """Removes the sources without a flush behind the repoints."""

    def repointed(self, now_s: float) -> list[Action]:
        super().repointed(now_s)
        return self.flushed(self._mark_segment, now_s)


class NoReserve(CompactionCore):
    """Copies as long as there is any space."""

    def _choose(self, usable: list[SegmentUse], survey: Survey) -> tuple[int, ...]:
        return super()._choose(usable, survey._replace(free_bytes=survey.free_bytes + 100_000))


class Endless(CompactionCore):
    """Copies its own copies for ever."""

    def surveyed(self, survey: Survey, now_s: float) -> list[Action]:
        self._full.clear()
        return super().surveyed(survey, now_s)


class Lazy(CompactionCore):
    """Leaves segments that hold nothing."""

    def surveyed(self, survey: Survey, now_s: float) -> list[Action]:
        some = [use for use in survey.segments if use.live_bytes]
        return super().surveyed(survey._replace(segments=some), now_s)


@pytest.mark.parametrize(
    "bug", [NoLook, Incomplete, NoFlush, NoReserve, Endless, Lazy], ids=lambda bug: bug.__name__
)
def test_planted_bugs_are_found(bug: type[CompactionCore]) -> None:
    def make(now_s: float) -> CompactionCore:
        return bug(LIMITS, now_s=now_s)

    for seed in range(WORLDS):
        world = SpaceWorld(seed, make)
        try:
            world.run(TURNS)
            world.settle()
        except BrokenPromise:
            return
    pytest.fail("not found")


# --- rules, one at a time ----------------------------------------------------------------------


def surveyed(
    *uses: SegmentUse, now_s: float = 90_000.0, free: int = 50_000, total: int = 100_000
) -> list[Action]:
    """What a round that begins then does with these segments."""
    core = real_core(0.0)
    assert core.wake(now_s) == [FlushIndex()]
    assert core.flushed(100, now_s) == [TakeSurvey(100)]
    return core.surveyed(Survey(list(uses), free, total), now_s)


def use(number: int, live: int, size: int = SEGMENT_BYTES) -> SegmentUse:
    return SegmentUse(number, size, live)


def test_b18_the_emptiest_are_copied_first_as_many_as_fit() -> None:
    assert surveyed(use(1, 790), use(2, 300), use(3, 100), use(4, 500)) == [CopyLive((3, 2, 4))]
    assert surveyed(use(1, 800), use(2, 990)) == [Report(0, 0)]


def test_b18_minor_rounds_take_what_is_nearly_empty() -> None:
    assert surveyed(use(1, 700), use(2, 150), now_s=4000.0) == [CopyLive((2,))]
    assert surveyed(use(1, 100), now_s=61.0) == [Report(0, 0)], "neither is due"
    assert surveyed(use(1, 700), now_s=61.0, free=9_000) == [CopyLive((1,))], "a full disk"


def test_613_a_copy_leaves_what_is_kept_back() -> None:
    assert surveyed(use(1, 500), free=3_000, total=10_000) == [CopyLive((1,))]
    assert surveyed(use(1, 500), free=2_400, total=10_000) == [Report(0, 0)]
    assert surveyed(use(1, 500), free=1_900, total=10_000) == [CopyLive((1,))], "read-only already"
    assert surveyed(use(1, 500), free=1_600, total=10_000) == [Report(0, 0)]


def held(number: int, live: int, hold: Hold) -> SegmentUse:
    return SegmentUse(number, SEGMENT_BYTES, live, hold)


def test_615_what_waits_for_its_repair_is_left_as_it_is() -> None:
    kept = held(1, 100, Hold.KEPT)
    assert surveyed(kept, use(2, 200)) == [CopyLive((2,))]
    assert surveyed(held(1, 0, Hold.KEPT), now_s=61.0) == [Report(0, 0)]


def test_615_what_is_damaged_is_emptied_first_however_full() -> None:
    left = held(3, 950, Hold.LEFT)
    assert surveyed(use(1, 100), left, now_s=61.0) == [CopyLive((3,))], "no round is due"
    assert surveyed(use(1, 100), left) == [CopyLive((3,))], "nothing else fits beside it"
    assert surveyed(held(3, 300, Hold.LEFT), use(1, 100)) == [CopyLive((3, 1))]
    assert surveyed(left, free=2500) == [Report(0, 0)], "6.13"


def test_615_a_damaged_segment_is_tried_again_when_its_repair_is_done() -> None:
    core = real_core(0.0)
    survey = Survey([held(3, 300, Hold.LEFT)], 50_000, 100_000)
    for damaged, wanted in (([3], CopyLive((3,))), ([], Report(0, 0))):
        core.hurry(61.0)
        assert core.wake(61.0) == [FlushIndex()]
        core.flushed(100, 61.0)
        assert core.surveyed(survey, 61.0) == [wanted]
        if damaged:
            core.copied(SegmentUse(0, 0, 0), damaged, 61.0)
            core.flushed(100, 61.0)
            assert core.surveyed(survey, 61.0) == [Report(0, 0)]
    core.evacuate(3, 61.0)
    assert core.wake(61.0) == [FlushIndex()]
    core.flushed(100, 61.0)
    assert core.surveyed(survey, 61.0) == [CopyLive((3,))]


def test_dead_segments_come_first() -> None:
    assert surveyed(use(1, 500), use(2, 0)) == [CheckSegment(2)]


def test_who_is_in_a_hurry_is_served_after_the_round() -> None:
    core = real_core(0.0)
    assert core.next_deadline_s() == LIMITS.check_s
    core.hurry(5.0)
    assert core.wake(5.0)
    core.hurry(6.0)
    core.flushed(100, 6.0)
    core.surveyed(Survey([], 1000, 1000), 7.0)
    assert core.next_deadline_s() == 7.0
    assert core.step is Step.IDLE
