"""Records around the limits of 1 MiB and 4 MiB, through every part of the chain (F153).

`max.message.bytes` of a topic counts key, value and headers of one record; 1 MiB unless the topic
says otherwise, 4 MiB at most. Exactly the limit is stored and read by every route, one byte more is
refused before anything is written.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from octavo import Client, TopicPartition
from octavo.errors import ConfigError, InvalidConfig, MessageTooLarge
from octavo.spark.export import export_topic
from octavo.spark.live_reading import plan_cluster, read_split
from octavo.spark.options import ReadOptions
from octavo.spark.reading import plan_files
from octavo.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process

MIB = 1 << 20
TOPICS: dict[str, dict[str, str]] = {
    "default": {},
    "1 MiB": {"max.message.bytes": str(MIB)},
    "4 MiB": {"max.message.bytes": str(4 * MIB)},
}
LIMITS = {"default": MIB, "1 MiB": MIB, "4 MiB": 4 * MIB}


@pytest.fixture(scope="module")
def cold_cluster() -> Iterator[LocalCluster]:
    """Nothing is kept in memory, so that every read comes from the bookies."""
    with LocalCluster(broker_settings={"tail_cache_bytes": 0}) as running:
        yield running


@pytest.fixture(params=["tail", "cold"])
def cluster(request: pytest.FixtureRequest) -> LocalCluster:
    name = "shared_cluster" if request.param == "tail" else "cold_cluster"
    found = request.getfixturevalue(name)
    assert isinstance(found, LocalCluster)
    return found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.bootstrap_servers) as running:
        yield running


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no codec makes smaller."""
    return random.Random(seed).randbytes(size)


def named(name: str) -> str:
    return f"{name}-{os.urandom(6).hex()}"


def binaries(columns: pa.RecordBatch | pa.Table, name: str) -> list[bytes | None]:
    return cast("list[bytes | None]", columns.column(name).to_pylist())


def digest(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()


@pytest.mark.parametrize("kind", sorted(TOPICS))
def test_f153_exactly_the_limit_is_stored_and_read_and_one_byte_more_is_refused(
    client: Client, kind: str
) -> None:
    topic, limit = named("limit"), LIMITS[kind]
    client.admin.create_topic(topic, partitions=1, config=TOPICS[kind])
    values = [noise(limit - 1), noise(limit), bytes(limit), noise(limit - 1000)]
    rest = noise(1000 - 3 - 12 - 1)  # and a key of 3 bytes, a header "h" that counts 12 more
    with client.producer(max_request_size=4 * MIB) as producer:
        for value in values[:3]:
            producer.send(topic, value)
        producer.send(topic, values[3], key=b"key", headers=[("h", rest)])
        for send in (
            lambda: producer.send(topic, noise(limit + 1)),
            lambda: producer.send_nowait(topic, bytes(limit + 1)),
            lambda: producer.send_many(topic, [noise(limit + 1)]),
            lambda: producer.send(topic, values[3], key=b"key", headers=[("h", rest + b"x")]),
            lambda: producer.send_arrow(topic, pa.table({"value": [noise(limit + 1)]})),
        ):
            with pytest.raises(MessageTooLarge, match=rf"{limit + 1} bytes.* {limit} bytes") as got:
                send()
            assert "max.message.bytes of the topic" in str(got.value)
            assert ("create the topic with a larger" in got.value.hint) == (limit < 4 * MIB)
        producer.send_arrow(topic, pa.table({"value": [values[0], values[1]]}))
        assert producer.send(topic, b"after").offset == 6
    wanted = [*map(digest, values), digest(values[0]), digest(values[1]), digest(b"after")]
    with client.reader(topic, start="earliest") as reader:
        found = [digest(record.value) for record in reader.read_to_end()]
    assert found == wanted
    with client.consumer(auto_offset_reset="earliest", fetch_max_wait_ms=100) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        columns: list[str] = []
        while len(columns) < len(wanted):
            table = consumer.poll_arrow(timeout=60)
            assert table is not None, "a poll of a minute brought nothing"
            columns += map(digest, binaries(table, "value"))
    assert columns == wanted


def test_f119_limits_of_a_fetch_below_the_record_still_bring_it(client: Client) -> None:
    topic = named("small-fetch")
    client.admin.create_topic(topic, partitions=2, config=TOPICS["4 MiB"])
    values = [noise(4 * MIB - seed, seed) for seed in range(6)]
    with client.producer(max_request_size=4 * MIB) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % 2)
    with client.reader(
        topic,
        start="earliest",
        fetch_max_bytes=1,
        max_partition_fetch_bytes=1,
        prefetch_max_partition_bytes=1,
        prefetch_max_bytes=4 * MIB,
    ) as reader:
        assert {digest(record.value) for record in reader.read_to_end()} == set(map(digest, values))


def test_many_large_records_need_no_more_memory_than_the_producer_was_given(
    client: Client,
) -> None:
    topic = named("many")
    client.admin.create_topic(topic, partitions=3, config=TOPICS["4 MiB"])
    with client.producer(max_request_size=4 * MIB, buffer_memory=5 * MIB) as producer:
        futures = [producer.send_nowait(topic, noise(4 * MIB, seed)) for seed in range(12)]
        assert all(future.result(60).offset >= 0 for future in futures)
        producer.send_many(topic, (noise(4 * MIB - 7, seed) for seed in range(6)))
    with client.reader(topic, start="earliest") as reader:
        assert sum(1 for _ in reader.read_to_end()) == 18
    with pytest.raises(ConfigError, match="does not fit buffer_memory"):
        client.producer(max_request_size=4 * MIB, buffer_memory=4 * MIB)


def test_the_default_of_the_producer_is_named_before_the_topics_limit(client: Client) -> None:
    topic = named("own-limit")
    client.admin.create_topic(topic, partitions=1, config=TOPICS["4 MiB"])
    with client.producer() as producer:
        with pytest.raises(MessageTooLarge, match=r"\(max_request_size\)") as caught:
            producer.send(topic, noise(MIB + 1))
        assert "raise max_request_size (up to 4194304)" in caught.value.hint
        assert producer.send(topic, b"after").offset == 0
    with pytest.raises(ConfigError):
        client.producer(max_request_size=4 * MIB + 1)
    with pytest.raises(InvalidConfig, match="between 80 and 4194304"):
        client.admin.create_topic(named("x"), config={"max.message.bytes": str(4 * MIB + 1)})


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
def test_large_records_are_exported_and_read_back(
    client: Client, cluster: LocalCluster, tmp_path: pathlib.Path, fmt: str
) -> None:
    topic = named("export")
    client.admin.create_topic(topic, partitions=1, config=TOPICS["4 MiB"])
    values = [noise(4 * MIB, seed) for seed in range(3)] + [bytes(4 * MIB), b"small"]
    with client.producer(max_request_size=4 * MIB) as producer:
        for value in values:
            producer.send(topic, value)
    client.admin.roll(topic, 0)
    wanted = list(map(digest, values))
    assert (
        spark_rows({"octavo.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic})
        == wanted
    )
    assert export_topic(cluster.bootstrap_servers, topic, tmp_path, fmt=fmt).rows == len(values)
    assert spark_rows({"path": str(tmp_path), "subscribe": topic}) == wanted


def spark_rows(options: dict[str, str]) -> list[str]:
    """What the Spark source's workers read, live or from files, in this process."""
    given = ReadOptions.parse(options)
    splits = plan_files(given) if "path" in options else plan_cluster(given)
    return [
        digest(value)
        for split in splits
        for columns in read_split(split, ("value",))
        for value in binaries(columns, "value")
    ]


@pytest.mark.spark
def test_spark_reads_large_records(
    client: Client, cluster: LocalCluster, spark: SparkSession
) -> None:
    topic = named("spark")
    client.admin.create_topic(topic, partitions=1, config=TOPICS["4 MiB"])
    with client.producer(max_request_size=4 * MIB) as producer:
        for seed in range(3):
            producer.send(topic, noise(4 * MIB, seed))
    frame = spark.read.format("octavo").option(
        "octavo.bootstrap.servers", cluster.bootstrap_servers
    )
    rows = frame.option("subscribe", topic).load().selectExpr("sha2(value, 256) AS d").collect()
    assert sorted(row.d for row in rows) == sorted(digest(noise(4 * MIB, n)) for n in range(3))


def test_produce_and_consume_take_lines_of_the_topics_size(cluster: LocalCluster) -> None:
    topic = named("lines")

    def octavo(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "octavo", *words, "--bootstrap", cluster.bootstrap_servers]
        return subprocess.run(command, input=data, capture_output=True, timeout=120, check=False)

    made = octavo("topic", "create", topic, "-p", "1", "-c", f"max.message.bytes={4 * MIB}")
    assert made.returncode == 0, made.stderr
    lines = [noise(2 * MIB - 1, seed).hex().encode() + b"x" * (seed % 3) for seed in range(3)]
    assert max(map(len, lines)) == 4 * MIB
    sent = octavo("produce", topic, data=b"\n".join(lines) + b"\n")
    assert (sent.returncode, b"3 records sent" in sent.stderr) == (0, True), sent.stderr
    long = octavo("produce", topic, data=b"good\n" + b"x" * (4 * MIB + 1) + b"\n")
    assert long.returncode != 0
    assert b"line 2" in long.stderr
    assert b"4194304 bytes" in long.stderr
    read = octavo("consume", topic, "--from", "start")
    assert read.stdout.splitlines() == [*lines, b"good"]
