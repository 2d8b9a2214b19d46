"""Choosing and committing a new ensemble for an open ledger (3.6, C-2..C-4).

The asyncio half of an ensemble change: candidates from the directory, the compare-and-set, and the
settling of a lost reply. When to change, and what follows, is `QuorumCore`'s business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.counters import LedgerCounters
from octavo.client.ledger.placement import Candidate, DomainRule, choose_replacements
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum_actions import CommitEnsemble, FailedSlot
from octavo.client.ledger.tally import ack_reachable
from octavo.metadata.bookies import BookieDirectory, BookieRegistration
from octavo.metadata.ledgers import (
    LedgerCatalog,
    LedgerMetadata,
    LedgerState,
    Quorum,
    VersionedLedger,
)
from octavo.metadata.store import MetadataStore, SessionState
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    BookieUnavailable,
    Fenced,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)
from octavo.runtime.ids import Member
from octavo.runtime.retry import Backoff

_log = logging.getLogger("octavo.ledger.ensemble")

DEFAULT_DOMAIN = "default"
"""3.8: bookies without a fault domain share this one."""


class Waiter(Protocol):
    """A handle that wants to know when a failed slot's bookie is back."""

    def bookies_changed(self) -> None:
        """Try again now."""
        ...


@dataclass(frozen=True)
class Choice:
    """What was found for the failed slots of an ensemble."""

    members: dict[int, Member]
    domains: dict[int, str]
    revived: tuple[int, ...]
    """Slots without a spare whose own bookie answers again."""


def candidates_of(live: Sequence[BookieRegistration]) -> list[Candidate]:
    """Writable bookies as placement sees them."""
    return [candidate_of(b) for b in live if b.state == "rw"]


def candidate_of(bookie: BookieRegistration) -> Candidate:
    """A registered bookie as placement sees it."""
    return Candidate(bookie.member, domain_of(bookie), bookie.host)


def domain_of(bookie: BookieRegistration | None) -> str:
    """The fault domain of a bookie (3.8)."""
    return (bookie.fault_domain if bookie is not None else "") or DEFAULT_DOMAIN


def places_of(ensemble: Sequence[Member], live: Sequence[BookieRegistration]) -> list[Candidate]:
    """Where the members of an ensemble lie; those whose bookie is away share DEFAULT_DOMAIN."""
    known = {b.bookie_id: candidate_of(b) for b in live}
    return [
        known[m.bookie_id]._replace(member=m)
        if m.bookie_id in known
        else Candidate(m, DEFAULT_DOMAIN)
        for m in ensemble
    ]


def spares_for(
    failed: Mapping[int, Member],
    ensemble: Sequence[Member],
    live: Sequence[BookieRegistration],
    quorum: Quorum,
    *,
    pool: BookiePool,
    entropy: Entropy,
    rule: DomainRule,
    proven: Callable[[Member], bool],
) -> dict[int, Candidate]:
    """C-2: replacements among bookies that did not fail lately, or have proven to answer again.

    Others are taken as well when without them some write set could not reach Qa any more: then
    there is nothing to lose.
    """
    members = places_of(ensemble, live)
    candidates = candidates_of(live)
    suspects, now = pool.suspects, pool.now
    usable = [
        c
        for c in candidates
        if not suspects.is_suspect(c.member, now)
        or (not suspects.is_resting(c.member, now) and proven(c.member))
    ]
    quarantined = pool.quarantined()
    found = choose_replacements(
        failed, members, usable, quorum, entropy=entropy, quarantined=quarantined, rule=rule
    )
    left = {slot for slot in failed if slot not in found}
    if ack_reachable(left, quorum):
        return found
    avoid = quarantined | {c.member.bookie_id for c in candidates if c not in usable}
    return choose_replacements(
        failed, members, candidates, quorum, entropy=entropy, quarantined=avoid, rule=rule
    )


class EnsembleChanger:
    """Shared by all writing handles of one client."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: LedgerCatalog,
        directory: BookieDirectory,
        pool: BookiePool,
        *,
        config: LedgerClientConfig,
        counters: LedgerCounters,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._directory = directory
        self._pool = pool
        self._config = config
        self._counters = counters
        self._clock = clock
        self._entropy = entropy

    def rule(self) -> DomainRule:
        """The placement rule of this client."""
        return self._config.domain_rule

    def writable_bookies(self) -> int:
        """Bookies a new ledger could use now, without those that failed a moment ago."""
        avoid = self._pool.quarantined()
        live = self._directory.live()
        return sum(b.state == "rw" and b.bookie_id not in avoid for b in live)

    def choose(
        self,
        failed: Sequence[FailedSlot],
        ensemble: Sequence[Member],
        quorum: Quorum,
        waiter: Waiter,
    ) -> Choice | None:
        """C-2; None while the metadata store is away, because nothing could be committed."""
        self._pool.quarantine(f.member.bookie_id for f in failed if f.quarantine)
        for slot in failed:
            self._pool.suspects.failed(slot.member, self._pool.now)
        if self._store.session_state is not SessionState.CONNECTED:
            return None
        found = spares_for(
            {f.slot: f.member for f in failed},
            ensemble,
            self._directory.live(),
            quorum,
            pool=self._pool,
            entropy=self._entropy,
            rule=self.rule(),
            proven=lambda member: self._answers(member, waiter),
        )
        revived = [f.slot for f in failed if f.slot not in found and self._is_back(f, waiter)]
        return Choice(
            members={slot: candidate.member for slot, candidate in found.items()},
            domains={slot: candidate.domain for slot, candidate in found.items()},
            revived=tuple(revived),
        )

    def _is_back(self, failed: FailedSlot, waiter: Waiter) -> bool:
        """True when the same incarnation is writable and connected; else dial and wait for it.

        One that was merely slow gets the full pause first, or it would throttle the handle again.
        """
        pause_s = self._config.limits.change_retry_s
        if failed.status is not Status.DISCONNECTED and self._pool.now - failed.since < pause_s:
            return False
        found = self._directory.find(failed.member)
        if found is None or found.state != "rw":
            return False
        return self._answers(failed.member, waiter)

    def _answers(self, member: Member, waiter: Waiter) -> bool:
        """True when the bookie is connected; else dial, and tell `waiter` once it is."""
        try:
            channel = self._pool.channel(member.bookie_id, "add")
        except BookieUnavailable:
            return False
        if not channel.ready:
            channel.when_ready(waiter.bookies_changed)
        return channel.ready

    async def commit(
        self, written: VersionedLedger, action: CommitEnsemble
    ) -> VersionedLedger | None:
        """C-4. None: known not to be committed, the store is away.

        Raises Fenced when the ledger is no longer ours to change; NoSuchLedger and the like too.
        """
        last_written = written.metadata.last_fragment

        def change(found: LedgerMetadata) -> LedgerMetadata:
            if found.state is not LedgerState.OPEN:
                raise Fenced(f"ledger {found.ledger_id} is {found.state.name}")
            if found.last_fragment == (action.start, action.members):
                return found
            if found.last_fragment != last_written:
                raise Fenced(f"another writer changed the ensemble of ledger {found.ledger_id}")
            return found.with_ensemble_change(action.start, action.members)

        ledger_id = written.metadata.ledger_id
        backoff = Backoff(self._entropy, initial_s=0.1, max_s=2.0)
        known: VersionedLedger | None = written
        sent = False
        while True:
            try:
                changed = await self._catalog.update(ledger_id, change, known=known)
            except UnknownOutcome:
                sent = True  # it may be committed: only a read can tell (M-3)
            except (MetadataUnavailable, VersionConflict) as error:
                if not sent:
                    _log.warning("ensemble change of ledger %d deferred: %s", ledger_id, error)
                    return None
            else:
                self._counters.ensemble_changes += 1
                return changed
            known = None
            await self._clock.sleep(backoff.next_s())
