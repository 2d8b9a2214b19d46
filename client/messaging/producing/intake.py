"""The producer's intake: takes records from any thread, under the one lock of the producer.

Owns the lock, the records that wait and the choice of their partition. It never delivers: it only
rings the loop, whose side is `delivery`, and knows neither cluster nor core. No user code runs
under the lock: serializers and partitioners run before it, callbacks and log handlers elsewhere.
Signal handlers and finalisers may interrupt a section at any step; what they send then is set aside
(`sections`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.producing.accumulator import Accumulator, Slot
from octavo.client.messaging.producing.batches import RECORD_OVERHEAD_BYTES, Batch, Row
from octavo.client.messaging.producing.early import (
    GOING_IN,
    HELD,
    STRUCK,
    WAITING,
    Early,
    interrupted_append,
)
from octavo.client.messaging.producing.futures import Completion, Repeatable, SendFuture
from octavo.client.messaging.producing.routing import Router, TopicState
from octavo.client.messaging.producing.sections import suspended
from octavo.client.messaging.producing.serializers import (
    header_list,
    headers_bytes,
    key_converter,
    value_converter,
    with_dedup_id,
)
from octavo.client.messaging.producing.terms import Terms, TermsTable
from octavo.client.messaging.records import NO_HEADERS, Headers
from octavo.client.messaging.tracing import ClientTracing
from octavo.proto.batch import MAX_RECORD_BYTES
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    BufferFull,
    IllegalStateError,
    InvalidTimestamp,
    MessageTooLarge,
    OctavoError,
    PartitionDecommissioned,
    ProducerClosed,
)
from octavo.runtime.errors_of_writers import ProducerFenced

ASIDE_RECORDS_MAX = 10_000
"""Records that interrupting code may have set aside at a time."""
WAIT_TOLD_S = 0.001
"""A shorter wait for memory was none."""
_TIMESTAMP_MAX_MS = (1 << 63) - 1


class Intake:
    """The any-thread half of a producer; made on the loop of the other half.

    It calls two things of that half: `look`, on the loop, when something may go; `note_failure`, on
    any thread, for a record that failed before it was in.
    """

    tracing: ClientTracing | None = None
    """Of a `TracedIntake`."""

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        broker_record_bytes: int,
        look: Callable[[], None],
        note_failure: Callable[[Completion], None],
    ) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self._look = look
        self._note_failure = note_failure
        self.now_s = clock.monotonic
        self.wall_ms = clock.wall_ms
        self._loop_thread = threading.get_ident()
        terms = TermsTable(config)
        self.terms_of = terms.of
        self.accumulator = Accumulator(
            batch_size=max(config.batch_size, 1),
            linger_s=config.linger_ms / 1000,
            buffer_memory=config.buffer_memory,
            now_s=clock.monotonic,
            resolver=self._loop_thread,
            terms=terms.default,
        )
        self.topics: dict[str, TopicState] = {}
        self.router = Router(config)
        self.to_key = key_converter(config.key_serializer or config.serializer)
        self.to_value = value_converter(config.serializer)
        self.bytes_pass = not callable(config.serializer)
        """Values that are bytes need no conversion."""
        self.closed: OctavoError | None = None
        self.aside: dict[Early, None] = {}
        """Records of interrupting code whose outcome is nobody's yet, in the order sent."""
        self._wake_pending = False
        self.limit_records(broker_record_bytes)

    def limit_records(self, broker_record_bytes: int) -> None:
        """Brokers take records up to this size, whatever their topic says."""
        self._record_limit = min(self.config.max_request_size, broker_record_bytes)

    # --- one record -----------------------------------------------------------------------------

    def record_limit(self, topic: str) -> int:
        """Largest key + value + headers of one record for `topic`."""
        state = self.topics.get(topic)
        topics = MAX_RECORD_BYTES if state is None else state.row_bytes_max - RECORD_OVERHEAD_BYTES
        return min(self._record_limit, topics)

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
        terms: Terms,
        dedup_id: bytes | str | None,
    ) -> SendFuture:
        """Append one record to a topic that is in `topics`, on `terms` of `terms_of`.

        Blocks the calling thread up to `block_s` for memory, then raises BufferFull.
        """
        row = self.convert(topic, value, key, headers, timestamp_ms, dedup_id=dedup_id)
        return self.append(self.topics[topic], partition, row, expedite, block_s, terms=terms)

    def convert(
        self,
        topic: str,
        value: object,
        key: object,
        headers: object,
        timestamp_ms: int | None,
        *,
        dedup_id: bytes | str | None,
    ) -> Row:
        """The record in its stored form; raises TypeError, MessageTooLarge, InvalidTimestamp,
        ConfigError for a `dedup_id` that is none."""
        key_bytes = key if type(key) is bytes or key is None else self.to_key(key)
        value_bytes = value if type(value) is bytes and self.bytes_pass else self.to_value(value)
        size = (len(key_bytes) if key_bytes else 0) + (len(value_bytes) if value_bytes else 0)
        stored_headers: Headers = NO_HEADERS
        if headers or dedup_id is not None:
            stored_headers = header_list(headers) if headers else NO_HEADERS
            if dedup_id is not None:
                stored_headers = with_dedup_id(stored_headers, dedup_id)
            size += headers_bytes(stored_headers)
        if size > self._record_limit:
            raise self.too_large(topic, size)
        if timestamp_ms is None:
            timestamp_ms = self.wall_ms()
        else:
            check_timestamp(timestamp_ms)
        return (timestamp_ms, key_bytes, value_bytes, stored_headers, size + RECORD_OVERHEAD_BYTES)

    def append(
        self,
        state: TopicState,
        partition: int | None,
        row: Row,
        expedite: bool,
        block_s: float,
        *,
        terms: Terms,
    ) -> SendFuture:
        """Append one converted record; blocks as `send`."""
        accumulator, router = self.accumulator, self.router
        _, key, value, headers, size_bytes = row
        if size_bytes > state.row_bytes_max:
            raise self.too_large(state.name, size_bytes - RECORD_OVERHEAD_BYTES)
        if partition is None and router.custom is not None:
            partition = router.custom_choice(state, key, value, headers)
        if accumulator.mine():
            return self._set_aside(state, partition, row, terms)
        if self.aside:
            self.place_aside()
        with accumulator.lock:
            if self.closed is not None:
                raise self.refusal()
            if accumulator.free_bytes < size_bytes:
                self.wait_space(size_bytes, block_s)
            hashed = hashed_of(row, terms)
            slot = router.choose(state, partition, hashed)
            future = accumulator.append(slot, row, terms)
            if hashed is None and partition is None:
                state.sticky.added(size_bytes, batch_closed=slot.open is not future.completion)
            if (expedite or self.closed is not None) and slot.open is not None:
                # `closed`: by what interrupted this section; the loop fails what came too late.
                accumulator.expedite(slot, slot.open)
            if accumulator.wake_wanted and not self._wake_pending:
                self.wake()
        return future

    # --- records of interrupting code ------------------------------------------------------------

    def _set_aside(
        self, state: TopicState, partition: int | None, row: Row, terms: Terms
    ) -> SendFuture:
        """Keep a record whose sender interrupted a section of its own thread."""
        if self.closed is not None:
            raise self.refusal()
        if partition is not None:
            state.check_named(partition)
        if len(self.aside) >= ASIDE_RECORDS_MAX or self.accumulator.free_bytes < row[4]:
            raise BufferFull(
                f"{len(self.aside)} records sent by a signal handler or finaliser already wait "
                "for the call that it interrupted"
            )
        record = Early(state.name, partition, row, self._loop_thread, state, terms=terms)
        self.aside[record] = None
        try:
            self.loop.call_soon_threadsafe(self._look)
        except RuntimeError as error:
            self.aside.pop(record, None)
            raise loop_ended() from error
        return SendFuture(record, 0)

    def place_aside(self) -> None:
        """Append what was set aside, in its order. No section of this thread is under way.

        What an exception out of a handler leaves behind is seen by the loop at its next tick.
        """
        for record in list(self.aside):
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
        key, size_bytes = hashed_of(record.row, record.terms), record.row[4]
        with accumulator.lock:
            if self.closed is not None or state.ended is not None:
                return self.refusal() if state.ended is None else state.ended
            if accumulator.free_bytes + record.reserved_bytes < size_bytes:
                accumulator.expedite_all()
                self.wake_if_wanted()
                return None
            try:
                slot = self.router.choose(state, record.wanted, key)
            except PartitionDecommissioned as error:  # since it was set aside
                return error
            accumulator.free_bytes += record.reserved_bytes
            record.reserved_bytes = 0
            record.step = GOING_IN
            future = accumulator.append(slot, record.row, record.terms)
            if key is None and record.wanted is None:
                state.sticky.added(size_bytes, batch_closed=slot.open is not future.completion)
            if expedite and slot.open is not None:
                accumulator.expedite(slot, slot.open)
            self.wake_if_wanted()
        future.completion.when_done(Repeatable(self._placed, record, future))
        self.aside.pop(record, None)
        return None

    def _placed(self, record: Early, future: SendFuture) -> None:
        record.copy(future)
        if record.error is not None:
            self._note_failure(record)

    def refuse(self, record: Early, error: OctavoError) -> None:
        """Fail a record that will not go in. It leaves the register last, so that whoever is ended
        before that is followed by another."""
        record.fail(error)
        self._note_failure(record)
        self.aside.pop(record, None)

    # --- the end --------------------------------------------------------------------------------

    def shut(self, error: OctavoError) -> None:
        """Take nothing more; the first reason counts. What was taken may still be delivered."""
        with self.accumulator.lock:
            self.closed = self.closed or error

    def end(self, error: OctavoError) -> list[Batch]:
        """Take nothing more and give up what was set aside; returns every batch without an outcome,
        also what an interruption took from its queue."""
        with self.accumulator.lock:
            self.closed = self.closed or error
            self.accumulator.take_all()
            left = self.accumulator.waiting()
        self.accumulator.finished(())  # wakes whoever waits for memory
        for record in list(self.aside):
            self.refuse(record, error)
        return left

    # --- memory ---------------------------------------------------------------------------------

    def wait_space(self, size_bytes: int, block_s: float) -> None:
        """Wait for memory on the calling thread; BufferFull when it does not come. Lock held."""
        accumulator = self.accumulator
        accumulator.expedite_all()
        self.wake()
        start_s = self.now_s()
        while accumulator.free_bytes < size_bytes:
            waited_s = self.now_s() - start_s
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

    def waiting_records(self) -> int:
        """Records that were accepted and neither acknowledged nor failed; any thread."""
        return self.accumulator.pending_records() + len(self.aside)

    def refusal(self) -> OctavoError:
        """The error of a call to a producer that has ended."""
        if isinstance(self.closed, ProducerFenced):
            return ProducerFenced(self.closed.cause, hint=self.closed.hint, **self.closed.details)
        cause = self.closed.cause if self.closed is not None else "closed"
        return ProducerClosed(f"the producer accepts nothing more: {cause}")

    # --- waking the loop ------------------------------------------------------------------------

    def wake(self) -> None:
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

    def ready(self, now_s: float) -> tuple[list[Slot], float | None]:
        """On the loop: partitions with something to send, and when the next linger time ends.

        A send after this wakes the loop anew.
        """
        accumulator = self.accumulator
        with accumulator.lock:
            self._wake_pending = False
            accumulator.wake_wanted = False
            linger_s = accumulator.mark_due(now_s)
            accumulator.timer_armed = linger_s is not None
            return list(accumulator.ready), linger_s

    def wake_if_wanted(self) -> None:
        """After bulk appends. Lock held."""
        if self.accumulator.wake_wanted and not self._wake_pending:
            self.wake()

    def expedite_all(self) -> None:
        """Send everything without lingering; any thread."""
        if self.accumulator.mine():
            with suspended():  # the section under way goes on when the caller is done
                self.expedite_all()
            return
        if self.aside:
            self.place_aside()
        with self.accumulator.lock:
            self.accumulator.expedite_all()
            self.wake_if_wanted()


def hashed_of(row: Row, terms: Terms) -> bytes | None:
    """What decides a record's partition: its key, else the id that must meet its like there."""
    key, headers = row[1], row[3]
    return headers[-1][1] if terms.once and key is None else key


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
