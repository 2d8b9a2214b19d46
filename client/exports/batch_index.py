"""The index of an exported file: the headers of the stored batches that its rows came from.

Rows alone cannot serve readers of a log: they need the batches, with producers, epochs, sequences
and the offsets that each covers. The index keeps exactly these, so that a row file and its index
together are the stored form of their ledgers (ADR 68).

An Arrow IPC file, one row per batch in offset order, ZSTD; its bytes are checked by the manifest's
block checksums like those of every exported file. Columns are `FIELDS`: where the batch was
stored, then its header as `octavo.proto.batch` has it, and `stamps`: the times of its records
(int64 little-endian) where microseconds cannot tell them, else null. The schema's metadata say how
many rows each record batch (Parquet: row group) of the data file has.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from octavo.proto.batch import BatchHeader
from octavo.proto.segments import StoredHeader
from octavo.runtime.errors import StorageFailed
from octavo.runtime.ids import EntryId, LedgerId

Code = Literal["q", "B", "I", "h", "H", "i"]
FIELDS: Mapping[str, tuple[Code, pa.DataType]] = {
    "ledger_id": ("q", pa.int64()),
    "entry_id": ("q", pa.int64()),
    "codec": ("B", pa.uint8()),
    "flags": ("B", pa.uint8()),
    "body_crc": ("I", pa.uint32()),
    "body_bytes": ("I", pa.uint32()),
    "uncompressed_bytes": ("I", pa.uint32()),
    "record_count": ("I", pa.uint32()),
    "producer_epoch": ("h", pa.int16()),
    "marks": ("H", pa.uint16()),
    "producer_id": ("q", pa.int64()),
    "base_timestamp_ms": ("q", pa.int64()),
    "max_timestamp_ms": ("q", pa.int64()),
    "base_sequence": ("i", pa.int32()),
    "schema_id": ("i", pa.int32()),
    "base_offset": ("q", pa.int64()),
    "last_offset_delta": ("i", pa.int32()),
    "owner_epoch": ("i", pa.int32()),
    "append_time_ms": ("q", pa.int64()),
}
"""Name, type code of one value in memory, Arrow type. Part of the format."""
BATCHES_MAX = 131_072
"""Of one file: its index takes at most 13 MB of memory besides `stamps`."""
_STAMPS = "stamps"
_ROWS = b"rows"
_CHUNK = 8192


class IndexBuilder:
    """Collects the batches of a file that is being written."""

    def __init__(self) -> None:
        self._columns = [array(code) for code, _ in FIELDS.values()]
        self._stamps: dict[int, bytes] = {}
        self._rows: list[int] = []

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, place: tuple[int, int], header: BatchHeader, stamps: bytes | None) -> None:
        """The next batch; `place` is ledger and entry id, `stamps` as in the module's text."""
        if stamps is not None:
            self._stamps[len(self)] = stamps
        for column, value in zip(self._columns, (*place, *header), strict=True):
            column.append(value)

    def wrote(self, rows: int) -> None:
        """The data file has one more record batch."""
        self._rows.append(rows)

    def to_bytes(self) -> bytes:
        """The index file; the same batches give the same bytes (P13)."""
        count = len(self)
        made = [
            pa.Array.from_buffers(kind, count, [None, pa.py_buffer(memoryview(column))])
            for column, (_, kind) in zip(self._columns, FIELDS.values(), strict=True)
        ]
        made.append(pa.array([self._stamps.get(n) for n in range(count)], pa.binary()))
        schema = _SCHEMA.with_metadata({_ROWS: json.dumps(self._rows).encode()})
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
        with pa.ipc.new_file(sink, schema, options=options) as writer:
            table = pa.Table.from_arrays(made, schema=schema)
            writer.write_table(table, max_chunksize=_CHUNK)
        return sink.getvalue().to_pybytes()


_SCHEMA = pa.schema([*((name, kind) for name, (_, kind) in FIELDS.items()), (_STAMPS, pa.binary())])


class BatchIndex:
    """An index in memory: finds batches by offset and time, and knows where their rows are.

    Positions count batches from 0. Raises StorageFailed where the index contradicts itself.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._name = name
        try:
            with pa.ipc.open_file(file) as reader:
                table = reader.read_all().combine_chunks()
            metadata = cast("Mapping[bytes, bytes]", table.schema.metadata or {})
            self.chunk_rows = [int(n) for n in json.loads(metadata[_ROWS])]
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise StorageFailed(f"index {name} cannot be read: {error}") from error
        if not table.schema.equals(_SCHEMA) or table.num_rows == 0:
            raise StorageFailed(f"index {name} has other columns than this version writes")
        self._table = table
        """Owns the memory of `_fields`."""
        self._fields = {
            name: _view(table.column(name).chunk(0), code) for name, (code, _) in FIELDS.items()
        }
        self._stamps = table.column(_STAMPS).chunk(0)
        self.count = table.num_rows
        self.row_starts = array("q", accumulate(self._fields["record_count"], initial=0))
        """The row of the data file at which each batch begins, and the number of rows."""
        self.chunk_starts = array("q", accumulate(self.chunk_rows, initial=0))
        self._newest = array("q", accumulate(self._fields["max_timestamp_ms"], max))
        self._check()

    def _check(self) -> None:
        end = 0
        deltas, counts = self._fields["last_offset_delta"], self._fields["record_count"]
        for base, delta, count in zip(self._fields["base_offset"], deltas, counts, strict=True):
            if base < end or not 0 < count <= delta + 1:
                raise StorageFailed(f"index {self._name}: the batch at offset {base} is impossible")
            end = base + delta + 1
        if self.row_starts[-1] != self.chunk_starts[-1]:
            raise StorageFailed(f"index {self._name} is of another number of rows than its file")

    def find(self, offset: int) -> int:
        """The batch that holds this offset or, in a gap, the next one; `count` when none is."""
        bases = self._fields["base_offset"]
        at = bisect_right(bases, offset) - 1
        if at >= 0 and offset <= bases[at] + self._fields["last_offset_delta"][at]:
            return at
        return at + 1

    def find_time(self, timestamp_ms: int) -> int:
        """The first batch with a record at or after this time; `count` when none is."""
        return bisect_left(self._newest, timestamp_ms)

    def header(self, position: int) -> StoredHeader:
        """The stored header of a batch."""
        values = [self._fields[name][position] for name in _HEADER_FIELDS]
        return StoredHeader(EntryId(self._fields["entry_id"][position]), BatchHeader(*values))

    def ledger_of(self, position: int) -> LedgerId:
        """The ledger that held a batch."""
        return LedgerId(self._fields["ledger_id"][position])

    def stamps(self, position: int) -> pa.Array | None:
        """The times of the batch's records in milliseconds, where its rows do not tell them."""
        kept = cast("bytes | None", self._stamps[position].as_py())
        if kept is None:
            return None
        return pa.Array.from_buffers(pa.int64(), len(kept) // 8, [None, pa.py_buffer(kept)])


_HEADER_FIELDS = BatchHeader._fields


def _view(column: pa.Array, code: Code) -> memoryview[int]:
    """The values of an unsliced column without nulls, not copied."""
    data = column.buffers()[1]
    size = array(code).itemsize * len(column)
    if column.null_count or data is None or data.size < size:
        raise StorageFailed("an index column lacks values")
    return memoryview(data)[:size].cast("B").cast(code)
