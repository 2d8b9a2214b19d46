"""What sinks staged goes, and no writer that comes late publishes a hole (spark §8.3, ADR 74)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.proto.sink_staging import staging_topic
from octavo.runtime.errors_of_writers import SinkEnded, StagedDataGone
from tests.sink_brokers import LONG_MS, SHORT_MS, decided_by_a_driver_that_died, rows, world


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
