"""The writer's brain: quorum writes and ensemble changes as a pure state machine (§3).

Owns the state of one ledger handle: LAP, LAC, which slots failed, whether an ensemble change is
under way, and why the handle stopped. Events come in as method calls that carry time; actions
come out as lists of the tuples of `quorum_actions`. No socket, clock, metadata store or `await`:
`writer.py` is its shell.

The shell must carry out actions in order. It learns about confirmed entries by comparing `lac` and
`first_copy` before and after an event. Rules are cited by their ids of spec/ledger.md.

    add ──► lap+1                      acked ──► marks ──► lac, first_copy (frozen if `changing`)
    slot failed ──► ChooseReplacements ──► replacements() ──► CommitEnsemble ──► change_committed()
                       ▲                     └ none: degraded, retry 5 s        └ Resend, pop sweep
    refused FENCED / CONFLICT / change conflict / add-quorum timeout ──► Stopped
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.client.ledger import quorum_slots
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    FailedSlot,
    HandleState,
    QuorumLimits,
    Resend,
    RetrySlot,
    Stopped,
    StopReason,
    WriteLac,
)
from octavo.client.ledger.quorum_slots import Slots
from octavo.client.ledger.tally import AckTally
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import InvariantViolation
from octavo.runtime.ids import NO_ENTRY, EntryId, Member
from octavo.runtime.invariant import invariant

_NOTHING: Sequence[Action] = ()


class Proposal(NamedTuple):
    """Members that are to take the place of failed ones, while the metadata are not changed."""

    members: Mapping[int, Member]
    domains: Mapping[int, str]


class QuorumCore:
    """Write path of one ledger handle; see the module's text.

    Args:
        quorum: E, Qw, Qa of the ledger.
        members: the ensemble as created; one member per slot.
        limits: bounds.
        now: monotonic seconds.
        domains: fault domain per slot, for `min_domains_for_ack` (3.8).
    """

    def __init__(
        self,
        quorum: Quorum,
        members: Sequence[Member],
        *,
        now: float,
        limits: QuorumLimits | None = None,
        domains: Sequence[str] = (),
    ) -> None:
        self.quorum = quorum
        self.limits = limits or QuorumLimits()
        self.slots = Slots(quorum, members)
        self.lap: EntryId = NO_ENTRY
        self.lac: EntryId = NO_ENTRY
        self.first_copy: EntryId = NO_ENTRY
        """Every entry up to here has at least one copy; provisional (A4)."""
        self.length = 0
        self.lac_length = 0
        self.last_key: EntryId = EntryId(0)
        self.state = HandleState.OPEN
        self.stopped: Stopped | None = None
        self.changing = False
        self.changes = 0
        self.sent_lac: EntryId = NO_ENTRY
        """Highest LAC that members learned, by an entry's header or explicitly."""
        self._tally = AckTally(quorum, domains=domains, min_domains=self.limits.min_domains_for_ack)
        self._proposal: Proposal | None = None
        self._lengths: deque[int] = deque()  # cumulative length of each pending entry
        self._stamps: deque[tuple[int, float]] = deque()  # (first entry added at, time)
        self._next_change_at = now
        self._budget = quorum_slots.ChangeBudget(now)
        self._idle_since = now
        self._unreachable_since: float | None = None
        self._lap_at_tick: EntryId = NO_ENTRY

    # --- what the shell reads ---

    @property
    def pending(self) -> int:
        """Entries handed out and not yet confirmed."""
        return self.lap - self.lac

    @property
    def too_many_changes(self) -> bool:
        """M-6: the owner should roll to a new ledger."""
        return self.changes >= self.limits.max_ensemble_changes

    @property
    def busy(self) -> bool:
        """True while `tick` may have something to do."""
        return self.state is not HandleState.STOPPED and (
            self.pending > 0 or self.lac > self.sent_lac or self.slots.short or self.slots.refusing
        )

    # --- adds ---

    def add(self, payload_bytes: int, now: float) -> EntryId:
        """W-1: assign the next entry id and length. The shell has checked `state`."""
        entry = EntryId(self.lap + 1)
        self.lap = entry
        self.length += payload_bytes
        self._lengths.append(self.length)
        stamps = self._stamps
        if not stamps or stamps[-1][1] != now:
            stamps.append((entry, now))
        if self.lac > self.sent_lac:
            self.sent_lac = self.lac  # it travels in this entry's header (E-3)
        return entry

    def acked(self, slot: int, generation: int, first: int, last: int) -> Sequence[Action]:
        """A bookie confirmed the entries of `first`..`last` that its slot stores (W-2, W-8)."""
        state = self.slots.each[slot]
        if state.generation != generation or self.state is HandleState.STOPPED:
            return _NOTHING
        if last > self.lap:
            return self._stop(StopReason.REJECTED, f"slot {slot} confirmed unsent entry {last}")
        if state.since is not None and not state.refused:
            state.since = None
        if self._tally.record(slot, first, last) and not self.changing:
            self._sweep()
        return _NOTHING

    def refused(
        self, slot: int, generation: int, first: int, last: int, status: Status, now: float
    ) -> Sequence[Action]:
        """A bookie refused the entries of `first`..`last` of its slot (3.4).

        When the slot `takes` adds afterwards the shell keeps these entries for `RetrySlot`.
        """
        state = self.slots.each[slot]
        if state.generation != generation or self.state is HandleState.STOPPED:
            return _NOTHING
        reason = quorum_slots.STOPPING.get(status)
        if reason is not None:
            return self._stop(reason, f"{state.member} answered {status.name}")
        if state.failure is not None:
            return _NOTHING
        if status in quorum_slots.REJECTED:
            if state.rejected:
                return self._stop(
                    StopReason.REJECTED, f"{state.member} answered {status.name} twice"
                )
            state.rejected = True
            return [RetrySlot(slot, generation, new_connection=True)]
        if status in quorum_slots.RETRY_SAME_SLOT:
            return (
                _NOTHING
                if state.refuse(self.limits, now)
                else self.slot_failed(slot, generation, status, now)
            )
        return self.slot_failed(slot, generation, status, now)

    def slot_failed(
        self, slot: int, generation: int, status: Status, now: float
    ) -> Sequence[Action]:
        """The slot's bookie timed out, disconnected or cannot take adds (3.4, W-7)."""
        state = self.slots.each[slot]
        if not self.slots.takes(slot, generation) or self.state is HandleState.STOPPED:
            return _NOTHING
        avoid = status not in quorum_slots.NO_QUARANTINE
        self.slots.fail(FailedSlot(slot, state.member, status, avoid, now))
        if self.pending == 0:
            # W-7: nothing waits for this slot; a tick replaces it.
            self._next_change_at = max(self._next_change_at, now + self.limits.late_failure_delay_s)
            return _NOTHING
        if self.slots.keep_failed(self.limits):  # 3.7, W-7: the same bookie again, at a pace
            self._next_change_at = max(self._next_change_at, now + self.limits.refusal_retry_s)
            self._sweep()
            return _NOTHING
        self._next_change_at = now
        return self._start_change(now)

    # --- ensemble change (3.6) ---

    def replacements(
        self,
        chosen: Mapping[int, Member],
        now: float,
        domains: Mapping[int, str] | None = None,
        revived: Sequence[int] = (),
    ) -> Sequence[Action]:
        """C-2: what placement found for the failed slots; may be partial or empty (3.7).

        `revived` are failed slots without a spare whose own bookie, in the same incarnation,
        answers again: they get what they missed above the LAC, and no metadata changes. Older
        entries they missed stay at Qa copies until the replica check repairs them (C-8).

        More than `change_burst` changes in a row are spaced by `change_interval_s`: the handle goes
        on, or waits, with the ensemble it has.
        """
        if self.state is HandleState.STOPPED or not self.changing:
            return _NOTHING
        actions = self._revive(revived)
        if chosen and (allowed_at := self._budget.take(self.limits, now)) is not None:
            self._next_change_at = allowed_at
            self.changing = False
            self._sweep()
            return actions
        if not chosen:
            self.changing = False
            self._next_change_at = now + self.limits.change_retry_s
            actions.extend(self._go_on_degraded("no bookie can replace them", now))
            return actions
        members = self.slots.replaced(chosen)
        start = EntryId(self.lac + 1)
        invariant(start >= self.last_key, "C-3: ensemble change below the last key")
        self._proposal = Proposal(dict(chosen), dict(domains or {}))
        actions.append(CommitEnsemble(start, members))
        return actions

    def change_committed(self, now: float) -> Sequence[Action]:
        """C-6: the CAS is known to be committed. Install, unset, re-send, sweep, in this order."""
        proposal, self._proposal = self._proposal, None
        if proposal is None:
            raise InvariantViolation("a change was committed that was not proposed")
        self.last_key = EntryId(self.lac + 1)
        self.changes += 1
        actions = self._install(proposal.members, proposal.domains)
        self.changing = False
        if self.state is HandleState.STOPPED:
            return _NOTHING
        self._sweep()
        if self.slots.short:  # C-5
            actions.extend(self._start_change(now))
        return actions

    def change_conflicted(self, cause: str) -> Sequence[Action]:
        """C-4: the ledger is IN_RECOVERY or CLOSED, or the last ensemble is not ours."""
        self._proposal = None
        self.changing = False
        return self._stop(StopReason.FENCED, cause)

    def change_deferred(self, now: float) -> Sequence[Action]:
        """The CAS is known not to be committed: the store cannot be reached. Try again later."""
        self._proposal = None
        self.changing = False
        self._next_change_at = now + self.limits.change_retry_s
        if self.state is not HandleState.STOPPED:
            self._sweep()
        return _NOTHING

    # --- time, close ---

    def tick(self, now: float) -> Sequence[Action]:
        """Every 100 ms while `busy`: timeouts, delayed changes, retries, explicit LAC."""
        if self.state is HandleState.STOPPED:
            return _NOTHING
        if self.pending and now - self._stamps[0][1] > self.limits.add_quorum_timeout_s:
            return self._stop(
                StopReason.ADD_QUORUM_TIMEOUT,
                f"entry {self.lac + 1} had no quorum for {self.limits.add_quorum_timeout_s} s",
            )
        actions: list[Action] = []
        if self.slots.short and now >= self._next_change_at:
            actions.extend(self._start_change(now))
        actions.extend(self.slots.retries_due(now))
        if self.pending or self.lap != self._lap_at_tick:
            self._lap_at_tick = self.lap
            self._idle_since = now
        elif self.lac > self.sent_lac and now - self._idle_since >= self.limits.explicit_lac_idle_s:
            self.sent_lac = self.lac
            actions.append(WriteLac(self.lac))
        return actions

    def retry_change(self, now: float) -> Sequence[Action]:
        """The set of live bookies changed: do not wait for the 5 s retry."""
        if not self.slots.short or self.state is HandleState.STOPPED:
            return _NOTHING
        self._next_change_at = now
        return self._start_change(now)

    def begin_close(self) -> None:
        """W-9: no new adds; pending ones still resolve."""
        if self.state is HandleState.OPEN:
            self.state = HandleState.CLOSING

    def abandon(self, cause: str) -> Sequence[Action]:
        """The owner gives the handle up: freeze the LAC now."""
        return self._stop(StopReason.ABANDONED, cause)

    def end(self) -> None:
        """The closing CAS is on its way: nothing may change any more."""
        self.state = HandleState.STOPPED

    def close_point(self) -> tuple[EntryId, int]:
        """W-9: last entry and length for the closing CAS. Nothing may be undecided any more."""
        invariant(not self.changing, "W-9: close while an ensemble change is unresolved")
        drained = self.state is HandleState.CLOSING and self.pending == 0
        invariant(drained or self.state is HandleState.STOPPED, "W-9: close while adds may resolve")
        return self.lac, self.lac_length

    def validate(self) -> None:
        """Check this object's promises against each other; run after each step in tests."""
        invariant(NO_ENTRY <= self.lac <= self.first_copy <= self.lap, "lac <= first copy <= lap")
        invariant(len(self._lengths) == self.pending, "one length per pending entry")
        invariant(self.last_key <= self.lac + 1, "C-3: last key above the LAC's successor")
        invariant(self.lac_length <= self.length, "confirmed length above the length")
        self.slots.validate()
        self._tally.validate(self.lap)
        if self.state is not HandleState.STOPPED and not self.changing:
            reached = self._tally.complete_through(self.lac, self.lap)
            invariant(reached == self.lac, "a complete head was not popped")

    # --- inside ---

    def _sweep(self) -> None:
        """W-3: pop every complete head; move the LAC and the first-copy mark."""
        reached = self._tally.complete_through(self.lac, self.lap)
        if reached != self.lac:
            lengths, stamps = self._lengths, self._stamps
            for _ in range(reached - self.lac):
                self.lac_length = lengths.popleft()
            self.lac = EntryId(reached)
            while len(stamps) > 1 and stamps[1][0] <= reached + 1:
                stamps.popleft()
            if reached == self.lap:
                stamps.clear()
        self._tally.settle(reached)
        first = self._tally.first_copy_through(max(self.first_copy, reached), self.lap)
        self.first_copy = EntryId(first)

    def _stop(self, reason: StopReason, cause: str) -> Sequence[Action]:
        if self.state is HandleState.STOPPED:
            return _NOTHING
        self.state = HandleState.STOPPED
        self.stopped = Stopped(reason, cause)
        return [self.stopped]

    def _start_change(self, now: float) -> Sequence[Action]:
        """C-1, unless a change is under way or refused (3.7)."""
        if self.changing or now < self._next_change_at:
            return _NOTHING
        if self.slots.keep_failed(self.limits):
            self._next_change_at = now + self.limits.refusal_retry_s
            actions = self._revive([failed.slot for failed in self.slots.failed])
            self._sweep()
            return actions
        if self.too_many_changes:
            self._next_change_at = now + self.limits.change_retry_s
            return self._go_on_degraded("the ledger had too many ensemble changes", now)
        self.changing = True
        return [ChooseReplacements(self.slots.failed)]

    def _revive(self, slots: Sequence[int]) -> list[Action]:
        if not slots:
            return []
        return self._install({slot: self.slots.each[slot].member for slot in slots}, {})

    def _go_on_degraded(self, why: str, now: float) -> Sequence[Action]:
        """3.7: continue while Qa stays reachable in every write set, else stop.

        A short grace lets connections that broke together come back first.
        """
        self._sweep()
        if self.slots.reachable:
            self._unreachable_since = None
            return _NOTHING
        if self._unreachable_since is None:
            self._unreachable_since = now
        if now - self._unreachable_since < self.limits.stop_grace_s:
            self._next_change_at = now + self.limits.late_failure_delay_s
            return _NOTHING
        names = ", ".join(f"{f.member.bookie_id} ({f.status.name})" for f in self.slots.failed)
        return self._stop(StopReason.NOT_ENOUGH_BOOKIES, f"lost {names}; {why}")

    def _install(self, members: Mapping[int, Member], domains: Mapping[int, str]) -> list[Action]:
        """New occupants: nothing above the LAC counts (C-6), and they get all of it."""
        self._unreachable_since = None
        self.slots.install(members)
        for index in members:
            self._tally.forget(index, self.lac, domains.get(index))
        if self.pending == 0:
            return []
        first, last = EntryId(self.lac + 1), self.lap
        return [Resend(slot, self.slots.generation(slot), first, last) for slot in sorted(members)]
