"""Sinks on a broker of this process, with ledgers in memory: what drivers and tasks of Spark do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from octavo.errors import UnknownTopic
from octavo.metadata.sinks import Sink, SinkCatalog
from octavo.proto.sink_staging import staging_topic
from octavo.serving.retention_rounds import RetentionRounds
from octavo.spark.exactly_once import Committing
from octavo.spark.publication import SinkState
from octavo.spark.sink_client import SinkClient, StagedRange
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.staging import Batch, Staged, stage
from tests.serving_server import create_topic, loopback

COLUMNS = SinkColumns("value")
SINK = "query/1"
LONG_MS = 3_600_000
SHORT_MS = 100
"""Both bounds count from the broker's clock, so a test waits as long."""


class World:
    """One broker, a topic `orders`, and rounds that the test makes."""

    def __init__(
        self, client: SinkClient, address: str, sinks: SinkCatalog, rounds: RetentionRounds
    ) -> None:
        self.client = client
        self.address = address
        self.sinks = sinks
        self.round = rounds.round

    async def rounds_until(self, gone: Callable[[Sink], bool]) -> Sink:
        """Until the record says so, as a sweep does before it does anything else."""
        async with asyncio.timeout(30):
            while not gone(found := await self.sinks.read(SINK)):
                await asyncio.sleep(0.01)
                await self.round()
        return found

    async def staged(self, number: int, mark: str = "a", sink: str = SINK) -> Staged:
        values = pa.array([f"{number}/{row}/{mark}" for row in range(3)])
        return await self.staged_rows(number, [pa.record_batch({"value": values})], sink)

    async def staged_rows(
        self, number: int, batches: Iterable[pa.RecordBatch], sink: str = SINK
    ) -> Staged:
        options = WriteOptions(self.address, "orders", True)
        return await asyncio.to_thread(stage, batches, options, COLUMNS, Batch(sink, number))

    async def commit(self, number: int, *staged: Staged, sink: str = SINK) -> None:
        await Committing(self.client, Batch(sink, number), staged).run()

    async def added(self) -> list[str]:
        async with self.client.reader("orders", start="earliest") as reader:
            return sorted([(one.value or b"").decode() async for one in reader.read_to_end()])

    async def left(self, generation: int = 0) -> int:
        log = await self.client.admin.describe_log(staging_topic(SINK, generation), 0)
        return log.high_watermark - log.log_start

    async def has_topic(self, generation: int) -> bool:
        try:
            await self.client.admin.describe_topic(staging_topic(SINK, generation))
        except UnknownTopic:
            return False
        return True


@asynccontextmanager
async def world(idle_ms: int = SHORT_MS, age_ms: int = LONG_MS) -> AsyncGenerator[World]:
    async with loopback() as made:
        broker = await made.broker(
            retention_check_interval_ms=LONG_MS,
            sink_idle_ms=idle_ms,
            sink_staging_max_age_ms=age_ms,
            trash_delay_ms=0,
        )
        await create_topic(broker, "orders")
        (server,) = made.servers
        rounds = server._retention_rounds(server.ownership)  # pyright: ignore[reportPrivateUsage]
        sinks = server._sink_catalog()  # pyright: ignore[reportPrivateUsage]
        async with SinkClient(broker.address) as client:
            yield World(client, broker.address, sinks, rounds)


def rows(number: int, mark: str) -> list[str]:
    return [f"{number}/{row}/{mark}" for row in range(3)]


class Died(Exception):
    """Stands for kill -9 of a driver."""


class Dying(SinkClient):
    """A driver that dies once its batch is decided."""

    async def decide_sink(
        self, sink_id: str, batch_id: int, plan: bytes, staged: StagedRange | None
    ) -> SinkState:
        await super().decide_sink(sink_id, batch_id, plan, staged)
        raise Died


async def decided_by_a_driver_that_died(found: World) -> None:
    staged = await found.staged(0, "dead")
    async with Dying(found.address) as driver:
        with pytest.raises(Died):
            await Committing(driver, Batch(SINK, 0), [staged]).run()
