"""The tail of owned partitions in memory, and the budget idea both caches share (BP-1, F077). Pure.

`TailCache` holds the newest durable batches of every partition of this broker under one byte limit.
What entered first leaves first, across partitions: readers never change the order, so a backlog
reader cannot evict the tail (F078). A partition's batches in it are always a contiguous run that
ends at its high watermark.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from typing import NamedTuple

from octavo.runtime.checksum import Buffer
from octavo.runtime.invariant import invariant

_ITEM_OVERHEAD_BYTES = 120
"""Python objects around one cached batch; counted, so that tiny batches cannot exceed the limit."""
_COMPACT_AT = 1024


class TailRead(NamedTuple):
    """Batches found in the cache."""

    batches: list[bytes]
    next_offset: int
    size_bytes: int


class PartitionTail:
    """The cached run of one partition; made by `TailCache.tail`."""

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._ends: list[int] = []
        self._batches: list[bytes] = []
        self._total: list[int] = []  # payload bytes appended up to and including this batch
        self._head = 0  # index of the first batch still cached
        self._appended = 0
        self.closed = False

    def __len__(self) -> int:
        return len(self._bases) - self._head

    @property
    def start_offset(self) -> int | None:
        """The lowest cached offset."""
        return self._bases[self._head] if len(self) else None

    def append(self, base_offset: int, end_offset: int, batch: bytes) -> None:
        """Add a batch that became durable; it follows the last one."""
        if self.closed:
            return
        invariant(not len(self) or base_offset == self._ends[-1], "the tail cache has no holes")
        self._appended += len(batch)
        self._bases.append(base_offset)
        self._ends.append(end_offset)
        self._batches.append(batch)
        self._total.append(self._appended)
        self._cache.entered(self, len(batch))

    def holds(self, offset: int) -> bool:
        """Whether the batch with `offset` is cached."""
        return len(self) > 0 and self._bases[self._head] <= offset < self._ends[-1]

    def bytes_from(self, offset: int) -> int:
        """Cached payload bytes from the batch with `offset` to the end."""
        at = self._find(offset)
        return self._appended - self._total[at] + len(self._batches[at])

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> TailRead:
        """Whole batches from the one with `offset` on; the bytes are shared, not copied."""
        at = self._find(offset)
        before = self._total[at] - len(self._batches[at])
        end = bisect_right(self._total, before + max_bytes, lo=at)
        if end == at and at_least_one:
            end = at + 1
        if end == at:
            return TailRead([], offset, 0)
        return TailRead(self._batches[at:end], self._ends[end - 1], self._total[end - 1] - before)

    def _find(self, offset: int) -> int:
        return max(self._head, bisect_right(self._bases, offset, lo=self._head) - 1)

    def drop_oldest(self) -> int:
        """Forget the first batch; returns its accounted size."""
        size = len(self._batches[self._head])
        self._batches[self._head] = b""
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 >= len(self._bases):
            for column in (self._bases, self._ends, self._batches, self._total):
                del column[: self._head]
            self._head = 0
        return size + _ITEM_OVERHEAD_BYTES

    def drop_below(self, offset: int) -> None:
        """Forget the batches that end by `offset`: what the log holds there is something else."""
        count = size = 0
        while len(self) and self._ends[self._head] <= offset:
            size += self.drop_oldest()
            count += 1
        if count:
            self._cache.dropped(self, count, size)

    def close(self) -> None:
        """Give all bytes back; the partition is unloaded."""
        self.closed = True
        cached = self._batches[self._head :]
        self._cache.left(sum(map(len, cached)), len(cached))
        self._bases, self._ends, self._batches, self._total = [], [], [], []
        self._head = 0


class TailCache:
    """One byte limit over the tails of all partitions."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._order: deque[PartitionTail] = (
            deque()
        )  # one element for each cached batch, oldest first

    def tail(self) -> PartitionTail:
        """The tail of a newly loaded partition."""
        return PartitionTail(self)

    def entered(self, tail: PartitionTail, size: int) -> None:
        """A batch was appended to `tail`; evict the oldest of all until the limit holds."""
        self.used_bytes += size + _ITEM_OVERHEAD_BYTES
        self._order.append(tail)
        while self.used_bytes > self.limit_bytes and self._order:
            oldest = self._order.popleft()
            if not oldest.closed:
                self.used_bytes -= oldest.drop_oldest()

    def dropped(self, tail: PartitionTail, batches: int, size: int) -> None:
        """The oldest `batches` of `tail`, of `size` accounted bytes together, were given back."""
        self.used_bytes -= size
        order: deque[PartitionTail] = deque()
        for one in self._order:
            if one is tail and batches:
                batches -= 1
            else:
                order.append(one)
        self._order = order

    def left(self, size: int, batches: int) -> None:
        """`batches` of `size` bytes together were given back by a closed tail."""
        self.used_bytes -= size + batches * _ITEM_OVERHEAD_BYTES
        self._order = deque(tail for tail in self._order if not tail.closed)


class ColdCache:
    """Recently read entries of closed or old segments, least recently used leave first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._entries: OrderedDict[tuple[int, int], Buffer] = OrderedDict()

    def put(self, ledger_id: int, entry_id: int, payload: Buffer) -> None:
        """Remember one entry's payload."""
        key = (ledger_id, entry_id)
        if key in self._entries:
            self._entries.move_to_end(key)
            return
        self._entries[key] = payload
        self.used_bytes += len(payload) + _ITEM_OVERHEAD_BYTES
        while self.used_bytes > self.limit_bytes and self._entries:
            _, gone = self._entries.popitem(last=False)
            self.used_bytes -= len(gone) + _ITEM_OVERHEAD_BYTES

    def get(self, ledger_id: int, entry_id: int) -> Buffer | None:
        """The payload, when still remembered."""
        key = (ledger_id, entry_id)
        payload = self._entries.get(key)
        if payload is not None:
            self._entries.move_to_end(key)
        return payload
