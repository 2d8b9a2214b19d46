"""What an auditor decides: which bookies are lost, when all ledgers are looked at (A-1, A-2).

Pure. It is told what the metadata store says of bookies and answers with what to write there and
whether a pass is due. A bookie is *away* while it is known and not registered; *lost* only after
`lost_delay_s`, and never several at once unless they are of one fault domain: a mass disappearance
is usually the metadata store or the network, and then nothing moves and the alarm says so. An older
incarnation, a retired bookie and one that an operator drains are lost at once (B-26, 7.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from octavo.client.autorecovery.slots import Fate, Slot
from octavo.client.autorecovery.spread import crowded_slots
from octavo.client.ledger.placement import Candidate, DomainRule
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.repairs import BookieHold, HoldKind
from octavo.runtime.ids import Member
from octavo.runtime.invariant import invariant


class AuditLimits(NamedTuple):
    """When an auditor acts."""

    lost_delay_s: float = 600.0
    audit_interval_s: float = 300.0
    """Longest time between two passes over all ledgers."""
    recheck_s: float = 30.0
    """The same while a bookie is lost or a pass could not look at everything."""


@dataclass(frozen=True)
class Fleet:
    """Bookies as the metadata store knows them, at one moment."""

    registered: Mapping[Member, str] = field(default_factory=dict[Member, str])
    """Members that are there, with their fault domains."""
    incarnations: Mapping[str, Member] = field(default_factory=dict[str, Member])
    """The present incarnation of each bookie that has a cookie."""
    unreadable: frozenset[str] = frozenset()
    """Bookies whose cookie cannot be read: nothing of theirs is decided (M-7)."""
    away_since_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Since when a bookie is missed, in seconds of the caller's clock."""
    domains: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fault domains of missed bookies."""
    holds: Mapping[str, BookieHold] = field(default_factory=dict[str, BookieHold])
    lost: frozenset[str] = frozenset()
    """Bookies that an auditor gave up: filled in by `AuditCore`."""
    writable: frozenset[Member] = frozenset()
    """Those of the registered that take new records."""
    processes: Mapping[Member, bytes] = field(default_factory=dict[Member, bytes])
    """What tells the process of a member from the one before it."""
    places: Mapping[Member, Candidate] = field(default_factory=dict[Member, Candidate])
    """Where the registered ones lie, as placement sees it (3.8)."""

    @property
    def drained(self) -> frozenset[Member]:
        """Members whose copies an operator has moved elsewhere (7.4)."""
        holds = self.holds.values()
        return frozenset(hold.member for hold in holds if hold.kind is not HoldKind.READONLY)

    @property
    def is_whole(self) -> bool:
        """Every bookie that has a cookie is there: nothing waits for more than a better place."""
        return not self.unreadable and set(self.incarnations.values()) <= self.registered.keys()

    def can_grow(self, record: LedgerMetadata) -> bool:
        """Whether one more bookie can take the copies of a ledger that was opened with too few."""
        free = {m.bookie_id for m in self.writable if self._is_there(m)}
        return record.may_grow and all(
            free - {member.bookie_id for member in members} for _, members in record.fragments
        )

    def crowded(self, record: LedgerMetadata, rule: DomainRule) -> list[Slot]:
        """A-10: slots of a closed ledger whose copies could lie farther from the others now."""
        free = [self.places[m] for m in self.writable & self.places.keys() if self._is_there(m)]
        return crowded_slots(record, self.places, free, rule)

    def _is_there(self, member: Member) -> bool:
        return self.fate_of(member) is Fate.THERE

    def fate_of(self, member: Member) -> Fate:
        """What may be done about this member's slots now."""
        bookie_id = member.bookie_id
        if bookie_id in self.unreadable:
            return Fate.AWAY
        present = self.incarnations.get(bookie_id)
        if present is None or present != member:
            # No cookie: retired, by an operator (B-29). Another incarnation: B-26. What is
            # registered counts more, for a cookie may have been read a moment earlier.
            return Fate.THERE if member in self.registered else Fate.LOST
        hold = self.holds.get(bookie_id)
        if hold is not None and hold.member == member and hold.kind is not HoldKind.READONLY:
            return Fate.LOST
        if member in self.registered:
            return Fate.THERE
        return Fate.LOST if bookie_id in self.lost else Fate.AWAY


class Miss(NamedTuple):
    """Write down since when this bookie is missed."""

    bookie_id: str
    fault_domain: str


class FoundAgain(NamedTuple):
    """It is there, or of the cluster no more: strike it off."""

    bookie_id: str


class Alarm(NamedTuple):
    """Say this once, loudly."""

    text: str


class BeginPass(NamedTuple):
    """Look at every ledger with this view; end with `pass_ended()`."""

    fleet: Fleet


AuditAction = Miss | FoundAgain | Alarm | BeginPass


class AuditCore:
    """The decisions of one auditor, from its election on."""

    def __init__(self, limits: AuditLimits) -> None:
        self.limits = limits
        self.passing = False
        self._next_pass_s: float | None = None
        self._audited: dict[Member, bytes] | None = None
        """Who was there when the last pass began, and ever since, in the same process."""
        self._audited_lost: frozenset[str] = frozenset()
        self._audited_drained: frozenset[Member] = frozenset()
        self._named: frozenset[str] | None = None
        """Bookies that some record named at the end of the last whole pass; None: not known."""
        self._named_since_s = 0.0
        """When that pass began: of later ledgers it knows nothing."""
        self._began_s = 0.0
        self._domains: dict[str, str] = {}
        self._alarm = ""

    def fleet_seen(self, fleet: Fleet, now_s: float) -> list[AuditAction]:
        """A fresh view of the bookies, read behind a barrier."""
        actions: list[AuditAction] = []
        present = {member.bookie_id for member in fleet.registered}
        self._domains.update({m.bookie_id: d for m, d in fleet.registered.items()})
        for bookie_id in sorted(fleet.incarnations.keys() | fleet.unreadable):
            if bookie_id not in present and bookie_id not in fleet.away_since_s:
                actions.append(Miss(bookie_id, self._domains.get(bookie_id, "")))
        for bookie_id in sorted(fleet.away_since_s):
            known = bookie_id in fleet.incarnations or bookie_id in fleet.unreadable
            if bookie_id in present or not known:
                actions.append(FoundAgain(bookie_id))
        if self._audited is not None:
            self._audited = {
                member: process
                for member, process in self._audited.items()
                if member in fleet.registered and fleet.processes.get(member, b"") == process
            }
        lost, alarm = self._lost(fleet, present, now_s)
        if alarm and alarm != self._alarm:
            actions.append(Alarm(alarm))
        self._alarm = alarm
        if not self.passing and self._is_due(fleet, lost, now_s):
            self.passing = True
            self._began_s = now_s
            self._audited = {m: fleet.processes.get(m, b"") for m in fleet.registered}
            self._audited_lost, self._audited_drained = lost, fleet.drained
            actions.append(BeginPass(replace(fleet, lost=lost)))
        return actions

    def pass_ended(
        self, now_s: float, *, whole: bool, named: frozenset[str], healthy: bool
    ) -> None:
        """A pass is over. `named`: ids of bookies that records name. `whole`: every record was
        read; `healthy`: none lacks anything."""
        invariant(self.passing, "no pass was under way")
        self.passing = False
        if whole:
            self._named, self._named_since_s = named, self._began_s
        limits = self.limits
        calm = whole and healthy
        pause_s = (
            limits.audit_interval_s if calm else min(limits.recheck_s, limits.audit_interval_s)
        )
        self._next_pass_s = now_s + pause_s

    def next_deadline_s(self) -> float | None:
        """When a pass is due though nothing happens; None: at once."""
        return self._next_pass_s

    def validate(self) -> None:
        """Check the state against itself."""
        invariant(not self.passing or self._audited is not None, "a pass of no view")

    def _is_due(self, fleet: Fleet, lost: frozenset[str], now_s: float) -> bool:
        if self._next_pass_s is None or now_s >= self._next_pass_s:
            return True
        # Who came back may lack what was written meanwhile; who is lost now was not before.
        returned = fleet.registered.keys() - (self._audited or {}).keys()
        drained = fleet.drained - self._audited_drained
        return bool(returned or drained) or lost != self._audited_lost

    def _lost(self, fleet: Fleet, present: set[str], now_s: float) -> tuple[frozenset[str], str]:
        """A-1: who is given up, or why nobody is."""
        away = [
            bookie_id
            for bookie_id in sorted(fleet.incarnations)
            if bookie_id not in present and not self._is_empty(bookie_id, fleet)
        ]
        overdue = [
            bookie_id
            for bookie_id in away
            if bookie_id in fleet.away_since_s
            and now_s - fleet.away_since_s[bookie_id] >= self.limits.lost_delay_s
        ]
        draining = {member.bookie_id for member in fleet.drained}
        counted = [bookie_id for bookie_id in away if bookie_id not in draining]
        domains = {fleet.domains.get(bookie_id, "") for bookie_id in counted}
        together = len(counted) <= 1 or (len(domains) == 1 and "" not in domains)
        if not fleet.registered and fleet.incarnations:
            return frozenset(), "no bookie is registered: nothing is taken for lost"
        if overdue and not together:
            names = ", ".join(counted)
            return frozenset(), (
                f"{len(counted)} bookies are away ({names}): nothing is taken for lost; start "
                "them, or decommission those that are gone for good"
            )
        return frozenset(b for b in overdue if b not in draining), ""

    def _is_empty(self, bookie_id: str, fleet: Fleet) -> bool:
        """No record named it in a whole pass that began after it went: its end is dealt with."""
        since_s = fleet.away_since_s.get(bookie_id)
        return (
            self._named is not None
            and bookie_id not in self._named
            and since_s is not None
            and since_s < self._named_since_s
        )
