"""Records waiting to be sent: per-partition batches, closed by size or time (F037).

Appending works from any thread under `lock`; batches are taken on the loop. Memory is bounded by
`buffer_memory`: the bytes of a record count until its batch is acknowledged or failed.

Signal handlers and finalisers may run between any two calls of a section, also raise there (Ctrl-C)
or let other threads in for a while (`sections`). So a record goes in by steps between which nothing
is called, after a last look at whether the batch is still the open one; everything else is done in
an order in which each step leaves the state whole. An open batch without a record belongs to the
interrupted section that made it: it is not due, not closed, not taken and not waited for.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from octavo.client.messaging.producing.batches import (
    ALL_COPIES,
    MAX_BATCH_RECORDS,
    Batch,
    Cell,
    Columns,
    Row,
    Span,
)
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.in_flight import Partition
from octavo.client.messaging.producing.sections import Section
from octavo.client.messaging.producing.terms import Terms

GROWN_BYTES_MAX = 512 * 1024
GROWN_BATCHES_MAX = 8
"""While full batches wait for their partition's window, the open one grows up to this size and this
many times `batch_size`: with five in flight, small ones would leave the disk waiting for round
trips."""
EMPTY_LOOK_S = 0.001
"""When an open batch that had no record yet is looked at again."""


class Slot:
    """One partition's place in the accumulator: at most one open batch, then closed ones."""

    __slots__ = (
        "closed",
        "delivery",
        "full_bytes",
        "grown_bytes_max",
        "open",
        "partition",
        "topic",
    )

    def __init__(self, delivery: Partition) -> None:
        self.topic = delivery.topic
        self.partition = delivery.partition
        self.delivery = delivery
        """The same partition's state in the delivery core."""
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.full_bytes = 0
        """Size at which a batch is full; 0: `batch_size`. Less when the topic takes less."""
        self.grown_bytes_max = 0
        """How large the open batch may grow while others wait, for more of them would only wait
        too; 0: not beyond `full_bytes`."""

    def fills_up_to(self, batch_size: int) -> int:
        """The size up to which the open batch may be filled now."""
        full_bytes = self.full_bytes or batch_size
        return max(full_bytes, self.grown_bytes_max) if self.closed else full_bytes

    @property
    def waiting(self) -> int:
        """Batches not yet resolved (adaptive sticky choice, P5)."""
        return len(self.closed) + (self.open is not None) + len(self.delivery.in_flight)


class Accumulator:
    """All slots of one producer.

    The caller of any method holds `lock`, except for `finished`. Invariants: `free_bytes` plus the
    size of all pending batches is `buffer_memory`; a slot with closed batches or a due open one is
    in `ready`.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        linger_s: float,
        buffer_memory: int,
        now_s: Callable[[], float],
        resolver: int = 0,
        terms: Terms = ALL_COPIES,
    ) -> None:
        section = Section()
        self.section = section
        self.lock = section.lock
        self.mine = section.mine
        """Whether the caller interrupted this thread's own section."""
        self.resolver = resolver
        """Ident of the thread on whose loop batches are resolved."""
        self.space = threading.Condition(self.lock)
        self.terms = terms
        """Of records that say nothing of their own."""
        self.batch_size = batch_size
        self.free_bytes = buffer_memory
        self.buffer_memory = buffer_memory
        self.pending: dict[Batch, None] = {}
        self.ready: dict[Slot, None] = {}
        self.wake_wanted = False
        """Set when the loop must look: a batch is ready or the first linger timer is needed."""
        self.timer_armed = False
        self._linger_s = linger_s
        self._now_s = now_s
        self._linger: dict[Slot, float] = {}
        """Slots with an open batch that lingers, earliest deadline first."""
        self._space_waiters: dict[Callable[[], object], None] = {}

    # --- appending, any thread, lock held ------------------------------------------------------

    def append(self, slot: Slot, row: Row, terms: Terms | None = None) -> SendFuture:
        """Add one record whose size was checked to fit; `terms`: None, as the producer's."""
        terms = self.terms if terms is None else terms
        timestamp_ms, key, value, headers, size_bytes = row
        cells = (timestamp_ms, key, value, headers)
        full_bytes = slot.full_bytes or self.batch_size
        while True:
            batch = slot.open
            if batch is None:
                self._open(slot, terms)
                continue
            index = batch.count
            size = batch.size_bytes + size_bytes
            limit = full_bytes
            if slot.closed and slot.grown_bytes_max > limit:
                limit = slot.grown_bytes_max
            if batch.terms is not terms:
                if index:
                    self.close_open(slot)  # a batch has one promise (F032)
                else:
                    batch.terms = terms  # its section was interrupted before its first record
                continue
            if index and (size > limit or index >= MAX_BATCH_RECORDS or terms.once):
                self.close_open(slot)
                continue
            # Nothing is called since `slot.open` was read, nor before the record is in.
            batch.count = index + 1
            batch.size_bytes = size
            self.free_bytes -= size_bytes
            if headers:
                batch.has_headers = True
            batch.cells += cells
            break
        if size >= limit or terms.once:
            self.close_open(slot)
        elif size >= full_bytes and not batch.due:
            self.expedite(slot, batch)
        return SendFuture(batch, index)

    def limit_bytes(self, slot: Slot) -> int:
        """The size up to which the open batch may be filled now."""
        return slot.fills_up_to(self.batch_size)

    def append_many(self, slot: Slot, rows: Columns, terms: Terms | None = None) -> list[Span]:
        """Add columns to one partition, cutting batches by size without a loop over records.

        `terms`: None, as the producer's. Records with ids are a batch each (X14).
        """
        terms = self.terms if terms is None else terms
        most = 1 if terms.once else MAX_BATCH_RECORDS
        ends = list(accumulate(rows.sizes))
        spans: list[Span] = []
        start, total = 0, len(ends)
        while start < total:
            batch = slot.open
            if batch is None:
                self._open(slot, terms)
                continue
            if batch.terms is not terms:
                if batch.count:
                    self.close_open(slot)
                else:
                    batch.terms = terms
                continue
            count, size_bytes = batch.count, batch.size_bytes
            before = ends[start - 1] if start else 0
            room = max(self.limit_bytes(slot) - size_bytes, 0)
            stop = min(bisect_right(ends, before + room), start + most - count)
            if stop <= start:
                if count:
                    self.close_open(slot)
                    continue
                stop = start + 1  # a record larger than the limit goes alone
            part = rows if (start, stop) == (0, total) else rows.part(start, stop)
            parts, cells = batch.parts_with(part), list[Cell]()
            taken = ends[stop - 1] - before
            if slot.open is not batch or (batch.count, batch.terms) != (count, terms):
                continue  # an interruption let others go on
            batch.parts, batch.cells = parts, cells
            batch.count = count + stop - start
            batch.size_bytes = size_bytes + taken
            self.free_bytes -= taken
            if part.headers is not None:
                batch.has_headers = True
            spans.append(Span(batch, count, stop - start))
            start = stop
            if batch.size_bytes >= self.limit_bytes(slot) or terms.once:
                self.close_open(slot)
            elif batch.size_bytes >= (slot.full_bytes or self.batch_size) and not batch.due:
                self.expedite(slot, batch)
        return spans

    def append_made(self, slot: Slot, batch: Batch) -> None:
        """Add a batch that is complete already (Arrow columns), behind what the slot holds."""
        batch.resolver = self.resolver
        self.close_open(slot)
        made = (batch,)
        self.pending[batch] = None
        self.free_bytes -= batch.size_bytes
        slot.closed += made
        self.ready[slot] = None
        self.wake_wanted = True

    def _open(self, slot: Slot, terms: Terms) -> None:
        now_s = self._now_s()
        batch = Batch(slot.topic, slot.partition, now_s, self.resolver, terms)
        if slot.open is None:
            slot.open = batch
            self.pending[batch] = None
            self._linger[slot] = now_s + self._linger_s
            if not self.timer_armed:
                self.wake_wanted = True

    def close_open(self, slot: Slot) -> None:
        """Move the open batch to the closed ones."""
        batch = slot.open
        if batch is None or not batch.count:
            return
        closing = (batch,)
        if slot.open is batch:
            slot.closed += closing
            slot.open = None
            if slot in self._linger:
                del self._linger[slot]
            self.ready[slot] = None
            self.wake_wanted = True

    def expedite(self, slot: Slot, batch: Batch) -> None:
        """Send `batch` as soon as the partition has room, without lingering."""
        if slot.open is batch and batch.count:
            batch.due = True
            self.ready[slot] = None
            self.wake_wanted = True

    def expedite_all(self) -> None:
        """The same for every open batch (flush, memory pressure)."""
        for slot in list(self._linger):
            batch = slot.open
            if batch is not None:
                self.expedite(slot, batch)

    # --- taking, on the loop, lock held --------------------------------------------------------

    def mark_due(self, now_s: float) -> float | None:
        """Mark batches whose linger time is over; returns when the next one will be."""
        due: list[Slot] = []
        following: float | None = None
        for slot, deadline_s in self._linger.items():
            batch = slot.open
            if batch is not None and not batch.count:
                following = now_s + EMPTY_LOOK_S if following is None else following
            elif deadline_s > now_s:
                following = deadline_s if following is None else min(following, deadline_s)
                break
            else:
                due.append(slot)
        for slot in due:
            del self._linger[slot]
            if slot.open is not None:
                slot.open.due = True
                self.ready[slot] = None
        return following

    def take(self, slot: Slot) -> Batch | None:
        """The next batch of `slot` to send; the slot leaves `ready` when no other follows."""
        batch = None
        if slot.closed:
            batch = slot.closed.popleft()
        elif slot.open is not None and slot.open.due:
            batch = slot.open
            slot.open = None
            self._linger.pop(slot, None)
        # Nothing is called between this look and the slot's leaving: an interruption may append.
        following = slot.open
        if not slot.closed and (following is None or not following.due):
            self.ready.pop(slot, None)
        return batch

    def take_expired(self, created_before_s: float) -> list[Batch]:
        """Remove batches that were never sent and are older than the delivery timeout (I4)."""
        out: list[Batch] = []
        for slot in list(self.ready):
            while slot.closed and slot.closed[0].created_s <= created_before_s:
                out.append(slot.closed.popleft())
            batch = slot.open
            if slot.closed or batch is None or not batch.count:
                continue
            if batch.created_s <= created_before_s:
                out.append(batch)
                slot.open = None
                self._linger.pop(slot, None)
        return out

    def waiting(self) -> list[Batch]:
        """Batches that are neither acknowledged nor failed and hold a record."""
        return [batch for batch in list(self.pending) if batch.count]

    def take_slots(self, slots: Iterable[Slot]) -> list[Batch]:
        """Remove every batch of these slots that was not taken yet (their topic is gone)."""
        out: list[Batch] = []
        for slot in slots:
            out += [*slot.closed, *self._take_open(slot)]
            slot.closed.clear()
            self.ready.pop(slot, None)
            self._linger.pop(slot, None)
        return out

    def take_all(self) -> list[Batch]:
        """Remove every batch not yet taken (the producer failed or is closed)."""
        out: list[Batch] = []
        for slot in {*self._linger, *self.ready}:
            out += [*slot.closed, *self._take_open(slot)]
            slot.closed.clear()
        self.ready.clear()
        self._linger.clear()
        return out

    def _take_open(self, slot: Slot) -> tuple[Batch, ...]:
        """The open batch; one without a record is dropped, its section makes another."""
        batch, slot.open = slot.open, None
        if batch is None or batch.count:
            return () if batch is None else (batch,)
        self.pending.pop(batch, None)
        return ()

    # --- memory ---------------------------------------------------------------------------------

    def on_space(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when memory was freed; lock held."""
        self._space_waiters[callback] = None

    def off_space(self, callback: Callable[[], object]) -> None:
        """Its caller waits no longer; takes no lock."""
        self._space_waiters.pop(callback, None)

    def finished(self, batches: Sequence[Batch]) -> None:
        """Give back the memory of batches that are done; takes the lock itself."""
        with self.lock:
            for batch in batches:
                if batch in self.pending:
                    del self.pending[batch]
                    self.free_bytes += batch.size_bytes
                    batch.release()
            waiters, self._space_waiters = self._space_waiters, {}
            self.space.notify_all()
        for waiter in waiters:
            waiter()

    def pending_records(self) -> int:
        """Records neither acknowledged nor failed; lock held."""
        return sum(batch.count for batch in list(self.pending))
