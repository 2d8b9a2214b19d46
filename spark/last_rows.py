"""Compacted reads: of each key of a partition the last row, before anything crosses to Spark's JVM.

What a broker's cleaner leaves of a log that is all dirty (spec groups K4, K5), of any range of any
topic (ADR 73). One task reads a partition twice: keys and offsets first, which tells the offsets
that are left, then the columns that were asked for, of those pieces only that hold one of them.

Memory is bounded: where the keys of a partition need more, the greater ones are put off and their
rows are read in another round. So the result is the same with any memory. What has no key stays:
nothing says that it was replaced.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.exports.arrow_files import Rebatcher
from octavo.client.exports.columns import int_at
from octavo.proto.offset_map import OffsetMap
from octavo.spark.plan import CompactedSplit, Split, narrow

MEMORY_BYTES = 128 << 20
"""Of the keys of one round and their offsets; learning needs up to three times as much for a
moment, and a worker of Spark runs one task at a time."""

ReadPiece = Callable[[Split, Sequence[str]], Iterator[pa.RecordBatch]]


class Span(NamedTuple):
    """The offsets [first, end) that rows without a key lie in; there may be others between."""

    first: int
    end: int

    def with_rows(self, offsets: pa.Array) -> Self:
        """The same and some more offsets, which ascend."""
        if not len(offsets):
            return self
        first, end = int_at(offsets, 0), int_at(offsets, -1) + 1
        if self.first == self.end:
            return self._replace(first=first, end=end)
        return self._replace(first=min(self.first, first), end=max(self.end, end))


class Left(NamedTuple):
    """What one round leaves."""

    offsets: pa.Array
    """Ascending: the last one of each of its keys."""
    without_key: Span
    """Rows that have no key belong to the first round."""

    def within(self, first: int, end: int) -> tuple[int, int]:
        """The part of [first, end) that holds all that is left there; equal numbers: nothing."""
        offsets = self._slice(first, end)
        span = Span(max(first, self.without_key.first), min(end, self.without_key.end))
        if span.first >= span.end:
            span = Span(first, first)
        low, high = span.with_rows(offsets)
        return low, high

    def keeps(self, rows: pa.RecordBatch) -> pa.Array:
        """Of each row whether it is left; its column `key` is looked at when rows lack one."""
        offsets = rows.column("offset")
        mine = self._slice(int_at(offsets, 0), int_at(offsets, -1) + 1)
        keep = pc.is_in(offsets, value_set=mine)
        if self.without_key.first < self.without_key.end:
            keep = pc.or_(keep, rows.column("key").is_null())
        return keep

    def _slice(self, first: int, end: int) -> pa.Array:
        def at(index: int) -> int:
            return int_at(self.offsets, index)

        places = range(len(self.offsets))
        low = bisect_left(places, first, key=at)
        return self.offsets.slice(low, bisect_left(places, end, lo=low, key=at) - low)


class Round:
    """One pass over the keys of a partition, from the key `start` on as far as memory goes.

    Args:
        start: keys below it were dealt with in earlier rounds; None in the first.
        memory_bytes: of keys and offsets; one key always fits.
    """

    def __init__(self, start: bytes | None, memory_bytes: int) -> None:
        self._start = start
        self.end: bytes | None = None
        """Keys from it on are left to the next round; None: there is no next one."""
        self._map = OffsetMap(memory_bytes)
        self._without_key = Span(0, 0)

    def learn(self, rows: pa.RecordBatch) -> None:
        """Take in `key` and `offset` of rows; later ones have greater offsets."""
        keys, offsets = rows.column("key"), rows.column("offset")
        fits = keys.is_valid()
        if self._start is None:
            self._without_key = self._without_key.with_rows(offsets.filter(pc.invert(fits)))
        else:
            fits = pc.and_(fits, pc.greater_equal(keys, pa.scalar(self._start, pa.binary())))
        if self.end is not None:
            fits = pc.and_(fits, pc.less(keys, pa.scalar(self.end, pa.binary())))
        end = self._map.add(keys.filter(fits), offsets.filter(fits))
        self.end = self.end if end is None else end

    def left(self) -> Left:
        """After the last row."""
        return Left(self._map.offsets(), self._without_key)


def read_compacted(
    split: CompactedSplit,
    columns: Sequence[str],
    read: ReadPiece,
    *,
    memory_bytes: int = MEMORY_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The named columns of the last row of each key, and of all rows that have none.

    Rows come by ranges of keys and in each by offset. Raises what `read` raises.
    """
    start: bytes | None = None
    while True:
        this = Round(start, memory_bytes)
        for piece in split.pieces:
            for rows in read(piece, ("key", "offset")):
                this.learn(rows)
        left, start = this.left(), this.end
        del this  # its keys: from here on offsets are enough
        yield from _rows(split, columns, read, left)
        if start is None:
            return


def _rows(
    split: CompactedSplit, columns: Sequence[str], read: ReadPiece, left: Left
) -> Iterator[pa.RecordBatch]:
    also = ["offset"]
    if split.drop_tombstones:
        also += ["key", "value"]
    elif left.without_key.first < left.without_key.end:
        also.append("key")
    need = tuple(dict.fromkeys((*columns, *also)))
    rebatcher = Rebatcher()
    for piece in split.pieces:
        first, end = left.within(piece.first, piece.end)
        if first == end:
            continue
        for rows in read(narrow(piece, first, end), need):
            keep = left.keeps(rows)
            if split.drop_tombstones:
                lives = rows.column("value").is_valid()
                keep = pc.and_(keep, pc.or_(lives, rows.column("key").is_null()))
            yield from rebatcher.add(rows.filter(keep).select(list(columns)))
    yield from rebatcher.flush()
