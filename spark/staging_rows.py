"""Rows on their way into pieces: which partition, which piece. Pure, over columns (ADR 67)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.messaging.partitioner import KeyHashes
from octavo.client.messaging.producing.batches import RECORD_OVERHEAD_BYTES
from octavo.proto.batch_arrow import HEADER_TYPE
from octavo.runtime.errors import InvalidPartition, InvalidRecord, MessageTooLarge
from octavo.spark.sink_options import SinkColumns
from octavo.spark.sink_rows import Portion
from octavo.spark.staged import PIECE_BYTES, Target, rows_of

OPEN_BYTES_MAX = 32 << 20
"""Of rows that wait for others of their partition; beyond, the fullest piece is ended."""


@dataclass(frozen=True)
class TopicTerms:
    """What a topic takes."""

    name: str
    topic_id: bytes
    partitions: int
    writable: Sequence[int]
    record_bytes_max: int
    """Of rows that are staged before: less than the topic would take, where that is the most."""
    batch_bytes_max: int
    needs_keys: bool = False
    """It is compacted: a record without a key is refused (K1)."""

    @property
    def piece_bytes(self) -> int:
        """How much one batch of records may be."""
        return max(min(PIECE_BYTES, self.batch_bytes_max // 2), 1)


class Pieces:
    """Gathers the rows of one task by partition.

    `terms` tells what a topic takes; `keyless(count)` chooses one of so many partitions.
    """

    def __init__(
        self,
        columns: SinkColumns,
        terms: Callable[[str], TopicTerms],
        keyless: Callable[[int], int],
    ) -> None:
        self._columns = columns
        self._terms = terms
        self._keyless = keyless
        self._hashes = KeyHashes()
        self._open: dict[Target, list[pa.RecordBatch]] = {}
        self._open_bytes: dict[Target, int] = {}

    def add(self, portion: Portion) -> Iterator[tuple[Target, pa.RecordBatch]]:
        """Take rows over; gives the pieces that are complete.

        Raises InvalidPartition, InvalidRecord, MessageTooLarge: the rows can never be stored.
        """
        terms = self._terms(portion.topic)
        rows, columns = portion.rows, self._columns
        nothing = pa.nulls(rows.num_rows, pa.binary())
        keys = nothing if columns.key is None else rows.column(columns.key)
        headers = pa.nulls(rows.num_rows, HEADER_TYPE)
        if columns.headers is not None:
            headers = rows.column(columns.headers)
        taken = rows_of(keys, rows.column(columns.value), headers)
        sizes = _sizes(taken)
        self._check(terms, portion.partition, taken, sizes)
        for partition, index in self._routed(terms, portion.partition, taken):
            target = Target(terms.name, terms.topic_id, partition)
            part, part_sizes = taken, sizes
            if index is not None:
                part, part_sizes = taken.take(index), sizes.take(index)
            yield from self._gathered(target, part, part_sizes.to_pylist(), terms.piece_bytes)
        while sum(self._open_bytes.values()) > OPEN_BYTES_MAX:
            yield self._ended(max(self._open_bytes, key=lambda of: self._open_bytes[of]))

    def rest(self) -> Iterator[tuple[Target, pa.RecordBatch]]:
        """The pieces that were not full."""
        for target in list(self._open):
            yield self._ended(target)

    @staticmethod
    def _check(
        terms: TopicTerms, partition: int | None, rows: pa.RecordBatch, sizes: pa.Array
    ) -> None:
        largest = pc.max(sizes).as_py() or 0
        limit = terms.record_bytes_max
        if largest - RECORD_OVERHEAD_BYTES > limit:
            raise MessageTooLarge(
                f"a row of {largest - RECORD_OVERHEAD_BYTES} bytes, {limit} are the limit of an "
                f"exactly-once write to topic {terms.name!r}",
                hint="raise max.message.bytes of the topic, up to that of such writes",
            )
        if terms.needs_keys and rows.column("key").null_count:
            raise InvalidRecord(
                f"topic {terms.name!r} is compacted, and {rows.column('key').null_count} rows have "
                "no key"
            )
        if partition is not None and partition not in terms.writable:
            raise InvalidPartition(
                f"topic {terms.name!r} has no partition {partition} that takes records",
                hint=f"it has {terms.partitions}; null lets the key choose",
            )

    def _routed(
        self, terms: TopicTerms, partition: int | None, rows: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.Array | None]]:
        """Rows of each partition, in their order: P1, keyless rows of one call together."""
        if partition is not None:
            yield partition, None
            return
        keys, writable = rows.column("key"), terms.writable
        sticky = writable[self._keyless(len(writable))]
        if keys.null_count == len(keys):
            yield sticky, None
            return
        distinct = keys.dictionary_encode()
        hashes = self._hashes.get_many(distinct.dictionary.to_pylist())
        chosen = pa.array([writable[hashed % len(writable)] for hashed in hashes], pa.int32())
        targets = pc.fill_null(chosen.take(distinct.indices), sticky)
        table = pa.table({"to": targets, "row": pa.array(range(len(keys)), pa.int64())})
        groups = table.group_by(["to"], use_threads=False).aggregate([("row", "list")])
        for group in groups.to_pylist():
            yield group["to"], pa.array(group["row_list"], pa.int64())

    def _gathered(
        self, target: Target, rows: pa.RecordBatch, sizes: list[int], piece_bytes: int
    ) -> Iterator[tuple[Target, pa.RecordBatch]]:
        ends: list[int] = []
        total = 0
        for size_bytes in sizes:
            total += size_bytes
            ends.append(total)
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            room = piece_bytes - self._open_bytes.get(target, 0)
            stop = bisect_right(ends, before + room)
            if stop <= start:
                if target in self._open:
                    yield self._ended(target)
                    continue
                stop = start + 1  # larger than a piece: alone
            self._open.setdefault(target, []).append(rows.slice(start, stop - start))
            added = ends[stop - 1] - before
            self._open_bytes[target] = self._open_bytes.get(target, 0) + added
            start = stop

    def _ended(self, target: Target) -> tuple[Target, pa.RecordBatch]:
        del self._open_bytes[target]
        return target, pa.concat_batches(self._open.pop(target))


def _sizes(rows: pa.RecordBatch) -> pa.Array:
    """What each row counts for, as the SDK counts it."""
    sizes = pa.repeat(pa.scalar(RECORD_OVERHEAD_BYTES, pa.int64()), rows.num_rows)
    for name in ("key", "value"):
        lengths = pc.fill_null(pc.binary_length(rows.column(name)), 0).cast(pa.int64())
        sizes = pc.add(sizes, lengths)
    headers = rows.column("headers")
    if headers.null_count == len(headers):
        return sizes
    items = headers.to_pylist()
    if any(pair is None or pair["key"] is None for item in items for pair in item or ()):
        raise InvalidRecord("a header of a row has no name")
    of_headers = [
        sum(len(pair["key"].encode()) + len(pair["value"] or b"") + 12 for pair in item or ())
        for item in items
    ]
    return pc.add(sizes, pa.array(of_headers, pa.int64()))
