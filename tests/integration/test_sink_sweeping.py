"""What sinks staged goes, and no writer that comes late publishes a hole (spark §8.3, ADR 74)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from octavo.errors import UnknownTopic
from octavo.metadata.sinks import Sink, SinkCatalog
from octavo.proto.sink_staging import staging_topic
from octavo.runtime.errors_of_writers import SinkEnded, StagedDataGone
from octavo.serving.retention_rounds import RetentionRounds
from octavo.spark.exactly_once import Committing
from octavo.spark.publication import SinkState
from octavo.spark.sink_client import SinkClient, StagedRange
from octavo.spark.sink_options import SinkColumns, WriteOptions
from octavo.spark.staging import Batch, Staged, stage
from tests.serving_server import create_topic, loopback

COLUMNS = SinkColumns("value")
LONG_MS = 3_600_000
SHORT_MS = 100
"""Both bounds count from the broker's clock, so a test waits as long."""


class World:
    """One sink, one broker, and rounds that the test makes."""

    def __init__(
        self, client: SinkClient, address: str, sinks: SinkCatalog, rounds: RetentionRounds
    ) -> None:
        self.client = client
        self.address = address
        self.sinks = sinks
        self.round = rounds.round

    async def rounds_until(self, gone: Callable[[Sink], bool]) -> Sink:
        """Until the record says so, as a sweep does before it does anything else."""
        async with asyncio.timeout(20):
            while not gone(found := await self.sinks.read("query/1")):
                await asyncio.sleep(0.01)
                await self.round()
        return found

    async def staged(self, number: int, mark: str = "a", rows: int = 3) -> Staged:
        options = WriteOptions(self.address, "orders", True)
        values = pa.array([f"{number}/{row}/{mark}" for row in range(rows)])
        batches = [pa.record_batch({"value": values})]
        return await asyncio.to_thread(stage, batches, options, COLUMNS, Batch("query/1", number))

    async def commit(self, number: int, *staged: Staged) -> None:
        await Committing(self.client, Batch("query/1", number), staged).run()

    async def added(self) -> list[str]:
        async with self.client.reader("orders", start="earliest") as reader:
            return sorted([(one.value or b"").decode() async for one in reader.read_to_end()])

    async def left(self, generation: int = 0) -> int:
        log = await self.client.admin.describe_log(staging_topic("query/1", generation), 0)
        return log.high_watermark - log.log_start

    async def has_topic(self, generation: int) -> bool:
        try:
            await self.client.admin.describe_topic(staging_topic("query/1", generation))
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


async def test_a_writer_that_was_frozen_for_too_long_is_refused_and_its_successor_is_not() -> None:
    async with world() as found:
        late = await found.staged(0, "late")
        assert await found.left() == 1
        await found.rounds_until(lambda sink: sink.swept_to == 1)
        assert await found.left() == 0
        with pytest.raises(StagedDataGone, match="left for too long"):
            await found.commit(0, late)
        assert await found.added() == []
        await found.commit(0, await found.staged(0, "again"))
        with pytest.raises(StagedDataGone):
            await found.commit(1, late)  # nor later
        await found.commit(0, late)  # it is published, and there is nothing to do
        assert await found.added() == rows(0, "again")


async def test_what_is_young_stays_and_a_batch_that_takes_less_is_committed() -> None:
    async with world(idle_ms=LONG_MS) as found:
        staged = await found.staged(0)
        await found.round()
        assert await found.left() == 1
        await found.commit(0, staged)
        assert await found.added() == rows(0, "a")


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
            await Committing(driver, Batch("query/1", 0), [staged]).run()


async def test_what_is_decided_stays_until_somebody_publishes_it() -> None:
    async with world(age_ms=SHORT_MS) as found:
        await decided_by_a_driver_that_died(found)
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 4 * SHORT_MS / 1000:
            await found.round()
            await asyncio.sleep(0.02)
        assert await found.left() == 2
        await found.commit(0)
        assert await found.added() == rows(0, "dead")
        assert await found.left() == 0


async def test_an_operator_ends_a_sink_and_what_it_staged_goes() -> None:
    async with world(idle_ms=LONG_MS) as found:
        await decided_by_a_driver_that_died(found)
        await found.sinks.end("query/1")
        await found.round()
        assert not await found.has_topic(0)
        with pytest.raises(SinkEnded):
            await found.staged(1)
        for number in (0, 1):
            with pytest.raises(SinkEnded):
                await found.commit(number)
        assert await found.added() == []


async def test_a_query_goes_on_in_a_new_topic_after_its_own_went() -> None:
    """Nothing is lost, nothing comes twice; who staged in the old one is refused."""
    async with world(age_ms=SHORT_MS) as found:
        await found.commit(0, await found.staged(0))
        late = await found.staged(1, "late")
        await found.rounds_until(lambda sink: sink.generation == 1)
        assert not await found.has_topic(0)
        with pytest.raises(StagedDataGone, match="deleted before its batch was decided"):
            await found.commit(1, late)
        again = await found.staged(0, "again")
        assert again.was_decided
        await found.commit(0, again)
        await found.commit(1, await found.staged(1, "new"))
        assert await found.has_topic(1)
        assert await found.added() == rows(0, "a") + rows(1, "new")


async def test_a_stale_task_that_makes_the_old_topic_anew_does_no_harm() -> None:
    """It is refused, and its topic goes without waiting."""
    async with world(idle_ms=LONG_MS) as found:
        first = await found.staged(0, "first")
        assert await found.sinks.retire(await found.sinks.read("query/1"))
        late = await found.staged(0, "second")
        assert (first.generation, late.generation) == (0, 1)
        await found.round()
        assert not await found.has_topic(0)
        await found.client.admin.create_topic(staging_topic("query/1"), partitions=1)
        with pytest.raises(StagedDataGone, match="deleted and made again"):
            await found.commit(0, first)
        with pytest.raises(StagedDataGone):  # of two topics
            await found.commit(0, first, late)
        await found.round()
        assert not await found.has_topic(0)
        await found.commit(0, late)
        assert await found.added() == rows(0, "second")


async def test_a_broker_dies_between_the_record_and_the_deed_and_the_next_round_goes_on() -> None:
    async with world(idle_ms=LONG_MS) as found:
        staged = await found.staged(0)
        assert await found.sinks.sweep(await found.sinks.read("query/1"), 1)
        with pytest.raises(StagedDataGone):
            await found.commit(0, staged)
        await found.round()
        assert await found.left() == 1  # the plan, which nobody decided on
        assert await found.sinks.retire(await found.sinks.read("query/1"))
        await found.round()
        assert not await found.has_topic(0)
        await found.commit(0, await found.staged(0, "b"))
        assert await found.added() == rows(0, "b")


async def test_topics_that_nobody_stages_in_are_left_alone() -> None:
    async with world(age_ms=SHORT_MS) as found:
        unknown = staging_topic("query/of-an-older-client")
        for name in ("spark-staging-mine", unknown):
            await found.client.admin.create_topic(name, partitions=1)
        await found.commit(0, await found.staged(0))
        await found.rounds_until(lambda sink: sink.generation == 1)
        names = {topic.name for topic in await found.client.admin.list_topics()}
        assert {"spark-staging-mine", unknown} <= names
