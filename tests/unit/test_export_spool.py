"""Files that wait for their upload go with their process, also when it is killed (ADR 69)."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest
from pyarrow import fs

from octavo.client.exports.object_tree import ObjectTree
from octavo.client.exports.spool import PREFIX, Spool, remove_dead

HOLDS_ONE = """
import sys
from octavo.client.exports.spool import Spool
spool = Spool()
(spool.folder() / "half").write_bytes(b"x" * 1000)
print(spool.folder(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    tempfile.tempdir = None


def test_a_killed_exporter_leaves_nothing_for_the_next(temporary: pathlib.Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = pathlib.Path(other.stdout.readline().strip())
        mine = Spool()
        assert mine.folder().is_dir()
        assert (theirs / "half").exists(), "it lives"
        other.kill()
        other.wait()
        assert (theirs / "half").exists()
        tree = ObjectTree(fs.LocalFileSystem(), "lake", "mock://lake", None)
        tree.temporary("orders").write_bytes(b"")
        assert not theirs.exists()
        assert mine.folder().is_dir()
        del tree
    del mine
    assert list(temporary.iterdir()) == []


def test_a_tree_that_is_forgotten_takes_its_folder_along(temporary: pathlib.Path) -> None:
    spool = Spool()
    (spool.folder() / "half").write_bytes(b"x")
    assert spool.folder().parent == temporary
    del spool
    assert list(temporary.iterdir()) == []


def test_what_is_somebody_elses_stays(temporary: pathlib.Path) -> None:
    """A folder that is being made, one that is no folder, one that leads elsewhere."""
    (temporary / f"{PREFIX}new").mkdir()
    (temporary / f"{PREFIX}file").write_bytes(b"")
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_bytes(b"")
    os.symlink(elsewhere, temporary / f"{PREFIX}link")
    remove_dead()
    names = {path.name for path in temporary.iterdir()}
    assert names == {"elsewhere", f"{PREFIX}new", f"{PREFIX}file", f"{PREFIX}link"}
    assert (elsewhere / "lock").exists()
