"""Are all copies of a ledger there, and alike? For tools; it changes nothing (A-2, INV-5, INV-6).

The existence check asks each bookie's index. The reading check also reads every copy, compares ids
and digests, and compares the copies of each entry with each other (`comparison`). What looks wrong
or could not be looked at is looked at again if the ledger changed meanwhile, or may have: its last
copies may be on their way still, a worker may have moved it, its topic may be gone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.comparison import Comparison, OnEntry
from octavo.client.autorecovery.found import Findings, Verified
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.slots import Fate, Run, Slot, slots_of, stored_runs
from octavo.client.ledger.calls import BookieCalls
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState
from octavo.metadata.ledgers import LedgerCatalog, VersionedLedger
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataCorrupt, NoSuchLedger, UnsupportedVersion
from octavo.runtime.ids import LedgerId

LOOKS_MAX = 3
"""At one ledger that is not whole, while it keeps changing."""
AGAIN_AFTER_S = 1.0
"""Until a ledger that is written to is looked at again: time for the last copies to arrive."""


class LedgerVerifier:
    """Checks ledgers one after the other."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        calls: BookieCalls,
        check: ReplicaCheck,
        *,
        pace: Pace,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._calls = calls
        self._check = check
        self._pace = pace
        self._timeout_s = timeout_s
        self._clock = clock

    async def each(
        self, fleet: Fleet, ledger_ids: Iterable[LedgerId] = (), *, read: bool
    ) -> AsyncGenerator[Verified]:
        """These ledgers, or all of them; one that is deleted meanwhile is left out.

        Raises NoSuchLedger for one that was named, MetadataUnavailable.
        """
        named = list(ledger_ids)
        for ledger_id in named:
            yield await self.verify(ledger_id, fleet, read=read)
        if not named:
            async for ledger_id in self._catalog.walk():
                try:
                    yield await self.verify(ledger_id, fleet, read=read)
                except NoSuchLedger:
                    continue

    async def verify(self, ledger_id: LedgerId, fleet: Fleet, *, read: bool) -> Verified:
        """One ledger; of one that is not closed, what is acknowledged for sure.

        Raises NoSuchLedger, MetadataUnavailable.
        """
        try:
            versioned = await self._catalog.read(ledger_id, barrier=True)
        except (MetadataCorrupt, UnsupportedVersion) as error:
            found = Findings()
            found.damaged(f"its record: {error.cause}")
            return found.verified(ledger_id, "UNREADABLE", 0, 0)
        return await self.verify_record(versioned, fleet, read=read)

    async def verify_record(
        self,
        versioned: VersionedLedger,
        fleet: Fleet,
        *,
        read: bool,
        on_entry: OnEntry | None = None,
    ) -> Verified:
        """The same of a record that was read. `on_entry` hears of entries again when it is looked
        at again, from entry 0 on."""
        look = 1
        while True:
            verified, is_whole = await self._look(versioned.metadata, fleet, read, on_entry)
            if is_whole or look == LOOKS_MAX:
                return verified
            is_settled = look > 1 or versioned.metadata.closed_for_good
            if not is_settled:
                await self._clock.sleep(AGAIN_AFTER_S)
            now = await self._again(versioned)
            if is_settled and now.version == versioned.version:
                return verified
            versioned = now
            look += 1

    async def _again(self, versioned: VersionedLedger) -> VersionedLedger:
        """The record as of now; one that has become unreadable is told by the next pass."""
        try:
            return await self._catalog.read(versioned.metadata.ledger_id, barrier=True)
        except (MetadataCorrupt, UnsupportedVersion):
            return versioned

    async def _look(
        self, record: LedgerMetadata, fleet: Fleet, read: bool, on_entry: OnEntry | None
    ) -> tuple[Verified, bool]:
        found = Findings()
        last = int(record.last_entry) if record.last_entry is not None else None
        if last is None:
            last = await self._check.lac_of(record)
        gaps = await self._existence(record, last, fleet, found)
        if read:
            comparison = Comparison(
                record,
                self._calls,
                found,
                pace=self._pace,
                timeout_s=self._timeout_s,
                on_entry=on_entry,
            )
            await comparison.run(_readable(record, last, fleet), gaps)
        if record.degraded:
            lacking = max(0, record.wanted_copies - record.quorum.write)
            found.missing(
                f"it was opened with {record.quorum.write} copies, too few bookies",
                lacking * (last + 1),
            )
        verified = found.verified(
            record.ledger_id, record.state.name, last + 1, record.quorum.write
        )
        return verified, not found.any

    async def _existence(
        self, record: LedgerMetadata, last: int, fleet: Fleet, found: Findings
    ) -> Mapping[Slot, Sequence[Run]]:
        """Ask the indexes; what each place lacks, or nothing of those that do not tell."""
        checked = await self._check.check(record, fleet.fate_of)
        quorum = record.quorum
        found.looked(replicas=len(checked.plan.check))
        for slot in checked.plan.away:
            copies = _count(stored_runs(quorum, slot.number, slot.first, slot.last))
            found.not_known(f"{slot.member.bookie_id} is away", copies)
        for slot in checked.plan.replace:
            copies = _count(stored_runs(quorum, slot.number, slot.first, slot.last))
            found.missing(f"{slot.member} is lost, which should hold {_span(slot)}", copies)
        if checked.plan.recover:
            lost = [
                slot
                for slot in slots_of(record, last)
                if not slot.settled and fleet.fate_of(slot.member) is Fate.LOST
            ]
            copies = sum(_count(stored_runs(quorum, s.number, s.first, s.last)) for s in lost)
            found.missing("a bookie of its last fragment is lost", copies)
        if checked.plan.undecided:
            found.not_known("it is being recovered: where it ends is not decided")
        gaps: dict[Slot, Sequence[Run]] = {}
        for gap in checked.gaps:
            name = gap.slot.member.bookie_id
            if gap.unknown:
                wanted = stored_runs(quorum, gap.slot.number, gap.slot.first, gap.slot.last)
                found.not_known(gap.unknown, _count(wanted))
            else:
                gaps[gap.slot] = gap.missing
                found.missing(f"{name} lacks {_said(gap.missing)}", _count(gap.missing))
        return gaps


def _readable(record: LedgerMetadata, last: int, fleet: Fleet) -> list[Slot]:
    """Places that can be read now and whose entries are decided."""
    undecided = not record.closed_for_good and record.state is not LedgerState.OPEN
    return [
        slot
        for slot in slots_of(record, last)
        if fleet.fate_of(slot.member) is Fate.THERE and (slot.settled or not undecided)
    ]


def _count(runs: Iterable[Run]) -> int:
    return sum(last - first + 1 for first, last in runs)


def _span(slot: Slot) -> str:
    return "no entry" if slot.first > slot.last else f"entries {slot.first} to {slot.last}"


def _said(runs: Iterable[Run]) -> str:
    told = list(runs)
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in told[:5])
    return f"entries {shown}" + (f" and {len(told) - 5} more runs" if len(told) > 5 else "")
