"""What the processes of a run wrote down: events with the machine's monotonic clock."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

ASSIGNED, REVOKED, LOST = "assigned", "revoked", "lost"
HANDED, COMMITTED, STALLED, ENDED = "handed", "committed", "stalled", "ended"
"""Of members."""
KILLED, FROZEN, OBSERVED, BROKEN = "killed", "frozen", "observed", "broken"
"""Of whoever runs them: BROKEN is a fault of the cluster."""


class Event(NamedTuple):
    """Something that happened to one member, or to the cluster."""

    what: str
    at_s: float
    who: str = ""
    first: Mapping[int, int] = {}
    """HANDED: the first offset of each partition; the partitions of ASSIGNED, REVOKED and LOST."""
    next: Mapping[int, int] = {}
    """HANDED: the offset behind the last; COMMITTED and OBSERVED: the offset."""
    since_s: float = 0.0
    """COMMITTED, OBSERVED: when it was asked for; HANDED: when the oldest record was sent, 0 for
    unknown; FROZEN, STALLED, BROKEN: when it began."""


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
