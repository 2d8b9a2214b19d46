"""What goes when every group has consumed it, and what is never taken for that (R5, F009)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.errors import InvalidConfig, OctavoError
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress
from octavo.serving.consumption import Consumed, merged
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.retention import consumed_from, holds_records
from octavo.serving.segments import first_state
from octavo.serving.topic_config import effective, parse_topic_config, settings_of
from tests.serving_rig import NAME, Rig, make_batch, make_config, produce, until
from tests.unit.test_retention import segment, some_log

Merge = Callable[[Iterable[pb.ConsumedPart]], Consumed]


def spread(rng: random.Random, groups: list[dict[int, int]]) -> list[pb.ConsumedPart]:
    """The groups, by partition their committed offsets, at coordinators as they answer."""
    parts = [pb.ConsumedPart(partition=number) for number in range(rng.randint(1, 4))]
    at: list[list[dict[int, int]]] = [[] for _ in parts]
    for group in groups:
        rng.choice(at).append(group)
    for part, here in zip(parts, at, strict=True):
        part.groups = len(here)
        for number in sorted({number for group in here for number in group}):
            offsets = [group[number] for group in here if number in group]
            part.lowest.add(partition=number, offset=min(offsets), groups=len(offsets))
    return parts


def check(merge: Merge, seed: int) -> None:
    rng = random.Random(seed)
    groups = [
        {number: rng.randint(0, 9) for number in range(3) if rng.random() < 0.7}
        for _ in range(rng.randint(0, 5))
    ]
    found = merge(spread(rng, groups))
    for number in range(3):
        everybody = [group.get(number, 0) for group in groups]
        assert found.up_to(number) == min(everybody, default=0)


def test_r5_what_every_group_has_consumed_is_the_lowest_offset_of_all() -> None:
    for seed in range(2_000):
        check(merged, seed)


def by_the_fastest(parts: Iterable[pb.ConsumedPart]) -> Consumed:
    found = list(parts)
    tops = {one.partition: one.offset for part in found for one in part.lowest}
    whole = merged(found)
    return whole._replace(lowest={number: tops[number] for number in whole.lowest})


def without_those_that_did_not_begin(parts: Iterable[pb.ConsumedPart]) -> Consumed:
    found = list(parts)
    lowest: dict[int, int] = {}
    for part in found:
        for one in part.lowest:
            lowest[one.partition] = min(one.offset, lowest.get(one.partition, one.offset))
    return Consumed(sum(part.groups for part in found), lowest)


@pytest.mark.parametrize("bug", [by_the_fastest, without_those_that_did_not_begin])
def test_r5_a_planted_bug_is_found(bug: Merge) -> None:
    def sweep() -> None:
        for seed in range(2_000):
            check(bug, seed)

    with pytest.raises(AssertionError):
        sweep()


def test_r5_a_coordinator_that_does_not_know_leaves_everything_open() -> None:
    whole = spread(random.Random(1), [{0: 5}, {0: 7}, {0: 9}])
    assert merged(whole).up_to(0) == 5
    error = to_wire(CoordinatorLoadInProgress("it is being read"))
    whole.append(pb.ConsumedPart(partition=9, error=error))
    with pytest.raises(OctavoError, match="being read"):
        merged(whole)


def test_r5_without_a_group_nothing_is_consumed() -> None:
    assert Consumed(0, {0: 5}).up_to(0) == 0
    assert merged([pb.ConsumedPart(partition=0)]).up_to(0) == 0


def test_r5_only_whole_closed_segments_go() -> None:
    for seed in range(1_000):
        rng = random.Random(seed)
        log = some_log(rng)
        end = log[-1].end_offset or 0 if log else 0
        start, consumed = rng.randint(0, end), rng.randint(0, end)
        cut = consumed_from(log, start, consumed)
        ends = [one.end_offset or 0 for one in log]
        assert cut == max([start, *(end for end in ends if end <= consumed)])


# --- settings ------------------------------------------------------------------------


def test_f009_an_unknown_mode_is_refused() -> None:
    broker = make_config()
    with pytest.raises(InvalidConfig) as caught:
        parse_topic_config({"retention.mode": "consummed"}, broker)
    assert "consumed" in (caught.value.hint or "")
    with pytest.raises(InvalidConfig, match=r"cleanup\.policy"):
        parse_topic_config({"retention.mode": "consumed", "cleanup.policy": "compact"}, broker)


def test_r5_nothing_goes_by_a_default_limit_before_it_is_consumed() -> None:
    broker = make_config()
    found = effective({"retention.mode": "consumed"}, broker)
    assert (found["retention.ms"], found["retention.bytes"]) == ("-1", "-1")
    both = effective({"retention.mode": "consumed", "retention.ms": "5000"}, broker)
    assert both["retention.ms"] == "5000", "a limit of the topic itself deletes besides"
    assert effective({}, broker)["retention.mode"] == "limits"
    unreadable = settings_of({"retention.mode": "by-vote"}, broker)
    assert (unreadable.retention_mode, unreadable.retention_ms) == ("limits", -1)


# --- a partition ---------------------------------------------------------------------


async def three_segments(rig: Rig, **config: str) -> PartitionShell:
    """Two closed segments, [0, 1) and [1, 2), and an open one."""
    shell = await rig.broker().open(NAME, **config)
    for _ in range(2):
        await produce(shell, make_batch([b"v"]))
        await shell.roll()
    await produce(shell, make_batch([b"v"]))
    return shell


async def starts_at(shell: PartitionShell, offset: int) -> None:
    def look() -> bool:
        shell.tick()
        return shell.log_start == offset

    await until(look, f"the log to begin at {offset}")


async def test_r5_closed_segments_go_when_they_are_consumed_and_not_before(rig: Rig) -> None:
    shell = await three_segments(rig, retention_mode="consumed")
    shell.emptying.consumed(0)
    for _ in range(20):
        shell.tick()
        await asyncio.sleep(0)
    assert shell.log_start == 0
    shell.emptying.consumed(1)
    await starts_at(shell, 1)
    shell.emptying.consumed(3)
    await starts_at(shell, 2)
    assert shell.high_watermark == 3, "the open segment stays"
    await shell.roll()
    for _ in range(20):  # what was told counted once: a group may have come since
        shell.tick()
        await asyncio.sleep(0)
    assert shell.log_start == 2
    shell.emptying.consumed(99)  # beyond the end
    await starts_at(shell, 3)


async def test_r5_other_topics_keep_what_was_consumed(rig: Rig) -> None:
    shell = await three_segments(rig)
    shell.emptying.consumed(3)
    for _ in range(20):
        shell.tick()
        await asyncio.sleep(0)
    assert shell.log_start == 0


def test_r5_what_holds_records_may_be_consumed() -> None:
    empty = first_state(NAME.topic_id, 0)
    assert not holds_records(empty)
    assert holds_records(replace(empty, segments=(segment(1, 0, 3, 10, 5),), max_ledger_id_ever=1))
    trimmed = replace(
        empty, segments=(segment(1, 0, 3, 10, 5),), max_ledger_id_ever=1, log_start_offset=3
    )
    assert not holds_records(trimmed)
    unknown = replace(segment(1, 0, 3, 10, 5), end_offset=None)
    assert holds_records(replace(trimmed, segments=(unknown,)))
