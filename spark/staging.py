"""What tasks do for a write that adds each batch once: they stage their rows (ADR 67).

A task stores its rows in the sink's staging topic, where no reader looks, and tells the driver what
it stored and in which life of that topic. Nothing of it counts before the driver's decision; what
is never decided on goes some day (ADR 74), and then the decision is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from octavo.client.messaging.api.options import Plain
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.client.messaging.producing.futures import SendFuture
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    BufferFull,
    ConfigError,
    InconsistentTopicId,
    TopicAlreadyExists,
    UnknownTopic,
)
from octavo.runtime.errors_of_writers import StagedDataGone
from octavo.spark.live import CONNECT_TIMEOUT_S
from octavo.spark.loop_bridge import pulled
from octavo.spark.publication import SinkState, next_step
from octavo.spark.sink_client import SinkClient
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.sink_rows import portions
from octavo.spark.staged import (
    FRAME_BYTES,
    Piece,
    Target,
    encode_piece,
)
from octavo.spark.staging_rows import Pieces, TopicTerms

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
PLACES_MAX = 8
"""How often a staging topic is looked for that others delete meanwhile,"""
PLACE_PAUSE_S = 0.5
"""and how much longer each pause between is than the one before."""


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
    generation: int = 0
    """Of the staging topic."""
    topic_id: str = ""
    """Its life; empty: it staged nothing."""


class Place(NamedTuple):
    """A staging topic."""

    topic: str
    topic_id: str
    generation: int
    start: int
    """What is staged from now on does not lie before this offset."""


def connected(options: WriteOptions) -> SinkClient:
    """A client for `async with`."""
    return SinkClient(options.bootstrap, client_id=CLIENT_ID)


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
        next_step(state, batch.batch_id)  # raises SinkEnded
        if state.batch_id >= batch.batch_id:
            rows = sum(part.num_rows for part in batches)
            return Staged(attempt, 0, -1, rows, was_decided=True)
        terms: dict[str, TopicTerms] = {}
        pieces = Pieces(columns, terms.__getitem__, entropy.below)
        async with client.producer(compression_type="none") as producer:
            staging = _Staging(client, producer, batch.sink_id, state, attempt)
            async for part in pulled(batches):  # pieces are acknowledged meanwhile
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
    place = staging.place
    if place is None:
        return Staged(attempt, 0, -1, rows)
    return Staged(
        attempt,
        staging.pieces,
        staging.first_offset,
        rows,
        generation=place.generation,
        topic_id=place.topic_id,
    )


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
        self,
        client: SinkClient,
        producer: AsyncProducer[Plain],
        sink_id: str,
        state: SinkState,
        attempt: bytes,
    ) -> None:
        self._client = client
        self._producer = producer
        self._sink_id = sink_id
        self._state = state
        self.place: Place | None = None
        """None until there is something to stage."""
        self._attempt = attempt
        self._sent: deque[SendFuture] = deque()
        self._settled = False
        self.pieces = 0
        self.first_offset = -1
        """Of the staging topic: no piece lies before it; -1: there is none."""

    async def add(self, target: Target, rows: pa.RecordBatch) -> None:
        """Queue one; waits while STAGED_AHEAD are on their way."""
        if self.place is None:
            self.place = await staging_place(self._client, self._sink_id, self._state)
        topic = self.place.topic
        piece = Piece(self._attempt, self.pieces, target, rows)
        value, headers = encode_piece(piece)
        self.pieces += 1
        while True:
            if len(self._sent) >= STAGED_AHEAD:
                await self._settle()
            try:
                sent = self._producer.send_nowait(topic, value, headers=headers, partition=0)
                break
            except BufferFull:
                if not self._sent:
                    raise
                await self._settle()
        self._sent.append(sent)

    async def finish(self) -> None:
        """Wait until all are durable."""
        with gone_is_told(self._sink_id):
            if self._sent:
                await self._producer.flush()
            while self._sent:
                await self._settle()

    async def _settle(self) -> None:
        with gone_is_told(self._sink_id):
            stored = await self._sent.popleft()
        if not self._settled and self.place is not None:
            # The offset of a record that was sent twice is not known.
            self.first_offset = max(stored.offset, self.place.start)
        self._settled = True


async def staging_place(client: SinkClient, sink_id: str, state: SinkState) -> Place:
    """The sink's staging topic, made if need be, with one partition: its order is that of all
    pieces.

    The sink is opened before its topic is made, so that the brokers know whose it is.
    """
    for attempt in range(PLACES_MAX):
        topic = staging_topic(sink_id, state.generation)
        try:
            found = await client.admin.describe_topic(topic)
            return Place(topic, found.topic_id, state.generation, state.swept_to)
        except UnknownTopic:
            opened = await client.open_sink(sink_id)
            if opened.generation == state.generation:
                with suppress(TopicAlreadyExists):  # by another task, or it is being deleted
                    await client.admin.create_topic(topic, partitions=1, config=STAGING_CONFIG)
            state = opened  # of a later generation if it was swept as a whole meanwhile
        await SystemClock().sleep(PLACE_PAUSE_S * attempt)
    raise StagedDataGone(f"the staging topic of sink {sink_id!r} is deleted again and again")


@contextmanager
def gone_is_told(sink_id: str) -> Generator[None]:
    """Tell the end of the staging topic from that of a topic of the user."""
    try:
        yield
    except (UnknownTopic, InconsistentTopicId) as error:
        raise StagedDataGone(
            f"the staging topic of sink {sink_id!r} was deleted before its batch was decided"
        ) from error
