"""How clients that nobody closed end: with their last reference, their loop, or the interpreter.

A script that ends without a flush loses nothing, or says how many records, and its exit code is not
0. Owns the list of clients in use; a client's parts share one `Held`, so that a program may keep
only the producer.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import DeliveryFailed, OctavoError

if TYPE_CHECKING:
    from octavo.client.messaging.aio import AsyncClient
    from octavo.client.messaging.engine import ProducerEngine
    from octavo.client.messaging.loop_thread import Handover, LoopThread

EXIT_TIMEOUT_S = 30.0
"""How long the end of the interpreter, or of a dropped client, waits for records: all clients
together."""

_log = ClientLog("octavo.client")

OPEN: dict[LoopThread, AsyncClient] = {}
"""Sync clients in use and not closed."""
ENGINES: set[ProducerEngine] = set()
"""Producers not closed."""


class Held:
    """Alive while the program can reach a client or a part of it."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    def __del__(self) -> None:
        thread = self._thread
        if thread in OPEN and not thread.closed:
            thread.leave(partial(close_dropped, thread))
            warnings.warn(
                "an octavo client was dropped without close(); it closes itself in the background",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


_finalized = False
"""Whether the end of this child of `multiprocessing` calls `_at_exit`."""


def opened(client: AsyncClient, thread: LoopThread) -> None:
    """The client's thread runs."""
    global _finalized
    OPEN[thread] = client
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None or multiprocessing.parent_process() is None or _finalized:
        return
    _finalized = True  # children of fork and forkserver leave by os._exit, past exit functions
    import_module("multiprocessing.util").Finalize(None, _at_exit, exitpriority=0)


def forget(thread: LoopThread) -> None:
    """The program closes it."""
    OPEN.pop(thread, None)


async def close_dropped(thread: LoopThread) -> None:
    """On its loop: close a client that nobody can close any more."""
    client = OPEN.get(thread)
    try:
        if client is not None:
            await client.close(EXIT_TIMEOUT_S)
    except OctavoError as error:
        note_lost(lost_records(error), f"a dropped client: {error}")
    finally:
        OPEN.pop(thread, None)


_lost_records = 0


def note_lost(records: int, why: str) -> None:
    """Records are lost and nobody was told: say it now, and in the exit code."""
    global _lost_records
    _lost_records += records
    _log.critical("%d records may be lost: %s", records, why)


def lost_records(error: OctavoError) -> int:
    """How many records the failure of a close concerns."""
    return int(error.details.get("remaining", error.details.get("records", 0)))


def _at_exit() -> None:
    """Complaint 2: a script that ends without flush loses nothing, or says so."""
    deadline_s = time.monotonic() + EXIT_TIMEOUT_S
    closing: list[tuple[LoopThread, Handover[None]]] = []
    for thread, client in list(OPEN.items()):
        if thread.foreign:
            continue
        try:
            closing.append((thread, thread.begin(client.close(EXIT_TIMEOUT_S))))
        except OctavoError:  # it is leaving by itself
            thread.join(max(deadline_s - time.monotonic(), 0.0))
    for thread, call in closing:
        in_time = call.wait(max(deadline_s - time.monotonic(), 0.0) + 1.0)
        error = call.error if in_time else DeliveryFailed("its loop does not answer")
        if isinstance(error, OctavoError):
            note_lost(lost_records(error), f"an unclosed client at exit: {error}")
        elif error is not None:
            note_lost(0, f"an unclosed client at exit: {error!r}")
        thread.stop()
        OPEN.pop(thread, None)
    for engine in list(ENGINES):
        if engine.pid == os.getpid() and (left := engine.untold()):
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
    global _lost_records, _finalized
    _lost_records = 0
    _finalized = False


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forked)
