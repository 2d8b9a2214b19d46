"""Exported files read with every byte checked (P8, P13), wherever they lie.

The manifest keeps a CRC32C for each block of BLOCK_BYTES of a file. A reader sees only whole blocks
whose checksum holds, whatever it reads and in whatever order: rows, schema and footer alike. So the
same check serves Arrow and Parquet, and a narrow read pays only for the blocks that it touches.
"""

from __future__ import annotations

import io
import os
import pathlib
from typing import NamedTuple, Protocol

from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import IllegalStateError, StorageFailed

BLOCK_BYTES = 256 << 10
"""Part of the manifest's format. At 10 GB/s a block costs 25 µs; its checksum 8 characters."""
_CRC_DIGITS = 8
_HINT = "run `octavo export TOPIC --to ROOT --verify`: it writes the file again from its ledgers"


class FileChecks(NamedTuple):
    """What the manifest knows of a file's bytes; travels with every split."""

    size_bytes: int
    rows: int
    block_crcs: str
    """CRC32C of each block in file order, eight hexadecimal digits each."""

    def crc_of(self, block: int) -> int:
        """The checksum of one block."""
        return int(self.block_crcs[block * _CRC_DIGITS : (block + 1) * _CRC_DIGITS], 16)

    def is_complete(self) -> bool:
        """Whether there is a checksum for each block of the size."""
        return len(self.block_crcs) == -(-self.size_bytes // BLOCK_BYTES) * _CRC_DIGITS


class BlockDigest:
    """Checksums of a file that is being written, block by block."""

    def __init__(self) -> None:
        self._crcs: list[str] = []
        self._crc = 0
        self._filled = 0  # bytes of the block that is not complete; below BLOCK_BYTES

    def update(self, data: memoryview) -> None:
        """Take the next bytes of the file."""
        data = data.cast("B")
        while len(data):
            part = data[: BLOCK_BYTES - self._filled]
            self._crc = crc32c(part, self._crc)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> str:
        """The checksums of all blocks, the last and shorter one too."""
        if self._filled:
            self._end_block()
        return "".join(self._crcs)

    def _end_block(self) -> None:
        self._crcs.append(f"{self._crc:0{_CRC_DIGITS}x}")
        self._crc = self._filled = 0


class BlockSource(Protocol):
    """A stored file that never changes, read in pieces. Blocking; errors are StorageFailed.

    One that is gone is told apart from one that cannot be reached (StorageUnavailable).
    """

    name: str
    """As people know it: a path or a URI."""
    size_bytes: int

    def pread(self, size_bytes: int, at: int) -> bytes:
        """Bytes from `at` on; fewer than asked when a call gives no more, none behind the end."""
        ...

    def close(self) -> None:
        """Give up what it holds; a second call does nothing."""
        ...


def gone(name: str) -> StorageFailed:
    """The error for an exported file that is not there."""
    return StorageFailed(
        f"exported file {name} is gone",
        hint="removed files are kept for 4 hours: plan again with a new load(); if it was lost, "
        + _HINT,
    )


class LocalFile:
    """A file of a file system."""

    def __init__(self, path: pathlib.Path) -> None:
        self.name = str(path)
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size_bytes = os.fstat(self._fd).st_size
        except FileNotFoundError as error:
            raise gone(self.name) from error
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error

    def pread(self, size_bytes: int, at: int) -> bytes:
        """One call gives at most 2 GiB, and a signal may cut it."""
        try:
            return os.pread(self._fd, size_bytes, at)
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _unreadable(self, error: OSError) -> StorageFailed:
        return StorageFailed(f"exported file {self.name} cannot be read: {error}")


class CheckedFile(io.RawIOBase):
    """A file open for reading that gives out checked bytes only.

    Raises StorageFailed naming the file: at opening when it is gone or has another size, at a read
    when a block does not match its checksum or cannot be read. Keeps the blocks of the last read.
    It closes its source.
    """

    def __init__(self, place: pathlib.Path | BlockSource, checks: FileChecks) -> None:
        super().__init__()
        self._checks = checks
        self._position = 0
        self._kept_at = 0  # position of `_kept` in the file, a multiple of BLOCK_BYTES
        self._kept = b""
        self._source: BlockSource | None = None
        self._source = LocalFile(place) if isinstance(place, pathlib.Path) else place
        self.name = self._source.name
        size_bytes = self._source.size_bytes
        if size_bytes != checks.size_bytes or not checks.is_complete():
            self.close()
            raise self._damaged(f"{size_bytes} bytes where {checks.size_bytes} were written")

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move the position of the next read."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._checks.size_bytes}
        self._position = max(0, base[whence] + offset)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Checked bytes from the position on; shorter than asked only at the end of the file."""
        end = self._checks.size_bytes
        if size is not None and size >= 0:
            end = min(self._position + size, end)
        start = min(self._position, end)
        self._position = end
        if start == end:
            return b""
        if start < self._kept_at or end > self._kept_at + len(self._kept):
            self._load(start, end)
        return self._kept[start - self._kept_at : end - self._kept_at]

    def close(self) -> None:
        """Close the source; a second call does nothing."""
        if self._source is not None:
            self._source.close()
            self._source = None
        super().close()

    def check_all(self) -> None:
        """Read and check every block; raises StorageFailed for the first that is damaged."""
        for start in range(0, self._checks.size_bytes, BLOCK_BYTES):
            self._load(start, min(start + BLOCK_BYTES, self._checks.size_bytes))

    def _load(self, start: int, end: int) -> None:
        """Keep the blocks around [start, end), each of them checked."""
        first = start // BLOCK_BYTES
        at = first * BLOCK_BYTES
        wanted = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, self._checks.size_bytes) - at
        if self._source is None:
            raise IllegalStateError(f"exported file {self.name} was closed by this program")
        data = self._source.pread(wanted, at)
        while len(data) < wanted:
            more = self._source.pread(wanted - len(data), at + len(data))
            if not more:
                raise self._damaged(f"it ends at {at + len(data)} now")
            data += more
        view = memoryview(data)
        for block, low in enumerate(range(0, wanted, BLOCK_BYTES), first):
            if crc32c(view[low : low + BLOCK_BYTES]) != self._checks.crc_of(block):
                raise self._damaged(f"block {block} (bytes {at + low} and on) has other content")
        self._kept_at, self._kept = at, data

    def _damaged(self, how: str) -> StorageFailed:
        return StorageFailed(f"exported file {self.name} is damaged: {how}", hint=_HINT)
