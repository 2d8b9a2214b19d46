"""Columns and slices: what Spark's exact schema check and offset ranges need (spec spark §6,
§14.1).
"""

from __future__ import annotations

import pathlib

import pyarrow as pa
import pytest

from octavo.client.exports.arrow_files import LedgerExporter, Rebatcher, checks_of, read_file
from octavo.client.exports.columns import EXPORTED, TYPES, join_columns, slice_offsets, to_columns
from octavo.client.exports.metadata_columns import METADATA_COLUMNS
from octavo.client.exports.tree import LocalTree
from octavo.proto.batch import BatchFlags
from octavo.spark.source import HEADER_COLUMNS, KAFKA_COLUMNS
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, ints, numbered

ALL = {**KAFKA_COLUMNS, **HEADER_COLUMNS, **METADATA_COLUMNS}


def test_ddl_and_arrow_name_the_same_columns() -> None:
    assert tuple(ALL) == tuple(TYPES)
    assert tuple(ALL)[:8] == EXPORTED


def test_metadata_columns() -> None:
    topic = MemoryTopic()
    topic.append([numbered(3)])
    topic.append([numbered(2), numbered(3, 2)], producer=(9, 2, 40), schema_id=5)
    rows = to_columns(topic.stored[2][1], "orders", 0, list(ALL)).to_pylist()
    assert [row["offset"] for row in rows] == [5, 6, 7]
    assert [row["batchIndex"] for row in rows] == [0, 1, 2]
    assert [row["sequence"] for row in rows] == [40, 41, 42]
    assert {row["producer"] for row in rows} == {"9:2"}
    assert {(row["ledgerId"], row["entryId"], row["schemaId"]) for row in rows} == {(2, 2, 5)}
    assert rows[0]["eventTime"] == rows[0]["timestamp"]
    anonymous = to_columns(topic.stored[1][0], "orders", 0, ("producer", "sequence")).to_pylist()
    assert anonymous == [{"producer": None, "sequence": None}] * 3


def test_batches_that_are_joined_are_those_one_behind_the_other() -> None:
    """Of two ledgers and several producers, with append times, and records that are missing."""
    topic = MemoryTopic()
    topic.append([numbered(3), numbered(10, 3)], producer=(9, 2, 40), schema_id=5)
    topic.compact(1, {1, 4, 9, 10})
    topic.append([ODD_ROWS, numbered(4)], flags=BatchFlags.APPEND_TIME)
    topic.append([numbered(2)], producer=(7, 0, 3))
    stored = [item for ledger in topic.stored.values() for item in ledger]
    assert len({item.ledger_id for item in stored}) > 2
    joined = pa.Table.from_batches([join_columns(stored, "orders", 3, list(ALL))])
    alone = [to_columns(item, "orders", 3, list(ALL)) for item in stored]
    assert joined.equals(pa.Table.from_batches(alone))
    assert join_columns([], "orders", 3, list(ALL)).num_rows == 0


def test_no_headers_is_null_whoever_the_neighbours_are() -> None:
    topic = MemoryTopic()
    topic.append([ODD_ROWS, [Row(b"alone", b"x")], [Row(b"h", b"x", (("a", b""),))] * 2])
    columns = [to_columns(item, "orders", 0, ("headers",)).column(0) for item in topic.stored[1]]
    assert [column.null_count for column in columns] == [len(ODD_ROWS) - 1, 1, 0]
    assert all(column.type.equals(TYPES["headers"]) for column in columns)


# --- slices --------------------------------------------------------------------------------------

GAPPY = [0, 1, 2, 5, 9, 10, 40]


@pytest.mark.parametrize("first", [0, 1, 3, 5, 6, 10, 11, 40, 41, 99])
@pytest.mark.parametrize("end", [0, 1, 3, 5, 6, 10, 11, 40, 41, 99])
def test_slice_borders_with_gaps(first: int, end: int) -> None:
    rows = pa.record_batch({"offset": pa.array(GAPPY, pa.int64())})
    got = slice_offsets(rows, rows.column("offset"), first, end)
    assert got.column("offset").to_pylist() == [o for o in GAPPY if first <= o < end]


def test_slice_of_nothing() -> None:
    rows = pa.record_batch({"offset": pa.array([], pa.int64())})
    assert slice_offsets(rows, rows.column("offset"), 0, 5).num_rows == 0


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
@pytest.mark.parametrize(
    ("first", "end"),
    [(0, 20000), (0, 1), (8191, 8193), (8192, 16384), (12000, 12001), (19999, 20000), (5, 5),
     (10010, 10020), (10005, 10025), (20000, 30000)],
)  # fmt: skip
def test_file_ranges_across_record_batches(
    tmp_path: pathlib.Path, fmt: str, first: int, end: int
) -> None:
    topic = MemoryTopic()
    topic.append([numbered(5000), numbered(5010, 5000)])
    topic.append([numbered(10)], flags=2)  # offsets 10010 to 10019 are a gap
    topic.append([numbered(9980)])
    writer = LedgerExporter(LocalTree(tmp_path), "orders", 0, fmt=fmt)
    for ledger, stored in topic.stored.items():
        writer.begin_ledger(ledger)
        writer.add(stored)
    (entry,) = writer.finish()
    got = [
        value
        for rows in read_file(
            tmp_path / "orders" / entry.file,
            ("offset",),
            first,
            end,
            checks=checks_of(entry),
            fmt=fmt,
        )
        for value in rows.column("offset").to_pylist()
    ]
    assert got == [o for o in range(first, min(end, 20000)) if not 10010 <= o < 10020]


def test_unasked_offset_column_is_not_returned(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10)])
    writer = LedgerExporter(LocalTree(tmp_path), "orders", 0)
    writer.begin_ledger(1)
    writer.add(topic.stored[1])
    (entry,) = writer.finish()
    path = tmp_path / "orders" / entry.file
    (rows,) = read_file(path, ("value", "key"), 3, 5, checks=checks_of(entry))
    assert rows.schema.names == ["value", "key"]
    assert rows.num_rows == 2


def test_rebatcher_keeps_order_and_size() -> None:
    rebatcher = Rebatcher()
    sizes: list[int] = []
    values: list[int] = []
    for start, count in ((0, 3), (3, 9000), (9003, 0), (9003, 20000)):
        rows = pa.record_batch({"offset": pa.array(range(start, start + count), pa.int64())})
        for full in rebatcher.add(rows):
            sizes.append(full.num_rows)
            values += ints(full, "offset")
    for rest in rebatcher.flush():
        sizes.append(rest.num_rows)
        values += ints(rest, "offset")
    assert sizes == [8192, 8192, 8192, 4427]
    assert values == list(range(29003))
    assert list(rebatcher.flush()) == []
