"""Bookkeeping of one add request whose parts are decided and made durable at different times."""

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


class DuplicateWait:
    """A duplicate of an entry that is still on its way to the disk: shares that copy's fate."""

    __slots__ = ("key", "status")

    def __init__(self, key: tuple[int, int]) -> None:
        self.key = key
        self.status = Status.OK
        """Why that copy was refused, if it was."""


class Duplicates:
    """Duplicates that wait for the copy they duplicate (B-3); as many as requests are in flight."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], list[DuplicateWait]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, ledger_id: int, entry_id: int) -> DuplicateWait:
        """A new duplicate of a pending entry; end it with `done()`."""
        made = DuplicateWait((ledger_id, entry_id))
        self._waiting.setdefault(made.key, []).append(made)
        return made

    def refused(self, heads: list[EntryHead], status: Status) -> None:
        """These copies were never stored: no duplicate of them may be answered OK."""
        if self._waiting:
            for ledger_id, entry_id, _, _, _ in heads:
                for wait in self._waiting.get((ledger_id, entry_id), ()):
                    wait.status = status

    def done(self, wait: DuplicateWait) -> None:
        """The duplicate is answered."""
        left = self._waiting[wait.key]
        left.remove(wait)
        if not left:
            del self._waiting[wait.key]


class AddPart:
    """The entries of a request that travel in one journal item, and what waits behind it."""

    __slots__ = ("indexes", "on_done", "on_refused", "request")

    def __init__(
        self,
        request: AddRequest,
        indexes: Callable[[], list[int]],
        on_refused: Callable[[], None],
        on_done: Callable[[Status], None] | None = None,
    ) -> None:
        request.open_part()
        self.request = request
        self.indexes = indexes
        self.on_refused = on_refused
        self.on_done = on_done

    def __call__(self, status: Status) -> None:
        """The item is durable, or was refused by the journal."""
        if status is not Status.OK:
            self.on_refused()
            for index in self.indexes():
                self.request.refuse(index, status)
        if self.on_done is not None:
            self.on_done(status)
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
        duplicates: Duplicates,
        on_refused: Callable[[list[EntryHead]], None],
        *,
        recovery: bool,
    ) -> None:
        self.request = request
        self.recovery = recovery
        self._journal = journal
        self._duplicates = duplicates
        self._waits: list[tuple[int, DuplicateWait]] = []
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

    def duplicate(self, ledger_id: int, entry_id: int, index: int) -> None:
        """The entry is pending already: the answer waits for the sync of that copy (B-3)."""
        self._waits.append((index, self._duplicates.wait(ledger_id, entry_id)))

    def flush(self) -> None:
        """Submit what was accepted, or nothing but a barrier for duplicates.

        It is answered after everything queued before it, the copies they wait for included.
        """
        if not self._entries and not self._waits:
            return
        heads, entries, indexes = self._heads, self._entries, self._indexes
        self._heads, self._entries, self._indexes, self._nbytes = [], [], [], 0
        waits, self._waits = self._waits, []
        part = AddPart(
            self.request,
            lambda: indexes,
            lambda: self._on_refused(heads),
            (lambda status: self._end_waits(waits, status)) if waits else None,
        )
        self._journal.submit(JournalItem(heads, entries, part, reserve=self.recovery))

    def _end_waits(self, waits: list[tuple[int, DuplicateWait]], status: Status) -> None:
        for index, wait in waits:
            self._duplicates.done(wait)
            self.request.refuse(index, status if status is not Status.OK else wait.status)
