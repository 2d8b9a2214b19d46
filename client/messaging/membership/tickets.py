"""Who waits for a commit, and how each hears of its outcome (O9, O10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.client.messaging.membership.offset_commits import Offsets
from octavo.client.messaging.records import OffsetAndMetadata, TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import OctavoError
from octavo.runtime.errors_of_groups import CommitReplaced

_log = ClientLog("octavo.client")
UserOffsets = dict[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[UserOffsets, OctavoError | None], object]
"""Of `commit_async`: what was to be committed, and why it is not."""


class Outcome(NamedTuple):
    """A commit is decided, and code of the user's is to be told: `call(offsets, error)`."""

    calls: tuple[Callable[[UserOffsets, OctavoError | None], object], ...]
    offsets: UserOffsets
    error: OctavoError | None


def by_place(offsets: Offsets) -> UserOffsets:
    """The same as the user knows it."""
    return {slot.where: value for slot, value in offsets.items()}


class Ticket(Protocol):
    """Of one commit."""

    def settled(self, offsets: Offsets, error: OctavoError | None) -> None:
        """It is decided."""
        ...


class Waiter:
    """A call that waits."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, offsets: Offsets, error: OctavoError | None) -> None:
        """See `Ticket`."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class ToUser:
    """Nobody waits; code of the user's hears of it, if there is any, else the log of a failure.

    That a later commit took its place is none: whoever commits often is not told each time.
    """

    def __init__(
        self,
        callback: CommitCallback | None,
        tell: Callable[[tuple[CommitCallback, ...], Offsets, OctavoError | None], object],
    ) -> None:
        self._callback = callback
        self._tell = tell

    def settled(self, offsets: Offsets, error: OctavoError | None) -> None:
        """See `Ticket`."""
        if self._callback is not None:
            self._tell((self._callback,), offsets, error)
        elif error is not None and not isinstance(error, CommitReplaced):
            _log.warning("commit_async failed: %s", error)


class Called:
    """Something that is called at once, on the client's loop."""

    def __init__(self, call: Callable[[OctavoError | None], object]) -> None:
        self._call = call

    def settled(self, offsets: Offsets, error: OctavoError | None) -> None:
        """See `Ticket`."""
        self._call(error)
