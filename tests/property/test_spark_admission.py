"""Streams under random histories: each record once, shares that are fair (spec spark §14.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.spark.admission import Admission, Limits, Place, Stretch
from octavo.spark.plan import PartitionView, Split
from octavo.spark.positions import Positions
from octavo.spark.stream_core import Head, StreamCore
from octavo.spark.streaming import StreamPlanner
from tests.spark_stream_world import Engine, StreamTopic, StreamTopics

BACKLOGS = st.lists(st.integers(1, 10**9), min_size=1, max_size=12)


def waiting_of(sizes: Sequence[int]) -> dict[Place, Stretch]:
    return {("t", n): Stretch(1000, 1000 + size) for n, size in enumerate(sizes)}


@given(BACKLOGS, st.integers(1, 10**9))
def test_a_limit_is_met_exactly_and_nobody_gets_more_than_waits(
    sizes: list[int], limit: int
) -> None:
    waiting = waiting_of(sizes)
    ends = Admission(Limits(max_offsets=limit)).ends(waiting)
    assert ends.keys() == waiting.keys()
    assert all(waiting[place].first <= end <= waiting[place].end for place, end in ends.items())
    assert sum(end - 1000 for end in ends.values()) == min(limit, sum(sizes))


@given(BACKLOGS, st.integers(1, 10**6))
def test_the_first_split_is_in_proportion(sizes: list[int], limit: int) -> None:
    """Within one offset for each partition that could not be given a part of one."""
    waiting = waiting_of(sizes)
    ends = Admission(Limits(max_offsets=limit)).ends(waiting)
    total = sum(sizes)
    for (_, n), end in ends.items():
        fair = min(limit / total, 1.0) * sizes[n]
        assert abs(end - 1000 - fair) <= len(sizes)


@given(
    st.lists(st.integers(1, 2000), min_size=2, max_size=8),
    st.integers(1, 50),
    st.sampled_from(["offsets", "bytes"]),
)
@settings(max_examples=40)
def test_no_partition_starves_beside_busy_ones(sizes: list[int], limit: int, kind: str) -> None:
    """What was taken is there again at the next trigger: in the long run all get their shares."""
    limits = Limits(max_offsets=limit) if kind == "offsets" else Limits(max_bytes=limit * 10)
    admission = Admission(limits)
    position = [0] * len(sizes)
    triggers = 60
    for _ in range(triggers):
        waiting = {
            ("t", n): Stretch(position[n], position[n] + size, ((position[n] + size, 10.0),))
            for n, size in enumerate(sizes)
        }
        for (_, n), taken in admission.ends(waiting).items():
            position[n] = taken
    for n, size in enumerate(sizes):
        fair = triggers * min(limit / sum(sizes), 1.0) * size
        assert abs(position[n] - fair) <= 2 * len(sizes), (n, position, fair)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 5000.0)), min_size=1, max_size=6),
    st.integers(1, 10**5),
)
@example([(1, 2.2250738585072014e-308), (1, 5.0)], 4)  # of which the limit holds infinitely many
def test_bytes_stay_below_the_limit_unless_one_offset_is_larger(
    runs: list[tuple[int, float]], limit: int
) -> None:
    weights: list[tuple[int, float]] = []
    for count, weight in runs:
        weights.append(((weights[-1][0] if weights else 0) + count, weight))
    stretch = Stretch(0, weights[-1][0], tuple(weights))
    end = Admission(Limits(max_bytes=limit)).ends({("t", 0): stretch})[("t", 0)]
    each = [weight for count, weight in runs for _ in range(count)]
    assert end >= 1
    assert end == 1 or sum(each[:end]) <= limit * 1.000001
    assert end == stretch.end or sum(each[: end + 1]) > limit * 0.999999


# --- histories -----------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(0, 3), st.integers(1, 25)),
        st.tuples(st.just("trigger"), st.booleans(), st.just(0)),
        st.tuples(st.just("die"), st.booleans(), st.just(0)),
        st.tuples(st.just("grow"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("topic"), st.just(0), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 3), st.integers(0, 40)),
        st.tuples(st.just("now"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 100), st.just(0)),
    ),
    max_size=40,
)
OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"maxOffsetsPerTrigger": "7"},
    {"maxBytesPerTrigger": "900"},
    {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "30s", "maxOffsetsPerTrigger": "11"},
)


def history(
    steps: Sequence[tuple[str, Any, Any]],
    given_options: Mapping[str, str],
    core: type[StreamCore] = StreamCore,
) -> None:
    """Each record that is not trimmed is delivered once, in order; trimmed ones at most once."""

    def planner(*args: Any, **named: Any) -> StreamPlanner:
        made = StreamPlanner(*args, **named)
        made._core = core(args[0])  # pyright: ignore[reportPrivateUsage]
        return made

    topics = StreamTopics()
    topics.create("t0", partitions=1)
    engine = Engine(
        topics,
        planner,
        subscribePattern="t.*",
        startingOffsets="earliest",
        failOnDataLoss="false",
        **cast("Any", given_options),
    )
    engine.trigger()
    for what, first, second in steps:
        names = sorted(topics.topics)
        topic: StreamTopic = topics.topics[
            names[first % len(names)] if what in ("produce", "trim") else "t0"
        ]
        count: int = second
        partition = count % len(topic.ends)
        if what == "produce":
            topic.ends[partition] += count
        elif what == "trim":
            start = topic.starts[partition] + count
            topic.starts[partition] = min(start, topic.ends[partition])
        elif what == "grow":
            topics.grow("t0", max(first, len(topic.ends)))
        elif what == "topic" and len(names) < 4:
            topics.create(f"t{len(names)}")
        elif what == "wait":
            engine.clock.advance(first)
        elif what == "now":
            engine.planner.freeze()
            engine.run_dry()
            engine.restart()
        elif what in ("trigger", "die"):
            engine.trigger(once=first, die=what == "die")
            if what == "die":
                engine.restart()
        check(topics, engine)
    engine.restart()
    engine.planner.freeze()
    engine.run_dry()
    check(topics, engine, ended=True)


def check(topics: StreamTopics, engine: Engine, *, ended: bool = False) -> None:
    for name, topic in topics.topics.items():
        for partition, (start, end) in enumerate(zip(topic.starts, topic.ends, strict=True)):
            found = engine.delivered.get((name, partition), [])
            assert found == sorted(set(found)), "twice, or out of order"
            assert not found or found[-1] < end, "what nobody wrote"
            reached = found[-1] if found else -1
            still_there = set(range(start, end if ended else min(end, reached + 1)))
            assert still_there <= set(found), "left out"


@given(STEPS, st.sampled_from(OPTIONS))
@settings(max_examples=120)
def test_each_record_is_delivered_once_in_every_history(
    steps: list[tuple[str, Any, Any]], given_options: dict[str, str]
) -> None:
    history(steps, given_options)


class ReadsFromTheEnd(StreamCore):
    """New partitions begin at their end."""

    def splits(
        self, start: Positions, end: Positions, views: Sequence[PartitionView]
    ) -> list[Split]:
        whole = {topic: {**dict(inner), **start.next_offsets.get(topic, {})}
                 for topic, inner in end.next_offsets.items()}  # fmt: skip
        return super().splits(Positions(whole, start.topic_ids), end, views)


class ForgetsTheLimit(StreamCore):
    """Repeats a batch up to what is there now."""

    def splits(
        self, start: Positions, end: Positions, views: Sequence[PartitionView]
    ) -> list[Split]:
        now = {(view.topic, view.partition): view.latest for view in views}
        return super().splits(start, end.moved(now, end.topic_ids), views)


class SeesOnlyWhatItKnows(StreamCore):
    """Looks for news only in partitions that it has read."""

    def has_news(self, start: Positions, heads: Mapping[str, Head]) -> bool:
        known = {
            topic: Head(
                head.topic_id,
                {n: end for n, end in head.ends.items() if start.of(topic, n) is not None},
            )
            for topic, head in heads.items()
            if topic in start.next_offsets
        }
        return super().has_news(start, known)


@pytest.mark.parametrize("core", [ReadsFromTheEnd, ForgetsTheLimit, SeesOnlyWhatItKnows])
def test_planted_faults_are_found(core: type[StreamCore]) -> None:
    steps: list[tuple[str, Any, Any]] = [
        ("produce", 0, 20), ("trigger", False, 0), ("grow", 2, 0), ("topic", 0, 0),
        ("produce", 1, 9), ("produce", 0, 25), ("die", False, 0), ("produce", 0, 10),
        *[("trigger", False, 0)] * 12, ("grow", 3, 0), ("produce", 0, 5),
    ]  # fmt: skip
    history(steps, {"maxOffsetsPerTrigger": "7"})
    with pytest.raises(AssertionError):
        history(steps, {"maxOffsetsPerTrigger": "7"}, core)
