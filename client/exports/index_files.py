"""Writing and checking the index that stands beside an exported file (ADR 68)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from octavo.client.exports.batch_index import IndexBuilder
from octavo.client.exports.checked_file import BlockDigest, CheckedFile, FileChecks
from octavo.client.exports.columns import int_at, slice_offsets
from octavo.client.exports.layout import index_file, index_folder
from octavo.client.exports.manifest import FileEntry
from octavo.client.exports.tree import Tree
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.proto.batch_arrow import decode_arrow
from octavo.proto.restored import part_of
from octavo.proto.segments import StoredBatch

_CLAMPED_US = 2**63 - 1
"""What stands in a file for a time that microseconds cannot tell (`octavo.proto.kafka_columns`)."""


def stored_header(
    stored: StoredBatch, header: BatchHeader, rows: pa.RecordBatch
) -> tuple[BatchHeader, bytes | None]:
    """What an index keeps of a batch of which `rows` are exported, at least one.

    The second value are the records' times where the file cannot tell them.
    """
    left_out = rows.num_rows != header.record_count
    inexact = not header.flags & BatchFlags.APPEND_TIME and _clamped(rows.column("timestamp"))
    if not left_out and not inexact:
        return header, None
    own = decode_arrow(stored.batch, ("offset", "timestamp"))
    first = int_at(rows.column("offset"), 0)
    own = slice_offsets(own, own.column("offset"), first, header.next_offset)
    stamps = own.column("timestamp").cast(pa.int64())
    if left_out:
        header = part_of(header, own.column("offset"), stamps, header.next_offset)
    if not inexact:
        return header, None
    return header, struct.pack(f"<{len(stamps)}q", *cast("list[int]", stamps.to_pylist()))


def _clamped(stamps: pa.Array) -> bool:
    bounds = pc.min_max(stamps.cast(pa.int64())).as_py()
    found = cast("dict[str, int]", bounds)
    return found["min"] == -_CLAMPED_US or found["max"] == _CLAMPED_US


def write_index(tree: Tree, topic: str, entry: FileEntry, index: IndexBuilder) -> FileEntry:
    """Make the index of a published file durable; returns the entry that names both.

    Raises StorageFailed when it does not read back as it was written.
    """
    data = index.to_bytes()
    digest = BlockDigest()
    digest.update(memoryview(data))
    indexed = replace(
        entry,
        index=index_file(entry.file, hashlib.sha256(data).hexdigest()),
        index_bytes=len(data),
        index_batches=len(index),
        index_crcs=digest.finish(),
    )
    folder = index_folder(topic)
    tree.make_folder(folder)
    tree.replace(f"{folder}/{indexed.index}", data)
    check_index(tree, topic, indexed, deep=True)
    return indexed


def check_index(tree: Tree, topic: str, entry: FileEntry, *, deep: bool) -> None:
    """Compare the size of a file's index, if it has one, with the manifest; `deep`: each byte.

    Raises StorageFailed.
    """
    if entry.index:
        with CheckedFile(
            tree.open(f"{index_folder(topic)}/{entry.index}"), index_checks(entry)
        ) as file:
            if deep:
                file.check_all()


def index_checks(entry: FileEntry) -> FileChecks:
    """What a reader needs to check an index."""
    return FileChecks(entry.index_bytes, entry.index_batches, entry.index_crcs)
