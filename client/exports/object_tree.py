"""An export root in an object store, over `pyarrow.fs` (spec/spark.md §5, ADR 69).

An object appears whole, by one PUT, and never changes: there is no temporary name and no rename.
Files are written on this machine first (their names are made of their content), then uploaded and
read back. What `link` is in a folder is a conditional PUT here. `pyarrow.fs` offers neither that
nor a write that is whole or nothing, so writing is the part of a `Writer` (for `s3://` that of
`octavo.client.exports.s3_writer`). A tree without one is read only: ConfigError.
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Protocol, Self

from pyarrow import NativeFile, fs

from octavo.client.exports.checked_file import gone
from octavo.client.exports.layout import joined
from octavo.client.exports.s3_writer import S3Writer
from octavo.client.exports.spool import Spool
from octavo.client.exports.store_errors import typed
from octavo.client.exports.tree import ABANDONED_AFTER_S
from octavo.runtime.entropy import Entropy, SystemEntropy
from octavo.runtime.errors import ConfigError, StorageFailed

READ_BACK_BYTES = 8 << 20
"""Of a file in memory at once, when it is compared with what was uploaded."""
STORES_KEPT = 16
"""Connected stores that a process keeps."""


class Writer(Protocol):
    """What writes below a root, whole or not at all; names as those of a `Tree`."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object unless it exists, as `Tree.create_exclusive`."""
        ...

    def put(self, name: str, data: bytes | pathlib.Path) -> None:
        """Write an object, whether or not it existed: bytes, or a file of this machine."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...


class ObjectFile:
    """An object open for reading."""

    def __init__(self, name: str, file: NativeFile) -> None:
        self.name = name
        self._file = file
        with typed(name):
            self.size_bytes = file.size()

    def pread(self, size_bytes: int, at: int) -> bytes:
        """One ranged GET."""
        with typed(self.name):
            return self._file.read_at(size_bytes, at)

    def close(self) -> None:
        """Give up the handle."""
        self._file.close()


class ObjectTree:
    """A prefix of a bucket, or a folder of another `pyarrow.fs` file system.

    Args:
        root: how people know it, without credentials.
        base: the path of the root in `store`.
        writer: what writes below the root; None where nothing can.
    """

    def __init__(
        self,
        store: fs.FileSystem,
        base: str,
        root: str,
        writer: Writer | None,
        entropy: Entropy | None = None,
    ) -> None:
        self._store = store
        self._base = base
        self._root = root
        self._writer = writer
        self._entropy = entropy or SystemEntropy()
        self._spool = Spool()

    @classmethod
    def at(cls, root: str) -> Self:
        """The tree at a URI that `places.checked_root` gave. Raises ConfigError.

        Nothing is asked of the store yet.
        """
        store, base = _store_at(root)
        return cls(store, base, root, S3Writer.of(root))

    def token(self) -> str:
        """A value no other writer has (M-3)."""
        return self._entropy.token().hex()

    def where(self, name: str = "") -> str:
        """The URI of a file or folder, without the options of the root."""
        return joined(self._root, name).partition("?")[0]

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder, without hidden ones; empty when there is no such folder."""
        return sorted(
            info.base_name
            for info in self._listed(folder)
            if not info.base_name.startswith(".") and info.base_name
        )

    def sizes(self, folder: str) -> dict[str, int]:
        """The bytes of each file in a folder by its name: some listings, not a request for each."""
        found = (info for info in self._listed(folder) if info.type == fs.FileType.File)
        return {info.base_name: info.size for info in found}

    def read(self, name: str) -> bytes | None:
        """A whole small file, None when absent.

        A bucket that is missing looks like an absent file to some requests: a listing tells.
        """
        try:
            with typed(self.where(name)), self._store.open_input_file(self._path(name)) as file:
                return file.read()
        except FileNotFoundError:
            folder, _, base = name.rpartition("/")
            if base in self.names(folder):
                raise StorageFailed(f"{self.where(name)} is listed and cannot be read") from None
            return None

    def open(self, name: str) -> ObjectFile:
        """A file to read in pieces; raises StorageFailed when it is gone."""
        place = self.where(name)
        try:
            with typed(place):
                return ObjectFile(place, self._store.open_input_file(self._path(name)))
        except FileNotFoundError as error:
            raise gone(place) from error

    def make_folder(self, folder: str) -> None:
        """Nothing: names have slashes, and no folders are needed."""

    def create_exclusive(self, name: str, data: bytes) -> bool:
        """Create an object unless it exists; False when it exists already."""
        return self._writing().create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        """Write an object, whether or not it existed."""
        self._writing().put(name, data)

    def temporary(self, folder: str) -> pathlib.Path:
        """An unused path in a folder of this process below that for temporary files (TMPDIR)."""
        return self._spool.folder() / self.token()

    def sync(self, path: pathlib.Path) -> None:
        """Nothing: the file only has to live until it is uploaded."""

    def publish(self, temporary: pathlib.Path, name: str) -> None:
        """Upload a finished file and read it back; raises StorageFailed when it is not the same."""
        place = self.where(name)
        self._writing().put(name, temporary)
        stored = self.open(name)
        try:
            if stored.size_bytes != temporary.stat().st_size:
                raise StorageFailed(f"{place} reads back with {stored.size_bytes} bytes")
            at = 0
            for part in _parts(temporary):
                if stored.pread(len(part), at) != part:
                    raise StorageFailed(f"{place} reads back with other content than was written")
                at += len(part)
        finally:
            stored.close()
        self.discard(temporary)

    def settle(self, folder: str) -> None:
        """Nothing: an object that is listed is durable."""

    def discard(self, path: pathlib.Path) -> None:
        """Remove a temporary file, if it is there."""
        path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        self._writing().remove(name)

    def abandoned(self, folder: str, now_s: float | None = None) -> list[str]:
        """Names of files in `folder`, hidden ones too, that are older than the grace time."""
        limit_s = _limit_s(now_s)
        found = (info for info in self._listed(folder) if info.type == fs.FileType.File)
        return sorted(info.base_name for info in found if _written_s(info) < limit_s)

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        """What is in a folder, if there is one: a bucket that is missing is an error."""
        try:
            with typed(self.where(folder)):
                return self._store.get_file_info(fs.FileSelector(self._path(folder)))
        except FileNotFoundError:
            return []

    def _writing(self) -> Writer:
        if self._writer is None:
            raise ConfigError(
                f"{self.where()} can be read and not be written: no object can be created there "
                "exclusively, and two exporters would overwrite each other",
                hint="export to a folder or to s3://, and copy the tree",
            )
        return self._writer

    def _path(self, name: str) -> str:
        return f"{self._base}/{name}" if name else self._base


@lru_cache(maxsize=STORES_KEPT)
def _store_at(root: str) -> tuple[fs.FileSystem, str]:
    try:
        with typed(root):  # asks the store for the bucket's region, unless the URI says it
            store, base = fs.FileSystem.from_uri(root)
    except ValueError as error:
        raise ConfigError(
            f"{root} cannot be opened: {error}", hint="look at the options behind `?`"
        ) from error
    return store, base.rstrip("/")


def _parts(path: pathlib.Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while part := file.read(READ_BACK_BYTES):
            yield part


def _limit_s(now_s: float | None) -> float:
    return (time.time() if now_s is None else now_s) - ABANDONED_AFTER_S


def _written_s(info: fs.FileInfo) -> float:
    return info.mtime.timestamp()
