"""Repairing one ledger: the shell around `plan` and `SlotCore` (A-4..A-9).

Owns the lock's use, the compare-and-set of a member, the grace of writers, and the rates. A mark is
a hint: what is done follows from the record and the bookies as they are now.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.fleet_reader import FleetReader
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.settings import RepairSettings
from octavo.client.autorecovery.slot_core import (
    BATCH_ENTRIES,
    CommitMember,
    Finished,
    GaveUp,
    ListHeld,
    ProveHeld,
    ReadSource,
    SlotAction,
    SlotCore,
    WriteTarget,
)
from octavo.client.autorecovery.slots import Fate, Plan, Slot, plan
from octavo.client.autorecovery.spread import better_at
from octavo.client.ledger.calls import BookieCalls
from octavo.client.ledger.client import LedgerClient
from octavo.client.ledger.ensemble_change import candidates_of, places_of
from octavo.client.ledger.placement import Candidate, choose_replacements
from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.metadata.ledgers import VersionedLedger
from octavo.metadata.repairs import RepairCatalog, RepairLock, RepairMark
from octavo.proto.bookie_wire import ReadRequest, Status
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import LedgerConflict, NoSuchLedger, OctavoError, VersionConflict
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.runtime.telemetry import get_logger

READ_MAX_BYTES = 1 << 20
"""Upper bound of one read of copies; one entry is always read."""
ROUNDS_MAX = 3
"""How often a record that changes meanwhile is planned anew before its mark waits."""

_log = get_logger("octavo.autorecovery.worker")


@dataclass
class RepairStats:
    """What one process did since it started (7.3)."""

    ledgers_repaired: int = 0
    slots_replaced: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    entries_unreadable: int = 0
    attempts_failed: int = 0
    recoveries_forced: int = 0
    ledgers_grown: int = 0
    slots_moved_apart: int = 0
    """A-10; counted in `slots_replaced`, too."""


class Attempt(NamedTuple):
    """How one attempt at a ledger ended."""

    whole: bool
    """A fresh look found nothing missing, and nothing unknown (A-8)."""
    cause: str = ""
    unreadable: bool = False
    """Some entries have no readable copy now: tried again rarely (A-7)."""
    pause_s: float = 0.0
    """When to try again; 0: after the usual pause."""
    outdated: bool = False
    """The record was changed by others meanwhile: it is planned anew."""


class Look(NamedTuple):
    """A record, the bookies, and what follows, all as of one moment."""

    found: VersionedLedger
    fleet: Fleet
    wanted: Plan


class LedgerRepairer:
    """Repairs one ledger at a time for each caller, who holds its lock."""

    def __init__(
        self,
        client: LedgerClient,
        repairs: RepairCatalog,
        fleets: FleetReader,
        *,
        settings: RepairSettings,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._client = client
        self._repairs = repairs
        self._fleets = fleets
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._calls = BookieCalls(client.pool)
        self._timeout_s = client.config.request_timeout_s
        self._check = ReplicaCheck(self._calls, timeout_s=self._timeout_s, clock=clock)
        self._rule = client.config.domain_rule
        self._pace = Pace(settings.repair_bytes_per_s, clock)
        self.stats = RepairStats()

    async def repair(self, ledger_id: LedgerId, lock: RepairLock) -> Attempt:
        """One attempt; removes the mark when nothing is missing any more.

        Raises MetadataUnavailable and its like: nothing is known, the mark stays.
        """
        found = await self._repairs.read(ledger_id)
        if found is None:
            return Attempt(True)
        try:
            attempt = await self._repair(found.mark, lock)
        except NoSuchLedger:
            attempt = Attempt(True)  # deleted meanwhile
        if attempt.whole and lock.held:
            await self._repairs.remove(found)
            self.stats.ledgers_repaired += 1
        else:
            self.stats.attempts_failed += 1
        return attempt

    async def _repair(self, mark: RepairMark, lock: RepairLock) -> Attempt:
        attempt = Attempt(False, "the ledger kept changing")
        for _ in range(ROUNDS_MAX):
            look = await self._look(mark)
            if look.wanted.recover:
                refused = await self._make_way(mark, look, lock)
                if refused is not None:
                    await self._mend(look, lock)  # what can be done without it
                    return refused
                look = await self._look(mark)
            attempt = await self._mend(look, lock)
            if attempt.outdated:
                continue
            if not attempt.whole:
                return attempt
            after = await self._look(mark)
            if after.wanted.replace or after.wanted.recover:
                continue
            if after.fleet.can_grow(after.found.metadata):
                attempt = await self._grow(after, lock)
            elif crowded := after.fleet.crowded(after.found.metadata, self._rule):
                attempt = await self._move_apart(after, crowded, lock)
            else:
                return attempt
            if not (attempt.whole or attempt.outdated):
                return attempt
        return Attempt(False, "the ledger kept changing", outdated=attempt.outdated)

    async def _look(self, mark: RepairMark) -> Look:
        fleet = await self._fleets.read()
        found = await self._client.catalog.read(mark.ledger_id, barrier=True)
        record = found.metadata
        lac = -1 if record.closed_for_good else await self._check.lac_of(record)
        return Look(found, fleet, plan(record, lac, lambda m: self._fate(m, fleet, mark)))

    async def _make_way(self, mark: RepairMark, look: Look, lock: RepairLock) -> Attempt | None:
        """A-6: give the writer its time; then close its ledger. None: it is closed now.

        A writer is not evicted for copies that could not be made anyway.
        """
        record, fleet = look.found.metadata, look.fleet
        ensemble = record.last_fragment[1]
        lost = {i: m for i, m in enumerate(ensemble) if self._fate(m, fleet, mark) is Fate.LOST}
        if not self._spares(record, ensemble, lost, fleet):
            return Attempt(False, "no other bookie can take the copies of its last fragment")
        waited_s = (self._clock.wall_ms() - mark.marked_ms) / 1000
        left_s = self._settings.open_fragment_grace_s - waited_s
        if 0 < left_s <= self._settings.open_fragment_grace_s:
            return Attempt(False, "its writer has time to replace a bookie itself", pause_s=left_s)
        if not lock.held:
            return Attempt(False, "the lock may be lost")
        _log.warning("ledger-closed-for-repair", ledger_id=mark.ledger_id)
        self.stats.recoveries_forced += 1
        await self._client.recover_ledger(mark.ledger_id)
        return None

    @staticmethod
    def _fate(member: Member, fleet: Fleet, mark: RepairMark) -> Fate:
        """The auditor gave a member up when it marked the ledger; it may be back since (A-1)."""
        fate = fleet.fate_of(member)
        return Fate.LOST if fate is Fate.AWAY and member in mark.members else fate

    async def _mend(self, look: Look, lock: RepairLock) -> Attempt:
        """Every slot in turn: one at a time, so that never two members change at once."""
        worst = Attempt(True)
        found, fleet, wanted = look
        for slot in (*wanted.replace, *wanted.check):
            if not lock.held:
                return Attempt(False, "the lock may be lost")
            target = slot.member
            if slot in wanted.replace:
                record = found.metadata
                chosen = self._spares(record, slot.ensemble, {slot.number: slot.member}, fleet)
                if slot.number not in chosen:
                    worst = Attempt(False, "no other bookie can take the copies", worst.unreadable)
                    continue
                target = chosen[slot.number].member
            ended, now = await self._run(found, slot, target, fleet, lock)
            if now is None:
                return Attempt(False, "the record was changed by others", outdated=True)
            found = now
            if isinstance(ended, GaveUp):
                worst = self._gave_up(found.metadata, slot, target, ended, worst)
        if wanted.away and worst.whole:
            names = ", ".join(sorted({slot.member.bookie_id for slot in wanted.away}))
            return Attempt(False, f"nothing is known of {names}")
        if (wanted.undecided or wanted.recover) and worst.whole:
            return Attempt(False, "the ledger is not closed yet")
        return worst

    async def _grow(self, look: Look, lock: RepairLock) -> Attempt:
        """One more copy of a closed ledger that was opened with too few bookies (ADR 47)."""
        found, fleet, _ = look
        record = found.metadata
        size, copies, acks = record.quorum
        quorum = Quorum(size + 1, copies + 1, acks)
        last = -1 if record.last_entry is None else int(record.last_entry)
        bounds = [start for start, _ in record.fragments[1:]] + [EntryId(last + 1)]
        added: dict[EntryId, Member] = {}
        for (start, ensemble), end in zip(record.fragments, bounds, strict=True):
            chosen = self._spares(record, ensemble, {size: ensemble[0]}, fleet, quorum)
            if size not in chosen:
                return Attempt(False, "no other bookie can take one more copy")
            target = chosen[size].member
            slot = Slot(start, start, min(end - 1, last), size, (*ensemble, target), True)
            ended = await self._copy(record.ledger_id, quorum, slot, target, fleet)
            if isinstance(ended, GaveUp):
                return self._gave_up(record, slot, target, ended, Attempt(True))
            added[start] = target
        if not lock.held:
            return Attempt(False, "the lock may be lost")
        try:
            await self._client.catalog.cas(found, record.grown(added))
        except VersionConflict:
            return Attempt(False, "the record was changed by others", outdated=True)
        self.stats.ledgers_grown += 1
        _log.info("ledger-grown", ledger_id=record.ledger_id, copies=quorum.write)
        return Attempt(True)

    async def _move_apart(self, look: Look, crowded: list[Slot], lock: RepairLock) -> Attempt:
        """A-10: copies that lie side by side without need, one slot of each fragment.

        What the former members have is surplus then, and goes by G-4.
        """
        found, fleet, _ = look
        for slot in crowded:
            record = found.metadata
            if not lock.held:
                return Attempt(False, "the lock may be lost")
            chosen = self._spares(record, slot.ensemble, {slot.number: slot.member}, fleet)
            target = chosen.get(slot.number)
            if target is None or not better_at(
                slot, target, fleet.places, record.quorum, self._rule
            ):
                return Attempt(False, "the bookies that lie better take no copies now")
            ended, now = await self._run(found, slot, target.member, fleet, lock)
            if now is None:
                return Attempt(False, "the record was changed by others", outdated=True)
            found = now
            if isinstance(ended, GaveUp):
                return self._gave_up(record, slot, target.member, ended, Attempt(True))
            self.stats.slots_moved_apart += 1
        return Attempt(True)

    async def _copy(
        self, ledger_id: LedgerId, quorum: Quorum, slot: Slot, target: Member, fleet: Fleet
    ) -> Finished | GaveUp:
        """Every entry of a slot that no record knows yet, at its target, and proved."""
        core = SlotCore(
            ledger_id,
            quorum,
            slot,
            target,
            last_resort=frozenset(m for m in slot.ensemble if m not in fleet.registered),
            joins=True,
        )
        actions = core.start()
        while not isinstance(actions[0], Finished | GaveUp):
            actions = await self._perform(core, actions[0])
        ended = actions[0]
        if isinstance(ended, Finished):
            self.stats.entries_copied += ended.entries
            self.stats.bytes_copied += ended.nbytes
        return ended

    def _gave_up(
        self, record: LedgerMetadata, slot: Slot, target: Member, ended: GaveUp, worst: Attempt
    ) -> Attempt:
        log = _log.error if ended.unreadable or ended.conflict else _log.warning
        log(
            "slot-not-repaired",
            ledger_id=record.ledger_id,
            fragment=slot.start,
            member=str(slot.member),
            target=str(target),
            cause=ended.cause,
        )
        rare = bool(ended.unreadable) or ended.conflict or worst.unreadable
        self.stats.entries_unreadable += sum(b - a + 1 for a, b in ended.unreadable)
        return Attempt(False, ended.cause, rare)

    def _spares(
        self,
        record: LedgerMetadata,
        ensemble: tuple[Member, ...],
        lost: dict[int, Member],
        fleet: Fleet,
        quorum: Quorum | None = None,
    ) -> dict[int, Candidate]:
        """Writable bookies for these slots by the placement policy (3.8, B-26)."""
        live = self._client.directory.live()
        return choose_replacements(
            lost,
            places_of(ensemble, live),
            [c for c in candidates_of(live) if fleet.fate_of(c.member) is Fate.THERE],
            quorum or record.quorum,
            entropy=self._entropy,
            quarantined=self._client.pool.quarantined(),
            rule=self._rule,
        )

    # --- one slot ---------------------------------------------------------------------------

    async def _run(
        self,
        found: VersionedLedger,
        slot: Slot,
        target: Member,
        fleet: Fleet,
        lock: RepairLock,
    ) -> tuple[Finished | GaveUp, VersionedLedger | None]:
        """How it ended, and the record as it is then; None: others changed it."""
        record = found.metadata
        core = SlotCore(
            record.ledger_id,
            record.quorum,
            slot,
            target,
            last_resort=frozenset(m for m in slot.ensemble if m not in fleet.registered),
        )
        actions = core.start()
        while True:
            action = actions[0]
            if isinstance(action, CommitMember):
                try:
                    found = await self._commit(found, action, lock)
                except VersionConflict as error:
                    return GaveUp(error.cause), None
                except OctavoError as error:
                    actions = core.committed(f"the record was not changed: {error.cause}")
                else:
                    actions = core.committed()
            elif isinstance(action, Finished):
                self._finished(record, slot, target, action)
                return action, found
            elif isinstance(action, GaveUp):
                return action, found
            else:
                actions = await self._perform(core, action)

    async def _perform(self, core: SlotCore, action: SlotAction) -> list[SlotAction]:
        ledger_id = core.ledger_id
        match action:
            case ListHeld():
                listed = await self._calls.list_entries(
                    ledger_id, action.member, action.first, action.last, timeout_s=self._timeout_s
                )
                return core.listed(listed.status, listed.through, listed.runs)
            case ReadSource() | ProveHeld():
                request = ReadRequest(
                    action.member.incarnation.bytes,
                    ledger_id,
                    action.first,
                    min(action.most, BATCH_ENTRIES),
                    READ_MAX_BYTES,
                )
                reply = await self._calls.read(
                    request, action.member, recovery=False, timeout_s=self._timeout_s
                )
                await self._pace.spend(sum(map(len, reply.entries)))
                status = Status(reply.status)
                if isinstance(action, ProveHeld):
                    return core.proof_read(action.first, status, reply.entries)
                return core.source_read(action.member, action.first, status, reply.entries)
            case WriteTarget():
                statuses = await asyncio.gather(
                    *(
                        self._calls.add_recovered(
                            action.member, bytes(entry), timeout_s=self._timeout_s
                        )
                        for entry in action.entries
                    )
                )
                return core.written(statuses)
            case CommitMember() | Finished() | GaveUp():
                return [action]

    async def _commit(
        self, found: VersionedLedger, action: CommitMember, lock: RepairLock
    ) -> VersionedLedger:
        """One compare-and-set with the preconditions of 2.2, of the version that was planned from.

        Never of a later one: a bookie that gives up copies writes the record again in between, and
        what the target said it holds was said before that (G-4). Raises VersionConflict then.
        """
        members = dict(found.metadata.fragments)[action.start]
        if any(
            member.bookie_id == action.new.bookie_id and member != action.old for member in members
        ):
            raise LedgerConflict(f"{action.new} holds another slot of the fragment")
        if not lock.held:
            raise LedgerConflict("the lock may be lost")
        changed = found.metadata.with_member_replaced(action.start, action.old, action.new)
        return await self._client.catalog.cas(found, changed)

    def _finished(
        self, record: LedgerMetadata, slot: Slot, target: Member, ended: Finished
    ) -> None:
        self.stats.entries_copied += ended.entries
        self.stats.bytes_copied += ended.nbytes
        replaced = target != slot.member
        self.stats.slots_replaced += int(replaced)
        if replaced or ended.entries:
            _log.info(
                "slot-repaired",
                ledger_id=record.ledger_id,
                fragment=slot.start,
                member=str(slot.member),
                target=str(target),
                entries=ended.entries,
                bytes=ended.nbytes,
            )
