"""Durable file operations below an export root (spec/spark.md §5, ADR 69).

`Tree` is what exporters and readers need of the place where an export lies; `LocalTree` a folder,
`octavo.client.exports.object_tree` an object store. Everything blocks.

In a folder every name that readers may trust appears by one atomic step: `rename` for data files,
whose names are derived from their bytes, and `link` for manifest versions, which exactly one writer
may create. Names starting with a dot are never read by anybody. The single system calls are methods
of their own, so that tests can stop the machine before each of them.
"""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator
from typing import Protocol

from octavo.client.exports.checked_file import BlockSource, LocalFile
from octavo.runtime.entropy import Entropy, SystemEntropy

TEMPORARY_PREFIX = ".tmp-"
ABANDONED_AFTER_S = 4 * 3600.0
"""Temporary and unreferenced files older than this belong to nobody any more (grace time, §3)."""


class Tree(Protocol):
    """A place for exported files. Names are relative to its root, with slashes.

    Raises StorageUnavailable where the place cannot be asked, StorageFailed and OSError for what it
    refuses: unknown is never "absent".
    """

    def token(self) -> str:
        """A value no other writer has (M-3)."""
        ...

    def where(self, name: str = "") -> str:
        """The path or URI of a file or folder, for people."""
        ...

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder, without hidden ones; empty when there is no such folder."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a folder by its name, asked for in one go."""
        ...

    def read(self, name: str) -> bytes | None:
        """A whole small file, None when absent."""
        ...

    def open(self, name: str) -> BlockSource:
        """A file to read in pieces; raises StorageFailed when it is gone."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make sure that files can be created in a folder; no error when it exists."""
        ...

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create `name` with `data`, durable on return; False when the name exists already.

        Exactly one of any number of writers is told True.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Write `data` under `name` atomically and durably, whether or not it existed."""
        ...

    def temporary(self, folder: str) -> pathlib.Path:
        """An unused path on this machine at which a file of `folder` may be written."""
        ...

    def sync(self, path: pathlib.Path) -> None:
        """Make the bytes of a finished temporary file durable, as far as that place needs it."""
        ...

    def publish(self, temporary: pathlib.Path, name: str) -> None:
        """Make a finished temporary file durable under its final name, whole or not at all.

        An existing file of this name is replaced: names are derived from content, so it is the same
        file, and its age starts anew for `abandoned()`.
        """
        ...

    def settle(self, folder: str) -> None:
        """Make the names in a folder durable, whoever gave them: a sync of them may have failed."""
        ...

    def discard(self, path: pathlib.Path) -> None:
        """Remove a temporary file, if it is there."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file of the tree, if it is there."""
        ...

    def abandoned(self, folder: str, now_s: float | None = None) -> list[str]:
        """Names of files in `folder`, hidden ones too, that are older than the grace time."""
        ...


class LocalTree:
    """A folder of a file system that has atomic rename, link and fsync of directories."""

    def __init__(self, root: str | os.PathLike[str], entropy: Entropy | None = None) -> None:
        self.root = pathlib.Path(root)
        self._entropy = entropy or SystemEntropy()

    def token(self) -> str:
        """A value no other writer has (M-3)."""
        return self._entropy.token().hex()

    def path(self, name: str) -> pathlib.Path:
        """The path of a file of this tree."""
        return self.root / name

    def where(self, name: str = "") -> str:
        """The path of a file or folder."""
        return str(self.root / name)

    def open(self, name: str) -> LocalFile:
        """A file to read in pieces; raises StorageFailed when it is gone."""
        return LocalFile(self.root / name)

    def remove(self, name: str) -> None:
        """Remove a file of the tree, if it is there."""
        self._unlink(self.root / name)

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder, without hidden ones; empty when there is no such folder."""
        try:
            found = os.listdir(self.root / folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a folder by its name."""
        return {entry.name: stat.st_size for entry, stat in _files_in(self.root / folder)}

    def read(self, name: str) -> bytes | None:
        """A whole small file, None when absent."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def make_folder(self, folder: str) -> None:
        """Create a folder and make its name durable; no error when it exists."""
        path = self.root / folder
        missing = [part for part in (path, *path.parents) if not part.exists()]
        for part in reversed(missing):
            self._mkdir(part)
            self._fsync_folder(part.parent)

    def temporary(self, folder: str) -> pathlib.Path:
        """An unused hidden path inside a folder."""
        return self.root / folder / f"{TEMPORARY_PREFIX}{self.token()}"

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create `name` with `data`, durable on return; False when the name exists already."""
        target = self.root / name
        temporary = self.temporary(str(pathlib.PurePath(name).parent))
        try:
            self._write(temporary, data)
            self._fsync(temporary)
            created = True
            try:
                self._link(temporary, target)
            except FileExistsError:
                created = False
            # Also for the loser: it goes on from the winner's file, which must not vanish again.
            self._fsync_folder(target.parent)
            return created
        finally:
            self._unlink(temporary)

    def replace(self, name: str, data: bytes) -> None:
        """Write `data` under `name` atomically, whether or not it existed."""
        temporary = self.temporary(str(pathlib.PurePath(name).parent))
        try:
            self._write(temporary, data)
            self.publish(temporary, name)
        finally:
            self._unlink(temporary)  # it has the other name now, unless the disk is full

    def sync(self, path: pathlib.Path) -> None:
        """Make the bytes of a finished temporary file durable."""
        self._fsync(path)

    def publish(self, temporary: pathlib.Path, name: str) -> None:
        """Make a finished temporary file durable under its final name.

        An existing file of this name is replaced: names are derived from content, so it is the same
        file, and its age starts anew for `abandoned()`.
        """
        target = self.root / name
        self._fsync(temporary)
        self._rename(temporary, target)
        self._fsync_folder(target.parent)

    def settle(self, folder: str) -> None:
        """Make the names in a folder durable, whoever gave them, and the way to it from above the
        root: a sync of them may have failed, and what was asked again found them there."""
        path = self.root / folder
        while path != self.root.parent:
            self._fsync_folder(path)
            path = path.parent
        self._fsync_folder(path)

    def discard(self, path: pathlib.Path) -> None:
        """Remove a temporary file, if it is there."""
        self._unlink(path)

    def abandoned(self, folder: str, now_s: float | None = None) -> list[str]:
        """Names of files in `folder`, hidden ones too, that are older than the grace time."""
        limit = (time.time() if now_s is None else now_s) - ABANDONED_AFTER_S
        return sorted(e.name for e, stat in _files_in(self.root / folder) if stat.st_mtime < limit)

    # --- single system calls ---

    def _mkdir(self, path: pathlib.Path) -> None:
        path.mkdir(exist_ok=True)

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        path.write_bytes(data)

    def _fsync(self, path: pathlib.Path) -> None:
        _fsync_path(path, os.O_RDONLY)

    def _fsync_folder(self, path: pathlib.Path) -> None:
        _fsync_path(path, os.O_RDONLY | os.O_DIRECTORY)

    def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        os.link(source, target)

    def _rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        os.rename(source, target)

    def _unlink(self, path: pathlib.Path) -> None:
        path.unlink(missing_ok=True)


def _fsync_path(path: pathlib.Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _files_in(folder: pathlib.Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What lies in a folder, if there is one; not what a link leads to."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            try:
                yield entry, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # its writer finished meanwhile
