"""The only door to files of the storage engine: a Protocol and the real disk (style §6).

Calls block; callers cross to a thread in one named place. Every error is the operating system's own
OSError: what it means (fail-stop, EIO, DISK_FULL) is decided by the caller (B-8, §6.5, §6.13).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Sequence
from typing import Protocol

from octavo.runtime.checksum import Buffer

IOV_MAX = 1024
"""Buffers one writev call accepts on Linux."""


DROP_STEP_BYTES = 1 << 19
"""The page cache is trimmed in steps of this size: one system call per step, not per commit, and
small enough that its pages are still in a core's second-level cache when they are used again
(ADR 11).
"""


class Appender(Protocol):
    """One file open for appending."""

    @property
    def position(self) -> int:
        """Bytes written so far (not the preallocated size)."""
        ...

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append all buffers; a short write is continued, an error raises OSError."""
        ...

    def sync(self) -> None:
        """fdatasync; must never be retried after an error (B-8)."""
        ...

    def drop_cached(self, keep_bytes: int) -> None:
        """Let the operating system forget its copy of synced bytes, but for the last `keep_bytes`.

        A hint: what was not synced yet, and whole steps only, stay where they are.
        """
        ...

    def trim(self) -> None:
        """Give back the preallocated space beyond `position`."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class FileReader(Protocol):
    """One file open for positioned reads; safe to use from several threads."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; shorter only at the end of the file."""
        ...

    def size(self) -> int:
        """Bytes of the file, preallocated ones included."""
        ...

    def drop_cached(self, offset: int, size: int) -> None:
        """Let the operating system forget its copy of these bytes; a hint."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class Register(Protocol):
    """A small file of fixed size that is overwritten in place."""

    def put(self, offset: int, data: bytes) -> None:
        """Overwrite; visible to who reads the file from now on, durable after `sync()`."""
        ...

    def sync(self) -> None:
        """fdatasync; must never be retried after an error (B-8)."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class Disk(Protocol):
    """File operations of the bookie."""

    def make_dir(self, path: pathlib.Path) -> None:
        """Create a directory with its parents, if missing, so that their names survive a power cut.

        The names of all of them are synced also when they exist: an earlier process may have made
        them and ended before it synced them.
        """
        ...

    def create(self, path: pathlib.Path, preallocate_bytes: int) -> Appender:
        """Create a file (must not exist) with its space: fdatasync need not grow it (B-7)."""
        ...

    def sync_dir(self, path: pathlib.Path) -> None:
        """fsync a directory, so that created or renamed names survive a power cut."""
        ...

    def read(self, path: pathlib.Path) -> bytes:
        """The file up to its last written extent; a preallocated, unwritten tail is left out."""
        ...

    def open(self, path: pathlib.Path) -> FileReader:
        """Open a file for positioned reads."""
        ...

    def open_register(self, path: pathlib.Path) -> Register:
        """Open a file, written whole before, for overwriting in place."""
        ...

    def truncate(self, path: pathlib.Path, size: int) -> None:
        """Cut a file to `size` bytes."""
        ...

    def list(self, path: pathlib.Path) -> list[str]:
        """Sorted names in a directory."""
        ...

    def replace(self, path: pathlib.Path, data: bytes) -> None:
        """Write `data` atomically under `path`.

        Temporary file, fsync, rename, fsync of the directory.
        """
        ...

    def unlink(self, path: pathlib.Path) -> None:
        """Remove a file."""
        ...

    def free_bytes(self, path: pathlib.Path) -> tuple[int, int]:
        """(free, used + free) for us, of the file system that holds `path`."""
        ...


class _RealAppender:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._dropped = 0
        self.position = 0

    def write(self, buffers: Sequence[Buffer]) -> None:
        for start in range(0, len(buffers), IOV_MAX):
            chunk = buffers[start : start + IOV_MAX]
            wanted = sum(map(len, chunk))
            written = os.writev(self._fd, chunk)
            self.position += written
            if written < wanted:
                self._finish(b"".join(chunk), written)

    def _finish(self, data: bytes, done: int) -> None:
        view = memoryview(data)
        while done < len(view):
            written = os.write(self._fd, view[done:])
            if written == 0:
                raise OSError("write made no progress")
            done += written
            self.position += written

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def drop_cached(self, keep_bytes: int) -> None:
        end = (self.position - keep_bytes) // DROP_STEP_BYTES * DROP_STEP_BYTES
        if end > self._dropped:
            try:
                os.posix_fadvise(
                    self._fd, self._dropped, end - self._dropped, os.POSIX_FADV_DONTNEED
                )
            except OSError:
                return  # a hint: the cache keeps what it has
            self._dropped = end

    def trim(self) -> None:
        os.ftruncate(self._fd, self.position)

    def close(self) -> None:
        os.close(self._fd)


class _RealReader:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def drop_cached(self, offset: int, size: int) -> None:
        with contextlib.suppress(OSError):  # a hint: the cache keeps what it has
            os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._fd)


class _RealRegister:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def put(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written != len(data):
            raise OSError(errno.EIO, f"wrote {written} of {len(data)} bytes")

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _data_end(fd: int, size: int) -> int:
    """Where the last written extent ends: a preallocated tail that was never written is a hole.

    File systems that do not tell holes answer with the file's size.
    """
    position = end = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from here on
                return end
            return size
        end = position = os.lseek(fd, start, os.SEEK_HOLE)
    return end


class RealDisk:
    """The machine's own file system."""

    def make_dir(self, path: pathlib.Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for folder in (path.absolute(), *path.absolute().parents):
            if os.path.ismount(folder):
                return
            try:
                self.sync_dir(folder.parent)
            except PermissionError:
                return  # not ours to read, so neither ours to have made

    def create(self, path: pathlib.Path, preallocate_bytes: int) -> Appender:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            if preallocate_bytes:
                os.posix_fallocate(fd, 0, preallocate_bytes)
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        return _RealAppender(fd)

    def sync_dir(self, path: pathlib.Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: pathlib.Path) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            end = min(size, _data_end(fd, size))
            chunks: list[bytes] = []
            position = 0
            while position < end:
                chunk = os.pread(fd, end - position, position)
                if not chunk:
                    break
                chunks.append(chunk)
                position += len(chunk)
            return b"".join(chunks)
        finally:
            os.close(fd)

    def open(self, path: pathlib.Path) -> FileReader:
        return _RealReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_register(self, path: pathlib.Path) -> Register:
        return _RealRegister(os.open(path, os.O_WRONLY | os.O_CLOEXEC))

    def truncate(self, path: pathlib.Path, size: int) -> None:
        os.truncate(path, size)

    def list(self, path: pathlib.Path) -> list[str]:
        return sorted(os.listdir(path))

    def replace(self, path: pathlib.Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            done = 0
            while done < len(view):
                done += os.write(fd, view[done:])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
        self.sync_dir(path.parent)

    def unlink(self, path: pathlib.Path) -> None:
        os.unlink(path)

    def free_bytes(self, path: pathlib.Path) -> tuple[int, int]:
        stat = os.statvfs(path)
        usable = stat.f_blocks - stat.f_bfree + stat.f_bavail  # what root alone may use left out
        return stat.f_bavail * stat.f_frsize, usable * stat.f_frsize
