"""What every server process does at start and stop: memory tuning, event loop, signals."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import uvloop

from octavo.runtime.descriptors import keep_standard_descriptors, raise_descriptor_limit
from octavo.runtime.malloc import tune_malloc
from octavo.runtime.unexpected import end_process, watch_loop

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while another wants it; Python's own 5 ms is longer
than a publish takes."""
YOUNG_OBJECTS_MAX = 10_000
"""New container objects between two looks of the garbage collector (Python's own: 700). Servers
make few cycles; memory is given back by reference counts."""


def tune_interpreter() -> None:
    """Shorten the pauses that threads and the garbage collector cause.

    What exists at start, mostly modules, lives as long as the process: it is frozen, so that no
    collection walks it again.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 50)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux PR_SET_PDEATHSIG)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled_signals(
    numbers: tuple[signal.Signals, ...], on_signal: Callable[[], object]
) -> Generator[None]:
    """These signals call `on_signal` on the running loop; afterwards they do what they did.

    A loop that is closed with handlers leaves its own behind (uvloop), and Ctrl-C would then do
    nothing in whatever this process runs next.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            loop.add_signal_handler(number, on_signal)
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:  # None: not of Python, and nothing can bring it back
                signal.signal(number, handler)


def run_server(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> int:
    """Run `main(stop)` on uvloop; SIGTERM and SIGINT set `stop`, a second one is not needed.

    Returns what `main` returns: the exit code. An error that nobody caught is logged, and ends the
    process at once when its state may be broken, unless `main` watches the loop by itself.
    """

    async def body() -> int:
        stop = asyncio.Event()
        watch_loop(end_process)
        with handled_signals(STOP_SIGNALS, stop.set):
            return await main(stop)

    keep_standard_descriptors()
    raise_descriptor_limit()
    tune_malloc()
    tune_interpreter()
    return uvloop.run(body())
