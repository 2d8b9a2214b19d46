"""What a check of a ledger's copies found: numbers of all of it, texts of the first of it."""

from __future__ import annotations

from typing import NamedTuple

PROBLEMS_TOLD_MAX = 20
"""Of one ledger; the rest is counted."""


class Tallies(NamedTuple):
    """How many copies of entries were found how."""

    replicas: int = 0
    """Places in ensembles that were looked at, one for each fragment and bookie."""
    missing: int = 0
    """Copies that surely are not where the record says."""
    damaged: int = 0
    """Copies that fail their digest, differ from the others or break E-1; unreadable records."""
    unknown: int = 0
    """Copies of which nothing is known; at least one where something could not be looked at."""
    read_bytes: int = 0


class Verified(NamedTuple):
    """What was found of one ledger."""

    ledger_id: int
    state: str
    entries: int
    copies: int
    """Wanted of each entry."""
    problems: tuple[str, ...] = ()
    """What is wrong for sure: missing, damaged, different."""
    unknown: tuple[str, ...] = ()
    """What could not be looked at."""
    tallies: Tallies = Tallies()


class Findings:
    """Collects what is found of one ledger; the texts it keeps are bounded."""

    def __init__(self) -> None:
        self._problems = _Texts()
        self._unknown = _Texts()
        self._tallies = Tallies()

    @property
    def any(self) -> bool:
        """Whether something is wrong or not known."""
        return bool(self._problems.told or self._unknown.told)

    def looked(self, *, replicas: int = 0, read_bytes: int = 0) -> None:
        """Places were looked at, bytes were read."""
        had = self._tallies
        self._tallies = had._replace(
            replicas=had.replicas + replicas, read_bytes=had.read_bytes + read_bytes
        )

    def missing(self, text: str, copies: int) -> None:
        """Copies that surely are not there; none, where a place without entries is lost."""
        self._problems.add(text)
        self._tallies = self._tallies._replace(missing=self._tallies.missing + copies)

    def damaged(self, text: str, copies: int = 1) -> None:
        """Copies that are there and wrong."""
        self._problems.add(text)
        self._tallies = self._tallies._replace(damaged=self._tallies.damaged + copies)

    def not_known(self, text: str, copies: int = 1) -> None:
        """Copies of which nothing is known."""
        self._unknown.add(text)
        self._tallies = self._tallies._replace(unknown=self._tallies.unknown + max(1, copies))

    def verified(self, ledger_id: int, state: str, entries: int, copies: int) -> Verified:
        """All of it."""
        return Verified(
            ledger_id,
            state,
            entries,
            copies,
            self._problems.bounded(),
            self._unknown.bounded(),
            self._tallies,
        )


class _Texts:
    """The first distinct texts, and how many more came."""

    def __init__(self) -> None:
        self.told: dict[str, None] = {}
        self._more = 0

    def add(self, text: str) -> None:
        if text in self.told:
            return
        if len(self.told) < PROBLEMS_TOLD_MAX:
            self.told[text] = None
        else:
            self._more += 1

    def bounded(self) -> tuple[str, ...]:
        more = (f"and {self._more} more",) if self._more else ()
        return (*self.told, *more)
