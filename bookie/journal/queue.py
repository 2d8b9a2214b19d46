"""What waits for the commit thread: a bounded queue between two threads, in submission order.

Pure: no lock, no thread, no clock. The loop's side submits and settles, the commit thread's side
takes. Nothing needs a lock, because each counter is written by one side only and `deque` appends
and pops atomically; whoever is told to ring looks again after the ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from octavo.bookie.journal.item import JournalItem
from octavo.bookie.journal.options import (
    LAZY_ITEMS_MAX,
    LAZY_SHARE,
    RESERVE_RECORDS,
    JournalOptions,
)
from octavo.runtime.invariant import invariant


class JournalQueue:
    """Items of one stream that were submitted, until they are answered."""

    def __init__(self, options: JournalOptions) -> None:
        self._options = options
        self._items: deque[JournalItem] = deque()  # the loop appends, the commit thread pops
        self._urgent_in = 0  # items that are not lazy, ever submitted; written by the loop
        self._urgent_out = 0  # of these, ever taken; written by the commit thread
        self.closed = False
        """Nothing more is submitted; written by the loop."""
        self.refusing = False
        """The stream has stopped for good and has room for nothing; written by the loop."""
        self.queued_records = 0
        """Submitted and not answered yet; written by the loop, like the next one."""
        self.queued_bytes = 0

    # --- the loop's side --------------------------------------------------------------------

    def has_room(
        self, records: int, nbytes: int, *, reserve: bool = False, lazy: bool = False
    ) -> bool:
        """True if an item of this size may be submitted now (B-9)."""
        options = self._options
        most = options.queue_max_records
        if lazy:
            most = int(most * LAZY_SHARE)
        elif reserve:
            most += RESERVE_RECORDS
        return (
            not self.refusing
            and self.queued_records + records <= most
            and self.queued_bytes + nbytes <= options.queue_max_bytes * (2 if reserve else 1)
        )

    def fill(self) -> float:
        """How full the queue is, 0..1."""
        options = self._options
        return max(
            self.queued_records / options.queue_max_records,
            self.queued_bytes / options.queue_max_bytes,
        )

    def submit(self, item: JournalItem) -> bool:
        """Queue an item, for which `has_room()` said yes; True if the commit thread must wake.

        Order of calls is order on disk. A lazy item waits for the next group, `idle_mark_s` at
        most; many of them make a group.
        """
        self.queued_records += item.records
        self.queued_bytes += item.nbytes
        items = self._items
        items.append(item)
        if item.lazy:
            # The first one starts the timer, for an idle stream sleeps without one.
            return len(items) in (1, LAZY_ITEMS_MAX)
        self._urgent_in += 1
        return self._urgent_in - self._urgent_out == 1  # else it is awake, or rung for

    def settle(self, items: Sequence[JournalItem]) -> None:
        """These items are answered, and take no room any more."""
        for item in items:
            self.queued_records -= item.records
            self.queued_bytes -= item.nbytes

    # --- the commit thread's side -----------------------------------------------------------

    def __len__(self) -> int:
        return len(self._items)

    def take(
        self, room_bytes: int, *, when_due: bool = False
    ) -> tuple[list[JournalItem], int, int]:
        """The next items in order, with their records and bytes: as many as fit, one at least.

        With `when_due` none while nothing of it should be written without waiting for more: only
        lazy items wait, not many of them, and the stream goes on.
        """
        if (
            when_due
            and self._urgent_in == self._urgent_out
            and not self.closed
            and len(self._items) < LAZY_ITEMS_MAX
        ):
            return [], 0, 0
        queue = self._items
        items: list[JournalItem] = []
        records = nbytes = 0
        while queue and (not items or nbytes + queue[0].nbytes <= room_bytes):
            item = queue.popleft()
            records += item.records
            nbytes += item.nbytes
            if not item.lazy:
                self._urgent_out += 1
            items.append(item)
        return items, records, nbytes

    def validate(self) -> None:
        """Raises InvariantViolation when the counters contradict each other."""
        invariant(self._urgent_out <= self._urgent_in, "more was taken than submitted")
        invariant(self.queued_records >= 0, f"{self.queued_records} records are queued")
        invariant(self.queued_bytes >= 0, f"{self.queued_bytes} bytes are queued")
