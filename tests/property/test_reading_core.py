"""The reading core in a hostile world (F3, F5, F6, F8, F9), and bugs that this must find.

Stale owners, late and lost replies, owners that move, topics deleted and created again, trims below
the position, positions above the end, damage, pauses, seeks and abandoned polls at any moment. Held
at every step: each record once and in order between the user's seeks and proven resets, none
skipped, no position ahead of what was handed out, one thing at a time, pauses between attempts, the
budget of the buffers; and once the world is kind, everything is read, soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.cluster.search_pauses import SEARCH_PAUSE_S
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.reading.buffers import Buffers, Ends
from octavo.client.messaging.reading.positions import Offsets, Positions, Range
from octavo.client.messaging.reading.reading_core import ReadingCore
from octavo.client.messaging.reading.readings import (
    Action,
    Answer,
    Ask,
    AskRange,
    Buffered,
    LookUp,
    Mark,
    Plan,
    Reading,
    Work,
)
from octavo.client.messaging.reading.requests import Requests
from octavo.client.messaging.records import Record, TopicPartition
from octavo.runtime.errors import BrokerUnavailable, InvariantViolation, OctavoError
from tests.reading_model import World

SEEDS = 400
SEEDS_PER_BUG = 400


@settings(max_examples=SEEDS, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_f5_f6_f8_f9_whatever_happens_every_record_comes_once_and_in_order(seed: int) -> None:
    World(seed).run()


def test_the_worlds_are_hostile_and_are_read_all_the_same() -> None:
    """What the property above stands on does happen."""
    done = [World(seed).run() for seed in range(40)]
    assert sum(counts.records for counts in done) > 400
    assert sum(counts.resets for counts in done) > 100
    assert sum(counts.work for counts in done) > 300
    assert sum(counts.requests for counts in done) > 600


def test_brokers_that_never_answer_are_asked_seldom() -> None:
    """Bounded actions in time: 60 seconds in which everything fails at once."""
    for seed in range(20):
        world = World(seed)
        until_s = world.now + 60.0
        while world.now < until_s:
            for work in list(world.work):
                world.work.remove(work)
                world.act(world.core.failed(work, BrokerUnavailable("no"), world.now))
            for address in sorted(world.at):
                world.lose(address)
            if world.core.buffers.take_error() is not None:
                world.act(world.core.said(world.now))
            due_s = world.core.next_deadline_s()
            assert due_s is not None
            assert due_s > world.now
            world.pass_time(due_s - world.now)
        asked = world.did.work + world.did.requests
        assert asked > 60 or world.reset == "none"
        assert asked < 60 / (SEARCH_PAUSE_S * 0.8) * len(world.core.readings) + 10


# --- planted bugs: each breaks one rule -----------------------------------------------------------


class TakesLateReplies(ReadingCore):
    """F8: an answer for a position that the user left is taken in."""

    def answered(
        self, plan: Plan, answers: Mapping[TopicPartition, Answer], now_s: float
    ) -> list[Action]:
        asks = [Ask(ask.reading, ask.offset, ask.reading.generation) for ask in plan.asks]
        late = Plan(plan.owner, asks, plan.max_bytes, plan.max_wait_ms)
        actions = super().answered(late, answers, now_s)
        self.requests.ended(plan)
        return actions


class ForgetsLostWork(ReadingCore):
    """What a cancelled task did is never done again."""

    def lost(self, work: Work, now_s: float) -> list[Action]:
        return []


class KeepsInterruptedAsks(ReadingCore):
    """An interrupted request stays under way for ever."""

    def request_interrupted(self, plan: Plan, now_s: float) -> list[Action]:
        return []


class KeepsLostStreams(ReadingCore):
    """A stream that is gone is not opened again."""

    def stream_lost(self, address: str, now_s: float) -> list[Action]:
        self.requests.stream_ended(address)
        return self._advance(now_s)


class TakesBackTooMuch(ReadingCore):
    """F9: what reached nobody is handed out again, and the record before it, too."""

    def go_back(self, firsts: Mapping[TopicPartition, int], now_s: float) -> list[Action]:
        return super().go_back({where: at - 1 for where, at in firsts.items()}, now_s)


class NeverTicks(ReadingCore):
    """What waits for a point in time waits for ever."""

    def next_deadline_s(self) -> float | None:
        return None


class AsksAgainAtOnce(ReadingCore):
    """A request without a reply is repeated without a pause."""

    def request_failed(self, plan: Plan, now_s: float) -> list[Action]:
        stream = self.requests.ended(plan)
        stream.failures += 1
        return self._advance(now_s)


class LooksUpTwice(ReadingCore):
    """F6: a request that fails makes the position unknown again."""

    def request_failed(self, plan: Plan, now_s: float) -> list[Action]:
        for ask in plan.asks:
            if ask.generation == ask.reading.generation:
                self.positions.move(ask.reading, -1, "latest")
        return super().request_failed(plan, now_s)


class ResetsOnRefusal(Positions):
    """F5: OUT_OF_RANGE alone, perhaps of a stale owner, counts as proof."""

    def refused(self, reading: Reading, error: OctavoError, now_s: float) -> list[Action]:
        actions = super().refused(reading, error, now_s)
        if reading.out_of_range:
            self.move(reading, -1, "earliest")
        return actions


class GuessesTheRange(Positions):
    """F5: a range that nobody told is taken for an empty one."""

    def range_unknown(self, work: AskRange, error: OctavoError, now_s: float) -> list[Action]:
        return self.range_told(work, Range(1 << 40, 1 << 40), now_s)


class ResetsAboveTheEndAtOnce(Positions):
    """F5: the first word that a position lies above the end is the last."""

    def range_told(self, work: AskRange, told: Range, now_s: float) -> list[Action]:
        work.mark.reading.above_end = 99
        work.mark.reading.chosen = False
        return super().range_told(work, told, now_s)


class StaysWithItsOwner(Positions):
    """A broker that says who the leader is now is asked again all the same."""

    def refused(self, reading: Reading, error: OctavoError, now_s: float) -> list[Action]:
        owner = reading.owner
        actions = super().refused(reading, error, now_s)
        reading.owner = owner
        return actions


class IgnoresLives(Positions):
    """A position in a topic that is gone is read from the one that has its name now."""

    def known_id(self, where: TopicPartition) -> bytes:
        return b""

    def looked_up(self, work: LookUp, found: Offsets, now_s: float) -> list[Action]:
        return super().looked_up(work, Offsets(found.offsets, {}), now_s)


class TrustsOldLookUps(Positions):
    """F8: a look-up that the user's seek overtook still moves the position."""

    def looked_up(self, work: LookUp, found: Offsets, now_s: float) -> list[Action]:
        marks = tuple(Mark(mark.reading, mark.reading.generation) for mark in work.marks)
        return super().looked_up(LookUp(marks, work.policy), found, now_s)


class IgnoresNewLives(Positions):
    """Metadata of the topic's next life change nothing."""

    def view_changed(self, view: TopicView) -> list[Action]:
        return []


class SkipsDamage(Buffers):
    """F9: what does not verify is left out."""

    @staticmethod
    def damaged(reading: Reading, error: OctavoError) -> None:
        reading.fetch_at += 1
        reading.buffer.append(Buffered(b"", None, reading.fetch_at))


class RefetchesBehind(Buffers):
    """A buffer that is given up is not fetched again, but what comes behind it."""

    def refetch(self, reading: Reading) -> None:
        self.clear(reading)
        reading.position = reading.fetch_at


class HandsOutPaused(Buffers):
    """A paused partition is handed out all the same."""

    @staticmethod
    def _ready(reading: Reading, end: int | None) -> bool:
        return bool(reading.buffer) and (end is None or reading.position < end)


class IgnoresEnds(Buffers):
    """What lies behind the ends of a read_to_end is handed out."""

    def take_records(self, max_records: int, ends: Ends | None = None) -> list[Record]:
        return super().take_records(max_records)


class KeepsOldBuffers(Buffers):
    """F8: what was buffered before a seek is handed out behind it."""

    def clear(self, reading: Reading) -> None:
        kept = reading.buffer
        size = reading.buffered_bytes
        super().clear(reading)
        reading.buffer = kept
        reading.buffered_bytes = size
        self.buffered_bytes += size


class HangsOnControlBatches(Buffers):
    """F3: the position moves with records only."""

    @staticmethod
    def _settle(reading: Reading) -> None:
        while len(reading.buffer) > 1 and reading.buffer[0].header is None:
            reading.position = reading.buffer.popleft().adopt


class CountsNothingUnderWay(Requests):
    """The budget forgets what the requests under way may bring."""

    def _budget(self) -> int:
        return self._settings.prefetch_bytes


class AsksBehindTheEnds(Requests):
    """What lies behind the ends of a read_to_end is asked for."""

    def complete(self, reading: Reading, offset: int) -> bool:
        return False


CORES: list[type[ReadingCore]] = [
    TakesLateReplies,
    ForgetsLostWork,
    KeepsInterruptedAsks,
    KeepsLostStreams,
    TakesBackTooMuch,
    NeverTicks,
    AsksAgainAtOnce,
    LooksUpTwice,
]
POSITIONS: list[type[Positions]] = [
    ResetsOnRefusal,
    GuessesTheRange,
    ResetsAboveTheEndAtOnce,
    StaysWithItsOwner,
    IgnoresLives,
    TrustsOldLookUps,
    IgnoresNewLives,
]
BUFFERS: list[type[Buffers]] = [
    SkipsDamage,
    RefetchesBehind,
    HandsOutPaused,
    IgnoresEnds,
    KeepsOldBuffers,
    HangsOnControlBatches,
]
REQUESTS: list[type[Requests]] = [CountsNothingUnderWay, AsksBehindTheEnds]
Bug = type[ReadingCore] | type[Positions] | type[Buffers] | type[Requests]


def plant(bug: Bug) -> Callable[[ReadingCore], None]:
    """What puts the bug into a core."""

    def into(core: ReadingCore) -> None:
        if issubclass(bug, ReadingCore):
            core.__class__ = bug
        elif issubclass(bug, Positions):
            core.positions.__class__ = bug
        elif issubclass(bug, Buffers):
            core.buffers.__class__ = bug
        else:
            core.requests.__class__ = bug

    return into


@pytest.mark.parametrize(
    "bug", [*CORES, *POSITIONS, *BUFFERS, *REQUESTS], ids=lambda bug: cast(type, bug).__name__
)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    for seed in range(SEEDS_PER_BUG):
        try:
            World(seed, plant(bug)).run()
        except (AssertionError, InvariantViolation, AttributeError):  # of what -O does not check
            return
    pytest.fail(f"{SEEDS_PER_BUG} worlds did not show: {bug.__doc__}")
