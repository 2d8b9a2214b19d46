"""`octavo status --bootstrap`: the servers of a cluster elsewhere, as its broker knows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.processes import registered
from octavo.cli.program import run
from octavo.client.messaging.api.descriptions import (
    BookieDescription,
    BrokerDescription,
    ClusterHealth,
    FleetBroker,
)
from tests.fake_broker import FakeClusterThread

Captured = pytest.CaptureFixture[str]

BROKER = FleetBroker("broker-1", "a:1", 0, 64, drained=False, leaving=False)
HEALTH = ClusterHealth(
    cluster_id="c",
    brokers=(BrokerDescription("broker-1", "a:1"),),
    bookies=(BookieDescription("bookie-1", "", "b:1", "", "rw"),),
    metadata_connected=True,
    write_quorum=3,
    ack_quorum=2,
    degraded_ledgers=0,
    short_segments=0,
    segments=7,
    census_complete=True,
)


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    yield thread
    thread.stop()


def states(health: ClusterHealth, *brokers: FleetBroker) -> dict[object, object]:
    return {row["name"]: row["state"] for row in registered(brokers, health)}


def test_every_state_that_is_not_ready_is_named() -> None:
    assert set(states(HEALTH, BROKER).values()) == {"ready"}
    away = replace(BROKER, broker_id="broker-2", address="", drained=True)
    read_only = replace(HEALTH.bookies[0], state="ro")
    unlike = replace(HEALTH, bookies=(read_only,), metadata_connected=False)
    assert states(unlike, replace(BROKER, leaving=True), away) == {
        "metadata": "down", "broker-1": "leaving", "broker-2": "down", "bookie-1": "read-only",
    }  # fmt: skip


def test_a_cluster_elsewhere_is_shown_without_a_folder(
    fake: FakeClusterThread, capsys: Captured
) -> None:
    assert run(["status", "--bootstrap", fake.bootstrap]) == ExitCode.OK
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "ADDRESS", "STATE"]
    assert [line.split()[0] for line in lines[:2]] == ["metadata", "broker-0"]
    assert {line.split()[-1] for line in lines} == {"ready"}
    assert run(["status", "-b", fake.bootstrap, "-o", "json"]) == ExitCode.OK
    rows = json.loads(capsys.readouterr().out)
    assert [row["role"] for row in rows if row["name"].startswith("bookie")] == ["bookie"] * 3
    assert {row["pid"] for row in rows} == {None}


def test_what_is_wrong_with_the_question_is_said(fake: FakeClusterThread, capsys: Captured) -> None:
    words = ["status", "--data", "elsewhere", "--bootstrap", fake.bootstrap]
    assert run(words) == ExitCode.USAGE
    assert "exclude each other" in capsys.readouterr().err
    assert run(["status", "--bootstrap", "127.0.0.1:1", "--timeout", "0.2"]) != ExitCode.OK
    shown = capsys.readouterr()
    assert "no broker answered: 127.0.0.1:1: " in shown.err, "not within what other tries left"
    assert shown.out == ""
