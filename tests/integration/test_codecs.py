"""Batches of every codec in one topic, through every route, on real brokers and bookies (F039)."""

from __future__ import annotations

import pathlib
from typing import Literal, get_args

import pyarrow as pa
import pytest

from octavo import Client
from octavo.errors import ConfigError, InvalidConfig
from octavo.proto.compression import CODECS
from octavo.spark.export import export_topic
from octavo.spark.live_reading import plan_cluster, read_split
from octavo.spark.options import ReadOptions
from octavo.spark.reading import plan_files
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

Name = Literal["none", "lz4", "zstd", "snappy", "gzip"]
LINES = [b'{"user":"user-%d","event":"click","page":"/items/%d"}' % (n % 7, n) for n in range(500)]


def test_f039_a_topic_takes_and_gives_batches_of_each_codec(
    shared_cluster: LocalCluster, tmp_path: pathlib.Path
) -> None:
    servers = shared_cluster.bootstrap_servers
    names: tuple[Name, ...] = get_args(Name)
    assert set(names) == set(CODECS)
    wanted = LINES * 2 * len(names)
    with Client(servers) as client:
        client.admin.create_topic("codecs", partitions=1)
        for name in names:
            with client.producer(compression_type=name) as producer:
                producer.send_many("codecs", LINES)
                producer.flush()
                producer.send_arrow("codecs", pa.table({"value": LINES}), value="value")
        with client.reader("codecs", start="earliest") as reader:
            assert [record.value for record in reader.read_to_end()] == wanted
        with client.reader("codecs", start="earliest") as reader:
            got: list[object] = []
            while len(got) < len(wanted) and (batch := reader.poll_arrow(timeout=60)) is not None:
                got += batch.column("value").to_pylist()
        assert got == wanted
        assert rows({"octavo.bootstrap.servers": servers, "subscribe": "codecs"}) == wanted
        client.admin.roll("codecs", 0)
    assert export_topic(servers, "codecs", tmp_path).rows == len(wanted)
    assert rows({"path": str(tmp_path), "subscribe": "codecs"}) == wanted


def test_f039_x23_a_topic_recompresses_and_gives_the_owners_time(
    shared_cluster: LocalCluster,
) -> None:
    with Client(shared_cluster.bootstrap_servers) as client:
        config = {"compression.type": "zstd", "message.timestamp.type": "append"}
        client.admin.create_topic("choices", partitions=1, config=config)
        with client.producer(compression_type="none", batch_size=8192) as producer:
            producer.send_many("choices", LINES, timestamps_ms=range(len(LINES)))
        (segment,) = client.admin.describe_log("choices", 0).segments
        assert 0 < 3 * segment.size_bytes < sum(map(len, LINES))  # zstd, of which no producer knew
        with client.reader("choices", start="earliest") as reader:
            records = list(reader.read_to_end())
        assert [record.value for record in records] == LINES
        times = [record.timestamp_ms for record in records]
        assert times == sorted(times)
        assert times[0] > len(LINES)  # not the producer's
        assert segment.max_timestamp_ms == times[-1]
        assert client.admin.list_offsets("choices", times[0]) == {0: 0}
        with pytest.raises(InvalidConfig, match=r"compression\.type must be one of producer"):
            client.admin.alter_topic("choices", {"compression.type": "zip"})


def rows(options: dict[str, str]) -> list[object]:
    """What the Spark source's workers read, live or from files, in this process."""
    given = ReadOptions.parse(options)
    splits = plan_files(given) if "path" in options else plan_cluster(given)
    return [
        value
        for split in splits
        for columns in read_split(split, ("value",))
        for value in columns.column("value").to_pylist()
    ]


def test_an_unknown_codec_names_those_that_are_known(shared_cluster: LocalCluster) -> None:
    wrong: Literal["gzip"] = "zip"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    with (
        Client(shared_cluster.bootstrap_servers) as client,
        pytest.raises(ConfigError, match=r"none.*lz4.*zstd.*snappy.*gzip"),
    ):
        client.producer(compression_type=wrong)
