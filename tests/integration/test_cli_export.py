"""`octavo export` as a person types it, against a broker in memory: refusals, lists, stops."""

from __future__ import annotations

import errno
import io
import json
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import pytest

from octavo.cli import export_follow
from octavo.cli.export_report import explain, row_of
from octavo.cli.failures import ExitCode, missing_package
from octavo.cli.program import run
from octavo.runtime.errors import BrokerUnavailable
from octavo.spark.export import ExportProgress, ExportReport, JoinProgress
from tests.fake_broker import FakeClusterThread

WITHIN_S = 60.0


class Done:
    """What one command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


Octavo = Callable[..., Done]


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    for name in ("t", "two"):
        thread.call(lambda name=name: thread.cluster.create(name, 2))  # type: ignore[misc]
    yield thread
    thread.stop()


@pytest.fixture
def octavo(
    fake: FakeClusterThread,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Octavo:
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", fake.bootstrap)
    monkeypatch.chdir(tmp_path)

    def call(line: str) -> Done:
        code = run(line.split())
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@contextmanager
def sigterm_when(condition: Callable[[], bool]) -> Generator[None]:
    """SIGTERM for this process once something is so, as a service's manager sends it."""
    over = threading.Event()

    def watch() -> None:
        for _ in range(round(WITHIN_S / 0.01)):
            if over.wait(0.01):
                return
            if condition():
                break
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("", "name topics"),
        ("t --pattern x", "name topics"),
        ("--pattern x", "--pattern needs --follow"),
        ("t --follow --roll", "--follow excludes"),
        ("t --follow --verify", "--follow excludes"),
        ("t --table delta --format arrow", "Parquet files, not of arrow"),
        ("t --table iceberg", "iceberg"),
        ("t --follow --lag-target 1 --poll 1", "cannot be held"),
        ("t --follow --lag-target -1", "lag-target"),
        ("--pattern a( --follow", "no regular expression"),
        ("t --codec gzip", "unknown export codec"),
        ("t --follow --format csv", "unknown export format"),
    ],
)
def test_what_makes_no_sense_is_refused(octavo: Octavo, words: str, cause: str) -> None:
    done = octavo(f"export {words} --to lake")
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert cause in " ".join(done.err.split())
    assert not pathlib.Path("lake").exists()


def test_one_topic_is_a_thing_and_several_are_a_list(octavo: Octavo) -> None:
    one = octavo("export t --to lake -o json")
    assert json.loads(one.out)["topic"] == "t"
    several = octavo("export t two t --to lake -o json")
    assert [row["topic"] for row in json.loads(several.out)] == ["t", "two"]
    assert pathlib.Path("lake/_octavo/two").is_dir()


def test_what_was_done_before_an_error_is_told(octavo: Octavo) -> None:
    done = octavo("export t nowhere --to lake -o csv")
    assert done.code == ExitCode.NOT_FOUND
    assert done.out.splitlines()[1].startswith("t,")
    assert "nowhere" in done.err


def test_a_follower_ends_well_with_sigterm(octavo: Octavo) -> None:
    export = pathlib.Path("lake/_octavo/t/_export.json").absolute()
    with sigterm_when(export.exists):
        done = octavo("export t --to lake --follow --lag-target 0.2 --format parquet -o json")
    assert done.code == ExitCode.OK
    assert json.loads(done.out) == {
        "topic": "t",
        "folder": "lake/t",
        "files": 0,
        "records": 0,
        "bytes": 0,
        "ledgers": 0,
    }
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_topic_that_is_not_there(octavo: Octavo) -> None:
    done = octavo("export nowhere --to lake --follow")
    assert done.code == ExitCode.NOT_FOUND
    assert done.err.count("nowhere") >= 1
    with sigterm_when(pathlib.Path("lake/_octavo/t/_export.json").absolute().exists):
        done = octavo("export t nowhere --to lake --follow --lag-target 0.2 -o csv")
    assert done.code == ExitCode.ERROR, "it ended well, but one topic had been given up"
    assert "nowhere is followed no more" in done.err
    assert [line.partition(",")[0] for line in done.out.splitlines()] == ["topic", "t"]


class Terminal(io.StringIO):
    """A stderr that a person looks at."""

    def isatty(self) -> bool:
        return True


def test_lines_have_the_time_where_no_person_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export_follow.say("hello")
    time, _, text = capsys.readouterr().err.partition(" ")
    assert (len(time), time[-1], text) == (20, "Z", "hello\n")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    export_follow.say("hello")
    assert terminal.getvalue() == "hello\n"


def test_what_a_follower_says(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    events = export_follow.spoken()
    events.published(ExportProgress(0, (5,), 1, 2_345, 1, 1, "t"))
    events.published(ExportProgress(1, (6, 7), 1000, 2_345_678, 2, 2, "t"))
    events.joined(JoinProgress("t", 1, 8, 9000, 123_456))
    events.trouble("t", BrokerUnavailable("nobody answers"))
    events.trouble("", OSError(errno.ENOSPC, "No space left on device", "/lake/t"))
    events.recovered()
    events.left("t", ValueError("odd"))
    events.looked(ExportReport("t", "lake/t", lost=((1, 10, 20),), unrepaired=("p1",)))
    assert terminal.getvalue().splitlines() == [
        "t-0: 1 record of 1 ledger, 2.3 kB",
        "t-1: 1000 records of 2 ledgers, 2.3 MB",
        "t-1: 8 small files became one of 9000 records, 0.1 MB",
        "warning: t: nobody answers; trying again until it works",
        "warning: topics: /lake/t: No space left on device; trying again until it works",
        "going on",
        "error: t is followed no more: odd",
        "warning: partition 1: offsets 10 to 19 were removed by retention before any export",
        "error: p1 is damaged and its ledgers are gone: it cannot be written again",
    ]


def test_what_one_run_says(capsys: pytest.CaptureFixture[str]) -> None:
    report = ExportReport(
        "t", "lake/t", file_count=2, open_ledgers=3, damaged=("a", "b"), unrepaired=("b",)
    )
    explain(report, checked=4)
    assert capsys.readouterr().err.splitlines() == [
        "error: b is damaged and its ledgers are gone: it cannot be written again",
        "1 damaged files were written again",
        "4 files were read and compared, 2 were damaged",
        "3 ledgers are still open and were left out; --roll closes them",
    ]
    assert row_of(report)["files"] == 2


def test_a_missing_library_names_its_extra() -> None:
    found = missing_package(ModuleNotFoundError("No module named 'deltalake'", name="deltalake"))
    assert found == ("this needs the package deltalake", "pip install 'octavo[delta]'")
