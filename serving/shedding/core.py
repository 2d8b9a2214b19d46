"""Which bundles move from brokers that have too much to do (O-4). Pure.

Being wrong costs hand-overs and never data. Rules:

- SH-1 Only brokers that may own bundles, are not suspected and whose load is known are judged: they
  alone give, get and count for the average. Who is not known is not idle.
- SH-2 A broker gives bundles away when its usage was above the average by more than
  `above_average`, or above `overload`, in `hits` evaluations one after the other, while nothing
  else came or went there; and only until it is above the average by half of that.
- SH-3 A bundle that moved, for whatever reason, stays for `grace_s`. A process that just started
  counts from then for what is noted as moved; what moved by hashing before that it cannot know.
- SH-4 The target will have less than the source had, by half of `above_average`, and stays below
  `overload` by a margin. It was judged as often as the source. So each move makes the two more
  equal, and the same load comes to rest.
- SH-5 At most `moves_max` bundles move in one evaluation, each to the target that has the least
  with the earlier ones counted, and of the source's bundles the one that makes these two most
  equal; then givers and takers are judged anew.
- SH-6 What was moved to a broker that is gone, or that does not take it, is forgotten after
  `grace_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.metadata.load_reports import Load
from octavo.runtime.invariant import invariant

OVERLOAD_MARGIN = 0.05
"""A target stays so far below the limit that it would itself give away at."""
MOVE_MIN = 0.01
"""A bundle that takes less of its broker's capacity is not worth a hand-over."""


class SheddingLimits(NamedTuple):
    """When bundles move."""

    above_average: float = 0.10
    overload: float = 0.85
    hits: int = 3
    grace_s: float = 1800.0
    moves_max: int = 2


class Seen(NamedTuple):
    """What one broker knows of all of them at one moment."""

    registered: frozenset[str]
    eligible: frozenset[str]
    """Who may own bundles."""
    suspected: frozenset[str]
    owners: Mapping[int, str]
    """Who has each bundle; one that nobody has is not there."""
    wanted: Mapping[int, str]
    """Who each bundle is for."""
    placed: Mapping[int, str]
    """Those of it that were moved by decision."""
    loads: Mapping[str, Load]
    """Of the brokers whose load is known."""


class Move(NamedTuple):
    """Note that the bundle is for `target`."""

    bundle: int
    source: str
    target: str
    usage: float
    """What it takes of the source's capacity."""


class Forget(NamedTuple):
    """Take back what is noted of the bundle."""

    bundle: int


class Shedding:
    """The decisions of one broker; only one broker at a time has it decide."""

    def __init__(self, limits: SheddingLimits) -> None:
        self._limits = limits
        self._owners: dict[int, str] | None = None
        """Who had each bundle last; None: nothing was seen yet."""
        self._placed: dict[int, str] = {}
        self._placed_s: dict[int, float] = {}
        """Since when each is known to be for that broker."""
        self._moved_s: dict[int, float] = {}
        self._absent_s: dict[str, float] = {}
        """Brokers that bundles were moved to and that are not registered: since when."""
        self._hits: dict[str, int] = {}
        self._steady: dict[str, int] = {}
        """Evaluations in which a broker was judged and nothing came or went there."""

    # --- events ---------------------------------------------------------------------------------

    def rested(self, seen: Seen, now_s: float) -> None:
        """Another broker decides at this time: follow what moves, and count from the start."""
        self._follow(seen, now_s)
        self._hits.clear()
        self._steady.clear()

    def evaluate(self, seen: Seen, now_s: float) -> list[Move | Forget]:
        """What is to change; called once in an interval."""
        unsteady = self._follow(seen, now_s)
        usage = self._judged(seen)
        average = sum(usage.values()) / len(usage) if usage else 0.0
        self._count(usage, average, unsteady)
        forgotten: list[Move | Forget] = [*self._forgotten(seen, now_s)]
        return [*forgotten, *self._moves(seen, usage, average, now_s)]

    # --- what is known --------------------------------------------------------------------------

    def _follow(self, seen: Seen, now_s: float) -> set[str]:
        """Note what moved; the brokers at which something came, went, or is on its way."""
        unsteady: set[str] = set()
        if self._owners is not None:
            for bundle, owner in seen.owners.items():
                before = self._owners.get(bundle, owner)
                if before != owner:
                    self._moved_s[bundle] = now_s
                    unsteady |= {before, owner}
        self._owners = {**(self._owners or {}), **seen.owners}
        for bundle, broker in seen.placed.items():
            if self._placed.get(bundle) != broker:  # also at the first look: perhaps just now
                self._moved_s[bundle] = self._placed_s[bundle] = now_s
        self._placed = dict(seen.placed)
        self._placed_s = {one: at_s for one, at_s in self._placed_s.items() if one in seen.placed}
        for bundle, owner in seen.owners.items():
            wanted = seen.wanted.get(bundle, owner)
            if wanted != owner:
                unsteady |= {wanted, owner}
        absent = set(seen.placed.values()) - seen.registered
        self._absent_s = {one: self._absent_s.get(one, now_s) for one in absent}
        return unsteady

    def _judged(self, seen: Seen) -> dict[str, float]:
        """The usage of those that are judged (SH-1)."""
        named = (seen.eligible & seen.registered) - seen.suspected
        return {one: seen.loads[one].usage for one in sorted(named) if one in seen.loads}

    def _count(self, usage: Mapping[str, float], average: float, unsteady: set[str]) -> None:
        """SH-2: what was seen one time after the other."""
        self._steady = {
            one: 0 if one in unsteady else self._steady.get(one, 0) + 1 for one in usage
        }
        self._hits = {
            one: self._hits.get(one, 0) + 1 if self._is_hot(part, average) else 0
            for one, part in usage.items()
        }

    def _is_hot(self, usage: float, average: float) -> bool:
        limits = self._limits
        return usage > average + limits.above_average or usage > limits.overload

    # --- decisions ------------------------------------------------------------------------------

    def _forgotten(self, seen: Seen, now_s: float) -> Iterable[Forget]:
        """SH-6."""
        for bundle, broker in sorted(seen.placed.items()):
            gone_s = self._absent_s.get(broker)
            owner = seen.owners.get(bundle, broker)
            since_s = gone_s
            if gone_s is None and owner != broker and broker in seen.eligible:
                since_s = self._placed_s[bundle]
            if since_s is not None and now_s - since_s >= self._limits.grace_s:
                yield Forget(bundle)

    def _moves(
        self, seen: Seen, usage: Mapping[str, float], average: float, now_s: float
    ) -> list[Move]:
        estimate = dict(usage)
        moves: list[Move] = []
        for source in sorted(usage, key=lambda one: (-usage[one], one)):
            if not self._may_give(source):
                continue
            load = seen.loads[source]
            costs = {
                bundle: load.usage_of(bundle)
                for bundle in load.shares
                if self._may_move(bundle, source, seen, now_s)
            }
            while self._is_too_much(estimate[source], average):
                move = self._next(source, costs, estimate)
                if move is None or len(moves) >= self._limits.moves_max:
                    break
                del costs[move.bundle]
                moves.append(move)
                estimate[source] -= move.usage
                estimate[move.target] += move.usage
        for move in moves:  # SH-5
            for broker in (move.source, move.target):
                self._hits[broker] = self._steady[broker] = 0
        return moves

    def _next(
        self, source: str, costs: Mapping[int, float], estimate: Mapping[str, float]
    ) -> Move | None:
        """The move that makes the source and the one with the least most equal (SH-4, SH-5)."""
        steady = [
            one for one in estimate if one != source and self._steady[one] >= self._limits.hits
        ]
        target = min(steady, key=lambda one: (estimate[one], one), default=None)
        if target is None:
            return None
        has, gets = estimate[source], estimate[target]
        fitting = [
            bundle
            for bundle, cost in costs.items()
            if cost >= MOVE_MIN and self._can_take(gets + cost, has)
        ]
        best = min(fitting, key=lambda one: (abs(has - gets - 2 * costs[one]), one), default=None)
        return None if best is None else Move(best, source, target, costs[best])

    def _may_give(self, broker: str) -> bool:
        enough = self._limits.hits
        return self._hits[broker] >= enough and self._steady[broker] >= enough

    def _is_too_much(self, usage: float, average: float) -> bool:
        """Whether a broker that gives gives one more (SH-2)."""
        limits = self._limits
        return usage > min(average + limits.above_average / 2, limits.overload - OVERLOAD_MARGIN)

    def _may_move(self, bundle: int, source: str, seen: Seen, now_s: float) -> bool:
        """SH-3, and that the source has it and is to have it."""
        if seen.owners.get(bundle) != source or seen.wanted.get(bundle) != source:
            return False
        moved_s = self._moved_s.get(bundle)
        return moved_s is None or now_s - moved_s >= self._limits.grace_s

    def _can_take(self, target_after: float, source_before: float) -> bool:
        """SH-4."""
        limits = self._limits
        most = min(source_before - limits.above_average / 2, limits.overload - OVERLOAD_MARGIN)
        return target_after <= most

    def validate(self) -> None:
        """Raises InvariantViolation when a rule that holds between any two events is broken."""
        invariant(self._hits.keys() == self._steady.keys(), "who is counted is judged")
        invariant(self._placed_s.keys() == self._placed.keys(), "what is noted has an age")
        invariant(
            set(self._absent_s) <= set(self._placed.values()), "only what matters is remembered"
        )
