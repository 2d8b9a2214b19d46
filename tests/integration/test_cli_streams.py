"""Every command with standard streams that are closed, unread or full.

A missing reader ends what only prints, quietly and with exit code 0; the exit code of what does or
judges something still says how that went. A full disk behind stdout is an error by name. Whatever
stderr is, the command does the same.
"""

from __future__ import annotations

import io
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest
import typer
import typer.main

from octavo.cli.app import app
from octavo.cli.failures import ExitCode, point_at_nothing
from octavo.cli.program import run
from octavo.proto.broker_pb2 import OpenSinkRequest
from octavo.supervisor.cluster_file import ClusterFile, folder_identity, write_cluster_file
from tests.fake_broker import FakeClusterThread
from tests.fake_sinks import NOBODY

PRINTS = {
    "": "",
    "topic": "topic --help",
    "topic list": "topic list",
    "topic describe": "topic describe t",
    "topic advise": "topic advise --target-mbps 10",
    "consume": "consume t",
    "ledger": "ledger --help",
    "ledger show": "ledger show 1",
    "ledger list": "ledger list",
    "group": "group --help",
    "bookies": "bookies --help",
    "brokers": "brokers --help",
    "quotas": "quotas --help",
    "sink": "sink --help",
    "sink list": "sink list",
    "sink show": "sink show s",
    "logs": "logs up --data DATA",
    "top": "top --once",
    "cluster": "cluster --help",
    "metadata": "metadata --help",
}
"""Commands whose work is their output: path in the command tree → a line that succeeds."""

JUDGES = {
    "status": "status --data DATA",
    "cluster health": "cluster health",
    "doctor": "doctor --data DATA",
    "ledger verify": "ledger verify --metadata memory://verify/octavo",
    "verify": "verify --metadata memory://all/octavo",
}
"""Commands whose output is a judgement: the exit code stays."""

WORKS = {
    "topic create": "topic create new",
    "autorecovery": "autorecovery --disable --metadata memory://switch/octavo",
    "bookies decommission": "bookies decommission bookie-1 --metadata memory://gone/octavo",
    "bookies list": "bookies list --metadata memory://list/octavo",
    "bookies readonly": "bookies readonly bookie-1 --metadata memory://hold/octavo",
    "bookies scrub": "bookies scrub --metadata memory://scrub/octavo",
    "bookies writable": "bookies writable bookie-1 --metadata memory://free/octavo",
    "brokers drain": "brokers drain broker-1",
    "brokers list": "brokers list",
    "brokers bundles": "brokers bundles",
    "brokers undrain": "brokers undrain broker-1",
    "brokers unload": "brokers unload 0 --no-wait",
    "quotas list": "quotas list",
    "quotas set": "quotas set app --bytes-in 1000000",
    "quotas unset": "quotas unset app",
    "sink end": "sink end s --yes",
    "ledger collect": "ledger collect --data DATA",
    "ledger recover": "ledger recover 1 --yes --metadata memory://end/octavo",
    "group delete": "group delete g --yes",
    "group describe": "group describe g",
    "group lag": "group lag g",
    "group list": "group list",
    "group remove-member": "group remove-member g --all --yes",
    "group reset": "group reset g --to start",
    "topic compact": "topic compact t",
    "topic delete": "topic delete t --yes",
    "topic decommission": "topic decommission t 0",
    "topic grow": "topic grow t -p 20",
    "topic set": "topic set t segment.ms=9000",
    "topic trim": "topic trim t --before end --yes",
    "topic unset": "topic unset t segment.ms",
    "produce": "produce t -v",
    "export": "export t --to LAKE",
    "up": "up --bookies 0 --data DATA",
    "down": "down --data DATA",
    "restart": "restart bookie-1 --data DATA",
    "metadata backup": "metadata backup COPY --replace --metadata memory://copied/octavo",
    "metadata restore": "metadata restore COPY --yes --metadata memory://restored/octavo",
    "probe": "probe 127.0.0.1:1 --timeout 0.2",
    "broker": "broker --id broker-1 --metadata nowhere",
    "bookie": "bookie --id bookie-1 --metadata nowhere --data DATA",
}
"""Commands that do something: they do it, or fail, as they would with open streams."""

LINES = {**PRINTS, **JUDGES, **WORKS}


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    yield thread
    thread.stop()


@pytest.fixture
def words(
    fake: FakeClusterThread, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[str]]:
    """The words of a line, and a fake cluster with one topic `t`, empty, and a sink `s`."""
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", fake.bootstrap)
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    (data / "logs" / "up.log").write_text("up\n")
    write_cluster_file(data, dead_cluster(data))

    def prepared(line: str) -> list[str]:
        fake.call(lambda: fake.cluster.topics.clear())
        fake.call(lambda: fake.cluster.create("t", 1))
        fake.submit(fake.cluster.sinks.open(OpenSinkRequest(sink_id="s"), NOBODY)).result(30)
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        paths = {"DATA": str(data), "LAKE": str(tmp_path / "lake"), "COPY": str(tmp_path / "copy")}
        return [paths.get(word, word) for word in line.split()]

    return prepared


def dead_cluster(data: pathlib.Path) -> ClusterFile:
    return ClusterFile(
        supervisor_pid=0,
        supervisor_started=0.0,
        bootstrap_servers="127.0.0.1:1",
        metadata="embedded://127.0.0.1:1/octavo",
        metadata_log="log",
        children=(),
        bookies=3,
        brokers=1,
        folder=folder_identity(data),
    )


def run_with(
    line: list[str], monkeypatch: pytest.MonkeyPatch, *, out: TextIO | None, err: TextIO | None
) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        return run(line)


def unread() -> TextIO:
    """A pipe whose reader went away."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def full() -> TextIO:
    """A device without space."""
    return os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")


def close(stream: TextIO | None) -> None:
    if stream is not None:
        point_at_nothing(stream)  # closing writes what could not be written
        stream.close()


BROKEN: dict[str, Callable[[], TextIO | None]] = {
    "closed": lambda: None,
    "unread": unread,
    "full": full,
}


def said(path: pathlib.Path) -> str:
    text = path.read_text("utf-8", "surrogateescape")
    assert "Traceback" not in text
    assert "unexpected" not in text
    return text


def test_each_command_is_in_the_tables() -> None:
    def leaves(group: object, path: str) -> Iterator[str]:
        yield path
        for name, below in getattr(group, "commands", {}).items():
            yield from leaves(below, f"{path} {name}".strip())

    assert set(leaves(typer.main.get_command(app), "")) == set(LINES)


@pytest.mark.parametrize("kind", list(BROKEN))
@pytest.mark.parametrize("path", sorted(LINES))
def test_stdout_that_nobody_reads(
    path: str,
    kind: str,
    words: Callable[[str], list[str]],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = words(LINES[path])
    errors = tmp_path / "err"
    with (tmp_path / "out").open("w") as out, errors.open("w") as err:
        usual = run_with(line, monkeypatch, out=out, err=err)
    assert "unexpected" not in said(errors)
    line = words(LINES[path])
    out_now = BROKEN[kind]()
    with errors.open("w") as err:
        code = run_with(line, monkeypatch, out=out_now, err=err)
    close(out_now)
    text = said(errors)
    printed = (tmp_path / "out").stat().st_size > 0
    if kind == "full" and printed:
        assert code == ExitCode.ERROR
        whose = "" if line[-1:] == ["--help"] else "standard output: "  # the parser's own
        assert f"error: {whose}No space left on device" in text
    else:
        assert code == usual, text


@pytest.mark.parametrize("kind", list(BROKEN))
@pytest.mark.parametrize("path", sorted(LINES))
def test_stderr_that_nobody_reads(
    path: str,
    kind: str,
    words: Callable[[str], list[str]],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = words(LINES[path])
    outs = [tmp_path / "usual", tmp_path / "out"]
    with outs[0].open("w") as out, (tmp_path / "err").open("w") as err:
        usual = run_with(line, monkeypatch, out=out, err=err)
    line = words(LINES[path])
    err_now = BROKEN[kind]()
    with outs[1].open("w") as out:
        assert run_with(line, monkeypatch, out=out, err=err_now) == usual
    close(err_now)
    counts = [out.read_bytes().count(b"\n") for out in outs]
    assert counts[1] == counts[0], outs[1].read_text()  # figures and offsets differ, lines do not


@pytest.mark.parametrize("ends", [">&-", "2>&-", ">&- 2>&-", "| true", "2>&1 | true"])
@pytest.mark.parametrize("line", ["topic list", "--help", "cluster health", "status --data DATA"])
def test_the_same_of_a_process(ends: str, line: str, words: Callable[[str], list[str]]) -> None:
    shell = f'"$0" -m octavo "$@" {ends}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, *words(line)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    wanted = ExitCode.UNAVAILABLE if line.startswith("status") else ExitCode.OK
    assert done.returncode == wanted, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
