"""The blocking producer: records go in from the caller's thread (by hand, see `tools/gen_sync.py`).

`send_nowait` and `send_many` append under a lock and wake the loop only when a batch is ready or
the first linger timer is needed; everything else hops to the loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from octavo.client.messaging.api.arrow_access import arrow_sending
from octavo.client.messaging.api.forking import foreign_client
from octavo.client.messaging.api.leaving import leave, say_waiting
from octavo.client.messaging.api.options import Acks, Plain, UserHeaders, V
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.config import ProducerConfig
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
from octavo.client.messaging.records import RecordMetadata
from octavo.client.messaging.sync.ending import Held
from octavo.client.messaging.sync.loop_thread import LoopThread

if TYPE_CHECKING:
    import pyarrow as pa


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
        acks: Acks | None = None,
        min_insync_replicas: int | None = None,
        dedup_id: bytes | str | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged; its batch does not linger.

        `acks` counts for this record only, of a producer with enable_idempotence=False (else
        ConfigError): all, 1, or 0, with which the offset is -1 and a failure stays unknown. Order
        is kept as long as nothing must be sent again. `min_insync_replicas`: raises
        NotEnoughReplicas, and nothing is written, unless the topic asks for as many at least.
        `dedup_id`: among records to its partition that have the same one within the topic's
        `dedup.window.ms`, the first is kept; the others are told its offset, with `duplicate`.
        """
        self._thread.refuse_own()
        intake = self._open(topic)
        terms = intake.terms_of(acks, min_insync_replicas, dedup_id)
        future = intake.send(
            topic,
            value,
            key,
            partition,
            headers,
            timestamp_ms,
            True,
            self._block_s,
            terms,
            dedup_id,
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
        acks: Acks | None = None,
        min_insync_replicas: int | None = None,
        dedup_id: bytes | str | None = None,
    ) -> SendFuture:
        """Queue one record; blocks only for memory, up to max_block_ms, then BufferFull.

        Arguments as in `send`.
        """
        intake = self._open(topic)
        terms = intake.terms_of(acks, min_insync_replicas, dedup_id)
        return intake.send(
            topic,
            value,
            key,
            partition,
            headers,
            timestamp_ms,
            False,
            self._block_s,
            terms,
            dedup_id,
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
        acks: Acks | None = None,
        min_insync_replicas: int | None = None,
        dedup_ids: Iterable[bytes | str] | None = None,
    ) -> SendReport:
        """Send many records and wait until all are acknowledged.

        Raises the first error when some failed; the others are stored and said so in its notes.
        `acks` and `min_insync_replicas` count for all of them, `dedup_ids` holds one for each, as
        in `send`. Records with ids travel alone, with idempotence one of a partition for each
        answer: a failure stops the call, and calling it again with the same ids is harmless.
        """
        self._thread.refuse_own()
        intake = self._open(topic)
        terms = intake.terms_of(acks, min_insync_replicas, dedup_ids)
        given = ManyInput(topic, values, keys, headers, timestamps_ms, partition, terms, dedup_ids)
        with BulkSend(intake, topic, terms) as bulk:
            for chunk in chunks(intake, given, bulk.carried):
                while (before := bulk.awaited()) is not None:
                    before.wait(None)
                if bulk.stopped:
                    break
                bulk.add(append_chunk(intake, given, chunk, self._block_s))
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
        acks: Acks | None = None,
        min_insync_replicas: int | None = None,
    ) -> SendReport:
        """Send the rows of a table; the arguments name its columns. Waits as `send_many`.

        There are no ids of rows, since columns are not taken apart here: give the columns to
        `send_many(..., dedup_ids=)`.
        """
        self._thread.refuse_own()
        intake = self._open(topic)
        terms = intake.terms_of(acks, min_insync_replicas, None)
        functions = arrow_sending()
        given = functions.ArrowInput(topic, table, key, value, headers, timestamp, partition, terms)
        with BulkSend(intake, topic, terms) as bulk:
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
