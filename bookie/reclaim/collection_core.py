"""The pure core of garbage collection: which ledgers of a bookie may be deleted (G-1..G-6).

Events in, actions out. A pass is

    wake → ListLocal → ReadFacts → WalkLedgers → ReadLedgers → ReadFacts → DeleteLedgers

and ends early wherever something does not fit. What holds: a ledger is deleted only if

- it was in the index before the listing began (G-1), the listing left it out, and a barriered read
  of its own record found none, twice, `confirm_s` apart (G-2);
- the store is this bookie's cluster, has its present cookie, and none of its counters went back, at
  the beginning and again after the last read, over one session (G-3);
- the ledgers that are missing are no more than the deletions that were counted since a pass found
  none missing; ledgers go during a pass as well, so what was counted is asked for again behind the
  reads before anything is called unexplained. Where no such pass is known: no more than
  `unexplained_ratio` of all, and the listing is not empty (G-3, ADR 36).

Evidence that the store went back is remembered until an operator says what to do. A store that was
restored from a copy says so itself, and counts deletions from nought: nothing that is missing from
it is explained, until a pass found every ledger there (ADR 51).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple

from octavo.bookie.reclaim.collection_actions import (
    Action,
    Alarm,
    DeleteLedgers,
    ListLocal,
    Memory,
    PassEnded,
    RaiseAlarm,
    ReadFacts,
    ReadLedgers,
    Remember,
    StoreFacts,
    WalkLedgers,
)
from octavo.runtime.invariant import invariant


class CollectionLimits(NamedTuple):
    """Settings of garbage collection."""

    interval_s: float
    confirm_s: float
    """Least time between the two reads that find a ledger missing."""
    unexplained_ratio: float
    reads_max: int
    """Records read in one pass; the rest waits for the next one."""


class Step(Enum):
    """What the pass waits for."""

    IDLE = "its time"
    LOCAL = "the ledgers of the index"
    FACTS = "the store's facts"
    WALK = "the listing"
    READ = "records of missing ledgers"
    COUNT_AGAIN = "the count of deletions, behind the reads"
    FACTS_AGAIN = "the store's facts, once more"
    DELETE = "deletions"


class CollectionCore:
    """Garbage collection of one bookie.

    Args:
        instance_id: the cluster this bookie belongs to.
        memory: what an earlier process remembered.
        first_s: when the first pass begins.
    """

    def __init__(
        self, limits: CollectionLimits, *, instance_id: str, memory: Memory, first_s: float
    ) -> None:
        self._limits = limits
        self._instance_id = instance_id
        self.memory = self._kept = memory
        self.step = Step.IDLE
        self.alarm = Alarm.NONE
        self.cause = ""
        """Why nothing is deleted, in words; empty without an alarm."""
        self._due_s = first_s
        self._hurried = False
        self._all_found: tuple[int, float] | None = None
        """Deletions counted at a pass that found everything, and when that was."""
        self._accepted = False
        """An operator said that what is missing may be deleted: until a pass has done it."""
        self._facts: StoreFacts | None = None
        self._counted = 0
        """Deletions that were counted when this pass last asked."""
        self._local: set[int] = set()
        """Ledgers of the index with entries, as of the beginning of the pass."""
        self._unlisted: set[int] = set()
        """Ledgers of the index, entries or not, that the listing has not named yet."""
        self._listed = 0
        self._missing: set[int] = set()
        """Ledgers that the reads of this pass did not find."""
        self._contradicted = 0
        """Ledgers that the listing left out and a read found."""
        self._first_missing_s: dict[int, float] = {}
        """Ledger → when a read first did not find it; no more of them than ledgers in the index."""

    @property
    def waiting(self) -> int:
        """Ledgers found missing once."""
        return len(self._first_missing_s)

    def next_deadline_s(self) -> float | None:
        """When the next pass begins; None while one is under way."""
        return self._due_s if self.step is Step.IDLE else None

    # --- events -----------------------------------------------------------------------------

    def wake(self, now_s: float) -> list[Action]:
        """Begin a pass if it is time."""
        if self.step is not Step.IDLE or now_s < self._due_s:
            return []
        self._hurried = False
        self.step = Step.LOCAL
        return [ListLocal()]

    def hurry(self, now_s: float) -> None:
        """Begin the next pass at once, or as soon as the present one is over."""
        self._hurried = True
        self._due_s = min(self._due_s, now_s)

    def accept(self, now_s: float) -> None:
        """An operator says: what the metadata does not know any more may be deleted.

        Holds for the ledgers of the next pass that comes to its end, after all its proofs; another
        cluster's metadata is not accepted by this.
        """
        self._accepted = True
        self.hurry(now_s)

    def facts_read(self, facts: StoreFacts, now_s: float) -> list[Action]:
        """What the store says of itself."""
        alarm, cause = self._judge_store(facts)
        if alarm is not Alarm.NONE:
            return self._stop(alarm, cause, now_s)
        if self.step is Step.FACTS:
            self._facts, self._counted = facts, facts.deletions
            newest = max(self._local, default=-1)
            if newest > facts.last_id and not self._accepted:
                cause = (
                    f"ledger {newest} is stored here, but the metadata has given out no id above "
                    f"{facts.last_id}"
                )
                return self._stop(Alarm.OLDER_METADATA, cause, now_s)
            self.step = Step.WALK
            return [WalkLedgers()]
        before = self._facts
        if before is None or (facts.session_id, facts.restored) != (
            before.session_id,
            before.restored,
        ):
            return self._end(now_s, completed=False)  # G-1: a new session may be another server
        if self.step is Step.COUNT_AGAIN:
            self._counted = facts.deletions
            return self._judge_reads(now_s)
        self._expect(Step.FACTS_AGAIN)
        ripe = self._ripe(now_s)
        self.step = Step.DELETE
        return [DeleteLedgers(ripe)]

    def locals_listed(self, ledgers: Iterable[tuple[int, bool]]) -> list[Action]:
        """Ledgers of the index, and whether they have entries."""
        self._expect(Step.LOCAL)
        self._unlisted, self._local = set(), set()
        for ledger_id, has_entries in ledgers:
            self._unlisted.add(ledger_id)
            if has_entries:
                self._local.add(ledger_id)
        self._listed = 0
        self._missing, self._contradicted = set(), 0
        self.step = Step.FACTS
        return [ReadFacts()]

    def listed(self, ledger_ids: Collection[int]) -> None:
        """Ledgers that the metadata store lists."""
        self._expect(Step.WALK)
        self._listed += len(ledger_ids)
        self._unlisted.difference_update(ledger_ids)

    def walk_ended(self, now_s: float) -> list[Action]:
        """The listing is complete."""
        self._expect(Step.WALK)
        for ledger_id in self._first_missing_s.keys() - self._unlisted:
            del self._first_missing_s[ledger_id]
        if self._is_restored() and not self._accepted:
            unknown = len(self._unlisted & self._local)
            if unknown:
                return self._stop(Alarm.OLDER_METADATA, self._restored_cause(unknown), now_s)
            assert self._facts is not None
            self.memory = Memory(self._facts.deletions, "", self._facts.restored)
        if not self._unlisted:
            return self._end(now_s)
        # One more than can be explained is read: if it is missing, too, that is the answer.
        missing = sorted(self._unlisted & self._local)
        wanted = missing[: self._allowed() + 1] + sorted(self._unlisted - self._local)
        self.step = Step.READ
        return [ReadLedgers(wanted[: self._limits.reads_max])]

    def ledger_read(self, ledger_id: int, *, exists: bool) -> None:
        """A barriered read found the ledger's record, readable or not (M-7), or none."""
        self._expect(Step.READ)
        if exists:
            self._contradicted += 1
            self._first_missing_s.pop(ledger_id, None)
        else:
            self._missing.add(ledger_id)

    def reads_ended(self, now_s: float) -> list[Action]:
        """All records that were asked for are read."""
        self._expect(Step.READ)
        if self._contradicted:
            return self._stop(
                Alarm.LISTING,
                f"{self._contradicted} ledgers exist that the metadata does not list",
                now_s,
            )
        if len(self._missing & self._local) > self._allowed():
            # Ledgers go while a pass looks at them, and each deletion is counted before.
            self.step = Step.COUNT_AGAIN
            return [ReadFacts()]
        return self._judge_reads(now_s)

    def _judge_reads(self, now_s: float) -> list[Action]:
        if len(self._missing & self._local) > self._allowed():
            return self._stop(Alarm.UNEXPLAINED, self._unexplained_cause(), now_s)
        for ledger_id in self._missing:
            self._first_missing_s.setdefault(ledger_id, now_s)
        if not self._ripe(now_s):
            return self._end(now_s)
        self.step = Step.FACTS_AGAIN
        return [ReadFacts()]

    def deleted(self, ledger_ids: Collection[int], now_s: float) -> list[Action]:
        """These are gone; others of those asked for were in use (G-5)."""
        self._expect(Step.DELETE)
        assert self._facts is not None
        for ledger_id in ledger_ids:
            del self._first_missing_s[ledger_id]
        explained = self.memory.explained
        if explained >= 0:  # each of them used up a deletion that was counted
            used = min(len(self._local.intersection(ledger_ids)), self._allowed())
            self.memory = self.memory._replace(explained=explained + used)
        self._unlisted.difference_update(ledger_ids)
        return self._end(now_s, deleted=len(ledger_ids))

    def failed(self, now_s: float) -> list[Action]:
        """The metadata store did not answer: nothing is known, the pass ends (G-1)."""
        return self._end(now_s, completed=False)

    # --- judgement --------------------------------------------------------------------------

    def _judge_store(self, facts: StoreFacts) -> tuple[Alarm, str]:
        if facts.instance_id != self._instance_id:
            found = f"cluster {facts.instance_id}" if facts.instance_id else "no cluster"
            return (
                Alarm.OTHER_CLUSTER,
                f"the metadata is of {found}, this bookie belongs to {self._instance_id}",
            )
        if facts.cookie_version < 0 or not facts.cookie_is_ours:
            return Alarm.OTHER_CLUSTER, "the metadata does not know this bookie"
        if self._accepted:
            return Alarm.NONE, ""
        memory = self.memory
        if memory.doubt:
            return Alarm.OLDER_METADATA, memory.doubt
        if facts.went_back:
            return Alarm.OLDER_METADATA, facts.went_back
        if memory.restored and not facts.restored:
            return Alarm.OLDER_METADATA, "the metadata has forgotten that it was restored"
        if facts.cookie_version < facts.cookie_floor:
            return Alarm.OLDER_METADATA, (
                f"this bookie's cookie has version {facts.cookie_version}, it had "
                f"{facts.cookie_floor}"
            )
        if facts.restored != memory.restored:
            return Alarm.NONE, ""  # it began to count anew; `walk_ended` asks what is missing
        known = self._facts.deletions if self._facts is not None else memory.explained
        if facts.deletions < max(known, memory.explained):
            return Alarm.OLDER_METADATA, (
                f"the metadata has counted {facts.deletions} deletions of ledgers, it had counted "
                f"{max(known, memory.explained)}"
            )
        return Alarm.NONE, ""

    def _is_restored(self) -> bool:
        """Whether the metadata was put back from a copy, and no pass since found all ledgers."""
        return self._facts is not None and self._facts.restored != self.memory.restored

    def _restored_cause(self, missing: int) -> str:
        assert self._facts is not None
        of = f"{missing} of {len(self._local)} ledgers stored here are not in it"
        return f"{self._facts.restored_words}: {of}, and may have been made since the copy"

    def trusts(self, facts: StoreFacts) -> bool:
        """Whether nothing speaks against the metadata now, without any operator's word (G-3)."""
        if self._accepted or self.memory.doubt or self.alarm is not Alarm.NONE:
            return False
        if facts.restored != self.memory.restored:
            return False
        return self._judge_store(facts)[0] is Alarm.NONE

    def _allowed(self) -> int:
        """How many ledgers with entries may be missing."""
        if self._accepted:
            return len(self._local)
        if self.memory.explained >= 0:
            return self._counted - self.memory.explained
        if not self._listed:
            return 0
        return int(len(self._local) * self._limits.unexplained_ratio)

    def _unexplained_cause(self) -> str:
        missing = len(self._unlisted & self._local)
        head = f"{missing} of {len(self._local)} ledgers are missing from the metadata"
        if self.memory.explained >= 0:
            return f"{head}, and {self._allowed()} deletions were counted since all were there"
        if not self._listed:
            return f"{head}, which lists no ledger at all"
        return f"{head}, more than {self._limits.unexplained_ratio:.0%}, and nothing explains it"

    def _ripe(self, now_s: float) -> list[int]:
        """Ledgers whose absence is proven twice (G-2)."""
        oldest_s = now_s - self._limits.confirm_s
        return sorted(
            ledger_id
            for ledger_id in self._missing
            if self._first_missing_s.get(ledger_id, now_s + 1) <= oldest_s
        )

    # --- ends of a pass ---------------------------------------------------------------------

    def _stop(self, alarm: Alarm, cause: str, now_s: float) -> list[Action]:
        """Delete nothing, forget what was found missing, say why."""
        self.alarm, self.cause = alarm, cause
        actions: list[Action] = [RaiseAlarm(alarm, cause)]
        if alarm is Alarm.OLDER_METADATA and not self.memory.doubt:
            self.memory = self._kept = self.memory._replace(doubt=cause)
            actions.append(Remember(self.memory))
        self._first_missing_s.clear()
        self._rest(now_s)
        return actions

    def _end(self, now_s: float, *, deleted: int = 0, completed: bool = True) -> list[Action]:
        """The pass is over without an alarm."""
        actions: list[Action] = []
        if completed:
            assert self._facts is not None
            self.alarm, self.cause = Alarm.NONE, ""
            if not self._unlisted & self._local:  # every ledger with entries is there, or deleted
                accepted, self._accepted = self._accepted, False
                counted = self._facts.deletions
                explained = counted if accepted else self._explained(now_s)
                self.memory = Memory(explained, "", self._facts.restored)
            if self.memory != self._kept:
                self._kept = self.memory
                actions.append(Remember(self.memory))
        actions.append(PassEnded(deleted, self.waiting))
        self._rest(now_s)
        return actions

    def _explained(self, now_s: float) -> int:
        """Deletions that need explain nothing any more.

        A deletion is counted before the record goes, and an entry is accepted before the index
        shows it: what a pass found listed, or did not look for, may have been counted already. So
        this is what was counted at an earlier pass that found everything, but for the first pass of
        a bookie that stores nothing.
        """
        assert self._facts is not None
        counted = self._facts.deletions
        if not self._local and self.memory.explained < 0:
            return counted
        explained = self.memory.explained
        if self._all_found is not None and now_s - self._all_found[1] < self._limits.confirm_s:
            return explained
        if self._all_found is not None:
            explained = max(explained, self._all_found[0])
        self._all_found = (counted, now_s)
        return explained

    def _rest(self, now_s: float) -> None:
        limits = self._limits
        wait_s = limits.interval_s
        if self._first_missing_s:
            wait_s = min(wait_s, limits.confirm_s)
        self._due_s = now_s if self._hurried else now_s + wait_s
        self._facts = None
        self._unlisted, self._missing = set(), set()
        self.step = Step.IDLE

    def _expect(self, step: Step) -> None:
        invariant(self.step is step, f"collection: {step.value} came, {self.step.value} was due")

    def validate(self) -> None:
        """Check the core's own promises."""
        invariant(bool(self.cause) == (self.alarm is not Alarm.NONE), "an alarm without a cause")
        invariant(
            self.step in (Step.IDLE, Step.LOCAL, Step.FACTS) or self._facts is not None,
            "a pass without facts",
        )
        invariant(self._missing <= self._unlisted or self.step is Step.IDLE, "missing but listed")
        invariant(
            self.step is not Step.DELETE or self._missing <= self._first_missing_s.keys(),
            "deleting what was missing once",
        )
