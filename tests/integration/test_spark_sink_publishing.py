"""Batches of sinks on a broker of this process: what is added, and what is said (spark §14.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pytest

from octavo.errors import InconsistentTopicId, OctavoError, UnknownTopic
from octavo.spark import sink_client
from octavo.spark.exactly_once import Committing
from octavo.spark.sink_client import SinkClient
from octavo.spark.staging import Batch
from tests.fake_broker import FakeCluster
from tests.sink_brokers import LONG_MS, decided_by_a_driver_that_died, rows, world


async def test_two_queries_on_one_topic_add_what_is_theirs() -> None:
    """Batches of the same number, decided and published in each other's middle."""
    async with world() as found:
        first = await found.staged(0, "one")
        second = await found.staged(0, "two", sink="query/2")
        await asyncio.gather(found.commit(0, first), found.commit(0, second, sink="query/2"))
        await found.commit(1, await found.staged(1, "two", sink="query/2"), sink="query/2")
        await found.commit(1, await found.staged(1, "one"))
        assert await found.added() == sorted(
            row for number in (0, 1) for mark in ("one", "two") for row in rows(number, mark)
        )


async def test_a_fresh_checkpoint_appends_and_an_old_one_does_not() -> None:
    async with world() as found:
        await found.commit(0, await found.staged(0))
        replayed = await found.staged(0, "replayed")
        assert replayed.was_decided
        await found.commit(0, replayed)
        assert await found.added() == rows(0, "a")
        await found.commit(0, await found.staged(0, "fresh", sink="query/2"), sink="query/2")
        assert await found.added() == sorted(rows(0, "a") + rows(0, "fresh"))


async def test_a_checkpoint_that_another_cluster_does_not_know_goes_on_there() -> None:
    async with world() as found:
        await found.commit(7, await found.staged(7))
        assert await found.added() == rows(7, "a")


async def test_of_a_task_that_failed_and_of_one_that_ran_twice_one_attempt_counts() -> None:
    """Speculative execution: both attempts end well, Spark commits one of them."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array([b"x" * 400_000] * 4)})  # more than a piece
        raise ZeroDivisionError

    async with world() as found:
        with pytest.raises(ZeroDivisionError):
            await found.staged_rows(0, failing())
        speculative, slow = await asyncio.gather(
            found.staged(0, "speculative"), found.staged(0, "slow")
        )
        assert await found.left() > 2  # pieces of the task that failed as well
        assert await found.added() == []
        await found.commit(0, slow)
        assert await found.added() == rows(0, "slow")
        assert speculative.attempt != slow.attempt
        assert await found.left() == 0


async def test_a_lost_reply_of_the_decision_decides_nothing_twice(fake: FakeCluster) -> None:
    """Over the wire: the request is asked again, of another broker, and told the same."""
    for broker in fake.brokers:
        broker.faults.lose_decisions = 1
    async with SinkClient(fake.bootstrap, retry_backoff_ms=10) as client:
        mine = await client.decide_sink("s", 0, b"mine", None)
        assert not any(broker.faults.lose_decisions for broker in fake.brokers)
        assert (mine.plan, mine.producer_epoch) == (b"mine", 0)
        assert await client.decide_sink("s", 0, b"other", None) == mine
        assert await client.describe_sink("s") == mine


@pytest.mark.parametrize(("again", "error"), [(False, UnknownTopic), (True, InconsistentTopicId)])
async def test_a_batch_whose_topic_went_says_at_once_that_it_stays_decided_and_how_to_end_it(
    monkeypatch: pytest.MonkeyPatch, again: bool, error: type[OctavoError]
) -> None:
    monkeypatch.setattr(sink_client, "BATCH_TIMEOUT_S", 3600.0)
    async with world() as found, asyncio.timeout(60):
        await decided_by_a_driver_that_died(found)
        await found.client.admin.delete_topic("orders")
        if again:
            await found.client.admin.create_topic("orders", partitions=1)
        with pytest.raises(error) as raised:
            await Committing(found.client, Batch("query/1", 0), []).run()
        assert "batch 0 stays decided" in raised.value.hint
        assert "octavo sink end query/1" in raised.value.hint


async def test_what_is_under_way_is_stored_while_spark_makes_the_next_rows() -> None:
    """A user's function may take minutes for them, longer than a piece may be under way."""
    loop = asyncio.get_running_loop()
    async with world(idle_ms=LONG_MS) as found:

        async def stored(pieces: int) -> None:
            async with asyncio.timeout(60):
                there = 0
                while there < pieces:
                    await asyncio.sleep(0.01)
                    there = await found.left() if await found.has_topic(0) else 0

        def slowly() -> Iterator[pa.RecordBatch]:
            for pieces in (8, 16):
                yield pa.record_batch({"value": pa.array([b"x" * 400_000] * 8)})
                asyncio.run_coroutine_threadsafe(stored(pieces - 1), loop).result()

        staged = await found.staged_rows(0, slowly())
        assert (staged.rows, staged.pieces) == (16, 16)
        await found.commit(0, staged)
        assert len(await found.added()) == 16
