"""What every server process does at start and stop: memory tuning, event loop, signals."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def tune_malloc() -> bool:
    """Keep large buffers inside the heap instead of mapping and unmapping each (design.md §10).

    glibc only; returns whether the settings are in force. `OCTAVO_MALLOC_TUNING=0` turns it off.
    """
    if os.environ.get("OCTAVO_MALLOC_TUNING") == "0" or not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        return False
    settings = (
        (_M_MMAP_THRESHOLD, 32 << 20),
        (_M_TRIM_THRESHOLD, 1 << 30),
        (_M_TOP_PAD, 64 << 20),
    )
    return all(mallopt(ctypes.c_int(key), ctypes.c_int(value)) == 1 for key, value in settings)


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
