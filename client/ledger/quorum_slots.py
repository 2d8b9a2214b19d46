"""One slot of an ensemble as a writer knows it, what each refusal of its bookie means (3.4), and
how often the ensemble may change (3.6).

Pure values of `quorum.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.client.ledger.quorum_actions import FailedSlot, QuorumLimits, StopReason
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import Member

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


def distinct(members: Sequence[Member]) -> bool:
    """Whether no bookie appears twice."""
    return len({member.bookie_id for member in members}) == len(members)
