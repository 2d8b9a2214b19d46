"""The first hour in a shell, as a person types it; README word for word is in `test_readme.py`."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple, cast

import psutil
import pyarrow as pa
import pytest

from octavo import Client
from octavo.chaos.toxiproxy import wait_until
from octavo.supervisor.cluster_file import read_cluster_file
from octavo.testing import LocalCluster

pytestmark = pytest.mark.process

COMMAND_TIMEOUT_S = 90.0


class Done(NamedTuple):
    """What a command line left behind."""

    code: int
    out: str
    err: str


class Shell:
    """Runs lines with bash in a folder of its own, where `octavo` means this checkout."""

    def __init__(self, folder: pathlib.Path, bootstrap: str | None = None) -> None:
        self.folder = folder
        tools = folder / "bin"
        tools.mkdir(exist_ok=True)
        script = tools / "octavo"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m octavo "$@"\n')
        script.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        self.environment.pop("OCTAVO_BOOTSTRAP_SERVERS", None)
        if bootstrap is not None:
            self.environment["OCTAVO_BOOTSTRAP_SERVERS"] = bootstrap

    def __call__(self, line: str, *, expect: int = 0) -> Done:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == expect, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, line: str) -> subprocess.Popen[str]:
        """Start a command that goes on; the caller ends it."""
        with (self.folder / "stderr.txt").open("w") as errors:
            return subprocess.Popen(
                ["bash", "-c", f"exec {line}" if "|" not in line else line],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )


@pytest.fixture
def shell(tmp_path: pathlib.Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def at(shared_cluster: LocalCluster, tmp_path: pathlib.Path) -> Shell:
    """A shell whose commands reach the shared cluster."""
    return Shell(tmp_path, shared_cluster.bootstrap_servers)


def children_of(data: pathlib.Path) -> list[int]:
    found = read_cluster_file(data)
    assert found is not None
    return [entry.pid for entry in found.children if entry.pid]


def all_gone(pids: list[int]) -> bool:
    return wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), 60.0)


# --- octavo up ---------------------------------------------------------------------------------


@pytest.fixture
def up(shell: Shell) -> Iterator[subprocess.Popen[str]]:
    """`octavo up` in the foreground, ready."""
    process = shell.start("octavo up --port 0")
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("octavo is up at 127.0.0.1:"), (shell.folder / "stderr.txt").read_text()
    yield process
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)
    process.stdout.close()


def bootstrap_of(shell: Shell) -> str:
    found = read_cluster_file(shell.folder / "octavo-data")
    assert found is not None
    return found.bootstrap_servers


def test_up_runs_until_ctrl_c_and_leaves_nothing(shell: Shell, up: subprocess.Popen[str]) -> None:
    data = shell.folder / "octavo-data"
    cluster = read_cluster_file(data)
    assert cluster is not None
    assert [entry.name for entry in cluster.children] == [
        "bookie-1",
        "bookie-2",
        "bookie-3",
        "broker-1",
    ]
    for entry in cluster.children:
        assert psutil.pid_exists(entry.pid)
        assert pathlib.Path(entry.log).stat().st_size > 0
        assert entry.state == "ready"
    states = json.loads(shell("octavo status -o json").out)
    assert {row["state"] for row in states} == {"ready"}
    os.killpg(up.pid, signal.SIGINT)
    assert up.wait(60) == 0
    assert all_gone(children_of(data))
    assert shell("octavo status", expect=5).err.startswith("error: the cluster is not running")


def test_up_killed_with_9_leaves_nothing_and_finds_its_data(
    shell: Shell, up: subprocess.Popen[str]
) -> None:
    data = shell.folder / "octavo-data"
    shell.environment["OCTAVO_BOOTSTRAP_SERVERS"] = bootstrap_of(shell)
    shell("octavo topic create orders -p 3")
    shell("seq 1 500 | octavo produce orders")
    pids = children_of(data)
    before = bootstrap_of(shell)
    up.kill()
    up.wait()
    assert all_gone(pids), "children must die with a killed supervisor"

    again = shell("octavo up --port 0 --detach")
    try:
        assert before in again.out, "addresses are remembered"
        assert bootstrap_of(shell) == before
        found = shell("octavo consume orders --from start").out.split()
        assert sorted(map(int, found)) == list(range(1, 501))
        shell("seq 501 600 | octavo produce orders")
        assert len(shell("octavo consume orders").out.split()) == 600
    finally:
        shell("octavo down")


@pytest.mark.parametrize("ends", ["", " 2>&1"], ids=["stdout", "both"])
def test_up_goes_on_when_nobody_reads_its_output(shell: Shell, ends: str) -> None:
    """A cluster is more than its words: it serves, and Ctrl-C still ends it."""
    process = shell.start(f"octavo up --port 0{ends} | true")
    data = shell.folder / "octavo-data"

    def is_up() -> bool:
        found = read_cluster_file(data)
        return found is not None and [e.state for e in found.children] == ["ready"] * 4

    try:
        assert wait_until(is_up, COMMAND_TIMEOUT_S), (shell.folder / "stderr.txt").read_text()
        shell("octavo status")
        shell.environment["OCTAVO_BOOTSTRAP_SERVERS"] = bootstrap_of(shell)
        shell("octavo topic create unread -p 1")
    finally:
        pids = children_of(data)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
    assert all_gone(pids)


def test_bigger_cluster_in_the_background(shell: Shell) -> None:
    data = shell.folder / "q"
    line = f"octavo up --bookies 4 --brokers 2 --data {data} --port 0 --detach"
    shell(line)
    try:
        rows = json.loads(shell(f"octavo status --data {data} -o json").out)
        assert [row["name"] for row in rows] == [
            "metadata",
            *(f"bookie-{n}" for n in (1, 2, 3, 4)),
            "broker-1",
            "broker-2",
        ]
        assert {row["state"] for row in rows} == {"ready"}
        second = shell(line, expect=1)
        assert "in use by another `octavo up`" in second.err
        assert "hint: " in second.err
    finally:
        shell(f"octavo down --data {data}")
    assert shell(f"octavo down --data {data}").err == "the cluster is not running\n"


def test_port_taken_is_said_and_nothing_is_left_running(
    shell: Shell, shared_cluster: LocalCluster
) -> None:
    port = shared_cluster.bootstrap_servers.rpartition(":")[2]
    failed = shell(f"octavo up --port {port} --detach", expect=1)
    assert f"error: port {port} is taken by python" in failed.err
    assert "--port" in failed.err.splitlines()[-1]
    assert shell("octavo status", expect=3).err.startswith("error: ")


# --- topics and records ------------------------------------------------------------------------


def test_topic_life(at: Shell) -> None:
    at("octavo topic create life --partitions 6 -c segment.ms=60000")
    assert "life" in at("octavo topic list").out
    described = json.loads(at("octavo topic describe life -o json").out)
    assert described["topic"] == "life"
    assert described["settings"]["segment.ms"] == "60000"
    assert [row["partition"] for row in described["partitions"]] == list(range(6))
    assert "SETTINGS" not in at("octavo topic describe life").err
    assert at("octavo topic create life", expect=1).err.startswith("error: ")
    assert at("octavo topic create life --if-not-exists").code == 0
    at("octavo topic delete life", expect=2)
    at("octavo topic delete life --yes")
    gone = at("octavo topic describe life", expect=3)
    assert len(gone.err.splitlines()) == 2
    assert gone.out == ""


def test_produce_and_consume_as_the_readme_says(at: Shell) -> None:
    at("octavo topic create readme --partitions 6")
    sent = at(r"""printf '{"id":1}\n{"id":2}\n' | octavo produce readme --key-json id""")
    assert sent.out == ""
    assert sent.err == "2 records sent to readme\n"
    found = at("octavo consume readme --from start -n 2")
    assert sorted(found.out.splitlines()) == ['{"id":1}', '{"id":2}']
    assert found.err == ""
    rows = [json.loads(line) for line in at("octavo consume readme -o json").out.splitlines()]
    assert sorted((row["key"], row["value"]) for row in rows) == [
        ("1", '{"id":1}'),
        ("2", '{"id":2}'),
    ]


def test_headers_keys_and_format_tokens(at: Shell) -> None:
    at("octavo topic create tokens -p 1")
    at("printf 'hello\\n\\n' | octavo produce tokens --key k -H trace=7 -H trace=8")
    out = at(r"octavo consume tokens -f '%t/%p/%o %k=%s %h %K %S\n'").out
    assert out == "tokens/0/0 k=hello trace=7,trace=8 1 5\ntokens/0/1 k= trace=7,trace=8 1 0\n"


def test_every_position(at: Shell) -> None:
    at("octavo topic create places -p 1")
    at("seq 0 99 | octavo produce places")

    def read(where: str) -> list[int]:
        return [int(word) for word in at(f"octavo consume places --from {where}").out.split()]

    assert read("start") == list(range(100))
    assert read("90") == list(range(90, 100))
    assert read("-3") == [97, 98, 99]
    assert read("-1000") == list(range(100))
    assert read("@2020-01-01T00:00Z") == list(range(100))
    assert read("@-1h") == list(range(100))
    assert read("@2100-01-01T00:00Z") == []
    assert at("octavo consume places --from 10 -n 5").out.split() == ["10", "11", "12", "13", "14"]
    assert at("octavo consume places -p 7", expect=3).out == ""


def test_follow_waits_for_what_comes(at: Shell) -> None:
    at("octavo topic create news -p 1")
    at("echo old | octavo produce news")
    process = at.start("octavo consume news --from start --follow -n 2")
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == "old\n"
        at("echo new | octavo produce news")
        assert out.readline() == "new\n"
        assert process.wait(60) == 0


def test_arrow_file(at: Shell) -> None:
    at("octavo topic create columns -p 3")
    at("seq 1 1000 | octavo produce columns")
    done = at("octavo consume columns --arrow columns.arrow")
    assert done.out == ""
    with pa.ipc.open_file(str(at.folder / "columns.arrow")) as file:
        table = file.read_all()
    assert table.num_rows == 1000
    assert table.schema.names[:5] == ["key", "value", "topic", "partition", "offset"]
    values = cast("list[bytes]", table.column("value").to_pylist())
    assert sorted(map(int, values)) == list(range(1, 1001))
    at("octavo consume columns --from @2100-01-01 --arrow empty.arrow")
    with pa.ipc.open_file(str(at.folder / "empty.arrow")) as file:
        assert file.read_all().num_rows == 0


def test_closed_pipe_of_consume_is_quiet(at: Shell) -> None:
    at("octavo topic create many -p 1")
    at("seq 1 50000 | octavo produce many")
    done = at("octavo consume many | head -n 1")
    assert done == Done(0, "1\n", "")


# --- storage -----------------------------------------------------------------------------------


def test_cluster_health_is_one_sentence(at: Shell) -> None:
    done = at("octavo cluster health")
    assert done.out.startswith("healthy: 1 broker, 3 writable bookies")
    assert done.out.count("\n") == 1
    assert json.loads(at("octavo cluster health -o json").out)["healthy"] is True


def test_cluster_health_follows_what_is_killed(
    cluster: LocalCluster, tmp_path: pathlib.Path
) -> None:
    shell = Shell(tmp_path, cluster.bootstrap_servers)

    def says(words: str, code: int) -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", "cluster", "health"],
            env=shell.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return words in done.stdout and done.returncode == code

    cluster.kill("bookie-1")
    assert wait_until(lambda: says("degraded: ", 0), 60.0)
    cluster.kill("bookie-2")
    assert wait_until(lambda: says("unhealthy: nothing can be acknowledged", 5), 60.0)
    shell(f"octavo status --data {cluster.data}", expect=5)
    os.kill(cluster.cluster.supervisor_pid, signal.SIGHUP)
    assert wait_until(lambda: says("healthy: ", 0), 60.0), "SIGHUP starts what is down"


def test_probe_of_a_ready_server(at: Shell, shared_cluster: LocalCluster) -> None:
    address = shared_cluster.bootstrap_servers
    assert at(f"octavo probe {address}").err == f"{address} is ready\n"


def test_ledger_show(at: Shell, shared_cluster: LocalCluster) -> None:
    at("octavo topic create held -p 1")
    at("seq 1 10 | octavo produce held")
    with Client(shared_cluster.bootstrap_servers) as client:
        (segment,) = client.admin.describe_log("held", 0).segments
    found = json.loads(at(f"octavo ledger show {segment.ledger_id} -o json").out)
    assert found["custom"]["topic"] == "held"
    assert found["state"] == "OPEN"
    assert len(found["ensembles"][0]["members"]) == 3
    assert [holder["reachable"] for holder in found["holders"]] == [True] * 3
    assert at(f"octavo ledger show {found['ledger']}").out.startswith("ledger")
    assert at("octavo ledger show 999999999", expect=3).out == ""


def test_export_adds_only_what_is_new(at: Shell) -> None:
    at("octavo topic create lake -p 2")
    at("seq 1 1000 | octavo produce lake")
    first = json.loads(at("octavo export lake --to ./lake --roll -o json").out)
    assert first["records"] == 1000
    again = json.loads(at("octavo export lake --to ./lake -o json").out)
    assert (again["records"], again["files"]) == (0, 0)
    at("seq 1001 1200 | octavo produce lake")
    more = json.loads(at("octavo export lake --to ./lake --roll -o json").out)
    assert more["records"] == 200
    files = sorted((at.folder / "lake").rglob("*.arrow"))
    rows = 0
    for path in files:
        with pa.ipc.open_file(str(path)) as file:
            rows += file.read_all().num_rows
    assert rows == 1200


def test_a_follower_exports_until_it_is_stopped(at: Shell) -> None:
    """Nobody closes a ledger for it, two topics go into one Delta lake, SIGTERM ends it well."""
    for topic in ("followed", "followed-too"):
        at(f"octavo topic create {topic}")
        at(f"seq 1 500 | octavo produce {topic}")
    line = "octavo export --pattern 'followed.*' --to ./lake --table delta --follow"
    follower = at.start(f"{line} --lag-target 0.4 -o json")
    try:
        names = ("followed", "followed-too")
        logs = [at.folder / "lake" / name / "_delta_log" / f"{1:020d}.json" for name in names]
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while not all(log.exists() for log in logs):
            assert follower.poll() is None, (at.folder / "stderr.txt").read_text()
            assert time.monotonic() < deadline_s
            threading.Event().wait(0.02)
        follower.terminate()
        out, _ = follower.communicate(timeout=COMMAND_TIMEOUT_S)
    finally:
        follower.kill()
    assert follower.returncode == 0
    assert [(row["topic"], row["records"]) for row in json.loads(out)] == [
        (name, 500) for name in names
    ]
    said = (at.folder / "stderr.txt").read_text()
    assert said.count(": 500 records of 1 ledger, ") == 2, said


def test_errors_are_two_lines_and_a_code(at: Shell) -> None:
    for line in ("octavo consume nowhere", "echo x | octavo produce nowhere"):
        done = at(line, expect=3)
        assert done.out == ""
        assert done.err.splitlines()[0].startswith("error: ")
        assert done.err.splitlines()[1].startswith("hint: ")
    broken = at(
        "printf 'no json\\n' | octavo produce nowhere --key-json id -b 127.0.0.1:1 --timeout 1",
        expect=5,
    )
    assert "127.0.0.1:1" in broken.err
