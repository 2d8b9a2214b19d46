"""QuorumCore against a naive model that keeps one set of slots per entry."""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    HandleState,
    QuorumLimits,
)
from octavo.client.ledger.tally import in_write_set, write_set
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import Member

QUORUMS = [(3, 3, 2), (3, 3, 1), (3, 3, 3), (4, 3, 2), (5, 2, 2), (5, 5, 3), (1, 1, 1), (6, 3, 2)]


class Naive(RuleBasedStateMachine):
    """Every event goes to the core and to a model of sets; LAC and first copy must agree."""

    @initialize(sizes=st.sampled_from(QUORUMS))
    def begin(self, sizes: tuple[int, int, int]) -> None:
        self.quorum = Quorum(*sizes)
        self.names = 0
        self.core = QuorumCore(
            self.quorum,
            [self.fresh() for _ in range(self.quorum.ensemble)],
            now=0.0,
            limits=QuorumLimits(change_retry_s=0.0, stop_grace_s=1e9, add_quorum_timeout_s=1e9),
        )
        self.now = 0.0
        self.holders: list[set[int]] = []  # per entry, slots confirmed by their present occupant
        self.lac = -1
        self.first = -1
        self.commit: CommitEnsemble | None = None
        self.chosen: dict[int, Member] = {}

    def fresh(self) -> Member:
        self.names += 1
        return Member(f"b{self.names}", uuid.UUID(int=self.names))

    def perform(self, actions: object) -> None:
        todo: list[Action] = list(actions)  # type: ignore[call-overload]
        for action in todo:
            if isinstance(action, CommitEnsemble):
                self.commit = action
            assert not isinstance(action, ChooseReplacements) or self.core.changing

    def advance(self) -> None:
        """The model's pop sweep; frozen while a change is under way (C-1)."""
        if self.core.changing:
            return
        while (
            self.lac + 1 < len(self.holders) and len(self.holders[self.lac + 1]) >= self.quorum.ack
        ):
            self.lac += 1
        self.first = max(self.first, self.lac)
        while self.first + 1 < len(self.holders) and self.holders[self.first + 1]:
            self.first += 1

    @rule(count=st.integers(1, 5), size=st.integers(0, 3))
    def add(self, count: int, size: int) -> None:
        for _ in range(count):
            assert self.core.add(size, self.now) == len(self.holders)
            self.holders.append(set())

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, self.quorum.ensemble - 1))
        stale = data.draw(st.booleans()) and self.core.slots.generation(slot) > 0
        first = data.draw(st.integers(0, len(self.holders) - 1))
        last = data.draw(st.integers(first, len(self.holders) - 1))
        generation = self.core.slots.generation(slot) - (1 if stale else 0)
        self.perform(self.core.acked(slot, generation, first, last))
        if not stale:
            for entry in range(first, last + 1):
                if in_write_set(slot, entry, self.quorum):
                    self.holders[entry].add(slot)
        self.advance()

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        slot = data.draw(st.integers(0, self.quorum.ensemble - 1))
        self.now += 0.01
        self.perform(
            self.core.slot_failed(slot, self.core.slots.generation(slot), Status.TIMEOUT, self.now)
        )

    @rule()
    def tick(self) -> None:
        self.now += 0.2
        self.perform(self.core.tick(self.now))
        self.advance()

    @precondition(lambda self: self.core.changing and self.commit is None)
    @rule(data=st.data())
    def choose(self, data: st.DataObject) -> None:
        failed = [f.slot for f in self.core.slots.failed]
        kinds = {s: data.draw(st.sampled_from(["spare", "none", "back"])) for s in failed}
        self.chosen = {s: self.fresh() for s in failed if kinds[s] == "spare"}
        revived = [s for s in failed if kinds[s] == "back"]
        actions = self.core.replacements(self.chosen, self.now, revived=revived)
        self.unset(revived)
        self.perform(actions)
        self.advance()

    @precondition(lambda self: self.commit is not None)
    @rule(committed=st.booleans())
    def finish(self, committed: bool) -> None:
        assert self.commit is not None
        assert self.commit.start == self.lac + 1
        self.commit = None
        if not committed:
            self.perform(self.core.change_deferred(self.now))
            self.advance()
            return
        before = self.core.changes
        self.unset(list(self.chosen))
        # The model sweeps before a next change may freeze it again (C-5, C-6).
        actions = self.core.change_committed(self.now)
        assert self.core.changes == before + 1
        frozen, self.core.changing = self.core.changing, False
        self.advance()
        self.core.changing = frozen
        self.perform(actions)

    def unset(self, slots: list[int]) -> None:
        for holders in self.holders[self.lac + 1 :]:
            holders.difference_update(slots)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.validate()
        assert self.core.state is HandleState.OPEN
        assert self.core.lac == self.lac
        assert self.core.first_copy == self.first
        for entry in range(max(0, self.lac - 3), len(self.holders)):
            active = [s for s in write_set(entry, self.quorum) if s in self.core.slots.active]
            assert sorted(self.core.slots.of(entry)) == sorted(active)


TestNaive = Naive.TestCase
TestNaive.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
