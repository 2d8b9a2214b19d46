"""How clients that nobody closed end: with their last reference, their loop, or the interpreter.

A script that ends without a flush loses nothing, or says how many records, and its exit code is not
0 (`producing.lost_records`). Owns the list of blocking clients in use; a client's parts share one
`Held`, so that a program may keep only the producer.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import warnings
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from octavo.client.messaging.producing import lost_records
from octavo.client.messaging.producing.lost_records import note_lost, records_of
from octavo.runtime.errors import DeliveryFailed, OctavoError

if TYPE_CHECKING:
    from octavo.client.messaging.api.client import AsyncClient
    from octavo.client.messaging.sync.loop_thread import Handover, LoopThread

EXIT_TIMEOUT_S = 30.0
"""How long the end of the interpreter, or of a dropped client, waits for records: all clients
together."""

OPEN: dict[LoopThread, AsyncClient] = {}
"""Sync clients in use and not closed."""


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
    import_module("multiprocessing.util").Finalize(None, _child_exit, exitpriority=0)


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
        note_lost(records_of(error), f"a dropped client: {error}")
    finally:
        OPEN.pop(thread, None)


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
            note_lost(records_of(error), f"an unclosed client at exit: {error}")
        elif error is not None:
            note_lost(0, f"an unclosed client at exit: {error!r}")
        thread.stop()
        OPEN.pop(thread, None)


def _forked() -> None:
    """In a forked child, which has its own end."""
    global _finalized
    _finalized = False


def _child_exit() -> None:
    """The end of a child of `multiprocessing`, where exit functions do not run."""
    _at_exit()
    lost_records.at_exit()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forked)
