"""Are all copies of a ledger there, and alike? For tools; it changes nothing (A-2, INV-5, INV-6).

The existence check asks each bookie's index. The reading check also reads every copy, compares ids
and digests, and compares the copies of each entry with each other, byte for byte by their headers,
whose checksum covers the payload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import NamedTuple

from octavo.client.autorecovery.audit_core import Fleet
from octavo.client.autorecovery.pace import Pace
from octavo.client.autorecovery.replica_check import ReplicaCheck
from octavo.client.autorecovery.slots import Fate, Run, Slot, slots_of, stored_runs
from octavo.client.ledger.calls import BookieCalls
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.ledgers import LedgerCatalog
from octavo.proto.bookie_wire import MAX_ENTRIES_PER_FRAME, ReadRequest, Status
from octavo.proto.entry import HEADER_BYTES
from octavo.runtime.errors import MetadataCorrupt, NoSuchLedger, UnsupportedVersion
from octavo.runtime.ids import LedgerId

WINDOW_ENTRIES = min(64, MAX_ENTRIES_PER_FRAME)
"""Entries of which all copies are compared together."""
READ_MAX_BYTES = 1 << 20
PROBLEMS_TOLD_MAX = 20
"""Of one ledger; the rest is counted."""


class Verified(NamedTuple):
    """What was found of one ledger."""

    ledger_id: int
    state: str
    entries: int
    copies: int
    """Wanted of each entry."""
    problems: tuple[str, ...] = ()
    """What is wrong for sure: missing, damaged, different."""
    unknown: tuple[str, ...] = ()
    """What could not be looked at."""


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
    ) -> None:
        self._catalog = catalog
        self._calls = calls
        self._check = check
        self._pace = pace
        self._timeout_s = timeout_s

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
        """One ledger; of one that is not closed, what is acknowledged for sure."""
        try:
            record = (await self._catalog.read(ledger_id, barrier=True)).metadata
        except (MetadataCorrupt, UnsupportedVersion) as error:
            return Verified(ledger_id, "UNREADABLE", 0, 0, (f"its record: {error.cause}",))
        problems, unknown = await self._existence(record, fleet)
        last = int(record.last_entry) if record.last_entry is not None else None
        if last is None:
            last = await self._check.lac_of(record)
        if read:
            await self._compare(record, last, fleet, problems, unknown)
        if record.degraded:
            problems.append(f"it was opened with {record.quorum.write} copies, too few bookies")
        return Verified(
            ledger_id,
            record.state.name,
            last + 1,
            record.quorum.write,
            _bounded(problems),
            _bounded(unknown),
        )

    async def _existence(self, record: LedgerMetadata, fleet: Fleet) -> tuple[list[str], list[str]]:
        found = await self._check.check(record, fleet.fate_of)
        problems: list[str] = []
        unknown = [f"{slot.member.bookie_id} is away" for slot in found.plan.away]
        for slot in found.plan.replace:
            problems.append(f"{slot.member} is lost, which should hold {_span(slot)}")
        if found.plan.recover:
            problems.append("a bookie of its last fragment is lost")
        for gap in found.gaps:
            if gap.unknown:
                unknown.append(gap.unknown)
            else:
                problems.append(f"{gap.slot.member.bookie_id} lacks {_said(gap.missing)}")
        return problems, unknown

    # --- reading ----------------------------------------------------------------------------

    async def _compare(
        self,
        record: LedgerMetadata,
        last: int,
        fleet: Fleet,
        problems: list[str],
        unknown: list[str],
    ) -> None:
        slots = [s for s in slots_of(record, last) if fleet.fate_of(s.member) is Fate.THERE]
        starts = sorted({slot.start for slot in slots})
        for start in starts:
            of_fragment = [slot for slot in slots if slot.start == start]
            first, end = of_fragment[0].first, of_fragment[0].last
            while first <= end and len(problems) + len(unknown) < 2 * PROBLEMS_TOLD_MAX:
                window = (first, min(end, first + WINDOW_ENTRIES - 1))
                await self._window(record, of_fragment, window, problems, unknown)
                first = window[1] + 1

    async def _window(
        self,
        record: LedgerMetadata,
        slots: list[Slot],
        window: Run,
        problems: list[str],
        unknown: list[str],
    ) -> None:
        read = await asyncio.gather(*(self._read(record, slot, window) for slot in slots))
        holders: dict[int, dict[bytes, list[str]]] = {}
        for slot, (heads, bad, unread) in zip(slots, read, strict=True):
            name = slot.member.bookie_id
            problems += [f"{name}: entry {entry} cannot be read: {why}" for entry, why in bad]
            unknown += [f"{name}: entry {entry}: {why}" for entry, why in unread]
            for entry, head in heads.items():
                holders.setdefault(entry, {}).setdefault(head, []).append(name)
        for entry, kinds in holders.items():
            if len(kinds) > 1:
                alike = sorted(", ".join(sorted(names)) for names in kinds.values())
                problems.append(f"entry {entry} differs: {' | '.join(alike)} (INV-5)")

    async def _read(
        self, record: LedgerMetadata, slot: Slot, window: Run
    ) -> tuple[dict[int, bytes], list[tuple[int, str]], list[tuple[int, str]]]:
        """Headers of intact entries; those that are missing or damaged; those not looked at."""
        heads: dict[int, bytes] = {}
        bad: list[tuple[int, str]] = []
        unread: list[tuple[int, str]] = []
        for first, last in stored_runs(record.quorum, slot.number, *window):
            at = first
            while at <= last:
                request = ReadRequest(
                    slot.member.incarnation.bytes,
                    record.ledger_id,
                    at,
                    last - at + 1,
                    READ_MAX_BYTES,
                )
                reply = await self._calls.read(
                    request, slot.member, recovery=False, timeout_s=self._timeout_s
                )
                await self._pace.spend(sum(map(len, reply.entries)))
                for number, entry in enumerate(reply.entries, at):
                    heads[number] = bytes(memoryview(entry)[:HEADER_BYTES])
                at += len(reply.entries)
                if reply.entries:
                    continue
                status = Status(reply.status)
                missing = (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER, Status.EIO)
                (bad if status in missing else unread).append((at, status.name))
                if status not in missing:
                    return heads, bad, unread
                at += 1
        return heads, bad, unread


def _span(slot: Slot) -> str:
    return "no entry" if slot.first > slot.last else f"entries {slot.first} to {slot.last}"


def _said(runs: Iterable[Run]) -> str:
    told = list(runs)
    shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in told[:5])
    return f"entries {shown}" + (f" and {len(told) - 5} more runs" if len(told) > 5 else "")


def _bounded(texts: list[str]) -> tuple[str, ...]:
    distinct = list(dict.fromkeys(texts))
    if len(distinct) <= PROBLEMS_TOLD_MAX:
        return tuple(distinct)
    left = len(distinct) - PROBLEMS_TOLD_MAX
    return (*distinct[:PROBLEMS_TOLD_MAX], f"and {left} more")
