"""The producer's engine: delivers on one loop what the intake took from any thread.

Drives the pure sender core with real time, connections and tasks. Sync and async producers are thin
layers over it. Whatever ends here ends as somebody's error: a task or callback of the engine that
fails ends the producer, and with it every future that is open.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.producing.accumulator import Batch, Slot
from octavo.client.messaging.producing.delivery import (
    Action,
    Complete,
    Fail,
    FindOwner,
    Partition,
    RequestIdentity,
    Send,
    SenderSettings,
    Stop,
)
from octavo.client.messaging.producing.early import EarlySends
from octavo.client.messaging.producing.futures import Completion
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.lost_records import UNCLOSED
from octavo.client.messaging.producing.produce_link import ProduceLink
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.client.messaging.producing.stall_watch import StallWatch
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import Codec
from octavo.proto.errors import from_wire
from octavo.runtime.errors import (
    DeliveryFailed,
    FlushTimeout,
    InconsistentTopicId,
    InvalidRecord,
    OctavoError,
    ProducerClosed,
)
from octavo.runtime.tasks import TaskOwner

_log = ClientLog("octavo.client")

TICK_S = 0.02
"""How often timeouts and back-offs are looked at while anything is unresolved."""
ACKS_0_CLOSE_S = 5.0
"""How long closing waits until batches that get no reply were read by the broker."""
FAILURES_KEPT_MAX = 1_000
"""Failed batches remembered for close(); above it only their records are counted."""


class ProducerEngine(Intake):
    """Everything behind one producer. Made on its loop."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        core = SenderCore(
            SenderSettings(
                idempotent=config.idempotent,
                acks=config.acks_number,
                max_in_flight=config.max_in_flight_requests_per_connection,
                delivery_timeout_s=config.delivery_timeout_ms / 1000,
                request_timeout_s=config.request_timeout_ms / 1000,
                backoff_initial_s=config.retry_backoff_ms / 1000,
                backoff_max_s=config.retry_backoff_max_ms / 1000,
                unknown_topic_s=config.max_block_ms / 1000,
            ),
            cluster.entropy,
        )
        super().__init__(cluster, config, core)
        self.acks0_lost = 0
        """Streams lost by a producer that awaits no replies (A4)."""
        self.early = EarlySends(self)
        self._decided: deque[Complete | Fail] = deque()
        """Outcomes that the core decided and nobody was told yet."""
        self._failed: list[Completion] = []
        self._failed_uncounted = 0
        self._codec = Codec.LZ4 if config.compression_type == "lz4" else Codec.NONE
        self._tasks = TaskOwner("octavo-producer", self._broken)
        self._links: dict[str, ProduceLink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._last_tick_s = 0.0
        self._search_errors: dict[tuple[str, int], OctavoError] = {}
        """Why the partitions that search their owner have none; at most one for each of them."""
        self._identity_error: OctavoError | None = None
        """Why there is no producer id."""
        self._stalls = StallWatch()
        self._closing: asyncio.Future[None] | None = None
        self._releasing = False
        self.pid = os.getpid()
        UNCLOSED.add(self)
        self._unwatch = cluster.watch(self._view_changed)

    def _view_changed(self, view: TopicView) -> None:
        if view.name in self.topics:
            self.guarded(partial(self.adopt, view))

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Do what the core asked for outside of its own events."""
        self._act(actions, self.cluster.clock.monotonic())

    # --- delivering, loop only ------------------------------------------------------------------

    def guarded(self, step: Callable[[], None]) -> None:
        """Run one step of the loop's side; if it fails, the producer ends, and says so."""
        try:
            step()
        except BaseException as error:
            self._broken("delivery", error)
            if not isinstance(error, Exception):
                raise

    def _broken(self, name: str, error: BaseException) -> None:
        """A promise of this engine is broken: nobody may wait for it any longer."""
        failure = DeliveryFailed(
            f"the producer ended by a fault of its own in {name}: {error!r}",
            hint="this is a bug; the records may or may not be stored; create a new producer",
        )
        failure.__cause__ = error
        self._end(failure)
        _log.error("a producer ends: %r", error, exc_info=error)

    def _end(self, error: OctavoError) -> None:
        """Everything without an outcome fails, nothing more is taken. Repeatable."""
        self.early.abort(error)
        actions = [*self.core.abort(error), Stop(error)]
        self._act(actions, self.cluster.clock.monotonic())

    def _look(self) -> None:
        self.guarded(self._drain)

    def _drain(self) -> None:
        """Give the core what may go, then look at the clock."""
        if self._aside:
            self._place_aside()
        now_s = self.cluster.clock.monotonic()
        accumulator = self.accumulator
        with accumulator.lock:
            self._wake_pending = False
            accumulator.wake_wanted = False
            linger_s = accumulator.mark_due(now_s)
            accumulator.timer_armed = linger_s is not None
            ready = list(accumulator.ready)
        if self.core.fatal is not None and self.closed is not None:
            # Appended by a section that was interrupted while the producer ended.
            with accumulator.lock:
                late = accumulator.take_all()
            self._act([Fail(batch, self.closed) for batch in late], now_s)
            return
        # Decided once for each broker: what is not held goes together, in one message.
        held: dict[str, float | None] = {}
        for slot in ready:
            while self.core.room(slot.delivery):
                held_s = self._held_until(slot, held, now_s)
                if held_s is not None:
                    linger_s = held_s if linger_s is None else min(linger_s, held_s)
                    break
                with accumulator.lock:
                    batch = accumulator.take(slot)
                if batch is None:
                    break
                self._act(self.core.add(slot.delivery, batch, now_s), now_s)
        self._arm(linger_s, now_s)

    def _held_until(self, slot: Slot, held: dict[str, float | None], now_s: float) -> float | None:
        """Until when a small batch waits for the broker's answers to others; None: it may go."""
        batch, owner = slot.open, slot.delivery.owner
        if slot.closed or batch is None or batch.size_bytes >= slot.full_bytes:
            return None
        if owner not in held:
            link = self._links.get(owner)
            held[owner] = None if link is None else link.recent.held_until(now_s)
        return held[owner]

    def _arm(self, linger_s: float | None, now_s: float) -> None:
        """One timer: the next linger deadline, or the next tick while anything is unresolved."""
        at_s = linger_s
        if (self.accumulator.pending or self._aside) and (at_s is None or at_s > now_s + TICK_S):
            at_s = now_s + TICK_S
        if at_s is None or (self._timer is not None and self._timer_at_s <= at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self.loop.call_later(max(at_s - now_s, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.guarded(self._tick)

    def _tick(self) -> None:
        now_s = self.cluster.clock.monotonic()
        if now_s - self._last_tick_s >= TICK_S:
            self._last_tick_s = now_s
            limit_s = self.config.delivery_timeout_ms / 1000
            with self.accumulator.lock:
                expired = self.accumulator.take_expired(now_s - limit_s)
            self._act([Fail(batch, self._never_sent(batch, limit_s)) for batch in expired], now_s)
            self._act(self.core.tick(now_s), now_s)
            waiting = len(self.accumulator.pending)
            if warning := self._stalls.look(self.core.oldest(), waiting, now_s):
                _log.warning("%s", warning)
        self._drain()

    def _act(self, actions: Sequence[Action], now_s: float) -> None:
        """Carry out what the core asked for."""
        todo, decided = deque(actions), self._decided
        while todo:
            action = todo.popleft()
            if isinstance(action, Send):
                try:
                    self._transmit(action, now_s)
                except OctavoError as error:  # not encodable: the batch fails, nothing was sent
                    todo.extend(self.core.refused(action.correlation, error, now_s))
            elif isinstance(action, Complete | Fail):
                decided.append(action)
            elif isinstance(action, FindOwner):
                self.spawn(self._find_owner(action.partition, action.avoid), "find-owner")
            elif isinstance(action, RequestIdentity):
                self.spawn(self._get_identity(), "identity")
            else:
                told = {batch_of(outcome) for outcome in decided}
                left = [batch for batch in self._stopped(action) if batch not in told]
                decided += [Fail(batch, action.error) for batch in left]
        if decided:
            self.accumulator.finished([batch_of(outcome) for outcome in decided])
        while decided:
            outcome = decided[0]
            del decided[0]  # nothing is called before `_tell`; callbacks may come here again
            try:
                self._tell(outcome)
            except BaseException:
                decided.appendleft(outcome)
                raise

    def _tell(self, outcome: Complete | Fail) -> None:
        """Resolve one batch; repeatable, as what an interruption left is told once more."""
        batch = batch_of(outcome)
        if isinstance(outcome, Complete):
            batch.succeed(outcome.base_offset, duplicate=outcome.duplicate)
        else:
            batch.fail(outcome.error)
            self.note_failure(batch)

    def spawn(self, coro: Coroutine[object, object, None], name: str) -> asyncio.Task[object]:
        """Run a task that ends with the engine."""
        task: asyncio.Task[object] = self._tasks.spawn(coro, name=name)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[object]) -> None:
        """A task that somebody else cancelled (`asyncio.run` at its end) delivers no more."""
        if not task.cancelled() or self._releasing or self.core.fatal is not None:
            return
        records = self.unacknowledged()
        error = DeliveryFailed(
            "the event loop ended, or its tasks were cancelled, before the client was closed; the "
            "record may or may not be stored",
            hint="close the client, or use it in `async with`",
        )
        self._end(error)
        if records:  # at exit they count as lost, unless somebody looked at the futures
            _log.critical("%d records may be lost: %s", records, error.cause)

    def note_failure(self, batch: Completion) -> None:
        """Remember failed batches until somebody looked at them, so that close() can tell (U2)."""
        if batch.observed or (self._failed and self._failed[-1] is batch):
            return  # looked at, or told again after an interruption
        if len(self._failed) >= FAILURES_KEPT_MAX:
            self._failed = [item for item in self._failed if not item.observed]
        if len(self._failed) < FAILURES_KEPT_MAX:
            self._failed.append(batch)
        else:
            self._failed_uncounted += batch.records

    def _transmit(self, send: Send, now_s: float) -> None:
        batch = send.batch
        assert isinstance(batch, Batch)
        producer = (send.producer_id, send.producer_epoch, send.base_sequence)
        try:
            payload = batch.encoded(self._codec, producer)
        except Exception as error:
            raise InvalidRecord(f"the batch cannot be encoded: {error}") from error
        link = self._links.get(send.owner)
        if link is None:
            link = self._links[send.owner] = ProduceLink(
                self.cluster,
                send.owner,
                self.core.settings.acks,
                on_acks=self._on_acks,
                on_lost=self._on_lost,
                on_written=self._on_written,
            )
            self.spawn(link.run(), f"produce-{send.owner}")
        link.push(send, payload, now_s)

    def _stopped(self, action: Stop) -> list[Batch]:
        with self.accumulator.lock:
            self.closed = self.closed or action.error
            self.accumulator.take_all()
            left = self.accumulator.waiting()  # also what an interruption took from its queue
        self.accumulator.finished(())  # wakes whoever waits for memory
        self.end_aside(action.error)
        return left

    def _on_acks(self, acks: Sequence[pb.ProduceAck]) -> None:
        now_s = self.cluster.clock.monotonic()
        actions: list[Action] = []
        for ack in acks:
            if ack.HasField("error"):
                error = from_wire(ack.error)
                if isinstance(error, InconsistentTopicId):
                    self.cluster.life_is_over(*self.core.life_of(ack.correlation))
                actions += self.core.refused(ack.correlation, error, now_s)
            else:
                actions += self.core.acknowledged(
                    ack.correlation,
                    ack.base_offset,
                    ack.duplicate,
                    now_s,
                    proves_earlier=not ack.producer_was_unknown,
                )
        self._act(actions, now_s)
        self._drain()

    def _on_written(self, correlations: Sequence[int]) -> None:
        """acks=0: the connection took the batches over, they are no longer the producer's (A4)."""
        now_s = self.cluster.clock.monotonic()
        self._act(self.core.written(correlations), now_s)
        self._drain()

    def _on_lost(self, address: str, error: OctavoError) -> None:
        now_s = self.cluster.clock.monotonic()
        if self.core.settings.acks == 0:
            self.acks0_lost += 1
        _log.warning(
            "connection to broker %s lost, unacknowledged batches are retried: %s",
            address,
            error.cause,
        )
        self._act(self.core.connection_lost(address, error, now_s), now_s)
        self._drain()

    async def _find_owner(self, partition: Partition, avoid: str) -> None:
        """Answer FindOwner, however long it takes; batches time out on their own meanwhile."""
        backoff = self.cluster.backoff()
        while self.core.fatal is None and not partition.ended:
            try:
                owner = await self.cluster.find_owner(
                    partition.topic, partition.partition, avoid=avoid
                )
            except OctavoError as error:
                _log.info("no owner of %s yet: %s", partition, error.cause)
                self._search_errors[(partition.topic, partition.partition)] = error
                await self.cluster.pause_search(error, backoff)
                continue
            self._search_errors.pop((partition.topic, partition.partition), None)
            now_s = self.cluster.clock.monotonic()
            self._act(self.core.owner_found(partition, owner, now_s), now_s)
            self._drain()
            return

    async def _get_identity(self) -> None:
        """Answer RequestIdentity; retried until a broker grants one."""
        request = pb.InitProducerIdRequest()
        backoff = self.cluster.backoff()
        while self.core.fatal is None:
            try:
                reply = await self.cluster.ask_any(
                    lambda stub, limit: stub.InitProducerId(request, timeout=limit),
                    self.cluster.request_timeout_s,
                )
                if reply.HasField("error"):
                    raise from_wire(reply.error)
            except OctavoError as error:
                _log.info("no producer id yet: %s", error.cause)
                self._identity_error = error
                await self.cluster.clock.sleep(backoff.next_s())
                continue
            self._identity_error = None
            now_s = self.cluster.clock.monotonic()
            self._act(
                self.core.identity_granted(reply.producer_id, reply.producer_epoch, now_s), now_s
            )
            self._drain()
            return

    def _never_sent(self, batch: Batch, limit_s: float) -> DeliveryFailed:
        """Says besides what its partition, or the whole producer, waited for."""
        key = (batch.topic, batch.partition)
        error = self._search_errors.get(key) or self._identity_error
        return DeliveryFailed(
            f"{batch.count} records to {batch.topic}-{batch.partition} waited {limit_s:g} s "
            "(delivery_timeout_ms) and were never sent"
            + (f"; last error: {error}" if error is not None else ""),
            hint="check that the partition's broker can be reached",
        )

    # --- end ------------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until every record appended before the call is acknowledged or failed.

        Raises FlushTimeout with the number of records still open. Failures are reported by the
        futures of the records.
        """
        deadline_s = None if timeout_s is None else self.cluster.clock.monotonic() + timeout_s
        await self.early.all_drained(timeout_s)
        self.expedite_all()
        self._look()
        with self.accumulator.lock:
            waiting: list[Completion] = [*self.accumulator.waiting()]
        waiting += list(self._aside)
        for batch in waiting:
            left_s = None if deadline_s is None else deadline_s - self.cluster.clock.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    await batch.wait_async()
            except TimeoutError:
                remaining = sum(item.records for item in waiting if not item.done)
                raise FlushTimeout(
                    f"{remaining} records were not acknowledged within {timeout_s:g} s",
                    hint="they are still being sent; flush again or close",
                    remaining=remaining,
                ) from None

    def untold(self) -> int:
        """Records that are open, or failed and nobody looked at their futures."""
        failed = sum(batch.records for batch in self._failed if not batch.observed)
        return self.unacknowledged() + failed + self._failed_uncounted

    def unacknowledged(self) -> int:
        """Records that were accepted and neither acknowledged nor failed; any thread."""
        return self.waiting_records() + self.early.waiting_records()

    async def close(self, timeout_s: float | None) -> None:
        """Wait for what was accepted, then accept nothing more and release everything.

        What is not acknowledged after `timeout_s` fails and the call raises FlushTimeout with the
        count; failures that no future was asked about are raised too (U2: no silent loss).
        A cancelled close releases everything at once; a second close waits for the first.
        """
        if self._closing is None:
            self._closing = self.loop.create_future()
        elif not self._closing.done():
            await asyncio.wait((self._closing,), timeout=timeout_s)
            return
        else:
            return
        try:
            await self.flush(timeout_s)
        except FlushTimeout as late:
            late.hint = "they may or may not be stored: the producer is closed"
            raise
        finally:
            with self.accumulator.lock:
                self.closed = self.closed or ProducerClosed("closed by the application")
            try:
                await self._release()
            finally:
                self._closing.set_result(None)
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """Raise DeliveryFailed when records failed and no future of theirs was looked at."""
        unseen = [batch for batch in self._failed if not batch.observed]
        count = sum(batch.records for batch in unseen) + self._failed_uncounted
        self._failed, self._failed_uncounted = [], 0
        if unseen:
            first = unseen[0].error
            raise DeliveryFailed(
                f"{count} records were not acknowledged and nobody looked at their futures; "
                f"first error: {first}",
                hint="look at the futures of send_nowait, or use send",
                records=count,
            ) from first

    async def _release(self) -> None:
        error = DeliveryFailed(
            "the producer was closed before the record was acknowledged; it may or may not be "
            "stored"
        )
        self._releasing = True
        UNCLOSED.discard(self)
        try:
            if self.core.settings.acks == 0:
                for link in self._links.values():
                    await link.written_out(ACKS_0_CLOSE_S)
        finally:
            self._unwatch()
            self._end(error)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await self._tasks.close()


def batch_of(outcome: Complete | Fail) -> Batch:
    """The batch of an outcome, as the engine knows it."""
    batch = outcome.batch
    assert isinstance(batch, Batch)
    return batch
