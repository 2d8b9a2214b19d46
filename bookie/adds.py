"""Bookkeeping of one add request while parts of it are decided and made durable at different
times."""

from __future__ import annotations

from collections.abc import Callable

from octavo.bookie.journal.item import EntryHead, JournalItem
from octavo.bookie.journal.writer import JournalWriter
from octavo.bookie.ledgers import Ledger, head_of
from octavo.proto.bookie_wire import Status
from octavo.runtime.checksum import Buffer

Reply = Callable[[list[Status] | None], None]
"""Called once, with one status per entry, or None when every entry succeeded."""


class AddRequest:
    """Counts the open parts of a request; replies when the last one is settled."""

    __slots__ = ("_count", "_parts", "_reply", "_statuses")

    def __init__(self, count: int, reply: Reply) -> None:
        self._count = count
        self._reply = reply
        self._parts = 1  # the caller's own part, ended by `seal()`
        self._statuses: list[Status] | None = None

    def refuse(self, index: int, status: Status) -> None:
        """Set the status of one entry; OK entries are not mentioned."""
        if status is Status.OK:
            return
        if self._statuses is None:
            self._statuses = [Status.OK] * self._count
        self._statuses[index] = status

    def open_part(self) -> None:
        """One more part must be settled before the reply."""
        self._parts += 1

    def close_part(self) -> None:
        """A part is settled."""
        self._parts -= 1
        if self._parts == 0:
            self._reply(self._statuses)

    seal = close_part


class AddPart:
    """The entries of a request that travel in one journal item."""

    __slots__ = ("indexes", "on_refused", "request")

    def __init__(
        self,
        request: AddRequest,
        indexes: Callable[[], list[int]],
        on_refused: Callable[[], None],
    ) -> None:
        request.open_part()
        self.request = request
        self.indexes = indexes
        self.on_refused = on_refused

    def __call__(self, status: Status) -> None:
        """The item is durable, or was refused by the journal."""
        if status is not Status.OK:
            self.on_refused()
            for index in self.indexes():
                self.request.refuse(index, status)
        self.request.close_part()


class Settling:
    """Adds of one request that are accepted one by one and submitted together.

    The owner calls `flush()` before every await, so that nothing accepted is overtaken in the
    stream by a fence accepted later (B-F1).
    """

    def __init__(
        self,
        request: AddRequest,
        journal: JournalWriter,
        on_refused: Callable[[list[EntryHead]], None],
        *,
        recovery: bool,
    ) -> None:
        self.request = request
        self.recovery = recovery
        self.barrier = False
        """A pending duplicate was met: the reply must wait for a later sync (B-3)."""
        self._journal = journal
        self._on_refused = on_refused
        self._heads: list[EntryHead] = []
        self._entries: list[Buffer] = []
        self._indexes: list[int] = []
        self._nbytes = 0

    def accept(self, ledger: Ledger, index: int, entry: Buffer) -> Status:
        """Make an entry pending; OVERLOADED when the queue is full (B-9)."""
        count, nbytes = len(self._entries) + 1, self._nbytes + len(entry)
        if not self._journal.has_room(count, nbytes, reserve=self.recovery):
            return Status.OVERLOADED
        head = head_of(entry)
        ledger.take(head, entry)
        self._heads.append(head)
        self._entries.append(entry)
        self._indexes.append(index)
        self._nbytes = nbytes
        return Status.OK

    def flush(self) -> None:
        """Submit what was accepted; a barrier is submitted even when nothing was."""
        if not self._entries and not self.barrier:
            return
        heads, entries, indexes = self._heads, self._entries, self._indexes
        self._heads, self._entries, self._indexes, self._nbytes = [], [], [], 0
        self.barrier = False
        part = AddPart(self.request, lambda: indexes, lambda: self._on_refused(heads))
        self._journal.submit(JournalItem(heads, entries, part, reserve=self.recovery))
