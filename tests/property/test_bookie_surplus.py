"""Copies that no record asks for go, and never one that a record names, whoever copies meanwhile
(G-4, INV-7, INV-14)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from octavo.bookie.reclaim.surplus_actions import (
    Action,
    DeleteCopies,
    Held,
    ReadRecord,
    RecordFacts,
    Spare,
    Unlock,
)
from octavo.bookie.reclaim.surplus_core import Candidate, Step, SurplusCore
from octavo.runtime.errors import InvariantViolation
from tests.surplus_world import ENTRIES, LEDGER, LIMITS, BrokenPromise, SurplusWorld

WORLDS = 400
STEPS = 600


def test_no_record_ever_names_copies_that_were_given_up() -> None:
    deleted = commits = 0
    for seed in range(WORLDS):
        world = SurplusWorld(seed).run(STEPS)
        world.settle()
        deleted += world.deleted
        commits += world.commits
    assert deleted > WORLDS // 2
    assert commits > WORLDS


# --- planted bugs ------------------------------------------------------------------------------


class NoTouch(SurplusCore):
    """Deletes under the lock alone."""

    def facts_read(self, session_id: int, now_s: float, *, trusted: bool) -> list[Action]:
        again = self.step is Step.FACTS_AGAIN
        actions = super().facts_read(session_id, now_s, trusted=trusted)
        return self.touched(now_s, done=True) if again and self.step is Step.TOUCH else actions


class NoCondemnation(SurplusCore):
    """Goes on telling what is here."""

    def locked(self, now_s: float, *, ours: bool) -> list[Action]:
        actions = super().locked(now_s, ours=ours)
        if not ours:
            return actions
        self.step = Step.RECORD
        return [ReadRecord(self._current)]


class NoSecondLook(SurplusCore):
    """Believes what the record said an hour ago."""

    def record_read(
        self, ledger_id: int, record: RecordFacts | None, held: Held | None, now_s: float
    ) -> list[Action]:
        if self.step is Step.RECORD:
            record, held = RecordFacts(True, False), self._candidates[ledger_id].held
        return super().record_read(ledger_id, record, held, now_s)


class OpenToo(SurplusCore):
    """Does not ask whether the ledger is closed."""

    def record_read(
        self, ledger_id: int, record: RecordFacts | None, held: Held | None, now_s: float
    ) -> list[Action]:
        record = record and record._replace(closed=True)
        return super().record_read(ledger_id, record, held, now_s)


class AtOnce(SurplusCore):
    """Deletes what is surplus now."""

    def _ripe_of(self, ledger_ids: Iterable[int], now_s: float) -> list[int]:
        return sorted(ledger_ids)


class AddsDoNotCount(SurplusCore):
    """Does not see that somebody added to it."""

    def record_read(
        self, ledger_id: int, record: RecordFacts | None, held: Held | None, now_s: float
    ) -> list[Action]:
        return super().record_read(ledger_id, record, held and Held(0, 0, 0), now_s)


class Trusting(SurplusCore):
    """Believes every store."""

    def facts_read(self, session_id: int, now_s: float, *, trusted: bool) -> list[Action]:
        return super().facts_read(session_id, now_s, trusted=True)


class AnySession(SurplusCore):
    """Goes on over another session."""

    def facts_read(self, session_id: int, now_s: float, *, trusted: bool) -> list[Action]:
        return super().facts_read(1, now_s, trusted=trusted)


class TouchOrNot(SurplusCore):
    """Deletes whether the record could be written or not."""

    def touched(self, now_s: float, *, done: bool) -> list[Action]:
        return super().touched(now_s, done=True)


class StaysCondemned(SurplusCore):
    """Forgets to spare what was not deleted."""

    def _let_go(self) -> list[Action]:
        return [action for action in super()._let_go() if not isinstance(action, Spare)]


class KeepsLocks(SurplusCore):
    """Forgets to give locks back."""

    def _let_go(self) -> list[Action]:
        return [action for action in super()._let_go() if not isinstance(action, Unlock)]


PLANTED = [
    NoTouch,
    NoCondemnation,
    NoSecondLook,
    OpenToo,
    AtOnce,
    AddsDoNotCount,
    Trusting,
    AnySession,
    TouchOrNot,
    StaysCondemned,
    KeepsLocks,
]


def _is_found(make: type[SurplusCore], *, any_version: bool = False) -> bool:
    for seed in range(4 * WORLDS):
        try:
            world = SurplusWorld(
                seed, lambda first_s: make(LIMITS, first_s=first_s), any_version=any_version
            )
            world.run(STEPS)
            world.settle()
        except (BrokenPromise, InvariantViolation):
            return True
    return False


@pytest.mark.parametrize("planted", PLANTED, ids=lambda cls: cls.__name__)
def test_planted_bugs_are_found(planted: type[SurplusCore]) -> None:
    assert _is_found(planted)


def test_a_worker_that_changes_any_version_of_the_record_is_found() -> None:
    """What `LedgerRepairer` must not do: the record is written again so that it cannot."""
    assert _is_found(SurplusCore, any_version=True)


# --- step by step ------------------------------------------------------------------------------

HELD = Held(len(ENTRIES), 100, 5)
SURPLUS = RecordFacts(closed=True, names_us=False)


def _seen_twice(core: SurplusCore) -> None:
    """Up to the lock, with one ledger that was surplus for long enough."""
    core.wake(0.0)
    core.locals_listed([(LEDGER, True)])
    core.facts_read(1, 0.0, trusted=True)
    core.record_read(LEDGER, SURPLUS, HELD, 0.0)
    core.reads_ended(0.0)
    assert core.next_deadline_s() == LIMITS.quiet_s
    core.wake(60.0)
    core.facts_read(1, 60.0, trusted=True)
    core.record_read(LEDGER, SURPLUS, HELD, 60.0)
    core.reads_ended(60.0)
    assert core.step is Step.LOCK


def test_a_ledger_that_is_being_repaired_must_be_quiet_again() -> None:
    core = SurplusCore(LIMITS, first_s=0.0)
    _seen_twice(core)
    core.locked(60.0, ours=False)
    assert core.waiting == 1
    assert core.next_deadline_s() == 120.0


def test_a_store_that_does_not_answer_costs_a_short_pause_only() -> None:
    core = SurplusCore(LIMITS, first_s=0.0)
    core.wake(0.0)
    core.locals_listed([(LEDGER, True)])
    core.failed(1.0)
    assert core.next_deadline_s() == 1.0 + LIMITS.quiet_s


def test_a_pass_that_is_too_long_goes_on_where_it_ended() -> None:
    core = SurplusCore(LIMITS._replace(reads_max=2), first_s=0.0)
    seen: list[list[int]] = []
    for now_s in (0.0, 1.0, 2.0):
        core.wake(now_s)
        core.locals_listed([(ledger_id, True) for ledger_id in (5, 1, 3, 2, 4)])
        (asked,) = core.facts_read(1, now_s, trusted=True)
        seen.append(list(getattr(asked, "ledger_ids", [])))
        for ledger_id in seen[-1]:
            core.record_read(ledger_id, RecordFacts(True, True), HELD, now_s)
        core.reads_ended(now_s)
    assert seen == [[1, 2], [3, 4], [5]]
    assert core.next_deadline_s() == 2.0 + LIMITS.interval_s


def test_who_is_in_a_hurry_is_heard_while_a_pass_is_under_way() -> None:
    core = SurplusCore(LIMITS, first_s=0.0)
    core.wake(0.0)
    core.locals_listed([])
    core.hurry(1.0)
    core.facts_read(1, 2.0, trusted=True)
    core.reads_ended(2.0)
    assert core.next_deadline_s() == 2.0
    core.wake(2.0)
    core.locals_listed([])
    core.failed(3.0)
    assert core.next_deadline_s() == 3.0 + LIMITS.quiet_s, "once"


def test_the_whole_way_of_one_ledger() -> None:
    core = SurplusCore(LIMITS, first_s=0.0)
    _seen_twice(core)
    core.locked(60.0, ours=True)
    core.condemned(60.0, done=True)
    core.record_read(LEDGER, SURPLUS, HELD, 60.0)
    core.facts_read(1, 60.0, trusted=True)
    assert core.touched(60.0, done=True) == [DeleteCopies(LEDGER)]
    assert core.deleted(60.0, done=True)[0] == Unlock(LEDGER)
    assert core.waiting == 0
    assert Candidate(0.0, HELD).held == HELD
