"""Exported files: Arrow IPC or Parquet, written once, verified, named by their content (spark §5).

Writing: stored batches of one or several ledgers of one partition go in; rows are regrouped into
record batches of 8,192, so the bytes depend only on what is stored and never on how entries were
fetched (P13). A file ends behind a stored batch, so that it can keep an index of them. Each
finished file is synced, read back and compared with what was written before it gets its final name.
Reading: record batches of an offset range, by the footer's random access.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from octavo.client.exports.batch_index import BATCHES_MAX, IndexBuilder
from octavo.client.exports.checked_file import BlockDigest, BlockSource, CheckedFile, FileChecks
from octavo.client.exports.columns import (
    EXPORTED,
    arrow_schema,
    int_at,
    is_control,
    slice_offsets,
    to_columns,
)
from octavo.client.exports.index_files import stored_header, write_index
from octavo.client.exports.layout import control_folder, data_file, folder_of
from octavo.client.exports.manifest import FileEntry
from octavo.client.exports.tree import Tree
from octavo.proto import batch as batches
from octavo.proto.segments import StoredBatch
from octavo.runtime.errors import ConfigError, CorruptBatch, StorageFailed

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_ROWS = 8192
BATCH_BYTES_MAX = 32 << 20
"""Large records make shorter record batches: 8,192 rows of 1 MiB would be 8 GiB."""
FILE_BYTES_MAX = 256 << 20
"""Arrow bytes after which a file ends behind the stored batch that reached them."""
CODECS = ("zstd", "lz4", "none")
FORMATS = ("arrow", "parquet")
"""The first of each is what who says nothing gets."""
_ZSTD_LEVEL = 1
_SCHEMA = arrow_schema(EXPORTED)


def check_codec(codec: str, fmt: str) -> None:
    """Raise ConfigError unless codec and format are known."""
    for name, value, known in (("codec", codec, CODECS), ("format", fmt, FORMATS)):
        if value not in known:
            raise ConfigError(f"unknown export {name} {value!r}", hint=f"use {', '.join(known)}")


class Rebatcher:
    """Regroups record batches of any size into ones of BATCH_ROWS (or BATCH_BYTES_MAX)."""

    def __init__(self) -> None:
        self._pending: list[pa.RecordBatch] = []
        self._rows = 0  # in pending; below BATCH_ROWS between calls
        self._bytes = 0  # in pending; below BATCH_BYTES_MAX plus one batch

    @property
    def size_bytes(self) -> int:
        """Bytes that are not yielded yet."""
        return self._bytes

    def add(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows in; yields what became full."""
        while rows.num_rows:
            room = BATCH_ROWS - self._rows
            part = rows.slice(0, room)
            rows = rows.slice(part.num_rows)
            self._pending.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            if self._rows == BATCH_ROWS or self._bytes >= BATCH_BYTES_MAX:
                yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest, however small."""
        if self._pending:
            yield pa.concat_batches(self._pending)
        self._pending, self._rows, self._bytes = [], 0, 0


class _HashingFile(io.RawIOBase):
    """A file that keeps the SHA-256 and the block checksums of what was written to it."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115 (closed in close)
        self._size_bytes = 0
        self._given_up = False
        self.digest = hashlib.sha256()
        self.blocks = BlockDigest()

    def give_up(self) -> None:
        """Write no more: whoever still ends its format writes into nothing, and cannot fail."""
        self._given_up = True
        with suppress(OSError):  # what the disk did not take is not wanted any more
            self._file.close()

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Append a buffer."""
        view = memoryview(data)
        if not self._given_up:
            self.digest.update(view)
            self.blocks.update(view)
            self._file.write(view)
        self._size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Close the file; the digest stays. Raises OSError when the last bytes find no room."""
        try:
            self._file.close()
        finally:
            super().close()


@dataclass
class _OpenFile:
    """A file being written, and what its manifest entry will say."""

    path: pathlib.Path
    sink: _HashingFile
    writer: pa.ipc.RecordBatchFileWriter | pq.ParquetWriter
    ledgers: list[int]
    schema_id: int
    rows: int = 0
    arrow_bytes: int = 0
    first: int = -1
    last: int = -1
    stamps_ms: list[int] = field(default_factory=list[int])


class LedgerExporter:
    """Writes ledgers of one partition, in offset order, into as few files as the limits allow.

    Blocking; the caller keeps calls in one thread at a time. `finish()` gives the published
    files, `abort()` removes what has no final name. Nothing is visible to readers before the
    manifest says so.

    Args:
        start: records below it are left out: they are exported, and a compacted ledger may hold
            some of them.
        index: each file gets an index of its batches, as the trees that ask for it want (ADR 68).
    """

    def __init__(
        self,
        tree: Tree,
        topic: str,
        partition: int,
        *,
        codec: str = "zstd",
        fmt: str = "arrow",
        start: int = 0,
        index: bool = False,
    ) -> None:
        check_codec(codec, fmt)
        self._index = IndexBuilder() if index else None
        """Of the file that the rows at hand will be in."""
        self._start = start
        self._tree = tree
        self._topic = topic
        self._partition = partition
        self._codec = codec
        self._format = fmt
        self._folder = folder_of(topic)
        self._scratch = control_folder(topic)
        self._rebatcher = Rebatcher()
        self._ledgers: list[int] = []  # begun and not yet named by a file that has ended
        self._schema_id = 0
        self._open: _OpenFile | None = None
        self._done: list[FileEntry] = []
        self._next_offset = 0

    @property
    def next_offset(self) -> int:
        """One past the last offset seen, control batches included."""
        return self._next_offset

    def begin_ledger(self, ledger_id: int) -> None:
        """What follows belongs to this ledger."""
        self._ledgers.append(ledger_id)

    def add(self, stored: Sequence[StoredBatch]) -> None:
        """Append batches; raises CorruptBatch when one is damaged or overlaps what came before."""
        for item in stored:
            header = batches.decode_header(item.batch)
            if header.base_offset < self._next_offset:
                raise CorruptBatch(
                    f"entry {item.ledger_id}/{item.entry_id} starts at offset "
                    f"{header.base_offset}, below {self._next_offset}"
                )
            self._next_offset = header.next_offset
            if is_control(header):
                continue
            if header.schema_id != self._schema_id:
                self._end_file()
                self._schema_id = header.schema_id
            rows = to_columns(item, self._topic, self._partition, EXPORTED)
            if self._start > header.base_offset:
                offsets = rows.column("offset")
                rows = slice_offsets(rows, offsets, self._start, header.next_offset)
            if self._index is not None and rows.num_rows:
                indexed = stored_header(item, header, rows)
                self._index.add((item.ledger_id, item.entry_id), *indexed)
            for full in self._rebatcher.add(rows):
                self._write(full)
            written = 0 if self._open is None else self._open.arrow_bytes
            if written + self._rebatcher.size_bytes >= FILE_BYTES_MAX or (
                self._index is not None and len(self._index) >= BATCHES_MAX
            ):
                self._end_file()

    def add_rows(self, rows: pa.RecordBatch, schema_id: int) -> None:
        """Append rows of an exported file, all its columns; their offsets ascend."""
        if schema_id != self._schema_id:
            self._end_file()
            self._schema_id = schema_id
        self._next_offset = int_at(rows.column("offset"), -1) + 1
        for full in self._rebatcher.add(rows):
            self._write(full)

    def finish(self) -> list[FileEntry]:
        """End the last file; returns every file in offset order."""
        self._end_file()
        return self._done

    def abort(self) -> None:
        """Forget the unfinished file; ended files stay, unnamed by any manifest version."""
        if self._open is not None:
            dropped, self._open = self._open, None
            self._drop(dropped.path, dropped.sink, dropped.writer)

    def _drop(
        self,
        path: pathlib.Path,
        sink: _HashingFile,
        writer: pa.ipc.RecordBatchFileWriter | pq.ParquetWriter | None,
    ) -> None:
        """Remove an unfinished file, full as its disk may be."""
        sink.give_up()
        try:
            if writer is not None:
                writer.close()  # or it would try again when it is forgotten
        finally:
            sink.close()
            self._tree.discard(path)

    def _write(self, rows: pa.RecordBatch) -> None:
        now = self._open or self._start_file()
        now.writer.write_batch(rows)
        offsets = rows.column("offset")
        now.first = now.first if now.rows else int_at(offsets, 0)
        now.last = int_at(offsets, -1)
        now.rows += rows.num_rows
        now.arrow_bytes += rows.nbytes
        stamps = rows.column("timestamp").cast(pa.int64())
        for bound in (pc.min(stamps), pc.max(stamps)):
            now.stamps_ms.append(cast("int", bound.as_py()) // 1000)
        if self._index is not None:
            self._index.wrote(rows.num_rows)

    def _start_file(self) -> _OpenFile:
        for folder in (self._folder, self._scratch):
            self._tree.make_folder(folder)
        path = self._tree.temporary(self._scratch)
        sink = _HashingFile(path)
        try:
            writer = self._writer_of(sink)
        except BaseException:
            self._drop(path, sink, None)
            raise
        self._open = _OpenFile(path, sink, writer, list(self._ledgers), self._schema_id)
        return self._open

    def _writer_of(self, sink: _HashingFile) -> pa.ipc.RecordBatchFileWriter | pq.ParquetWriter:
        if self._format == "parquet":
            return pq.ParquetWriter(
                cast("BinaryIO", sink),
                _SCHEMA,
                compression=self._codec,
                version="2.6",
                write_page_checksum=True,  # for readers that do not know our manifest
            )
        options = pa.ipc.IpcWriteOptions(compression=_ipc_codec(self._codec))
        return pa.ipc.new_file(cast("BinaryIO", sink), _SCHEMA, options=options)

    def _end_file(self) -> None:
        for rest in self._rebatcher.flush():
            self._write(rest)
        if self._open is not None:
            self._close_file(self._open)

    def _close_file(self, now: _OpenFile) -> None:
        """Publish what is complete; no manifest version names it yet."""
        now.writer.close()
        now.sink.close()
        self._open = None
        ledgers = list(dict.fromkeys([*now.ledgers, *self._ledgers]))
        self._ledgers = ledgers[-1:]
        digest = now.sink.digest.hexdigest()
        name = data_file(self._partition, now.first, now.last, ledgers[0], digest, self._format)
        entry = FileEntry(
            file=name,
            partition=self._partition,
            ledgers=tuple(ledgers),
            first=now.first,
            last=now.last,
            rows=now.rows,
            bytes=now.path.stat().st_size,
            arrow_bytes=now.arrow_bytes,
            min_timestamp_ms=min(now.stamps_ms),
            max_timestamp_ms=max(now.stamps_ms),
            sha256=digest,
            schema_id=now.schema_id,
            codec=self._codec,
            block_crcs=now.sink.blocks.finish(),
        )
        try:
            self._tree.sync(now.path)
            verify_file(now.path, entry)
            self._tree.publish(now.path, f"{self._folder}/{entry.file}")
        except BaseException:
            self._tree.discard(now.path)
            raise
        if self._index is not None:
            entry = write_index(self._tree, self._topic, entry, self._index)
            self._index = IndexBuilder()
        self._done.append(entry)


def _ipc_codec(codec: str) -> pa.Codec | None:
    if codec == "none":
        return None
    return pa.Codec(codec, compression_level=_ZSTD_LEVEL) if codec == "zstd" else pa.Codec(codec)


def checks_of(entry: FileEntry) -> FileChecks:
    """What a reader needs to check a file of the manifest."""
    return FileChecks(entry.bytes, entry.rows, entry.block_crcs)


def check_bytes(place: pathlib.Path | BlockSource, entry: FileEntry) -> None:
    """Compare size and every block of a file with the manifest; raises StorageFailed."""
    with CheckedFile(place, checks_of(entry)) as file:
        file.check_all()


def verify_file(path: pathlib.Path, entry: FileEntry) -> None:
    """Read a file back and compare it with its manifest entry; raises StorageFailed."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        raise StorageFailed(f"{entry.file} reads back with another SHA-256 than was written")
    rows, last = 0, entry.first - 1
    fmt = entry.file.rpartition(".")[2]
    for part in read_file(path, ("offset",), checks=checks_of(entry), fmt=fmt):
        offsets = part.column("offset")
        smallest_step = cast("int | None", pc.min(pc.pairwise_diff(offsets)).as_py())
        if int_at(offsets, 0) <= last or (smallest_step is not None and smallest_step < 1):
            raise StorageFailed(f"{entry.file} reads back with offsets that do not ascend")
        last = int_at(offsets, -1)
        rows += part.num_rows
    if (rows, last) != (entry.rows, entry.last):
        raise StorageFailed(
            f"{entry.file} reads back with {rows} rows to offset {last}, "
            f"written were {entry.rows} to {entry.last}"
        )


def read_file(
    place: pathlib.Path | BlockSource,
    columns: Sequence[str],
    first: int | None = None,
    end: int | None = None,
    *,
    checks: FileChecks,
    fmt: str = "arrow",
) -> Iterator[pa.RecordBatch]:
    """Record batches with the named columns; only offsets in [first, end) when those are given.

    Raises StorageFailed naming the file when it is gone, has another size or content than was
    written (`CheckedFile`), or gives another number of rows.
    """
    whole = first is None and end is None
    seen = 0
    with CheckedFile(place, checks) as file:
        read = _read_parquet if fmt == "parquet" else _read_ipc
        try:
            for rows in read(file, columns, first, end):
                seen += rows.num_rows
                yield rows
        except (pa.ArrowException, OSError, ValueError) as error:
            # Its bytes are what we wrote, so this is a file that this pyarrow cannot read.
            raise StorageFailed(f"exported file {file.name} cannot be read: {error}") from error
    if whole and seen != checks.rows:
        raise StorageFailed(
            f"exported file {file.name} has {seen} rows, written were {checks.rows}"
        )


def _read_ipc(
    file: CheckedFile, columns: Sequence[str], first: int | None, end: int | None
) -> Iterator[pa.RecordBatch]:
    bounded = first is not None or end is not None
    source = pa.PythonFile(file, mode="r")
    schema = pa.ipc.open_file(source).schema
    need = dict.fromkeys([*columns, "offset"] if bounded else columns)
    reader = _open_ipc(source, schema, tuple(need))
    start = _first_batch(_open_ipc(source, schema, ("offset",)), first) if first else 0
    for index in range(start, reader.num_record_batches):
        rows = reader.get_batch(index)
        if bounded:
            offsets = rows.column("offset")
            if end is not None and int_at(offsets, 0) >= end:
                return
            rows = _within(rows, first, end)
        if rows.num_rows:
            yield rows.select(list(columns))


def _open_ipc(
    source: pa.PythonFile, schema: pa.Schema, names: Sequence[str]
) -> pa.ipc.RecordBatchFileReader:
    fields = sorted(schema.get_field_index(name) for name in names)
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return pa.ipc.open_file(source, options=options)


def _first_batch(reader: pa.ipc.RecordBatchFileReader, first: int) -> int:
    """Index of the record batch that holds the first offset at or after `first`."""

    def last_offset(index: int) -> int:
        return int_at(reader.get_batch(index).column("offset"), -1)

    return bisect_left(range(reader.num_record_batches), first, key=last_offset)


def _read_parquet(
    file: CheckedFile, columns: Sequence[str], first: int | None, end: int | None
) -> Iterator[pa.RecordBatch]:
    bounded = first is not None or end is not None
    need = list(dict.fromkeys([*columns, "offset"] if bounded else columns))
    with pq.ParquetFile(cast("BinaryIO", file)) as parquet:
        for rows in parquet.iter_batches(batch_size=BATCH_ROWS, columns=need, use_threads=False):
            kept = _within(rows, first, end) if bounded else rows
            if kept.num_rows:
                yield kept.select(list(columns)).cast(arrow_schema(columns))


def _within(rows: pa.RecordBatch, first: int | None, end: int | None) -> pa.RecordBatch:
    low = first if first is not None else 0
    high = end if end is not None else (1 << 63) - 1
    return slice_offsets(rows, rows.column("offset"), low, high)
