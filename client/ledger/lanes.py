"""Lanes: where one handle's entries leave for one slot, and where the answers come back.

A lane belongs to one slot in one generation (W-8): after an ensemble change or a revival the slot
gets a new lane, and answers to the old one only release their bytes. Tells the handle's budget of
bytes sent and answered (W-4, W-10) and owns the refused runs kept for another attempt (3.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.client.ledger.calls import known_status
from octavo.client.ledger.connection import BookieChannel
from octavo.client.ledger.entry_run import EntryRun
from octavo.client.ledger.handle_budget import HandleBudget
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import Member


class LaneOwner(Protocol):
    """The handle, as its lanes see it."""

    budget: HandleBudget

    def lane_acked(self, lane: SlotLane, first: int, last: int) -> None:
        """The slot's entries of `first`..`last` are durable at its bookie."""
        ...

    def lane_refused(self, lane: SlotLane, first: int, last: int, status: Status) -> bool:
        """The bookie refused them; True: keep them for another attempt."""
        ...

    def lane_failed(self, lane: SlotLane, status: Status) -> None:
        """The slot's bookie does not answer."""
        ...


class SlotLane:
    """One slot of one handle in one generation. `channel` is None when the bookie is unknown."""

    __slots__ = (
        "_kept",
        "_moved",
        "_owner",
        "channel",
        "generation",
        "incarnation",
        "member",
        "slot",
    )

    def __init__(
        self,
        owner: LaneOwner,
        slot: int,
        generation: int,
        member: Member,
        channel: BookieChannel | None,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.member = member
        self.incarnation = member.incarnation.bytes
        self.channel = channel
        self._owner = owner
        self._moved = owner.budget.moved
        self._kept: list[EntryRun] = []

    def send(self, run: EntryRun) -> None:
        """Hand a run to the bookie's channel."""
        self._moved(run.total_bytes)
        self._enqueue(run)

    def resend_kept(self) -> None:
        """3.4: send what the bookie refused again, in order; its bytes are still accounted."""
        kept, self._kept = self._kept, []
        for run in kept:
            self._enqueue(run)

    def release(self) -> None:
        """The slot has another occupant now: forget what was kept."""
        kept, self._kept = self._kept, []
        for run in kept:
            self._moved(-run.total_bytes)

    def _enqueue(self, run: EntryRun) -> None:
        if self.channel is None:
            self.failed(run, Status.DISCONNECTED)
        else:
            self.channel.enqueue(self, run)

    # --- answers, called by the channel ---

    def confirmed(self, run: EntryRun) -> None:
        """Every entry of the run is durable."""
        self._moved(-run.total_bytes)
        self._owner.lane_acked(self, run.first, run.last)

    def answered(self, run: EntryRun, statuses: Sequence[int]) -> None:
        """Different entries fared differently: settle each stretch of equal statuses."""
        start = 0
        count = len(statuses)
        while start < count:
            stop = start + 1
            while stop < count and statuses[stop] == statuses[start]:
                stop += 1
            self._settle(run.cut(start, stop), known_status(statuses[start]))
            start = stop

    def failed(self, run: EntryRun, status: Status) -> None:
        """No answer."""
        self._moved(-run.total_bytes)
        if status is Status.WRONG_INCARNATION:
            self._owner.lane_refused(self, run.first, run.last, status)
        else:
            self._owner.lane_failed(self, status)

    def _settle(self, run: EntryRun, status: Status) -> None:
        if status is Status.OK:
            self.confirmed(run)
        elif self._owner.lane_refused(self, run.first, run.last, status):
            self._kept.append(run)
        else:
            self._moved(-run.total_bytes)
