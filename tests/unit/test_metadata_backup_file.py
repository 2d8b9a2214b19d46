"""The file of a copy is believed whole or not at all."""

from __future__ import annotations

import errno
import os
import pathlib
import random

import pytest

from octavo.metadata.backup_file import BackupFile, BackupHead, BackupItem, BackupWriter
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion

HEAD = BackupHead("0b2c", 3, 1_700_000_000_000, "1.2")
ITEMS = [BackupItem(f"/topics/{n:02x}/t", bytes([n]) * n, n) for n in range(40)]


def written(folder: pathlib.Path, head: BackupHead = HEAD) -> pathlib.Path:
    writer = BackupWriter(folder, "copy")
    for item in ITEMS:
        writer.add(item)
    writer.finish(head, folder / "copy", replace=True)
    return folder / "copy"


def test_what_was_written_is_read(tmp_path: pathlib.Path) -> None:
    found = BackupFile.opened(written(tmp_path))
    assert (found.head, found.keys) == (HEAD, len(ITEMS))
    assert list(found.items()) == ITEMS
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_each_flipped_bit_and_each_cut_is_refused(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    rng = random.Random(1)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(MetadataCorrupt):
            BackupFile.opened(path)
    for size in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(MetadataCorrupt):
            BackupFile.opened(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(MetadataCorrupt):
        BackupFile.opened(path)


def test_a_file_that_changes_between_its_readings_is_refused(tmp_path: pathlib.Path) -> None:
    found = BackupFile.opened(written(tmp_path))
    ITEMS_BUT_ONE = ITEMS[1:]
    writer = BackupWriter(tmp_path, "copy")
    for item in ITEMS_BUT_ONE:
        writer.add(item)
    writer.finish(HEAD, tmp_path / "copy", replace=True)
    with pytest.raises(MetadataCorrupt):
        list(found.items())


def test_another_format_and_another_file_are_told_apart(tmp_path: pathlib.Path) -> None:
    later = BackupHead("0b2c", 3, 1, "9.0", format_version=2)
    with pytest.raises(UnsupportedVersion, match="has format 2, this build reads 1"):
        BackupFile.opened(written(tmp_path, later))
    (tmp_path / "copy").write_bytes(b"SQLite format 3\0" * 9)
    with pytest.raises(MetadataCorrupt, match="is no copy of Octavo's metadata"):
        BackupFile.opened(tmp_path / "copy")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_fails_leaves_what_was_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """At each site: the items, the whole, its sync, its name."""
    path = written(tmp_path)
    before = path.read_bytes()
    writer = BackupWriter(tmp_path, "copy")
    for item in ITEMS:
        writer.add(item)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "write":
        monkeypatch.setattr(pathlib.Path, "open", full)
    elif call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        writer.finish(HEAD, path, replace=True)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["copy"]
