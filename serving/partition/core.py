"""What comes next for one open partition (ledger §8.2, spec groups §2-§4). Pure.

`PartitionCore` decides; `PartitionDriver` does. Inputs are methods named for what happened; they
return actions. The rules:

* A batch is acknowledged when Qa bookies acknowledged its entry, or when the CLOSED record of its
  ledger includes it (INV-2, ML-6). From the moment a ledger stopped, or its close was asked for,
  what was sent to it is unknown until that record is read (W-9).
* The high watermark is the end of the longest durable prefix and never goes back (A3).
* A roll drains, writes the footer, closes, and lists the closed segment with its successor in one
  write; batches queue meanwhile, bounded, and none is lost or written twice (ML-5).
* A partition that ends answers each batch that is pending once, with the reason (A8).

Life: LOADING -> SERVING -> (CLOSING ->) CLOSED, never back. The open ledger: none -> accepts ->
drains -> is closed, or recovered -> sealed, that is closed but not in the list -> none.
"""

from __future__ import annotations

from enum import Enum

from octavo.client.segments.index import SparseIndex
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.proto.segment_entries import encode_footer
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    NotEnoughBookies,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    RequestTimedOut,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.runtime.invariant import invariant
from octavo.serving.partition.actions import (
    PROCEED,
    WAKE_READERS,
    Action,
    Close,
    Durable,
    FirstCopy,
    GiveUp,
    KeepIndex,
    Pause,
    Publish,
    Recover,
    Refuse,
    Send,
    SendSnapshot,
    Tell,
)
from octavo.serving.partition.backlog import BacklogGate
from octavo.serving.partition.changes import ListChanges
from octavo.serving.partition.dedup import DedupWindow
from octavo.serving.partition.intake import Intake
from octavo.serving.partition.limits import Limits
from octavo.serving.partition.log import (
    ACKS_NONE,
    UNCONDITIONAL,
    Append,
    Appended,
    Conditions,
    PartitionLog,
    Reply,
)
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.producers import ProducerStates
from octavo.serving.partition.retention import Retention
from octavo.serving.partition.rolls import RollPlan
from octavo.serving.partition.snapshots import SnapshotMaker
from octavo.serving.partition.trims import Trims
from octavo.serving.partition.world import World
from octavo.serving.partition.writer_seat import WriterSeat
from octavo.serving.segments import RollReason
from octavo.serving.topic_config import TopicSettings


class PartitionStateName(Enum):
    """Life of a partition here; it never goes back."""

    LOADING = "loading"
    SERVING = "serving"
    CLOSING = "closing"
    CLOSED = "closed"


_CLOSED = PartitionStateName.CLOSED


class PartitionCore:
    """Decides for one partition.

    Args:
        producers: what is known of them; `loaded` may have been preceded by a restore.
        world: questions with immediate answers.
    """

    def __init__(
        self,
        name: PartitionName,
        settings: TopicSettings,
        limits: Limits,
        *,
        producers: ProducerStates[Append],
        world: World,
    ) -> None:
        self._name = name
        self._limits = limits
        self._producers = producers
        self.log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
        self.backlog = BacklogGate(
            name,
            settings.backlog_quota,
            interval_s=limits.backlog_check_interval_ms / 1000,
            spread=limits.spread,
        )
        self.dedup: DedupWindow[Append] = DedupWindow(settings.dedup)
        """Ids of records; `loaded` may have been preceded by a restore."""
        lease_s = limits.writer_lease_ms / 1000
        self.seat = WriterSeat(name, lease_s=lease_s, required=settings.has_writer)
        self._intake = Intake(
            name,
            settings,
            bounds=limits.bounds,
            ack_quorum=limits.ack_quorum,
            log=self.log,
            producers=producers,
            world=world,
            dedup=self.dedup,
            backlog=self.backlog,
            seat=self.seat,
        )
        self._rolls = RollPlan(limits.roll, world)
        self._snapshots = SnapshotMaker(name, self.log, producers, self.dedup)
        self.trims = Trims(self.log)
        self.changes = ListChanges()
        self.retention = Retention(
            limits.retention,
            log=self.log,
            trims=self.trims,
            rolls=self._rolls,
            world=world,
            spread=limits.spread,
        )
        self.segment: OpenSegment | None = None
        """Listed, its end not known yet."""
        self.sealed: Segment | None = None
        """Its end known, not in the list yet."""
        self.state = PartitionStateName.LOADING
        self.gone: OctavoError | None = None
        """Why requests are refused, once CLOSING or CLOSED."""

    # --- life ---------------------------------------------------------------------------------

    def adopt(self, settings: TopicSettings, limits: Limits, *, new_ledger: bool) -> list[Action]:
        """The topic was altered; `new_ledger`: what is written next needs another ledger."""
        self._limits = limits
        self._intake.adopt(settings, limits)
        self.backlog.adopt(settings.backlog_quota)
        self._rolls.limits = limits.roll
        self.retention.adopt(limits.retention)
        if new_ledger:
            self._rolls.ask()
        return [PROCEED]

    def loaded(
        self,
        *,
        owner_epoch: int,
        log_start: int,
        end_offset: int,
        last_append_ms: int,
        decommissioned: bool = False,
    ) -> None:
        """Recovered and claimed (ML-4): requests are taken from now on."""
        self._intake.decommissioned = decommissioned
        invariant(self.state is PartitionStateName.LOADING, "a partition is loaded once")
        self.log.begin(owner_epoch, log_start, end_offset, last_append_ms)
        self.state = PartitionStateName.SERVING

    def check_serving(self) -> None:
        """Raises why requests are not taken here: NotLeader or UnknownTopic."""
        if self.state is not PartitionStateName.SERVING:
            raise self.gone or NotLeader(f"{self._name} is still loading")

    def leave(self) -> list[Action]:
        """Unload in good order (O-3): no new requests; finish, hand over, close, list."""
        if self.state is not PartitionStateName.SERVING:
            return []
        self.gone = NotLeader(f"{self._name} is moving to another broker")
        self.state = PartitionStateName.CLOSING
        asked = [*self.trims.answered(self.gone), *self.changes.answered(self.gone)]
        return [*asked, WAKE_READERS, PROCEED]

    @property
    def has_left(self) -> bool:
        """Whether nothing is left to do here, ever."""
        if self.state is PartitionStateName.CLOSING:
            return self.segment is None and self.sealed is None
        return self._is_closed

    def end(self, reason: OctavoError) -> list[Action]:
        """Stop at once: somebody else owns it, the topic is gone, the deadline passed.

        What was sent may still be found by whoever recovers the ledger, so every reason is one
        that a producer settles by its retry, or UNKNOWN_TOPIC (A8).
        """
        if self.state is PartitionStateName.CLOSED:
            return []
        self.state = PartitionStateName.CLOSED
        self.gone = reason
        return [
            *self._intake.refused(self.log.drop_all(), reason),
            *self._rolls.answered(reason),
            *self.trims.answered(reason),
            *self.changes.answered(reason),
            WAKE_READERS,
        ]

    def give_up(self, error: OctavoError) -> list[Action]:
        """The partition cannot go on here: another owner, no topic, a broken promise."""
        if self.state is PartitionStateName.CLOSED:
            return []
        reason = error
        if not isinstance(reason, NotLeader | UnknownTopic):
            reason = NotLeader(f"{self._name} must be opened again: {reason.cause}")
        return [*self.end(reason), GiveUp(reason)]

    # --- batches ------------------------------------------------------------------------------

    def produce(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        now_ms: int,
        now_s: float,
        *,
        conditions: Conditions = UNCONDITIONAL,
    ) -> list[Action]:
        """One produced batch; raises when it is refused at once and nothing was written."""
        if self.state is not PartitionStateName.SERVING:
            self.check_serving()
        taken = self._intake.take(batch, acks, reply, now_ms, now_s, conditions=conditions)
        if isinstance(taken, Append):
            actions = self._sends(now_ms, now_s)
            if acks == ACKS_NONE:
                actions.append(Tell(reply, Appended(-1, taken.header.append_time_ms)))
            return actions
        return [taken] if taken is not None else []

    def _sends(self, now_ms: int, now_s: float) -> list[Action]:
        """Everything queued goes to the open ledger; without one, one is to be opened."""
        segment = self.segment
        if segment is None or not segment.usable:
            return [PROCEED]
        actions: list[Action] = []
        if segment.snapshot_due(self._limits.snapshot, now_s):
            actions.append(SendSnapshot(self._snapshots.payload(segment, now_ms)))
        size_bytes = segment.size_bytes
        for append in self.log.queued_batches():
            actions.append(Send(append))
            size_bytes += len(append.payload)
        if size_bytes >= self._limits.roll.segment_bytes:
            actions.append(PROCEED)
        return actions

    def sent(self, segment: OpenSegment, append: Append, entry_id: EntryId) -> None:
        """A batch became an entry of the open ledger."""
        self.log.sent_as(append, entry_id)
        segment.batch_sent(append)

    def added(self, segment: OpenSegment, entry_id: EntryId) -> list[Action]:
        """Qa bookies acknowledged an entry."""
        if segment is not self.segment or segment.must_recover or self.state is _CLOSED:
            return []  # the closed ledger's record decides (ML-6), or it was answered already
        actions: list[Action] = []
        if not segment.control_durable(entry_id):
            append = self.log.durable(entry_id)
            segment.note(append, entry_id)
            self._intake.confirm(append)
            actions = [Durable(append), WAKE_READERS]
        if segment.ends is not None and not self.log.sent and not segment.controls_pending:
            actions.append(PROCEED)
        return actions

    def first_copy(self, segment: OpenSegment, append: Append) -> list[Action]:
        """One bookie has the batch (acks=1, A4)."""
        if segment is not self.segment or segment.must_recover or self.state is _CLOSED:
            return []
        return [FirstCopy(ready) for ready in self.log.first_copy(append)]

    @property
    def _is_closed(self) -> bool:
        return self.state is PartitionStateName.CLOSED

    # --- ledgers ------------------------------------------------------------------------------

    def stopped(self, segment: OpenSegment) -> list[Action]:
        """The ledger takes nothing more: fenced, or too few bookies. What was sent is unknown."""
        if segment is not self.segment:
            return []
        segment.must_recover = True
        return [PROCEED]

    def next_actions(self, now_ms: int, now_s: float, *, writer_wants: bool) -> list[Action]:
        """What the driver does next; empty when something must happen first.

        At most one of them is `Work`, the last one. `writer_wants`: the ledger asks for a roll.
        """
        segment = self.segment
        if self._is_closed:
            return []
        trim = self.trims.next_trim(segment)
        if trim is not None:  # first: it needs no bookie, and its outcome ends it
            return [trim]
        change = self.changes.next_change()
        if change is not None:  # as little
            return [change]
        if segment is not None:
            if segment.must_recover:
                return [Recover(segment.ledger_id)]
            if self.state is PartitionStateName.CLOSING:
                segment.ends = RollReason.UNLOAD
            elif segment.ends is None:
                segment.ends = self._rolls.reason(
                    segment, now_s, sent=self.log.sent, writer_wants=writer_wants
                )
            if segment.ends is not None:
                return self._towards_end(segment, segment.ends, now_ms)
        elif (self.log.queued or self.retention.wants_ledger) and (
            self.state is PartitionStateName.SERVING
        ):
            return [Publish(self.sealed, True, self.log.high_watermark)]
        if self.sealed is not None:
            return [Publish(self.sealed, False, self.log.high_watermark)]
        return self._rolls.answered(self.log.high_watermark)

    def _towards_end(self, segment: OpenSegment, why: RollReason, now_ms: int) -> list[Action]:
        """ML-5: drain, then a last snapshot if it is handed over (I8), then footer and close."""
        if self.log.sent or segment.controls_pending:
            return []
        if segment.owes_handover:
            return [SendSnapshot(self._snapshots.payload(segment, now_ms))]
        segment.must_recover = True  # until the close is known (W-9)
        return [Close(encode_footer(segment.footer(self.log.high_watermark)), why.value)]

    def ledger_closed(self, closed: LedgerMetadata) -> list[Action]:
        """The CLOSED record of the open ledger (ML-6).

        What is in it is durable; the rest is queued again with the bytes and offsets it had.
        """
        segment = self.segment
        if segment is None or self._is_closed:
            return []
        invariant(closed.ledger_id == segment.ledger_id, "the record is of the open ledger")
        actions: list[Action] = []
        last_entry = closed.last_entry if closed.last_entry is not None else -1
        for append in self.log.resolve(last_entry):
            segment.note(append, append.entry_id or EntryId(0))
            self._intake.confirm(append)
            actions.append(Durable(append))
        self.sealed = segment.sealed(closed, self.log.high_watermark)
        self.segment = None
        return [*actions, KeepIndex(closed.ledger_id, segment.index), WAKE_READERS]

    def listed(self, ledger_id: LedgerId | None, now_ms: int, now_s: float) -> list[Action]:
        """The list was written; with a ledger: it may be written to (ledger §8.3, point 4).

        Its first entry is a snapshot (ML-4, I8), then comes what is queued.
        """
        if self._is_closed:
            return []
        self.sealed = None
        self._rolls.listed()
        self.retention.listed(has_ledger=ledger_id is not None)
        actions: list[Action] = []
        if ledger_id is not None:
            self._intake.no_ledger = False
            index = SparseIndex(self._limits.index_interval_bytes)
            segment = OpenSegment(ledger_id, self.log.high_watermark, index=index, now_s=now_s)
            self.segment = segment
            if self.state is PartitionStateName.SERVING:
                actions = [SendSnapshot(self._snapshots.payload(segment, now_ms))]
                actions += self._sends(now_ms, now_s)
        return [*actions, *self._rolls.answered(self.log.high_watermark)]

    def list_changed(self, log_start: int, *, decommissioned: bool = False) -> list[Action]:
        """A new list was published; readers below its start must look again."""
        self._intake.decommissioned = decommissioned
        if log_start <= self.log.log_start:
            return []
        self.log.log_start = log_start
        return [WAKE_READERS]

    def work_failed(self, error: OctavoError) -> list[Action]:
        """A recovery or a list write failed: try again, or give up when it can never succeed."""
        if not error.retriable or isinstance(error, NotLeader):
            return self.give_up(error)
        self.retention.failed()
        actions: list[Action] = [
            *self._rolls.answered(error),
            *self.trims.answered(error),
            *self.changes.answered(error),
        ]
        if isinstance(error, NotEnoughBookies | NotEnoughReplicas):
            # Queued batches are in no ledger: that may be said (A6, A8).
            self._intake.no_ledger = True
            actions += self._intake.refused(self.log.drop_queued(), NotEnoughReplicas(error.cause))
        return [*actions, Pause()]

    # --- administration -----------------------------------------------------------------------

    def roll(self, *, renew: bool = False) -> list[Action]:
        """Close the open segment, if it holds batches; raises as `check_serving`.

        `renew`: the next ledger is opened at once, also of a partition that has none.
        """
        self.check_serving()
        self._rolls.ask()
        self.retention.wants_ledger = self.retention.wants_ledger or renew
        return [PROCEED]

    def next_deadline_s(self) -> float | None:
        """When the oldest pending batch has waited as long as a producer may be kept waiting."""
        oldest_s = self.log.oldest_queued_at_s
        return oldest_s + self._limits.bounds.produce_timeout_s if oldest_s is not None else None

    def tick(
        self, now_ms: int, now_s: float, *, writer_wants: bool, has_trash: bool
    ) -> list[Action]:
        """Once a second: late answers (A8), age rolls, trash, expiry of producers (I10)."""
        if self.state is not PartitionStateName.SERVING:
            return []
        actions: list[Action] = []
        shortage = self._intake.shortage(now_s)
        if shortage is not None:  # what is queued is in no ledger: that may be said (A8)
            actions += self._intake.refused(self.log.drop_queued(), shortage)
        deadline_s = self.next_deadline_s()
        if deadline_s is not None and deadline_s < now_s:
            # The batch stays pending; a retry attaches to it.
            late = RequestTimedOut(f"{self._name}: bookies did not answer in time")
            overdue = self.log.late(now_s - self._limits.bounds.produce_timeout_s)
            actions += [Refuse(append, late) for append in overdue]
        segment = self.segment
        due = segment is not None and (
            segment.must_recover
            or self._rolls.reason(segment, now_s, sent=self.log.sent, writer_wants=writer_wants)
            is not None
        )
        if due or self.sealed is not None or has_trash:
            actions.append(PROCEED)
        self._producers.expire(now_ms)
        self.dedup.expire(now_ms)
        return actions

    def validate(self) -> None:
        """Raises InvariantViolation when a rule that holds between any two events is broken."""
        self.log.validate()
        invariant(not self.log.sent or self.segment is not None, "sent batches have a ledger")
        invariant(self.sealed is None or self.segment is None, "one ledger at a time")
        is_refusing = self.state in (PartitionStateName.CLOSING, PartitionStateName.CLOSED)
        invariant((self.gone is not None) == is_refusing, "a refusal says why")
        if self._is_closed:
            invariant(not self.log.pending, "a partition that ended owes no answer")
