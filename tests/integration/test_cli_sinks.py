"""`octavo sink …` against a real broker in this process: what it prints, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.metadata.sinks import SinkCatalog
from octavo.proto.sink_staging import staging_topic
from tests.group_cluster import GroupCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupCluster]:
    made = GroupCluster(brokers=1)
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", made.bootstrap)
    try:
        yield made
    finally:
        made.close()


def test_sinks_are_listed_shown_and_ended(
    cluster: GroupCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (server,) = cluster.loopback.servers
    sinks: SinkCatalog = server._sink_catalog()  # pyright: ignore[reportPrivateUsage]
    assert run(["sink", "list"]) == ExitCode.OK
    assert capsys.readouterr().out == "(no sinks)\n"
    cluster.run(sinks.open("query/staging"))
    for name in ("query/decided", "txn/done"):
        cluster.run(sinks.decide(name, 0, b"plan", None))
    cluster.run(sinks.published("txn/done", 0))
    cluster.topic(staging_topic("query/decided"), partitions=1, records=2)

    assert run(["sink", "list", "-o", "json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [(one["sink"], one["state"], one["batch"]) for one in found] == [
        ("query/decided", "decided", 0),
        ("query/staging", "staging", None),
        ("txn/done", "published", 0),
    ]
    assert all(0 <= one["idle_s"] < 60 for one in found)
    assert run(["sink", "list", "--unpublished"]) == ExitCode.OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "SINK",
        "query/decided",
    ]
    assert run(["sink", "show", "query/decided", "-o", "json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["staged_records"], shown["staging_topic"]) == (2, staging_topic("query/decided"))
    assert run(["sink", "show", "txn/done"]) == ExitCode.OK
    assert "staged_records" in capsys.readouterr().out

    assert run(["sink", "end", "query/decided"]) != ExitCode.OK
    said = capsys.readouterr().err
    assert "add --yes to end it and give up its batch 0 (it was heard of " in said
    assert "its query may be running" in said
    assert cluster.client.admin.describe_sink("query/decided").state == "decided"
    assert run(["sink", "end", "query/decided", "--yes"]) == ExitCode.OK
    assert "ended sink query/decided" in capsys.readouterr().err
    for given in ([], ["--yes"]):  # asking again is safe
        assert run(["sink", "end", "query/decided", *given]) == ExitCode.OK
        assert "sink query/decided was ended before" in capsys.readouterr().err
    names = {topic.name for topic in cluster.client.admin.list_topics()}
    assert staging_topic("query/decided") not in names
    assert {one.sink_id: one.state for one in cluster.client.admin.list_sinks()} == {
        "query/decided": "ended",
        "query/staging": "staging",
        "txn/done": "published",
    }


@pytest.mark.usefixtures("cluster")
def test_an_unknown_sink_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["show", "query/none"], ["end", "query/none", "--yes"], ["show", ""]):
        assert run(["sink", *words]) != ExitCode.OK
        said = capsys.readouterr().err
        assert "there is no sink 'query/none'" in said or "has 1 to 512 bytes" in said


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("2b1c-77", "query/2b1c-77"),  # as the checkpoint has it
        ("query/2b1", "query/2b1c-77"),
        ("orders-1", "txn/orders-1"),
        ("qery/2b1c-77", "query/2b1c-77"),
    ],
)
def test_a_sink_that_was_meant_is_named(
    cluster: GroupCluster, capsys: pytest.CaptureFixture[str], given: str, meant: str
) -> None:
    (server,) = cluster.loopback.servers
    sinks: SinkCatalog = server._sink_catalog()  # pyright: ignore[reportPrivateUsage]
    for name in ("query/2b1c-77", "query/9999", "txn/orders-1", "txn/orders-2"):
        cluster.run(sinks.open(name))
    for words in (["show", given], ["end", given, "--yes"]):
        assert run(["sink", *words]) != ExitCode.OK
        assert f"did you mean '{meant}'?" in capsys.readouterr().err
    assert {one.state for one in cluster.client.admin.list_sinks()} == {"staging"}
