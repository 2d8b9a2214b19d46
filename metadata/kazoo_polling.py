"""How kazoo waits for its socket: with `poll`, which is one system call.

kazoo makes an epoll for each wait, fills it and closes it, and it waits twice for each request.
"""

from __future__ import annotations

import selectors

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select


class _PollSelectors:
    """What kazoo makes of the module `selectors`."""

    EVENT_READ = selectors.EVENT_READ
    EVENT_WRITE = selectors.EVENT_WRITE
    DefaultSelector = selectors.PollSelector


class PollHandler(SequentialThreadingHandler):
    """kazoo's threads, with another way to wait."""

    def select(
        self, *args: object, **kwargs: object
    ) -> tuple[list[object], list[object], list[object]]:
        """As `select.select`, for any file descriptor."""
        return selector_select(*args, **kwargs, selectors_module=_PollSelectors)
