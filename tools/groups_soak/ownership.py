"""Who owned which partition when, as the members saw it, and when nobody did. Pure (GP-5, RB5)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tools.groups_soak.story import (
    ASSIGNED,
    BROKEN,
    ENDED,
    FROZEN,
    KILLED,
    LOST,
    REVOKED,
    TARGETED,
    Event,
    Limits,
    Owned,
    Span,
    shared_s,
)


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


class Deaths:
    """When each member was gone without a word, and which partitions were meant for it then.

    A coordinator knows of a death when the session ends (RB5). What it gives to somebody else
    meanwhile may go to the next one that is dead already: each of them costs a session.
    """

    def __init__(self, events: Iterable[Event], limits: Limits) -> None:
        ordered = sorted(events, key=lambda event: event.at_s)
        self._gone = _frozen_beyond(ordered, limits)
        self._meant: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for event in ordered:
            if event.what == KILLED:
                self._gone[event.who].append(Span(event.at_s, math.inf, event.who))
            elif event.what == TARGETED:
                for slot in event.first:
                    self._meant[slot].append((event.who, event.at_s))

    def within(self, slot: int, gap: Span) -> set[str]:
        """Members that the partition was meant for in the gap, though they were dead."""
        return {
            who
            for who, at_s in self._meant[slot]
            if gap.start_s <= at_s <= gap.end_s
            and any(one.start_s <= at_s <= one.end_s for one in self._gone[who])
        }


def unowned_too_long(
    alone: Mapping[int, Sequence[Span]], events: Sequence[Event], limits: Limits
) -> Iterable[str]:
    """A session for each dead member that it was meant for, and one for a coordinator's move (RB8).

    A coordinator that takes over gives each member a fresh session.
    """
    moves = [Span(one.since_s, one.at_s) for one in events if one.what == BROKEN]
    deaths = Deaths(events, limits)
    for slot, spans in alone.items():
        for gap in spans:
            sessions = max(1, len(deaths.within(slot, gap)))
            sessions += any(shared_s(gap, move) > 0 for move in moves)
            lasted_s = gap.end_s - gap.start_s
            if lasted_s > sessions * limits.session_timeout_s + limits.unowned_beyond_s:
                yield f"partition {slot} had no owner for {lasted_s:.1f} s ({sessions} sessions)"
