"""Arrow columns on their way out, without a Python object per record (design.md §3).

Imported only by the first `send_arrow` (`api.arrow_access`): row-wise use never loads pyarrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from octavo.client.messaging.producing.batches import RECORD_OVERHEAD_BYTES, Batch
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.routing import TopicState
from octavo.client.messaging.producing.serializers import text_bytes
from octavo.client.messaging.producing.terms import Terms
from octavo.proto.batch_arrow import HEADER_TYPE, encode_arrow
from octavo.proto.compression import CODECS
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import ConfigError

_STORABLE = (
    types.is_binary,
    types.is_string,
    types.is_large_binary,
    types.is_large_string,
    types.is_fixed_size_binary,
    types.is_null,
)
SLICE_ROWS = 16_384
"""Rows converted and grouped at a time; bounds what one step holds."""


class ArrowRows(NamedTuple):
    """Columns of equal length in the stored form."""

    timestamps_ms: pa.Array
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None
    sizes: pa.Array

    def select(self, start: int, stop: int) -> ArrowRows:
        """A slice without copying."""
        return self._each(lambda column: column.slice(start, stop - start))

    def take(self, rows: pa.Array) -> ArrowRows:
        """Chosen rows in the order given."""
        return self._each(lambda column: column.take(rows))

    def _each(self, change: Callable[[pa.Array], pa.Array]) -> ArrowRows:
        return ArrowRows(
            change(self.timestamps_ms),
            change(self.keys),
            change(self.values),
            None if self.headers is None else change(self.headers),
            change(self.sizes),
        )


class ArrowInput(NamedTuple):
    """The arguments of send_arrow: a table, the names of its columns, and the terms."""

    topic: str
    table: pa.Table | pa.RecordBatch
    key: str | None
    value: str
    headers: str | None
    timestamp: str | None
    partition: int | None
    terms: Terms


def slices(intake: Intake, given: ArrowInput) -> Iterator[ArrowRows]:
    """Convert and check the table piece by piece."""
    table = given.table
    names = (given.key, given.value, given.headers, given.timestamp)
    for name in names:
        if name is not None and name not in table.schema.names:
            raise ConfigError(
                f"the table has no column {name!r}",
                hint=f"it has {', '.join(table.schema.names)}",
            )
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for piece in table.to_batches(max_chunksize=SLICE_ROWS):
        if piece.num_rows:
            yield _rows(intake, given, piece)


def _rows(intake: Intake, given: ArrowInput, piece: pa.RecordBatch) -> ArrowRows:
    count = piece.num_rows
    values = _binary(intake, piece.column(given.value), given.value)
    if given.key is None:
        keys = pa.nulls(count, pa.binary())
    else:
        keys = _binary(intake, piece.column(given.key), given.key)
    sizes = pc.add(_lengths(keys), _lengths(values))
    headers = None
    if given.headers is not None:
        headers = piece.column(given.headers).cast(HEADER_TYPE)
        sizes = pc.add(sizes, pa.array(_header_bytes(headers), pa.int64()))
    largest = pc.max(sizes).as_py()
    if largest > intake.record_limit(given.topic):
        raise intake.too_large(given.topic, largest)
    if given.timestamp is None:
        stamps = pa.repeat(pa.scalar(intake.wall_ms(), pa.int64()), count)
    else:
        stamps = _milliseconds(piece.column(given.timestamp), given.timestamp)
    return ArrowRows(stamps, keys, values, headers, pc.add(sizes, RECORD_OVERHEAD_BYTES))


def _binary(intake: Intake, column: pa.Array, name: str) -> pa.Array:
    """The column as binary; numbers only where the serializer is JSON, whose text they are."""
    if isinstance(column, pa.DictionaryArray):
        return _binary(intake, column.dictionary_decode(), name)
    json = "json" in (intake.config.key_serializer, intake.config.serializer)
    if json and types.is_integer(column.type):
        column = column.cast(pa.string())
    if any(is_kind(column.type) for is_kind in _STORABLE):
        return column.cast(pa.binary())
    raise TypeError(
        f"column {name!r} of type {column.type} cannot be stored: cast it to string or binary "
        'first, or create the producer with serializer="json" for integer columns'
    )


def _milliseconds(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False)
    elif not types.is_integer(kind):
        raise TypeError(f"column {name!r} of type {column.type} is no timestamp or integer")
    stamps = column.cast(pa.int64())
    if stamps.null_count or pc.min(stamps).as_py() < 0:
        raise ConfigError(f"column {name!r} has timestamps that are null or before 1970")
    return stamps


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _header_bytes(headers: pa.Array) -> list[int]:
    return [
        sum(text_bytes(pair["key"]) + len(pair["value"] or b"") + 12 for pair in item or ())
        for item in headers.to_pylist()
    ]


def batches(intake: Intake, given: ArrowInput, rows: ArrowRows) -> Iterator[Batch]:
    """Batches of one slice, partition by partition, each up to the configured size."""
    state = intake.topics[given.topic]
    codec = CODECS[intake.config.compression_type]
    for where, part in _by_partition(intake, state, given.partition, rows):
        ends = pc.cumulative_sum(part.sizes).to_pylist()
        start = 0
        while start < len(ends):
            before = ends[start - 1] if start else 0
            stop = max(bisect_right(ends, before + state.slots[where].full_bytes), start + 1)
            batch = Batch(state.name, where, intake.now_s(), terms=given.terms)
            batch.life = state.life
            batch.count = stop - start
            batch.size_bytes = ends[stop - 1] - before
            batch.make = partial(_encode, part.select(start, stop), codec)
            yield batch
            start = stop


def _encode(rows: ArrowRows, codec: int, producer: tuple[int, int, int]) -> Buffer:
    return encode_arrow(
        rows.timestamps_ms, rows.keys, rows.values, rows.headers, codec=codec, producer=producer
    )


def _by_partition(
    intake: Intake, state: TopicState, partition: int | None, rows: ArrowRows
) -> Iterator[tuple[int, ArrowRows]]:
    """Rows of each partition in their order; keyed rows by the hash of their distinct keys."""
    count = len(rows.values)
    router = intake.router
    if partition is None and router.custom is None and rows.keys.null_count == 0:
        plan = _hashed(intake, state, rows.keys)
    else:
        keys = None if rows.keys.null_count == count else rows.keys.to_pylist()
        values: list[bytes | None] = [None] * count
        if router.custom is not None:
            values = rows.values.to_pylist()
        chosen = router.choose_many(state, partition, keys, values, None)
        with intake.accumulator.lock:
            groups = router.group(state, chosen, keys, rows.sizes.to_pylist())
            plan = [(slot.partition, index) for slot, index in groups]
    for where, index in plan:
        if isinstance(index, range) and index.step == 1:
            yield where, rows.select(index.start, index.stop)
        elif isinstance(index, pa.Array):
            yield where, rows.take(index)
        else:
            yield where, rows.take(pa.array(index, pa.int64()))


def _hashed(
    intake: Intake, state: TopicState, keys: pa.Array
) -> list[tuple[int, Sequence[int] | pa.Array]]:
    distinct = keys.dictionary_encode()
    hashes = intake.router.hashes.get_many(distinct.dictionary.to_pylist())
    numbers = [slot.partition for slot in state.writable]
    chosen = [numbers[hashed % len(numbers)] for hashed in hashes]
    targets = pa.array(chosen, pa.int32()).take(distinct.indices)
    order = pc.sort_indices(targets)  # stable: rows of a partition keep their order
    runs = pc.run_end_encode(targets.take(order))
    plan: list[tuple[int, Sequence[int] | pa.Array]] = []
    start = 0
    for where, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        plan.append((where, order.slice(start, stop - start)))
        start = stop
    return plan


class ArrowSending:
    """What producers use of this module, reached through `api.arrow_access`."""

    ArrowInput = ArrowInput
    slices = staticmethod(slices)
    batches = staticmethod(batches)


FUNCTIONS = ArrowSending()
