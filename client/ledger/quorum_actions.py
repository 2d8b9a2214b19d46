"""What the writer's brain says: its actions, its states and its bounds (§3).

Values only; `octavo.client.ledger.quorum` makes them and `octavo.client.ledger.writer` carries
them out.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import EntryId, Member


class HandleState(Enum):
    """Where a handle is in its life."""

    OPEN = "open"
    CLOSING = "closing"
    """No new adds; what is pending still resolves (W-9)."""
    STOPPED = "stopped"
    """LAC frozen for ever; pending entries are UNKNOWN (W-6)."""


class StopReason(Enum):
    """Why a handle stopped."""

    FENCED = "fenced"
    CONFLICT = "conflict"
    NOT_ENOUGH_BOOKIES = "not-enough-bookies"
    ADD_QUORUM_TIMEOUT = "add-quorum-timeout"
    REJECTED = "rejected"
    """A bookie refused the bytes twice (3.4, last row)."""
    ABANDONED = "abandoned"
    """The owner gave the handle up."""


class QuorumLimits(NamedTuple):
    """Bounds of one handle (3.4, 3.6, 3.7, 3.9, RD-6)."""

    add_timeout_s: float = 5.0
    add_quorum_timeout_s: float = 60.0
    late_failure_delay_s: float = 0.1
    change_retry_s: float = 5.0
    stop_grace_s: float = 1.0
    explicit_lac_idle_s: float = 0.1
    refusal_retry_s: float = 0.1
    max_ensemble_changes: int = 100
    change_burst: int = 5
    """Ensemble changes a handle may make without a pause (3.6)."""
    change_interval_s: float = 5.0
    """After these, one more per so many seconds."""
    ensemble_changes_enabled: bool = True
    delay_ensemble_change: bool = False
    """W-7: keep members that fail, and try them again, while Qa is reachable in every write set;
    read-only and full ones are replaced at once."""
    min_domains_for_ack: int = 1


class FailedSlot(NamedTuple):
    """A slot that does not take adds, and whether its bookie is to be avoided for a while."""

    slot: int
    member: Member
    status: Status
    quarantine: bool
    since: float


class Resend(NamedTuple):
    """Send the pending entries of `first`..`last` that `slot` stores, again (C-6, 3.4)."""

    slot: int
    generation: int
    first: EntryId
    last: EntryId


class RetrySlot(NamedTuple):
    """Send again, in order, what the bookie of `slot` refused and the shell kept (3.4)."""

    slot: int
    generation: int
    new_connection: bool


class ChooseReplacements(NamedTuple):
    """C-2: choose members for these slots, then call `replacements()`."""

    failed: tuple[FailedSlot, ...]


class CommitEnsemble(NamedTuple):
    """C-4: CAS the last ensemble; answer with `change_committed`, `_conflicted` or `_deferred`."""

    start: EntryId
    members: tuple[Member, ...]


class WriteLac(NamedTuple):
    """RD-6: tell every member the LAC."""

    lac: EntryId


class Stopped(NamedTuple):
    """The handle stopped; every entry above `lac` is UNKNOWN (W-6)."""

    reason: StopReason
    cause: str


Action = Resend | RetrySlot | ChooseReplacements | CommitEnsemble | WriteLac | Stopped
