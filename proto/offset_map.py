"""The last offset of each key of a stretch of a log, in bounded memory. Pure.

A broker's cleaner (`serving/compaction`) and compacted reads of Spark decide by it. Keys are kept
whole, in Arrow columns: a hash of them could take one key for another, and that would delete a
record that nobody wrote again. What comes is gathered and merged when it is about half as much as
what is there, so that the work for each record does not grow with the map.
"""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("offset", pa.int64())])
_MERGE_BYTES_MIN = 1 << 20


class OffsetMap:
    """Last offsets by key.

    Args:
        memory_bytes: of keys and offsets; merging and looking up need up to three times as much
            for a moment. At least one offer is always taken.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._merged: pa.Table = _SCHEMA.empty_table()
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._keys: pa.Array | None = None
        self._offsets: pa.Array | None = None

    def __len__(self) -> int:
        """Distinct keys."""
        self._merge()
        return len(self._merged)

    @property
    def size_bytes(self) -> int:
        """What keys and offsets take; keys that came again since the last merge count twice."""
        return self._merged.nbytes + self._gathered_bytes

    def offer(self, keys: pa.Array, offsets: pa.Array) -> bool:
        """Take these in, none of them null, or none when the map is full; whether they were."""
        if not len(keys):
            return True
        found = _last_of_each(pa.Table.from_arrays([keys, offsets], schema=_SCHEMA))
        if self._is_full(found):
            self._merge()
            if len(self._merged) and self._is_full(found):
                return False
        self._gather(found)
        return True

    def add(self, keys: pa.Array, offsets: pa.Array) -> bytes | None:
        """Take these in, none of them null, and forget the keys from a certain one on if need be.

        Returns that key; None when all are remembered. One key is always remembered.
        """
        if not len(keys):
            return None
        self._gather(_last_of_each(pa.Table.from_arrays([keys, offsets], schema=_SCHEMA)))
        if self.size_bytes <= self._memory_bytes:
            return None
        self._merge()
        above: bytes | None = None
        while self._merged.nbytes > self._memory_bytes and len(self._merged) > 1:
            above = self._forget_half()
        return above

    def _forget_half(self) -> bytes:
        """Forget the greater half of the keys; the least of those."""
        column = self._merged.column("key")
        middle = pc.sort_indices(column)[len(column) // 2]
        above = column[middle.as_py()]
        # Taken together anew: what a filter leaves may still hold the memory of what it dropped.
        self._merged = self._merged.filter(pc.less(column, above)).combine_chunks()
        self._keys = self._offsets = None
        return cast("bytes", above.as_py())

    def _gather(self, found: pa.Table) -> None:
        self._gathered.append(found)
        self._gathered_bytes += found.nbytes
        if self._gathered_bytes > max(self._merged.nbytes // 2, _MERGE_BYTES_MIN):
            self._merge()

    def offsets(self) -> pa.Array:
        """The last offsets of all keys, ascending."""
        self._merge()
        found = _whole(self._merged.column("offset"), pa.int64())
        return found.take(pc.sort_indices(found))

    def _is_full(self, more: pa.Table) -> bool:
        return self.size_bytes + more.nbytes > self._memory_bytes

    def _merge(self) -> None:
        if self._gathered:
            self._merged = _last_of_each(pa.concat_tables([self._merged, *self._gathered]))
            self._gathered, self._gathered_bytes = [], 0
            self._keys = self._offsets = None

    def last_offsets(self, keys: pa.Array) -> pa.Array:
        """The last offset of each of `keys`; null where the map does not know it."""
        self._merge()
        if self._keys is None or self._offsets is None:
            self._keys = _whole(self._merged.column("key"), pa.binary())
            self._offsets = _whole(self._merged.column("offset"), pa.int64())
        return self._offsets.take(pc.index_in(keys, value_set=self._keys))


def _last_of_each(rows: pa.Table) -> pa.Table:
    # One thread: a cleaner shares the machine with those who serve.
    found = rows.group_by("key", use_threads=False).aggregate([("offset", "max")])
    columns = [found.column("key"), found.column("offset_max")]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], kind)
