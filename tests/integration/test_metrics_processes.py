"""Metric pages of real server processes, as Prometheus meets them (F171)."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest
from typer.testing import CliRunner

from octavo import Client
from octavo.cli.app import app
from octavo.metrics import catalogue
from octavo.testing import LocalCluster
from tests.metrics_client import GET, Page, fetched, total

pytestmark = pytest.mark.process

SENT = 300


def page(cluster: LocalCluster, name: str) -> Page:
    return fetched(cluster.process(name).metrics_address)


def messages(cluster: LocalCluster) -> tuple[int, int]:
    shown = page(cluster, "broker-1")
    name = "octavo_broker_messages_total"
    return total(shown.values(name, direction="in")), total(shown.values(name, direction="out"))


def test_the_counters_of_a_broker_equal_what_was_sent_and_read(
    shared_cluster: LocalCluster,
) -> None:
    before = messages(shared_cluster)
    with Client(shared_cluster.bootstrap_servers) as client:
        client.admin.create_topic("metrics-counted", partitions=3)
        with client.producer() as producer:
            report = producer.send_many("metrics-counted", [b"%d" % n for n in range(SENT)])
            assert report.count == SENT
        with client.reader("metrics-counted", start="earliest") as reader:
            assert sum(1 for _ in reader.read_to_end()) == SENT
    after = messages(shared_cluster)
    assert (after[0] - before[0], after[1] - before[1]) == (SENT, SENT)


def test_each_page_has_the_names_of_the_catalogue_and_no_others(
    shared_cluster: LocalCluster,
) -> None:
    for name, process in shared_cluster.processes.items():
        shown = page(shared_cluster, name)
        expected = {metric.name for metric in catalogue.of_server(process.role)}
        assert shown.families.keys() == expected, name
        by_name = {metric.name: metric for metric in catalogue.ALL}
        for family_name, family in shown.families.items():
            metric = by_name[family_name]
            assert family.type == metric.kind, family_name
            for sample in family.samples:
                assert sample.labels.keys() - {"le"} == set(metric.labels), sample
        assert shown.value("octavo_metrics_failures_total") == 0
        assert shown.value("octavo_zk_session_state", state="connected") == 1


def test_bookies_stored_what_the_broker_wrote(shared_cluster: LocalCluster) -> None:
    bookies = [n for n, p in shared_cluster.processes.items() if p.role == "bookie"]
    pages = [page(shared_cluster, name) for name in bookies]
    assert all(shown.value("octavo_bookie_journal_fsync_seconds_count") > 0 for shown in pages)
    assert all(shown.value("octavo_bookie_state", state="rw") == 1 for shown in pages)
    assert total(shown.value("octavo_auditor") for shown in pages) <= 1


def test_pages_are_served_while_the_metadata_store_stands_still(
    shared_cluster: LocalCluster,
) -> None:
    supervisor = shared_cluster.cluster.supervisor_pid
    addresses = [process.metrics_address for process in shared_cluster.processes.values()]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        pages = [fetched(address) for address in addresses]
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert all(shown.value("octavo_metrics_failures_total") == 0 for shown in pages)


def test_clients_that_connect_and_never_read_keep_nobody_out(shared_cluster: LocalCluster) -> None:
    address = shared_cluster.process("broker-1").metrics_address
    host, _, port = address.rpartition(":")
    stuck = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        for number, one in enumerate(stuck):
            if number % 2:
                one.sendall(GET)  # and never reads the page
        assert page(shared_cluster, "broker-1").value("octavo_broker_partitions") >= 0
        with Client(shared_cluster.bootstrap_servers) as client:
            assert client.admin.cluster_health().healthy
    finally:
        for one in stuck:
            one.close()


def test_status_names_the_pages(shared_cluster: LocalCluster) -> None:
    words = ["status", "-o", "json", "--data", str(shared_cluster.data)]
    result = CliRunner().invoke(app, words)
    rows = json.loads(result.output)
    named = {row["name"]: row["metrics"] for row in rows if row["role"] != "metadata"}
    assert named == {n: p.metrics_address for n, p in shared_cluster.processes.items()}
    assert all(named.values())


def test_f172_a_cluster_logs_objects_when_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OCTAVO_LOG_FORMAT", "json")
    with LocalCluster(bookies=1) as cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic("logged-topic", partitions=1)
            with client.producer() as producer:
                producer.send("logged-topic", b"a-payload-nobody-logs", key=b"nor-its-key")
            client.admin.roll("logged-topic", 0)
        cluster.terminate("broker-1")
        logs = {name: cluster.log(name) for name in (*cluster.processes, "supervisor")}
    for name, text in logs.items():
        assert "nobody-logs" not in text
        assert "nor-its-key" not in text
        lines = [json.loads(line) for line in text.splitlines()]
        assert all({"ts", "level", "component", "event"} <= line.keys() for line in lines), name
    lines = [json.loads(line) for line in logs["broker-1"].splitlines()]
    rolled = next(line for line in lines if line["event"] == "segment-rolls")
    assert (rolled["topic"], rolled["partition"]) == ("logged-topic", 0)
    assert rolled["component"] == "octavo.serving.partition"
