"""The sync flavour: the async classes on their own loop thread, with a direct path for sends.

`send_nowait` and `send_many` append from the caller's thread under a lock and wake the loop only
when a batch is ready or the first linger timer is needed; everything else hops to the loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

from octavo.client.messaging.api.admin import (
    DEFAULT_TIMEOUT_S,
    AsyncAdmin,
    ClusterHealth,
    LedgerDescription,
    LogDescription,
    TopicDescription,
)
from octavo.client.messaging.api.aio import AsyncClient
from octavo.client.messaging.api.arrow_access import arrow_reading, arrow_sending
from octavo.client.messaging.api.consumer import ARROW_POLL_BYTES, AsyncConsumer
from octavo.client.messaging.api.forking import CLIENT_THREAD, foreign_client
from octavo.client.messaging.api.leaving import leave, say_waiting
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.api.reader import AsyncReader, Start
from octavo.client.messaging.config import ProducerConfig
from octavo.client.messaging.options import (
    ClientOptions,
    ConsumerOptions,
    Plain,
    ProducerOptions,
    UserHeaders,
    V,
)
from octavo.client.messaging.producing.bulk import (
    BulkSend,
    ManyInput,
    SendReport,
    append_batch,
    append_chunk,
    chunks,
)
from octavo.client.messaging.producing.engine import ProducerEngine
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.reading.limits import When
from octavo.client.messaging.records import Record, RecordMetadata, TopicPartition
from octavo.client.messaging.sync.ending import Held, forget, opened
from octavo.client.messaging.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("octavo.client")


class Producer(Generic[V]):
    """Sends records; made by `Client.producer()`. Safe to use from many threads.

    Use it in `with`, or call `close()`: closing waits for what was sent and raises when something
    was not acknowledged (U2). A `with` that Ctrl-C ends waits 5 s at most (`leaving`).
    """

    def __init__(self, thread: LoopThread, producer: AsyncProducer[V], held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = producer
        self._engine: ProducerEngine | None = None
        self._pid = 0
        self._block_s = producer.config.max_block_ms / 1000

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    @property
    def config(self) -> ProducerConfig:
        """The effective settings."""
        return self._async.config

    def _open(self, topic: str) -> Intake:
        """The intake, with the topic's metadata; fast when both are there."""
        engine = self._engine
        if engine is None:
            engine = self._thread.call(self._async.engine)
            self._engine = engine
            self._pid = os.getpid()
        if self._pid != os.getpid():
            raise foreign_client(self._pid)
        intake = engine.intake
        if topic not in intake.topics:
            self._thread.run(engine.delivery.ensure_topic(topic))
        return intake

    def send(
        self,
        topic: str,
        value: V | None,
        *,
        key: V | Plain = None,
        partition: int | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged; its batch does not linger."""
        self._thread.refuse_own()
        intake = self._open(topic)
        future = intake.send(
            topic, value, key, partition, headers, timestamp_ms, True, self._block_s
        )
        return future.result()

    def send_nowait(
        self,
        topic: str,
        value: V | None,
        *,
        key: V | Plain = None,
        partition: int | None = None,
        headers: UserHeaders | None = None,
        timestamp_ms: int | None = None,
    ) -> SendFuture:
        """Queue one record; blocks only for memory, up to max_block_ms, then BufferFull."""
        intake = self._open(topic)
        return intake.send(
            topic, value, key, partition, headers, timestamp_ms, False, self._block_s
        )

    def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        *,
        keys: Iterable[V | Plain] | None = None,
        headers: Iterable[UserHeaders | None] | None = None,
        timestamps_ms: Iterable[int] | None = None,
        partition: int | None = None,
    ) -> SendReport:
        """Send many records and wait until all are acknowledged.

        Raises the first error when some failed; the others are stored and said so in its notes.
        """
        self._thread.refuse_own()
        intake = self._open(topic)
        given = ManyInput(topic, values, keys, headers, timestamps_ms, partition)
        bulk = BulkSend(intake, topic)
        for chunk in chunks(intake, given):
            bulk.add(append_chunk(intake, topic, partition, chunk, self._block_s))
        return self._finish(bulk)

    def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key: str | None = None,
        value: str = "value",
        headers: str | None = None,
        timestamp: str | None = None,
        partition: int | None = None,
    ) -> SendReport:
        """Send the rows of a table; the arguments name its columns. Waits as `send_many`."""
        self._thread.refuse_own()
        intake = self._open(topic)
        functions = arrow_sending()
        given = functions.ArrowInput(topic, table, key, value, headers, timestamp, partition)
        bulk = BulkSend(intake, topic)
        for rows in functions.slices(intake, given):
            for batch in functions.batches(intake, given, rows):
                bulk.add(append_batch(intake, batch, self._block_s))
        return self._finish(bulk)

    @staticmethod
    def _finish(bulk: BulkSend) -> SendReport:
        bulk.expedite()
        for batch in bulk.open:
            batch.wait(None)
        return bulk.result()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or failed.

        Raises FlushTimeout with `details["remaining"]`.
        """
        self._thread.check()
        if self._engine is not None:
            self._thread.run(self._async.flush(timeout), limit_s=timeout)

    def close(self, timeout: float | None = None) -> None:
        """Wait for what was sent (at most `timeout` s, else by delivery_timeout_ms) and end.

        Raises FlushTimeout or DeliveryFailed when records were not acknowledged and nobody looked
        at their futures. Closing twice is harmless.
        """
        if not self._thread.closed:
            self._thread.run(self._async.close(timeout), limit_s=timeout)

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._engine is not None and not self._thread.closed:
            say_waiting(self._engine.unacknowledged, error)
        leave(self.close, error)


class Consumer:
    """Reads assigned partitions; made by `Client.consumer()`. For one thread at a time."""

    def __init__(self, thread: LoopThread, consumer: AsyncConsumer, held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = consumer

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; kept ones keep their position."""
        self._thread.run(self._async.assign(list(partitions)))

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._thread.run(self._async.assignment())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`; buffered records of the partition are dropped (F8).

        An offset beyond the end is no position: the next poll raises OffsetOutOfRange.
        """
        self._thread.run(self._async.seek(partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first retained record of the given (default: all) partitions."""
        self._thread.run(self._async.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue behind the last record; what is sent from now on will be read."""
        self._thread.run(self._async.seek_to_end(*partitions))

    def seek_to_time(self, when: When, *partitions: TopicPartition) -> None:
        """Continue at the first record with a timestamp at or after `when`, else at the end."""
        self._thread.run(self._async.seek_to_time(when, *partitions))

    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record of `partition` to be handed out."""
        return self._thread.run(self._async.position(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of the given (default: all) partitions until `resume`."""
        self._thread.run(self._async.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        self._thread.run(self._async.resume(*partitions))

    def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """First retained offset of each partition."""
        return self._thread.run(self._async.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Offset behind the last readable record of each partition."""
        return self._thread.run(self._async.end_offsets(*partitions))

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Records between position and end, never negative (M1)."""
        return self._thread.run(self._async.lag(*partitions))

    def poll(self, max_records: int | None = None, timeout: float | None = 1.0) -> list[Record]:
        """Up to `max_records` records; empty when `timeout` seconds passed (F107).

        0 hands out buffered records only; None waits until there is one.
        """
        return self._thread.run(self._async.poll(max_records, timeout), self._async.rewind)

    def poll_arrow(
        self, max_bytes: int = ARROW_POLL_BYTES, timeout: float | None = 1.0
    ) -> pa.RecordBatch | None:
        """Buffered batches as one RecordBatch with the Kafka-source columns; None after `timeout`.

        The columns are key, value, topic, partition, offset, timestamp, timestampType, headers.
        """
        functions = arrow_reading()
        taken = self._thread.run(
            self._async.take_arrow(max_bytes, timeout), self._async.untake_arrow
        )
        if taken is None:
            return None
        try:  # here and not on the loop, which goes on fetching meanwhile
            return functions.to_record_batch(taken)
        except BaseException:
            self._thread.call(partial(self._async.untake_arrow, taken))
            raise

    def __iter__(self) -> Iterator[Record]:
        handout = self._async.handout
        while True:
            while handout.ready:  # the body may seek, pause or assign
                record = handout.ready[0]
                del handout.ready[0]  # no call, so no Ctrl-C, between this and the caller
                yield record
            if not self._thread.run(self._async.refill()):
                return

    def close(self, timeout: float | None = None) -> None:
        """Stop reading. Iterations and polls under way end. Closing twice is harmless."""
        if not self._thread.closed:
            self._thread.run(self._async.close(timeout), limit_s=timeout)

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.close, error)


class Reader(Consumer):
    """Reads all (or chosen) partitions of topics; made by `Client.reader()`.

    The start is fixed when reading begins: at `with`, or at the first call.
    """

    def __init__(self, thread: LoopThread, reader: AsyncReader, held: Held) -> None:
        super().__init__(thread, reader, held)
        self._reader = reader

    def __enter__(self) -> Self:
        super().__enter__()
        self._thread.run(self._reader.start())
        return self

    def read_to_end(self) -> Iterator[Record]:
        """Every record up to the end offsets seen at this call, then stop.

        Paused partitions are left out.
        """
        ends = self._thread.run(self._reader.begin_to_end())
        return self._until(ends)

    def _until(self, ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        handout = self._reader.handout
        while True:
            while handout.ready:
                record = handout.ready[0]
                del handout.ready[0]
                yield record
            if not self._thread.run(self._reader.refill_until(ends)):
                return


class Admin:
    """Administration of the cluster a client is connected to: `client.admin`.

    Every call retries what is retriable until `timeout` seconds are over.
    """

    def __init__(self, thread: LoopThread, admin: AsyncAdmin, held: Held) -> None:
        self._thread = thread
        self._held = held
        self._async = admin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def create_topic(
        self,
        name: str,
        partitions: int = 6,
        config: Mapping[str, str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TopicDescription:
        """Create a topic; `config` has dotted names such as `segment.ms`."""
        return self._thread.run(self._async.create_topic(name, partitions, config, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a topic and its data. Raises UnknownTopic."""
        self._thread.run(self._async.delete_topic(name, timeout=timeout))

    def list_topics(
        self, *, include_internal: bool = False, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[TopicDescription]:
        """Every topic, sorted by name."""
        return self._thread.run(
            self._async.list_topics(include_internal=include_internal, timeout=timeout)
        )

    def describe_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> TopicDescription:
        """Partitions, owners and settings. Raises UnknownTopic."""
        return self._thread.run(self._async.describe_topic(name, timeout=timeout))

    def describe_log(
        self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LogDescription:
        """Segments of a partition and the bookies that hold them."""
        return self._thread.run(self._async.describe_log(topic, partition, timeout=timeout))

    def roll(self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """Close the open segment, so that exports see it; returns the high watermark."""
        return self._thread.run(self._async.roll(topic, partition, timeout=timeout))

    def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | int | datetime = "latest",
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[int, int | None]:
        """Offset per partition: of its first record at or after a time (None: no record is that
        late), or of an end of the log."""
        return self._thread.run(self._async.list_offsets(topic, at, timeout=timeout))

    def cluster_health(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> ClusterHealth:
        """Brokers, bookies and metadata as one broker sees them."""
        return self._thread.run(self._async.cluster_health(timeout=timeout))

    def show_ledger(
        self, ledger_id: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LedgerDescription:
        """A ledger's state, ensembles, last entry, and what each bookie holds of it."""
        return self._thread.run(self._async.show_ledger(ledger_id, timeout=timeout))


class Client:
    """A connection to a cluster. Safe to use from many threads.

    Lazy: nothing is connected until something is used; `connect(timeout=)` checks at once. Unsent
    records are sent before the interpreter exits; what cannot be sent is reported.

    Args:
        bootstrap_servers: `"host:port"`, several separated by commas, or a list.
        options: settings of `ClientConfig`; dotted names as `**{"client.id": "me"}`.
    """

    def __init__(
        self, bootstrap_servers: str | Iterable[str], **options: Unpack[ClientOptions]
    ) -> None:
        self._async = AsyncClient(bootstrap_servers, **options)
        self._thread = LoopThread(CLIENT_THREAD, partial(opened, self._async))
        self._held = Held(self._thread)
        self._admin = Admin(self._thread, self._async.admin, self._held)

    def __repr__(self) -> str:
        return repr(self._async).replace("<Async", "<", 1)

    @property
    def admin(self) -> Admin:
        """Administration of this cluster."""
        return self._admin

    def connect(self, timeout: float = 5.0) -> None:
        """Check that a broker answers; BrokerUnavailable names every address tried and why."""
        self._thread.run(self._async.connect(timeout))

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[Plain]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Callable[[V], bytes],
        key_serializer: Literal["json"] | Callable[[V], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[V]: ...

    @overload
    def producer(
        self,
        *,
        serializer: Literal["json"],
        key_serializer: Literal["json"] | Callable[[Any], bytes] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer[Any]: ...

    @overload
    def producer(
        self,
        *,
        serializer: None = None,
        key_serializer: Literal["json"] | Callable[[Any], bytes],
        **options: Unpack[ProducerOptions],
    ) -> Producer[Any]: ...

    def producer(self, **options: Any) -> Producer[Any]:
        """A producer; options are those of `ProducerConfig`.

        Without a serializer it takes `Plain` keys and values, with a function what that takes
        (`V`), else anything.
        """
        self._thread.check()
        return Producer(self._thread, self._async.producer(**options), self._held)

    def consumer(
        self,
        topics: str | Iterable[str] = (),
        *,
        group: None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of all partitions of `topics`, or of those given to `assign()`."""
        self._thread.check()
        consumer = self._async.consumer(topics, group=group, **options)
        return Consumer(self._thread, consumer, self._held)

    def reader(
        self,
        topics: str | Iterable[str],
        *,
        start: Start = "earliest",
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Reader:
        """A reader of `topics` from earliest, latest, an offset or an aware datetime."""
        self._thread.check()
        return Reader(
            self._thread,
            self._async.reader(topics, start=start, partitions=partitions, **options),
            self._held,
        )

    def close(self, timeout: float | None = None) -> None:
        """Close every part, then the connections; raises the first error of a part.

        Closing twice, or in a forked child, is harmless.
        """
        if self._thread.closed:
            return
        self._thread.refuse_own()
        forget(self._thread)
        try:
            if self._thread.started:
                self._thread.run(self._async.close(timeout), limit_s=timeout)
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        self._thread.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self.close, error)
