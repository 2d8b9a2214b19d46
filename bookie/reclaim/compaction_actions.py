"""What compaction asks its shell to do; each action says which event answers it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Hold(Enum):
    """What a scrub says of a segment (6.15)."""

    NONE = "nothing"
    KEPT = "entries in it wait for their repair: nothing is done to it"
    LEFT = "it is damaged: what is live in it is copied elsewhere, however much that is"


class SegmentUse(NamedTuple):
    """A segment that is not written to any more, and what of it is in use."""

    number: int
    size_bytes: int
    live_bytes: int
    """Bytes of entries that the index says lie here, or more."""
    hold: Hold = Hold.NONE


class Survey(NamedTuple):
    """All segments below the mark, and the space of their disk."""

    segments: list[SegmentUse]
    free_bytes: int
    total_bytes: int


class FlushIndex(NamedTuple):
    """Make the index durable → `flushed`."""


class TakeSurvey(NamedTuple):
    """List sorted segments, and those of the journal below this one → `surveyed`."""

    below: int


class CheckSegment(NamedTuple):
    """Compare every entry of a segment with the index → `checked`."""

    number: int


class RemoveSegment(NamedTuple):
    """Remove the file, sync its directory, end its count → `removed`."""

    number: int


class CopyLive(NamedTuple):
    """Copy the live entries of these segments into a new sorted one, synced with its footer and
    name → `copied`, or `no_space` when nothing of it is left."""

    sources: tuple[int, ...]


class RepointCopied(NamedTuple):
    """Have the index name the new places of what was copied → `repointed`."""


class Report(NamedTuple):
    """Tell what a round came to."""

    removed: int
    reclaimed_bytes: int


Action = FlushIndex | TakeSurvey | CheckSegment | RemoveSegment | CopyLive | RepointCopied | Report
