"""One pass over the log of a partition: which records stay (spec groups K4-K6, K8). Pure.

First the pass learns the keys of what is dirty, from `dirty_from` on, until its memory is full;
there is its end. Then it is shown the log from its start up to that end, and gives back what is
left of each batch. A record goes when its key comes again below the end. Memory that is too small
for all keys makes the stretch shorter and never changes what is decided: the next pass goes on
there.

What has no key stays: nothing says that it was replaced. Control batches stay (K6): markers go with
transactions, which do not exist yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from octavo.proto.batch import BatchFlags, BatchHeader, decode_header
from octavo.proto.batch_arrow import KeyColumns, join_keys
from octavo.proto.compacted import without_records
from octavo.proto.offset_map import OffsetMap
from octavo.runtime.checksum import Buffer
from octavo.runtime.invariant import invariant

Verified = tuple[Buffer, BatchHeader]
"""A batch whose crc was checked."""


class Scope(NamedTuple):
    """What one pass is about."""

    log_start: int
    """Records below it are deleted already."""
    dirty_from: int
    """Everything below it is clean."""
    end: int
    """Where the cleanable range ends (K2)."""
    tombstones_below: int
    """Tombstones below it were kept for long enough (K5); never above `dirty_from`."""


class Left(NamedTuple):
    """A batch of which something is left."""

    payload: Buffer
    header: BatchHeader


class Cleaning:
    """One pass.

    Args:
        memory_bytes: of the map of offsets.
    """

    def __init__(self, scope: Scope, memory_bytes: int) -> None:
        invariant(
            scope.tombstones_below <= max(scope.dirty_from, scope.log_start),
            "a tombstone goes in a later pass than the one that first covers it",
        )
        self.scope = scope
        self.end = scope.end
        """Where this pass ends: below the scope's end when the map was full before."""
        self.is_full = False
        self.records_seen = 0
        self.records_removed = 0
        self._map = OffsetMap(memory_bytes)

    @property
    def keys(self) -> int:
        """Distinct keys learned."""
        return len(self._map)

    def learn(self, batches: Sequence[Verified]) -> bool:
        """Take in dirty batches in order; False: the pass ends before them, and learns no more.

        Raises CorruptBatch.
        """
        wanted = [one for one in batches if not _is_control(one[1])]
        if not wanted:
            return True
        columns = join_keys(wanted)
        scope = self.scope
        fits = pc.and_(
            pc.and_(
                pc.greater_equal(columns.offsets, max(scope.dirty_from, scope.log_start)),
                pc.less(columns.offsets, scope.end),
            ),
            columns.keys.is_valid(),
        )
        if self._map.offer(columns.keys.filter(fits), columns.offsets.filter(fits)):
            return True
        self.is_full = True
        self.end = wanted[0][1].base_offset
        return False

    def clean(self, batches: Sequence[Verified]) -> list[Left]:
        """What is left of these batches, in order; raises CorruptBatch.

        A batch that keeps all of its records comes back as the bytes it was.
        """
        wanted = [one for one in batches if not _is_control(one[1])]
        if not wanted:
            return [Left(*one) for one in batches]
        keep = self._keep(join_keys(wanted))
        ends = pc.cumulative_sum(keep.cast(pa.int64()))
        left: list[Left] = []
        row = before = 0
        for batch, header in batches:
            if _is_control(header):
                left.append(Left(batch, header))
                continue
            count = header.record_count
            row += count
            upto = int(ends[row - 1].as_py())
            kept, before = upto - before, upto
            self.records_seen += count
            self.records_removed += count - kept
            if kept == count:
                left.append(Left(batch, header))
            elif kept:
                made = without_records(batch, header, keep.slice(row - count, count))
                left.extend(Left(one, decode_header(one)) for one in made)
        return left

    def removes(self, batches: Sequence[Verified]) -> bool:
        """Whether any of these loses a record; raises CorruptBatch."""
        wanted = [one for one in batches if not _is_control(one[1])]
        return bool(wanted) and not pc.all(self._keep(join_keys(wanted))).as_py()

    def _keep(self, columns: KeyColumns) -> pa.Array:
        """Of each record whether it stays (K4, K5)."""
        offsets, scope = columns.offsets, self.scope
        last = self._map.last_offsets(columns.keys)
        superseded = pc.fill_null(pc.less(offsets, last), False)
        gone = pc.less(offsets, scope.log_start)
        if scope.tombstones_below:
            old = pc.less(offsets, scope.tombstones_below)
            gone = pc.or_(gone, pc.and_(pc.and_(columns.deleted, columns.keys.is_valid()), old))
        return pc.invert(pc.or_(superseded, gone))


def _is_control(header: BatchHeader) -> bool:
    return bool(header.flags & BatchFlags.CONTROL)
