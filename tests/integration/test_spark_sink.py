"""Spark writes to a real cluster, at least once (spec spark §7)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from octavo import Client, Record
from octavo.client.messaging.partitioner import KeyHashes
from octavo.testing import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.process, pytest.mark.spark]


@pytest.fixture
def servers(shared_cluster: LocalCluster) -> str:
    return shared_cluster.bootstrap_servers


@pytest.fixture
def client(servers: str) -> Iterator[Client]:
    with Client(servers) as client:
        yield client


@pytest.fixture
def topic(client: Client) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    client.admin.create_topic(name, partitions=3)
    return name


def write(frame: DataFrame, servers: str, mode: str = "append", **given: str) -> None:
    writer = frame.write.format("octavo").mode(mode).option("octavo.bootstrap.servers", servers)
    writer.options(**given).save()


def records(client: Client, topic: str) -> list[Record]:
    with client.reader(topic, start="earliest") as reader:
        return list(reader.read_to_end())


def test_a_batch_write_is_what_a_reader_reads(
    spark: SparkSession, client: Client, servers: str, topic: str
) -> None:
    """Keys go where the SDK's go, tombstones and null keys stay null, headers keep their order."""
    frame = spark.range(0, 2000, numPartitions=2).selectExpr(
        "IF(id % 5 = 0, NULL, concat('k', id)) AS key",
        "IF(id % 7 = 0, NULL, concat('v', id)) AS value",
        "IF(id % 2 = 0, NULL, array(named_struct('key', 'a', 'value', X'01'),"
        " named_struct('key', 'a', 'value', CAST(NULL AS BINARY)))) AS headers",
    )
    write(frame, servers, topic=topic)
    found, hashes = records(client, topic), KeyHashes()
    assert len(found) == 2000
    for record in found:
        if record.key is not None:
            assert record.partition == hashes.get(record.key) % 3
    want = {
        (
            None if n % 5 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"v%d" % n,
            () if n % 2 == 0 else (("a", b"\x01"), ("a", None)),
        )
        for n in range(2000)
    }
    assert {(r.key, r.value, tuple(r.headers)) for r in found} == want


def test_columns_name_topic_and_partition(
    spark: SparkSession, client: Client, servers: str, topic: str
) -> None:
    other = f"{topic}-other"
    client.admin.create_topic(other, partitions=2)
    frame = spark.range(0, 300, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value",
        f"IF(id % 3 = 0, '{topic}', '{other}') AS topic",
        "CAST(id % 2 AS INT) AS partition",
    )
    write(frame, servers)
    for name, of in ((topic, [n for n in range(300) if n % 3 == 0]), (other, None)):
        wanted = [n for n in range(300) if n % 3] if of is None else of
        got = [(record.partition, int(record.value or b"")) for record in records(client, name)]
        assert sorted(n for _, n in got) == wanted
        assert all(partition == n % 2 for partition, n in got)


def test_a_write_to_an_unknown_topic_is_refused_before_the_first_row(
    spark: SparkSession, servers: str
) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match="UNKNOWN_TOPIC"):
        write(frame, servers, topic="nowhere-at-all")
