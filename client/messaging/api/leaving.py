"""How the `with` blocks of clients, producers and readers end.

An exception under way is the one to see: what closing has to say is logged then. Whoever was
interrupted wants to leave, so closing waits for acknowledgements for some seconds only, instead of
until the delivery timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import OctavoError

INTERRUPTED_CLOSE_S = 5.0
"""How long closing waits for what was sent, after Ctrl-C or a cancellation."""

_log = ClientLog("octavo.client")


def close_limit_s(error: BaseException | None) -> float | None:
    """How long `close` may wait at the end of a block; None: until the delivery timeout."""
    interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
    return INTERRUPTED_CLOSE_S if interrupted else None


def leave(close: Callable[[float | None], None], error: BaseException | None) -> None:
    """Close at the end of a `with` that ended with `error`."""
    try:
        close(close_limit_s(error))
    except OctavoError as failure:
        _after(error, failure)


async def leave_async(
    close: Callable[[float | None], Awaitable[None]], error: BaseException | None
) -> None:
    """Close at the end of an `async with` that ended with `error`."""
    try:
        await close(close_limit_s(error))
    except OctavoError as failure:
        _after(error, failure)


def _after(error: BaseException | None, failure: OctavoError) -> None:
    if error is None:
        raise failure
    _log.error("closing after %s: %s", type(error).__name__, failure)


def say_waiting(unacknowledged: Callable[[], int], error: BaseException | None) -> None:
    """Tell who interrupted a block how many records are waited for; nobody else is asked."""
    limit_s = close_limit_s(error)
    if limit_s is not None and (records := unacknowledged()):
        _log.warning(
            "interrupted: waiting up to %g s for %d records without acknowledgement; "
            "interrupt again to leave at once",
            limit_s,
            records,
        )
