"""Writes that add each batch once: tasks stage, the driver decides and publishes (ADR 67).

`publication` says what comes next; this carries it out. The order of rows: within one task and
one partition as the task gave them. What is staged and not published is removed by the sink's next
publication.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import pyarrow as pa

from octavo.client.messaging.api.options import Plain
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.records import Record
from octavo.proto.batch_arrow import encode_arrow
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    BufferFull,
    ConfigError,
    OctavoError,
    StorageFailed,
    TopicAlreadyExists,
    UnknownTopic,
)
from octavo.spark.live import CONNECT_TIMEOUT_S
from octavo.spark.publication import SinkState, Step, may_trim, next_step
from octavo.spark.sink_client import Numbered, SinkClient
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.sink_rows import portions
from octavo.spark.staged import (
    FRAME_BYTES,
    NOTHING,
    Piece,
    PieceCount,
    Plan,
    Pointer,
    Target,
    decode_piece,
    decode_plan,
    encode_piece,
    encode_plan,
    staging_topic,
)
from octavo.spark.staging_rows import Pieces, TopicTerms

_log = logging.getLogger("octavo.spark")

CLIENT_ID = "octavo-spark-sink"
STAGING_CONFIG = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(64 << 20),
    "max.message.bytes": str(4 << 20),
}
"""What is decided and not published must stay, however long nobody comes for it."""
STAGED_AHEAD = 16
"""Pieces of a task on their way at a time."""
ROUND_BYTES = 16 << 20
"""Read from the staging topic before it is published; a round's partitions go side by side."""
TARGETS_AT_ONCE = 16
READ_TIMEOUT_S = 60.0
"""How long the next staged record is waited for."""


@dataclass(frozen=True)
class Batch:
    """A numbered batch of a sink."""

    sink_id: str
    batch_id: int


@dataclass(frozen=True)
class Staged:
    """What one attempt of a task staged."""

    attempt: bytes
    pieces: int
    first_offset: int
    """Of the staging topic; -1: it staged nothing."""
    rows: int
    was_decided: bool = False
    """The batch was decided before: there was nothing to stage."""


def connected(options: WriteOptions) -> SinkClient:
    """A client for `async with`."""
    return SinkClient(options.bootstrap, client_id=CLIENT_ID)


# --- tasks ----------------------------------------------------------------------------------------


def stage(
    rows: Iterable[pa.RecordBatch], options: WriteOptions, columns: SinkColumns, batch: Batch
) -> Staged:
    """Store the rows of one task where no reader looks; blocks until they are durable.

    Raises what is wrong with a row before its batch is decided: UnknownTopic, InvalidPartition,
    InvalidRecord, MessageTooLarge, ConfigError; else what the SDK's producer raises.
    """
    return asyncio.run(_stage(rows, options, columns, batch))


async def _stage(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, columns: SinkColumns, batch: Batch
) -> Staged:
    entropy = SystemEntropy()
    attempt = entropy.token()
    rows = 0
    async with connected(options) as client:
        await client.connect(timeout=CONNECT_TIMEOUT_S)
        state = await client.describe_sink(batch.sink_id)
        if state.batch_id >= batch.batch_id:
            rows = sum(part.num_rows for part in batches)
            return Staged(attempt, 0, -1, rows, was_decided=True)
        terms: dict[str, TopicTerms] = {}
        pieces = Pieces(columns, terms.__getitem__, entropy.below)
        async with client.producer(compression_type="none") as producer:
            staging = _Staging(client, producer, staging_topic(batch.sink_id), attempt)
            for part in batches:
                found = list(portions(part, columns, options.topic))
                for name in {portion.topic for portion in found} - terms.keys():
                    terms[name] = await topic_terms(client, name)
                for portion in found:
                    for target, piece in pieces.add(portion):
                        await staging.add(target, piece)
                rows += part.num_rows
            for target, piece in pieces.rest():
                await staging.add(target, piece)
            await staging.finish()
    return Staged(attempt, staging.pieces, staging.first_offset, rows)


async def topic_terms(client: SinkClient, name: str) -> TopicTerms:
    """What a topic takes; raises UnknownTopic, and ConfigError for one with a writer of its own."""
    described = await client.admin.describe_topic(name)
    view = await client.topic_view(name)
    settings = described.effective or described.config
    if settings.get("exclusive.writer") == "true":
        raise ConfigError(
            f"topic {name!r} takes records of its exclusive writer only",
            hint='write at least once, or set exclusive.writer=false: "octavo topic set"',
            option="topic",
        )
    return TopicTerms(
        name,
        view.topic_id,
        view.partitions,
        view.writable,
        min(view.record_bytes_max, client.record_bytes_max - FRAME_BYTES),
        view.batch_bytes_max,
        needs_keys="compact" in settings.get("cleanup.policy", ""),
    )


class _Staging:
    """Pieces of one attempt on their way into the staging topic."""

    def __init__(
        self, client: SinkClient, producer: AsyncProducer[Plain], topic: str, attempt: bytes
    ) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._attempt = attempt
        self._sent: deque[SendFuture] = deque()
        self._settled = False
        self.pieces = 0
        self.first_offset = -1
        """Of the staging topic: no piece lies before it; -1: there is none."""

    async def add(self, target: Target, rows: pa.RecordBatch) -> None:
        """Queue one; waits while STAGED_AHEAD are on their way."""
        if not self.pieces:
            await ensure_staging(self._client, self._topic)
        piece = Piece(self._attempt, self.pieces, target, rows)
        value, headers = encode_piece(piece)
        self.pieces += 1
        while True:
            if len(self._sent) >= STAGED_AHEAD:
                await self._settle()
            try:
                sent = self._producer.send_nowait(self._topic, value, headers=headers, partition=0)
                break
            except BufferFull:
                if not self._sent:
                    raise
                await self._settle()
        self._sent.append(sent)

    async def finish(self) -> None:
        """Wait until all are durable."""
        if self._sent:
            await self._producer.flush()
        while self._sent:
            await self._settle()

    async def _settle(self) -> None:
        stored = await self._sent.popleft()
        if not self._settled:
            self.first_offset = max(stored.offset, 0)  # not known of one that was sent twice
        self._settled = True


async def ensure_staging(client: SinkClient, topic: str) -> None:
    """The staging topic exists, with one partition: its order is that of all pieces."""
    try:
        await client.admin.describe_topic(topic)
    except UnknownTopic:
        try:
            await client.admin.create_topic(topic, partitions=1, config=STAGING_CONFIG)
        except TopicAlreadyExists:
            return  # by another task


# --- the driver -----------------------------------------------------------------------------------


def commit(options: WriteOptions, batch: Batch, staged: Sequence[Staged], *, is_last: bool) -> None:
    """Decide and publish a batch; returns once all of it can be read.

    `is_last`: the sink has no other batch, so nothing of it is staged any more. Raises what kept
    it from being published; calling it again, with whatever is staged then, finishes it.
    """
    asyncio.run(_commit(options, batch, staged, is_last=is_last))


async def _commit(
    options: WriteOptions, batch: Batch, staged: Sequence[Staged], *, is_last: bool
) -> None:
    async with connected(options) as client:
        await client.connect(timeout=CONNECT_TIMEOUT_S)
        committing = Committing(client, batch, staged)
        await committing.run()
        if is_last:
            await _remove_staging(client, staging_topic(batch.sink_id))


async def _remove_staging(client: SinkClient, topic: str) -> None:
    """Of a sink whose only batch is published."""
    try:
        await client.admin.delete_topic(topic)
    except UnknownTopic:
        return  # nothing was staged, or somebody else removed it


class Committing:
    """One batch on its way from staged to published; `run` may be given up at any step."""

    def __init__(self, client: SinkClient, batch: Batch, staged: Sequence[Staged]) -> None:
        self._client = client
        self._batch = batch
        self._staged = [one for one in staged if one.pieces]
        self._incomplete = any(one.was_decided for one in staged)

    async def run(self) -> None:
        """Until all of the batch is in the log; see `commit`."""
        client, batch = self._client, self._batch
        state = await client.describe_sink(batch.sink_id)
        if may_trim(state, batch.batch_id):  # whoever published it may have died before
            await self._trim(Pointer.from_bytes(state.plan))
        while True:
            match next_step(state, batch.batch_id):
                case Step.DONE:
                    return
                case Step.PUBLISH:
                    state = await self._publish(state)
                case Step.DECIDE:
                    if self._incomplete:
                        raise StorageFailed(
                            f"batch {batch.batch_id} of sink {batch.sink_id!r} was decided when "
                            "its tasks ran, and is not any more",
                            hint="was the metadata restored meanwhile? run the batch again",
                        )
                    plan = await self._planned() if self._staged else NOTHING.to_bytes()
                    state = await client.decide_sink(batch.sink_id, batch.batch_id, plan)

    async def _planned(self) -> bytes:
        """Store the plan behind all that it names."""
        topic = staging_topic(self._batch.sink_id)
        described = await self._client.admin.describe_topic(topic)
        plan = Plan(
            self._batch.batch_id,
            {one.attempt: one.pieces for one in self._staged},
            min(one.first_offset for one in self._staged),
        )
        value, headers = encode_plan(plan)
        async with self._client.producer() as producer:
            stored = await producer.send(topic, value, headers=headers, partition=0)
        return Pointer(topic, described.topic_id, stored.offset).to_bytes()

    async def _publish(self, state: SinkState) -> SinkState:
        """Send what is decided and note it; the state after it.

        Somebody else may do the same, and have removed what is staged: then it is published.
        """
        client, sink_id = self._client, self._batch.sink_id
        pointer = Pointer.from_bytes(state.plan)
        try:
            if pointer != NOTHING:
                await _Publishing(client, state, pointer).run()
        except OctavoError:
            now = await client.describe_sink(sink_id)
            if (now.batch_id, now.is_published) == (state.batch_id, state.is_published):
                raise
            return now
        await client.published_sink(sink_id, state.batch_id)
        await self._trim(pointer)
        return await client.describe_sink(sink_id)

    async def _trim(self, pointer: Pointer) -> None:
        """Remove what was staged up to a published plan: all of it is of this batch or before."""
        if pointer == NOTHING:
            return
        try:
            described = await self._client.admin.describe_topic(pointer.topic)
            if described.topic_id == pointer.topic_id:  # else it was made anew
                await self._client.admin.delete_records(pointer.topic, 0, before=pointer.offset + 1)
        except UnknownTopic:
            return  # somebody else removed all of it
        except OctavoError as error:
            _log.warning("%s is published, what was staged stays for now: %s", self._batch, error)


class _Publishing:
    """Sends one decided batch."""

    def __init__(self, client: SinkClient, state: SinkState, pointer: Pointer) -> None:
        self._client = client
        self._state = state
        self._pointer = pointer
        self._next: dict[Target, int] = {}
        self._wall_ms = SystemClock().wall_ms

    async def run(self) -> None:
        """Raises StorageFailed when what is staged is not what was decided."""
        pointer = self._pointer
        described = await self._client.admin.describe_topic(pointer.topic)
        if described.topic_id != pointer.topic_id:
            raise StorageFailed(f"the staging topic {pointer.topic!r} was made anew")
        plan = await self._plan()
        count, waiting, size_bytes = PieceCount(plan), list[Piece](), 0
        log = await self._client.admin.describe_log(pointer.topic, 0)
        async with aclosing(self._records(max(plan.first_offset, log.log_start))) as records:
            async for record in records:
                piece = decode_piece(record.value, record.headers, plan.attempts)
                if piece is None:
                    continue
                count.seen(piece)
                waiting.append(piece)
                size_bytes += piece.rows.nbytes
                if size_bytes >= ROUND_BYTES:
                    await self._send(waiting)
                    waiting, size_bytes = [], 0
        count.check_complete()
        await self._send(waiting)

    async def _plan(self) -> Plan:
        async with aclosing(self._records(self._pointer.offset)) as records:
            async for record in records:
                plan = decode_plan(record.value, record.headers)
                if plan.batch_id == self._state.batch_id:
                    return plan
        raise StorageFailed(f"batch {self._state.batch_id} is decided and its plan is gone")

    async def _records(self, start: int) -> AsyncGenerator[Record, None]:
        """Of the staging topic, from `start` up to the plan."""
        topic, end = self._pointer.topic, self._pointer.offset
        async with self._client.reader(
            topic, start=start, partitions=[0], auto_offset_reset="none"
        ) as reader:
            while True:
                found = await reader.poll(max_records=STAGED_AHEAD, timeout=READ_TIMEOUT_S)
                if not found:
                    raise StorageFailed(
                        f"the staging topic {topic!r} gave no record within {READ_TIMEOUT_S:g} s"
                    )
                for record in found:
                    if record.offset > end:
                        return
                    yield record
                    if record.offset == end:
                        return

    async def _send(self, pieces: Sequence[Piece]) -> None:
        """One round: partitions side by side, each in its order."""
        by_target: dict[Target, list[Piece]] = {}
        for piece in pieces:
            by_target.setdefault(piece.target, []).append(piece)
        gate = asyncio.Semaphore(TARGETS_AT_ONCE)

        async def one(target: Target, of: Sequence[Piece]) -> None:
            numbered = [self._numbered(target, piece.rows) for piece in of]
            async with gate:
                await self._client.store(target, numbered)

        try:
            async with asyncio.TaskGroup() as sending:
                for target, of in by_target.items():
                    sending.create_task(one(target, of))
        except* OctavoError as failed:
            raise failed.exceptions[0] from None

    def _numbered(self, target: Target, rows: pa.RecordBatch) -> Numbered:
        base = self._next.get(target, 0)
        self._next[target] = base + rows.num_rows
        stamps = pa.repeat(pa.scalar(self._wall_ms(), pa.int64()), rows.num_rows)
        producer = (self._state.producer_id, self._state.producer_epoch, base)
        payload = encode_arrow(
            stamps,
            rows.column("key"),
            rows.column("value"),
            rows.column("headers"),
            producer=producer,
        )
        return Numbered(base, payload)
