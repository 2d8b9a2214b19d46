"""What proves the embedded store's file: checksums of rows, a digest of all, a witness beside it.

SQLite has no checksums of its own, and recovers from a damaged write-ahead log by leaving out what
follows the damage: without evidence elsewhere, damage would look like absence, or like an older
state. Three layers close that:

- each row carries a CRC32C over its whole content, its key included;
- the `state` row, written in each transaction, carries how many rows there are and two sums over
  them: of the rows' checksums, and of their names' checksums. No row can be missing unnoticed;
- the witness, a file of its own, names the last commit that was answered. A file that knows fewer
  commits was rolled back, or lost the end of its log.

Witness layout: two slots of 4096 bytes, written in turn, so that a torn write leaves the other.
    magic "OVW1" | u64 commits | u64 digest | u32 CRC32C of these   (big-endian, rest zero)
"""

from __future__ import annotations

import os
import pathlib
import struct
from typing import NamedTuple

from octavo.runtime.checksum import crc32c, crc32c_parts
from octavo.runtime.errors import MetadataCorrupt

_LENGTHS = struct.Struct(">BIIqqq")
_NODE = 1
_SESSION = 2
_STATE = struct.Struct(">QQQQQQB")
SUM_MASK = (1 << 63) - 1
"""Sums are kept in SQLite's signed 64-bit integers."""

WAY_OUT = (
    "restore the whole metadata folder from a copy; bookies and their data are not touched by this"
)


def node_crc(parent: str, name: str, value: bytes, version: int, session_id: int, life: int) -> int:
    """Checksum of a row of `nodes`."""
    key = f"{parent}\x00{name}".encode()
    head = _LENGTHS.pack(_NODE, len(key), len(value), version, session_id, life)
    return crc32c_parts((head, key, value))


def name_crc(parent: str, name: str) -> int:
    """Checksum of a row's key alone: tells a damaged value from a damaged name."""
    return crc32c(f"{parent}\x00{name}".encode())


def session_crc(session_id: int, secret: bytes, timeout_ms: int) -> int:
    """Checksum of a row of `sessions`."""
    head = _LENGTHS.pack(_SESSION, 0, len(secret), session_id, timeout_ms, 0)
    return crc32c_parts((head, secret))


class State(NamedTuple):
    """The one row that proves all others."""

    commits: int
    """Grows by one with each transaction."""
    rows: int
    """Rows of `nodes` and `sessions` together."""
    digest: int
    """Sum of the rows' checksums, modulo 2^63."""
    names: int
    """Sum of the checksums of the names of nodes, modulo 2^63."""
    next_session: int
    """Session ids are never used twice."""
    next_life: int
    """Nor are the lives of keys."""
    clean: int
    """1 when the file was closed in good order: nothing can be waiting in a log."""

    def crc(self) -> int:
        """Checksum of the row."""
        return crc32c(_STATE.pack(*self))


class Witnessed(NamedTuple):
    """The last commit that was answered, and the digest after it."""

    commits: int
    digest: int


class Witness:
    """The file that names the last commit; every write is durable when it returns."""

    FILE_NAME = "metadata.witness"
    _SLOT_BYTES = 4096
    _RECORD = struct.Struct(">4sQQ")
    _MAGIC = b"OVW1"

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._path = data_dir / self.FILE_NAME
        self._fd = -1

    def exists(self) -> bool:
        """Whether there is a witness."""
        return self._path.exists()

    def read(self) -> Witnessed | None:
        """The newest valid slot, None when none is there yet; MetadataCorrupt when all are bad."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        slots = [self._parse(data[at : at + self._SLOT_BYTES]) for at in (0, self._SLOT_BYTES)]
        valid = [slot for slot in slots if slot is not None]
        if not valid and not any(data):
            return None  # made, and never written to
        if not valid:
            raise MetadataCorrupt(f"{self._path} is damaged", hint=WAY_OUT)
        return max(valid)

    def write(self, witnessed: Witnessed) -> None:
        """Name a commit; raises OSError."""
        if self._fd < 0:
            self._open()
        body = self._RECORD.pack(self._MAGIC, *witnessed)
        slot = body + struct.pack(">I", crc32c(body))
        os.pwrite(self._fd, slot, self._SLOT_BYTES * (witnessed.commits % 2))
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        missing = 2 * self._SLOT_BYTES - os.fstat(self._fd).st_size
        if missing > 0:
            # Real bytes, not a hole: a later write must not need space.
            os.pwrite(self._fd, bytes(missing), 2 * self._SLOT_BYTES - missing)
            os.fsync(self._fd)
            sync_folder(self._path.parent)

    def _parse(self, slot: bytes) -> Witnessed | None:
        size = self._RECORD.size
        if len(slot) < size + 4 or struct.unpack_from(">I", slot, size)[0] != crc32c(slot[:size]):
            return None
        magic, commits, digest = self._RECORD.unpack_from(slot)
        return Witnessed(commits, digest) if magic == self._MAGIC else None


def sync_folder(folder: pathlib.Path) -> None:
    """Make names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
