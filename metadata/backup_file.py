"""The file that holds a copy of a cluster's metadata: written whole or not at all, believed whole.

    "OCTAVOMD" | u32 bytes of head | head as JSON | u32 crc32c over all before
    for each key: u16 bytes of key | u32 bytes of value | i64 version | key | value | u32 crc32c
    u16 0xFFFF | u64 keys | sha256 over everything before

Big-endian. Keys are relative to the root, so that a copy may be put under another one. A file is
read to its end, and everything in it compared, before anything of it is used: whoever restores from
half of one makes ledgers look deleted. Calls block.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import struct
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import IO, NamedTuple

from octavo.metadata.embedded_proof import sync_folder
from octavo.metadata.keys import MAX_KEY_CHARS, MAX_VALUE_BYTES
from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from octavo.runtime.system_errors import naming

MAGIC = b"OCTAVOMD"
FORMAT_VERSION = 1
HEAD_BYTES_MAX = 64 * 1024
KEY_BYTES_MAX = 4 * MAX_KEY_CHARS
_END = 0xFFFF
_U32 = struct.Struct(">I")
_ITEM = struct.Struct(">HIq")
_MARK = struct.Struct(">H")
_COUNT = struct.Struct(">Q")
_DIGEST_BYTES = hashlib.sha256().digest_size
DAMAGED_HINT = "use another copy; nothing was changed"


@dataclass(frozen=True)
class BackupHead:
    """What a copy says of itself."""

    cluster_id: str
    epoch: int
    """Of ids, when it was made (ID-3)."""
    made_ms: int
    """Wall clock at the end of the last pass."""
    release: str
    """Of the Octavo that wrote it."""
    format_version: int = FORMAT_VERSION


class BackupItem(NamedTuple):
    """One key, relative to the root of the cluster."""

    key: str
    value: bytes
    version: int


class BackupWriter:
    """Writes the items of one copy; the head comes last and is put before them."""

    def __init__(self, folder: pathlib.Path, name: str) -> None:
        self._items_path = folder / f".{name}.{os.getpid()}.items"
        self.keys = 0
        self.nbytes = 0
        with naming(self._items_path):
            self._items = self._items_path.open("wb")

    def add(self, item: BackupItem) -> None:
        """One more key; raises OSError."""
        key = item.key.encode()
        body = _ITEM.pack(len(key), len(item.value), item.version) + key + item.value
        with naming(self._items_path):
            self._items.write(body)
            self._items.write(_U32.pack(crc32c(body)))
        self.keys += 1
        self.nbytes += len(body) + _U32.size

    def finish(self, head: BackupHead, path: pathlib.Path, *, replace: bool) -> None:
        """Put the whole file under `path`, durably, and forget the items; raises OSError.

        FileExistsError when something is there and `replace` is False: nothing was changed then.
        """
        with naming(self._items_path):
            self._items.close()
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with naming(new):
                self._write_whole(head, new)
            with naming(path):
                if replace:
                    new.replace(path)
                else:
                    os.link(new, path)  # refuses what exists, unlike a rename
                    new.unlink()
                sync_folder(path.parent)
        finally:
            new.unlink(missing_ok=True)
            self.drop()

    def _write_whole(self, head: BackupHead, new: pathlib.Path) -> None:
        digest = hashlib.sha256()
        with new.open("wb") as out, self._items_path.open("rb") as items:

            def put(data: bytes) -> None:
                digest.update(data)
                out.write(data)

            words = json.dumps(asdict(head), sort_keys=True).encode()
            start = MAGIC + _U32.pack(len(words)) + words
            put(start + _U32.pack(crc32c(start)))
            while data := items.read(1 << 20):
                put(data)
            put(_MARK.pack(_END) + _COUNT.pack(self.keys))
            out.write(digest.digest())
            out.flush()
            os.fsync(out.fileno())

    def drop(self) -> None:
        """Forget the items; harmless when they are gone."""
        with contextlib.suppress(OSError):
            self._items.close()
        self._items_path.unlink(missing_ok=True)


class BackupFile:
    """A copy that was read to its end and is as it was written; made by `opened`."""

    def __init__(self, path: pathlib.Path, head: BackupHead, keys: int, digest: str) -> None:
        self._path = path
        self.head = head
        self.keys = keys
        self.digest = digest
        """Tells this copy from any other."""

    @classmethod
    def opened(cls, path: pathlib.Path) -> BackupFile:
        """Read all of it. Raises MetadataCorrupt, UnsupportedVersion, OSError."""
        with naming(path), path.open("rb") as data:
            reading = _Reading(path, data)
            head = reading.head()
            keys = sum(1 for _ in reading.items())
            return cls(path, head, keys, reading.end(keys))

    def items(self) -> Generator[BackupItem]:
        """All keys in the order of the copy, read again; raises as `opened`."""
        with naming(self._path), self._path.open("rb") as data:
            reading = _Reading(self._path, data)
            reading.head()
            yield from reading.items()
            if reading.end(self.keys) != self.digest:
                raise reading.damaged("it was changed while it was read")


class _Reading:
    """One way through a file, front to back."""

    def __init__(self, path: pathlib.Path, data: IO[bytes]) -> None:
        self._path = path
        self._data = data
        self._digest = hashlib.sha256()

    def damaged(self, why: str) -> MetadataCorrupt:
        return MetadataCorrupt(f"{self._path} is damaged: {why}", hint=DAMAGED_HINT)

    def _take(self, size: int) -> bytes:
        found = self._data.read(size)
        if len(found) != size:
            raise self.damaged("it ends too early")
        self._digest.update(found)
        return found

    def head(self) -> BackupHead:
        start = self._take(len(MAGIC))
        if start != MAGIC:
            raise MetadataCorrupt(
                f"{self._path} is no copy of Octavo's metadata",
                hint="`octavo metadata backup` writes one",
            )
        size = self._take(_U32.size)
        (head_bytes,) = _U32.unpack(size)
        if head_bytes > HEAD_BYTES_MAX:
            raise self.damaged(f"a head of {head_bytes} bytes")
        words = self._take(head_bytes)
        (crc,) = _U32.unpack(self._take(_U32.size))
        if crc != crc32c(start + size + words):
            raise self.damaged("its head fails its checksum")
        return self._parsed(words)

    def _parsed(self, words: bytes) -> BackupHead:
        fields = json.loads(words)
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise UnsupportedVersion(
                f"{self._path} has format {version}, this build reads {FORMAT_VERSION}",
                hint="use the release that wrote it",
            )
        try:
            return BackupHead(**fields)
        except TypeError as error:
            raise self.damaged(str(error)) from error

    def items(self) -> Iterator[BackupItem]:
        at = 0
        while True:
            mark = self._take(_MARK.size)
            if _MARK.unpack(mark) == (_END,):
                return
            lead = mark + self._take(_ITEM.size - _MARK.size)
            key_bytes, value_bytes, version = _ITEM.unpack(lead)
            if key_bytes > KEY_BYTES_MAX or value_bytes > MAX_VALUE_BYTES:
                raise self.damaged(f"key {at} is larger than any")
            key, value = self._take(key_bytes), self._take(value_bytes)
            (crc,) = _U32.unpack(self._take(_U32.size))
            if crc != crc32c(lead + key + value):
                raise self.damaged(f"key {at} fails its checksum")
            try:
                yield BackupItem(key.decode(), value, version)
            except UnicodeDecodeError as error:
                raise self.damaged(f"key {at} is no text") from error
            at += 1

    def end(self, keys: int) -> str:
        """The digest of the whole, once all items were taken."""
        (count,) = _COUNT.unpack(self._take(_COUNT.size))
        if count != keys:
            raise self.damaged(f"it says {count} keys and holds {keys}")
        wanted = self._digest.digest()
        if self._data.read(_DIGEST_BYTES + 1) != wanted:
            raise self.damaged("it fails its checksum")
        return wanted.hex()
