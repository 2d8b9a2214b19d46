"""Ctrl-C and SIGTERM: commands that run until they are stopped end as they should, with counts."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType

_STOPS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Whether somebody asked to stop; the second time KeyboardInterrupt is raised."""

    def __init__(self) -> None:
        self.came = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def terminable() -> Generator[None]:
    """SIGTERM raises KeyboardInterrupt as Ctrl-C does: `timeout 10 octavo ...` ends cleanly."""
    with _handled((signal.SIGTERM,), signal.default_int_handler):
        yield


@contextmanager
def stop_requests() -> Generator[StopRequest]:
    """Ctrl-C and SIGTERM only set a mark, so that what is being written is finished first."""
    request = StopRequest()
    with _handled(_STOPS, request.handle):
        yield request


@contextmanager
def loop_stops() -> Generator[asyncio.Event]:
    """Inside of a loop: an event that Ctrl-C and SIGTERM set; the second one ends the program as
    it would without this. Those that are ignored stay ignored."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    taken: list[signal.Signals] = []

    def free() -> None:
        while taken:
            loop.remove_signal_handler(taken.pop())

    def stop() -> None:
        free()
        came.set()

    if threading.current_thread() is threading.main_thread():
        for number in _STOPS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                loop.add_signal_handler(number, stop)
                taken.append(number)
    try:
        yield came
    finally:
        free()


@contextmanager
def _handled(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], object]
) -> Generator[None]:
    """Handle these signals so for a while; those that are ignored (nohup, `&`) stay ignored."""
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    stack.callback(signal.signal, number, signal.signal(number, handler))
        yield
