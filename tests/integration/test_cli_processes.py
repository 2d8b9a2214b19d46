"""`octavo restart`, `status`, `logs` and `ledger list` against real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from octavo import Client
from octavo.cli.failures import ExitCode
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process


def octavo(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    at = (
        ["-b", cluster.bootstrap_servers] if words[0] == "ledger" else ["--data", str(cluster.data)]
    )
    return subprocess.run(
        [sys.executable, "-m", "octavo", *words, *at],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_restart_is_gentle_and_leaves_a_quorum(cluster: LocalCluster) -> None:
    before = cluster.process("bookie-2").pid
    done = octavo(cluster, "restart", "bookie-2")
    assert done.returncode == ExitCode.OK, done.stderr
    assert done.stderr.splitlines()[0] == "waiting for bookie-2 to stop"
    assert done.stderr.splitlines()[-1].startswith("bookie-2 ready on ")
    again = cluster.process("bookie-2")
    assert (again.state, again.exit_code) == ("ready", None)
    assert again.pid != before
    assert "bookie-2 is down (exit code 0)\n" in done.stderr, "asked to stop, not killed"

    cluster.kill("bookie-1")
    status = octavo(cluster, "status")
    assert status.returncode == ExitCode.UNAVAILABLE
    assert "octavo restart bookie-1" in status.stderr
    refused = octavo(cluster, "restart", "bookie-3")
    assert refused.returncode == ExitCode.UNAVAILABLE
    assert "bookie-3 was left alone" in refused.stderr
    assert "--force" in refused.stderr
    assert octavo(cluster, "restart", "bookie-1").returncode == ExitCode.OK  # it was down: started
    assert octavo(cluster, "restart", "broker-1").returncode == ExitCode.OK
    assert octavo(cluster, "restart", "broker-9").returncode == ExitCode.NOT_FOUND
    assert octavo(cluster, "status").returncode == ExitCode.OK


def test_nothing_known_of_the_others_is_no_yes(cluster: LocalCluster) -> None:
    cluster.kill("broker-1")
    refused = octavo(cluster, "restart", "bookie-1")
    assert refused.returncode == ExitCode.UNAVAILABLE
    assert "no broker tells how many bookies are there" in refused.stderr
    assert octavo(cluster, "restart", "bookie-1", "--force").returncode == ExitCode.OK


def test_ledgers_are_listed_by_topic(shared_cluster: LocalCluster) -> None:
    with Client(shared_cluster.bootstrap_servers) as client:
        client.admin.create_topic("listed", partitions=2)
        with client.producer() as producer:
            for partition in (0, 1):
                producer.send_many("listed", [b"x"] * 10, partition=partition)
        client.admin.roll("listed", 0)
        with client.producer() as producer:
            producer.send_many("listed", [b"y"] * 5, partition=0)
    done = octavo(shared_cluster, "ledger", "list", "--topic", "listed", "-o", "json")
    rows = json.loads(done.stdout)
    seen = [(r["partition"], r["state"], r["start"], r["end"]) for r in rows]
    assert seen == [(0, "CLOSED", 0, 10), (0, "OPEN", 10, 15), (1, "OPEN", 0, 10)]
    table = octavo(shared_cluster, "ledger", "list").stdout.splitlines()
    assert table[0].split()[:3] == ["LEDGER", "TOPIC", "PARTITION"]
    assert str(rows[0]["ledger"]) in {line.split()[0] for line in table[1:]}
    # A name that is longer than its column is not cut; other tests have topics of such names.
    usual = [line for line in table[1:] if line.split()[1] == "listed"]
    assert len(usual) >= len(seen)
    assert max(map(len, [table[0], *usual])) <= 80
    missing = octavo(shared_cluster, "ledger", "list", "--topic", "nowhere")
    assert missing.returncode == ExitCode.NOT_FOUND


def test_logs_of_a_real_process(shared_cluster: LocalCluster) -> None:
    done = octavo(shared_cluster, "logs", "bookie-1", "--all")
    assert done.returncode == ExitCode.OK
    assert "bookie-started" in done.stdout
