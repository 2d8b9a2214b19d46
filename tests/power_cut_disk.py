"""A disk that remembers what was synced: writes, syncs, names and renames are kept apart, so that a
power cut can take any of what was pending (faults §4.6).

What a process sees is the page cache. What survives a cut is what was synced, and any part of the
rest: each 512-byte sector of an unsynced write, each unsynced size, each name that was created,
renamed or removed without a later sync of its directory. A sync that fails leaves the cache as it
is and calls it clean: no later sync writes those bytes (B-8).
"""

from __future__ import annotations

import errno
import pathlib
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.runtime.checksum import Buffer
from octavo.runtime.disk import Appender, FileReader, Register

SECTOR_BYTES = 512


class PowerOffError(OSError):
    """The machine stopped: nothing after this happened."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the machine stopped here")


@dataclass
class SimFile:
    """One file: what processes see, what is on the platter, and what lies between."""

    cached: bytearray = field(default_factory=bytearray)
    written_end: int = 0
    """End of the last written byte; behind it is preallocated space."""
    durable: bytearray = field(default_factory=bytearray)
    durable_end: int = 0
    pending: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """Unsynced (offset, bytes), in order; a resize is (size, b"")."""
    lost: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """(offset, bytes on the platter instead) of writes whose sync failed."""

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        _put(self.cached, offset, data)
        self.written_end = max(self.written_end, end)
        self.pending.append((offset, data))
        self.lost = [(at, old) for at, old in self.lost if at < offset or at + len(old) > end]

    def resize(self, size: int) -> None:
        _resize(self.cached, size)
        self.written_end = min(self.written_end, size)
        self.pending.append((size, b""))

    def sync(self) -> None:
        self.durable = bytearray(self.cached)
        self.durable_end = self.written_end
        for offset, data in self.lost:  # clean in the cache, so not written now either (B-8)
            _put(self.durable, offset, data)
        self.pending.clear()

    def fail_sync(self, rng: random.Random) -> None:
        """Some sectors reach the platter; the cache keeps all of them and calls them clean."""
        self._reach_platter(rng)
        for offset, data in self.pending:
            on_platter = bytes(self.durable[offset : offset + len(data)])
            self.lost.append((offset, on_platter.ljust(len(data), b"\0")))
        self.pending.clear()

    def cut(self, rng: random.Random) -> None:
        """The power failed: the platter, with any part of what was pending."""
        self._reach_platter(rng)
        self.pending.clear()
        self.lost.clear()
        self.cached = bytearray(self.durable)
        self.written_end = self.durable_end

    def _reach_platter(self, rng: random.Random) -> None:
        chance = rng.choice((0.0, 0.3, 0.7, 1.0))
        for offset, data in self.pending:
            if not data:
                if rng.random() < chance:
                    _resize(self.durable, offset)
                    self.durable_end = min(self.durable_end, offset)
                continue
            for start in range(offset - offset % SECTOR_BYTES, offset + len(data), SECTOR_BYTES):
                if rng.random() < chance:
                    low, high = max(start, offset), min(start + SECTOR_BYTES, offset + len(data))
                    _put(self.durable, low, data[low - offset : high - offset])
                    self.durable_end = max(self.durable_end, high)


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset + len(piece):
        _resize(data, offset + len(piece))
    data[offset : offset + len(piece)] = piece


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


NameChange = tuple[pathlib.Path, pathlib.Path | None, SimFile | None]
"""(name that appears or vanishes, name it was renamed from, file; None when removed)."""


class PowerCutDisk:
    """The disk of one machine; outlives the processes that use it.

    Args:
        stop_after: operations until the machine stops; None never.
        fail_sync_after: file syncs until one fails with EIO; None never.
        bug: name of an operation to leave out on purpose: what the tests must find.
    """

    def __init__(self, rng: random.Random, *, bug: str = "") -> None:
        self.rng = rng
        self.bug = bug
        self.stop_after: int | None = None
        self.fail_sync_after: int | None = None
        self.dead = False
        self.trace: list[str] = []
        self.names: dict[pathlib.Path, SimFile] = {}
        self.durable_names: dict[pathlib.Path, SimFile] = {}
        self.changes: list[NameChange] = []
        self._made: set[pathlib.Path] = set()  # directories, made through this disk
        self._lock = threading.RLock()
        self.gate = threading.Event()
        """Part of what rigs expect of a test disk; always open here."""
        self.gate.set()

    # --- faults -----------------------------------------------------------------------------

    def tick(self, what: str, path: pathlib.Path) -> None:
        """Count an operation of the machine; the one that is too many does not happen."""
        if self.dead:
            raise PowerOffError
        # The index thread's writes are optional ones, and its pace is its own: not counted.
        if threading.current_thread().name != "index-writer" and self.stop_after is not None:
            self.stop_after -= 1
            if self.stop_after < 0:
                self.trace.append(f"STOP at {what} {path.name}")
                self.dead = True
                raise PowerOffError
        self.trace.append(f"{what} {path.name}")

    def sync_file(self, file: SimFile, path: pathlib.Path) -> None:
        with self._lock:
            self.tick("sync", path)
            if self.fail_sync_after is not None:
                self.fail_sync_after -= 1
                if self.fail_sync_after < 0:
                    self.fail_sync_after = None
                    self.trace.append(f"EIO {path.name}")
                    file.fail_sync(self.rng)
                    raise OSError(errno.EIO, "injected: the sync failed")
            if self.bug != f"sync {path.suffix or path.name}":
                file.sync()

    def restart(self, *, power: bool) -> None:
        """Go on after the process was killed, or the power failed."""
        with self._lock:
            self.dead = False
            self.stop_after = self.fail_sync_after = None
            self.trace.append("POWER CUT" if power else "KILL")
            if not power:
                return
            chance = self.rng.choice((0.0, 0.5, 1.0))
            for change in self.changes:
                if self.rng.random() < chance:
                    self._apply(self.durable_names, change)
            self.changes.clear()
            self.names = {
                path: file
                for path, file in self.durable_names.items()
                if all(up in self.durable_names for up in path.parents if up in self._made)
            }
            self.durable_names = dict(self.names)
            for folder in sorted(self._made - self.names.keys()):
                shutil.rmtree(folder, ignore_errors=True)  # with the real lock and index in it
            self._made &= self.names.keys()
            for file in {id(file): file for file in self.names.values()}.values():
                file.cut(self.rng)

    # --- names ------------------------------------------------------------------------------

    def _change(self, change: NameChange) -> None:
        self.changes.append(change)
        self._apply(self.names, change)

    @staticmethod
    def _apply(names: dict[pathlib.Path, SimFile], change: NameChange) -> None:
        path, old, file = change
        if file is None:
            names.pop(path, None)
        else:
            if old is not None:
                names.pop(old, None)
            names[path] = file

    def sync_dir(self, path: pathlib.Path) -> None:
        with self._lock:
            self.tick("sync-dir", path)
            if self.bug == "sync-dir":
                return
            kept: list[NameChange] = []
            for change in self.changes:
                if change[0].parent == path:
                    self._apply(self.durable_names, change)
                else:
                    kept.append(change)
            self.changes = kept

    def make_dir(self, path: pathlib.Path) -> None:
        missing = [up for up in (path, *path.parents) if up not in self._made and not up.exists()]
        path.mkdir(parents=True, exist_ok=True)  # the lock and the index are real
        for folder in reversed(missing):
            with self._lock:
                self.tick("mkdir", folder)
                self._made.add(folder)
                self._change((folder, None, SimFile()))
        for folder in (path, *path.parents):
            if folder in self._made:
                self.sync_dir(folder.parent)

    # --- files ------------------------------------------------------------------------------

    def create(self, path: pathlib.Path, preallocate_bytes: int) -> Appender:
        with self._lock:
            self.tick("create", path)
            if path in self.names:
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            file = SimFile()
            self._change((path, None, file))
            file.resize(preallocate_bytes)
            return _SimAppender(self, path, file)

    def read(self, path: pathlib.Path) -> bytes:
        with self._lock:
            file = self._find(path)
            return bytes(file.cached[: file.written_end])

    def open(self, path: pathlib.Path) -> FileReader:
        return _SimReader(self._find(path))

    def open_register(self, path: pathlib.Path) -> Register:
        return _SimRegister(self, path, self._find(path))

    def truncate(self, path: pathlib.Path, size: int) -> None:
        with self._lock:
            self.tick("truncate", path)
            self._find(path).resize(size)

    def list(self, path: pathlib.Path) -> list[str]:
        with self._lock:
            return sorted(name.name for name in self.names if name.parent == path)

    def replace(self, path: pathlib.Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        with self._lock:
            self.tick("create", temporary)
            file = SimFile()
            self._change((temporary, None, file))
            self.tick("write", temporary)
            file.write(0, data)
        if self.bug != "sync-replaced":
            self.sync_file(file, temporary)
        with self._lock:
            self.tick("rename", path)
            self._change((path, temporary, file))
        self.sync_dir(path.parent)

    def unlink(self, path: pathlib.Path) -> None:
        with self._lock:
            self.tick("unlink", path)
            self._find(path)
            self._change((path, None, None))

    def free_bytes(self, path: pathlib.Path) -> tuple[int, int]:
        return 1 << 40, 1 << 41

    def _find(self, path: pathlib.Path) -> SimFile:
        found = self.names.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return found

    def locked(self, action: Callable[[], None]) -> None:
        with self._lock:
            action()


class _SimAppender:
    def __init__(self, disk: PowerCutDisk, path: pathlib.Path, file: SimFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self.position = 0

    def write(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(map(bytes, buffers))

        def act() -> None:
            self._disk.tick("write", self._path)
            self._file.write(self.position, data)

        self._disk.locked(act)
        self.position += len(data)

    def sync(self) -> None:
        self._disk.sync_file(self._file, self._path)

    def drop_cached(self, keep_bytes: int) -> None:
        del keep_bytes

    def trim(self) -> None:
        def act() -> None:
            self._disk.tick("trim", self._path)
            self._file.resize(self.position)

        self._disk.locked(act)

    def close(self) -> None:
        return


class _SimRegister:
    def __init__(self, disk: PowerCutDisk, path: pathlib.Path, file: SimFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def put(self, offset: int, data: bytes) -> None:
        def act() -> None:
            self._disk.tick("put", self._path)
            self._file.write(offset, data)

        self._disk.locked(act)

    def sync(self) -> None:
        self._disk.sync_file(self._file, self._path)

    def close(self) -> None:
        return


class _SimReader:
    def __init__(self, file: SimFile) -> None:
        self._file = file

    def read_at(self, offset: int, size: int) -> bytes:
        return bytes(self._file.cached[offset : offset + size])

    def size(self) -> int:
        return len(self._file.cached)

    def drop_cached(self, offset: int, size: int) -> None:
        del offset, size

    def close(self) -> None:
        return
