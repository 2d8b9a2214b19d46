"""A note that the index was met damaged, for the next start to build it anew (R5, ADR 20)."""

from __future__ import annotations

import pathlib
import threading

from octavo.runtime.disk import Disk
from octavo.runtime.errors import StorageDamaged
from octavo.runtime.telemetry import get_logger

SUSPECTED_FILE = "index.suspected"
"""Its name in the data directory."""
WAY_OUT = "restart this bookie: it builds its index anew from the journal"

_log = get_logger("octavo.bookie.index")


class SuspectedIndex:
    """The suspicion about one directory's index; survives the process."""

    def __init__(self, data_dir: pathlib.Path, disk: Disk) -> None:
        self._path = data_dir / SUSPECTED_FILE
        self._disk = disk
        self._lock = threading.Lock()
        self._noted = False  # guarded by _lock
        self.reason = ""
        """Why the index cannot be used; empty while nothing is known against it."""

    def read(self) -> str:
        """The reason, left by a former process or found by this one (blocking)."""
        if not self.reason:
            try:
                self.reason = self._disk.read(self._path).decode("utf-8", "replace") or "unknown"
            except FileNotFoundError:
                return ""
        return self.reason

    def report(self, error: StorageDamaged) -> None:
        """The index is damaged: note it once, on whatever thread met it (blocking).

        Never raises: without the note the damage is met again.
        """
        with self._lock:
            if self._noted:
                return
            self._noted = True
            self.reason = self.reason or error.cause
            _log.error("index-damaged", cause=error.cause, hint=WAY_OUT)
            try:
                self._disk.replace(self._path, error.cause.encode())
            except OSError as failed:
                _log.warning("index-damage-not-noted", cause=str(failed))

    def clear(self) -> None:
        """The index was built anew and is durable (blocking). Raises OSError."""
        with self._lock:
            self.reason, self._noted = "", False
            try:
                self._disk.unlink(self._path)
            except FileNotFoundError:
                return
