"""Garbage collection before a metadata store that lies: only what was really deleted goes, and all
of it goes while the store is honest (G-1..G-6, INV-12, INV-14)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from octavo.bookie.reclaim.collection_actions import (
    Action,
    Alarm,
    Memory,
    RaiseAlarm,
    ReadFacts,
    StoreFacts,
)
from octavo.bookie.reclaim.collection_core import CollectionCore, Step
from tests.collection_world import (
    INSTANCE,
    LIMITS,
    BrokenPromise,
    CollectionWorld,
    MakeCore,
    real_core,
)

WORLDS = 400
FIRST = 2000
"""Of the seeds. Of 5,600 worlds from 400 on two lose, at once, fewer records than deletions were
counted that this bookie had no part in: that is not told from deletions (ADR 36)."""
TURNS = 40


def test_only_what_was_deleted_goes() -> None:
    deleted = restarts = put_back = 0
    alarms: dict[Alarm, int] = {}
    for seed in range(FIRST, FIRST + WORLDS):
        world = CollectionWorld(seed)
        tally = world.run(TURNS)
        world.settle()
        deleted += tally.deleted
        restarts += tally.restarts
        put_back += tally.put_back
        for alarm, count in tally.alarms.items():
            alarms[alarm] = alarms.get(alarm, 0) + count
    assert deleted > WORLDS
    assert restarts > WORLDS // 4
    assert put_back > WORLDS // 10
    assert alarms.keys() == set(Alarm) - {Alarm.NONE}, alarms


def test_inv14_before_an_honest_store_everything_deleted_goes() -> None:
    for seed in range(WORLDS // 4):
        world = CollectionWorld(seed)
        world.run(TURNS, honest=True)
        world.settle()
        assert not world.tally.alarms, seed
        assert not world.local.keys() - world.store.ledgers, seed
        assert world.tally.deleted > 0


# --- planted bugs ------------------------------------------------------------------------------


class OneAbsence(CollectionCore):
    """Deletes what is missing once."""

    def _ripe(self, now_s: float) -> list[int]:
        return sorted(self._missing)


class TooSoon(CollectionCore):
    """Takes two reads for two proofs, however close."""

    def _ripe(self, now_s: float) -> list[int]:
        return super()._ripe(now_s + LIMITS.confirm_s / 2)


class Trusting(CollectionCore):
    """Believes that whatever is missing was deleted."""

    def _allowed(self) -> int:
        return len(self._local)


class RatioOnly(CollectionCore):
    """Never asks what explains a ledger that is missing."""

    def _allowed(self) -> int:
        return int(len(self._local) * 0.2)


class AnySession(CollectionCore):
    """Goes on over another session."""

    def facts_read(self, facts: StoreFacts, now_s: float) -> list[Action]:
        if self._facts is not None:
            facts = facts._replace(session_id=self._facts.session_id)
        return super().facts_read(facts, now_s)


class AnyCluster(CollectionCore):
    """Does not look whose metadata it is."""

    def _judge_store(self, facts: StoreFacts) -> tuple[Alarm, str]:
        found = facts._replace(instance_id=INSTANCE, cookie_version=1 << 40, cookie_is_ours=True)
        return super()._judge_store(found)


class Forgetful(CollectionCore):
    """Does not remember over a pass that the metadata went back, and starts its count anew."""

    def _stop(self, alarm: Alarm, cause: str, now_s: float) -> list[Action]:
        actions = super()._stop(alarm, cause, now_s)
        self.memory = Memory(-1, "")
        return [action for action in actions if isinstance(action, RaiseAlarm)]


class EarlyCount(CollectionCore):
    """Starts the count of deletions anew though ledgers are missing."""

    def walk_ended(self, now_s: float) -> list[Action]:
        counted = self._facts.deletions if self._facts is not None else 0
        actions = super().walk_ended(now_s)
        if self.step is Step.READ:
            self.memory = Memory(counted, "")
        return actions


class PresentCount(CollectionCore):
    """Takes what is counted now as the count at which everything was there."""

    def _explained(self, now_s: float) -> int:
        assert self._facts is not None
        return self._facts.deletions


class Stubborn(CollectionCore):
    """Deletes though ledgers exist that the listing left out."""

    def ledger_read(self, ledger_id: int, *, exists: bool) -> None:
        super().ledger_read(ledger_id, exists=exists)
        self._contradicted = 0


class Asleep(CollectionCore):
    """Forgets what was missing once when the next pass begins."""

    def locals_listed(self, ledgers: Iterable[tuple[int, bool]]) -> list[Action]:
        self._first_missing_s.clear()
        return super().locals_listed(ledgers)


class Unmarked(CollectionCore):
    """Takes a store that was restored from a copy for any other."""

    def facts_read(self, facts: StoreFacts, now_s: float) -> list[Action]:
        return super().facts_read(facts._replace(restored=self.memory.restored), now_s)


class AnyCopy(CollectionCore):
    """Takes note of a restoration and goes on, whatever is missing."""

    def walk_ended(self, now_s: float) -> list[Action]:
        if self._facts is not None and self._is_restored():
            self.memory = Memory(0, "", self._facts.restored)
        return super().walk_ended(now_s)


def plant(bug: type[CollectionCore]) -> MakeCore:
    def make(memory: Memory, first_s: float) -> CollectionCore:
        return bug(LIMITS, instance_id=INSTANCE, memory=memory, first_s=first_s)

    return make


BUGS: list[type[CollectionCore]] = [
    OneAbsence,
    TooSoon,
    Trusting,
    RatioOnly,
    AnySession,
    AnyCluster,
    Forgetful,
    EarlyCount,
    PresentCount,
    Stubborn,
    Asleep,
    Unmarked,
    AnyCopy,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: type[CollectionCore]) -> None:
    for seed in range(8 * WORLDS):
        try:
            world = CollectionWorld(seed, plant(bug))
            world.run(TURNS, honest=seed % 4 == 0)
            world.settle()
        except BrokenPromise:
            return
    pytest.fail("not found")


# --- rules, one at a time ----------------------------------------------------------------------


def facts(**changes: object) -> StoreFacts:
    good = StoreFacts(
        session_id=1,
        instance_id=INSTANCE,
        cookie_version=5,
        cookie_is_ours=True,
        cookie_floor=5,
        went_back="",
        last_id=100,
        deletions=3,
    )
    return good._replace(**changes)  # type: ignore[arg-type]  # pyright: ignore


def begun(memory: Memory, ledgers: dict[int, bool], **changes: object) -> CollectionCore:
    """A core that has heard of its ledgers and of the store."""
    core = real_core(memory, 0.0)
    core.wake(0.0)
    core.locals_listed(list(ledgers.items()))
    core.facts_read(facts(**changes), 0.0)
    return core


@pytest.mark.parametrize(
    ("changes", "alarm", "words"),
    [
        ({"instance_id": "cluster-2"}, Alarm.OTHER_CLUSTER, "the metadata is of cluster cluster-2"),
        ({"instance_id": ""}, Alarm.OTHER_CLUSTER, "the metadata is of no cluster"),
        ({"cookie_version": -1}, Alarm.OTHER_CLUSTER, "does not know this bookie"),
        ({"cookie_is_ours": False}, Alarm.OTHER_CLUSTER, "does not know this bookie"),
        ({"cookie_version": 4}, Alarm.OLDER_METADATA, "has version 4, it had 5"),
        ({"went_back": "it did"}, Alarm.OLDER_METADATA, "it did"),
        ({"deletions": 1}, Alarm.OLDER_METADATA, "counted 1 deletions of ledgers, it had"),
        ({"last_id": 6}, Alarm.OLDER_METADATA, "ledger 7 is stored here, but"),
    ],
)
def test_g3_a_store_that_is_not_what_it_was_stops_the_pass(
    changes: dict[str, object], alarm: Alarm, words: str
) -> None:
    core = begun(Memory(2, ""), {7: True}, **changes)
    assert (core.step, core.alarm) == (Step.IDLE, alarm)
    assert words in core.cause
    assert bool(core.memory.doubt) == (alarm is Alarm.OLDER_METADATA)


def test_g3_doubt_lasts_until_an_operator_accepts_what_is_missing() -> None:
    core = begun(Memory(2, "went back"), {7: True})
    assert core.alarm is Alarm.OLDER_METADATA
    core.accept(1.0)
    now_s = 1.0
    deleted: list[Action] = []
    for _ in range(2):
        core.wake(now_s)
        core.locals_listed([(7, True)])
        core.facts_read(facts(), now_s)
        core.listed([1, 2])
        core.walk_ended(now_s)
        core.ledger_read(7, exists=False)
        core.reads_ended(now_s)
        now_s += LIMITS.confirm_s
    deleted = core.facts_read(facts(), now_s)
    assert [type(action).__name__ for action in deleted] == ["DeleteLedgers"]
    core.deleted([7], now_s)
    assert (core.memory, core.cause) == (Memory(3, ""), "")


@pytest.mark.parametrize(
    ("memory", "listed", "missing", "stops"),
    [
        (Memory(-1, ""), 10, 2, False),
        (Memory(-1, ""), 10, 3, True),  # more than a fifth
        (Memory(-1, ""), 0, 1, True),  # an empty listing
        (Memory(0, ""), 10, 3, False),  # three deletions were counted
        (Memory(0, ""), 10, 4, True),
        (Memory(0, ""), 0, 3, False),  # empty, and explained
        (Memory(2, ""), 10, 2, True),
    ],
)
def test_g3_what_is_missing_must_be_explained(
    memory: Memory, listed: int, missing: int, stops: bool
) -> None:
    ledgers = (
        dict.fromkeys(range(1, 11), True) if listed else dict.fromkeys(range(1, missing + 1), True)
    )
    core = begun(memory, ledgers)
    core.listed([one for one in ledgers if one > missing])
    core.walk_ended(0.0)
    for ledger_id in range(1, missing + 1):
        core.ledger_read(ledger_id, exists=False)
    core.reads_ended(0.0)
    if stops:
        core.facts_read(facts(), 0.0)  # nothing was counted meanwhile
    assert (core.alarm is Alarm.UNEXPLAINED) == stops, core.cause
    assert core.waiting == (0 if stops else missing)


def test_g3_a_deletion_during_a_pass_is_counted_before_anything_is_called_unexplained() -> None:
    core = begun(Memory(1, ""), {1: True, 2: True, 3: True, 4: True})  # two are explained
    core.listed([4])
    core.walk_ended(0.0)
    for ledger_id in (1, 2, 3):  # the third went behind the first reading of the count
        core.ledger_read(ledger_id, exists=False)
    assert core.reads_ended(0.0) == [ReadFacts()]
    core.facts_read(facts(deletions=4), 0.0)
    assert (core.alarm, core.waiting) == (Alarm.NONE, 3)


def test_g1_a_count_from_another_session_ends_the_pass() -> None:
    core = begun(Memory(2, ""), {1: True, 2: True})
    core.listed([3])
    core.walk_ended(0.0)
    for ledger_id in (1, 2):
        core.ledger_read(ledger_id, exists=False)
    core.reads_ended(0.0)
    core.facts_read(facts(session_id=9, deletions=9), 0.0)
    assert (core.step, core.alarm, core.waiting) == (Step.IDLE, Alarm.NONE, 0)


def test_g1_what_the_listing_leaves_out_and_a_read_finds_stops_the_pass() -> None:
    core = begun(Memory(0, ""), {1: True, 2: True})
    core.listed([3])
    core.walk_ended(0.0)
    core.ledger_read(1, exists=True)
    core.ledger_read(2, exists=False)
    core.reads_ended(0.0)
    assert core.alarm is Alarm.LISTING
    assert core.waiting == 0


def test_strays_without_entries_need_no_explanation() -> None:
    """A fence of a ledger that never was must not stop the collection for ever (B-F4)."""
    core = begun(Memory(3, ""), {1: True, 1 << 50: False})
    core.listed([1])
    core.walk_ended(0.0)
    core.ledger_read(1 << 50, exists=False)
    core.reads_ended(0.0)
    assert (core.alarm, core.waiting) == (Alarm.NONE, 1)


def test_g6_passes_come_by_time_and_sooner_when_something_is_missing() -> None:
    core = begun(Memory(3, ""), {1: True})
    assert core.next_deadline_s() is None
    core.listed([1])
    core.walk_ended(10.0)
    assert core.next_deadline_s() == 10.0 + LIMITS.interval_s
    core = begun(Memory(0, ""), {1: True})
    core.hurry(5.0)
    core.walk_ended(10.0)
    core.ledger_read(1, exists=False)
    core.reads_ended(10.0)
    assert core.next_deadline_s() == 10.0, "asked for meanwhile"
    core.wake(10.0)
    core.failed(11.0)
    assert core.next_deadline_s() == 11.0 + LIMITS.confirm_s


# --- a store that was restored from a copy (ADR 51) --------------------------------------------


def test_g3_what_a_restored_store_does_not_know_stays_until_an_operator_says_so() -> None:
    """Also with more deletions counted than are missing: it counts from nought."""
    changes: dict[str, object] = {"restored": "n", "restored_words": "restored today"}
    core = begun(Memory(0, ""), {1: True, 7: True}, deletions=50, **changes)
    core.listed([1])
    core.walk_ended(0.0)
    assert (core.step, core.alarm) == (Step.IDLE, Alarm.OLDER_METADATA)
    assert core.cause.startswith("restored today: 1 of 2 ledgers stored here are not in it")
    again = begun(core.memory, {1: True}, deletions=50, **changes)
    assert again.alarm is Alarm.OLDER_METADATA, "also after a restart"
    again.accept(0.0)
    again.wake(0.0)
    again.locals_listed([(1, True)])
    again.facts_read(facts(deletions=50, **changes), 0.0)
    again.listed([1])
    again.walk_ended(0.0)
    assert again.memory == Memory(50, "", "n")


def test_a_restored_store_that_knows_every_ledger_is_any_store() -> None:
    core = begun(Memory(9, ""), {1: True, 7: True}, deletions=2, restored="n")
    assert not core.trusts(facts(deletions=2, restored="n"))
    core.listed([1, 7, 8])
    core.walk_ended(0.0)
    assert (core.alarm, core.memory) == (Alarm.NONE, Memory(2, "", "n"))
    assert core.trusts(facts(deletions=2, restored="n"))
    gone = begun(core.memory, {1: True}, deletions=2)
    assert "forgotten that it was restored" in gone.cause
    other = begun(core.memory, {1: True}, deletions=2, restored="another one")
    other.listed([])
    other.walk_ended(0.0)
    assert other.alarm is Alarm.OLDER_METADATA


def test_a_restoration_between_the_looks_ends_the_pass() -> None:
    core = begun(Memory(0, ""), {7: True})
    for now_s in (0.0, LIMITS.confirm_s):
        if now_s:
            core.wake(core.next_deadline_s() or 0.0)
            core.locals_listed([(7, True)])
            core.facts_read(facts(), now_s)
        core.listed([1])
        core.walk_ended(now_s)
        core.ledger_read(7, exists=False)
        core.reads_ended(now_s)
    assert core.step is Step.FACTS_AGAIN
    actions = core.facts_read(facts(restored="n"), LIMITS.confirm_s)
    assert "DeleteLedgers" not in [type(action).__name__ for action in actions]
