"""What a coordinator's page says of lag, against counting (M1 to M4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.proto.group_records import Slot
from octavo.proto.lag import RATE_WINDOW_S, RateWindow
from octavo.serving.group_lag.core import RATE_SPACING_S, GroupLagCore, Log
from octavo.serving.group_lag.rows import AGE_MAX_S, Look, Shown, sums_of
from octavo.serving.groups.values import GroupPositions, LeftOut, PositionsReply, TopicPositions

NOW_MS = 1_700_000_000_000
INTERVAL_S = 2.0
TOPICS = ("a", "b")
PARTITIONS = 3


def group(name: str, members: int = 1, **topics: dict[int, int | None]) -> GroupPositions:
    return GroupPositions(
        name,
        members,
        tuple(TopicPositions(topic, f"id-{topic}", slots) for topic, slots in topics.items()),
    )


@dataclass
class Truth:
    """A log, its records' append times, and whether its owner answers."""

    log_start: int = 0
    appended_ms: list[int] = field(default_factory=list[int])
    answers: bool = True

    @property
    def end(self) -> int:
        return len(self.appended_ms)


class Passes:
    """Passes over a small cluster."""

    core_type: type[GroupLagCore] = GroupLagCore

    def __init__(self, followed_max: int = 100) -> None:
        self.core = self.core_type(followed_max)
        self.now_s = 1_000.0
        self.now_ms = NOW_MS
        self.homes: dict[int, list[GroupPositions]] = {0: []}
        self.silent_homes: set[int] = set()
        self.logs = {
            Slot(f"id-{topic}", number): Truth() for topic in TOPICS for number in range(PARTITIONS)
        }
        self.times_told = True

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_ms += int(seconds * 1000)

    def run(self) -> None:
        core = self.core
        core.begin(self.homes.keys(), self.now_s)
        for number, groups in self.homes.items():
            if number not in self.silent_homes:
                core.told(number, PositionsReply(None, tuple(groups)))
        for _ in core.ask():
            pass
        for slot, question in core.questions.items():
            log = self.logs[slot]
            if log.answers:
                times_ms = {
                    position: log.appended_ms[max(position, log.log_start)]
                    for position in question.positions
                    if self.times_told and max(position, log.log_start) < log.end
                }
                core.answered(slot, Log(log.log_start, log.end, times_ms))
        for _ in core.end():
            pass

    def look(self, series_max: int = 1_000) -> Look:
        return Look(self.core.found, self.homes, series_max, now_s=self.now_s, now_ms=self.now_ms)

    def shown(self, name: str = "g", topic: str = "a") -> Shown:
        (found,) = [
            one for one in self.look().topics() if (one.row.group, one.row.topic) == (name, topic)
        ]
        return found


def lags(shown: Shown) -> dict[int, int]:
    return {one.partition: one.lag for one in shown.partitions}


# --- against counting --------------------------------------------------------------------------

Committed = st.none() | st.integers(0, 30)
Event = tuple[str, int, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "trim", "commit", "silence", "time"]),
        st.integers(0, PARTITIONS - 1),
        st.integers(0, 9),
    ),
    max_size=30,
)


def play(passes: Passes, events: list[Event]) -> None:
    committed: dict[int, int | None] = dict.fromkeys(range(PARTITIONS))
    passes.homes[0] = [group("g", a=committed)]
    asked_s: dict[int, float] = {}
    told: dict[int, tuple[int | None, int, list[int]]] = {}
    for kind, number, amount in events:
        log = passes.logs[Slot("id-a", number)]
        if kind == "append":
            for _ in range(amount):
                log.appended_ms.append(passes.now_ms)
                passes.wait(0.1)
        elif kind == "trim":
            log.log_start = min(log.log_start + amount, log.end)
        elif kind == "commit":
            committed[number] = amount
        elif kind == "silence":
            log.answers = not log.answers
        else:
            passes.wait(float(amount))
        passes.run()
        passes.run()  # the first one may learn only that a log begins elsewhere
        for slot in range(PARTITIONS):
            truth = passes.logs[Slot("id-a", slot)]
            if truth.answers:
                asked_s[slot] = passes.now_s
                told[slot] = (committed[slot], truth.log_start, list(truth.appended_ms))
        judge(passes, asked_s, told)


def judge(
    passes: Passes,
    asked_s: dict[int, float],
    told: dict[int, tuple[int | None, int, list[int]]],
) -> None:
    """What is shown is what counting said when its owner answered last; nothing else is shown."""
    shown = passes.shown()
    fresh = {n for n, at_s in asked_s.items() if passes.now_s - at_s <= AGE_MAX_S}
    assert lags(shown).keys() == fresh
    assert shown.sums.unknown == PARTITIONS - len(fresh)
    assert (shown.sums.lag is None) == bool(shown.sums.unknown), "a part is no whole"
    for one in shown.partitions:
        committed, log_start, appended_ms = told[one.partition]
        unread = appended_ms[max(committed or 0, log_start) :]
        assert one.lag == len(unread) >= 0
        oldest_s = (passes.now_ms - unread[0]) / 1000 if unread else 0.0
        assert one.seconds(passes.now_ms) == pytest.approx(oldest_s)
    if not shown.sums.unknown:
        assert shown.sums.lag == sum(lags(shown).values())
        assert shown.sums.seconds == max(
            one.seconds(passes.now_ms) or 0.0 for one in shown.partitions
        )


@given(EVENTS)
def test_m4_what_is_shown_is_true_and_what_is_not_known_is_not_shown(events: list[Event]) -> None:
    play(Passes(), events)


class KeepsStaleTimes(GroupLagCore):
    """Planted: the time of an earlier position counts for every later one."""

    def answered(self, slot: Slot, log: Log) -> int:
        rows = [one.row for one in self._readers.get(slot, ())]
        count = super().answered(slot, log)
        for followed, row in zip(self._readers.get(slot, ()), rows, strict=True):
            if row is not None and row.since_ms and followed.row and followed.row.lag:
                followed.row = followed.row._replace(since_ms=row.since_ms)
        return count


class TakesSilenceForNothing(GroupLagCore):
    """Planted: an owner that does not answer has nothing."""

    def end(self) -> Iterator[None]:
        for readers in self._readers.values():
            for followed in readers:
                if followed.row is None or followed.row.asked_s != self._asked_s:
                    followed.answered(Log(0, 0), self._asked_s)
        yield from super().end()


class GoesNegative(GroupLagCore):
    """Planted: what was committed beyond the end counts against what was not."""

    def answered(self, slot: Slot, log: Log) -> int:
        count = super().answered(slot, log)
        for followed in self._readers.get(slot, ()):
            if followed.row is not None and followed.committed is not None:
                followed.row = followed.row._replace(lag=log.end - followed.committed)
        return count


@pytest.mark.parametrize("bug", [KeepsStaleTimes, TakesSilenceForNothing, GoesNegative])
def test_planted_faults_are_found(bug: type[GroupLagCore]) -> None:
    class Wrong(Passes):
        core_type = bug

    @settings(max_examples=2000, report_multiple_bugs=False)  # it has to be found
    @given(EVENTS)
    def search(events: list[Event]) -> None:
        play(Wrong(), events)

    with pytest.raises((AssertionError, IndexError)):
        search()


# --- plays -------------------------------------------------------------------------------------


def test_m2_lag_is_0_when_everything_is_committed_and_rates_come_with_a_second_sample() -> None:
    passes = Passes()
    log = passes.logs[Slot("id-a", 0)]
    log.appended_ms = [NOW_MS - 7_000] * 10
    passes.homes[0] = [group("g", a={0: 4})]
    passes.run()
    (one,) = passes.shown().partitions
    assert (one.lag, one.seconds(passes.now_ms), one.rates) == (6, 7.0, None)
    assert passes.shown().sums.drain is None, "one sample is no rate"
    passes.wait(INTERVAL_S)
    passes.homes[0] = [group("g", a={0: 10})]
    passes.run()
    shown = passes.shown()
    assert (shown.sums.lag, shown.sums.seconds, shown.sums.unknown) == (0, 0.0, 0)
    assert (shown.sums.drain, shown.sums.inflow) == (3.0, 0.0)


def test_a_time_is_asked_for_once_and_again_only_for_another_position() -> None:
    passes = Passes()
    slot = Slot("id-a", 0)
    passes.logs[slot].appended_ms = [NOW_MS] * 9
    passes.homes[0] = [group("g", a={0: 4}), group("h", a={0: 4})]
    passes.run()
    assert passes.core.questions[slot].positions == {4}
    passes.run()
    assert passes.core.questions[slot].positions == set()
    passes.logs[slot].log_start = 6
    passes.run()  # not known where it goes on before the owner said so
    assert passes.shown().partitions[0].seconds(passes.now_ms) is None
    assert passes.shown().sums.seconds is None
    assert passes.shown().sums.lag == 3
    passes.run()
    assert passes.core.questions[slot].positions == {6}
    assert passes.shown().sums.seconds == 0.0


def test_a_time_that_nobody_tells_is_not_0() -> None:
    passes = Passes()
    passes.times_told = False
    passes.logs[Slot("id-a", 0)].appended_ms = [NOW_MS] * 3
    passes.homes[0] = [group("g", a={0: 1, 1: 0})]
    passes.run()
    shown = passes.shown()
    assert [one.seconds(passes.now_ms) for one in shown.partitions] == [None, 0.0]
    assert (shown.sums.lag, shown.sums.seconds) == (2, None)


def test_groups_go_with_their_coordinator_at_once_and_when_it_tells_nothing_soon() -> None:
    passes = Passes()
    passes.homes = {0: [group("g", members=2, a={0: 0})], 7: [group("h", members=0, b={1: 0})]}
    passes.run()
    assert [(one.group, one.members) for one in passes.look().groups] == [("g", 2), ("h", 0)]
    del passes.homes[0]  # lost: before any further pass
    assert [one.group for one in passes.look().groups] == ["h"]
    assert [one.row.group for one in passes.look().topics()] == ["h"]
    passes.silent_homes = {7}
    passes.wait(AGE_MAX_S)
    passes.run()
    assert [one.group for one in passes.look().groups] == ["h"]
    assert lags(passes.shown("h", "b")) == {1: 0}
    passes.wait(0.1)
    assert passes.look().groups == []
    assert passes.shown("h", "b").sums.unknown == 1
    passes.run()
    assert list(passes.look().topics()) == [], "it is not known any more whether there is a group"


def test_what_expired_is_not_shown() -> None:
    passes = Passes()
    passes.homes[0] = [group("g", a={0: 0}), group("h", a={0: 0}, b={0: 0})]
    passes.run()
    passes.homes[0] = [group("h", b={0: 0})]
    passes.run()
    assert [(one.row.group, one.row.topic) for one in passes.look().topics()] == [("h", "b")]


def test_the_lag_of_a_log_that_makes_no_sense_is_not_known() -> None:
    passes = Passes()
    passes.homes[0] = [group("g", a={0: 0})]
    passes.logs[Slot("id-a", 0)].log_start = 5  # behind its end
    passes.times_told = False
    passes.run()
    assert passes.shown().sums.unknown == 1


# --- bounds ------------------------------------------------------------------------------------


def test_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    passes = Passes()
    passes.homes[0] = [
        group("g1", a={0: 0, 1: 0, 2: 0}, b={0: 0}),
        group("g2", a={0: 0}),
        group("g3", a={0: 0}),
    ]
    passes.run()
    look = passes.look(series_max=3)
    shown = list(look.topics())
    assert [(one.row.group, one.row.topic, len(one.partitions)) for one in shown] == [
        ("g1", "a", 3),
        ("g1", "b", 0),
        ("g2", "a", 0),
    ]
    assert all(one.sums.lag == 0 for one in shown), "sums are of all partitions all the same"
    assert (look.groups_left_out, look.topics_left_out, look.partitions_left_out) == (0, 1, 3)
    look = passes.look(series_max=2)
    assert [len(one.partitions) for one in look.topics()] == [0, 1], "a whole topic or nothing"
    assert (look.groups_left_out, look.topics_left_out, look.partitions_left_out) == (1, 2, 5)
    look = passes.look()
    assert (look.groups_left_out, look.topics_left_out, look.partitions_left_out) == (0, 0, 0)


@given(st.integers(0, 12), st.integers(1, 9))
def test_no_more_is_followed_than_the_bound_and_the_rest_is_counted(
    followed_max: int, series_max: int
) -> None:
    passes = Passes(followed_max)
    passes.homes = {
        0: [group("g1", a={0: 0, 1: 0, 2: 0}), group("g2", a={0: 0}, b={0: 0, 1: 0})],
        1: [group("g3", b={2: 0}), group("g4", a={0: 0, 2: 0})],
    }
    for _ in range(2):
        passes.run()
        look = passes.look(series_max)
        shown = list(look.topics())
        followed = sum(one.size for one in passes.core.found.topics)
        assert followed <= followed_max
        assert sum(len(one.partitions) for one in shown) <= series_max
        assert len(shown) <= series_max
        assert len(look.groups) == min(4, series_max), "a group is shown though its topics are not"
        assert sum(len(one.partitions) for one in shown) + look.partitions_left_out == 9
        assert len(shown) + look.topics_left_out == 5


def test_what_a_partition_of_groups_left_out_counts_too() -> None:
    core = GroupLagCore()
    core.begin([0], 1.0)
    core.told(0, PositionsReply(None, (group("g", a={0: 0}),), LeftOut(2, 30)))
    for steps in (core.ask(), core.end()):
        for _ in steps:
            pass
    look = Look(core.found, [0], 10, now_s=1.0, now_ms=NOW_MS)
    assert (look.topics_left_out, look.partitions_left_out) == (2, 30)


def test_a_sum_of_nothing_is_0_and_of_something_unknown_nothing() -> None:
    passes = Passes()
    passes.homes[0] = [group("g", a={0: 0, 1: 0})]
    passes.run()
    row = passes.shown().row
    assert sums_of(row, row.partitions, NOW_MS).lag == 0
    assert sums_of(row, row.partitions[:1], NOW_MS)[:4] == (None,) * 4


def test_work_is_done_in_steps() -> None:
    core = GroupLagCore()
    core.begin([0], 1.0)
    slots: dict[int, int | None] = dict.fromkeys(range(1_200), 0)
    core.told(0, PositionsReply(None, (group("g", a=slots), group("h", a=slots))))
    steps: list[Callable[[], Iterator[None]]] = [core.ask, core.end]
    assert [sum(1 for _ in step()) for step in steps] == [4, 2]
    assert core.answered(Slot("id-a", 7), Log(0, 0)) == 2, "who answers counts what it costs"
    assert core.answered(Slot("id-b", 7), Log(0, 0)) == 0


def test_samples_that_are_close_together_take_no_room() -> None:
    window = RateWindow(RATE_WINDOW_S, RATE_SPACING_S)
    for second in range(200):
        window.add(float(second), 2 * second, 3 * second)
        assert len(window._points) <= RATE_WINDOW_S / RATE_SPACING_S + 2  # pyright: ignore
    rates = window.rates()
    assert rates is not None
    assert (rates.drain, rates.inflow, rates.lag) == (2.0, 3.0, 199)
