"""A cluster for the shedding core: bundles with true loads, brokers that come, go, and fall silent.

Judges every decision by what is true, not by what the core was told; `broken` holds what was found,
each line with the rule that it breaks. What is decided is done a little later, or never.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from octavo.metadata.load_reports import Load
from octavo.runtime.errors import InvariantViolation
from octavo.serving.placement import preferred_owners
from octavo.serving.shedding.core import (
    MOVE_MIN,
    OVERLOAD_MARGIN,
    Forget,
    Move,
    Seen,
    Shedding,
    SheddingLimits,
)

LIMITS = SheddingLimits(above_average=0.10, overload=0.85, hits=3, grace_s=1800.0, moves_max=2)
CYCLE_S = 60.0
BUNDLES = 16
SLACK = 1e-9


class History(NamedTuple):
    """One move that was noted."""

    at_s: float
    move: Move


class World:
    """Brokers `a`, `b`, … and BUNDLES bundles; one core decides at a time."""

    def __init__(self, count: int, seed: int, kind: type[Shedding] = Shedding) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.core = kind(LIMITS)
        self.now_s = 1000.0
        self.brokers = [chr(ord("a") + n) for n in range(count)]
        self.gone: set[str] = set()
        self.drained: set[str] = set()
        self.suspected: set[str] = set()
        self.silent: set[str] = set()
        """Brokers without a report that can be trusted."""
        self.young: dict[str, int] = {}
        """Cycles since a broker came or was heard again, or something came or went there."""
        self.hot_for: dict[str, int] = {}
        self.noise = 0.0
        """How far reports are off, up or down, as a part."""
        self.slowness = dict.fromkeys(self.brokers, 1.0)
        """What the same bundle takes of each broker, compared with the others."""
        self.true_load = {n: 0.0 for n in range(BUNDLES)}
        self.placed: dict[int, str] = {}
        self.owners: dict[int, str] = dict(enumerate(self._wanted()))
        self.refusing: set[str] = set()
        """Brokers that do not take what they are given."""
        self.moved_s: dict[int, float] = {}
        self.history: list[History] = []
        self.broken: list[str] = []

    def spread(self, total: float, skew: float) -> None:
        """New true loads, `total` of one broker's capacity together; they stay until the next."""
        weights = [self.random.random() ** skew for _ in range(BUNDLES)]
        scale = total / sum(weights)
        self.true_load = {n: min(0.8, weight * scale) for n, weight in enumerate(weights)}

    def decided_elsewhere(self) -> None:
        """Another process decides from now on: it knows what is noted, and nothing else."""
        self.core = self.kind(LIMITS)
        self.hot_for.clear()
        self.young = dict.fromkeys(self.brokers, 0)
        self.moved_s = {n: at_s for n, at_s in self.moved_s.items() if n in self.placed}

    # --- time -----------------------------------------------------------------------------------

    def cycle(self) -> list[Move | Forget]:
        """One evaluation, and what follows from it."""
        self.now_s += CYCLE_S
        seen = self.seen()
        usage = {one: self.usage(one) for one in self._judged()}
        self._age(usage)
        decided = self.core.evaluate(seen, self.now_s)
        try:
            self.core.validate()
        except InvariantViolation as error:
            self.broken.append(f"state: {error}")
        self._judge([one for one in decided if isinstance(one, Move)], usage)
        for one in decided:
            if isinstance(one, Move):
                self._note(one.bundle, one.target)
                self.history.append(History(self.now_s, one))
                for broker in (one.source, one.target):
                    self.hot_for[broker] = self.young[broker] = 0
            else:
                self._judge_forgotten(one)
                self.placed.pop(one.bundle, None)
        self._hand_over()
        return decided

    def run(self, cycles: int) -> int:
        """So many evaluations; how many of them decided a move."""
        return sum(any(isinstance(one, Move) for one in self.cycle()) for _ in range(cycles))

    def _note(self, bundle: int, broker: str) -> None:
        if self.placed.get(bundle) != broker:
            self.placed[bundle] = broker
            self.moved_s[bundle] = self.now_s

    def operator_moves(self, bundle: int, broker: str) -> None:
        """Somebody else has noted a move."""
        self._note(bundle, broker)

    def _hand_over(self) -> None:
        for bundle, wanted in enumerate(self._wanted()):
            owner = self.owners[bundle]
            if owner != wanted and (wanted not in self.refusing or owner in self.gone):
                self.owners[bundle] = wanted
                self.moved_s[bundle] = self.now_s
                for broker in (owner, wanted):
                    self.young[broker] = self.hot_for[broker] = 0

    # --- what is known --------------------------------------------------------------------------

    def _eligible(self) -> list[str]:
        return [one for one in self.brokers if one not in self.gone | self.drained]

    def _wanted(self) -> tuple[str, ...]:
        return preferred_owners(BUNDLES, self._eligible() or self.brokers, self.placed)

    def usage(self, broker: str) -> float:
        """What is true of it."""
        held = (load for n, load in self.true_load.items() if self.owners[n] == broker)
        return min(1.0, sum(held) * self.slowness[broker])

    def _load(self, broker: str) -> Load:
        off = 1.0 + self.random.uniform(-self.noise, self.noise) if self.noise else 1.0
        total = min(1.0, self.usage(broker) * off)
        held = {n: load for n, load in self.true_load.items() if self.owners[n] == broker}
        shares = {n: load / sum(held.values()) for n, load in held.items() if load}
        return Load(total, total, 0.0, 0, 0, 0, len(held), len(held), shares)

    def seen(self) -> Seen:
        """What the core is told."""
        here = [one for one in self.brokers if one not in self.gone]
        return Seen(
            registered=frozenset(here),
            eligible=frozenset(self._eligible()),
            suspected=frozenset(self.suspected),
            owners=dict(self.owners),
            wanted=dict(enumerate(self._wanted())),
            placed=dict(self.placed),
            loads={one: self._load(one) for one in here if one not in self.silent},
        )

    def _judged(self) -> list[str]:
        return [one for one in self._eligible() if one not in self.suspected | self.silent]

    # --- judging --------------------------------------------------------------------------------

    def _age(self, usage: dict[str, float]) -> None:
        average = sum(usage.values()) / max(1, len(usage))
        moving = {
            broker
            for bundle, wanted in enumerate(self._wanted())
            if self.owners[bundle] != wanted
            for broker in (wanted, self.owners[bundle])
        }
        for broker in self.brokers:
            if broker not in usage or broker in moving:
                self.young[broker] = 0
            else:
                self.young[broker] = self.young.get(broker, 0) + 1
            is_hot = broker in usage and (
                usage[broker] > average + LIMITS.above_average + SLACK
                or usage[broker] > LIMITS.overload + SLACK
            )
            self.hot_for[broker] = self.hot_for.get(broker, 0) + 1 if is_hot else 0

    def _judge(self, moves: list[Move], usage: dict[str, float]) -> None:
        now = dict(usage)
        average = sum(usage.values()) / max(1, len(usage))
        if len(moves) > LIMITS.moves_max:
            self._found("SH-5", f"{len(moves)} moves at once")
        for move in moves:
            # Of a broker that is worked to the full nobody can see what it would do besides.
            cost = self._load(move.source).usage_of(move.bundle)
            for broker in (move.source, move.target):
                if broker not in usage:
                    self._found("SH-1", f"{move} with one that is not judged")
                    return
                if self.young[broker] < LIMITS.hits:
                    self._found("SH-4", f"{move} too soon for {broker}")
            if self.owners[move.bundle] != move.source:
                self._found("SH-3", f"{move} is not its own")
            if self.hot_for[move.source] < LIMITS.hits:
                self._found("SH-2", f"{move} of one that is not hot for long")
            if now[move.source] <= average + LIMITS.above_average / 2 - SLACK and (
                now[move.source] <= LIMITS.overload - OVERLOAD_MARGIN
            ):
                self._found("SH-2", f"{move} of one that has enough room again")
            if self.now_s - self.moved_s.get(move.bundle, -1e9) < LIMITS.grace_s:
                self._found("SH-3", f"{move} within the grace of the bundle")
            if cost < MOVE_MIN - SLACK:
                self._found("SH-2", f"{move} is worth nothing")
            most = now[move.source] - LIMITS.above_average / 2
            now[move.source] -= cost
            now[move.target] += cost
            most = min(most, LIMITS.overload - OVERLOAD_MARGIN) + SLACK
            if now[move.target] > most:
                self._found("SH-4", f"{move} is more than the target can take")

    def _judge_forgotten(self, one: Forget) -> None:
        broker = self.placed.get(one.bundle)
        if broker not in self.gone and self.owners[one.bundle] == broker:
            self._found("SH-6", f"{one} though it is served there")

    def _found(self, rule: str, what: str) -> None:
        self.broken.append(f"{rule} {what} at {self.now_s:.0f}")
