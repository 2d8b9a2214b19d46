"""`octavo produce` and `octavo consume` against a broker in memory: what is stored, printed, said.

Most commands run in this process; those that need signals or a pipe that closes get their own.
"""

from __future__ import annotations

import io
import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pytest

from octavo import Client
from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.runtime.errors import InvalidRecord
from tests.fake_broker import FakeClusterThread

LIMIT = 1 << 20


class Done(NamedTuple):
    """What one command came to."""

    code: int
    out: bytes
    err: str


Octavo = Callable[..., Done]


@pytest.fixture
def fake() -> Iterator[FakeClusterThread]:
    thread = FakeClusterThread()
    thread.call(lambda: thread.cluster.create("t", 1))
    thread.call(lambda: thread.cluster.create("two", 2))
    yield thread
    thread.stop()


@pytest.fixture
def octavo(
    fake: FakeClusterThread,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Octavo:
    monkeypatch.setenv("OCTAVO_BOOTSTRAP_SERVERS", fake.bootstrap)

    def call(*words: str, data: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = run(words)
        out, err = capsysbinary.readouterr()
        return Done(code, out, err.decode("utf-8", "surrogateescape"))

    return call


def started(fake: FakeClusterThread, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "octavo", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OCTAVO_BOOTSTRAP_SERVERS": fake.bootstrap},
    )


def until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < end_s


def fill(fake: FakeClusterThread, topic: str, count: int, partition: int = 0) -> None:
    with Client(fake.bootstrap) as client, client.producer() as producer:
        values = [b"v%d" % n for n in range(count)]
        stamps = [1000 * n for n in range(count)]
        producer.send_many(topic, values, timestamps_ms=stamps, partition=partition)


def stored(fake: FakeClusterThread, topic: str = "t") -> list[tuple[bytes | None, bytes | None]]:
    with Client(fake.bootstrap) as client, client.reader(topic) as reader:
        return [(record.key, record.value) for record in reader.read_to_end()]


# --- produce: lines that are no records -----------------------------------------------------------


def test_the_first_bad_line_stops_and_the_records_before_it_are_counted(
    octavo: Octavo, fake: FakeClusterThread
) -> None:
    done = octavo("produce", "t", data=b"good\n" + b"x" * (LIMIT + 1) + b"\nnever\n")
    assert done.code == ExitCode.ERROR
    assert "1 record of 2 lines in t\n" in done.err
    assert f"error: line 2 is larger than a record may be, {LIMIT} bytes\n" in done.err
    assert stored(fake) == [(None, b"good")]


def test_a_record_of_exactly_the_limit_is_sent(octavo: Octavo, fake: FakeClusterThread) -> None:
    assert octavo("produce", "t", data=b"x" * LIMIT).code == ExitCode.OK
    assert len(stored(fake)[0][1] or b"") == LIMIT


def test_bad_lines_are_set_aside_as_they_are(
    octavo: Octavo, fake: FakeClusterThread, tmp_path: pathlib.Path
) -> None:
    huge = b'{"id":"' + b"x" * (3 * LIMIT) + b'"}'
    bad = [b"no json", b"", huge, b'{"other":1}', b'{"id":"\\ud800"}', b"\xff\xfe"]
    good = [b'{"id":1}', b'{"id":null}', b'{"id":"a"}']
    lines = [bad[0], good[0], bad[1], bad[2], good[1], *bad[3:], good[2]]
    aside = tmp_path / "rejects"
    words = ("produce", "t", "-k", "id", "--on-error", "skip", "--rejects", str(aside))
    done = octavo(*words, data=b"\n".join(lines))
    assert done.code == ExitCode.OK
    assert done.err.splitlines()[-1] == "3 records sent to t, 6 lines skipped"
    assert "skipped line 1 is not JSON" in done.err
    assert "skipped line 4 is larger" in done.err
    assert aside.read_bytes() == b"".join(line + b"\n" for line in bad)
    assert stored(fake) == [(b"1", good[0]), (None, good[1]), (b"a", good[2])]


def test_a_record_that_the_broker_refuses_is_named_by_its_line(
    octavo: Octavo, fake: FakeClusterThread, tmp_path: pathlib.Path
) -> None:
    faults = fake.cluster.brokers[0].faults
    faults.refuse.append(InvalidRecord("not today"))
    done = octavo("produce", "t", data=b"first\n")
    assert (done.code, "error: line 1: not today" in done.err) == (ExitCode.ERROR, True)
    faults.refuse.append(InvalidRecord("not today"))
    aside = tmp_path / "rejects"
    words = ("produce", "t", "--on-error", "skip", "--rejects", str(aside))
    assert octavo(*words, data=b"first\n").code == ExitCode.OK
    assert aside.read_bytes() == b"first\n"


def test_keys_and_tombstones_per_line_go_there_and_back(
    octavo: Octavo, fake: FakeClusterThread
) -> None:
    lines = b"k1\tv1\nk2\t\n\tv3\nk4\ta\tb\n"
    assert octavo("produce", "t", "-K", r"\t", "-Z", data=lines).code == ExitCode.OK
    wanted = [(b"k1", b"v1"), (b"k2", None), (None, b"v3"), (b"k4", b"a\tb")]
    assert stored(fake) == wanted
    assert octavo("consume", "t", "-K", r"\t", "-Z").out == (
        b"k1\tv1\nk2\tNULL\nNULL\tv3\nk4\ta\tb\n"
    )
    assert octavo("consume", "t", "-K", "=").out.splitlines()[1] == b"k2="
    done = octavo("produce", "t", "-K", ":", data=b"k:v\nplain\n")
    assert (done.code, "line 2 has no delimiter" in done.err) == (ExitCode.ERROR, True)
    assert "1 record of 2 lines in t" in done.err


# --- produce: ends --------------------------------------------------------------------------------


def test_sending_goes_on_when_the_output_is_closed(fake: FakeClusterThread) -> None:
    process = started(fake, "produce", "t", "-v")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdin as lines:
        lines.write(b"".join(b"%d\n" % n for n in range(5_000)))
        lines.flush()
        assert process.stdout.readline().startswith(b'{"topic": "t"')
        process.stdout.close()
        lines.write(b"".join(b"%d\n" % n for n in range(5_000, 20_000)))
    with process.stderr as pipe:
        said = pipe.read().decode()
    assert process.wait(60) == ExitCode.OK
    assert said.splitlines() == [
        "the output was closed: the rest is sent without printing",
        "20000 records sent to t",
    ]
    assert fake.call(lambda: fake.cluster.log("t").end) == 20_000


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopping_a_producer_says_how_many_records_are_there(
    fake: FakeClusterThread, stop: signal.Signals
) -> None:
    process = started(fake, "produce", "t", "-v")
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (b"one\n", b"two\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline()  # what is printed was acknowledged
    process.send_signal(stop)
    said = process.communicate(timeout=180)[1].decode()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "2 records of 2 lines in t" in said


# --- topics ---------------------------------------------------------------------------------------


def test_if_not_exists_says_what_differs(octavo: Octavo, fake: FakeClusterThread) -> None:
    fake.call(lambda: fake.cluster.create("there", 2, **{"segment.ms": "60000"}))
    words = ("topic", "create", "there", "--if-not-exists")
    for same in ((), ("-p", "2"), ("-c", "segment.ms=60000")):
        done = octavo(*words, *same)
        assert (done.code, done.err) == (ExitCode.OK, "topic there exists already\n")
    done = octavo(*words, "-p", "3", "-c", "segment.ms=7", "-c", "retention.ms=1")
    assert done.code == ExitCode.OK
    assert done.err.splitlines()[1] == (
        "warning: it was left as it is: partitions is 2, not 3; retention.ms is not set, not 1; "
        "segment.ms is 60000, not 7"
    )
    assert octavo("topic", "create", "there").code == ExitCode.ERROR


NO_TEXT = "x\udcff\u20ac"
"""An argument as Python gives bytes that are no text."""


@pytest.mark.parametrize(
    "line",
    [
        "topic create X",
        "topic describe X",
        "topic delete X --yes",
        "consume X",
        "consume t -f X",
        "consume t --from X",
        "produce X",
        "produce t -k X",
        "produce t -K X --on-error skip",
        "produce t --file X",
        "produce t -X X=1",
        "export X --to LAKE",
        "ledger list --topic X",
        "ledger show X",
        "topic list -b X:1",
        "cluster health -b X:1",
        "status --data X",
        "down --data X",
        "logs X --data X",
        "restart X --data X",
        "up --data X",
        "probe X:1",
        "X",
    ],
)
def test_arguments_that_are_no_text_are_refused_in_words(
    octavo: Octavo, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word.replace("X", NO_TEXT) if word != "-X" else word for word in line.split()]
    done = octavo(*words, data=b"{}\n")
    assert done.code in (ExitCode.OK, ExitCode.ERROR, ExitCode.USAGE, ExitCode.NOT_FOUND), done.err
    assert "Traceback" not in done.err
    assert "unexpected" not in done.err
    assert "codec" not in done.err
    if done.code == ExitCode.OK:
        assert line in ("produce t -K X --on-error skip", "produce t -k X")


# --- consume --------------------------------------------------------------------------------------


def test_from_tail_and_until(octavo: Octavo, fake: FakeClusterThread) -> None:
    fill(fake, "t", 10)

    def values(*words: str) -> list[int]:
        done = octavo("consume", "t", *words)
        assert done.code == ExitCode.OK, done.err
        return [int(line[1:]) for line in done.out.splitlines()]

    assert values("--from", "end-3") == values("--tail", "3") == [7, 8, 9]
    assert values("--tail", "0") == values("--from", "10") == []
    assert values("--until", "3") == [0, 1, 2]
    assert values("--from", "2", "--until", "4") == [2, 3]
    assert values("--until", "@4000") == [0, 1, 2, 3]
    assert values("--until", "99") == values("--until", "end") == list(range(10))
    assert values("--until", "@2100-01-01") == list(range(10))
    assert values("--until", "3", "--follow") == [0, 1, 2]
    assert values("--partition", "0", "--from", "@8000") == [8, 9]


def test_a_start_beyond_the_end_is_an_error_or_waited_for(
    octavo: Octavo, fake: FakeClusterThread
) -> None:
    fill(fake, "two", 10, partition=0)
    fill(fake, "two", 3, partition=1)
    for words in (("--from", "11"), ("--from", "11", "--follow"), ("--from", "4", "-p", "1")):
        done = octavo("consume", "two", *words)
        assert (done.code, done.out) == (ExitCode.NOT_FOUND, b"")
        assert "beyond the end" in done.err
    assert octavo("consume", "two", "--from", "8").out == b"v8\nv9\n"  # the short one has none
    threading.Timer(0.5, lambda: fill(fake, "two", 7, partition=1)).start()
    done = octavo("consume", "two", "--from", "8", "--follow", "-n", "4")
    assert sorted(done.out.split()) == [b"v5", b"v6", b"v8", b"v9"]  # offsets 8 and 9 of each


def test_a_partition_that_grows_does_not_hold_the_end_up(
    octavo: Octavo, fake: FakeClusterThread
) -> None:
    fill(fake, "two", 5, partition=0)
    fill(fake, "two", 5, partition=1)
    assert len(octavo("consume", "two").out.split()) == 10
    assert octavo("consume", "two", "--until", "2").out.split().count(b"v1") == 2


# --- consume --arrow ------------------------------------------------------------------------------


def rows(path: pathlib.Path) -> int:
    with pa.memory_map(str(path)) as source:
        return int(pa.ipc.open_file(source).read_all().num_rows)


def test_arrow_streams_to_standard_output(octavo: Octavo, fake: FakeClusterThread) -> None:
    fill(fake, "t", 10)
    done = octavo("consume", "t", "--arrow", "-", "--from", "4")
    assert pa.ipc.open_stream(done.out).read_all().column("offset").to_pylist() == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert done.err == "6 records written to standard output\n"


def test_arrow_keeps_links_fifos_devices_and_modes(
    octavo: Octavo, fake: FakeClusterThread, tmp_path: pathlib.Path
) -> None:
    fill(fake, "t", 10)
    target, link, fifo = (tmp_path / name for name in ("target", "link", "fifo"))
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to("target")
    os.mkfifo(fifo)
    assert octavo("consume", "t", "--arrow", str(link)).code == ExitCode.OK
    assert link.is_symlink()
    assert rows(target) == 10
    assert stat.S_IMODE(target.stat().st_mode) == 0o600

    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    assert octavo("consume", "t", "--arrow", str(fifo)).code == ExitCode.OK
    reader.join(30)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    assert pa.ipc.open_stream(got[0]).read_all().num_rows == 10

    done = octavo("consume", "t", "--arrow", "/dev/full")
    assert (done.code, "No space left" in done.err) == (ExitCode.ERROR, True)
    assert stat.S_ISCHR(os.lstat("/dev/full").st_mode)
    assert octavo("consume", "t", "--arrow", str(tmp_path)).code == ExitCode.USAGE
    assert octavo("consume", "t", "--arrow", str(tmp_path / "no" / "f")).code == ExitCode.NOT_FOUND
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link", "target"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_following_into_arrow_leaves_a_complete_file_when_it_is_stopped(
    fake: FakeClusterThread, tmp_path: pathlib.Path, stop: signal.Signals
) -> None:
    fill(fake, "t", 500)
    path = tmp_path / "t.arrow"
    process = started(fake, "consume", "t", "--follow", "--arrow", str(path))
    broker = fake.cluster.brokers[0]
    until(process, lambda: broker.fetch_requests > 1)  # the first one was answered
    staged = path.with_name(f"t.arrow.{process.pid}.part")
    until(process, lambda: staged.exists() and staged.stat().st_size > 8_000)  # not only a schema
    process.send_signal(stop)
    said = process.communicate(timeout=180)[1].decode()
    assert (process.returncode, said) == (ExitCode.OK, f"500 records written to {path}\n")
    assert rows(path) == 500
    assert [file.name for file in tmp_path.iterdir()] == ["t.arrow"]
