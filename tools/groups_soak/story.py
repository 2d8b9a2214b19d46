"""What the processes of a run wrote down: events with the machine's monotonic clock."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"
HANDED, COMMITTED, STALLED, ENDED = "handed", "committed", "stalled", "ended"
"""Of members."""
KILLED, FROZEN, BROKEN = "killed", "frozen", "broken"
"""Of whoever runs them: BROKEN is a fault of the cluster."""
OBSERVED, TARGETED = "observed", "targeted"
"""Of whoever looks at the group: committed offsets, and what a member shall own."""
SEEN = "seen"
"""Records came to a reader of the same topic that is in no group."""


class Event(NamedTuple):
    """Something that happened to one member, or to the cluster."""

    what: str
    at_s: float
    who: str = ""
    first: Mapping[int, int] = {}
    """HANDED, SEEN: the first offset of each partition; else the partitions."""
    next: Mapping[int, int] = {}
    """HANDED, SEEN: the offset behind the last; COMMITTED and OBSERVED: the offset."""
    since_s: float = 0.0
    """COMMITTED, OBSERVED: when it was asked for; HANDED, SEEN: when the oldest record was sent,
    0 for unknown; FROZEN, STALLED, BROKEN: when it began."""


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


def shared_s(one: Span, other: Span) -> float:
    """How long both last at the same time."""
    return max(min(one.end_s, other.end_s) - max(one.start_s, other.start_s), 0.0)


def as_line(event: Event) -> str:
    """One line of a member's log."""
    return json.dumps(event._asdict(), separators=(",", ":"))


def parse(line: str) -> Event:
    """Raises ValueError for half a line, as a killed process leaves one."""
    told = json.loads(line)
    return Event(
        told["what"],
        told["at_s"],
        told["who"],
        {int(slot): offset for slot, offset in told["first"].items()},
        {int(slot): offset for slot, offset in told["next"].items()},
        told["since_s"],
    )


def read(paths: Iterable[pathlib.Path]) -> list[Event]:
    """All events in the order of time; of each file, the last line may be cut off."""
    events: list[Event] = []
    for path in paths:
        *whole, _ = path.read_text("utf-8").split("\n")
        events += map(parse, whole)
    return sorted(events, key=lambda event: event.at_s)
