"""Errors that nobody caught: seen by all, and the end of a server whose state they may have broken.

Each server installs `watch_loop()` on its event loop. A callback of our own that raised was cut
short between two steps that belong together, so the process must not go on: its state is no longer
what its promises assume. What asyncio or gRPC report about a single connection, and results that
nobody fetched, are logged only.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from octavo.runtime.errors import InvariantViolation

EXIT_BROKEN = 70
"""Exit code of a server that stopped itself: after a disk failure or a broken promise of its own
(EX_SOFTWARE).
"""

OnBroken = Callable[[BaseException], None]

_BROKEN_KEY = "octavo_broken"
_log = logging.getLogger("octavo.unexpected")


def watch_loop(on_broken: OnBroken, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """From now on every error that reaches the loop (default: the running one) is logged.

    `on_broken` is called, on the loop, when the process must not go on.
    """

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error: BaseException | None = context.get("exception")
        broken = error is not None and _is_broken(context, error)
        _log.error("%s%s", "fail-stop: " if broken else "", context.get("message"), exc_info=error)
        if broken and error is not None:
            on_broken(error)

    (loop or asyncio.get_running_loop()).set_exception_handler(handle)


def report_broken(name: str, error: BaseException) -> None:
    """Tell the running loop's watcher that `name` failed and the process must not go on.

    Usable as `on_failure` of a TaskOwner whose tasks are essential.
    """
    asyncio.get_running_loop().call_exception_handler(
        {"message": f"{name} failed", "exception": error, _BROKEN_KEY: True}
    )


def end_process(error: BaseException) -> NoReturn:
    """The `on_broken` of a server that keeps nothing.

    Like kill -9, which it is built for, with an exit code that says why. Closing in good order
    would act on the broken state.
    """
    _log.critical("the process ends at once: %r", error)
    logging.shutdown()
    os._exit(EXIT_BROKEN)


def _is_broken(context: dict[str, Any], error: BaseException) -> bool:
    if context.get(_BROKEN_KEY) or isinstance(error, InvariantViolation):
        return True
    return "handle" in context and _is_ours(error.__traceback__)


def _is_ours(trace: TracebackType | None) -> bool:
    """True if a callback of ours was cut short: a frame of this package is on the stack."""
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("octavo."):
            return True
        trace = trace.tb_next
    return False
