"""The producer's delivery: brings what its intake took to the brokers. Loop only.

Drives the pure sender core with real time, connections and tasks. Whatever ends here ends as
somebody's error: a task or callback that fails ends the producer, and with it every future that is
open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView, created_again
from octavo.client.messaging.config import SHARED, ProducerConfig
from octavo.client.messaging.partitioner import StickyChoice
from octavo.client.messaging.producing.accumulator import Accumulator, Slot
from octavo.client.messaging.producing.actions import (
    Action,
    Complete,
    Fail,
    FindOwner,
    RequestIdentity,
    Send,
    Stop,
)
from octavo.client.messaging.producing.batches import Batch
from octavo.client.messaging.producing.early_sends import EarlySends
from octavo.client.messaging.producing.failures import UnseenFailures
from octavo.client.messaging.producing.in_flight import SenderSettings
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.produce_link import ProduceLink
from octavo.client.messaging.producing.routing import TopicState
from octavo.client.messaging.producing.searches import Searches
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.client.messaging.producing.stall_watch import StallWatch
from octavo.client.messaging.producing.traced_intake import TracedIntake
from octavo.client.messaging.producing.writers import WriterClaims
from octavo.client.messaging.tracing import carried_by
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import broker_pb2 as pb
from octavo.proto.compression import CODECS
from octavo.proto.errors import from_wire
from octavo.runtime.errors import (
    DeliveryFailed,
    InconsistentTopicId,
    InvalidRecord,
    OctavoError,
    PartitionDecommissioned,
)
from octavo.runtime.tasks import TaskOwner

_log = ClientLog("octavo.client")

TICK_S = 0.02
"""How often timeouts and back-offs are looked at while anything is unresolved."""
ACKS_0_CLOSE_S = 5.0
"""How long closing waits until batches that get no reply were read by the broker."""


class Delivery:
    """The loop's half of a producer. It makes the intake, which rings `_look` and knows no more."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self.config = config
        self.cluster = cluster
        self.core = SenderCore(settings_of(config), cluster.entropy)
        self.failures = UnseenFailures()
        make = Intake if cluster.tracing is None else partial(TracedIntake, cluster.tracing)
        self.intake: Intake = make(
            config, cluster.clock, cluster.topics.max_record_bytes, self.look, self.failures.note
        )
        self.early = EarlySends(self.intake, self.spawn, self.ensure_topic)
        self._now_s = cluster.clock.monotonic
        self._accumulator = self.intake.accumulator
        self._searches = Searches(cluster, self.core, self._go_on)
        self._decided: deque[Complete | Fail] = deque()
        """Outcomes that the core decided and nobody was told yet."""
        self._codec = CODECS[config.compression_type]
        self._tasks = TaskOwner("octavo-producer", self._broken)
        self._links: dict[str, ProduceLink] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._last_tick_s = 0.0
        self._stalls = StallWatch()
        self._claims: WriterClaims | None = None
        if config.access_mode != SHARED:
            self._claims = WriterClaims(
                cluster, config, self.spawn, self.ensure_topic, on_lost=self._end
            )
        self._releasing = False
        self._unwatch = cluster.owners.watch(self._view_changed)

    def unacknowledged(self) -> int:
        """Records that were accepted and neither acknowledged nor failed; any thread."""
        return self.intake.waiting_records() + self.early.waiting_records()

    # --- topics ---------------------------------------------------------------------------------

    async def ensure_topic(self, name: str) -> None:
        """Make the intake know a topic; waits for metadata up to max_block_ms (F031)."""
        view = await self.cluster.topics.get(name, self.config.max_block_ms / 1000)
        if self._claims is not None:
            await self._claims.take(view)
        self._guarded(partial(self._adopt, view))
        if self.intake.closed is not None:
            raise self.intake.refusal()

    def _view_changed(self, view: TopicView) -> None:
        if view.name not in self.intake.topics:
            return
        if self._claims is None or self._claims.covers(view):
            self._guarded(partial(self._adopt, view))
        else:
            self._claims.want_more(view.name)

    def _adopt(self, view: TopicView) -> None:
        """Take over metadata: partitions added (P7), owners found, or the topic's next life."""
        intake, config = self.intake, self.config
        intake.limit_records(self.cluster.topics.max_record_bytes)
        state = intake.topics.get(view.name)
        if state is not None and state.life != view.life:
            self._act(end_life(state, self._accumulator, self.core), self._now_s())
            state = None
        with self._accumulator.lock:
            if state is None:
                state = TopicState(
                    view.name,
                    StickyChoice(
                        max(config.batch_size, 1),
                        self.cluster.entropy,
                        adaptive=config.partitioner_adaptive,
                    ),
                    view.life,
                )
            for number in range(len(state.slots), view.partitions):
                partition = self.core.partition(view.name, number)
                partition.topic_id = view.topic_id
                if self._claims is not None:
                    partition.writer_epoch = self._claims.epoch_of(view.topic_id, number)
                partition.owner = partition.owner or view.owners[number]
                state.slots.append(Slot(partition))
            state.set_limits(view, config.batch_size)
            state.adopt_owners(view)
            intake.topics[view.name] = state

    # --- the end by a fault ---------------------------------------------------------------------

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run one step; if it fails, the producer ends, and says so."""
        try:
            step()
        except BaseException as error:
            self._broken("delivery", error)
            if not isinstance(error, Exception):
                raise

    def _broken(self, name: str, error: BaseException) -> None:
        """A promise of this producer is broken: nobody may wait for it any longer."""
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
        self._act(actions, self._now_s())

    def spawn(self, coro: Coroutine[object, object, None], name: str) -> asyncio.Task[object]:
        """Run a task that ends with the producer."""
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

    async def release(self, error: OctavoError) -> None:
        """End it: what has no outcome fails with `error`; connections and tasks are gone after."""
        self._releasing = True
        try:
            for link in self._links.values():
                await link.written_out(ACKS_0_CLOSE_S)
        finally:
            self._unwatch()
            self._end(error)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            try:
                if self._claims is not None:
                    await self._claims.leave()
            finally:
                await self._tasks.close()

    # --- what may go ----------------------------------------------------------------------------

    def look(self) -> None:
        """Deliver what may go; the intake rings this."""
        self._guarded(self._drain)

    def _drain(self) -> None:
        """Give the core what may go, then look at the clock."""
        intake, accumulator, core = self.intake, self._accumulator, self.core
        if intake.aside:
            intake.place_aside()
        now_s = self._now_s()
        ready, linger_s = intake.ready(now_s)
        if core.fatal is not None and intake.closed is not None:
            # Appended by a section that was interrupted while the producer ended.
            with accumulator.lock:
                late = accumulator.take_all()
            self._act([Fail(batch, intake.closed) for batch in late], now_s)
            return
        # Decided once for each broker: what is not held goes together, in one message.
        held: dict[str, float | None] = {}
        for slot in ready:
            while slot in accumulator.ready and core.room(slot.delivery):
                held_s = self._held_until(slot, held, now_s)
                if held_s is not None:
                    linger_s = held_s if linger_s is None else min(linger_s, held_s)
                    break
                with accumulator.lock:
                    batch = accumulator.take(slot)
                if batch is not None:
                    self._act(core.add(slot.delivery, batch, now_s), now_s)
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
        waiting = self._accumulator.pending or self.intake.aside
        if waiting and (at_s is None or at_s > now_s + TICK_S):
            at_s = now_s + TICK_S
        if at_s is None or (self._timer is not None and self._timer_at_s <= at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self.intake.loop.call_later(max(at_s - now_s, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._guarded(self._tick)

    def _tick(self) -> None:
        now_s = self._now_s()
        if now_s - self._last_tick_s >= TICK_S:
            self._last_tick_s = now_s
            limit_s = self.core.settings.delivery_timeout_s
            with self._accumulator.lock:
                expired = self._accumulator.take_expired(now_s - limit_s)
            never_sent = self._searches.never_sent
            self._act([Fail(batch, never_sent(batch, limit_s)) for batch in expired], now_s)
            self._act(self.core.tick(now_s), now_s)
            waiting = len(self._accumulator.pending)
            if warning := self._stalls.look(self.core.oldest(), waiting, now_s):
                _log.warning("%s", warning)
        self._drain()

    # --- what the core asks for -----------------------------------------------------------------

    def _go_on(self, actions: Sequence[Action], now_s: float) -> None:
        """Carry out what an answer led to, then send what has room now."""
        self._act(actions, now_s)
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
                search = self._searches.find_owner(action.partition, action.avoid)
                self.spawn(search, "find-owner")
            elif isinstance(action, RequestIdentity):
                self.spawn(self._searches.get_identity(), "identity")
            else:
                told = {batch_of(outcome) for outcome in decided}
                left = [batch for batch in self.intake.end(action.error) if batch not in told]
                decided += [Fail(batch, action.error) for batch in left]
        if decided:
            self._accumulator.finished([batch_of(outcome) for outcome in decided])
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
            duplicate = outcome.duplicate and batch.terms.once  # else it is an attempt of its own
            batch.succeed(outcome.base_offset, duplicate=duplicate)
        else:
            batch.fail(outcome.error)
            self.failures.note(batch)

    def _transmit(self, send: Send, now_s: float) -> None:
        batch = send.batch
        assert isinstance(batch, Batch)
        producer = (send.producer_id, send.producer_epoch, send.base_sequence)
        if self.cluster.tracing is not None and not batch.payload:
            batch.traceparent = carried_by(batch.first_headers)
        try:
            payload = batch.encoded(self._codec, producer)
        except Exception as error:
            raise InvalidRecord(f"the batch cannot be encoded: {error}") from error
        link = self._links.get(send.owner)
        if link is None:
            link = self._links[send.owner] = ProduceLink(
                self.cluster,
                send.owner,
                on_acks=self._on_acks,
                on_lost=self._on_lost,
                on_written=self._on_written,
            )
            self.spawn(link.run(), f"produce-{send.owner}")
        link.push(send, payload, batch.terms, now_s, batch.traceparent)

    # --- what the links report ------------------------------------------------------------------

    def _on_acks(self, acks: Sequence[pb.ProduceAck], now_s: float) -> None:
        actions: list[Action] = []
        for ack in acks:
            if ack.HasField("error"):
                error = from_wire(ack.error)
                if isinstance(error, InconsistentTopicId):
                    self.cluster.topics.life_is_over(*self.core.life_of(ack.correlation))
                elif isinstance(error, PartitionDecommissioned):
                    self._learn_of_topic(self.core.life_of(ack.correlation)[0])
                actions += self.core.refused(ack.correlation, error, now_s)
            else:
                actions += self.core.acknowledged(
                    ack.correlation,
                    ack.base_offset,
                    ack.duplicate,
                    now_s,
                    proves_earlier=not ack.producer_was_unknown,
                )
        self._go_on(actions, now_s)

    def _learn_of_topic(self, name: str) -> None:
        """A partition takes nothing more: what is sent from now on goes to the others (F027)."""
        if name:
            self.spawn(self.cluster.topics.refresh_quietly(name), "refresh")

    def _on_written(self, correlations: Sequence[int], now_s: float) -> None:
        """acks=0: the connection took the batches over, they are no longer the producer's (A4)."""
        self._go_on(self.core.written(correlations), now_s)

    def _on_lost(self, address: str, error: OctavoError) -> None:
        now_s = self._now_s()
        _log.warning(
            "connection to broker %s lost, unacknowledged batches are retried: %s",
            address,
            error.cause,
        )
        self._go_on(self.core.connection_lost(address, error, now_s), now_s)


def settings_of(config: ProducerConfig) -> SenderSettings:
    """The core's limits, in seconds."""
    return SenderSettings(
        idempotent=config.idempotent,
        max_in_flight=config.max_in_flight_requests_per_connection,
        delivery_timeout_s=config.delivery_timeout_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        backoff_initial_s=config.retry_backoff_ms / 1000,
        backoff_max_s=config.retry_backoff_max_ms / 1000,
        unknown_topic_s=config.max_block_ms / 1000,
    )


def end_life(state: TopicState, accumulator: Accumulator, core: SenderCore) -> list[Action]:
    """The topic was created again: what was meant for the old one fails and says so."""
    error = created_again(state.name, "records sent to the old one went with it, or never came")
    with accumulator.lock:
        state.ended = error
        left = accumulator.take_slots(state.slots)
    ended = core.end_life([slot.delivery for slot in state.slots], error)
    return [*ended, *(Fail(batch, error) for batch in left)]


def batch_of(outcome: Complete | Fail) -> Batch:
    """The batch of an outcome, as the producer knows it."""
    batch = outcome.batch
    assert isinstance(batch, Batch)
    return batch
