"""A topic that is mostly in files, on a real cluster: read by SDK and Spark's planner (F088).

The owner is killed twice on the way; the second time most ledgers are gone.
"""

from __future__ import annotations

import json
import pathlib
import random

import pytest

from octavo import Client
from octavo.chaos.toxiproxy import wait_until
from octavo.cli.program import run
from octavo.client.exports.tier_marker import MARKER
from octavo.client.messaging.api.descriptions import LogDescription
from octavo.proto.segments import Segment
from octavo.runtime.errors import ConfigError
from octavo.spark.export import export_topic
from octavo.spark.live_reading import plan_cluster, read_split
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

TOPIC = "orders"
COUNT = 400
NOISE = random.Random(1).randbytes(4_000 + 5 * COUNT)
"""Values are parts of it, which no codec makes small."""
WAIT_S = 30.0
BROKER = {
    "min_segment_bytes": 65_536,
    "tier_check_interval_ms": 50,
    "trash_delay_ms": 0,
    "session_timeout_s": 2.0,
    "tail_cache_bytes": 0,
}
SETTINGS = {
    "tiering": "true",
    "segment.bytes": "65536",
    "retention.local.bytes": "0",
    "replication.factor": "1",
}


def value(number: int) -> bytes:
    return NOISE[number * 5 : number * 5 + 4_000]


def write(client: Client, first: int, count: int) -> None:
    with client.producer(batch_size=8_000, compression_type="none") as producer:
        for number in range(first, first + count):
            producer.send_nowait(
                TOPIC, value(number), key=b"%d" % number, headers=[("n", b"%d" % number)]
            )


def segments(client: Client) -> tuple[Segment, ...]:
    return describe(client).segments


def describe(client: Client) -> LogDescription:
    return client.admin.describe_log(TOPIC, 0, timeout=WAIT_S)


def is_tiered(client: Client) -> bool:
    """Whether all that may go is gone: but the last closed segment, and the open one."""
    closed = [one for one in segments(client) if one.closed]
    return bool(closed) and all(one.object_version for one in closed) and in_files(client) > 3


def in_files(client: Client) -> int:
    return sum(not one.in_ledger for one in segments(client))


def test_f088_a_topic_in_files_is_read_from_0_by_everybody(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    cluster = LocalCluster(
        bookies=1,
        data=tmp_path / "data",
        broker_settings={**BROKER, "tier_root": str(tier), "write_quorum": 1, "ack_quorum": 1},
    )
    with cluster, Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic(TOPIC, 1, SETTINGS)
        write(client, 0, COUNT // 2)
        cluster.kill("broker-1")  # perhaps in the middle of a copy
        cluster.restart("broker-1")
        write(client, COUNT // 2, COUNT // 2)
        assert wait_until(lambda: is_tiered(client), WAIT_S)
        cluster.kill("broker-1")
        cluster.restart("broker-1")
        keys = [b"%d" % number for number in range(COUNT)]
        with client.reader(TOPIC, start="earliest") as reader:
            read = list(reader.read_to_end())
        assert [bytes(one.key or b"") for one in read] == keys
        assert [one.offset for one in read] == list(range(COUNT))
        assert [bytes(one.value or b"") for one in read] == [value(n) for n in range(COUNT)]
        assert [dict(one.headers)["n"] for one in read] == keys
        at = client.admin.list_offsets(TOPIC, read[50].timestamp_ms, timeout=WAIT_S)[0]
        assert at is not None
        assert read[at].timestamp_ms >= read[50].timestamp_ms

        found = describe(client)
        assert found.tier_tree == str(tier / f"{TOPIC}-{found.topic_id}")
        gone_locally = sum(not one.in_ledger for one in found.segments)
        assert found.tiered.segments > gone_locally > 3
        code = run(("topic", "describe", TOPIC, "-o", "json", "-b", cluster.bootstrap_servers))
        (shown,) = json.loads(capsys.readouterr().out)["partitions"]
        assert (code, shown["tiered_bytes"], shown["waiting_bytes"]) == (
            0,
            found.tiered.size_bytes,
            0,
        )
        assert shown["local_bytes"] < shown["tiered_bytes"] <= shown["bytes"]
        run(("verify", "--tier-root", str(tier), "-o", "json", "--data", str(tmp_path / "data")))
        verified = json.loads(capsys.readouterr().out)
        assert [one for one in verified["findings"] if one["verdict"] == "wrong"] == []
        assert verified["files"] > 0
        _spark_reads_it(cluster, keys)
        report = export_topic(cluster.bootstrap_servers, TOPIC, tmp_path / "lake")
        assert report.rows >= COUNT - 40  # what is closed

        hidden = tmp_path / "elsewhere"
        tier.rename(hidden)
        with pytest.raises(ConfigError, match="must see the brokers' tier_root"):
            plan_cluster(options(cluster))
        hidden.rename(tier)
        client.admin.delete_topic(TOPIC, timeout=WAIT_S)
        assert [one.name for one in tier.iterdir()] == [MARKER]


def options(cluster: LocalCluster) -> ReadOptions:
    return ReadOptions.parse(
        {"octavo.bootstrap.servers": cluster.bootstrap_servers, "subscribe": TOPIC}
    )


def _spark_reads_it(cluster: LocalCluster, keys: list[bytes]) -> None:
    splits = plan_cluster(options(cluster))
    kinds = [type(one) for one in splits]
    assert kinds[0] is FileSplit
    assert kinds[-1] is LedgerSplit
    rows = [row for one in splits for part in read_split(one, ("key",)) for row in part.to_pylist()]
    assert [row["key"] for row in rows] == keys
