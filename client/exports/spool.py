"""Where a process keeps files that are not uploaded yet, so that nobody's stay (ADR 69).

Files for an object store are written on this machine first, in a folder of their process below the
folder for temporary files (TMPDIR). A process that is killed cannot remove its folder; so each
folder holds a file that its process has locked, the system takes the lock away with the process,
and the next one that needs a folder removes those whose lock is free. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress

PREFIX = "octavo-export-"
_LOCK = "lock"


class Spool:
    """The folder of one tree in this process; made when it is first needed.

    It goes when this object does, or the process ends; after kill -9, when the next one is made.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._folder: pathlib.Path | None = None

    def folder(self) -> pathlib.Path:
        """An existing folder of this process alone; raises OSError."""
        with self._turn:
            if self._folder is None:
                remove_dead()
                self._folder, held = _locked_folder()
                weakref.finalize(self, _remove, self._folder, held)
            return self._folder


def remove_dead() -> None:
    """Remove the folders of processes of this user that are no more."""
    for entry in os.scandir(tempfile.gettempdir()):
        if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            held = _lock(os.path.join(entry.path, _LOCK), os.O_RDWR)
        except OSError:
            continue  # it lives, is another user's, or is being made just now
        _remove(pathlib.Path(entry.path), held)


def _locked_folder() -> tuple[pathlib.Path, int]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX))
    held = _lock(str(folder / "new"), os.O_RDWR | os.O_CREAT)
    os.rename(folder / "new", folder / _LOCK)  # nobody sees it unlocked
    return folder, held


def _lock(path: str, flags: int) -> int:
    """The descriptor of a file that is locked now; raises OSError where another holds it."""
    held = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _remove(folder: pathlib.Path, held: int) -> None:
    """Remove a folder; what cannot go is left to the next process, and so is the lock then."""
    try:
        with suppress(OSError):
            for path in folder.iterdir():
                if path.name != _LOCK:
                    path.unlink()
            shutil.rmtree(folder)
    finally:
        os.close(held)
