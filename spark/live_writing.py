"""Rows on their way to a cluster: Spark's tasks produce with the SDK (design.md §7, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa

from octavo.client.messaging import AsyncClient
from octavo.client.messaging.api.options import Plain
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.runtime.errors import OctavoError
from octavo.spark.live import CONNECT_TIMEOUT_S
from octavo.spark.loop_bridge import pulled
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.sink_rows import Portion, portions

CLIENT_ID = "octavo-spark-sink"
PORTIONS_AT_ONCE = 16
"""Targets of one record batch that are sent side by side; memory is the producer's buffer."""


def check_topic(options: WriteOptions) -> None:
    """Raise unless the cluster answers and has the topic that all rows go to.

    BrokerUnavailable, UnknownTopic. Topics that rows name are looked for when rows come.
    """

    async def run() -> None:
        async with _connected(options):
            pass

    asyncio.run(run())


def produce(batches: Iterable[pa.RecordBatch], options: WriteOptions, columns: SinkColumns) -> int:
    """Send all rows and wait until they are acknowledged; returns how many.

    Raises UnknownTopic, and what the producer raises. What was sent before that stays: a task that
    is run again sends its rows again.
    """

    async def run() -> int:
        sent = 0
        async with _connected(options) as client, client.producer() as producer:
            known = {options.topic}
            async for rows in pulled(batches):
                parts = list(portions(rows, columns, options.topic))
                for name in {part.topic for part in parts} - known:
                    await client.admin.describe_topic(name)  # a producer would wait for it (F031)
                    known.add(name)
                await _send(producer, parts, columns)
                sent += rows.num_rows
        return sent

    return asyncio.run(run())


@asynccontextmanager
async def _connected(options: WriteOptions) -> AsyncGenerator[AsyncClient, None]:
    """A client of a cluster that answers and has the topic: a producer would wait for it (F031)."""
    async with AsyncClient(options.bootstrap, client_id=CLIENT_ID) as client:
        await client.connect(timeout=CONNECT_TIMEOUT_S)
        if options.topic is not None:
            await client.admin.describe_topic(options.topic)
        yield client


async def _send(
    producer: AsyncProducer[Plain], parts: Sequence[Portion], columns: SinkColumns
) -> None:
    gate = asyncio.Semaphore(PORTIONS_AT_ONCE)

    async def one(part: Portion) -> None:
        async with gate:
            await producer.send_arrow(
                part.topic,
                part.rows,
                key=columns.key,
                value=columns.value,
                headers=columns.headers,
                partition=part.partition,
            )

    try:
        async with asyncio.TaskGroup() as sending:
            for part in parts:
                sending.create_task(one(part))
    except* OctavoError as failed:
        raise failed.exceptions[0] from None  # Spark shows one error
