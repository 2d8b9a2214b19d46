"""octavo.testing: what users' tests are promised."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import psutil
import pytest

from octavo import Client
from octavo.chaos.toxiproxy import wait_until
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import IllegalStateError, NotReady
from octavo.supervisor import ports
from octavo.testing import LocalCluster
from tests.bookie_rig import copy_live
from tests.fix_zookeeper import ZookeeperServer

pytestmark = pytest.mark.process


def write(bootstrap: str, topic: str, count: int, first: int = 0) -> None:
    with Client(bootstrap) as client, client.producer() as producer:
        report = producer.send_many(topic, [str(n) for n in range(first, first + count)])
        assert report.count == count


def read(bootstrap: str, topic: str) -> list[int]:
    with Client(bootstrap) as client, client.reader(topic, start="earliest") as reader:
        return [int(record.value or b"-1") for record in reader.read_to_end()]


def test_processes_can_be_killed_frozen_and_started_again(cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers
    with Client(servers) as client:
        client.admin.create_topic("orders", partitions=2)
    write(servers, "orders", 100)

    cluster.kill("bookie-2")
    dead = cluster.process("bookie-2")
    assert (dead.state, dead.exit_code) == ("down", -9)
    write(servers, "orders", 100, first=100)

    cluster.restart("bookie-2")
    assert cluster.process("bookie-2").state == "ready"
    cluster.freeze("bookie-3")
    assert psutil.Process(cluster.process("bookie-3").pid).status() == psutil.STATUS_STOPPED
    write(servers, "orders", 100, first=200)
    cluster.thaw("bookie-3")

    cluster.kill("broker-1")
    cluster.restart("broker-1")
    write(servers, "orders", 100, first=300)
    assert sorted(read(servers, "orders")) == list(range(400))


def test_stop_and_start_keep_data_and_addresses(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(data=tmp_path / "kept")
    with cluster:
        before = cluster.bootstrap_servers
        with Client(before) as client:
            client.admin.create_topic("kept", partitions=1)
        write(before, "kept", 10)
        cluster.stop()
        with pytest.raises(IllegalStateError):
            cluster.restart("bookie-1")
        cluster.start()
        assert cluster.bootstrap_servers == before
        assert read(before, "kept") == list(range(10))
    assert (tmp_path / "kept" / "cluster.json").exists()
    assert "bookie-started" in cluster.log("bookie-1")


@pytest.mark.zookeeper
def test_the_same_roles_run_on_zookeeper(zookeeper_server: ZookeeperServer) -> None:
    with LocalCluster(metadata=f"zk://{zookeeper_server.hosts}/octavo") as cluster:
        assert cluster.metadata.startswith("zk://")
        servers = cluster.bootstrap_servers
        with Client(servers) as client:
            client.admin.create_topic("zoo", partitions=3)
        write(servers, "zoo", 100)
        cluster.kill("bookie-1")
        write(servers, "zoo", 100, first=100)
        cluster.restart("bookie-1")
        cluster.kill("broker-1")
        cluster.restart("broker-1")
        assert sorted(read(servers, "zoo")) == list(range(200))


def test_temporary_data_and_processes_are_gone_at_the_end() -> None:
    with LocalCluster(bookies=1) as cluster:
        data, pids = cluster.data, [entry.pid for entry in cluster.processes.values()]
        assert list(cluster.processes) == ["bookie-1", "broker-1"]
        with pytest.raises(IllegalStateError, match="known: bookie-1, broker-1"):
            cluster.kill("bookie-9")
    assert not data.exists()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_all_killed_at_once_comes_back(cluster: LocalCluster) -> None:
    """The fsync test: everything that was acknowledged is there after kill -9 of all."""
    servers = cluster.bootstrap_servers
    with Client(servers) as client:
        client.admin.create_topic("all", partitions=1)
    write(servers, "all", 1000)
    cluster.kill("supervisor")
    cluster.start()
    assert cluster.bootstrap_servers == servers
    assert read(servers, "all") == list(range(1000))


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    cluster = LocalCluster(data=tmp_path, broker_settings={"bundles": 0})
    with pytest.raises(NotReady, match=r"broker-1.*bundles"):
        cluster.start()
    assert all(entry.pid == 0 for entry in cluster.processes.values())


def test_a_bookie_that_refuses_to_start_does_not_keep_the_others_down(
    tmp_path: pathlib.Path,
) -> None:
    """B-23 refuses one bookie; the records are on the other two, and writes need no more (Qa)."""
    with LocalCluster(data=tmp_path / "c") as cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic("t", partitions=1)
        write(cluster.bootstrap_servers, "t", 10)
        cluster.stop()
        cookie = tmp_path / "c" / "bookie-2" / "cookie"
        kept = cookie.read_bytes()
        cookie.write_bytes(b"")
        cluster.start()
        assert [name for name, entry in cluster.processes.items() if entry.state != "ready"] == [
            "bookie-2"
        ]
        write(cluster.bootstrap_servers, "t", 10, first=10)
        assert read(cluster.bootstrap_servers, "t") == list(range(20))
        cookie.write_bytes(kept)
        cluster.restart("bookie-2")
        assert cluster.process("bookie-2").state == "ready"
        cluster.stop()
        for name in ("bookie-1", "bookie-2"):
            (tmp_path / "c" / name / "cookie").write_bytes(b"")
        with pytest.raises(NotReady, match=r"bookie-[12].*cookie is damaged"):
            cluster.start()
        assert all(entry.pid == 0 for entry in cluster.processes.values())


def test_a_copy_of_a_running_folder_is_a_cluster_of_its_own(tmp_path: pathlib.Path) -> None:
    """Starting, asking and stopping the copy touches no process of the original."""
    with LocalCluster(bookies=1, data=tmp_path / "first") as first:
        with Client(first.bootstrap_servers) as client:
            client.admin.create_topic("t", partitions=1)
        write(first.bootstrap_servers, "t", 10)
        # A store that is older than the bookies' folders would be refused (ADR 23).
        folder, copied = tmp_path / "first", tmp_path / "copy"
        copy_live(folder / "bookie-1", copied / "bookie-1")
        for path in folder.iterdir():
            if path.is_dir() and path.name != "bookie-1":
                copy_live(path, copied / path.name)
            elif path.is_file():
                shutil.copy2(path, copied)
        for words in (["status"], ["down"]):
            command = [sys.executable, "-m", "octavo", *words, "--data", str(tmp_path / "copy")]
            said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
            assert "not running" in said.stdout + said.stderr
        with LocalCluster(bookies=1, data=tmp_path / "copy") as copy:
            assert copy.bootstrap_servers != first.bootstrap_servers
            assert read(copy.bootstrap_servers, "t") == list(range(10))
        assert {entry.state for entry in first.processes.values()} == {"ready"}
        assert read(first.bootstrap_servers, "t") == list(range(10))


def test_a_folder_put_in_the_place_of_the_clusters_is_left_alone(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "c"
    with LocalCluster(bookies=1, data=folder) as cluster:
        folder.rename(tmp_path / "moved")
        folder.mkdir()
        cluster.stop()
    assert list(folder.iterdir()) == []
    assert (tmp_path / "moved" / "cluster.json").exists()


def test_a_plain_start_keeps_the_addresses(tmp_path: pathlib.Path) -> None:
    """Of a cluster on free ports, too; another --port is said."""

    def octavo(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "octavo", *words, "--data", str(tmp_path / "c")]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90)

    def address() -> str:
        return str(json.loads((tmp_path / "c" / "cluster.json").read_text())["bootstrap_servers"])

    try:
        octavo("up", "--port", "0", "--bookies", "1", "--detach")
        first = address()
        octavo("down")
        assert "before" not in octavo("up", "--detach").stderr
        assert address() == first
        octavo("down")
        port = ports.choose_free("127.0.0.1", set(), SystemEntropy())
        said = octavo("up", "--port", str(port), "--detach").stderr
        assert f"the brokers were at {first} before" in said
        assert address() == f"127.0.0.1:{port}"
        octavo("down")
        octavo("up", "--detach")
        assert address() == f"127.0.0.1:{port}"
    finally:
        octavo("down")


def test_an_older_copy_of_the_metadata_put_back_is_refused(tmp_path: pathlib.Path) -> None:
    """What was acknowledged since the copy would not be found, and health would say healthy."""
    cluster = LocalCluster(bookies=1, data=tmp_path / "c")
    folder, aside, newest = (tmp_path / name for name in ("c/metadata", "copy", "newest"))
    with cluster:
        with Client(cluster.bootstrap_servers) as client:
            client.admin.create_topic("t", partitions=1)
        write(cluster.bootstrap_servers, "t", 10)
        cluster.stop()
        shutil.copytree(folder, aside)
        cluster.start()
        write(cluster.bootstrap_servers, "t", 10, first=10)
        cluster.stop()
        folder.rename(newest)
        shutil.copytree(aside, folder)
        with pytest.raises(NotReady, match="the metadata store went back"):
            cluster.start()
        shutil.rmtree(folder)
        newest.rename(folder)
        cluster.start()
        assert read(cluster.bootstrap_servers, "t") == list(range(20))
    shutil.rmtree(folder)
    shutil.copytree(aside, folder)
    accepting = LocalCluster(
        bookies=1, data=tmp_path / "c", bookie_settings={"accept_older_metadata": True}
    )
    with accepting:
        assert read(accepting.bootstrap_servers, "t")[:10] == list(range(10))
        write(accepting.bootstrap_servers, "t", 10, first=20)
    with cluster:
        assert read(cluster.bootstrap_servers, "t")[-10:] == list(range(20, 30))


def test_servers_listen_and_are_reached_on_ipv6(tmp_path: pathlib.Path) -> None:
    if not ports.is_free("::1", 0):
        pytest.skip("no IPv6 loopback on this machine")
    port = ports.choose_free("::1", set(), SystemEntropy())
    with LocalCluster(bookies=1, data=tmp_path / "c") as cluster:
        command = [sys.executable, "-m", "octavo", "broker", "--id", "broker-6"]
        command += ["--metadata", cluster.metadata, "--host", "::1", "--port", str(port)]
        for key in ("ensemble_size", "write_quorum", "ack_quorum"):
            command += ["-X", f"{key}=1"]
        with (tmp_path / "log").open("wb") as log:
            broker = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            assert wait_until(lambda: not ports.is_free("::1", port), 60.0)
            cluster.kill("broker-1")  # all partitions move to the one on IPv6
            with Client(f"[::1]:{port}") as client:
                client.admin.create_topic("six", partitions=2)
            write(f"[::1]:{port}", "six", 10)
            assert read(f"[::1]:{port}", "six") == list(range(10))
        finally:
            broker.terminate()
            assert broker.wait(30) == 0


def test_a_test_that_is_killed_takes_its_cluster_with_it(tmp_path: pathlib.Path) -> None:
    script = (
        "import os, sys, signal\n"
        "from octavo.testing import LocalCluster\n"
        f"cluster = LocalCluster(bookies=1, data={str(tmp_path)!r})\n"
        "cluster.start()\n"
        "pids = [entry.pid for entry in cluster.processes.values()]\n"
        "print(*pids, cluster.cluster.supervisor_pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -9, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 3
    assert os.getpid() not in pids
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 30.0)
