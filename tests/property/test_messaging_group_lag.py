"""Lag (M1 to M3) and resets under drawn histories, with planted faults that must be found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.group_admin.lag import LagHistory
from octavo.client.messaging.group_admin.resets import (
    AtTime,
    LastRecords,
    Place,
    ShiftBy,
    Target,
    changes_of,
    target_of,
    wanted_of,
)
from octavo.client.messaging.group_admin.values import GroupLag, PartitionLag
from octavo.client.messaging.records import TopicPartition
from octavo.proto.edges import Edge
from octavo.proto.lag import RATE_WINDOW_S, SAMPLES_MAX, Measured, Rates, measure
from octavo.runtime.errors import ConfigError, InvariantViolation

OFFSET = st.integers(0, 50)
Measure = Callable[[int | None, int, int, str], Measured]


def logs(draw: st.DrawFn) -> tuple[int, int]:
    start = draw(OFFSET)
    return start, start + draw(OFFSET)


@st.composite
def measured(draw: st.DrawFn) -> tuple[int | None, int, int, str]:
    start, end = logs(draw)
    committed = draw(st.none() | st.integers(0, 120))
    return committed, start, end, draw(st.sampled_from(["earliest", "latest"]))


def judge(ask: tuple[int | None, int, int, str], found: Measured) -> None:
    """M1 and M2, told by counting: which stored offsets has the group not read?"""
    committed, start, end, reset = ask
    if committed is None:
        unread = list(range(start, end)) if reset == "earliest" else []
    else:
        unread = [offset for offset in range(start, end) if offset >= committed]
    assert found.lag == len(unread)
    assert found.uncommitted == (committed is None)
    assert found.ahead == (committed is not None and committed > end)
    assert found.position >= start
    if unread:
        assert found.position == unread[0]


@given(measured())
def test_m1_lag_is_what_is_stored_and_not_read(ask: tuple[int | None, int, int, str]) -> None:
    judge(ask, measure(*ask))  # type: ignore[arg-type]


def negative(committed: int | None, start: int, end: int, reset: str) -> Measured:
    right = measure(committed, start, end, reset)  # type: ignore[arg-type]
    return right._replace(lag=end - right.position)


def expired(committed: int | None, start: int, end: int, reset: str) -> Measured:
    right = measure(committed, start, end, reset)  # type: ignore[arg-type]
    return right if committed is None else right._replace(lag=max(end - committed, 0))


def nothing_is_zero(committed: int | None, start: int, end: int, reset: str) -> Measured:
    return measure(committed or None, start, end, reset)  # type: ignore[arg-type]


def always_earliest(committed: int | None, start: int, end: int, reset: str) -> Measured:
    return measure(committed, start, end, "earliest")


@pytest.mark.parametrize("fault", [negative, expired, nothing_is_zero, always_earliest])
def test_planted_faults_of_lag_are_found(fault: Measure) -> None:
    @settings(max_examples=2000, report_multiple_bugs=False)  # it has to be found
    @given(measured())
    def play(ask: tuple[int | None, int, int, str]) -> None:
        judge(ask, fault(*ask))

    with pytest.raises(AssertionError):
        play()


def test_a_log_that_ends_before_it_starts_is_our_fault() -> None:
    with pytest.raises(InvariantViolation):
        measure(0, 5, 4, "earliest")


# --- rates -------------------------------------------------------------------------------------


def part(position: int, end: int, *, topic_id: str = "a", partition: int = 0) -> PartitionLag:
    return PartitionLag(
        topic="t",
        topic_id=topic_id,
        partition=partition,
        committed=position,
        position=position,
        log_start=0,
        end=end,
        lag=max(end - position, 0),
        time_lag_s=None,
        uncommitted=False,
        ahead=position > end,
    )


def sample(at_s: float, *parts: PartitionLag) -> GroupLag:
    return GroupLag("g", "STABLE", 1, at_s, parts)


Step = tuple[float, int, int]


@given(
    st.lists(
        st.tuples(st.floats(0.5, 40), st.integers(0, 100), st.integers(0, 100)),
        min_size=1,
        max_size=30,
    )
)
def test_m3_rates_are_those_of_the_window(steps: list[Step]) -> None:
    """Against a list of all samples: the oldest one within the window, and the newest."""
    history = LagHistory()
    at_s, position, end = 0.0, 0, 10_000
    taken = [(at_s, position, end)]
    history.add(sample(at_s, part(position, end)))
    for passed_s, read, sent in steps:
        at_s, position, end = at_s + passed_s, position + read, end + sent
        taken.append((at_s, position, end))
        newest = part(position, end)
        history.add(sample(at_s, newest))
        first = next(one for one in taken if at_s - one[0] <= RATE_WINDOW_S)
        rates = history.of(newest)
        if first[0] == at_s:
            assert rates is None
            continue
        assert rates is not None
        window_s = at_s - first[0]
        assert math.isclose(rates.drain * window_s, position - first[1], abs_tol=1e-6)
        assert math.isclose(rates.inflow * window_s, end - first[2], abs_tol=1e-6)
        assert rates.lag == end - position
        assert history.total() == rates
        if rates.eta_s is not None and rates.lag:
            left = rates.lag + rates.growth * rates.eta_s
            assert math.isclose(left, 0, abs_tol=1e-6), "the lag is over at the eta"
        assert (rates.eta_s is None) == (rates.lag > 0 and rates.growth >= 0)


def test_what_went_back_or_was_made_again_begins_anew() -> None:
    history = LagHistory()
    history.add(sample(0, part(50, 100)))
    history.add(sample(10, part(60, 100)))
    assert history.of(part(60, 100)) is not None
    history.add(sample(20, part(10, 100)))  # a reset: nothing was drained, let alone less
    assert history.of(part(10, 100)) is None
    history.add(sample(30, part(30, 100)))
    rates = history.of(part(30, 100))
    assert rates is not None
    assert rates.drain == 2.0
    history.add(sample(40, part(31, 101, topic_id="b")))
    assert history.of(part(31, 101, topic_id="b")) is None
    assert history.of(part(30, 100)) is None, "what is gone is forgotten"


def test_totals_add_up_and_samples_are_bounded_and_in_order() -> None:
    history = LagHistory()
    for number in range(SAMPLES_MAX * 2):
        at_s = number / 100
        history.add(sample(at_s, part(number, 10_000), part(number * 2, 20_000, partition=1)))
    total = history.total()
    assert total is not None
    assert total.drain == pytest.approx(300)
    assert total.lag == 30_000 - 3 * (SAMPLES_MAX * 2 - 1)
    kept_s = (SAMPLES_MAX - 1) / 100
    rates = history.of(part(0, 0))
    assert rates is not None
    assert rates.drain == pytest.approx((SAMPLES_MAX - 1) / kept_s)
    with pytest.raises(InvariantViolation):
        history.add(sample(0))


def test_m3_an_eta_needs_a_group_that_catches_up() -> None:
    assert Rates(drain=5, inflow=5, lag=10).eta_s is None
    assert Rates(drain=5, inflow=9, lag=10).eta_s is None
    assert Rates(drain=9, inflow=4, lag=10).eta_s == 2.0
    assert Rates(drain=0, inflow=0, lag=0).eta_s == 0.0


# --- resets ------------------------------------------------------------------------------------

WHERE = TopicPartition("t", 0)


@st.composite
def resets(draw: st.DrawFn) -> tuple[Target, Place]:
    start, end = logs(draw)
    committed = draw(st.none() | st.integers(0, 120))
    at_time = draw(st.none() | st.integers(start, max(end - 1, start)))
    place = Place("a", committed, start, end, at_time)
    target: Target = draw(
        st.sampled_from(Edge)
        | st.integers(0, 120)
        | st.builds(ShiftBy, st.integers(-120, 120))
        | st.builds(LastRecords, st.integers(0, 120))
        | st.just(AtTime(5))
    )
    return target, place


@given(resets())
def test_a_reset_ends_within_what_is_stored(drawn: tuple[Target, Place]) -> None:
    target, place = drawn
    if isinstance(target, ShiftBy) and place.committed is None:
        with pytest.raises(ConfigError):
            changes_of(target, {WHERE: place})
        return
    (change,) = changes_of(target, {WHERE: place})
    start, end = place.log_start, place.end
    assert start <= change.after <= end
    assert change.before == place.committed
    match target:
        case Edge.EARLIEST:
            assert change.after == start
        case Edge.LATEST:
            assert change.after == end
        case LastRecords(records):
            assert end - change.after == min(records, end - start)
        case AtTime():
            assert change.after == (end if place.at_time is None else place.at_time)
        case ShiftBy(records):
            assert place.committed is not None
            wanted = place.committed + records
            assert change.after == sorted((start, wanted, end))[1]
        case _:
            assert change.after == sorted((start, target, end))[1]


def test_changes_stand_in_order_and_one_missing_commit_stops_a_shift() -> None:
    known, unknown = Place("a", 5, 0, 9, None), Place("a", None, 0, 9, None)
    places = {TopicPartition("u", 0): known, TopicPartition("t", 11): known, WHERE: known}
    assert [str(one.topic_partition) for one in changes_of(ShiftBy(1), places)] == [
        "t-0",
        "t-11",
        "u-0",
    ]
    many = {TopicPartition("t", number): unknown for number in range(9)}
    with pytest.raises(ConfigError, match=r"t-0, t-1, t-2, t-3, t-4, \.\.\.: there"):
        changes_of(ShiftBy(1), many | {TopicPartition("u", 0): known})


def test_whole_topics_outdo_their_partitions() -> None:
    assert wanted_of([("t", 1), ("t", 0), ("t", 1), "u", ("u", 3)]) == {"t": [1, 0], "u": None}
    assert wanted_of([("t", 1), "t"]) == {"t": None}
    assert wanted_of("orders") == {"orders": None}
    for wrong in ([("t", -1)], [7], [""]):
        with pytest.raises(ConfigError):
            wanted_of(wrong)  # type: ignore[arg-type]


def test_targets_as_callers_say_them() -> None:
    assert target_of("earliest", 0) is Edge.EARLIEST
    assert target_of(0, 0) == 0
    assert target_of(ShiftBy(-3), 0) == ShiftBy(-3)
    for wrong in (ShiftBy(1.5), LastRecords(-1), AtTime(-1), "end", True):  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            target_of(wrong, 0)


def test_lag_of_a_group_is_known_as_far_as_that_of_its_partitions() -> None:
    known = replace(part(5, 9), time_lag_s=2.0)
    assert sample(0, known, replace(known, time_lag_s=7.0)).time_lag_s == 7.0
    assert sample(0, known, part(5, 9)).time_lag_s is None
    assert (sample(0).time_lag_s, sample(0).lag) == (0, 0)
