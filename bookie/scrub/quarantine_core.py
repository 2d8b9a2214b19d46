"""The pure core of quarantine: what becomes of damage that was found (6.15, INV-9).

    found → Remember → remembered → MarkShort ledger … ─┐
                                    Settle … → settled ─┴→ MarkShort again, or Forget → forgotten
    nothing in a damaged segment waits any more → Evacuate → removed

An entry is suspected from the moment it is found, and asked for once that is durable: a restart in
between must not take a mark for done that nobody repaired. A mark is only a hint, which a worker
may remove that looked before us; so a ledger is marked again as long as something of it is
suspected. A segment is kept as it is while an entry in it waits for its repair; then it is emptied,
because what it lies on is not trusted. Nothing is ever deleted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from octavo.bookie.reclaim.compaction_actions import Hold
from octavo.bookie.scrub.scrub_actions import (
    Evacuate,
    Forget,
    MarkShort,
    QuarantineAction,
    Remember,
    Settle,
)
from octavo.bookie.storage.index import Suspect
from octavo.bookie.storage.suspects import Suspects
from octavo.runtime.invariant import invariant

QUARANTINED_MAX = 10_000
"""Segments in quarantine at a time; those beyond it are found by a later pass."""
SETTLED_AT_ONCE = 256
"""Suspects that are looked at together."""


class QuarantineLimits(NamedTuple):
    """Settings of quarantine."""

    recheck_s: float
    """How often suspects are looked at."""
    mark_again_s: float
    """How long a mark is trusted to be there still."""


class Outcome(Enum):
    """What a look at a suspect says."""

    STILL = "it cannot be read"
    REPAIRED = "the index names another place for it, where it can be read"
    SOUND = "it can be read after all"
    GONE = "its ledger does not want it here any more"


class QuarantineCore:
    """What is suspected, which segments are kept apart, and who was told."""

    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self.suspects = Suspects()
        self.repaired = 0
        """Entries that can be read again, so far."""
        self.damaged = 0
        """Entries that were found damaged, so far."""
        self.not_kept = 0
        """Findings that were one too many, so far: a later pass finds them again."""
        self._segments: dict[int, bool] = {}
        """Segment in quarantine → whether it is damaged, and not only kept for what it holds."""
        self._waiting: dict[int, int] = {}
        """Segment → suspects in it."""
        self._free: list[int] = []
        """Damaged segments that wait for nothing any more, and that nobody was told of yet."""
        self._durable: set[int] = set()
        """Segments whose suspicions survive a restart."""
        self._marked: dict[int, float] = {}
        """Ledger → when it is to be marked next."""
        self._due_s: float | None = None
        self._order: list[Suspect] = []
        """Suspects that this round has not looked at yet."""

    def hold_of(self, number: int) -> Hold:
        """What is to be done with a segment; on any thread."""
        if self._waiting.get(number):
            return Hold.KEPT
        return Hold.LEFT if self._segments.get(number) else Hold.NONE

    def quarantined(self) -> list[int]:
        """Segments that are damaged; a restart is told of them."""
        return sorted(number for number, damaged in self._segments.items() if damaged)

    def next_deadline_s(self) -> float | None:
        """When suspects are looked at next; None: there are none."""
        return self._due_s

    # --- events -----------------------------------------------------------------------------

    def restored(
        self, segments: Iterable[int], suspects: Iterable[Suspect], now_s: float
    ) -> list[QuarantineAction]:
        """What the last process remembered."""
        for number in segments:
            self._segments[number] = True
        for suspect in suspects:
            self._add(suspect)
        self._durable |= self._segments.keys()
        self.damaged = 0  # the last process counted them
        self._look_at(now_s)
        return self._evacuate_free(*self._segments)

    def found(
        self, number: int, suspects: Iterable[Suspect], *, damaged: bool
    ) -> list[QuarantineAction]:
        """A look at a segment found these; `damaged`: and it cannot be trusted."""
        if number not in self._segments and len(self._segments) >= QUARANTINED_MAX:
            self.not_kept += 1
            return []
        new = tuple(suspect for suspect in suspects if self._add(suspect))
        self._segments[number] = damaged or self._segments.get(number, False)
        self._durable.discard(number)
        return [Remember(number, new)]

    def remembered(self, number: int, now_s: float) -> list[QuarantineAction]:
        """What was found in this segment survives a restart from now on."""
        self._durable.add(number)
        self._look_at(now_s)
        return self._evacuate_free(number)

    def wake(self, now_s: float) -> list[QuarantineAction]:
        """Look at some suspects if it is time."""
        if self._due_s is None or now_s < self._due_s:
            return []
        if not self._order:
            self._order = [s for of in self.suspects.by_ledger.values() for s in of.values()]
        piece, self._order = self._order[:SETTLED_AT_ONCE], self._order[SETTLED_AT_ONCE:]
        self._due_s = None
        if self.suspects.count:
            self._due_s = now_s if self._order else now_s + self._limits.recheck_s
        return [Settle(tuple(piece))] if piece else []

    def settled(
        self, outcomes: Iterable[tuple[Suspect, Outcome]], now_s: float
    ) -> list[QuarantineAction]:
        """What the look said."""
        over: list[Suspect] = []
        actions: list[QuarantineAction] = []
        for suspect, outcome in outcomes:
            if self.suspects.find(suspect.ledger_id, suspect.entry_id) != suspect:
                continue  # found again meanwhile, elsewhere
            if outcome is not Outcome.STILL:
                self.repaired += outcome is not Outcome.GONE
                over.append(suspect)
                continue
            is_durable = suspect.location.segment in self._durable
            if is_durable and now_s >= self._marked.get(suspect.ledger_id, now_s):
                self._marked[suspect.ledger_id] = now_s + self._limits.mark_again_s
                actions.append(MarkShort(suspect.ledger_id))
        for suspect in over:
            self.suspects.remove(suspect)
            if suspect.ledger_id not in self.suspects.by_ledger:
                self._marked.pop(suspect.ledger_id, None)
        return [Forget(tuple(over)), *actions] if over else actions

    def forgotten(self, suspects: Iterable[Suspect]) -> list[QuarantineAction]:
        """These are suspected no more; segments that wait for none of theirs are emptied."""
        for suspect in suspects:
            self._waits_less(suspect.location.segment)
        return self._evacuate_free()

    def marked(self, ledger_id: int, now_s: float, *, done: bool) -> None:
        """The mark is there, or the metadata store was away."""
        if not done and ledger_id in self._marked:
            self._marked[ledger_id] = now_s

    def removed(self, number: int) -> bool:
        """A segment's file is gone for good; whether it was in quarantine."""
        self._durable.discard(number)
        return self._segments.pop(number, None) is not None

    # --- steps ------------------------------------------------------------------------------

    def _add(self, suspect: Suspect) -> bool:
        """Suspect it; False: it is suspected already, or there is no room."""
        known = self.suspects.find(suspect.ledger_id, suspect.entry_id)
        if known == suspect:
            return False
        if not self.suspects.add(suspect):
            self.not_kept += 1
            return False
        if known is not None:
            self._waits_less(known.location.segment)
        number = suspect.location.segment
        self._waiting[number] = self._waiting.get(number, 0) + 1
        self._segments.setdefault(number, suspect.has_row)
        self.damaged += known is None
        return True

    def _look_at(self, now_s: float) -> None:
        if self.suspects.count:
            self._due_s = now_s if self._due_s is None else min(self._due_s, now_s)

    def _waits_less(self, number: int) -> None:
        """A suspicion about a place in this segment is over."""
        self._waiting[number] -= 1
        if self._waiting[number]:
            return
        del self._waiting[number]
        if self._segments.get(number):
            self._free.append(number)
        else:  # it was kept for what it holds, and is not damaged
            self._segments.pop(number, None)
            self._durable.discard(number)

    def _evacuate_free(self, *numbers: int) -> list[QuarantineAction]:
        """Empty these, and those that waited until now, unless something waits in them."""
        free, self._free = dict.fromkeys([*numbers, *self._free]), []
        return [Evacuate(number) for number in free if self.hold_of(number) is Hold.LEFT]

    def validate(self) -> None:
        """Check the core's own promises."""
        invariant(sum(self._waiting.values()) >= self.suspects.count, "a segment is not kept")
        invariant(
            all(number in self._segments for number, count in self._waiting.items() if count),
            "a segment is kept that is not in quarantine",
        )
        invariant(
            self._due_s is not None or self._durable.isdisjoint(self._waiting),
            "suspects that nobody looks at again",
        )
