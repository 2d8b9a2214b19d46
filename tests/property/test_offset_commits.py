"""Commits of offsets against a store that loses replies, refuses and delays (O9, O10, O11).

Held at every step: one request at a time, every ticket settled once, nothing is committed of what
was given up, no offset that is older than one that was asked for later is sent after it, who hears
of success finds all of his offsets stored, or newer ones; and once the store is kind, it holds what
was asked for last.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.messaging.membership.offset_commits import (
    CommitAction,
    OffsetCommits,
    SendCommit,
    Settle,
)
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.records import OffsetAndMetadata
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import InvalidRequest, InvariantViolation, OctavoError, RequestTimedOut
from octavo.runtime.errors_of_groups import CommitFailed

SLOTS = [Slot("t", number, b"id") for number in range(3)]


class CommitWorld:
    def __init__(self, seed: int, core_type: type[OffsetCommits] = OffsetCommits) -> None:
        self.rng = random.Random(seed)
        self.core = core_type(SeededEntropy(seed), auto_interval_s=5.0)
        self.now_s = 100.0
        self.under_way: SendCommit | None = None
        self.settled: dict[object, OctavoError | None] = {}
        self.tickets = 0
        self.positions = dict.fromkeys(SLOTS, 0)
        self.asked: dict[Slot, int] = {}
        """The newest offset that was asked for."""
        self.stored: dict[Slot, int] = {}
        self.given_up: set[Slot] = set()

    def do(self, actions: list[CommitAction]) -> None:
        for action in actions:
            if isinstance(action, Settle):
                if action.ticket is not None:
                    assert action.ticket not in self.settled, "settled twice"
                    if action.error is None:
                        for slot, value in action.offsets.items():
                            found = self.stored.get(slot, -1)
                            assert found >= value.offset, "said to be stored, and is not"
                    self.settled[action.ticket] = action.error
                continue
            assert self.under_way is None, "O10: two requests at once"
            self.under_way = action
            for slot, value in action.offsets.items():
                assert slot not in self.given_up, "O11: a commit of what was given up"
                assert value.offset == self.asked.get(slot), "O10: an older commit comes last"
        self.core.validate()

    def step(self) -> None:
        slot = self.rng.choice(SLOTS)
        match self.rng.randrange(8):
            case 0 | 1:
                self.positions[slot] += self.rng.randrange(1, 9)
            case 2 | 3:
                self.commit(self.rng.sample(SLOTS, self.rng.randrange(0, 3)))
            case 4:
                if self.core.auto_due(self.now_s):
                    mine = {one: at for one, at in self.positions.items() if self.has(one)}
                    self.asked.update(mine)
                    self.do(self.core.auto(mine, self.now_s))
            case 5:
                self.answer()
            case 6:
                self.pass_time(self.rng.choice((0.05, 0.5, 3.0)))
            case _:
                if self.rng.random() < 0.3:
                    self.give_up(slot)

    def has(self, slot: Slot) -> bool:
        return slot not in self.given_up

    def commit(self, some: list[Slot]) -> None:
        self.tickets += 1
        mine = {one: self.positions[one] for one in some if self.has(one)}
        self.asked.update(mine)
        offsets = {one: OffsetAndMetadata(at) for one, at in mine.items()}
        waits = self.rng.random() < 0.5
        deadline_s = self.now_s + 30.0
        self.do(
            self.core.commit(self.tickets, offsets, self.now_s, deadline_s=deadline_s, waits=waits)
        )

    def give_up(self, slot: Slot) -> None:
        """And, sometimes, get it back in another life: its old offsets count for nothing."""
        if slot in self.given_up:
            self.given_up.discard(slot)
            self.asked.pop(slot, None)
            return
        self.given_up.add(slot)
        self.do(self.core.discard([slot]))

    def answer(self, *, kind: bool = False) -> None:
        request, self.under_way = self.under_way, None
        if request is None:
            return
        fate = 0 if kind else self.rng.randrange(4)
        errors: dict[Slot, OctavoError] = {}
        if fate == 0 and not kind and self.rng.random() < 0.2:
            errors[next(iter(request.offsets))] = InvalidRequest("one is wrong")
        if fate in (0, 1):  # stored; with 1 nobody hears of it
            good = {slot: one.offset for slot, one in request.offsets.items() if slot not in errors}
            self.stored.update(good)
        if fate == 0:
            self.do(self.core.stored(request.number, errors, self.now_s))
        else:
            error = CommitFailed("no") if fate == 3 else RequestTimedOut("lost")
            self.do(self.core.failed(request.number, error, self.now_s))

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        due_s = self.core.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self.do(self.core.tick(self.now_s))

    def run(self) -> None:
        for _ in range(150):
            self.step()
        self.commit(SLOTS)
        for _ in range(50):
            self.pass_time(1.5)
            self.answer(kind=True)
        assert self.settled.keys() == set(range(1, self.tickets + 1)), "nobody hears of a commit"
        assert self.settled[self.tickets] is None
        for slot in SLOTS:
            if self.has(slot):
                assert self.stored[slot] == self.positions[slot], "the last commit is not stored"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
def test_o9_o10_o11_whatever_happens_to_commits(seed: int) -> None:
    CommitWorld(seed).run()


class SendsAtOnce(OffsetCommits):
    """O10: a commit does not wait for the one under way."""

    def commit(self, *args: object, **options: object) -> list[CommitAction]:
        self._under_way = None
        return super().commit(*args, **options)  # type: ignore[arg-type]


class PutsTheOldBack(OffsetCommits):
    """O10: what failed is tried again in place of what was asked for later."""

    def failed(self, number: int, error: OctavoError, now_s: float) -> list[CommitAction]:
        request = self._under_way
        assert request is not None
        actions = super().failed(number, error, now_s)
        for slot in self._waiting:
            self._waiting[slot] = request.offsets.get(slot, self._waiting[slot])
        return actions


class ForgetsWhoWaits(OffsetCommits):
    """A commit that fails for good is nobody's."""

    def failed(self, number: int, error: OctavoError, now_s: float) -> list[CommitAction]:
        actions = super().failed(number, error, now_s)
        return [action for action in actions if isinstance(action, SendCommit)]


class CommitsWhatWent(OffsetCommits):
    """O11: what waits is committed although it is somebody else's."""

    def discard(self, slots: Iterable[Slot]) -> list[CommitAction]:
        return []


class RepeatsWhatWent(OffsetCommits):
    """O11: a commit that was under way when its partition went is tried again."""

    def failed(self, number: int, error: OctavoError, now_s: float) -> list[CommitAction]:
        self._gone = set()
        return super().failed(number, error, now_s)


class NeverTriesAgain(OffsetCommits):
    """O4: a commit that may succeed later is not repeated."""

    def next_deadline_s(self) -> float | None:
        return None

    def _send(self, now_s: float) -> list[CommitAction]:
        return super()._send(now_s) if self._retry_at_s < 0 else []


class TellsTwice(OffsetCommits):
    """A ticket is settled by each request that names its partitions."""

    def stored(
        self, number: int, errors: Mapping[Slot, OctavoError], now_s: float
    ) -> list[CommitAction]:
        asked = list(self._asked)
        return [*super().stored(number, errors, now_s), *self._settle(asked, {})]


class SaysMoreThanWasSent(OffsetCommits):
    """O11: a commit succeeds although a partition of it was given up before it was sent."""

    def discard(self, slots: Iterable[Slot]) -> list[CommitAction]:
        actions = super().discard(slots)
        for one in self._wanted:
            one.unsent.clear()
        return actions


BUGS: list[type[OffsetCommits]] = [
    SendsAtOnce,
    PutsTheOldBack,
    ForgetsWhoWaits,
    CommitsWhatWent,
    RepeatsWhatWent,
    NeverTriesAgain,
    TellsTwice,
    SaysMoreThanWasSent,
]


def test_o11_a_commit_of_a_partition_that_went_before_it_was_sent_is_no_success() -> None:
    core = OffsetCommits(SeededEntropy(1), auto_interval_s=None)
    (first,) = core.commit("a", {SLOTS[0]: OffsetAndMetadata(1)}, 0.0, deadline_s=9.0)
    assert isinstance(first, SendCommit)
    both = {SLOTS[0]: OffsetAndMetadata(2), SLOTS[1]: OffsetAndMetadata(5)}
    assert not core.commit("b", both, 0.0, deadline_s=9.0)
    assert not core.discard([SLOTS[0]])
    told, second = core.stored(first.number, {}, 0.0)
    assert told == Settle("a", {SLOTS[0]: OffsetAndMetadata(1)}, None)
    assert isinstance(second, SendCommit)
    assert second.offsets == {SLOTS[1]: OffsetAndMetadata(5)}
    (told,) = core.stored(second.number, {}, 0.0)
    assert isinstance(told, Settle)
    assert told.ticket == "b"
    assert isinstance(told.error, CommitFailed)
    assert "t-0" in str(told.error)
    assert "t-1" not in str(told.error)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[OffsetCommits]) -> None:
    for seed in range(300):
        try:
            CommitWorld(seed, bug).run()
        except (AssertionError, InvariantViolation):
            return
    pytest.fail(f"300 worlds did not show: {bug.__doc__}")
