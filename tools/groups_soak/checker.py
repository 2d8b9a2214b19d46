"""Whether a group kept its promises, from what its members wrote down. Pure (GP-5, GP-6, W3).

Judged are: intervals of ownership, which never overlap unless the earlier owner was frozen beyond
its own limit; how long a partition had no owner; how long a partition that was kept through a
change gave nothing; committed offsets, which never go back; and records, each processed, and again
only if they were not committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tools.groups_soak.ownership import gaps, intervals, overlaps, unowned_too_long
from tools.groups_soak.pauses import longest_pause_s
from tools.groups_soak.story import COMMITTED, HANDED, OBSERVED, Event, Limits, Owned, Span


class Verdict(NamedTuple):
    """Counts that must be zero, and the longest of each stretch."""

    overlaps: int
    lost: int
    """Records that nobody processed."""
    repeated: int
    """Records that were processed again, none of them committed before."""
    repeated_committed: int
    commits_back: int
    longest_pause_ms: int
    longest_unowned_ms: int
    wrong: tuple[str, ...]
    """What is wrong, in words; empty: every promise was kept."""


def judge(events: Sequence[Event], ends: Mapping[int, int], limits: Limits, span: Span) -> Verdict:
    """All of a run: `ends` of each partition's log, `span` from when all were owned to the end."""
    owned = intervals(events, limits, span.end_s)
    overlapping = [text for slot in ends for text in overlaps(slot, owned[slot], limits)]
    alone = {slot: gaps(owned[slot], span) for slot in ends}
    lasted_s = (gap.end_s - gap.start_s for spans in alone.values() for gap in spans)
    too_long = list(unowned_too_long(alone, events, limits))
    backward = list(_went_back(events))
    lost, repeated = coverage(events, ends)
    again = list(committed_again(events, owned))
    pause_s = longest_pause_s(events, owned, span)
    wrong = [*overlapping, *backward, *again, *too_long]
    if lost:
        wrong.append(f"{lost} records were processed by nobody")
    if pause_s > limits.pause_s:
        wrong.append(f"a partition that was kept gave nothing for {pause_s * 1000:.0f} ms")
    return Verdict(
        overlaps=len(overlapping),
        lost=lost,
        repeated=repeated,
        repeated_committed=len(again),
        commits_back=len(backward),
        longest_pause_ms=round(pause_s * 1000),
        longest_unowned_ms=round(max(lasted_s, default=0.0) * 1000),
        wrong=tuple(wrong),
    )


def _went_back(events: Iterable[Event]) -> Iterable[str]:
    """Commits and looks at them: one that began after another was answered is not below it."""
    told = [event for event in events if event.what in (COMMITTED, OBSERVED)]
    answered = sorted(told, key=lambda event: event.at_s)
    newest: dict[int, int] = {}
    position = 0
    for event in sorted(told, key=lambda one: one.since_s):
        while position < len(answered) and answered[position].at_s < event.since_s:
            for slot, offset in answered[position].next.items():
                newest[slot] = max(newest.get(slot, 0), offset)
            position += 1
        for slot, offset in event.next.items():
            if offset < newest.get(slot, 0):
                yield (
                    f"partition {slot}: {event.what} {offset} by {event.who or 'the observer'} "
                    f"after {newest[slot]} was answered"
                )


def coverage(events: Iterable[Event], ends: Mapping[int, int]) -> tuple[int, int]:
    """Records that nobody processed, and how many times one was processed again."""
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event.what == HANDED:
            for slot, first in event.first.items():
                ranges[slot].append((first, event.next[slot]))
    lost = repeated = 0
    for slot, end in ends.items():
        reached = 0
        for first, after in sorted(ranges[slot]):
            lost += max(min(first, end) - reached, 0)
            repeated += max(min(after, reached) - first, 0)
            reached = max(reached, after)
        lost += max(end - reached, 0)
    return lost, repeated


def committed_again(events: Sequence[Event], owned: Mapping[int, Sequence[Owned]]) -> Iterable[str]:
    """Who gets a partition begins at what was committed before, and not below it (O11, RB14)."""
    commits: dict[int, list[tuple[float, int]]] = defaultdict(list)
    handed: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    for event in events:
        if event.what == COMMITTED:
            for slot, offset in event.next.items():
                commits[slot].append((event.at_s, offset))
        elif event.what == HANDED:
            for slot, first in event.first.items():
                handed[event.who, slot].append((event.at_s, first))
    for slot, spans in owned.items():
        for one in spans:
            before = [offset for at_s, offset in commits[slot] if at_s < one.start_s]
            begun = [
                first
                for at_s, first in handed[one.who, slot]
                if one.start_s <= at_s <= one.given_up_s
            ]
            floor = max(before, default=0)
            if begun and begun[0] < floor:
                yield f"partition {slot}: {one.who} got {begun[0]} after {floor} was committed"
