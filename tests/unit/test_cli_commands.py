"""Command lines without a cluster: usage, start-up cost, quiet pipes, refusals."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.produce import json_key, lines
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
        timeout=60,
        check=False,
    )


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "octavo", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
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
    assert list(lines(source)) == [b"a", b"", b" b \r", b"last"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"id":1}', b"1"),
        (b'{"id":"x y"}', b"x y"),
        (b'{"id":{"b":[1, 2]}}', b'{"b":[1,2]}'),
        (b'{"id":null}', b"null"),
    ],
)
def test_key_of_a_json_line(line: bytes, wanted: bytes) -> None:
    assert json_key(line, "id", 1) == wanted


@pytest.mark.parametrize("line", [b"plain", b"[1]", b'{"other":1}', b""])
def test_line_without_the_key_names_its_number(line: bytes) -> None:
    with pytest.raises(InvalidRecord, match="line 7"):
        json_key(line, "id", 7)


def test_settings_are_key_value_words() -> None:
    assert parse_settings(["a=1", "b=x=y"], "-X") == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_settings(["=1"], "-X")
