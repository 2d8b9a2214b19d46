"""What every server process does at start and stop: memory tuning, event loop, signals."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from octavo.runtime.malloc import tune_malloc


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux PR_SET_PDEATHSIG)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def run_server(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run `main(stop)` on uvloop; SIGTERM and SIGINT set `stop`, a second one is not needed.

    Returns what `main` returns: the exit code.
    """

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await main(stop)

    tune_malloc()
    return uvloop.run(body())
