"""Whether a group kept its promises, from what its members wrote down. Pure (GP-5, GP-6, W3).

Judged are: intervals of ownership, which never overlap unless the earlier owner was frozen beyond
its own limit; how long a partition had no owner; how long a partition that was kept through a
change gave nothing; committed offsets, which never go back; and records, each processed, and again
only if they were not committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tools.groups_soak.story import (
    ASSIGNED,
    BROKEN,
    COMMITTED,
    ENDED,
    FROZEN,
    HANDED,
    KILLED,
    LOST,
    OBSERVED,
    REVOKED,
    STALLED,
    Event,
)

AROUND_S = 0.5
"""A change of assignment may hold up what is kept from so long before it until so long after."""


class Limits(NamedTuple):
    """What the run promised."""

    session_timeout_s: float
    own_limit_s: float
    """After so long without an answered heartbeat a member stops by itself (RB12)."""
    unowned_beyond_s: float = 5.0
    pause_s: float = 0.1


class Span(NamedTuple):
    """A stretch of time, and whose."""

    start_s: float
    end_s: float
    who: str = ""


class Owned(NamedTuple):
    """One partition in one member's hands, as the member saw it."""

    start_s: float
    end_s: float
    who: str
    given_up_s: float
    """When it could no longer do anything: the end, or the beginning of a freeze beyond limits."""


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
    alone = [gap for slot in ends for gap in gaps(owned[slot], span)]
    unowned = max((gap.end_s - gap.start_s for gap in alone), default=0.0)
    too_long = list(_unowned_too_long(alone, events, limits))
    backward = list(_went_back(events))
    lost, repeated = coverage(events, ends)
    again = list(committed_again(events, owned))
    pause_s = longest_pause_s(events, owned)
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
        longest_unowned_ms=round(unowned * 1000),
        wrong=tuple(wrong),
    )


# --- ownership ---------------------------------------------------------------------------------


def intervals(events: Iterable[Event], limits: Limits, end_s: float) -> dict[int, list[Owned]]:
    """By partition, in the order of their beginnings."""
    ordered = sorted(events, key=lambda event: event.at_s)
    frozen = _frozen_beyond(ordered, limits)
    since: dict[tuple[str, int], float] = {}
    found: dict[int, list[Owned]] = defaultdict(list)

    def close(who: str, slot: int, at_s: float) -> None:
        start_s = since.pop((who, slot), None)
        if start_s is not None:
            freezes = [one.start_s for one in frozen[who] if start_s <= one.start_s < at_s]
            found[slot].append(Owned(start_s, at_s, who, min([at_s, *freezes])))

    for event in ordered:
        match event.what:
            case what if what == ASSIGNED:
                for slot in event.first:
                    since.setdefault((event.who, slot), event.at_s)
            case what if what in (REVOKED, LOST):
                for slot in event.first:
                    close(event.who, slot, event.at_s)
            case what if what in (KILLED, ENDED):
                for who, slot in [key for key in since if key[0] == event.who]:
                    close(who, slot, event.at_s)
            case _:
                pass
    for who, slot in list(since):
        close(who, slot, end_s)
    for spans in found.values():
        spans.sort()
    return found


def _frozen_beyond(events: Iterable[Event], limits: Limits) -> dict[str, list[Span]]:
    """Freezes of each member that were longer than its own limit."""
    found: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.what == FROZEN and event.at_s - event.since_s > limits.own_limit_s:
            found[event.who].append(Span(event.since_s, event.at_s, event.who))
    return found


def overlaps(slot: int, owned: Sequence[Owned], limits: Limits) -> list[str]:
    """Two owners at a time (GP-5); the earlier may have been frozen beyond its limit, only then."""
    wrong: list[str] = []
    for position, earlier in enumerate(owned):
        for later in owned[position + 1 :]:
            if later.start_s >= earlier.end_s:
                break
            excused = earlier.given_up_s < earlier.end_s and (
                later.start_s >= earlier.given_up_s + limits.own_limit_s
            )
            if not excused:
                wrong.append(
                    f"partition {slot} was {earlier.who}'s from {earlier.start_s:.3f} until "
                    f"{earlier.end_s:.3f}, and {later.who}'s from {later.start_s:.3f}"
                )
    return wrong


def gaps(owned: Sequence[Owned], span: Span) -> list[Span]:
    """When nobody owned the partition; a member that is frozen beyond its limit owns nothing."""
    found: list[Span] = []
    reached_s = span.start_s
    for one in sorted(owned):
        if one.start_s > reached_s:
            found.append(Span(reached_s, min(one.start_s, span.end_s)))
        reached_s = max(reached_s, one.given_up_s)
        if reached_s >= span.end_s:
            return found
    found.append(Span(reached_s, span.end_s))
    return found


def _unowned_too_long(
    alone: Iterable[Span], events: Iterable[Event], limits: Limits
) -> Iterable[str]:
    """A coordinator that takes over gives each member a fresh session (RB8): one more of them."""
    moves = [Span(one.since_s, one.at_s) for one in events if one.what == BROKEN]
    for gap in alone:
        moved = any(_shared_s(gap, move) > 0 for move in moves)
        sessions_s = limits.session_timeout_s * (2 if moved else 1)
        if gap.end_s - gap.start_s > sessions_s + limits.unowned_beyond_s:
            yield f"a partition had no owner for {gap.end_s - gap.start_s:.1f} s"


# --- pauses ------------------------------------------------------------------------------------


def longest_pause_s(events: Sequence[Event], owned: Mapping[int, Sequence[Owned]]) -> float:
    """The longest time that a kept partition gave nothing around a change of its member.

    Left out is what is not the group's doing: time before the records were sent, time for which the
    process itself was not run (STALLED, FROZEN), and what a fault of the cluster held up (BROKEN).
    """
    changes: dict[str, list[float]] = defaultdict(list)
    handed: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    away: dict[str, list[Span]] = defaultdict(list)
    broken: list[Span] = []
    for event in events:
        if event.what in (ASSIGNED, REVOKED) and event.first:
            changes[event.who].append(event.at_s)
        elif event.what == HANDED:
            for slot in event.first:
                handed[event.who, slot].append((event.at_s, event.since_s))
        elif event.what in (STALLED, FROZEN):
            away[event.who].append(Span(event.since_s, event.at_s))
        elif event.what == BROKEN:
            broken.append(Span(event.since_s, event.at_s))
    longest_s = 0.0
    for (who, slot), times in handed.items():
        kept = [one for one in owned.get(slot, ()) if one.who == who]
        for (before_s, _), (after_s, sent_s) in pairwise(sorted(times)):
            gap = Span(max(before_s, sent_s), after_s)
            whole = any(one.start_s < before_s and after_s < one.end_s for one in kept)
            faulty = any(_shared_s(gap, one) > 0 for one in broken)
            if whole and not faulty and _touches(gap, changes[who]):
                away_s = sum(_shared_s(gap, one) for one in away[who])
                longest_s = max(longest_s, gap.end_s - gap.start_s - away_s)
    return longest_s


def _touches(gap: Span, changes: Sequence[float]) -> bool:
    position = bisect_right(changes, gap.start_s - AROUND_S)
    return position < len(changes) and changes[position] <= gap.end_s + AROUND_S


def _shared_s(one: Span, other: Span) -> float:
    return max(min(one.end_s, other.end_s) - max(one.start_s, other.start_s), 0.0)


# --- offsets and records -----------------------------------------------------------------------


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
