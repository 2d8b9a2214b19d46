"""The auditor gives up the right bookies at the right time; planted bugs are found (A-1, A-2)."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

import pytest

from octavo.client.autorecovery import audit_core as a
from octavo.client.autorecovery.slots import Fate
from octavo.metadata.repairs import BookieHold, HoldKind
from octavo.runtime.errors import InvariantViolation
from octavo.runtime.ids import Member

LIMITS = a.AuditLimits(lost_delay_s=60.0, audit_interval_s=300.0, recheck_s=10.0)
SEEDS = 300
STEPS = 120


class Violation(AssertionError):
    """The core broke a promise."""


class AuditWorld:
    """Bookies that come and go, a store that remembers, and time; it judges every pass begun."""

    def __init__(self, seed: int, core_type: type[a.AuditCore]) -> None:
        rng = self.rng = random.Random(seed)
        domains = rng.choice([("",), ("r1", "r2"), ("r1", "r1", "r2")])
        self.members = {f"b{i}": Member(f"b{i}", uuid.UUID(int=i + 1)) for i in range(5)}
        self.domain = {b: domains[i % len(domains)] for i, b in enumerate(self.members)}
        self.present = set(self.members)
        self.gone_since: dict[str, float] = {}
        self.away: dict[str, tuple[float, str]] = {}
        self.holds: dict[str, BookieHold] = {}
        self.named = set(rng.choice([(), tuple(self.members)]))
        self.now_s = 1000.0
        self.core_type = core_type
        self.core = core_type(LIMITS)
        self.passes = 0
        self.losses = 0
        self.last_pass_s = self.now_s
        self.ends_at_s: float | None = None
        self.view: frozenset[str] = frozenset()
        self.boots = dict.fromkeys(self.members, 0)
        self.changed_s: dict[str, float] = {}
        """Who came back, or is drained now, and no pass has begun since."""
        self.fresh = True
        """A core that has decided nothing yet."""

    def fleet(self) -> a.Fleet:
        return a.Fleet(
            registered={self.members[b]: self.domain[b] for b in self.present},
            processes={self.members[b]: b"%d" % self.boots[b] for b in self.present},
            incarnations=dict(self.members),
            away_since_s={b: since for b, (since, _) in self.away.items()},
            domains={b: domain for b, (_, domain) in self.away.items()},
            holds=dict(self.holds),
        )

    def run(self) -> AuditWorld:
        for _ in range(STEPS):
            self._happens()
            for action in self.core.fleet_seen(self.fleet(), self.now_s):
                self._perform(action)
            self.core.validate()
            if not self.core.passing and self.now_s - self.last_pass_s > 300.0 + 20.0:
                raise Violation("A-2: the ledgers were not looked at in time")
            self._judge_patience()
            self._judge_changes()
        return self

    def _judge_changes(self) -> None:
        """A-1, A-2, 7.4: who was away, however shortly, and who is drained, is looked at soon."""
        for bookie, since_s in self.changed_s.items():
            if not self.core.passing and self.now_s - since_s > 45.0:
                raise Violation(f"{bookie} changed {self.now_s - since_s} s ago: no look yet")

    def _judge_patience(self) -> None:
        """INV-14: who is gone alone, and named, is given up some time."""
        if len(self.gone_since) != 1 or self.core.passing or self.fresh:
            self.fresh = False
            return
        ((bookie, since_s),) = self.gone_since.items()
        waited_s = self.now_s - max(since_s, self.away.get(bookie, (self.now_s, ""))[0])
        late = waited_s > LIMITS.lost_delay_s + 25.0 and bookie not in self.holds
        if late and bookie in self.named and bookie not in self.view:
            raise Violation(f"INV-14: {bookie} is gone for {waited_s} s, and nobody acts")

    def _happens(self) -> None:
        rng = self.rng
        self.now_s += rng.choice([1.0, 5.0, 20.0])
        if rng.random() < 0.08:
            bookie = rng.choice(sorted(self.members))
            if bookie in self.present:
                self.present.discard(bookie)
                self.changed_s.pop(bookie, None)
                self.gone_since[bookie] = self.now_s
            else:
                self._comes(bookie)
                del self.gone_since[bookie]
        if rng.random() < 0.02 and self.present:  # away for less than a look
            self._comes(rng.choice(sorted(self.present)))
        if rng.random() < 0.2:  # a new ledger
            self.named |= set(rng.sample(sorted(self.present), min(3, len(self.present))))
        if rng.random() < 0.01:
            self.core = self.core_type(LIMITS)  # another process is elected
            self.fresh, self.view = True, frozenset()
            self.ends_at_s = None
        if rng.random() < 0.01:
            bookie = rng.choice(sorted(self.members))
            kind = rng.choice(list(HoldKind))
            before = self.holds.get(bookie)
            self.holds[bookie] = BookieHold(self.members[bookie], kind)
            drained = before is not None and before.kind is not HoldKind.READONLY
            if kind is not HoldKind.READONLY and not drained and bookie in self.present:
                self.changed_s[bookie] = self.now_s
        if self.ends_at_s is not None and self.now_s >= self.ends_at_s:
            self.ends_at_s = None
            self.last_pass_s = self.now_s
            whole = rng.random() < 0.9
            self.core.pass_ended(
                self.now_s,
                whole=whole,
                named=frozenset(self.named),
                healthy=whole and not self.view & self.named,
            )
            if rng.random() < 0.5:  # workers moved what the lost had
                self.named -= self.view

    def _comes(self, bookie: str) -> None:
        self.present.add(bookie)
        self.boots[bookie] += 1
        self.changed_s[bookie] = self.now_s

    def _perform(self, action: a.AuditAction) -> None:
        match action:
            case a.Miss():
                if action.bookie_id in self.present:
                    raise Violation(f"{action.bookie_id} is missed and is there")
                self.away.setdefault(action.bookie_id, (self.now_s, self.domain[action.bookie_id]))
            case a.FoundAgain():
                self.away.pop(action.bookie_id, None)
            case a.BeginPass():
                self.passes += 1
                self.changed_s.clear()
                self.ends_at_s = self.now_s + self.rng.choice([0.0, 15.0])
                self._judge(action.fleet)
            case a.Alarm():
                return

    def _judge(self, fleet: a.Fleet) -> None:
        self.view = fleet.lost
        self.losses += len(fleet.lost)
        for bookie in fleet.lost:
            if bookie in self.present:
                raise Violation(f"{bookie} is there, and taken for lost")
            if self.now_s - self.gone_since[bookie] < LIMITS.lost_delay_s:
                raise Violation(f"A-1: {bookie} is taken for lost before its time")
        if not self.present and fleet.lost:
            raise Violation("A-1: nobody is there, and some are taken for lost")
        named = {b for b in fleet.lost if b in self.named}
        if len(named) > 1 and len({self.domain[b] for b in named} | {""}) != 2:
            raise Violation(f"A-1: {sorted(named)} are given up together")
        for bookie, member in self.members.items():
            free = bookie in self.present and bookie not in self.holds
            if free and fleet.fate_of(member) is not Fate.THERE:
                raise Violation(f"{bookie} is there, and {fleet.fate_of(member)}")


def test_who_is_given_up_is_gone_for_long_and_not_with_others() -> None:
    worlds = [AuditWorld(seed, a.AuditCore).run() for seed in range(SEEDS)]
    assert sum(world.losses for world in worlds) > SEEDS  # it is no empty promise
    assert sum(world.passes for world in worlds) > 3 * SEEDS


class _NoDelay(a.AuditCore):
    """Who is away is lost at once."""

    def _lost(self, fleet: a.Fleet, present: set[str], now_s: float) -> tuple[frozenset[str], str]:
        return super()._lost(fleet, present, now_s + LIMITS.lost_delay_s)


class _ManyTogether(a.AuditCore):
    """A mass disappearance is believed."""

    def _lost(self, fleet: a.Fleet, present: set[str], now_s: float) -> tuple[frozenset[str], str]:
        due = {b for b, since in fleet.away_since_s.items() if now_s - since >= LIMITS.lost_delay_s}
        return frozenset(due - present), ""


class _ReturnsAreNotSeen(a.AuditCore):
    """A record of absence that is not struck off speaks for ever."""

    def fleet_seen(self, fleet: a.Fleet, now_s: float) -> list[a.AuditAction]:
        return [
            action
            for action in super().fleet_seen(fleet, now_s)
            if not isinstance(action, a.FoundAgain)
        ]


class _OneAtATimeOnly(a.AuditCore):
    """Passes are begun, and their end is not heard of."""

    def pass_ended(
        self, now_s: float, *, whole: bool, named: frozenset[str], healthy: bool
    ) -> None:
        super().pass_ended(now_s + 1e6, whole=whole, named=named, healthy=healthy)
        self._audited = None

    def _is_due(self, fleet: a.Fleet, lost: frozenset[str], now_s: float) -> bool:
        return self._next_pass_s is None


class _DeparturesAreForgotten(a.AuditCore):
    """Who was there at the last pass and is there now counts as having been there."""

    def fleet_seen(self, fleet: a.Fleet, now_s: float) -> list[a.AuditAction]:
        before = self._audited
        actions = super().fleet_seen(replace(fleet, processes={}), now_s)
        if not any(isinstance(action, a.BeginPass) for action in actions):
            self._audited = before
        return actions


class _RestartsAreNotSeen(a.AuditCore):
    """Another process of the same bookie counts as the one before."""

    def fleet_seen(self, fleet: a.Fleet, now_s: float) -> list[a.AuditAction]:
        return super().fleet_seen(replace(fleet, processes={}), now_s)


class _DrainsWait(a.AuditCore):
    """A decommission waits for the next pass."""

    def _is_due(self, fleet: a.Fleet, lost: frozenset[str], now_s: float) -> bool:
        return super()._is_due(replace(fleet, holds={}), lost, now_s)


class _OldNamesCount(a.AuditCore):
    """What a pass saw before the bookie went, and before its ledgers were made, is believed."""

    def _is_empty(self, bookie_id: str, fleet: a.Fleet) -> bool:
        return self._named is not None and bookie_id not in self._named


@pytest.mark.parametrize(
    "planted",
    [
        _NoDelay,
        _ManyTogether,
        _ReturnsAreNotSeen,
        _OneAtATimeOnly,
        _OldNamesCount,
        _DeparturesAreForgotten,
        _RestartsAreNotSeen,
        _DrainsWait,
    ],
    ids=lambda cls: cls.__name__,
)
def test_planted_bugs_are_found(planted: type[a.AuditCore]) -> None:
    for seed in range(SEEDS):
        try:
            AuditWorld(seed, planted).run()
        except (Violation, InvariantViolation):
            return
    pytest.fail("nothing noticed it")


def _member(name: str, number: int = 1) -> Member:
    return Member(name, uuid.UUID(int=number))


def test_fates() -> None:
    """B-26, B-29, 7.4, M-7: what each kind of knowledge means."""
    there, other = _member("b1"), _member("b1", 2)
    fleet = a.Fleet(registered={there: ""}, incarnations={"b1": there})
    assert fleet.fate_of(there) is Fate.THERE
    assert fleet.fate_of(other) is Fate.LOST, "an older incarnation"
    assert a.Fleet(incarnations={"b1": there}).fate_of(there) is Fate.AWAY
    assert a.Fleet(incarnations={"b1": there}, lost=frozenset({"b1"})).fate_of(there) is Fate.LOST
    assert a.Fleet().fate_of(there) is Fate.LOST, "retired: it has no cookie"
    unreadable = a.Fleet(unreadable=frozenset({"b1"}), lost=frozenset({"b1"}))
    assert unreadable.fate_of(there) is Fate.AWAY, "unknown is never lost"
    for kind, fate in (
        (HoldKind.READONLY, Fate.THERE),
        (HoldKind.DRAINING, Fate.LOST),
        (HoldKind.RETIRED, Fate.LOST),
    ):
        held = a.Fleet({there: ""}, {"b1": there}, holds={"b1": BookieHold(there, kind)})
        assert held.fate_of(there) is fate
    old_hold = a.Fleet(
        {there: ""}, {"b1": there}, holds={"b1": BookieHold(other, HoldKind.RETIRED)}
    )
    assert old_hold.fate_of(there) is Fate.THERE, "a hold is of one incarnation"


def test_a_lost_bookie_that_nobody_names_does_not_stop_the_next_loss() -> None:
    """A-1 counts who is lost at once: one that was dealt with long ago is not."""
    members = {f"b{i}": _member(f"b{i}", i + 1) for i in range(4)}
    core = a.AuditCore(LIMITS)

    def fleet(*gone: str) -> a.Fleet:
        return a.Fleet(
            registered={m: "" for b, m in members.items() if b not in gone},
            incarnations=members,
            away_since_s={b: 0.0 for b in gone},
        )

    first = core.fleet_seen(fleet("b1"), 100.0)
    assert any(isinstance(x, a.BeginPass) and x.fleet.lost == {"b1"} for x in first)
    assert not any(isinstance(x, a.Alarm) for x in first)
    core.pass_ended(101.0, whole=True, named=frozenset(members) - {"b1"}, healthy=True)
    later = core.fleet_seen(fleet("b1", "b2"), 200.0)
    assert any(isinstance(x, a.BeginPass) and x.fleet.lost == {"b2"} for x in later)
    assert not any(isinstance(x, a.Alarm) for x in later)
