"""The metadata of a real cluster is lost and put back from a copy that is older than its records:
what the copy knows is read byte for byte, nothing else is deleted, and no id comes twice (G-3,
INV-11, ADR 23, ADR 51)."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest

from octavo import Client
from octavo.chaos.toxiproxy import wait_until
from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.runtime.errors import NotReady
from octavo.runtime.ids import LedgerId
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

FAST: dict[str, Any] = {"gc_interval_s": 0.2, "gc_confirm_s": 0.1}


def write(client: Client, topic: str, values: list[bytes]) -> None:
    with client.producer() as producer:
        assert producer.send_many(topic, values).count == len(values)


def read(client: Client, topic: str) -> list[bytes | None]:
    with client.reader(topic, start="earliest") as reader:
        return [record.value for record in reader.read_to_end()]


def ledgers(client: Client, topic: str) -> list[LedgerId]:
    log = client.admin.describe_log(topic, 0)
    return [segment.ledger_id for segment in log.segments]


def verified(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["verify", "--data", str(data), "-o", "json"])
    return code, json.loads(capsys.readouterr().out)


def alarm_of(capsys: pytest.CaptureFixture[str], data: pathlib.Path) -> str:
    """What the bookie says of its deletions."""
    texts = [f["found"] for f in verified(capsys, data)[1]["findings"] if "bookie" in f["what"]]
    return next((text for text in texts if "it deletes nothing" in text), "")


def test_an_older_copy_put_back_loses_nothing_that_it_knows(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, copy = tmp_path / "c", tmp_path / "copy"
    before = [b"before %d" % n for n in range(200)]
    cluster = LocalCluster(bookies=1, data=data, bookie_settings=FAST)
    with cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic("known", partitions=1)
            write(client, "known", before)
            known = ledgers(client, "known")
            assert run(["metadata", "backup", str(copy), "--data", str(data)]) == ExitCode.OK
            assert "read 2 times" in capsys.readouterr().err
            client.admin.roll("known", 0)
            write(client, "known", [b"after"] * 50)
            client.admin.create_topic("unknown", partitions=1)
            write(client, "unknown", [b"lost"] * 50)
            later = [*ledgers(client, "known")[1:], *ledgers(client, "unknown")]
            assert len(later) == 2
        refused = run(["metadata", "restore", str(copy), "--yes", "--replace", "--data", str(data)])
        assert refused == ExitCode.ERROR
        assert "servers use this metadata: bookie-1, broker-1" in capsys.readouterr().err
        code, found = verified(capsys, data)
        assert (code, found["verdict"], found["orphans"], found["unrecorded"]) == (0, "OK", 0, 0)
    shutil.rmtree(data / "metadata")
    assert run(["metadata", "restore", str(copy), "--yes", "--data", str(data)]) == ExitCode.OK
    told = " ".join(capsys.readouterr().err.split())
    assert f"octavo up --data {data} --bookie-set accept_older_metadata=true" in told
    with pytest.raises(NotReady, match="the metadata store went back"):
        cluster.start()
    accepting = LocalCluster(
        bookies=1, data=data, bookie_settings={**FAST, "accept_older_metadata": True}
    )
    with accepting, Client(accepting.bootstrap_servers) as client:
        assert read(client, "known") == before
        write(client, "known", [b"new"] * 10)
        assert read(client, "known") == [*before, *[b"new"] * 10]
        assert [topic.name for topic in client.admin.list_topics()] == ["known"]
        fresh = ledgers(client, "known")
        assert fresh[0] == known[0]
        assert min(fresh[1:]) > max(later), "INV-11: above every id that was given out since"
        assert wait_until(lambda: alarm_of(capsys, data) != "", 30.0)
    with cluster, Client(cluster.bootstrap_servers) as client:
        assert read(client, "known")[: len(before)] == before
        assert wait_until(lambda: "older-metadata" in alarm_of(capsys, data), 30.0)
        code, found = verified(capsys, data)
        assert code == ExitCode.OK
        assert (found["missing"], found["damaged"], found["unrecorded"]) == (0, 0, len(later))
        (finding,) = (one for one in found["findings"] if one["verdict"] == "unrecorded")
        assert f"{later[0]}, {later[1]}" in finding["found"], "they are there still"
        assert "the metadata was restored at" in finding["found"]
        assert run(["ledger", "collect", "--accept-missing", "--yes", "--data", str(data)]) == 0
        assert wait_until(lambda: verified(capsys, data)[1]["unrecorded"] == 0, 30.0)
        assert read(client, "known")[: len(before)] == before
