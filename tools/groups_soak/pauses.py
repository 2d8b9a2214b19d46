"""How long a partition that a member kept gave nothing, and for how much of it others were. Pure.

A member's pause (W3) is what the group costs. Left out is what is not its doing: time before the
records were sent, time for which the process itself was not run (STALLED, FROZEN), what a fault of
the cluster held up (BROKEN), and time for which a reader without a group waited for records of the
same partition as well (SEEN).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tools.groups_soak.story import (
    ASSIGNED,
    BROKEN,
    FROZEN,
    HANDED,
    REVOKED,
    SEEN,
    STALLED,
    Event,
    Owned,
    Span,
    shared_s,
)

AROUND_S = 0.5
"""A change of assignment may hold up what is kept from so long before it until so long after."""


class Wait(NamedTuple):
    """Between two arrivals of a partition's records, from when there was something to come."""

    before_s: float
    """When the records before them came."""
    gap: Span


def waits(arrivals: Iterable[tuple[float, float]]) -> list[Wait]:
    """Of arrivals `(at_s, sent_s)` at one reader."""
    found = []
    for (before_s, _), (after_s, sent_s) in pairwise(sorted(arrivals)):
        since_s = min(max(before_s, sent_s), after_s)
        found.append(Wait(before_s, Span(since_s, after_s)))
    return found


class Elsewhere:
    """When a reader without a group waited for records of a partition."""

    def __init__(self, arrivals: Mapping[int, Sequence[tuple[float, float]]]) -> None:
        self._gaps = {slot: [one.gap for one in waits(times)] for slot, times in arrivals.items()}
        self._ends = {slot: [gap.end_s for gap in gaps] for slot, gaps in self._gaps.items()}

    def during(self, slot: int, gap: Span) -> Iterator[Span]:
        """Its waits that touch `gap`."""
        gaps = self._gaps.get(slot, [])
        for position in range(bisect_left(self._ends.get(slot, []), gap.start_s), len(gaps)):
            if gaps[position].start_s >= gap.end_s:
                return
            yield gaps[position]


def left_of_s(gap: Span, excused: Iterable[Span]) -> float:
    """What is left of `gap` without the time that any of `excused` covers."""
    left_s, reached_s = 0.0, gap.start_s
    for one in sorted(excused):
        left_s += max(min(one.start_s, gap.end_s) - reached_s, 0.0)
        reached_s = max(reached_s, one.end_s)
    return left_s + max(gap.end_s - reached_s, 0.0)


def longest_pause_s(
    events: Sequence[Event], owned: Mapping[int, Sequence[Owned]], span: Span
) -> float:
    """The longest pause of a kept partition around a change of its member, within `span`."""
    changes: dict[str, list[float]] = defaultdict(list)
    handed: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    away: dict[str, list[Span]] = defaultdict(list)
    broken: list[Span] = []
    for event in events:
        if event.what in (ASSIGNED, REVOKED) and event.first:
            changes[event.who].append(event.at_s)
        elif event.what == HANDED:
            for slot in event.first:
                handed[event.who, slot].append((event.at_s, event.since_s))
        elif event.what == SEEN:
            for slot in event.first:
                seen[slot].append((event.at_s, event.since_s))
        elif event.what in (STALLED, FROZEN):
            away[event.who].append(Span(event.since_s, event.at_s))
        elif event.what == BROKEN:
            broken.append(Span(event.since_s, event.at_s))
    elsewhere = Elsewhere(seen)
    longest_s = 0.0
    for (who, slot), times in handed.items():
        kept = [one for one in owned.get(slot, ()) if one.who == who]
        for before_s, gap in waits(times):
            whole = any(one.start_s < before_s and gap.end_s < one.end_s for one in kept)
            within = span.start_s <= before_s and gap.end_s <= span.end_s
            faulty = any(shared_s(gap, one) > 0 for one in broken)
            if whole and within and not faulty and _touches(gap, changes[who]):
                excused = [*away[who], *elsewhere.during(slot, gap)]
                longest_s = max(longest_s, left_of_s(gap, excused))
    return longest_s


def _touches(gap: Span, changes: Sequence[float]) -> bool:
    position = bisect_right(changes, gap.start_s - AROUND_S)
    return position < len(changes) and changes[position] <= gap.end_s + AROUND_S
