"""Log records of the client's own threads, handed to their handlers by a thread of its own.

A logging handler is the user's code and holds a lock while it runs: one that ships records through
a producer waits for the client's loop, and the loop, if it logged a line itself at that moment,
would wait for that handler. So what is logged on a client's loop thread, by the client, gRPC or
asyncio, is queued, and handled on another thread. A loop that the user runs is the user's: there
records are handled where they are logged.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque

from octavo.runtime.doorbell import Doorbell

RECORDS_MAX = 1_000
"""Log records that may wait; later ones are dropped and counted."""
DRAIN_S = 1.0
"""How long closing a client waits for its last lines."""
_ROOTS = ("octavo", "grpc", "asyncio", "uvloop", "concurrent")


class _Relay(logging.Filter):
    """One for the process. The filter of every logger that a client's loop may log with."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        """Idents of the client's loop threads."""
        self._waiting: deque[logging.LogRecord | threading.Event] = deque(maxlen=2 * RECORDS_MAX)
        self._doorbell = Doorbell()
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Take the record over if it was logged on a client's loop thread."""
        if threading.get_ident() not in self.threads:
            return True
        if len(self._waiting) >= RECORDS_MAX:
            self._dropped += 1
            return False
        record.msg, record.args = record.getMessage(), None
        self._waiting.append(record)
        self._doorbell.ring()
        return False

    def attach(self, ident: int) -> None:
        """The calling process has a client's loop on thread `ident` from now on."""
        self.threads.add(ident)
        known = logging.root.manager.loggerDict
        for name in [*_ROOTS, *list(known)]:
            if name.partition(".")[0] in _ROOTS:
                logging.getLogger(name).addFilter(self)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="octavo-log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            if not self._waiting:
                self._doorbell.wait(None)
                continue
            item = self._waiting.popleft()
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                item.msg = f"{item.msg} ({dropped} lines of the client were dropped)"
            try:
                logging.getLogger(item.name).handle(item)
            except Exception:  # noqa: BLE001  a handler of the user's: like logging, say so, go on
                if logging.raiseExceptions and sys.stderr is not None:
                    traceback.print_exc(file=sys.stderr)

    def drain(self) -> None:
        """Wait until what was logged so far was handled, DRAIN_S at most."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            handled = threading.Event()
            self._waiting.append(handled)
            self._doorbell.ring()
            handled.wait(DRAIN_S)

    def forked(self) -> None:
        """In a forked child: the threads, and what they had not said, are the parent's."""
        self.threads.clear()
        self._waiting.clear()
        self._doorbell = Doorbell()
        self._dropped = 0
        self._thread = None


RELAY = _Relay()
os.register_at_fork(after_in_child=RELAY.forked)
