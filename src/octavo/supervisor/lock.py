"""One supervisor per data folder, by a file lock that the kernel gives up when its holder dies."""

from __future__ import annotations

import fcntl
import os
import pathlib

from octavo.runtime.errors import IllegalStateError
from octavo.runtime.system_errors import naming

LOCK_NAME = ".lock"


class DataDirLock:
    """Holds DATA/.lock from `acquire()` to `release()`; a killed holder leaves nothing behind."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._path = data_dir / LOCK_NAME
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise IllegalStateError naming the holder."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise IllegalStateError(
                f"{self._path.parent} is in use by another `octavo up` (pid {holder})",
                hint="stop it with `octavo down`, or choose another --data folder",
            ) from error
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        try:
            with naming(self._path):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Give the lock up; harmless when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
