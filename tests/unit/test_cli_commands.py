"""Command lines without a cluster: usage, start-up cost, quiet pipes, refusals."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.failures import ExitCode
from octavo.cli.input_lines import CHUNK_BYTES, numbered_lines
from octavo.cli.produce import json_key
from octavo.cli.program import run
from octavo.cli.session import parse_settings
from octavo.runtime.errors import ConfigError, InvalidRecord

NOWHERE = "127.0.0.1:1"


def octavo(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "octavo", "--help"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    for command in (
        "up",
        "down",
        "status",
        "topic",
        "produce",
        "consume",
        "export",
        "group",
        "cluster",
        "ledger",
    ):
        assert f"  {command} " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "octavo.cli.app" in loaded
    for heavy in ("grpc", "pyarrow", "rocksdict", "kazoo", "pydantic", "rich", "psutil", "uvloop"):
        assert heavy not in loaded, f"{heavy} is imported by `octavo --help`"


def test_version() -> None:
    assert octavo("--version").stdout.startswith("octavo 0.")


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("topic",),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "many"),
        ("topic", "create", "t", "-c", "novalue"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "-f", "%z"),
        ("consume", "t", "--from", "99999999999999999999"),
        ("consume", "t", "--from", "@99999999999999999999"),
        ("consume", "t", "--from", "@1969-12-31"),
        ("consume", "t", "--from", "end-99999999999999999999"),
        ("consume", "t", "--from", "5", "--tail", "3"),
        ("consume", "t", "--until", "start"),
        ("consume", "t", "--until", "@2026-01-01", "--follow"),
        ("consume", "t", "-K", ":", "-o", "json"),
        ("consume", "t", "-K", ":", "--arrow", "-"),
        ("consume", "t", "--timeout", "nan"),
        ("produce", "t", "-K", ":", "--key", "x"),
        ("produce", "t", "-K", ""),
        ("produce", "t", "--rejects", "file"),
        ("produce", "t", "--on-error", "ignore"),
        ("produce", "t", "-H", "a=\udcff"),
        ("produce", "t", "-H", "\udcff=a"),
        ("produce", "t", "--key", "\udcff"),
        ("produce", "t", "--key", "a", "--key-json", "b"),
        ("produce", "t", "-H", "novalue"),
        ("topic", "list", "-o", "xml"),
        ("up", "--bookies", "0"),
        ("up", "--metadata", "nowhere"),
        ("ledger", "show", "first"),
    ],
)
def test_wrong_usage_is_exit_code_2_in_two_lines(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    assert run([*words, *(("--data", str(tmp_path)) if words[0] == "up" else ())]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.splitlines()[1].startswith("hint: ")
    assert len(captured.err.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("cluster", "health"),
        ("consume", "orders"),
        ("ledger", "show", "17"),
        ("export", "orders", "--to", "lake"),
    ],
)
def test_no_cluster_is_exit_code_5_with_a_hint(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "-b", NOWHERE, "--timeout", "0.3"]) == ExitCode.UNAVAILABLE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].startswith("error: ")
    assert NOWHERE in captured.err
    assert captured.err.splitlines()[1].startswith("hint: ")


def test_status_and_down_of_a_folder_without_cluster_is_not_found(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    for command in ("status", "down"):
        assert run([command, "--data", str(tmp_path)]) == ExitCode.NOT_FOUND
        assert "no cluster was started here" in capsys.readouterr().err


def test_delete_without_yes_and_terminal_refuses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(["topic", "delete", "orders", "-b", NOWHERE]) == ExitCode.USAGE
    assert "--yes" in capsys.readouterr().err


def test_closed_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "octavo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as pipe:
        assert pipe.read() == b""
    assert process.wait(60) == 0


def test_lines_keep_everything_but_the_line_feed() -> None:
    source = io.BytesIO(b"a\n\n b \r\nlast")
    wanted = [(1, b"a"), (2, b""), (3, b" b \r"), (4, b"last")]
    assert list(numbered_lines(source.read1, 100, never)) == wanted


def never(number: int) -> Callable[[bytes], object]:
    raise AssertionError(number)


@given(
    data=st.binary(max_size=60).map(lambda raw: raw.replace(b"\x00", b"\n")),
    chunk=st.integers(1, 9),
)
def test_lines_are_those_of_a_plain_split_whatever_the_chunks(data: bytes, chunk: int) -> None:
    class Source(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(chunk)

    aside: dict[int, bytes] = {}

    def on_long(number: int) -> Callable[[bytes], object]:
        def take(piece: bytes) -> None:
            aside[number] = aside.get(number, b"") + piece

        return take

    found = dict(numbered_lines(Source(data).read1, 4, on_long))
    plain = dict(enumerate(data.split(b"\n"), 1))
    if not plain[len(plain)]:
        del plain[len(plain)]
    assert found == {number: line for number, line in plain.items() if len(line) <= 4}
    long = {number: line for number, line in plain.items() if len(line) > 4}
    assert {number: line.removesuffix(b"\n") for number, line in aside.items()} == long


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, CHUNK_BYTES])
@pytest.mark.parametrize("size", [5, 6, 7, 200])
def test_long_lines_are_read_past_and_the_numbers_stay_right(chunk: int, size: int) -> None:
    class Source(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(chunk)

    aside: list[tuple[int, bytes]] = []

    def on_long(number: int) -> Callable[[bytes], object]:
        return lambda piece: aside.append((number, piece))

    data = b"one\n" + b"x" * size + b"\nthree\n" + b"y" * 300
    found = list(numbered_lines(Source(data).read1, 6, on_long))
    long = {2, 4} if size > 6 else {4}
    middle = [] if size > 6 else [(2, b"x" * size)]
    assert found == [(1, b"one"), *middle, (3, b"three")]
    assert {number for number, _ in aside} == long
    assert b"".join(piece for number, piece in aside if number == 4) == b"y" * 300
    if size > 6:
        assert b"".join(piece for number, piece in aside if number == 2) == b"x" * size + b"\n"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"id":1}', b"1"),
        (b'{"id":"x y"}', b"x y"),
        (b'{"id":{"b":[1, 2]}}', b'{"b":[1,2]}'),
        (b'{"id":null}', None),
        (b'{"id":false}', b"false"),
        (b'{"id":""}', b""),
    ],
)
def test_key_of_a_json_line(line: bytes, wanted: bytes | None) -> None:
    assert json_key(line, "id", 1) == wanted


@pytest.mark.parametrize(
    "line",
    [
        b"plain",
        b"[1]",
        b'{"other":1}',
        b"",
        b"  \r",
        b'{"id":"\\ud800"}',
        b'{"id":' + b"9" * 5000 + b"}",
        b"[" * 200_000,
        b"\xff",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_line_without_the_key_names_its_number(line: bytes) -> None:
    with pytest.raises(InvalidRecord, match="line 7"):
        json_key(line, "id", 7)


def test_settings_are_key_value_words() -> None:
    assert parse_settings(["a=1", "b=x=y"], "-X") == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_settings(["=1"], "-X")
