"""What `PartitionCore` asks its driver to do.

All but `Work` is done at once, in the order given, within the step of the event loop in which it
was returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo.client.segments.index import SparseIndex
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState
from octavo.proto.segments import Segment
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from octavo.serving.partition.log import Answer, Append, Reply


class Send(NamedTuple):
    """Add the batch to the open ledger, then call `sent`; `stopped` when the ledger refuses."""

    append: Append


class SendSnapshot(NamedTuple):
    """Add a snapshot to the open ledger, then call `snapshot_sent`; `stopped` when refused."""

    payload: bytes


class Durable(NamedTuple):
    """The batch is durable on Qa bookies: keep it in the tail, tell everybody who waits."""

    append: Append


class FirstCopy(NamedTuple):
    """The promise of acks=1 is kept: tell who waits for it."""

    append: Append


class Refuse(NamedTuple):
    """Tell everybody who waits for the batch why there is no other answer."""

    append: Append
    error: OctavoError


class Tell(NamedTuple):
    """Answer one request that needs no entry."""

    reply: Reply
    answer: Answer


class WakeReaders(NamedTuple):
    """More can be read, or the partition goes away (F1)."""


class Proceed(NamedTuple):
    """Ask `next_actions` again."""


class Pause(NamedTuple):
    """Ask `next_actions` again after a pause that grows with each failure."""


class AnswerRolls(NamedTuple):
    """Tell everybody who asked for a roll the high watermark, or why there was none."""

    outcome: int | OctavoError


class AnswerTrims(NamedTuple):
    """Tell everybody who asked for a trim where the log begins, or why nothing is known."""

    outcome: int | OctavoError


class AnswerChange(NamedTuple):
    """Tell who asked for the oldest change that it is listed, or why nothing is known."""

    error: OctavoError | None


class KeepIndex(NamedTuple):
    """The index of a closed ledger, for readers."""

    ledger_id: LedgerId
    sparse: SparseIndex


class GiveUp(NamedTuple):
    """The partition is not ours any more: tell the registry."""

    reason: OctavoError


class Recover(NamedTuple):
    """Close the ledger by recovery, then call `ledger_closed` (ML-6)."""

    ledger_id: LedgerId


class Close(NamedTuple):
    """Write the footer and close the open ledger, then call `ledger_closed` (ML-5).

    When that fails nothing is called: `next_actions` asks for its recovery (W-9).
    """

    footer: bytes
    reason: str


class Publish(NamedTuple):
    """List what was closed and, with `open_new`, a new ledger; then call `listed` (ML-5)."""

    sealed: Segment | None
    open_new: bool
    base_offset: int


class Trim(NamedTuple):
    """List that the log begins at `log_start`, without the segments below; then `Trims.done`.

    `open_snapshot`: the open ledger, when its first entry is durable.
    """

    log_start: int
    open_snapshot: LedgerId | None
    reason: str


class Change(NamedTuple):
    """List what `wanted` makes of the list as it is; then call `ListChanges.done`.

    Pure, and called again on what a re-read found; see `SegmentChain.change`.
    """

    wanted: Callable[[PartitionState], PartitionState]
    creates: LedgerMetadata | None = None
    """A ledger that comes to exist with that list, which names it."""


Work = Recover | Close | Publish | Trim | Change
"""Takes time; the driver does one of them at a time."""
Action = (
    Send | SendSnapshot | Durable | FirstCopy | Refuse | Tell | WakeReaders | Proceed | Pause
    | AnswerRolls | AnswerTrims | AnswerChange | KeepIndex | GiveUp
    | Recover | Close | Publish | Trim | Change
)  # fmt: skip

WAKE_READERS = WakeReaders()
PROCEED = Proceed()
