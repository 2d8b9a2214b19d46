"""The parts of the supervisor that need no server: plan, ports, cluster.json, lock, children."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import psutil
import pytest

from octavo.chaos.toxiproxy import wait_until
from octavo.cli.app import app
from octavo.proto.bookie_pb2 import InfoReply
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import ConfigError, IllegalStateError
from octavo.supervisor import layout, ports
from octavo.supervisor.child import Child, describe_exit
from octavo.supervisor.cluster_file import (
    ClusterFile,
    ProcessEntry,
    folder_identity,
    is_same_process,
    read_cluster_file,
    started_at,
    write_cluster_file,
)
from octavo.supervisor.disks import keeps_space_because
from octavo.supervisor.leftovers import end_leftovers
from octavo.supervisor.lock import DataDirLock
from octavo.supervisor.spec import PARENT_PID_VARIABLE, ChildSpec, ClusterSpec

URL = "embedded://127.0.0.1:20001/octavo"


def entry(name: str = "bookie-1", pid: int = 0, port: int = 20002) -> ProcessEntry:
    return ProcessEntry(
        role="bookie" if name.startswith("bookie") else "broker",
        name=name,
        pid=pid,
        started=started_at(pid) if pid else 0.0,
        address=f"127.0.0.1:{port}",
        health_address=f"127.0.0.1:{port + 1}",
        log=f"logs/{name}.log",
        state="ready",
    )


def cluster_file(*children: ProcessEntry, folder: str = "1:2") -> ClusterFile:
    return ClusterFile(
        supervisor_pid=os.getpid(),
        supervisor_started=1.0,
        bootstrap_servers="127.0.0.1:7650",
        metadata=URL,
        metadata_log="logs/supervisor.log",
        children=children,
        bookies=3,
        brokers=1,
        folder=folder,
    )


# --- plan --------------------------------------------------------------------------------------


def test_plan_gives_every_process_its_own_ports(tmp_path: pathlib.Path) -> None:
    plan = layout.plan(ClusterSpec(data_dir=tmp_path, port=0, brokers=2), None, SeededEntropy(1))
    used = [plan.metadata_port]
    for child in plan.children:
        used += [child.port] if child.control_port is None else [child.port, child.control_port]
    assert len(used) == len(set(used)) == 1 + 3 * 2 + 2
    assert [child.name for child in plan.children] == [
        "bookie-1",
        "bookie-2",
        "bookie-3",
        "broker-1",
        "broker-2",
    ]
    assert plan.bootstrap_servers == ",".join(child.address for child in plan.children[3:])


def test_plan_keeps_the_addresses_of_the_last_start(tmp_path: pathlib.Path) -> None:
    spec = ClusterSpec(data_dir=tmp_path, port=0)
    first = layout.plan(spec, None, SeededEntropy(1))
    old = dataclasses.replace(
        cluster_file(*(Child(child).entry() for child in first.children)),
        metadata=first.metadata_url,
    )
    assert layout.plan(spec, old, SeededEntropy(2)) == first


def test_plan_uses_following_ports_for_more_brokers(tmp_path: pathlib.Path) -> None:
    base = ports.choose_free("127.0.0.1", set(), SeededEntropy(3))
    plan = layout.plan(ClusterSpec(data_dir=tmp_path, port=base, brokers=2), None, SeededEntropy(4))
    assert plan.bootstrap_servers == f"127.0.0.1:{base},127.0.0.1:{base + 1}"


def test_port_taken_names_the_process_in_the_way(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            IllegalStateError, match=f"port {port} is taken by .*{os.getpid()}"
        ) as caught:
            layout.plan(ClusterSpec(data_dir=tmp_path, port=port), None, SeededEntropy(1))
    assert "--port" in caught.value.hint


def test_fewer_bookies_than_before_are_refused(tmp_path: pathlib.Path) -> None:
    """Each bookie of the folder may hold the only copies left of acknowledged data."""
    with pytest.raises(ConfigError, match="3 bookies"):
        layout.plan(
            ClusterSpec(data_dir=tmp_path, bookies=2, port=0), cluster_file(), SeededEntropy(1)
        )


def test_outside_metadata_is_not_hosted(tmp_path: pathlib.Path) -> None:
    spec = ClusterSpec(data_dir=tmp_path, port=0, metadata="zk://127.0.0.1:2181/octavo")
    plan = layout.plan(spec, None, SeededEntropy(1))
    assert plan.metadata_port is None
    assert {child.metadata_url for child in plan.children} == {"zk://127.0.0.1:2181/octavo"}


def test_one_bookie_lowers_the_quorum_so_that_it_can_write(tmp_path: pathlib.Path) -> None:
    plan = layout.plan(ClusterSpec(data_dir=tmp_path, bookies=1, port=0), None, SeededEntropy(1))
    settings = plan.children[-1].settings
    assert (settings["ensemble_size"], settings["write_quorum"], settings["ack_quorum"]) == (
        "1",
    ) * 3


@pytest.mark.parametrize(
    "change", [{"bookies": 0}, {"brokers": 0}, {"bookies": 65}, {"port": -1}, {"port": 65535}]
)
def test_spec_refuses_what_cannot_work(change: dict[str, int], tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(ClusterSpec(data_dir=tmp_path), **change).validate()  # type: ignore[arg-type]


def test_command_lines_of_children_parse(tmp_path: pathlib.Path) -> None:
    spec = ClusterSpec(data_dir=tmp_path, port=0, bookie_settings={"segment_bytes": "4096"})
    for child in layout.plan(spec, None, SeededEntropy(1)).children:
        command = child.command()
        assert command[:3] == [sys.executable, "-m", "octavo"]
        assert app([*command[3:], "--help"], standalone_mode=False) == 0
        assert ("segment_bytes=4096" in command) == (child.role == "bookie")


# --- cluster.json ------------------------------------------------------------------------------


def test_cluster_file_round_trip(tmp_path: pathlib.Path) -> None:
    written = cluster_file(
        entry(),
        dataclasses.replace(entry("broker-1"), state="down", exit_code=-9),
        folder=folder_identity(tmp_path),
    )
    write_cluster_file(tmp_path, written)
    assert read_cluster_file(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_no_cluster_file_is_none(tmp_path: pathlib.Path) -> None:
    assert read_cluster_file(tmp_path) is None
    assert read_cluster_file(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 2}',
        cluster_file(entry()).to_json().replace('"bookie"', '"../etc"'),
        cluster_file(entry()).to_json().replace('"ready"', '"fine"'),
        cluster_file(entry()).to_json().replace('"pid": 0', '"pid": "0"'),
    ],
)
def test_damaged_cluster_file_is_a_clear_error(text: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        read_cluster_file(tmp_path)


def test_a_reused_pid_is_not_the_supervisor() -> None:
    assert not cluster_file().supervisor_alive()
    assert not is_same_process(os.getpid(), 1.0)
    assert not is_same_process(2**22 + 1, 1.0)


def test_lock_admits_one_supervisor_and_names_it(tmp_path: pathlib.Path) -> None:
    first, second = DataDirLock(tmp_path), DataDirLock(tmp_path)
    first.acquire()
    with pytest.raises(IllegalStateError, match=str(os.getpid())):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


# --- processes ---------------------------------------------------------------------------------


def _sleeper(*words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _end(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        process.kill()
    process.communicate()
    return process.returncode


def test_leftovers_of_a_dead_supervisor_are_ended() -> None:
    mine = _sleeper("octavo", "bookie", "--id", "bookie-1", "--metadata", URL)
    try:
        assert end_leftovers(cluster_file(entry(pid=mine.pid))) == ["bookie-1"]
        assert not psutil.pid_exists(mine.pid)
    finally:
        _end(mine)


def test_a_process_of_somebody_else_with_an_old_pid_is_left_alone() -> None:
    other = _sleeper("octavo", "bookie", "--id", "bookie-1", "--metadata", "embedded://elsewhere")
    try:
        assert end_leftovers(cluster_file(entry(pid=other.pid), entry("broker-1", pid=0))) == []
        assert other.poll() is None
    finally:
        _end(other)


def test_a_process_with_a_reused_pid_is_left_alone() -> None:
    """Same pid, same words, another process: only the start time tells."""
    other = _sleeper("octavo", "bookie", "--id", "bookie-1", "--metadata", URL)
    try:
        reused = dataclasses.replace(entry(pid=other.pid), started=started_at(other.pid) - 60)
        assert end_leftovers(cluster_file(reused)) == []
        assert other.poll() is None
    finally:
        _end(other)


def test_a_renamed_folder_keeps_its_processes_and_a_copy_has_none(tmp_path: pathlib.Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    running = entry(pid=os.getpid())
    write_cluster_file(first, cluster_file(running, folder=folder_identity(first)))
    shutil.copytree(first, tmp_path / "copy")
    moved = first.rename(tmp_path / "moved")
    found = read_cluster_file(moved)
    assert found is not None
    assert found.children == (running,)
    copied = read_cluster_file(tmp_path / "copy")
    assert copied is not None
    assert (copied.supervisor_pid, copied.children[0].pid) == (0, 0)
    assert not copied.supervisor_alive()
    assert copied.children[0].address == running.address, "addresses and sizes are known"
    assert end_leftovers(copied) == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptSpec(ChildSpec):
    """A child that runs a few lines of Python instead of a server."""

    script: str

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.script]


def script_child(folder: pathlib.Path, script: str) -> Child:
    return Child(
        ScriptSpec(
            role="broker",
            name="broker-1",
            host="127.0.0.1",
            port=1,
            control_port=None,
            metadata_url=URL,
            data_dir=folder / "broker-1",
            log=folder / "logs" / "broker-1.log",
            settings={},
            script=script,
        )
    )


async def test_child_logs_ends_and_starts_again(tmp_path: pathlib.Path) -> None:
    child = script_child(
        tmp_path, f"import os; print('under', os.environ['{PARENT_PID_VARIABLE}'])"
    )
    assert (child.pid, child.state) == (0, "down")
    await child.start()
    assert await child.wait() == 0
    assert child.log_tail() == f"under {os.getpid()}"
    await child.start()
    assert await child.wait() == 0
    assert child.spec.log.read_text().count("under") == 2
    assert child.log_tail().count("under") == 1, "the tail belongs to the present process"


GENTLE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("up", flush=True)
signal.pause()
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


async def _started(folder: pathlib.Path, script: str) -> Child:
    child = script_child(folder, script)
    await child.start()
    assert await asyncio.to_thread(wait_until, lambda: child.log_tail() == "up", 10.0)
    return child


async def test_stop_is_gentle_first(tmp_path: pathlib.Path) -> None:
    child = await _started(tmp_path, GENTLE)
    assert await child.stop(10.0)
    assert child.exit_code == 3


async def test_stop_wakes_a_frozen_child(tmp_path: pathlib.Path) -> None:
    child = await _started(tmp_path, GENTLE)
    child.send_signal(19)
    assert await child.stop(10.0)


async def test_stop_kills_who_does_not_listen(tmp_path: pathlib.Path) -> None:
    child = await _started(tmp_path, STUBBORN)
    assert not await child.stop(0.05)
    assert child.exit_code == -9


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-99, "killed by signal 99"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_bookie_that_gives_no_space_back_says_why() -> None:
    assert keeps_space_because(entry(), InfoReply()) is None
    told = keeps_space_because(entry(), InfoReply(collection_alarm="listing: 2 ledgers exist"))
    assert told is not None
    assert told.startswith("bookie-1 deletes no ledgers")
    assert told.endswith("listing: 2 ledgers exist")
