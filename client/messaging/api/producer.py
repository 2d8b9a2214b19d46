"""The async producer: a thin layer over the engine on the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from octavo.client.messaging.api.arrow_access import arrow_sending
from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.leaving import leave_async, say_waiting
from octavo.client.messaging.api.options import Acks, Plain, UserHeaders, V
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
from octavo.client.messaging.producing.traced_intake import traced_send
from octavo.client.messaging.records import RecordMetadata
from octavo.runtime.errors import BufferFull, ProducerClosed

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncProducer(Generic[V]):
    """Sends records; made by `AsyncClient.producer()`.

    Use it in `async with`, or call `close()`: closing waits for what was sent and raises when
    something was not acknowledged (U2). A block that is cancelled waits 5 s at most (`leaving`).
    """

    def __init__(self, binding: Binding, config: ProducerConfig) -> None:
        self._binding = binding
        self._config = config
        self._engine: ProducerEngine | None = None
        self._closed = False

    def __repr__(self) -> str:
        waiting = ""
        if self._engine is not None and (count := self._engine.unacknowledged()):
            waiting = f", {count} records not acknowledged yet"
        return self._binding.describe("AsyncProducer", closed=self._closed, more=waiting)

    @property
    def config(self) -> ProducerConfig:
        """The effective settings."""
        return self._config

    def engine(self) -> ProducerEngine:
        """What is behind this producer, made on the loop at first use."""
        cluster = self._binding.cluster()
        if self._closed:
            raise ProducerClosed("the producer is closed", hint="create a new one")
        if self._engine is None:
            self._engine = ProducerEngine(cluster, self._config)
        return self._engine

    async def send(
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
        engine = self.engine()
        intake = engine.intake
        terms = intake.terms_of(acks, min_insync_replicas, dedup_id)
        if topic not in intake.topics:
            await engine.delivery.ensure_topic(topic)
        if engine.early.waiting(topic):
            await engine.early.drained(topic)
        while True:
            try:
                future = intake.send(
                    topic, value, key, partition, headers, timestamp_ms, True, 0.0, terms, dedup_id
                )
                break
            except BufferFull:
                await engine.space(intake.record_limit(topic))
        return await future

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
        """Queue one record; the future can be awaited or given callbacks. Arguments as in `send`.

        Never blocks: raises BufferFull when buffer_memory is full (`send` waits instead).
        """
        engine = self.engine()
        intake = engine.intake
        terms = intake.terms_of(acks, min_insync_replicas, dedup_id)
        if topic in intake.topics and not engine.early.waiting(topic):
            return intake.send(
                topic, value, key, partition, headers, timestamp_ms, False, 0.0, terms, dedup_id
            )

        def early(carrying: object) -> SendFuture:
            row = intake.convert(topic, value, key, carrying, timestamp_ms, dedup_id=dedup_id)
            return engine.early.send(topic, partition, row, terms)

        if intake.tracing is None:
            return early(headers)
        return traced_send(intake.tracing, topic, headers, early)

    async def send_many(
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
        engine = self.engine()
        terms = engine.intake.terms_of(acks, min_insync_replicas, dedup_ids)
        await engine.delivery.ensure_topic(topic)
        await engine.early.drained(topic)
        given = ManyInput(topic, values, keys, headers, timestamps_ms, partition, terms, dedup_ids)
        with BulkSend(engine.intake, topic, terms) as bulk:
            for chunk in chunks(engine.intake, given, bulk.carried):
                while (before := bulk.awaited()) is not None:
                    await before.wait_async()
                if bulk.stopped:
                    break
                await engine.space(chunk.size_bytes)
                bulk.add(append_chunk(engine.intake, given, chunk, 0.0))
                await asyncio.sleep(0)
            return await self._finish(bulk)

    async def send_arrow(
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
        engine = self.engine()
        terms = engine.intake.terms_of(acks, min_insync_replicas, None)
        await engine.delivery.ensure_topic(topic)
        await engine.early.drained(topic)
        columns = arrow_sending()
        given = columns.ArrowInput(topic, table, key, value, headers, timestamp, partition, terms)
        with BulkSend(engine.intake, topic, terms) as bulk:
            for rows in columns.slices(engine.intake, given):
                for batch in columns.batches(engine.intake, given, rows):
                    await engine.space(batch.size_bytes)
                    bulk.add(append_batch(engine.intake, batch, 0.0))
                await asyncio.sleep(0)
            return await self._finish(bulk)

    @staticmethod
    async def _finish(bulk: BulkSend) -> SendReport:
        bulk.expedite()
        for batch in bulk.open:
            await batch.wait_async()
        return bulk.result()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or failed.

        Raises FlushTimeout with `details["remaining"]`.
        """
        if self._engine is not None:
            self._binding.cluster()
            await self._engine.flush(timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Wait for what was sent (at most `timeout` s, else by delivery_timeout_ms) and end.

        Raises FlushTimeout or DeliveryFailed when records were not acknowledged and nobody looked
        at their futures. Closing twice is harmless.
        """
        self._closed = True
        self._binding.forget(self)
        if self._engine is not None:
            await self._engine.close(timeout)

    async def __aenter__(self) -> Self:
        self._binding.cluster()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._engine is not None:
            say_waiting(self._engine.unacknowledged, error)
        await leave_async(self.close, error)
