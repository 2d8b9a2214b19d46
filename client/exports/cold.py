"""An exported file as the stored form of its ledgers: whole batches, found by offset and by time.

For brokers and Spark, which read a segment from a ledger or from here and must see the same
records (ADR 68). Everything blocks: call it from a thread. One `ColdFile` does one call at a time;
others wait. In memory: the index (13 MB at most) and one record batch of rows (32 MiB at most,
mostly a few), kept between calls because the next one mostly goes on there.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from octavo.client.exports.batch_index import BatchIndex
from octavo.client.exports.checked_file import CheckedFile, FileChecks
from octavo.client.exports.columns import TYPES, int_at
from octavo.client.exports.layout import folder_of, index_folder
from octavo.client.exports.manifest import FileEntry
from octavo.client.exports.tree import Tree
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.restored import restored
from octavo.proto.segments import StoredBatch, StoredHeader
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import ConfigError, IllegalStateError, OctavoError, StorageFailed

_COLUMNS = ("key", "value", "offset", "timestamp", "headers")
_SCHEMA = pa.schema([pa.field(name, TYPES[name]) for name in _COLUMNS])


class ColdFile:
    """One exported file with its index, open for reading.

    Positions count the file's batches from 0 to `entries`. Batches with an append time, of a
    producer, compacted or with a codec of their own come out as such; control batches never were
    exported. Raises ConfigError for a file without an index and StorageFailed naming the file for
    one that is gone, damaged or not to be read now: no answer is ever shorter because of that.
    """

    def __init__(self, tree: Tree, topic: str, entry: FileEntry) -> None:
        if not entry.index:
            raise ConfigError(
                f"exported file {entry.file} has no index: its batches are not kept",
                hint="export into a tree that keeps indexes",
            )
        self.entry = entry
        self._lock = threading.Lock()
        self._kept: tuple[int, pa.RecordBatch] | None = None
        checks = FileChecks(entry.index_bytes, entry.index_batches, entry.index_crcs)
        with CheckedFile(tree.open(f"{index_folder(topic)}/{entry.index}"), checks) as file:
            self._index = BatchIndex(cast("BinaryIO", file), entry.index)
        if (self._index.count, self._index.row_starts[-1]) != (entry.index_batches, entry.rows):
            raise StorageFailed(f"index {entry.index} is of another file than {entry.file}")
        place = tree.open(f"{folder_of(topic)}/{entry.file}")
        self._file = CheckedFile(place, FileChecks(entry.bytes, entry.rows, entry.block_crcs))
        try:
            with self._typed():
                self._read_chunk = self._reader()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, after a call that is going on; a second time does nothing."""
        with self._lock:
            self._kept = None
            self._file.close()

    @property
    def entries(self) -> int:
        """How many batches the file holds."""
        return self._index.count

    def find(self, offset: int) -> int:
        """Position of the batch that holds `offset` or, in a gap, of the next one; or `entries`."""
        return self._index.find(offset)

    def find_time(self, timestamp_ms: int) -> int:
        """Position of the first batch with a record at or after this time; `entries` if none."""
        return self._index.find_time(timestamp_ms)

    def header(self, position: int) -> StoredHeader:
        """A batch's header as it was stored, from the index alone; IndexError beyond the file."""
        if not 0 <= position < self.entries:
            raise IndexError(f"batch {position} of {self.entries}")
        return self._index.header(position)

    def batches(
        self, start_offset: int, size_bytes_max: int, end_offset: int | None = None
    ) -> list[StoredBatch]:
        """Whole batches in offset order, from the one that holds `start_offset` or the next one.

        At least one where there is one, then more while together they stay within
        `size_bytes_max`. None begins at or after `end_offset`. Raises IllegalStateError once it is
        closed.
        """
        found: list[StoredBatch] = []
        size_bytes = 0
        with self._lock, self._open():
            for position in range(self._index.find(start_offset), self.entries):
                entry_id, header = self._index.header(position)
                if end_offset is not None and header.base_offset >= end_offset:
                    break
                made = self._batch(position, header)
                size_bytes += sum(map(len, made))
                if found and size_bytes > size_bytes_max:
                    break
                ledger_id = self._index.ledger_of(position)
                found += [StoredBatch(ledger_id, entry_id, batch) for batch in made]
        return found

    def _batch(self, position: int, header: BatchHeader) -> list[Buffer]:
        starts = self._index.row_starts
        rows = self._rows(starts[position], starts[position + 1])
        offsets = rows.column("offset")
        first, last = int_at(offsets, 0), int_at(offsets, -1)
        dense = not header.flags & BatchFlags.COMPACTED
        if not header.base_offset <= first <= last < header.next_offset or (
            dense and last - first != header.record_count - 1
        ):
            raise self._strange(f"rows {first} to {last} are not of the batch {header}")
        stamps = self._index.stamps(position)
        if header.flags & BatchFlags.APPEND_TIME:
            stamps = pa.repeat(pa.scalar(header.append_time_ms, pa.int64()), len(rows))
        elif stamps is None:
            stamps = pc.divide(rows.column("timestamp").cast(pa.int64()), 1000)
        return restored(header, rows, stamps)

    def _rows(self, start: int, end: int) -> pa.RecordBatch:
        """The rows [start, end) of the file."""
        chunks = self._index.chunk_starts
        parts: list[pa.RecordBatch] = []
        while start < end:
            number = bisect_right(chunks, start) - 1
            stop = min(end, chunks[number + 1])
            parts.append(self._chunk(number).slice(start - chunks[number], stop - start))
            start = stop
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _chunk(self, number: int) -> pa.RecordBatch:
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # never two of them
            rows = self._read_chunk(number)
            if rows.num_rows != self._index.chunk_rows[number]:
                raise self._strange(f"record batch {number} has {rows.num_rows} rows")
            self._kept = number, rows
        return self._kept[1]

    def _reader(self) -> Callable[[int], pa.RecordBatch]:
        """What reads one record batch of the file with `_COLUMNS`."""
        if self.entry.file.endswith(".parquet"):
            parquet = pq.ParquetFile(cast("BinaryIO", self._file))

            def read_group(number: int) -> pa.RecordBatch:
                table = parquet.read_row_group(number, list(_COLUMNS), use_threads=False)
                rows = table.select(_COLUMNS).cast(_SCHEMA).combine_chunks()
                return rows.to_batches()[0]

            return read_group
        source = pa.PythonFile(self._file, mode="r")
        schema = pa.ipc.open_file(source).schema
        fields = sorted(schema.get_field_index(name) for name in _COLUMNS)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return pa.ipc.open_file(source, options=options).get_batch

    @contextmanager
    def _open(self) -> Generator[None]:
        if self._file.closed:
            raise IllegalStateError(f"exported file {self.entry.file} was closed by this program")
        with self._typed():
            yield

    @contextmanager
    def _typed(self) -> Generator[None]:
        try:
            yield
        except StorageFailed:
            raise
        except (OctavoError, pa.ArrowException, OSError, ValueError, IndexError) as error:
            # Its bytes are what we wrote, so this is what we cannot make of them.
            raise self._strange(f"{error}") from error

    def _strange(self, how: str) -> StorageFailed:
        return StorageFailed(f"exported file {self.entry.file} cannot be read: {how}")
