"""The lanes of one ledger handle: one for each slot of its ensemble, renewed with its occupant."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.client.ledger.calls import encode_lac
from octavo.client.ledger.entry_run import EntryRun
from octavo.client.ledger.lanes import LaneOwner, SlotLane
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import Resend, RetrySlot
from octavo.client.ledger.tally import in_write_set
from octavo.proto.bookie_wire import FrameType
from octavo.runtime.errors import BookieUnavailable
from octavo.runtime.ids import EntryId, LedgerId


class LaneSet:
    """Sends runs, and what has to be sent again, along the lanes of their write sets."""

    def __init__(self, owner: LaneOwner, core: QuorumCore, pool: BookiePool) -> None:
        self._owner = owner
        self._core = core
        self._pool = pool
        self._whole = core.quorum.ensemble == core.quorum.write
        self._lanes = [self._new_lane(slot) for slot in range(core.quorum.ensemble)]

    def __getitem__(self, slot: int) -> SlotLane:
        """The slot's lane, renewed when the slot has another occupant or generation."""
        lane = self._lanes[slot]
        if lane.generation != self._core.slots.generation(slot):
            lane.release()
            lane = self._lanes[slot] = self._new_lane(slot)
        return lane

    def send(self, run: EntryRun) -> None:
        """To every slot that takes adds, its entries of the run."""
        for slot in self._core.slots.active:
            part = self._part_of(slot, run)
            if part is not None:
                self[slot].send(part)

    def resend(self, action: Resend, pending: Iterable[EntryRun]) -> None:
        """C-6: pending entries to the slot's new occupant; the open run follows by itself."""
        lane = self[action.slot]
        for run in list(pending):
            part = run.above(action.first - 1)
            if part is not None and part.first <= action.last:
                part = self._part_of(action.slot, part)
            if part is not None:
                lane.send(part)

    def retry(self, action: RetrySlot) -> None:
        """3.4: what a slot refused, again, if its occupant is still the same."""
        lane = self[action.slot]
        if lane.generation != action.generation:
            return
        if action.new_connection and lane.channel is not None:
            lane.channel.retire()
        lane.resend_kept()

    def write_lac(self, ledger_id: LedgerId, lac: EntryId) -> None:
        """Tell every slot that takes adds how far entries are confirmed."""
        for slot in self._core.slots.active:
            lane = self[slot]
            if lane.channel is not None:
                body = encode_lac(ledger_id, lac, lane.member)
                lane.channel.post(FrameType.WRITE_LAC, body)

    def release(self) -> None:
        """Forget what was kept for another attempt."""
        for lane in self._lanes:
            lane.release()

    def forget_waiter(self, waiter: Callable[[], None]) -> None:
        """No channel calls `waiter` any more when its connection comes back."""
        for lane in self._lanes:
            if lane.channel is not None:
                lane.channel.forget_waiter(waiter)

    def _part_of(self, slot: int, run: EntryRun) -> EntryRun | None:
        if self._whole:
            return run
        quorum = self._core.quorum
        return run.select([i for i, e in enumerate(run.ids) if in_write_set(slot, e, quorum)])

    def _new_lane(self, slot: int) -> SlotLane:
        member = self._core.slots.members[slot]
        try:
            channel = self._pool.channel(member.bookie_id, "add")
        except BookieUnavailable:
            channel = None
        return SlotLane(self._owner, slot, self._core.slots.generation(slot), member, channel)
