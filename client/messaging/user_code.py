"""What the client does when code of the user's that it calls raises.

Partitioners, callbacks, log handlers: they spoil what is theirs (a record, a callback, a line),
never the client's own state.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class ClientLog(_Adapter):
    """The client's logger, whose handlers and filters are the user's.

    One that raises costs its line, not the producer that wanted to say something.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), None)

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Name the caller's line, not this module's."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As any logger, but it raises nothing."""
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001  said like logging says it of its own handlers
            if logging.raiseExceptions and sys.stderr is not None:
                traceback.print_exc(file=sys.stderr)
        except BaseException as leave:  # noqa: BLE001  it gets its way when the state is whole
            leave_later(leave)


_log = ClientLog("octavo.client")


def leave_later(leave: BaseException) -> None:
    """User code called sys.exit() or met Ctrl-C.

    On the main thread's loop it gets its way as soon as the client's state is whole; on the
    client's own thread it would end nothing but the client.
    """
    if threading.current_thread() is threading.main_thread():
        try:
            asyncio.get_running_loop().call_soon(_raise, leave)
        except RuntimeError:  # no loop: a resolved future's callback, called where it was added
            raise leave from None
    else:
        _log.error("a callback or partitioner raised %r, which ends nothing here", leave)


def _raise(error: BaseException) -> None:
    raise error
