"""Which copies of which entries are confirmed, and what follows: LAC and first copy (W-2, W-3).

Pure. Owns the arithmetic of write sets and the acknowledgement marks of one ensemble. It knows
nothing of handles, failures or metadata; `octavo.client.ledger.quorum` drives it.

Acknowledgements arrive as runs of entries of one slot, because one frame carries many entries.
Each slot therefore keeps a *mark* (every entry up to it that the slot stores is confirmed) and,
for replies that overtook others, a few runs beyond it. With E = Qw the LAC is then the Qa-th
largest mark: the cost of a reply does not depend on how many entries it covers.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.metadata.ledger_record import Quorum
from octavo.runtime.invariant import invariant


def write_set(entry: int, quorum: Quorum) -> tuple[int, ...]:
    """Slots that store `entry`, in write order (3.2)."""
    size = quorum.ensemble
    return tuple((entry + i) % size for i in range(quorum.write))


def in_write_set(slot: int, entry: int, quorum: Quorum) -> bool:
    """True when `slot` stores `entry` (3.2)."""
    return (slot - entry) % quorum.ensemble < quorum.write


def windows(quorum: Quorum) -> list[tuple[int, ...]]:
    """Every distinct write set of an ensemble: one when E = Qw, else E of them."""
    count = 1 if quorum.ensemble == quorum.write else quorum.ensemble
    return [write_set(first, quorum) for first in range(count)]


def ack_reachable(down: set[int], quorum: Quorum) -> bool:
    """True when every write set can still collect Qa replies without the slots in `down` (3.7)."""
    spare = quorum.write - quorum.ack
    return all(sum(slot in down for slot in window) <= spare for window in windows(quorum))


def fence_covered(counted: set[int], quorum: Quorum) -> bool:
    """R-10: no write set can still collect Qa acknowledgements from slots that did not answer."""
    return all(
        sum(slot not in counted for slot in window) < quorum.ack for window in windows(quorum)
    )


def negatives_needed(quorum: Quorum) -> int:
    """Explicit negatives that prove an entry was never acknowledged (R-14)."""
    return quorum.write - quorum.ack + 1


class _SlotMarks:
    """Confirmed entries of one slot."""

    __slots__ = ("beyond", "mark")

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.beyond: list[tuple[int, int]] = []  # disjoint sorted runs above the mark


class AckTally:
    """Marks of all slots of one ensemble, and the two frontiers derived from them.

    Args:
        quorum: E, Qw, Qa.
        domains: fault domain of each slot; used when `min_domains` > 1 (3.8 `enforce_for_ack`).
        min_domains: domains that the confirmed copies of an entry must span.
    """

    def __init__(
        self, quorum: Quorum, *, domains: Sequence[str] = (), min_domains: int = 1
    ) -> None:
        quorum.check()
        self._quorum = quorum
        self._slots = [_SlotMarks(-1) for _ in range(quorum.ensemble)]
        self._whole = quorum.ensemble == quorum.write  # every slot stores every entry
        self._domains = list(domains)
        self._min_domains = min(min_domains, quorum.write)
        self._overtaken = 0  # runs beyond a mark, over all slots

    def record(self, slot: int, first: int, last: int) -> bool:
        """Confirm the entries of `first`..`last` that `slot` stores; True when that was news."""
        marks = self._slots[slot]
        if last <= marks.mark:
            return False
        if first > marks.mark + 1 and first > self._next_of(slot, marks.mark):
            self._insert(marks, first, last)
            return True
        marks.mark = last
        while marks.beyond and (
            marks.beyond[0][0] <= marks.mark + 1
            or marks.beyond[0][0] <= self._next_of(slot, marks.mark)
        ):
            marks.mark = max(marks.mark, marks.beyond.pop(0)[1])
            self._overtaken -= 1
        return True

    def forget(self, slot: int, above: int, domain: str | None = None) -> None:
        """C-6 "unset success": no entry above `above` counts as confirmed by `slot` any more."""
        marks = self._slots[slot]
        self._overtaken -= len(marks.beyond)
        marks.beyond.clear()
        marks.mark = above
        if domain is not None and self._domains:
            self._domains[slot] = domain

    def mark(self, slot: int) -> int:
        """Every entry up to here that `slot` stores counts as confirmed by it."""
        return self._slots[slot].mark

    def confirms(self, slot: int, entry: int) -> bool:
        """True when `slot` stores `entry` and confirmed it."""
        if not in_write_set(slot, entry, self._quorum):
            return False
        marks = self._slots[slot]
        return entry <= marks.mark or any(a <= entry <= b for a, b in marks.beyond)

    def complete(self, entry: int) -> bool:
        """W-3: Qa distinct slots confirmed `entry`, over enough fault domains (3.8)."""
        holders = [s for s in write_set(entry, self._quorum) if self.confirms(s, entry)]
        if len(holders) < self._quorum.ack:
            return False
        if self._min_domains <= 1 or not self._domains:
            return True
        return len({self._domains[s] for s in holders}) >= self._min_domains

    def settle(self, lac: int) -> None:
        """Entries up to the LAC are final: a copy missing below it no longer holds a mark back."""
        if not self._overtaken:
            return
        for slot, marks in enumerate(self._slots):
            if marks.beyond and marks.mark < lac:
                self.record(slot, marks.mark + 1, lac)

    def complete_through(self, lac: int, lap: int) -> int:
        """The highest entry up to `lap` such that it and all above `lac` below it are complete."""
        if lac == lap:
            return lac
        if self._whole and not self._overtaken and self._min_domains <= 1:
            marks = sorted([s.mark for s in self._slots])
            return max(lac, min(lap, marks[-self._quorum.ack]))
        while lac < lap and self.complete(lac + 1):
            lac += 1
        return lac

    def first_copy_through(self, known: int, lap: int) -> int:
        """The highest entry up to `lap` such that it and all before it have a first copy (A4)."""
        if known == lap:
            return known
        if self._whole and not self._overtaken:
            return max(known, min(lap, max([s.mark for s in self._slots])))
        while known < lap and any(
            self.confirms(s, known + 1) for s in write_set(known + 1, self._quorum)
        ):
            known += 1
        return known

    def validate(self, lap: int) -> None:
        """Check the shape of the marks against each other and against the last entry sent."""
        for marks in self._slots:
            previous = marks.mark
            for first, last in marks.beyond:
                invariant(previous < first <= last <= lap, "runs beyond a mark out of order")
                previous = last
            invariant(marks.mark <= lap, "a slot confirmed an entry that was never sent")
        overtaken = sum(len(s.beyond) for s in self._slots)
        invariant(self._overtaken == overtaken, "count of overtaken runs is wrong")

    def _next_of(self, slot: int, entry: int) -> int:
        """The first entry after `entry` that `slot` stores."""
        if self._whole:
            return entry + 1
        entry += 1
        while not in_write_set(slot, entry, self._quorum):
            entry += 1
        return entry

    def _insert(self, marks: _SlotMarks, first: int, last: int) -> None:
        merged: list[tuple[int, int]] = []
        for a, b in marks.beyond:
            if b + 1 < first or last + 1 < a:
                merged.append((a, b))
            else:
                first, last = min(a, first), max(b, last)
        merged.append((first, last))
        merged.sort()
        self._overtaken += len(merged) - len(marks.beyond)
        marks.beyond = merged
