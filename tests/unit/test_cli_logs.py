"""`octavo logs`: the last lines of a log, and everything that comes after them."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.chaos.toxiproxy import wait_until
from octavo.cli.failures import ExitCode
from octavo.cli.logs import CHUNK_BYTES, LogReader
from octavo.cli.program import run
from octavo.supervisor.cluster_file import ClusterFile, folder_identity, write_cluster_file


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "log"


@pytest.fixture
def reader(path: pathlib.Path) -> Iterator[LogReader]:
    made = LogReader(path)
    yield made
    made.close()


@given(
    data=st.binary(max_size=40).map(lambda raw: raw.replace(b"\x00", b"\n")),
    count=st.integers(0, 6),
    padding=st.sampled_from([0, CHUNK_BYTES - 20, CHUNK_BYTES + 3]),
)
def test_the_last_lines_are_those_of_a_plain_split(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, count: int, padding: int
) -> None:
    path = tmp_path_factory.mktemp("logs") / "log"
    text = b"x" * padding + data
    path.write_bytes(text)
    lines = text.splitlines(keepends=True) if b"\r" not in text else None
    reader = LogReader(path)
    assert reader.open()
    reader.go_to_last(count)
    found = b"".join(reader.pieces())
    reader.close()
    assert text.endswith(found)
    if lines is None or any(mark in text for mark in (b"\x0b", b"\x0c", b"\x1c", b"\x85")):
        assert found.count(b"\n") <= count
    else:
        assert found == b"".join(lines[max(len(lines) - count, 0) :])


def test_what_is_appended_comes_once(path: pathlib.Path, reader: LogReader) -> None:
    path.write_bytes(b"one\ntwo\n")
    assert reader.open()
    reader.go_to_last(1)
    assert b"".join(reader.pieces()) == b"two\n"
    assert b"".join(reader.pieces()) == b""
    with path.open("ab") as log:
        log.write(b"three\n")
    assert b"".join(reader.pieces()) == b"three\n"


@pytest.mark.parametrize("again", [b"new\n", b"a longer line than all that was there before it\n"])
def test_an_emptied_log_is_read_from_its_new_beginning(
    path: pathlib.Path, reader: LogReader, again: bytes
) -> None:
    """Also when it grew past the old place between two looks."""
    path.write_bytes(b"old line\n")
    assert reader.open()
    assert b"".join(reader.pieces()) == b"old line\n"
    path.write_bytes(again)
    assert b"".join(reader.pieces()) == again


def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(
    path: pathlib.Path, reader: LogReader
) -> None:
    path.write_bytes(b"one\n")
    assert reader.open()
    assert b"".join(reader.pieces()) == b"one\n"
    with path.open("ab") as log:
        path.rename(path.with_suffix(".1"))
        log.write(b"last of the old\n")
    assert b"".join(reader.pieces()) == b"last of the old\n"
    path.write_bytes(b"first of the new\n")
    assert b"".join(reader.pieces()) == b"first of the new\n"


def test_a_log_that_begins_later_is_waited_for(path: pathlib.Path, reader: LogReader) -> None:
    assert not reader.open()
    assert b"".join(reader.pieces()) == b""
    path.write_bytes(b"one\n")
    assert b"".join(reader.pieces()) == b"one\n"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "logs").mkdir()
    cluster = ClusterFile(
        supervisor_pid=0,
        supervisor_started=0.0,
        bootstrap_servers="",
        metadata="",
        metadata_log=str(tmp_path / "logs" / "supervisor.log"),
        children=(),
        bookies=1,
        brokers=1,
        folder=folder_identity(tmp_path),
    )
    write_cluster_file(tmp_path, cluster)
    return tmp_path


def test_names_that_are_not_there(data: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", "bookie-9", "--data", str(data)]) == ExitCode.NOT_FOUND
    assert "known: metadata" in capsys.readouterr().err
    assert run(["logs", "metadata", "--data", str(data)]) == ExitCode.NOT_FOUND
    assert "nothing was logged yet" in capsys.readouterr().err
    assert run(["logs", "metadata", "--data", str(data / "no")]) == ExitCode.NOT_FOUND
    assert run(["logs", "metadata", "-n", "-1", "--data", str(data)]) == ExitCode.USAGE


def test_bytes_that_are_no_text_come_as_they_are(
    data: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (data / "logs" / "supervisor.log").write_bytes(b"\xff\xfe\nlast")
    assert run(["logs", "metadata", "--data", str(data), "--all"]) == ExitCode.OK
    assert capsysbinary.readouterr().out == b"\xff\xfe\nlast"


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_with_ctrl_c_as_consume_does(data: pathlib.Path, stop: int) -> None:
    log = data / "logs" / "supervisor.log"
    log.write_bytes(b"one\ntwo\n")
    words = ["logs", "metadata", "-f", "-n", "1", "--data", str(data)]
    with subprocess.Popen(
        [sys.executable, "-m", "octavo", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"two\n"
        with log.open("ab") as file:
            file.write(b"three\n")
        assert process.stdout.readline() == b"three\n"
        process.send_signal(stop)
        assert process.wait(60) == ExitCode.OK
        assert process.stderr.read() == b""


def test_following_ends_when_nobody_reads(data: pathlib.Path) -> None:
    (data / "logs" / "supervisor.log").write_bytes(b"one\n")
    reading, writing = os.pipe()
    words = ["logs", "metadata", "-f", "--data", str(data)]
    with subprocess.Popen([sys.executable, "-m", "octavo", *words], stdout=writing) as process:
        os.close(writing)
        assert os.read(reading, 100) == b"one\n"
        os.close(reading)
        assert wait_until(lambda: process.poll() is not None, 30.0)
        assert process.returncode == ExitCode.OK
