"""The entries that a scrub suspects, as reads and listings see them (spec/ledger.md §6.15, INV-9).

A suspicion is about a place, not about an entry: once the index names another place, because a
recovery add brought the entry again or a copy moved it, the suspicion says nothing any more.
Changed on the loop only; a reader thread gets a copy of what concerns its ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.bookie.storage.index import Index, Suspect

SUSPECTS_MAX = 50_000
"""Entries that are suspected at a time; what a scrub finds beyond it is found by a later pass."""

Run = tuple[int, int]


class Suspects:
    """What is suspected now."""

    def __init__(self) -> None:
        self.by_ledger: dict[int, dict[int, Suspect]] = {}
        """Ledger id → entry id → what is suspected of it."""
        self.count = 0

    def add(self, suspect: Suspect) -> bool:
        """Suspect an entry; False: SUSPECTS_MAX are, and this one is not."""
        of_ledger = self.by_ledger.get(suspect.ledger_id, {})
        if suspect.entry_id not in of_ledger:
            if self.count >= SUSPECTS_MAX:
                return False
            self.count += 1
        of_ledger[suspect.entry_id] = suspect
        self.by_ledger[suspect.ledger_id] = of_ledger
        return True

    def remove(self, suspect: Suspect) -> None:
        """Suspect it no more; nothing to do if something else is suspected of it by now."""
        of_ledger = self.by_ledger.get(suspect.ledger_id, {})
        if of_ledger.get(suspect.entry_id) != suspect:
            return
        del of_ledger[suspect.entry_id]
        self.count -= 1
        if not of_ledger:
            del self.by_ledger[suspect.ledger_id]

    def find(self, ledger_id: int, entry_id: int) -> Suspect | None:
        """What is suspected of an entry."""
        return self.by_ledger.get(ledger_id, {}).get(entry_id)

    def of(self, ledger_id: int) -> dict[int, Suspect]:
        """A copy of what is suspected of a ledger."""
        return dict(self.by_ledger.get(ledger_id, {}))


def without_suspects(
    index: Index, ledger_id: int, runs: Iterable[Run], suspected: Mapping[int, Suspect]
) -> list[Run]:
    """The entries of `runs` that do not lie where they are suspected (blocking): a listing does
    not tell of a copy that cannot be read, so that it is made again (A-2, A-5)."""
    bad = sorted(
        entry_id
        for entry_id, suspect in suspected.items()
        if suspect.has_row and index.locate(ledger_id, entry_id) == suspect.location
    )
    out: list[Run] = []
    place = 0
    for first, last in runs:
        at = first
        while place < len(bad) and bad[place] <= last:
            if bad[place] > at:
                out.append((at, bad[place] - 1))
            at = max(at, bad[place] + 1)
            place += 1
        if at <= last:
            out.append((at, last))
    return out
