"""What a scrub asks its shell to do; each action says which event answers it."""

from __future__ import annotations

from typing import NamedTuple

from octavo.bookie.storage.index import Suspect


class Progress(NamedTuple):
    """How far scrubs came; survives restarts."""

    after: int = -1
    """The pass under way has looked at the segments up to this number; -1: none is under way."""
    began_ms: int = 0
    """When the last pass began."""
    ended_ms: int = 0
    """When the last whole one ended; 0: there was none."""


class ListSegments(NamedTuple):
    """Flush, then list the segments that are not written to → `listed`."""


class CheckSegment(NamedTuple):
    """Read one → `checked`."""

    number: int


class KeepFindings(NamedTuple):
    """Make what the check found durable, and have it repaired → `kept`."""

    number: int


class SaveProgress(NamedTuple):
    """Note how far the pass is → `saved`."""

    progress: Progress


class PassEnded(NamedTuple):
    """Tell of a whole pass."""

    segments: int
    took_s: float


ScrubAction = ListSegments | CheckSegment | KeepFindings | SaveProgress | PassEnded


class Remember(NamedTuple):
    """Make suspicions durable, with the list of quarantined segments, by a flush →
    `remembered`."""

    number: int
    suspects: tuple[Suspect, ...]


class Settle(NamedTuple):
    """Look whether these are suspect still → `settled`."""

    suspects: tuple[Suspect, ...]


class Forget(NamedTuple):
    """Take these off, with the list of quarantined segments → `forgotten`."""

    suspects: tuple[Suspect, ...]


class MarkShort(NamedTuple):
    """Mark a ledger as one that lacks copies (A-3) → `marked`."""

    ledger_id: int


class Evacuate(NamedTuple):
    """Have what is live in a damaged segment copied elsewhere, and the segment removed."""

    number: int


QuarantineAction = Remember | Settle | Forget | MarkShort | Evacuate
