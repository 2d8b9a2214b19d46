"""Produce requests become batches with offsets, or answers (spec groups §2, §3). Pure.

The only place that decides whether a batch is new, already on its way, already stored, or turned
away; nothing that is turned away here was written.
"""

from __future__ import annotations

from octavo.proto.batch import BatchHeader
from octavo.proto.dedup_ids import is_marked, read_digest
from octavo.proto.kept_producers import KEPT_MAX
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    MIN_INSYNC_DETAIL,
    DedupWindowFull,
    InvalidProducerEpoch,
    InvalidRecord,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OutOfOrderSequence,
    PartitionDecommissioned,
    Throttled,
)
from octavo.runtime.errors_of_writers import SinkLimitReached
from octavo.serving.partition.actions import Refuse, Tell
from octavo.serving.partition.backlog import BacklogGate
from octavo.serving.partition.dedup import DedupWindow, Seen
from octavo.serving.partition.dedup import Verdict as DedupVerdict
from octavo.serving.partition.limits import Bounds, Limits
from octavo.serving.partition.log import (
    ACKS_NONE,
    UNCONDITIONAL,
    Answer,
    Append,
    Appended,
    Conditions,
    PartitionLog,
    Reply,
)
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.producers import Kind, ProducerStates, Verdict
from octavo.serving.partition.validation import check_batch
from octavo.serving.partition.world import World
from octavo.serving.partition.writer_seat import WriterSeat
from octavo.serving.topic_config import TopicSettings

THROTTLE_MS = 100
FULL_PAUSE_MIN_MS, FULL_PAUSE_MAX_MS = 100, 1_000
"""How long a record waits whose id has no room, before it is sent again."""


class Intake:
    """The entrance of one partition.

    Args:
        ack_quorum: bookies that must acknowledge, Qa.
    """

    def __init__(
        self,
        name: PartitionName,
        settings: TopicSettings,
        *,
        bounds: Bounds,
        ack_quorum: int,
        log: PartitionLog,
        producers: ProducerStates[Append],
        world: World,
        dedup: DedupWindow[Append],
        backlog: BacklogGate,
        seat: WriterSeat,
    ) -> None:
        self._name = name
        self._dedup = dedup
        self._seat = seat
        self._backlog = backlog
        self._settings = settings
        self._bounds = bounds
        self._ack_quorum = ack_quorum
        self._log = log
        self._producers = producers
        self._world = world
        self.decommissioned = False
        """The list says that nothing new is taken, whoever owns the partition (F027)."""
        self.no_ledger = False
        """The last attempt to open a ledger found too few bookies."""

    def adopt(self, settings: TopicSettings, limits: Limits) -> None:
        """The topic was altered: what comes next is judged by these."""
        self._settings, self._bounds = settings, limits.bounds
        self._ack_quorum = limits.ack_quorum
        self._dedup.rule = settings.dedup
        self._seat.required = settings.has_writer

    def take(
        self,
        batch: Buffer,
        acks: int,
        reply: Reply,
        now_ms: int,
        now_s: float,
        *,
        conditions: Conditions = UNCONDITIONAL,
    ) -> Append | Tell | None:
        """A new batch, queued with its offset; or its answer; or None: it waits with its twin.

        Raises the refusal of a batch that changes nothing: what `check_batch` raises,
        OutOfOrderSequence, InvalidProducerEpoch, Throttled, NotEnoughReplicas, NotLeader,
        PartitionDecommissioned, BacklogQuotaExceeded, DedupWindowFull, ProducerFenced,
        ExclusiveWriterRequired, SinkLimitReached.
        """
        header = check_batch(batch, acks, self._settings, now_ms)
        is_idempotent = header.producer_id >= 0
        if is_idempotent:
            verdict = self._producers.decide(
                header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
            )
            if verdict.kind is not Kind.APPEND:
                return self._known(header, verdict, acks, reply)
        digest = b""
        if is_marked(header):
            digest, seen = self._looked_up(batch, now_ms)
            if seen.seen is not Seen.NEW:
                return _again(seen, acks, reply)
        if self.decommissioned:
            raise self._is_decommissioned()
        self._seat.check(conditions.writer_epoch)  # what is stored stays stored
        if conditions.min_insync_replicas > self._ack_quorum:
            raise self._asks_for_less(conditions.min_insync_replicas)
        if self._backlog.is_shut and acks != ACKS_NONE:  # who is told nothing: `streams`
            raise self._over_backlog()
        if self._log.pending or self.no_ledger:
            self._check_room(len(batch), now_s)
        append = self._log.admit(
            batch, header, now_ms, now_s, append_time=self._settings.append_time
        )
        if is_idempotent:
            append.producer_was_unknown = self._producers.begin(
                append.header, append.header.base_offset, append.header.append_time_ms, append
            )
        if digest:
            begun = append.header
            self._dedup.begin(digest, begun.base_offset, begun.append_time_ms, append)
            append.dedup = digest
        if acks != ACKS_NONE:
            append.wait(acks, reply)
        return append

    def _looked_up(self, batch: Buffer, now_ms: int) -> tuple[bytes, DedupVerdict[Append]]:
        """X14. A topic that remembers no ids cannot keep the promise that was asked for; an id is
        never forgotten early, so one too many waits."""
        if not self._settings.dedup.window_ms:
            raise InvalidRecord(
                f"{self._name}: the record has a dedup_id, and its topic remembers none",
                hint="set dedup.window.ms of the topic, or send it without dedup_id",
            )
        digest = read_digest(batch)
        seen = self._dedup.decide(digest, now_ms)
        if seen.seen is Seen.FULL:
            limit = self._settings.dedup.ids_max
            raise DedupWindowFull(
                f"{self._name}: {limit} ids count, all that dedup.window.ids allows; room comes in "
                f"{seen.room_in_ms} ms",
                throttle_ms=min(max(seen.room_in_ms, FULL_PAUSE_MIN_MS), FULL_PAUSE_MAX_MS),
            )
        return digest, seen

    def _known(
        self, header: BatchHeader, verdict: Verdict[Append], acks: int, reply: Reply
    ) -> Tell | None:
        """Apply the other rows of I2; raises the refusal."""
        if verdict.kind is Kind.ATTACH and verdict.pending is not None:
            verdict.pending.wait(acks, reply)
            return None
        if verdict.kind is Kind.DUPLICATE and verdict.is_vouched:
            stored = Appended(verdict.base_offset, verdict.append_time_ms, True, verdict.is_first)
            return Tell(reply, stored)
        if self.decommissioned:  # after one that was refused, or of a producer long forgotten
            raise self._is_decommissioned()
        raise self._refusal(header, verdict)

    def _is_decommissioned(self) -> PartitionDecommissioned:
        """Nobody stores the batch, now or later: a list that says so is never taken back."""
        return PartitionDecommissioned(
            f"{self._name} is decommissioned and takes no new records",
            hint="send them again without naming the partition: they go to another one",
        )

    def _asks_for_less(self, wanted: int) -> NotEnoughReplicas:
        """F032: the send asserts more copies than the topic promises."""
        found = self._ack_quorum
        return NotEnoughReplicas(
            f"{self._name}: min_insync_replicas={wanted} is asserted, the topic's "
            f"min.insync.replicas is {found}; nothing was written",
            hint="raise min.insync.replicas of the topic, or assert less",
            **{MIN_INSYNC_DETAIL: found},
        )

    def _refusal(self, header: BatchHeader, verdict: Verdict[Append]) -> OctavoError:
        """NotLeader unless it is certain that nobody else owns the partition: a successor may
        know of batches that this one follows."""
        name = self._name
        if not self._world.certain():
            return NotLeader(f"{name}: what comes next is not known while the session is in doubt")
        if verdict.kind is Kind.OLD_EPOCH:
            return InvalidProducerEpoch(
                f"{name}: producer {header.producer_id} epoch {header.producer_epoch} "
                f"is older than {verdict.known_epoch}",
                known_epoch=verdict.known_epoch,
            )
        if verdict.kind is Kind.FULL:
            return SinkLimitReached(f"{name}: {KEPT_MAX} sinks have published here, no more can")
        if self._backlog.is_shut:  # what it follows was refused just now
            return self._backlog.refusal()
        return OutOfOrderSequence(
            f"{name}: producer {header.producer_id} sent sequence {header.base_sequence}, "
            f"last known is {verdict.last_sequence}",
            last_sequence=verdict.last_sequence,
        )

    def _over_backlog(self) -> OctavoError:
        """What was measured is that of the owner, who must be known to be this one."""
        if not self._world.certain():
            return NotLeader(f"{self._name}: whose backlog it is is not known at this time")
        return self._backlog.refusal()

    def _check_room(self, size: int, now_s: float) -> None:
        bounds, log = self._bounds, self._log
        if not log.has_room(size, bounds.pending_batches, bounds.pending_bytes):
            raise Throttled(
                f"{self._name}: {log.pending} batches wait for bookies", throttle_ms=THROTTLE_MS
            )
        shortage = self.shortage(now_s)
        if shortage is not None:
            raise shortage

    def shortage(self, now_s: float) -> NotEnoughReplicas | None:
        """Set while batches wait for a ledger that fewer than Qa live bookies cannot give (A6)."""
        oldest_s = self._log.oldest_queued_at_s
        stalled = oldest_s is not None and now_s - oldest_s > self._bounds.stall_s
        if not stalled and not self.no_ledger:
            return None
        live = self._world.live_bookies()
        if live >= self._ack_quorum:
            return None
        return NotEnoughReplicas(
            f"{live} bookies take records, {self._ack_quorum} must acknowledge", live_bookies=live
        )

    def confirm(self, append: Append) -> None:
        """The batch is durable (I3)."""
        if append.header.producer_id >= 0:
            self._producers.confirm(append.header.producer_id, append)
        elif append.dedup:
            self._dedup.confirm(append.dedup)

    def refused(self, dropped_newest_first: list[Append], error: OctavoError) -> list[Refuse]:
        """The batches were not written, or nobody here knows (I3): no trace of them stays."""
        for append in dropped_newest_first:
            if append.header.producer_id >= 0:
                self._producers.fail(append.header.producer_id, append)
            elif append.dedup:
                self._dedup.fail(append.dedup)
        in_order = reversed(dropped_newest_first)  # A4: replies come in append order
        return [Refuse(append, error) for append in in_order]


def _again(seen: DedupVerdict[Append], acks: int, reply: Reply) -> Tell | None:
    """The answer to a record whose id counts already: where the first one is, or will be."""
    if seen.pending is None:
        return Tell(reply, Appended(seen.offset, seen.append_time_ms, duplicate=True))

    def as_duplicate(answer: Answer) -> None:
        reply(answer._replace(duplicate=True) if isinstance(answer, Appended) else answer)

    seen.pending.wait(acks, as_duplicate)
    return None
