"""One process at a time works on a data directory (B-28)."""

from __future__ import annotations

import fcntl
import os
import pathlib

from octavo.runtime.errors import StorageUnavailable

LOCK_FILE = "LOCK"


class DirectoryLock:
    """An exclusive lock on a data directory, held until `release()` or the end of the process."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        self._fd = os.open(data_dir / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise StorageUnavailable(
                f"{data_dir} is in use by another process",
                hint="two bookies never share a data directory",
            ) from None

    def release(self) -> None:
        """Unlock."""
        os.close(self._fd)
