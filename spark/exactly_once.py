"""Writes that add each batch once: tasks stage, the driver decides and publishes (ADR 67).

`publication` says what comes next; this carries it out. The order of rows: within one task and
one partition as the task gave them. What is staged and not published is removed by the sink's next
publication, or by the brokers when none comes (ADR 74); a batch whose staged rows went so is
refused its decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from octavo.client.messaging.records import Record
from octavo.proto.batch_arrow import encode_arrow
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import (
    OctavoError,
    StorageFailed,
    UnknownTopic,
)
from octavo.runtime.errors_of_writers import StagedDataGone
from octavo.spark.live import CONNECT_TIMEOUT_S
from octavo.spark.publication import SinkState, Step, may_trim, next_step
from octavo.spark.sink_client import Numbered, SinkClient, StagedRange
from octavo.spark.sink_options import WriteOptions
from octavo.spark.staged import (
    NOTHING,
    Piece,
    PieceCount,
    Plan,
    Pointer,
    Target,
    decode_piece,
    decode_plan,
    encode_plan,
)
from octavo.spark.staging import (
    STAGED_AHEAD,
    Batch,
    Staged,
    connected,
    gone_is_told,
)

_log = logging.getLogger("octavo.spark")

ROUND_BYTES = 16 << 20
"""Read from the staging topic before it is published; a round's partitions go side by side."""
TARGETS_AT_ONCE = 16
READ_TIMEOUT_S = 60.0
"""How long the next staged record is waited for."""


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
        state = await committing.run()
        if is_last:
            await _remove_staging(client, staging_topic(batch.sink_id, state.generation))


async def _remove_staging(client: SinkClient, topic: str) -> None:
    """Of a sink whose only batch is published: that is what counts, brokers sweep the rest."""
    try:
        await client.admin.delete_topic(topic)
    except UnknownTopic:
        return  # nothing was staged, or somebody else removed it
    except OctavoError as error:
        _log.warning("all rows are added, the staging topic stays for now: %s", error)


class Committing:
    """One batch on its way from staged to published; `run` may be given up at any step."""

    def __init__(self, client: SinkClient, batch: Batch, staged: Sequence[Staged]) -> None:
        self._client = client
        self._batch = batch
        self._staged = [one for one in staged if one.pieces]
        self._incomplete = any(one.was_decided for one in staged)

    async def run(self) -> SinkState:
        """Until all of the batch is in the log; the state then. See `commit`."""
        client, batch = self._client, self._batch
        state = await client.describe_sink(batch.sink_id)
        if may_trim(state, batch.batch_id):  # whoever published it may have died before
            await self._trim(Pointer.from_bytes(state.plan))
        while True:
            match next_step(state, batch.batch_id):
                case Step.DONE:
                    return state
                case Step.PUBLISH:
                    state = await self._publish(state)
                case Step.DECIDE:
                    if self._incomplete:
                        raise StorageFailed(
                            f"batch {batch.batch_id} of sink {batch.sink_id!r} was decided when "
                            "its tasks ran, and is not any more",
                            hint="was the metadata restored meanwhile? run the batch again",
                        )
                    plan, staged = NOTHING, None
                    if self._staged:
                        with gone_is_told(batch.sink_id):
                            plan, staged = await self._planned()
                    state = await client.decide_sink(
                        batch.sink_id, batch.batch_id, plan.to_bytes(), staged
                    )

    async def _planned(self) -> tuple[Pointer, StagedRange]:
        """Store the plan behind all that it names; where that lies.

        Raises UnknownTopic, InconsistentTopicId, StagedDataGone: some of it is not there any more.
        """
        lives = {(one.generation, one.topic_id) for one in self._staged}
        generation = min(lives)[0]
        topic = staging_topic(self._batch.sink_id, generation)
        described = await self._client.admin.describe_topic(topic)
        if lives != {(generation, described.topic_id)}:
            raise StagedDataGone(
                f"the staging topic {topic!r} was deleted and made again while tasks wrote to it"
            )
        first_offset = min(one.first_offset for one in self._staged)
        plan = Plan(
            self._batch.batch_id,
            {one.attempt: one.pieces for one in self._staged},
            first_offset,
        )
        value, headers = encode_plan(plan)
        async with self._client.producer() as producer:
            stored = await producer.send(topic, value, headers=headers, partition=0)
        if stored.offset < 0:  # a decision could not be taken back
            raise StorageFailed("where the plan was stored is not known; run the batch again")
        pointer = Pointer(topic, described.topic_id, stored.offset)
        return pointer, StagedRange(generation, first_offset)

    async def _publish(self, state: SinkState) -> SinkState:
        """Send what is decided and note it; the state after it.

        Somebody else may do the same, and have removed what is staged: then it is published.
        """
        client, sink_id = self._client, self._batch.sink_id
        pointer = Pointer.from_bytes(state.plan)
        try:
            if pointer != NOTHING:
                await _Publishing(client, state, pointer).run()
        except OctavoError as error:
            now = await client.describe_sink(sink_id)
            if (now.batch_id, now.is_published) == (state.batch_id, state.is_published):
                error.hint = "; ".join(filter(None, (error.hint, stays_decided(sink_id, state))))
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


def stays_decided(sink_id: str, state: SinkState) -> str:
    """What to do about a batch that could not be published."""
    return (
        f"batch {state.batch_id} stays decided and is published by the next start of the query; if "
        f"its topic can never take it: `octavo sink end {sink_id}` and a new checkpoint or txnId"
    )


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
