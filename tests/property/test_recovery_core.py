"""RecoveryCore and QuorumCore in a hostile world; planted bugs must be found (§4.5, §4.6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import Action
from octavo.client.ledger.recovery import RecoveryAction, RecoveryCore
from octavo.metadata.ledger_record import LedgerState, Quorum
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import Member
from tests.sim_ledger import Violation, World, run_world

SHAPES = [
    (Quorum(3, 3, 2), 4),
    (Quorum(3, 3, 2), 3),
    (Quorum(4, 3, 2), 6),
    (Quorum(3, 2, 2), 5),
    (Quorum(5, 3, 3), 7),
    (Quorum(5, 5, 3), 6),
]
FOUND = (Violation, OctavoError)


def busy_world(
    seed: int,
    *,
    core: type[QuorumCore] = QuorumCore,
    recovery: type[RecoveryCore] = RecoveryCore,
    hole_h3: bool = False,
    wipes: bool = True,
) -> World:
    """A world with every kind of fault; the seed decides all of it."""
    rng = random.Random(seed)
    quorum, bookies = rng.choice(SHAPES)
    return World(
        rng,
        quorum,
        bookies,
        wipes_left=rng.randint(0, quorum.ack - 1) if wipes else 0,
        adds_max=rng.choice([1, 3, 6, 12]),
        slow_routes=rng.choice([0.0, 0.15, 0.4]),
        recoverer_count=rng.choice([1, 2]),
        core_type=core,
        recovery_type=recovery,
        hole_h3=hole_h3,
    )


def run_calm(seed: int, *, recovery: type[RecoveryCore] = RecoveryCore, hole_h3: bool) -> None:
    """One entry, one recoverer, no faults but slow and lost messages: the small model of §4.6."""
    rng = random.Random(seed)
    slow = rng.choice([0.0, 0.2, 0.4, 0.6])
    world = World(
        rng,
        Quorum(3, 3, 2),
        3,
        slow_routes=slow,
        recoverer_count=1,
        calm=True,
        recovery_type=recovery,
        hole_h3=hole_h3,
    )
    world.writer.add()
    for _ in range(rng.randint(0, 20)):
        world.step()
    world.recoverers[0].start()
    run_world(world, rng.randint(20, 150))


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(st.integers(min_value=0, max_value=2**32))
def test_invariants_hold_under_crashes_losses_reordering_wipes_and_zombies(seed: int) -> None:
    world = busy_world(seed)
    run_world(world, world.rng.randint(50, 500))
    assert world.metadata.state is LedgerState.CLOSED  # INV-14


@settings(max_examples=150, deadline=None, database=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_one_entry_one_recoverer_is_safe(seed: int) -> None:
    run_calm(seed, hole_h3=False)


class ReadsWithoutFence(RecoveryCore):
    """H1."""

    def _fences(self) -> bool:
        return False


class StartsAtTheBookiesLac(RecoveryCore):
    """H10."""

    def _first_to_read(self) -> int:
        return self.fence_lac + 1


class BelievesOneNegative(RecoveryCore):
    """R-14 broken: negative after one reply."""

    def _negatives_needed(self) -> int:
        return 1


class ClosesAtTheBookiesLac(RecoveryCore):
    """R-3 broken: the LAC is taken as the place to close."""

    def _begin_reading(self) -> list[RecoveryAction]:
        actions = super()._begin_reading()
        self._end = self._written
        return actions + self._try_close()


class UsesEnsembleBeforeItsCas(QuorumCore):
    """H9."""

    def replacements(
        self,
        chosen: Mapping[int, Member],
        now: float,
        domains: Mapping[int, str] | None = None,
        revived: Sequence[int] = (),
    ) -> Sequence[Action]:
        actions = super().replacements(chosen, now, domains, revived)
        if not chosen or not actions:
            return actions
        resend = self._install(chosen, {})
        self.changing = False
        self._sweep()
        return [*actions, *resend]

    def change_committed(self, now: float) -> Sequence[Action]:
        self._proposal = None
        return []


class IgnoresIdentity(QuorumCore):
    """W-8 broken: a replaced bookie's late success counts for its successor."""

    def acked(self, slot: int, generation: int, first: int, last: int) -> Sequence[Action]:
        return super().acked(slot, self.slots.generation(slot), first, last)


class PopsWhileChanging(QuorumCore):
    """C-1 broken: the LAC moves while the CAS is on its way."""

    def acked(self, slot: int, generation: int, first: int, last: int) -> Sequence[Action]:
        actions = super().acked(slot, generation, first, last)
        self._sweep()
        return actions


class KeepsSuccessOfReplacedSlot(QuorumCore):
    """C-6 broken: "unset success" forgotten."""

    def _install(self, members: Mapping[int, Member], domains: Mapping[int, str]) -> list[Action]:
        marks = {slot: self._tally.mark(slot) for slot in members}
        actions = super()._install(members, domains)
        for slot in members:
            self._tally.record(slot, self.lac + 1, max(marks[slot], self.lac))
        return actions


def hunt(run: Callable[[int], object], seeds: int) -> str:
    """The message of the first violation within `seeds` runs."""
    for seed in range(seeds):
        try:
            run(seed)
        except FOUND as error:
            return str(error)
    pytest.fail(f"the planted bug was not found in {seeds} runs")


def run_busy(world: World) -> None:
    run_world(world, world.rng.randint(50, 500))


@pytest.mark.parametrize(
    "core",
    [
        UsesEnsembleBeforeItsCas,
        IgnoresIdentity,
        PopsWhileChanging,
        KeepsSuccessOfReplacedSlot,
    ],
)
def test_planted_writer_bug_is_found(core: type[QuorumCore]) -> None:
    message = hunt(lambda seed: run_busy(busy_world(seed, core=core, wipes=False)), 1500)
    assert "INV-" in message or "INVARIANT" in message


@pytest.mark.parametrize(
    "recovery", [StartsAtTheBookiesLac, BelievesOneNegative, ClosesAtTheBookiesLac]
)
def test_planted_recovery_bug_is_found(recovery: type[RecoveryCore]) -> None:
    message = hunt(lambda seed: run_busy(busy_world(seed, recovery=recovery, wipes=False)), 1500)
    assert "INV" in message


def test_h1_recovery_reads_without_fence_is_found() -> None:
    message = hunt(lambda s: run_calm(s, recovery=ReadsWithoutFence, hole_h3=False), 3000)
    assert "INV-2" in message


def test_h3_unsynced_add_invisible_to_a_fenced_read_is_found() -> None:
    message = hunt(lambda seed: run_calm(seed, hole_h3=True), 3000)
    assert "INV-2" in message
