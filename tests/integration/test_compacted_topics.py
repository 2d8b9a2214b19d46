"""Compacted topics through brokers and the SDK: gaps, tables, and brokers that die (K4, F086)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from octavo import Client, TopicPartition
from octavo.client.messaging.api.client import AsyncClient
from octavo.runtime.errors import (
    DeserializationFailed,
    IllegalStateError,
    InvalidRecord,
    InvalidRequest,
    UnknownTopic,
)
from octavo.testing import LocalCluster
from tests.serving_server import loopback

COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
HERE = TopicPartition("t", 0)


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    async with loopback() as cluster:
        broker = await cluster.broker()
        async with AsyncClient(broker.address) as made:
            yield made


async def write(client: AsyncClient, *rows: tuple[bytes, bytes | None], topic: str = "t") -> None:
    async with client.producer() as producer:
        for key, value in rows:
            await producer.send(topic, value, key=key)


async def test_readers_go_over_gaps_and_stop_at_the_end(client: AsyncClient) -> None:
    """K4, F3: rows, Arrow, positions and ends where records are missing, also at the end."""
    await client.admin.create_topic("t", 1, COMPACTED)
    await write(client, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"a", b"3"))
    done = await client.admin.compact("t", 0)
    assert (done.cleaned_to, done.records_removed) == (5, 3)
    assert done.bytes_after < done.bytes_before
    await write(client, (b"a", None))
    await client.admin.compact("t", 0)
    done = await client.admin.compact("t", 0)
    assert (done.cleaned_to, done.records_removed) == (6, 1)
    assert await client.admin.list_offsets("t", "latest") == {0: 6}
    assert await client.admin.list_offsets("t", 0) == {0: None}
    async with client.reader("t") as reader:
        assert [record.offset async for record in reader.read_to_end()] == []
        assert await reader.position(HERE) == 6
    await write(client, (b"c", b"9"))
    async with client.reader("t", start=2) as reader:
        assert [(r.offset, r.key) async for r in reader.read_to_end()] == [(6, b"c")]
    async with client.reader("t") as reader:
        table = await reader.poll_arrow(timeout=60)
        assert table is not None
        assert table.column("offset").to_pylist() == [6]


async def test_what_is_no_compacted_topic_is_told(client: AsyncClient) -> None:
    await client.admin.create_topic("t", 1)
    with pytest.raises(InvalidRequest, match="not compacted"):
        await client.admin.compact("t", 0)
    with pytest.raises(UnknownTopic):
        await client.admin.compact("nowhere", 0)
    await client.admin.alter_topic("t", {"cleanup.policy": "compact,delete"})
    async with client.producer() as producer:

        async def sent_until_refused() -> None:  # until its owner has heard of the change
            while True:
                await producer.send("t", b"v")

        with pytest.raises(InvalidRecord, match="no key"):
            await asyncio.wait_for(sent_until_refused(), 30)


async def test_a_table_is_the_last_value_of_each_key_and_follows(client: AsyncClient) -> None:
    await client.admin.create_topic("t", 3, COMPACTED)
    rng = random.Random(3)
    want: dict[bytes, bytes] = {}

    async def change(count: int) -> None:
        rows = [
            (b"k%d" % rng.randrange(40), rng.choice((None, b"", b"%d" % i))) for i in range(count)
        ]
        await write(client, *rows)
        for key, value in rows:
            want.pop(key, None)
            if value is not None:
                want[key] = value

    await change(100)
    view = client.table_view("t")
    with pytest.raises(IllegalStateError, match="not loaded"):
        len(view)
    async with view:
        assert dict(view) == want, "loaded to the end seen at open"
        for partition in range(3):
            await client.admin.compact("t", partition)
        await change(60)
        await view.refresh()
        assert view.snapshot() == want
        assert len(view) == len(want)
        some = next(iter(want))
        assert some in view
        assert view[some] == view.get(some) == want[some]
        assert view.get(b"nobody") is None
        with pytest.raises(KeyError):
            view[b"nobody"]
    with pytest.raises(IllegalStateError, match="closed"):
        len(view)
    async with client.table_view("t", value_deserializer=len) as lengths:
        assert dict(lengths) == {key: len(value) for key, value in want.items()}


async def test_a_table_that_cannot_follow_says_so(client: AsyncClient) -> None:
    """Old values must not pass for the last ones."""
    await client.admin.create_topic("t", 1, COMPACTED)
    await write(client, (b"a", b"1"))

    def refuses(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError("not that one")
        return value

    async with client.table_view("t", value_deserializer=refuses) as view:
        assert view[b"a"] == b"1"
        await write(client, (b"a", b"bad"))
        with pytest.raises(DeserializationFailed):
            await view.refresh()
        with pytest.raises(DeserializationFailed):
            view[b"a"]


BROKER = {
    "min_segment_bytes": 65536,
    "compaction_check_interval_ms": 200,
    "compaction_memory_bytes": 16384,
    "trash_delay_ms": 1000,
}


@pytest.mark.process
def test_a_compacted_topic_is_a_table_of_all_records_whatever_dies() -> None:
    """Written to while brokers are killed and passes run: a reader finds the last of each key."""
    config = COMPACTED | {"segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.1"}
    rng = random.Random(8)
    with (
        LocalCluster(brokers=2, broker_settings=BROKER) as cluster,
        Client(cluster.bootstrap_servers) as client,
    ):
        client.admin.create_topic("t", 2, config)
        want: dict[bytes, bytes] = {}
        removed = 0
        with client.producer() as producer, client.table_view("t") as view:
            for turn in range(6):
                for i in range(4_000):
                    key = b"key-%d" % rng.randrange(500)
                    value = None if rng.random() < 0.1 else b"%d-%d" % (turn, i) * 4
                    producer.send_nowait("t", value, key=key)
                    want.pop(key, None)
                    if value is not None:
                        want[key] = value
                victim = f"broker-{1 + turn % 2}"
                cluster.kill(victim)
                producer.flush()
                cluster.restart(victim)
                with client.reader("t") as reader:
                    records = list(reader.read_to_end())
                last = {r.key: r.value for r in records}
                found = {key: value for key, value in last.items() if value is not None}
                assert found == want, f"turn {turn}"
            for partition in range(2):
                removed += client.admin.compact("t", partition).records_removed
            view.refresh()
            assert dict(view) == want
        with client.reader("t") as reader:
            left = list(reader.read_to_end())
        assert len({record.key for record in left}) == len(left), "one record of each key"
        assert {r.key: r.value for r in left if r.value is not None} == want
        ends = client.admin.list_offsets("t", "latest")
        assert sum(end or 0 for end in ends.values()) == 24_000
