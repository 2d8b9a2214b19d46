"""The producer's intake: takes records from any thread, under the one lock of the producer.

Owns the lock, the records that wait and the choice of their partition. It never delivers: it only
wakes the loop, whose side is `engine`. No user code runs under the lock: serializers and
partitioners run before it, callbacks and log handlers elsewhere. Signal handlers and finalisers may
interrupt a section at any step; what they send then is set aside (`sections`).
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.partitioner import StickyChoice, check_partition
from octavo.client.messaging.producing.accumulator import (
    GROWN_BATCHES_MAX,
    GROWN_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    Accumulator,
    Row,
    Slot,
)
from octavo.client.messaging.producing.delivery import Action
from octavo.client.messaging.producing.early import (
    GOING_IN,
    HELD,
    STRUCK,
    WAITING,
    Early,
    interrupted_append,
)
from octavo.client.messaging.producing.futures import Completion, Repeatable, SendFuture
from octavo.client.messaging.producing.routing import Router, TopicState, end_life
from octavo.client.messaging.producing.sections import suspended
from octavo.client.messaging.producing.sender_core import SenderCore
from octavo.client.messaging.producing.serializers import (
    header_list,
    headers_bytes,
    key_converter,
    value_converter,
)
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.proto.batch import MAX_RECORD_BYTES
from octavo.runtime.errors import (
    BufferFull,
    IllegalStateError,
    InvalidTimestamp,
    MessageTooLarge,
    OctavoError,
    ProducerClosed,
)

BATCH_SLACK_BYTES = 4096
"""Header and padding of a batch, which its records' sizes do not count."""
ASIDE_RECORDS_MAX = 10_000
"""Records that interrupting code may have set aside at a time."""
WAIT_TOLD_S = 0.001
"""A shorter wait for memory was none."""
_TIMESTAMP_MAX_MS = (1 << 63) - 1


class Intake(ABC):
    """The any-thread half of a producer."""

    def __init__(self, cluster: Cluster, config: ProducerConfig, core: SenderCore) -> None:
        self.config = config
        self.cluster = cluster
        self.core = core
        self.loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.accumulator = Accumulator(
            batch_size=max(config.batch_size, 1),
            linger_s=config.linger_ms / 1000,
            buffer_memory=config.buffer_memory,
            now_s=cluster.clock.monotonic,
            resolver=self._loop_thread,
        )
        self.topics: dict[str, TopicState] = {}
        self.router = Router(config)
        self.to_key = key_converter(config.key_serializer or config.serializer)
        self.to_value = value_converter(config.serializer)
        self.bytes_pass = not callable(config.serializer)
        """Values that are bytes need no conversion."""
        self.closed: OctavoError | None = None
        self._aside: dict[Early, None] = {}
        """Records of interrupting code whose outcome is nobody's yet, in the order sent."""
        self._wake_pending = False
        self._record_limit = config.max_request_size
        self._wall_ms = cluster.clock.wall_ms

    # --- one record -----------------------------------------------------------------------------

    def record_limit(self, topic: str) -> int:
        """Largest key + value + headers of one record for `topic`."""
        state = self.topics.get(topic)
        topics = MAX_RECORD_BYTES if state is None else state.row_bytes_max - RECORD_OVERHEAD_BYTES
        return min(self.config.max_request_size, self.cluster.max_record_bytes, topics)

    def too_large(self, topic: str, size_bytes: int) -> MessageTooLarge:
        """The error of a record above the limit; it names size, limit and whose limit it is."""
        state = self.topics.get(topic)
        limit = self.record_limit(topic)
        whose: list[str] = []
        raises: list[str] = []
        if limit == self.config.max_request_size:
            whose.append("max_request_size")
            raises.append("raise max_request_size")
        if state is not None and limit == state.row_bytes_max - RECORD_OVERHEAD_BYTES:
            whose.append("max.message.bytes of the topic")
            raises.append("create the topic with a larger max.message.bytes")
        hint = "split the value, or store it elsewhere and send a reference"
        if raises and size_bytes <= MAX_RECORD_BYTES:
            hint = f"{' and '.join(raises)} (up to {MAX_RECORD_BYTES}), {hint}"
        return MessageTooLarge(
            f"record of {size_bytes} bytes for topic {topic!r} exceeds the limit of {limit} bytes "
            f"({' and '.join(whose) or 'the broker'})",
            hint=hint,
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
        if size_bytes > state.row_bytes_max:
            raise self.too_large(state.name, size_bytes - RECORD_OVERHEAD_BYTES)
        if partition is None and router.custom is not None:
            partition = router.custom_choice(state, key, value, headers)
        if accumulator.mine():
            return self._set_aside(state, partition, row)
        if self._aside:
            self._place_aside()
        with accumulator.lock:
            if self.closed is not None:
                raise self.refusal()
            if accumulator.free_bytes < size_bytes:
                self.wait_space(size_bytes, block_s)
            slot = router.choose(state, partition, key)
            future = accumulator.append(slot, row)
            if key is None and partition is None:
                state.sticky.added(size_bytes, batch_closed=slot.open is not future.completion)
            if (expedite or self.closed is not None) and slot.open is not None:
                # `closed`: by what interrupted this section; the loop fails what came too late.
                accumulator.expedite(slot, slot.open)
            if accumulator.wake_wanted and not self._wake_pending:
                self._wake()
        return future

    # --- records of interrupting code ------------------------------------------------------------

    def _set_aside(self, state: TopicState, partition: int | None, row: Row) -> SendFuture:
        """Keep a record whose sender interrupted a section of its own thread."""
        if self.closed is not None:
            raise self.refusal()
        if partition is not None:
            check_partition(state.name, partition, len(state.slots))
        if len(self._aside) >= ASIDE_RECORDS_MAX or self.accumulator.free_bytes < row[4]:
            raise BufferFull(
                f"{len(self._aside)} records sent by a signal handler or finaliser already wait "
                "for the call that it interrupted"
            )
        record = Early(state.name, partition, row, self._loop_thread, state)
        self._aside[record] = None
        try:
            self.loop.call_soon_threadsafe(self._look)
        except RuntimeError as error:
            self._aside.pop(record, None)
            raise loop_ended() from error
        return SendFuture(record, 0)

    def _place_aside(self) -> None:
        """Append what was set aside, in its order. No section of this thread is under way.

        What an exception out of a handler leaves behind is seen by the loop at its next tick.
        """
        for record in list(self._aside):
            if record.step == STRUCK and threading.get_ident() == self._loop_thread:
                self.refuse(record, interrupted_append())
            # Nothing is called between this look and the claim, so one caller has it.
            if record.step != WAITING:
                continue
            record.step = HELD
            try:
                error = self.place(record, expedite=True)
                if error is not None:
                    self.refuse(record, error)
            except BaseException:
                record.step = WAITING if record.step == HELD else STRUCK  # a second one may come
                raise
            if record.step == HELD and error is None:
                record.step = WAITING
                return  # the loop tries again when memory comes

    def place(self, record: Early, *, expedite: bool) -> OctavoError | None:
        """Append one record that the caller holds, if it may go in; else why not, None: memory.

        Refusals are values: an exception is somebody else's, a signal handler's.
        """
        accumulator, state = self.accumulator, record.state
        assert state is not None
        key, size_bytes = record.row[1], record.row[4]
        with accumulator.lock:
            if self.closed is not None or state.ended is not None:
                return self.refusal() if state.ended is None else state.ended
            if accumulator.free_bytes + record.reserved_bytes < size_bytes:
                accumulator.expedite_all()
                self.wake_if_wanted()
                return None
            slot = self.router.choose(state, record.wanted, key)
            accumulator.free_bytes += record.reserved_bytes
            record.reserved_bytes = 0
            record.step = GOING_IN
            future = accumulator.append(slot, record.row)
            if key is None and record.wanted is None:
                state.sticky.added(size_bytes, batch_closed=slot.open is not future.completion)
            if expedite and slot.open is not None:
                accumulator.expedite(slot, slot.open)
            self.wake_if_wanted()
        future.completion.when_done(Repeatable(self._placed, record, future))
        self._aside.pop(record, None)
        return None

    def _placed(self, record: Early, future: SendFuture) -> None:
        record.copy(future)
        if record.error is not None:
            self.note_failure(record)

    def refuse(self, record: Early, error: OctavoError) -> None:
        """Fail a record that will not go in. It leaves the register last, so that whoever is ended
        before that is followed by another."""
        record.fail(error)
        self.note_failure(record)
        self._aside.pop(record, None)

    def end_aside(self, error: OctavoError) -> None:
        """Give up what was set aside; the producer ends."""
        for record in list(self._aside):
            self.refuse(record, error)

    @abstractmethod
    def note_failure(self, batch: Completion) -> None:
        """Remember a failure that nobody looked at; see `engine`."""

    # --- memory ---------------------------------------------------------------------------------

    def wait_space(self, size_bytes: int, block_s: float) -> None:
        """Wait for memory on the calling thread; BufferFull when it does not come. Lock held."""
        accumulator = self.accumulator
        accumulator.expedite_all()
        self._wake()
        start_s = self.cluster.clock.monotonic()
        while accumulator.free_bytes < size_bytes:
            waited_s = self.cluster.clock.monotonic() - start_s
            if waited_s >= block_s or threading.get_ident() == self._loop_thread:
                raise self.buffer_full(min(waited_s, block_s))
            accumulator.space.wait(min(block_s - waited_s, threading.TIMEOUT_MAX))
            if self.closed is not None:
                raise self.refusal()

    def buffer_full(self, waited_s: float) -> BufferFull:
        """The error of a call that waited so long for memory; 0: it may not wait."""
        size_bytes = self.accumulator.buffer_memory
        stayed = f"stayed full for {round(waited_s, 3):g} s (max_block_ms)"
        return BufferFull(
            f"buffer_memory of {size_bytes} bytes "
            f"{stayed if waited_s >= WAIT_TOLD_S else 'is full, and this call does not wait'}; "
            f"{self.waiting_records()} records wait for acknowledgement"
        )

    async def space(self, size_bytes: int) -> None:
        """Wait on the loop for memory, up to max_block_ms; BufferFull when it does not come."""
        accumulator = self.accumulator
        limit_s = self.config.max_block_ms / 1000
        deadline_s = self.cluster.clock.monotonic() + limit_s
        while True:
            freed = asyncio.Event()
            wake = partial(self.loop.call_soon_threadsafe, freed.set)
            with accumulator.lock:
                if self.closed is not None or accumulator.free_bytes >= size_bytes:
                    return
                accumulator.expedite_all()
                self._wake()
                left_s = deadline_s - self.cluster.clock.monotonic()
                if left_s <= 0:
                    raise self.buffer_full(limit_s)
                accumulator.on_space(wake)
            try:
                async with asyncio.timeout(left_s):
                    await freed.wait()
            except TimeoutError:
                continue
            finally:
                accumulator.off_space(wake)

    def waiting_records(self) -> int:
        """Records that were accepted and neither acknowledged nor failed; any thread."""
        return self.accumulator.pending_records() + len(self._aside)

    def refusal(self) -> OctavoError:
        """The error of a call to a producer that has ended."""
        cause = self.closed.cause if self.closed is not None else "closed"
        return ProducerClosed(f"the producer accepts nothing more: {cause}")

    # --- waking the loop ------------------------------------------------------------------------

    @abstractmethod
    def _look(self) -> None:
        """On the loop: deliver what may go."""

    def _wake(self) -> None:
        """Make the loop look at the accumulator. Lock held, so that the loop sees the flag."""
        try:
            self._wake_pending = True  # nothing is called between this and the loop's queue
            self.accumulator.wake_wanted = False
            self.loop.call_soon_threadsafe(self._look)
        except BaseException as error:
            self._wake_pending = False
            self.accumulator.wake_wanted = True
            if isinstance(error, RuntimeError):
                raise loop_ended() from error
            raise

    def wake_if_wanted(self) -> None:
        """After bulk appends. Lock held."""
        if self.accumulator.wake_wanted and not self._wake_pending:
            self._wake()

    def expedite_all(self) -> None:
        """Send everything without lingering; any thread."""
        if self.accumulator.mine():
            with suspended():  # the section under way goes on when the caller is done
                self.expedite_all()
            return
        if self._aside:
            self._place_aside()
        with self.accumulator.lock:
            self.accumulator.expedite_all()
            self.wake_if_wanted()

    # --- topics ---------------------------------------------------------------------------------

    async def ensure_topic(self, name: str) -> None:
        """Make `topics[name]`; waits for metadata up to max_block_ms (F031)."""
        view = await self.cluster.topic(name, self.config.max_block_ms / 1000)
        self.guarded(partial(self.adopt, view))
        if self.closed is not None:
            raise self.refusal()

    @abstractmethod
    def guarded(self, step: Callable[[], None]) -> None:
        """Run one step of the loop's side; if it fails, the producer ends; see `engine`."""

    def adopt(self, view: TopicView) -> None:
        """Take over metadata: partitions added (P7), owners found, or the topic's next life."""
        self._record_limit = min(self.config.max_request_size, self.cluster.max_record_bytes)
        state = self.topics.get(view.name)
        if state is not None and state.life != view.life:
            self.carry_out(end_life(state, self.accumulator, self.core))
            state = None
        with self.accumulator.lock:
            if state is None:
                state = TopicState(
                    view.name,
                    StickyChoice(
                        max(self.config.batch_size, 1),
                        self.cluster.entropy,
                        adaptive=self.config.partitioner_adaptive,
                    ),
                    view.life,
                )
            for number in range(len(state.slots), view.partitions):
                delivery = self.core.partition(view.name, number)
                delivery.topic_id = view.topic_id
                delivery.owner = delivery.owner or view.owners[number]
                state.slots.append(Slot(delivery))
            self._set_batch_limits(state, view)
            state.live = [p for p, owner in enumerate(view.owners) if owner]
            self.topics[view.name] = state

    @abstractmethod
    def carry_out(self, actions: Sequence[Action]) -> None:
        """Do what the core asked for; see `engine`."""

    def _set_batch_limits(self, state: TopicState, view: TopicView) -> None:
        """No batch gets larger than the topic takes; a record close to that goes alone."""
        state.row_bytes_max = view.record_bytes_max + RECORD_OVERHEAD_BYTES
        takes = max(view.batch_bytes_max - BATCH_SLACK_BYTES, view.batch_bytes_max // 2, 1)
        batch_size = self.config.batch_size
        full = min(max(batch_size, 1), takes)
        grown = min(GROWN_BYTES_MAX, GROWN_BATCHES_MAX * batch_size, takes)
        for slot in state.slots:
            slot.full_bytes = full
            slot.grown_bytes_max = grown if batch_size > 0 else 0


def loop_ended() -> IllegalStateError:
    """The error of a send to a producer whose loop is gone."""
    return IllegalStateError(
        "the event loop of this producer has ended", hint="close the client before its loop"
    )


def check_timestamp(timestamp_ms: object) -> None:
    """A user's timestamp is an int in the range a batch can hold; else InvalidTimestamp."""
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _TIMESTAMP_MAX_MS:
        raise InvalidTimestamp(
            f"timestamp_ms={timestamp_ms!r} is not a number of milliseconds since 1970"
        )
