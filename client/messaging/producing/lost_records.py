"""Records that were lost without anybody being told: said in the log and in the exit code.

Owns the list of producers in use, of both flavours. `sync.ending` closes the blocking clients first
(it is registered later, so it runs earlier).
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Protocol, TextIO

from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import DeliveryFailed, OctavoError

_log = ClientLog("octavo.client")


class Unclosed(Protocol):
    """A producer that was not closed."""

    @property
    def pid(self) -> int:
        """The process that opened it."""
        ...

    def untold(self) -> int:
        """Its records without an outcome, which all fail now."""
        ...


UNCLOSED: set[Unclosed] = set()
"""Producers not closed."""

_lost_records = 0


def note_lost(records: int, why: str) -> None:
    """Records are lost and nobody was told: say it now, and in the exit code."""
    global _lost_records
    _lost_records += records
    _log.critical("%d records may be lost: %s", records, why)


def records_of(error: OctavoError) -> int:
    """How many records the failure of a close concerns."""
    return int(error.details.get("remaining", error.details.get("records", 0)))


def at_exit() -> None:
    """Complaint 2: what is lost at the end of the interpreter is counted, and told."""
    for producer in list(UNCLOSED):
        if producer.pid == os.getpid() and (left := producer.untold()):
            note_lost(left, "a client was not closed before its event loop ended")
    if _lost_records:
        _fail_exit(DeliveryFailed(f"{_lost_records} records may be lost", records=_lost_records))


class _FailingFlush:
    """Stands in for a standard stream, so that the interpreter's last flush fails.

    That is the only way for an exit function to change the exit code (to 120, as for any output
    that could not be flushed) that leaves the other exit functions to run.
    """

    closed = False

    def __init__(self, stream: TextIO, error: OctavoError) -> None:
        self._stream = stream
        self._error = error
        self._told = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        return "the end of octavo's clients"

    def flush(self) -> None:
        """Flush the stream, then fail once."""
        self._stream.flush()
        if not self._told:
            self._told = True
            raise self._error


def _fail_exit(error: OctavoError) -> None:
    stream = sys.stdout or sys.stderr
    if stream is None:
        os._exit(120)
    wrapped = _FailingFlush(stream, error)
    if stream is sys.stdout:
        sys.stdout = wrapped
    else:
        sys.stderr = wrapped


def _forked() -> None:
    """In a forked child: what the parent lost is the parent's to say."""
    global _lost_records
    _lost_records = 0


atexit.register(at_exit)
os.register_at_fork(after_in_child=_forked)
