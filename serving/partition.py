"""One open partition: load it, append to it, roll it, give it up (ledger §8.2, spec groups §2-§4).

A thin asyncio shell over the pure cores `PartitionLog`, `ProducerStates`, `SparseIndex` and the
list functions. Everything between two awaits is one step on the event loop; batches are admitted
and sent synchronously. A single *driver* task owns every change of ledger: recover and resolve
after a stop (ML-6), roll (ML-5), open the next ledger lazily when a batch waits for one, sweep
the trash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.client.segments.index import SparseIndex
from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.proto.batch import BatchHeader
from octavo.proto.segment_entries import Snapshot, encode_footer, encode_mark, encode_snapshot
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    Fatal,
    InvariantViolation,
    NotEnoughBookies,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    RequestTimedOut,
    Throttled,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.chain import PartitionName, SegmentChain
from octavo.serving.end_proof import EndProof
from octavo.serving.loading import PartitionLoader
from octavo.serving.open_segment import OpenSegment, SnapshotLimits
from octavo.serving.partition_deps import PartitionDeps, PartitionStateName, pause, refusal
from octavo.serving.partition_log import (
    ACKS_NONE,
    Answer,
    Append,
    Appended,
    PartitionLog,
    Reply,
)
from octavo.serving.producers import Kind, ProducerStates
from octavo.serving.read_path import ReadView
from octavo.serving.roll_waiters import RollWaiters
from octavo.serving.segments import RollLimits, RollReason, closed_segments, roll_reason
from octavo.serving.topic_config import TopicSettings
from octavo.serving.validation import check_batch

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
CONGESTED_BYTES = 16 * 1024 * 1024
"""In-flight bytes of one ledger above which a produce stream waits for its budget (W-10, BP-3)."""

_log = get_logger("octavo.serving.partition")


class PartitionShell:
    """The owner's side of one partition.

    Args:
        on_gone: called once when the shell gave the partition up by itself (fenced, topic deleted,
            invariant broken); the caller forgets it.
    """

    def __init__(
        self,
        name: PartitionName,
        settings: TopicSettings,
        deps: PartitionDeps,
        *,
        on_gone: Callable[[PartitionShell, OctavoError], None] | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self._deps = deps
        self._config = deps.config
        self._clock = deps.clock
        self._on_gone = on_gone
        copies = settings.replication_factor
        self._quorum = Quorum(
            max(copies, deps.config.ensemble_size if copies == deps.config.write_quorum else 0),
            copies,
            settings.min_insync_replicas,
        )
        self._limits = RollLimits(
            settings.segment_bytes,
            settings.segment_ms,
            copies,
            age_jitter=deps.entropy.uniform(0, 0.05),
        )
        self._chain = SegmentChain(
            name,
            self._quorum,
            backend=deps.backend,
            catalog=deps.catalog,
            clock=deps.clock,
            allow_degraded=deps.config.allow_degraded_ledgers,
        )
        self._producers: ProducerStates[Append] = ProducerStates(
            expiration_ms=deps.config.producer_expiration_ms,
            max_producers=deps.config.max_producers_per_partition,
        )
        self._log = PartitionLog(owner_epoch=0, log_start=0, end_offset=0)
        self._tail = deps.tail_cache.tail()
        self._backoff = Backoff(deps.entropy, initial_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        self._tasks = TaskOwner(f"partition {name}", on_failure=self._driver_failed)
        self._end_proof = EndProof(
            str(name),
            certain=deps.certain,
            confirm=deps.confirm,
            mark=self._append_mark,
            tasks=self._tasks,
            clock=deps.clock,
        )
        self._driver: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._watchers: set[Callable[[], None]] = set()
        self._roll_waiters = RollWaiters()
        self._snapshot_limits = SnapshotLimits(
            records=deps.config.snapshot_interval_records,
            size_bytes=deps.config.snapshot_interval_bytes,
            interval_ms=deps.config.snapshot_interval_ms,
        )
        self._open: OpenSegment | None = None  # listed, its end not known yet
        self._sealed: Segment | None = None  # its end known, not in the list yet
        self._open_failure: OctavoError | None = None  # why no ledger can be opened right now
        self.state = PartitionStateName.LOADING
        self.gone: OctavoError | None = None
        """Why requests are refused, once CLOSING or CLOSED."""

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load by recovery and claim (A7, ML-4). Raises; then the shell is of no further use."""
        loader = PartitionLoader(self.name, self._deps.backend, self._producers)
        await self._chain.claim(loader.load)
        loaded = loader.result
        for ledger_id, index in loaded.indexes.items():
            self._deps.cold.remember_index(ledger_id, index)
        state = self._chain.state
        self._log = PartitionLog(
            owner_epoch=state.owner_epoch,
            log_start=state.log_start_offset,
            end_offset=loaded.end_offset,
        )
        self._log.last_append_ms = loaded.last_append_ms
        self.state = PartitionStateName.SERVING
        self._driver = self._tasks.spawn(self._drive(), name="driver")

    async def close(self, deadline_s: float) -> None:
        """Unload in good order (O-3): stop accepting, finish what was sent, footer, close, list.

        What is not finished at the deadline is abandoned: fencing protects the data.
        """
        if self.state is PartitionStateName.SERVING:
            self.gone = NotLeader(f"{self.name} is moving to another broker")
            self.state = PartitionStateName.CLOSING
            self.wake_watchers()
            self._closing.set()
            self._wake.set()
            if self._driver is not None:
                await asyncio.wait({self._driver}, timeout=deadline_s)
        await self._end(self.gone or NotLeader(f"{self.name} is not open here"))

    async def abandon(self, reason: OctavoError) -> None:
        """Stop at once without touching ledger or list: somebody else owns the partition now."""
        await self._end(reason)

    async def _end(self, reason: OctavoError) -> None:
        self._stop_serving(reason)
        await self._tasks.close()
        opened, self._open = self._open, None
        if opened is not None:  # not closed in good order: whoever opens next recovers it
            opened.writer.abandon("its owner gave the partition up")
        self._chain.release_unlisted()

    def _stop_serving(self, reason: OctavoError) -> None:
        if self.state is PartitionStateName.CLOSED:
            return
        self.state = PartitionStateName.CLOSED
        self.gone = reason
        # A8: the fate of sent batches is unknown here; every reason used is retriable or says why.
        self._answer_dropped(self._log.drop_all(), reason)
        self._roll_waiters.answer(reason)
        self._tail.close()
        self.wake_watchers()
        self._watchers.clear()

    def _give_up(self, reason: OctavoError) -> None:
        """Called by the driver when the partition is not ours any more."""
        _log.warning("partition-given-up", partition=str(self.name), cause=reason.cause)
        if not isinstance(reason, NotLeader | UnknownTopic):
            reason = NotLeader(f"{self.name} must be opened again: {reason.cause}")
        self._stop_serving(reason)
        if self._on_gone is not None:
            self._on_gone(self, reason)

    def _driver_failed(self, _task: str, error: BaseException) -> None:
        self._give_up(InvariantViolation(f"{self.name}: {error!r}"))

    # --- produce ------------------------------------------------------------------------------

    def append(self, batch: Buffer, acks: int, reply: Reply) -> None:
        """Validate, de-duplicate, give an offset and send; `reply` is called exactly once.

        Raises instead of replying when the batch is refused at once; nothing was written then.
        """
        self._check_serving()
        now_ms = self._clock.wall_ms()
        header = check_batch(batch, acks, self.settings, now_ms)
        if header.producer_id >= 0 and self._is_known(header, acks, reply):
            return
        now_s = self._clock.monotonic()
        self._check_room(len(batch), now_s)
        append = self._log.admit(batch, header, now_ms, now_s)
        if header.producer_id >= 0:
            append.producer_was_unknown = self._producers.begin(
                append.header, append.header.base_offset, append.header.append_time_ms, append
            )
        if acks == ACKS_NONE:
            reply(Appended(-1, append.header.append_time_ms))
        else:
            append.wait(acks, reply)
        if self._open is not None and self._open.usable:
            self._flush(self._open)
        else:
            self._wake.set()

    def _is_known(self, header: BatchHeader, acks: int, reply: Reply) -> bool:
        """Apply I2; True when the batch is answered or attached, False when it is new."""
        verdict = self._producers.decide(
            header.producer_id, header.producer_epoch, header.base_sequence, header.record_count
        )
        if verdict.kind is Kind.APPEND:
            return False
        if verdict.kind is Kind.ATTACH and verdict.pending is not None:
            verdict.pending.wait(acks, reply)
            return True
        if verdict.kind is Kind.DUPLICATE and verdict.is_vouched:
            reply(Appended(verdict.base_offset, verdict.append_time_ms, True, verdict.is_first))
            return True
        raise refusal(self.name, header, verdict, certain=self._deps.certain())

    def _check_serving(self) -> None:
        if self.state is not PartitionStateName.SERVING:
            raise self.gone or NotLeader(f"{self.name} is still loading")

    def _check_room(self, size: int, now_s: float) -> None:
        log, config = self._log, self._config
        if not log.has_room(size, config.partition_pending_batches, config.partition_pending_bytes):
            raise Throttled(f"{self.name}: {log.pending} batches wait for bookies", throttle_ms=100)
        shortage = self._shortage(now_s)
        if shortage is not None:
            raise shortage

    def _shortage(self, now_s: float) -> NotEnoughReplicas | None:
        """Set while batches wait for a ledger that fewer than Qa live bookies cannot give (A6)."""
        oldest = self._log.oldest_queued_at_s
        stalled = oldest is not None and now_s - oldest > self._config.stall_s
        if not stalled and self._open_failure is None:
            return None
        live = self._deps.live_bookies()
        if live >= self._quorum.ack:
            return None
        return NotEnoughReplicas(
            f"{live} bookies take records, {self._quorum.ack} must acknowledge", live_bookies=live
        )

    def _flush(self, opened: OpenSegment) -> None:
        """Send queued batches in order; stops when the writer does (the driver takes over then)."""
        writer = opened.writer
        if opened.snapshot_due(self._snapshot_limits, self._clock.monotonic()):
            self._add_snapshot(opened)
        while (append := self._log.next_queued()) is not None:
            try:
                entry_id = writer.add(
                    append.payload,
                    partial(self._on_done, opened),
                    partial(self._on_first_copy, opened, append) if append.waiting_one else None,
                )
            except Fatal:
                self._wake.set()
                return
            self._log.sent_as(append, entry_id)
            opened.batch_sent(append)
        if writer.length >= self._limits.segment_bytes:
            self._wake.set()

    def _add_snapshot(self, opened: OpenSegment) -> None:
        """The state as of all entries sent so far (I8): if this entry survives, so do they."""
        pending = list(self._log.sent_batches())
        end_offset = pending[-1].header.next_offset if pending else self._log.high_watermark
        payload = encode_snapshot(
            Snapshot(
                self.name.topic_id,
                self.name.partition,
                end_offset,
                self._log.owner_epoch,
                self._clock.wall_ms(),
                opened.figures_with(pending),
            ),
            self._producers.packed(lambda append: append.entry_id is not None),
        )
        try:
            entry_id = opened.writer.add(payload, partial(self._on_done, opened))
        except Fatal:
            return  # the writer stopped; the next add notices
        opened.snapshot_sent(entry_id, self._clock.monotonic())

    @property
    def congested(self) -> bool:
        """Whether a produce stream should wait before it sends more (W-10, BP-3)."""
        return self._open is not None and self._open.writer.in_flight_bytes > CONGESTED_BYTES

    async def wait_capacity(self, timeout_s: float) -> None:
        """Return when the ledger takes more, it stopped, or the time is over."""
        if self._open is not None:
            await self._open.wait_capacity(timeout_s)

    # --- acknowledgements ---------------------------------------------------------------------

    def _on_done(self, opened: OpenSegment, entry_id: EntryId, error: OctavoError | None) -> None:
        if opened is not self._open or self.state is PartitionStateName.CLOSED:
            return  # resolved from the closed ledger's metadata (ML-6), or answered when it ended
        if error is not None:
            opened.settled.set()
            self._wake.set()
            return
        if not opened.control_durable(entry_id):
            self._became_durable(opened, self._log.durable(entry_id), entry_id)
            self.wake_watchers()
        if not self._log.sent and not opened.controls_pending:
            opened.settled.set()

    def _on_first_copy(self, opened: OpenSegment, append: Append, _entry_id: EntryId) -> None:
        if opened is self._open:
            for ready in self._log.first_copy(append):
                ready.answer_one()

    def _became_durable(self, opened: OpenSegment, append: Append, entry_id: EntryId) -> None:
        header = append.header
        opened.note(append, entry_id)
        self._tail.append(header.base_offset, header.next_offset, append.payload)
        if header.producer_id >= 0:
            self._producers.confirm(header.producer_id, append)
        append.answer(append.appended())

    def _answer_dropped(self, dropped_newest_first: list[Append], answer: Answer) -> None:
        for append in dropped_newest_first:
            if append.header.producer_id >= 0:
                self._producers.fail(append.header.producer_id, append)
        for append in reversed(dropped_newest_first):  # A4: reply order is append order
            append.answer(answer)

    # --- the driver ---------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
                self._backoff.reset()
            except OctavoError as error:
                if not await self._failed_step(error):
                    return
            if self._closing.is_set():
                if self._open is None and self._sealed is None:
                    return
                self._wake.set()  # a list write that was settled late opened a ledger: close it too

    async def _step(self) -> None:
        opened = self._open
        if opened is not None:
            if opened.writer.stopped is not None or opened.must_recover:
                await self._recover(opened)
            else:
                reason = self._roll_reason(opened)
                if reason is not None:
                    await self._seal(opened, reason)
        if self._open is None and self._log.queued and not self._closing.is_set():
            await self._open_next()
        if self._sealed is not None:
            await self._publish(open_new=False)
        self._roll_waiters.answer(self._log.high_watermark)
        if not self._closing.is_set():
            await self._chain.sweep_trash(self._config.trash_delay_ms)

    async def _failed_step(self, error: OctavoError) -> bool:
        """React to a failed step; False ends the driver."""
        if not error.retriable or isinstance(error, NotLeader):
            self._give_up(error)
            return False
        _log.info("partition-step-failed", partition=str(self.name), cause=str(error))
        self._roll_waiters.answer(error)
        if isinstance(error, NotEnoughBookies | NotEnoughReplicas):
            # Queued batches are in no ledger: that may be said (A6, A8).
            self._open_failure = error
            self._answer_dropped(self._log.drop_queued(), NotEnoughReplicas(error.cause))
        # While closing the full pause is kept: the deadline of `close` decides.
        cut_short = None if self._closing.is_set() else self._closing
        await pause(self._clock, self._backoff.next_s(), cut_short)
        self._wake.set()
        return True

    def _roll_reason(self, opened: OpenSegment) -> RollReason | None:
        if self._closing.is_set():
            return RollReason.UNLOAD
        has_batches = opened.has_batches() or self._log.sent > 0
        if self._roll_waiters and has_batches:
            return RollReason.ASKED
        writer_wants = opened.writer.wants_roll
        if not self._deps.metadata_connected() or not (has_batches or writer_wants):
            return None  # without metadata a roll could not finish; the open ledger goes on
        return roll_reason(
            self._limits,
            size_bytes=opened.writer.length,
            age_ms=(self._clock.monotonic() - opened.opened_at_s) * 1000,
            writer_wants=writer_wants,
            live_bookies=self._deps.live_bookies(),
        )

    async def _seal(self, opened: OpenSegment, reason: RollReason) -> None:
        """End the open ledger in good order: drain, footer, close (ML-5)."""
        opened.accepting = False  # from here batches queue, bounded
        await self._settle(opened)
        if reason is RollReason.UNLOAD and opened.writer.stopped is None:
            self._add_snapshot(opened)  # I8: at clean handover
            await self._settle(opened)
        if opened.writer.stopped is None:
            _log.info("segment-rolls", partition=str(self.name), reason=reason.value)
            opened.must_recover = True  # until the close is known: W-9
            try:
                footer = opened.footer(self._log.high_watermark)
                await opened.writer.append(encode_footer(footer))
                closed = await opened.writer.close()
            except OctavoError as error:
                _log.info("close-unknown", partition=str(self.name), cause=str(error))
            else:
                self._settle_closed(opened, closed)
                return
        await self._recover(opened)

    async def _settle(self, opened: OpenSegment) -> None:
        """Wait until everything sent is acknowledged or the writer stopped."""
        while (self._log.sent or opened.controls_pending) and opened.writer.stopped is None:
            opened.settled.clear()
            await opened.settled.wait()

    async def _recover(self, opened: OpenSegment) -> None:
        """The writer stopped: close the ledger by recovery and learn what is in it (ML-6)."""
        opened.accepting = False
        closed = await self._deps.backend.recover_ledger(opened.writer.ledger_id)
        self._settle_closed(opened, closed)

    def _settle_closed(self, opened: OpenSegment, closed: LedgerMetadata) -> None:
        last_entry = closed.last_entry if closed.last_entry is not None else -1
        for append in self._log.resolve(last_entry):
            self._became_durable(opened, append, append.entry_id or EntryId(0))
        self._sealed = opened.sealed(closed, self._log.high_watermark)
        self._deps.cold.remember_index(closed.ledger_id, opened.index)
        self._open = None
        self.wake_watchers()

    async def _open_next(self) -> None:
        """List a new ledger, write its snapshot as entry 0, then what is queued (ML-4, I8)."""
        opened = await self._publish(open_new=True)
        if opened is not None:
            self._open_failure = None
            self._add_snapshot(opened)
            self._flush(opened)

    async def _publish(self, *, open_new: bool) -> OpenSegment | None:
        writer = await self._chain.publish(
            sealed=self._sealed, open_new=open_new, base_offset=self._log.high_watermark
        )
        self._sealed = None
        if writer is None:
            return None
        opened = OpenSegment(
            writer,
            self._log.high_watermark,
            index=SparseIndex(self._config.index_interval_bytes),
            now_s=self._clock.monotonic(),
        )
        self._open = opened
        writer.on_stopped(partial(self._on_stopped, opened))
        return opened

    def _on_stopped(self, opened: OpenSegment, _error: OctavoError) -> None:
        opened.settled.set()
        self._wake.set()

    # --- reading and administration -----------------------------------------------------------

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever more can be read or the partition goes away (F1)."""
        self._watchers.add(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`."""
        self._watchers.discard(callback)

    def wake_watchers(self) -> None:
        """Make everybody who waits look again."""
        for callback in tuple(self._watchers):
            callback()

    def view(self) -> ReadView:
        """For one read; raises NotLeader unless the partition is served here."""
        self._check_serving()
        return ReadView(
            closed_segments(self._chain.state, self._sealed),
            self._open.source() if self._open is not None else None,
            self._log.log_start,
            self._log.high_watermark,
            self._tail,
            self._deps.cold,
        )

    async def prove_end(self) -> None:
        """Return if the end of the log, as it is now, is the end; raises NotLeader (design §12)."""
        self._check_serving()
        await self._end_proof.prove()
        self._check_serving()

    async def _append_mark(self) -> None:
        if self._open is None or not self._open.usable:
            raise NotLeader("no ledger is open that could prove it")
        await self._open.writer.append(encode_mark())

    @property
    def owner_epoch(self) -> int:
        """The epoch under which this shell owns the partition."""
        return self._log.owner_epoch

    @property
    def pending(self) -> int:
        """Batches that have an offset and are not durable."""
        return self._log.pending

    @property
    def high_watermark(self) -> int:
        """A3: nobody reads at or above it."""
        return self._log.high_watermark

    @property
    def log_start(self) -> int:
        """The lowest retained offset."""
        return self._log.log_start

    @property
    def degraded(self) -> bool:
        """Whether the open ledger has fewer copies than the topic asks for (A6)."""
        return self._open is not None and self._open.writer.metadata.degraded

    def described(self) -> list[Segment]:
        """Closed segments, and the open one with its running figures and no end offset."""
        self._check_serving()
        closed = list(closed_segments(self._chain.state, self._sealed))
        return [*closed, self._open.described()] if self._open is not None else closed

    async def still_ours(self) -> bool:
        """Whether the list still carries our epoch (after a lost session, O-5)."""
        return await self._chain.still_ours()

    async def roll(self) -> int:
        """Close the open segment, if it holds batches; returns the high watermark."""
        self._check_serving()
        self._wake.set()
        return await self._roll_waiters.add()

    def tick(self) -> None:
        """Once a second: late answers (A8), age rolls, trash, expiry of producers (I10)."""
        if self.state is not PartitionStateName.SERVING:
            return
        now_s = self._clock.monotonic()
        shortage = self._shortage(now_s)
        if shortage is not None:  # what is queued is in no ledger: that may be said (A8)
            self._answer_dropped(self._log.drop_queued(), shortage)
        late = self._log.late(now_s - self._config.produce_timeout_s)
        for append in late:  # the batch stays pending; a retry attaches to it
            append.answer(RequestTimedOut(f"{self.name}: bookies did not answer in time"))
        opened = self._open
        due = opened is not None and (
            opened.writer.stopped is not None or self._roll_reason(opened) is not None
        )
        if due or self._sealed is not None or self._chain.state.trash:
            self._wake.set()
        self._producers.expire(self._clock.wall_ms())
