"""The slots of an ensemble as a writer knows them, what each refusal of a bookie means (3.4), and
how often the ensemble may change (3.6).

Pure parts of `quorum.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from octavo.client.ledger.quorum_actions import FailedSlot, QuorumLimits, RetrySlot, StopReason
from octavo.client.ledger.tally import ack_reachable, write_set
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import Member
from octavo.runtime.invariant import invariant

STOPPING = {
    Status.FENCED: StopReason.FENCED,
    Status.UNAUTHORIZED: StopReason.FENCED,
    Status.CONFLICT: StopReason.CONFLICT,
}
RETRY_SAME_SLOT = frozenset({Status.NOT_ADMITTED_RETRY, Status.OVERLOADED, Status.NOT_READY})
REJECTED = frozenset({Status.BAD_DIGEST, Status.TOO_LARGE, Status.BAD_VERSION, Status.BAD_REQUEST})
ALWAYS_REPLACED = frozenset({Status.READONLY, Status.DISK_FULL, Status.WRONG_INCARNATION})
NO_QUARANTINE = ALWAYS_REPLACED


class Slot:
    """What the handle knows of one slot besides its marks."""

    __slots__ = ("failure", "generation", "member", "refused", "rejected", "retry_at", "since")

    def __init__(self, member: Member, generation: int) -> None:
        self.member = member
        self.generation = generation
        self.failure: FailedSlot | None = None
        self.refused = False  # the shell keeps refused entries, to send them at `retry_at`
        self.retry_at = 0.0
        self.since: float | None = None  # refused without a success since then
        self.rejected = False  # the bytes were rejected once already

    def refuse(self, limits: QuorumLimits, now: float) -> bool:
        """Ask it again after a pause; False when it has refused for the add timeout (3.4)."""
        if self.since is None:
            self.since = now
        elif now - self.since > limits.add_timeout_s:
            return False
        if not self.refused:
            self.refused = True
            self.retry_at = now + limits.refusal_retry_s
        return True


class Slots:
    """The ensemble of a ledger handle: who holds each slot, and which take adds."""

    def __init__(self, quorum: Quorum, members: Sequence[Member]) -> None:
        invariant(len(members) == quorum.ensemble, "ensemble has another size than E")
        invariant(distinct(members), "a bookie appears twice in an ensemble")
        self.active: tuple[int, ...] = tuple(range(quorum.ensemble))
        """Slots that take adds; with E = Qw every entry goes to each of them."""
        self._quorum = quorum
        self.each = [Slot(member, 0) for member in members]
        """What is known of each, by its number."""
        self._generation = 0

    @property
    def members(self) -> tuple[Member, ...]:
        """The ensemble as committed in the metadata."""
        return tuple(slot.member for slot in self.each)

    @property
    def failed(self) -> tuple[FailedSlot, ...]:
        """Slots that take no adds at present."""
        return tuple(slot.failure for slot in self.each if slot.failure is not None)

    @property
    def short(self) -> bool:
        """Whether any slot takes no adds."""
        return len(self.active) < len(self.each)

    @property
    def refusing(self) -> bool:
        """Whether any slot refused what it is to be sent again."""
        return any(slot.refused for slot in self.each)

    @property
    def reachable(self) -> bool:
        """Whether every write set has Qa slots that take adds (3.7)."""
        return ack_reachable({failed.slot for failed in self.failed}, self._quorum)

    def generation(self, slot: int) -> int:
        """Identity of the slot's present occupant (W-8)."""
        return self.each[slot].generation

    def of(self, entry: int) -> tuple[int, ...]:
        """Healthy slots of the entry's write set (C-1)."""
        active = self.active
        if self._quorum.ensemble == self._quorum.write:
            return active
        return tuple(slot for slot in write_set(entry, self._quorum) if slot in active)

    def takes(self, slot: int, generation: int) -> bool:
        """Whether this occupant still holds its slot and has not failed."""
        state = self.each[slot]
        return state.failure is None and state.generation == generation

    def fail(self, failure: FailedSlot) -> None:
        """Its bookie takes no adds until it is replaced or revived."""
        state = self.each[failure.slot]
        state.failure = failure
        state.refused = False
        self._refresh()

    def install(self, members: Mapping[int, Member]) -> None:
        """New occupants, with a new identity (W-8)."""
        self._generation += 1
        for index, member in members.items():
            self.each[index] = Slot(member, self._generation)
        self._refresh()

    def replaced(self, chosen: Mapping[int, Member]) -> tuple[Member, ...]:
        """The ensemble with `chosen` in the place of failed members."""
        members = list(self.members)
        for slot, member in chosen.items():
            invariant(self.each[slot].failure is not None, "replacing a healthy slot")
            members[slot] = member
        invariant(distinct(members), "a bookie appears twice in an ensemble")
        return tuple(members)

    def retries_due(self, now: float) -> list[RetrySlot]:
        """Slots that are to get again what they refused (3.4)."""
        due = [
            index
            for index, slot in enumerate(self.each)
            if slot.refused and now >= slot.retry_at and slot.failure is None
        ]
        for index in due:
            self.each[index].refused = False
        return [RetrySlot(index, self.generation(index), new_connection=False) for index in due]

    def keep_failed(self, limits: QuorumLimits) -> bool:
        """True while failed members are not to be replaced (the switch of 3.7; W-7)."""
        if not limits.ensemble_changes_enabled:
            return True
        if not limits.delay_ensemble_change:
            return False
        return self.reachable and not any(f.status in ALWAYS_REPLACED for f in self.failed)

    def validate(self) -> None:
        """Check the promises of this object."""
        invariant(distinct(self.members), "a bookie appears twice in an ensemble")
        healthy = tuple(i for i, s in enumerate(self.each) if s.failure is None)
        invariant(self.active == healthy, "active slots are the healthy ones")

    def _refresh(self) -> None:
        self.active = tuple(i for i, s in enumerate(self.each) if s.failure is None)


class ChangeBudget:
    """Ensemble changes that a handle may make without a pause: a token bucket (3.6)."""

    __slots__ = ("_full_at",)

    def __init__(self, now: float) -> None:
        self._full_at = now  # when `change_burst` changes are free again

    def take(self, limits: QuorumLimits, now: float) -> float | None:
        """Take one and return None; or take none and return when there is one again."""
        allowed_at = self._full_at - (limits.change_burst - 1) * limits.change_interval_s
        if now < allowed_at:
            return allowed_at
        self._full_at = max(self._full_at, now) + limits.change_interval_s
        return None


def distinct(members: Iterable[Member]) -> bool:
    """Whether no bookie appears twice."""
    names = [member.bookie_id for member in members]
    return len(set(names)) == len(names)
