"""A bookie around the two cores of a scrub, which loses what was not flushed at any action, beside
an autorecovery that may have looked before the scrub did (6.15, A-3, A-8)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from octavo.bookie.reclaim.compaction_actions import Hold
from octavo.bookie.scrub.quarantine_core import Outcome, QuarantineCore, QuarantineLimits
from octavo.bookie.scrub.scrub_actions import (
    CheckSegment,
    Evacuate,
    Forget,
    KeepFindings,
    ListSegments,
    MarkShort,
    PassEnded,
    Progress,
    QuarantineAction,
    Remember,
    SaveProgress,
    ScrubAction,
    Settle,
)
from octavo.bookie.scrub.scrub_core import ScrubCore, ScrubLimits
from octavo.bookie.storage.index import Location, Suspect

INTERVAL_S = 1000.0
LIMITS = ScrubLimits(INTERVAL_S, 100, 10.0)
QUARANTINE = QuarantineLimits(5.0, 15.0)
LEDGERS = 3
ENTRIES = 4
"""Of a segment."""

Entry = tuple[int, int]


class BrokenPromise(AssertionError):
    """Damage was forgotten, believed, or repaired in the wrong order."""


class Killed(Exception):
    """The process ended here."""


@dataclass(frozen=True)
class Noted:
    """What the index holds of a scrub."""

    progress: Progress = field(default_factory=Progress)
    segments: tuple[int, ...] = ()
    suspects: frozenset[Suspect] = frozenset()


MakeScrub = Callable[[Progress, float], ScrubCore]
MakeQuarantine = Callable[[], QuarantineCore]


def real_scrub(progress: Progress, now_s: float) -> ScrubCore:
    return ScrubCore(LIMITS, progress, first_s=now_s, now_s=now_s, now_ms=int(now_s * 1000))


def real_quarantine() -> QuarantineCore:
    return QuarantineCore(QUARANTINE)


class ScrubWorld:
    """Segments of entries, some of which go bad."""

    def __init__(
        self,
        seed: int,
        make_scrub: MakeScrub = real_scrub,
        make_quarantine: MakeQuarantine = real_quarantine,
    ) -> None:
        self._rng = random.Random(seed)
        self._make_scrub = make_scrub
        self._make_quarantine = make_quarantine
        self.now_s = 10_000.0
        self.segments: dict[int, set[Entry]] = {}
        self.bad: set[tuple[int, Entry]] = set()
        """Bytes of an entry in a segment that cannot be read."""
        self.torn: set[int] = set()
        """Segments whose own words are damaged."""
        self.index: dict[Entry, int] = {}
        self.noted = self.flushed = Noted()
        self.marks: set[int] = set()
        self._seen_by_worker: dict[int, set[Entry]] | None = None
        self.free_bytes = 1000
        self._open = 1
        self._next_entry = 0
        self._quiet = False
        self._reads: dict[int, set[int]] = {}
        """When a pass began → segments that it read, over restarts."""
        self._known_bad: dict[Entry, tuple[int, int]] = {}
        """Entries that were bad when their segment was read → where, and by which pass."""
        self._there: dict[int, set[int]] = {}
        """When a pass began → segments that were there."""
        self.passes = self.repairs = self.kills = self.evacuated = 0
        self._start()

    def _start(self) -> None:
        self.scrub = self._make_scrub(self.noted.progress, self.now_s)
        self.quarantine = self._make_quarantine()
        found = sorted(self.noted.suspects)
        self._first = self.quarantine.restored(self.noted.segments, found, self.now_s)
        self._kept: tuple[int, tuple[Suspect, ...], bool] = (0, (), False)

    # --- what happens to it -----------------------------------------------------------------

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self._live()
            self.now_s += self._rng.choice((1.0, 6.0, 20.0, 400.0))
            self._turn()

    def settle(self) -> None:
        """Without faults everything is as it was after another pass, and the damaged are gone."""
        self._quiet = True
        self.free_bytes = 1000
        for _ in range(60):
            self.now_s += 50.0
            self._turn()
        wrong = [entry for entry, number in self.index.items() if (number, entry) in self.bad]
        if wrong or self.quarantine.suspects.count:
            raise BrokenPromise(f"entries {wrong} were not repaired")
        if left := [n for n in self.torn if n in self._closed()]:
            raise BrokenPromise(f"the damaged segments {left} are still here")
        if self.quarantine.quarantined():
            raise BrokenPromise("segments are in quarantine for nothing")

    def _live(self) -> None:
        rng = self._rng
        for _ in range(rng.randrange(6)):
            self._next_entry += 1
            self._add((self._next_entry % LEDGERS, self._next_entry))
        for number in self._closed():
            roll = rng.random()
            if roll < 0.04:
                self.bad.add((number, rng.choice(sorted(self.segments[number]))))
            elif roll < 0.05:
                self.torn.add(number)
            elif roll < 0.06:
                self.scrub.suspect(number, self.now_s)
        if rng.random() < 0.05:
            self.scrub.hurry(self.now_s)
        self.free_bytes = rng.choice((1000, 1000, 1000, 50))
        for entry in list(self.index):
            if rng.random() < 0.01:
                del self.index[entry]
                self._known_bad.pop(entry, None)

    def _add(self, entry: Entry) -> None:
        """An add, or a recovery add of what is there and damaged."""
        self.segments.setdefault(self._open, set()).add(entry)
        self.index[entry] = self._open
        self._known_bad.pop(entry, None)
        if len(self.segments[self._open]) >= ENTRIES:
            self._open += 1

    def _closed(self) -> list[int]:
        return sorted(number for number in self.segments if number < self._open)

    # --- turns ------------------------------------------------------------------------------

    def _turn(self) -> None:
        try:
            self._repair(self._first)
            self._first = []
            self._walk()
            for _ in range(5):
                self._work()
                self._repair(self.quarantine.wake(self.now_s))
        except Killed:
            self.kills += 1
            self.noted = self.flushed if self._rng.random() < 0.7 else self.noted
            self.flushed = self.noted
            self._start()
            self._promise_nothing_forgotten()

    def _maybe_killed(self) -> None:
        if not self._quiet and self._rng.random() < 0.03:
            raise Killed

    def _work(self) -> None:
        """A worker that looked some time ago finishes, and looks again (A-4..A-8)."""
        if self._seen_by_worker is not None:
            for ledger, missing in self._seen_by_worker.items():
                for entry in sorted(missing & self.index.keys()):
                    self._add(entry)
                    self.repairs += 1
                self.marks.discard(ledger)
            self._seen_by_worker = None
        if self.marks and (self._quiet or self._rng.random() < 0.5):
            self._seen_by_worker = {ledger: self._missing(ledger) for ledger in self.marks}

    def _missing(self, ledger: int) -> set[Entry]:
        """What the bookie's listing leaves out."""
        suspected = self.quarantine.suspects.of(ledger).values()
        return {
            (s.ledger_id, s.entry_id)
            for s in suspected
            if self.index.get((s.ledger_id, s.entry_id)) == s.location.segment
        }

    # --- the walk ---------------------------------------------------------------------------

    def _walk(self) -> None:
        actions = self.scrub.wake(self.now_s)
        for _ in range(2000):
            self.scrub.validate()
            if not actions:
                return
            following: list[ScrubAction] = []
            for action in actions:
                self._maybe_killed()
                following += self._act(action)
            actions = following
        raise BrokenPromise("a scrub does not come to an end")

    def _act(self, action: ScrubAction) -> list[ScrubAction]:
        core, now_ms = self.scrub, int(self.now_s * 1000)
        match action:
            case ListSegments():
                if not self._quiet and self._rng.random() < 0.02:
                    return core.failed(self.now_s)
                old = core.progress
                actions = core.listed(
                    self._closed(), free_bytes=self.free_bytes, now_s=self.now_s, now_ms=now_ms
                )
                if core.progress != old:  # a pass begins
                    began_ms = core.progress.began_ms
                    self._reads.setdefault(began_ms, set())
                    self._there.setdefault(began_ms, set(self._closed()))
                return actions
            case CheckSegment():
                return self._check(action.number)
            case KeepFindings():
                number, suspects, damaged = self._kept
                self._repair(self.quarantine.found(number, suspects, damaged=damaged))
                return core.kept(self.now_s, now_ms)
            case SaveProgress():
                self.noted = replace(self.noted, progress=action.progress)
                return core.saved(self.now_s, now_ms)
            case PassEnded():
                self.passes += 1
                began_ms = core.progress.began_ms
                there = self._there.get(began_ms, set()) & self.segments.keys()
                missed = there - self._reads.get(began_ms, set())
                if missed:
                    raise BrokenPromise(f"a pass ended and did not read {missed}")
                return []

    def _check(self, number: int) -> list[ScrubAction]:
        if self.free_bytes < LIMITS.reserve_bytes:
            raise BrokenPromise("a scrub goes on below the reserve")
        self.free_bytes = 1000 if self._quiet else self._rng.choice((1000, 1000, 1000, 50))
        damaged = [
            Suspect(*entry, Location(number, entry[1], 1), True)
            for entry in sorted(self.segments.get(number, ()))
            if self.index.get(entry) == number and (number, entry) in self.bad
        ]
        self._reads.setdefault(self.scrub.progress.began_ms, set()).add(number)
        if not self.scrub.is_urgent:  # what is met out of order is met again by the next pass
            for suspect in damaged:
                entry = suspect.ledger_id, suspect.entry_id
                self._known_bad[entry] = number, self.scrub.progress.began_ms
        is_bad = bool(damaged) or number in self.torn
        self._kept = (number, tuple(damaged), is_bad)
        return self.scrub.checked(
            damaged=is_bad or self.quarantine.hold_of(number) is not Hold.NONE,
            free_bytes=self.free_bytes,
            now_s=self.now_s,
            now_ms=int(self.now_s * 1000),
        )

    # --- quarantine -------------------------------------------------------------------------

    def _repair(self, actions: list[QuarantineAction]) -> None:
        for _ in range(2000):
            self.quarantine.validate()
            if not actions:
                return
            following: list[QuarantineAction] = []
            for action in actions:
                self._maybe_killed()
                following += self._quarantine(action)
            actions = following
        raise BrokenPromise("quarantine does not come to an end")

    def _quarantine(self, action: QuarantineAction) -> list[QuarantineAction]:
        core = self.quarantine
        match action:
            case Remember():
                self._note(added=action.suspects)
                self._maybe_killed()
                self.flushed = self.noted
                return core.remembered(action.number, self.now_s)
            case Forget():
                self._note(removed=action.suspects)
                return core.forgotten(action.suspects)
            case Settle():
                return core.settled([(s, self._outcome(s)) for s in action.suspects], self.now_s)
            case MarkShort():
                self._mark(action.ledger_id)
                return []
            case Evacuate():
                self._evacuate(action.number)
                return []

    def _note(self, added: tuple[Suspect, ...] = (), removed: tuple[Suspect, ...] = ()) -> None:
        kept = {(s.ledger_id, s.entry_id): s for s in self.noted.suspects}
        for suspect in removed:
            kept.pop((suspect.ledger_id, suspect.entry_id), None)
        for suspect in added:
            kept[suspect.ledger_id, suspect.entry_id] = suspect
        self.noted = Noted(
            self.noted.progress, tuple(self.quarantine.quarantined()), frozenset(kept.values())
        )

    def _outcome(self, suspect: Suspect) -> Outcome:
        entry = suspect.ledger_id, suspect.entry_id
        number = self.index.get(entry)
        if number is None:
            return Outcome.GONE
        if (number, entry) in self.bad:
            return Outcome.STILL
        return Outcome.REPAIRED if number != suspect.location.segment else Outcome.SOUND

    def _mark(self, ledger: int) -> None:
        durable = {(s.ledger_id, s.entry_id) for s in self.flushed.suspects}
        asked_for = self._missing(ledger)
        if asked_for and not asked_for & durable:
            raise BrokenPromise(f"ledger {ledger} is marked for what a restart does not know")
        away = not self._quiet and self._rng.random() < 0.1
        if not away:
            self.marks.add(ledger)
        self.quarantine.marked(ledger, self.now_s, done=not away)

    def _evacuate(self, number: int) -> None:
        """Compaction: what can be read moves; the segment goes when nothing lives in it."""
        if self.quarantine.hold_of(number) is not Hold.LEFT:
            raise BrokenPromise(f"segment {number} is emptied though something waits in it")
        live = [e for e in sorted(self.segments.get(number, ())) if self.index.get(e) == number]
        unreadable = [entry for entry in live if (number, entry) in self.bad]
        durable = {(s.ledger_id, s.entry_id, s.location.segment) for s in self.flushed.suspects}
        if any((*entry, number) in durable for entry in unreadable):
            raise BrokenPromise(f"segment {number} is emptied before its repair")
        for entry in live:
            if entry not in unreadable:
                self._add(entry)
        if unreadable:
            self.scrub.suspect(number, self.now_s)
            return
        self.segments.pop(number, None)
        self.torn.discard(number)
        self.evacuated += 1
        if self.quarantine.removed(number):
            self._note()

    # --- promises ---------------------------------------------------------------------------

    def _promise_nothing_forgotten(self) -> None:
        """What lies behind the noted progress, and was bad when it was read, is suspected."""
        progress = self.noted.progress
        for entry, (number, began_ms) in self._known_bad.items():
            is_passed = began_ms == progress.began_ms and number <= progress.after
            if not is_passed or self.index.get(entry) != number:
                continue
            if self.quarantine.suspects.find(*entry) is None:
                raise BrokenPromise(f"entry {entry} in {number} is forgotten")
