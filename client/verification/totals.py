"""What a verification has seen so far: true at any time, also when it is stopped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from octavo.client.autorecovery.found import Tallies, Verified


class Verdict(Enum):
    """What is said of one thing, or of all of them."""

    OK = "OK"
    WRONG = "WRONG"
    """Something is missing, damaged, or contradicts something else."""
    UNKNOWN = "UNKNOWN"
    """Nothing is known to be wrong, and not everything could be looked at."""
    ORPHAN = "ORPHAN"
    """It takes space and nobody's list names it; nothing that is listed is touched by it."""
    UNRECORDED = "UNRECORDED"
    """A bookie stores ledgers that no record tells of: they were deleted and their space has not
    returned yet, or the metadata was restored from a copy that is older than they are."""
    STOPPED = "STOPPED"
    """The verification did not come to its end, and found nothing wrong until then."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    subject: str
    verdict: Verdict
    texts: tuple[str, ...]


@dataclass
class Totals:
    """Counters of one verification; only what was looked at to the end is in them."""

    ledgers: int = 0
    replicas: int = 0
    entries: int = 0
    lists: int = 0
    """Segment lists of partitions."""
    files: int = 0
    """Of the tier, that hold what lists say."""
    read_bytes: int = 0
    wrong: int = 0
    """Ledgers, lists, topics and partitions' files with something wrong."""
    unsure: int = 0
    """Those without, of which something is not known."""
    missing: int = 0
    damaged: int = 0
    unknown: int = 0
    orphans: int = 0
    unrecorded: int = 0
    """Ledgers that bookies store and no record tells of, counted for each bookie."""
    ended: bool = False

    def add_ledger(self, found: Verified) -> None:
        """A ledger was looked at."""
        self.ledgers += 1
        self.entries += found.entries
        self._add(found.tallies)

    def _add(self, tallies: Tallies) -> None:
        self.replicas += tallies.replicas
        self.missing += tallies.missing
        self.damaged += tallies.damaged
        self.unknown += tallies.unknown
        self.read_bytes += tallies.read_bytes

    def add(self, finding: Finding) -> None:
        """Something is not as it should be."""
        self.wrong += finding.verdict is Verdict.WRONG
        self.unsure += finding.verdict is Verdict.UNKNOWN
        self.orphans += finding.verdict is Verdict.ORPHAN

    @property
    def verdict(self) -> Verdict:
        """Of everything; what is wrong is wrong however it ended."""
        if self.wrong:
            return Verdict.WRONG
        if not self.ended:
            return Verdict.STOPPED
        return Verdict.UNKNOWN if self.unsure else Verdict.OK

    def figures(self) -> dict[str, int]:
        """All counters, by the names under which they are printed."""
        return {
            "ledgers": self.ledgers,
            "replicas": self.replicas,
            "entries": self.entries,
            "lists": self.lists,
            "files": self.files,
            "read_bytes": self.read_bytes,
            "wrong": self.wrong,
            "damaged": self.damaged,
            "missing": self.missing,
            "unknown": self.unknown,
            "orphans": self.orphans,
            "unrecorded": self.unrecorded,
        }

    def line(self) -> str:
        """One line for people and programs."""
        figures = " ".join(f"{name}={number}" for name, number in self.figures().items())
        ended = "" if self.ended or self.verdict is Verdict.STOPPED else " stopped=1"
        return f"verify: {self.verdict.value} {figures}{ended}"
