"""The pure core that gives up copies which no record asks this bookie for (G-4).

A bookie that was away and replaced comes back with copies that others hold now; an attempt at a
repair that was given up leaves some, too. Events in, actions out. A pass is

    wake → ListLocal → ReadFacts → ReadRecords
    for each ledger that was surplus `quiet_s` ago and has not changed since:
        TakeLock → Condemn → ReadRecord → ReadFacts → TouchRecord → DeleteCopies → Unlock

Whoever repairs may be copying to this bookie at that moment, under a lock that it has lost without
knowing. What keeps a record from naming copies that go is the order of these steps, not the lock:

- a worker reads the record, then asks this bookie what it holds, and changes the record by naming
  the version that it read;
- a condemned ledger answers no such question, and the record gets a new version after that. So who
  asked before names an old version, and who reads the new one is not answered.

Nothing goes while garbage collection distrusts the metadata (G-3): an older record may not name
what a newer one did.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from octavo.bookie.reclaim.surplus_actions import (
    Action,
    Condemn,
    DeleteCopies,
    Held,
    ListLocal,
    PassEnded,
    ReadFacts,
    ReadRecord,
    ReadRecords,
    RecordFacts,
    Spare,
    TakeLock,
    TouchRecord,
    Unlock,
)
from octavo.runtime.invariant import invariant


class SurplusLimits(NamedTuple):
    """When copies are given up."""

    interval_s: float
    """Between two looks at the records of all ledgers that are stored here."""
    quiet_s: float
    """How long a ledger must be surplus and unchanged."""
    reads_max: int
    """Records read in one pass; the next one goes on behind them."""


class Step(Enum):
    """What the pass waits for."""

    IDLE = "its time"
    LOCAL = "the ledgers of the index"
    FACTS = "the store's facts"
    READ = "records"
    LOCK = "a lock"
    CONDEMN = "a ledger to be condemned"
    RECORD = "its record"
    FACTS_AGAIN = "the store's facts, once more"
    TOUCH = "its record to be written"
    DELETE = "its deletion"


_LOCKED = frozenset({Step.CONDEMN, Step.RECORD, Step.FACTS_AGAIN, Step.TOUCH, Step.DELETE})
_CONDEMNED = _LOCKED - {Step.CONDEMN}


class Candidate(NamedTuple):
    """A ledger that is surplus so far."""

    since_s: float
    held: Held


class SurplusCore:
    """Surplus copies of one bookie.

    Args:
        first_s: when the first pass begins.
    """

    def __init__(self, limits: SurplusLimits, *, first_s: float) -> None:
        self._limits = limits
        self.step = Step.IDLE
        self._all_due_s = first_s
        self._hurried = False
        self._candidates: dict[int, Candidate] = {}
        """No more of them than ledgers in the index."""
        self._wanted: list[int] = []
        self._of_all = False
        """This pass looks at all ledgers, not only at candidates again."""
        self._behind = -1
        """Where the next pass over all goes on, after one that was too long."""
        self._goes_on = False
        """This pass does not come to the end of all."""
        self._session_id = 0
        self._ripe: list[int] = []
        self._current = -1
        self._deleted = 0

    @property
    def waiting(self) -> int:
        """Ledgers that are surplus so far."""
        return len(self._candidates)

    def next_deadline_s(self) -> float | None:
        """When the next pass begins; None while one is under way."""
        if self.step is not Step.IDLE:
            return None
        ripe_s = (c.since_s + self._limits.quiet_s for c in self._candidates.values())
        return min(self._all_due_s, min(ripe_s, default=self._all_due_s))

    # --- the look at records ----------------------------------------------------------------

    def wake(self, now_s: float) -> list[Action]:
        """Begin a pass if it is time."""
        deadline_s = self.next_deadline_s()
        if deadline_s is None or now_s < deadline_s:
            return []
        self._deleted = 0
        self._hurried = False
        self._of_all = now_s >= self._all_due_s
        if self._of_all:
            self.step = Step.LOCAL
            return [ListLocal()]
        self._wanted = self._ripe_of(self._candidates, now_s)
        self.step = Step.FACTS
        return [ReadFacts()]

    def hurry(self, now_s: float) -> None:
        """Look at all ledgers at once, or as soon as the present pass is over."""
        self._hurried = True
        self._all_due_s = min(self._all_due_s, now_s)

    def locals_listed(self, ledgers: Iterable[tuple[int, bool]]) -> list[Action]:
        """Ledgers of the index, and whether they have entries."""
        self._expect(Step.LOCAL)
        stored = sorted(ledger_id for ledger_id, has_entries in ledgers if has_entries)
        for ledger_id in self._candidates.keys() - set(stored):
            del self._candidates[ledger_id]
        behind = [ledger_id for ledger_id in stored if ledger_id > self._behind]
        self._wanted = behind[: self._limits.reads_max]
        self._goes_on = len(self._wanted) < len(behind)
        self.step = Step.FACTS
        return [ReadFacts()]

    def facts_read(self, session_id: int, now_s: float, *, trusted: bool) -> list[Action]:
        """Whether garbage collection would believe the metadata now, and over which session."""
        if self.step is Step.FACTS:
            if not trusted:
                self._candidates.clear()
                return self._end(now_s)
            self._session_id = session_id
            self.step = Step.READ
            return [ReadRecords(self._wanted)]
        self._expect(Step.FACTS_AGAIN)
        if not trusted or session_id != self._session_id:
            self._candidates.clear()
            return [*self._let_go(), *self._end(now_s)]
        self.step = Step.TOUCH
        return [TouchRecord(self._current)]

    def record_read(
        self, ledger_id: int, record: RecordFacts | None, held: Held | None, now_s: float
    ) -> list[Action]:
        """A record, None if it is absent or cannot be read, and what the index holds of it."""
        known = self._candidates.get(ledger_id)
        surplus = record is not None and record.closed and not record.names_us and held is not None
        if self.step is Step.RECORD:
            if not surplus or known is None or known.held != held:
                self._candidates.pop(ledger_id, None)
                return [*self._let_go(), *self._next(now_s)]
            self.step = Step.FACTS_AGAIN
            return [ReadFacts()]
        self._expect(Step.READ)
        if not surplus:
            self._candidates.pop(ledger_id, None)
        elif held is not None and (known is None or known.held != held):
            self._candidates[ledger_id] = Candidate(now_s, held)
        return []

    def reads_ended(self, now_s: float) -> list[Action]:
        """All records that were asked for are read."""
        self._expect(Step.READ)
        if self._of_all:
            self._behind = self._wanted[-1] if self._goes_on else -1
        self._ripe = self._ripe_of(self._candidates.keys() & set(self._wanted), now_s)
        return self._next(now_s)

    def _ripe_of(self, ledger_ids: Iterable[int], now_s: float) -> list[int]:
        oldest_s = now_s - self._limits.quiet_s
        return sorted(i for i in ledger_ids if self._candidates[i].since_s <= oldest_s)

    # --- one ledger -------------------------------------------------------------------------

    def locked(self, now_s: float, *, ours: bool) -> list[Action]:
        """The lock is ours, or somebody repairs this ledger."""
        self._expect(Step.LOCK)
        if not ours:
            self._begin_anew(now_s)
            return self._next(now_s)
        self.step = Step.CONDEMN
        return [Condemn(self._current)]

    def condemned(self, now_s: float, *, done: bool) -> list[Action]:
        """Nobody is told of its entries any more; or somebody writes it."""
        self._expect(Step.CONDEMN)
        if not done:
            self._begin_anew(now_s)
            return [*self._let_go(), *self._next(now_s)]
        self.step = Step.RECORD
        return [ReadRecord(self._current)]

    def touched(self, now_s: float, *, done: bool) -> list[Action]:
        """The record has a new version, and says what it said; or it changed, or the lock went."""
        self._expect(Step.TOUCH)
        if not done:
            self._begin_anew(now_s)
            return [*self._let_go(), *self._next(now_s)]
        self.step = Step.DELETE
        return [DeleteCopies(self._current)]

    def deleted(self, now_s: float, *, done: bool) -> list[Action]:
        """The entries are gone; or somebody wrote them meanwhile."""
        self._expect(Step.DELETE)
        if done:
            self._deleted += 1
            del self._candidates[self._current]
            self.step = Step.CONDEMN  # nothing is condemned any more; the lock is ours still
        else:
            self._begin_anew(now_s)
        return [*self._let_go(), *self._next(now_s)]

    def failed(self, now_s: float) -> list[Action]:
        """The metadata store did not answer: nothing is known, the pass ends."""
        released = self._let_go()
        if self._of_all:
            self._of_all = False
            self._all_due_s = now_s + min(self._limits.interval_s, self._limits.quiet_s)
        return [*released, *self._end(now_s)]

    def _next(self, now_s: float) -> list[Action]:
        if not self._ripe:
            return self._end(now_s)
        self._current = self._ripe.pop(0)
        self.step = Step.LOCK
        return [TakeLock(self._current)]

    def _begin_anew(self, now_s: float) -> None:
        """Somebody is at work on it: it must be quiet from now on."""
        known = self._candidates[self._current]
        self._candidates[self._current] = Candidate(now_s, known.held)

    def _let_go(self) -> list[Action]:
        actions: list[Action] = []
        if self.step in _CONDEMNED:
            actions.append(Spare(self._current))
        if self.step in _LOCKED:
            actions.append(Unlock(self._current))
        return actions

    def _end(self, now_s: float) -> list[Action]:
        self.step = Step.IDLE
        self._ripe, self._wanted, self._current = [], [], -1
        if self._of_all:
            self._of_all = False
            more = self._goes_on and self._behind >= 0
            self._all_due_s = now_s + (0.0 if more else self._limits.interval_s)
        if self._hurried:
            self._all_due_s = now_s
        # What is left of this pass and ripe already waits as if it had been seen now.
        for ledger_id in self._ripe_of(self._candidates, now_s):
            self._candidates[ledger_id] = self._candidates[ledger_id]._replace(since_s=now_s)
        return [PassEnded(self._deleted, self.waiting)]

    def _expect(self, step: Step) -> None:
        invariant(self.step is step, f"surplus: {step.value} came, {self.step.value} was due")

    def validate(self) -> None:
        """Check the core's own promises."""
        working = self.step in _LOCKED or self.step is Step.LOCK
        invariant(working == (self._current >= 0), "a ledger at work and no step of its own")
        invariant(
            not working or self._current in self._candidates, "deleting what was never surplus"
        )
        invariant(self.step is not Step.IDLE or not self._ripe, "ripe ledgers left behind")
