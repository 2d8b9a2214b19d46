"""`octavo metadata restore FILE` looks at the file before it asks for anything."""

from __future__ import annotations

import io
import pathlib
import sys

import pytest

from octavo.cli.failures import ExitCode
from octavo.cli.program import run
from octavo.metadata.backup_file import BackupHead, BackupItem, BackupWriter


@pytest.fixture
def copy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A whole copy of two keys; nobody is at a terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    writer = BackupWriter(tmp_path, "copy")
    writer.add(BackupItem("instance-id", b"c1", 0))
    writer.add(BackupItem("idgen", b"1", 3))
    head = BackupHead(cluster_id="c1", epoch=1, made_ms=0, release="0")
    writer.finish(head, tmp_path / "copy", replace=False)
    return tmp_path / "copy"


def said(capsys: pytest.CaptureFixture[str], file: pathlib.Path, *words: str) -> tuple[int, str]:
    code = run(["metadata", "restore", str(file), *words, "--metadata", "memory://looked/octavo"])
    return code, " ".join(capsys.readouterr().err.split())


def test_a_whole_copy_is_said_by_what_it_holds(
    copy: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, copy)
    assert code == ExitCode.USAGE
    assert "holds 2 keys of cluster c1" in text
    assert "add --yes to do it" in text


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_a_file_that_is_not_there_is_said_with_and_without_yes(
    copy: pathlib.Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, text = said(capsys, copy.with_name("other"), *words)
    assert code != ExitCode.OK
    assert "other: No such file or directory" in text
    assert "`octavo metadata backup FILE` writes one" in text
    assert "add --yes" not in text
    code, text = said(capsys, copy.parent, *words)
    assert "Is a directory" in text
    assert "writes one" in text


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_a_damaged_file_is_refused_before_anybody_is_asked(
    copy: pathlib.Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    data = bytearray(copy.read_bytes())
    data[-40] ^= 1
    copy.write_bytes(data)
    code, text = said(capsys, copy, *words)
    assert code == ExitCode.ERROR
    assert "is damaged" in text
    assert "nothing was changed" in text
    copy.write_bytes(b"something else")
    assert "is no copy of Octavo's metadata" in said(capsys, copy, *words)[1]
