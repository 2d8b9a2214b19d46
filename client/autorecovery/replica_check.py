"""Asking bookies which entries they have: what each slot of a ledger lacks (A-2).

Owns the existence check that the auditor and the tools share; digests are checked by whoever reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from octavo.client.autorecovery.slot_core import ABSENT
from octavo.client.autorecovery.slots import Fate, Plan, Run, Slot, plan, stored_runs, without
from octavo.client.ledger.calls import BookieCalls
from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.clock import Clock
from octavo.runtime.ids import LedgerId, Member

INDEX_LAG_S = 0.5
"""An entry is in its bookie's index well before; the last copy of an acknowledged one may be late.
"""


class SlotGap(NamedTuple):
    """What one slot lacks, or why that is not known."""

    slot: Slot
    missing: tuple[Run, ...]
    unknown: str = ""


class CopyCheck(NamedTuple):
    """What is known of a ledger's copies now."""

    plan: Plan
    gaps: tuple[SlotGap, ...]
    """Slots that lack entries, or could not be asked."""

    @property
    def short(self) -> bool:
        """Some bookie that is there surely lacks an entry."""
        return any(gap.missing for gap in self.gaps)

    @property
    def unknown(self) -> bool:
        """Some slot could not be asked."""
        return bool(self.plan.away) or any(gap.unknown for gap in self.gaps)

    @property
    def lost(self) -> frozenset[Member]:
        """Lost members whose slots wait for others."""
        return frozenset(slot.member for slot in self.plan.replace)


class ReplicaCheck:
    """The check of one ledger."""

    def __init__(self, calls: BookieCalls, *, timeout_s: float, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._timeout_s = timeout_s

    async def check(self, record: LedgerMetadata, fate_of: Callable[[Member], Fate]) -> CopyCheck:
        """Ask every member that is there, about each of its slots."""
        lac = -1 if record.closed_for_good else await self.lac_of(record)
        wanted = plan(record, lac, fate_of)
        gaps = await asyncio.gather(
            *(self._gap(record.ledger_id, record.quorum, slot) for slot in wanted.check)
        )
        return CopyCheck(wanted, tuple(gap for gap in gaps if gap.missing or gap.unknown))

    async def lac_of(self, record: LedgerMetadata) -> int:
        """RD-5: entries up to here are acknowledged for sure; there may be more.

        Returns after a moment in which all of them reach the indexes that are asked next.
        """
        replies = await asyncio.gather(
            *(
                self._calls.read_lac(
                    record.ledger_id, member, previous=-1, wait_s=0, timeout_s=self._timeout_s
                )
                for member in record.last_fragment[1]
            )
        )
        lac = max((int(r.lac) for r in replies if r.status is Status.OK), default=-1)
        if lac >= record.last_fragment[0]:
            await self._clock.sleep(INDEX_LAG_S)
        return lac

    async def _gap(self, ledger_id: LedgerId, quorum: Quorum, slot: Slot) -> SlotGap:
        wanted = stored_runs(quorum, slot.number, slot.first, slot.last)
        held: list[Run] = []
        first, last = wanted[0][0] if wanted else 0, slot.last
        while wanted and first <= last:
            reply = await self._calls.list_entries(
                ledger_id, slot.member, first, last, timeout_s=self._timeout_s
            )
            if reply.status in ABSENT:
                break
            if reply.status is not Status.OK:
                return SlotGap(slot, (), f"{slot.member.bookie_id}: {reply.status.name}")
            held += reply.runs
            first = reply.through + 1
        return SlotGap(slot, tuple(without(wanted, held)))
