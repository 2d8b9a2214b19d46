"""The producer's engine: appends from any thread, delivers on one loop.

Drives the pure parts (accumulator, partition choice, sender core) with real time, connections and
threads. Sync and async producers are thin layers over it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial

from octavo.client.messaging.accumulator import (
    GROWN_BATCHES_MAX,
    GROWN_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    Accumulator,
    Batch,
    Row,
    Slot,
)
from octavo.client.messaging.cluster import Cluster, TopicView
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.delivery import (
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
from octavo.client.messaging.early import Early, EarlySends
from octavo.client.messaging.futures import SendFuture
from octavo.client.messaging.partitioner import StickyChoice
from octavo.client.messaging.produce_link import ProduceLink
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.client.messaging.routing import Router, TopicState
from octavo.client.messaging.sender_core import SenderCore
from octavo.client.messaging.serializers import (
    header_list,
    headers_bytes,
    key_converter,
    value_converter,
)
from octavo.client.messaging.stall_watch import StallWatch
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import Codec
from octavo.proto.errors import from_wire
from octavo.runtime.errors import (
    BufferFull,
    DeliveryFailed,
    FlushTimeout,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OctavoError,
    ProducerClosed,
)
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.client")

BATCH_SLACK_BYTES = 4096
"""Header and padding of a batch, which its records' sizes do not count."""
TICK_S = 0.02
"""How often timeouts and back-offs are looked at while anything is unresolved."""
ACKS_0_CLOSE_S = 5.0
"""How long closing waits until batches that get no reply were read by the broker."""
FAILURES_KEPT_MAX = 1_000
"""Failed batches remembered for close(); above it only their records are counted."""
_TIMESTAMP_MAX_MS = (1 << 63) - 1


class ProducerEngine:
    """Everything behind one producer. Made on its loop."""

    def __init__(self, cluster: Cluster, config: ProducerConfig) -> None:
        self.config = config
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        batch_size = max(config.batch_size, 1)
        self.accumulator = Accumulator(
            batch_size=batch_size,
            linger_s=config.linger_ms / 1000,
            buffer_memory=config.buffer_memory,
            now_s=cluster.clock.monotonic,
        )
        self.core = SenderCore(
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
        self.topics: dict[str, TopicState] = {}
        self.router = Router(config)
        self.to_key = key_converter(config.key_serializer or config.serializer)
        self.to_value = value_converter(config.serializer)
        self.bytes_pass = not callable(config.serializer)
        """Values that are bytes need no conversion."""
        self.closed: OctavoError | None = None
        self.acks0_lost = 0
        """Streams lost by a producer that awaits no replies (A4)."""
        self._failed: list[Batch | Early] = []
        self._failed_uncounted = 0
        self._codec = Codec.LZ4 if config.compression_type == "lz4" else Codec.NONE
        self._tasks = TaskOwner("octavo-producer")
        self._links: dict[str, ProduceLink] = {}
        self._wake_pending = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._last_tick_s = 0.0
        self._stalls = StallWatch()
        self._released = False
        self._record_limit = config.max_request_size
        self._wall_ms = cluster.clock.wall_ms
        self.early = EarlySends(self)
        self._unwatch = cluster.watch(self._view_changed)

    # --- appending, any thread ------------------------------------------------------------------

    def record_limit(self) -> int:
        """Largest key + value + headers of one record."""
        return min(self.config.max_request_size, self.cluster.max_record_bytes)

    def too_large(self, topic: str, size_bytes: int) -> MessageTooLarge:
        """The error of a record above the limit; it names size, limit and whose limit it is."""
        limit = self.record_limit()
        whose = "max_request_size" if limit == self.config.max_request_size else "the broker"
        return MessageTooLarge(
            f"record of {size_bytes} bytes for topic {topic!r} exceeds the limit of {limit} bytes "
            f"({whose})",
            hint="split the value, or store it elsewhere and send a reference",
            size_bytes=size_bytes,
            limit_bytes=limit,
        )

    def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        headers: object,
        timestamp_ms: int | None,
        expedite: bool,
        block_s: float,
    ) -> SendFuture:
        """Append one record to a topic that is in `topics`.

        Blocks the calling thread up to `block_s` for memory, then raises BufferFull.
        """
        row = self.convert(topic, value, key, headers, timestamp_ms)
        return self.append(self.topics[topic], partition, row, expedite, block_s)

    def convert(
        self, topic: str, value: object, key: object, headers: object, timestamp_ms: int | None
    ) -> Row:
        """The record in its stored form; raises TypeError, MessageTooLarge, InvalidTimestamp."""
        key_bytes = key if type(key) is bytes or key is None else self.to_key(key)
        value_bytes = value if type(value) is bytes and self.bytes_pass else self.to_value(value)
        size = (len(key_bytes) if key_bytes else 0) + (len(value_bytes) if value_bytes else 0)
        stored_headers: Headers = NO_HEADERS
        if headers:
            stored_headers = header_list(headers)
            size += headers_bytes(stored_headers)
        if size > self._record_limit:
            raise self.too_large(topic, size)
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        else:
            check_timestamp(timestamp_ms)
        return (timestamp_ms, key_bytes, value_bytes, stored_headers, size + RECORD_OVERHEAD_BYTES)

    def append(
        self, state: TopicState, partition: int | None, row: Row, expedite: bool, block_s: float
    ) -> SendFuture:
        """Append one converted record; blocks as `send`."""
        accumulator, router = self.accumulator, self.router
        _, key, value, headers, size_bytes = row
        if partition is None and router.custom is not None:
            partition = router.custom_choice(state, key, value, headers)
        with accumulator.lock:
            if self.closed is not None:
                raise self._refusal()
            if accumulator.free_bytes < size_bytes:
                self.wait_space(size_bytes, block_s)
            slot = router.choose(state, partition, key)
            batch = accumulator.append(slot, row)
            future = SendFuture(batch, batch.count - 1)
            if key is None and partition is None:
                state.sticky.added(size_bytes, batch_closed=slot.open is not batch)
            if expedite:
                accumulator.expedite(slot, batch)
            if accumulator.wake_wanted and not self._wake_pending:
                self._wake()
        return future

    def wait_space(self, size_bytes: int, block_s: float) -> None:
        """Wait for memory on the calling thread; BufferFull when it does not come. Lock held."""
        accumulator = self.accumulator
        accumulator.expedite_all()
        self._wake()
        deadline_s = self.cluster.clock.monotonic() + block_s
        while accumulator.free_bytes < size_bytes:
            left_s = deadline_s - self.cluster.clock.monotonic()
            if left_s <= 0 or threading.get_ident() == self._loop_thread:
                raise BufferFull(
                    f"buffer_memory of {accumulator.buffer_memory} bytes stayed full for "
                    f"{block_s:g} s (max_block_ms); {accumulator.pending_records()} records wait "
                    "for acknowledgement"
                )
            accumulator.space.wait(left_s)
            if self.closed is not None:
                raise self._refusal()

    async def space(self, size_bytes: int) -> None:
        """Wait on the loop for memory, up to max_block_ms; BufferFull when it does not come."""
        accumulator = self.accumulator
        limit_s = self.config.max_block_ms / 1000
        deadline_s = self.cluster.clock.monotonic() + limit_s
        while True:
            freed = asyncio.Event()
            with accumulator.lock:
                if self.closed is not None or accumulator.free_bytes >= size_bytes:
                    return
                accumulator.on_space(partial(self.loop.call_soon_threadsafe, freed.set))
                accumulator.expedite_all()
                self._wake()
                left_s = deadline_s - self.cluster.clock.monotonic()
                if left_s <= 0:
                    self.wait_space(size_bytes, 0.0)
            try:
                async with asyncio.timeout(left_s):
                    await freed.wait()
            except TimeoutError:
                continue

    def _refusal(self) -> OctavoError:
        cause = self.closed.cause if self.closed is not None else "closed"
        return ProducerClosed(f"the producer accepts nothing more: {cause}")

    def _wake(self) -> None:
        """Make the loop look at the accumulator. Lock held."""
        self._wake_pending = True
        self.accumulator.wake_wanted = False
        self.loop.call_soon_threadsafe(self._drain)

    def wake_if_wanted(self) -> None:
        """After bulk appends. Lock held."""
        if self.accumulator.wake_wanted and not self._wake_pending:
            self._wake()

    # --- topics ---------------------------------------------------------------------------------

    async def ensure_topic(self, name: str) -> None:
        """Make `topics[name]`; waits for metadata up to max_block_ms (F031)."""
        view = await self.cluster.topic(name, self.config.max_block_ms / 1000)
        self.adopt(view)

    def _view_changed(self, view: TopicView) -> None:
        if view.name in self.topics:
            self.adopt(view)

    def adopt(self, view: TopicView) -> None:
        """Take over metadata; partitions may have been added or found owners (P7)."""
        self._record_limit = self.record_limit()
        with self.accumulator.lock:
            state = self.topics.get(view.name)
            if state is None:
                state = TopicState(
                    view.name,
                    StickyChoice(
                        max(self.config.batch_size, 1),
                        self.cluster.entropy,
                        adaptive=self.config.partitioner_adaptive,
                    ),
                )
            for number in range(len(state.slots), view.partitions):
                delivery = self.core.partition(view.name, number)
                delivery.owner = delivery.owner or view.owners[number]
                state.slots.append(Slot(delivery))
            if self.config.batch_size > 0:
                wanted = min(GROWN_BYTES_MAX, GROWN_BATCHES_MAX * self.config.batch_size)
                limit = min(wanted, view.batch_bytes_max - BATCH_SLACK_BYTES)
                for slot in state.slots:
                    slot.grown_bytes_max = limit
            state.live = [p for p, owner in enumerate(view.owners) if owner]
            self.topics[view.name] = state

    # --- delivering, loop only ------------------------------------------------------------------

    def _drain(self) -> None:
        """Give the core what may go, then look at the clock."""
        now_s = self.cluster.clock.monotonic()
        accumulator = self.accumulator
        with accumulator.lock:
            self._wake_pending = False
            accumulator.wake_wanted = False
            linger_s = accumulator.mark_due(now_s)
            accumulator.timer_armed = linger_s is not None
            ready = list(accumulator.ready)
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
        if slot.closed or batch is None or batch.size_bytes >= self.accumulator.batch_size:
            return None
        if owner not in held:
            link = self._links.get(owner)
            held[owner] = None if link is None else link.recent.held_until(now_s)
        return held[owner]

    def _arm(self, linger_s: float | None, now_s: float) -> None:
        """One timer: the next linger deadline, or the next tick while anything is unresolved."""
        at_s = linger_s
        if self.accumulator.pending and (at_s is None or at_s > now_s + TICK_S):
            at_s = now_s + TICK_S
        if at_s is None or (self._timer is not None and self._timer_at_s <= at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self.loop.call_later(max(at_s - now_s, 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = self.cluster.clock.monotonic()
        if now_s - self._last_tick_s >= TICK_S:
            self._last_tick_s = now_s
            limit_s = self.config.delivery_timeout_ms / 1000
            with self.accumulator.lock:
                expired = self.accumulator.take_expired(now_s - limit_s)
            self._act([Fail(batch, _never_sent(batch, limit_s)) for batch in expired], now_s)
            self._act(self.core.tick(now_s), now_s)
            waiting = len(self.accumulator.pending)
            if warning := self._stalls.look(self.core.oldest(), waiting, now_s):
                _log.warning("%s", warning)
        self._drain()

    def _act(self, actions: Sequence[Action], now_s: float) -> None:
        """Carry out what the core asked for."""
        todo = deque(actions)
        done: list[tuple[Batch, Complete | Fail]] = []
        while todo:
            action = todo.popleft()
            if isinstance(action, Send):
                try:
                    self._transmit(action, now_s)
                except OctavoError as error:  # not encodable: the batch fails, nothing was sent
                    todo.extend(self.core.refused(action.correlation, error, now_s))
            elif isinstance(action, Complete | Fail):
                batch = action.batch
                assert isinstance(batch, Batch)
                done.append((batch, action))
            elif isinstance(action, FindOwner):
                self._tasks.spawn(
                    self._find_owner(action.partition, action.avoid), name="find-owner"
                )
            elif isinstance(action, RequestIdentity):
                self._tasks.spawn(self._get_identity(), name="identity")
            else:
                done += [(batch, Fail(batch, action.error)) for batch in self._stopped(action)]
        if done:
            self.accumulator.finished([batch for batch, _ in done])
        for batch, outcome in done:
            if isinstance(outcome, Complete):
                batch.succeed(outcome.base_offset, duplicate=outcome.duplicate)
            else:
                batch.fail(outcome.error)
                self.note_failure(batch)

    def spawn(self, coro: Coroutine[object, object, None], name: str) -> asyncio.Task[object]:
        """Run a task that ends with the engine."""
        return self._tasks.spawn(coro, name=name)

    def note_failure(self, batch: Batch | Early) -> None:
        """Remember failed batches until somebody looked at them, so that close() can tell (U2)."""
        if batch.observed:
            return
        if len(self._failed) >= FAILURES_KEPT_MAX:
            self._failed = [item for item in self._failed if not item.observed]
        if len(self._failed) < FAILURES_KEPT_MAX:
            self._failed.append(batch)
        else:
            self._failed_uncounted += batch.count

    def _transmit(self, send: Send, now_s: float) -> None:
        batch = send.batch
        assert isinstance(batch, Batch)
        producer = (send.producer_id, send.producer_epoch, send.base_sequence)
        try:
            payload = batch.encoded(self._codec, producer)
        except (ValueError, TypeError, OverflowError, UnicodeError) as error:
            raise InvalidRecord(f"the batch cannot be encoded: {error}") from error
        link = self._links.get(send.owner)
        if link is None:
            link = self._links[send.owner] = ProduceLink(
                self.cluster, send.owner, self.core.settings.acks, self._on_acks, self._on_lost
            )
            self._tasks.spawn(link.run(), name=f"produce-{send.owner}")
        link.push(send, payload, now_s)

    def _stopped(self, action: Stop) -> list[Batch]:
        with self.accumulator.lock:
            self.closed = self.closed or action.error
            left = self.accumulator.take_all()
            self.accumulator.space.notify_all()
        return left

    def _on_acks(self, acks: Sequence[pb.ProduceAck]) -> None:
        now_s = self.cluster.clock.monotonic()
        actions: list[Action] = []
        for ack in acks:
            if ack.HasField("error"):
                actions += self.core.refused(ack.correlation, from_wire(ack.error), now_s)
            else:
                actions += self.core.acknowledged(
                    ack.correlation, ack.base_offset, ack.duplicate, now_s
                )
        self._act(actions, now_s)
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
        while self.core.fatal is None:
            try:
                owner = await self.cluster.find_owner(
                    partition.topic, partition.partition, avoid=avoid
                )
            except OctavoError as error:
                _log.info("no owner of %s yet: %s", partition, error.cause)
                await self.cluster.pause_search(error, backoff)
                continue
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
                await self.cluster.clock.sleep(backoff.next_s())
                continue
            now_s = self.cluster.clock.monotonic()
            self._act(
                self.core.identity_granted(reply.producer_id, reply.producer_epoch, now_s), now_s
            )
            self._drain()
            return

    # --- end ------------------------------------------------------------------------------------

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until every record appended before the call is acknowledged or failed.

        Raises FlushTimeout with the number of records still open. Failures are reported by the
        futures of the records.
        """
        deadline_s = None if timeout_s is None else self.cluster.clock.monotonic() + timeout_s
        await self.early.all_drained(timeout_s)
        with self.accumulator.lock:
            waiting = list(self.accumulator.pending)
            self.accumulator.expedite_all()
            self.wake_if_wanted()
        for batch in waiting:
            left_s = None if deadline_s is None else deadline_s - self.cluster.clock.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    await batch.wait_async()
            except TimeoutError:
                remaining = sum(item.count for item in waiting if not item.done)
                raise FlushTimeout(
                    f"{remaining} records were not acknowledged within {timeout_s:g} s",
                    hint="they are still being sent; flush again or close",
                    remaining=remaining,
                ) from None

    def unacknowledged(self) -> int:
        """Records that were accepted and neither acknowledged nor failed."""
        with self.accumulator.lock:
            return self.accumulator.pending_records()

    async def close(self, timeout_s: float | None) -> None:
        """Wait for what was accepted, then accept nothing more and release everything.

        What is not acknowledged after `timeout_s` fails and the call raises FlushTimeout with the
        count; failures that no future was asked about are raised too (U2: no silent loss).
        """
        if self._released:
            return
        try:
            await self.flush(timeout_s)
        except FlushTimeout as late:
            late.hint = "they may or may not be stored: the producer is closed"
            raise
        finally:
            self._released = True
            with self.accumulator.lock:
                self.closed = self.closed or ProducerClosed("closed by the application")
            await self._release()
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """Raise DeliveryFailed when records failed and no future of theirs was looked at."""
        unseen = [batch for batch in self._failed if not batch.observed]
        count = sum(batch.count for batch in unseen) + self._failed_uncounted
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
        if self.core.settings.acks == 0:
            for link in self._links.values():
                await link.written_out(ACKS_0_CLOSE_S)
        now_s = self.cluster.clock.monotonic()
        self.early.abort(error)
        self._unwatch()
        self._act(self.core.abort(error), now_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.close()


def check_timestamp(timestamp_ms: object) -> None:
    """A user's timestamp is an int in the range a batch can hold; else InvalidTimestamp."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _TIMESTAMP_MAX_MS:
        raise InvalidTimestamp(
            f"timestamp_ms={timestamp_ms!r} is not a number of milliseconds since 1970"
        )


def _never_sent(batch: Batch, limit_s: float) -> DeliveryFailed:
    return DeliveryFailed(
        f"{batch.count} records to {batch.topic}-{batch.partition} waited {limit_s:g} s "
        "(delivery_timeout_ms) and were never sent",
        hint="check that the partition's broker can be reached",
    )
