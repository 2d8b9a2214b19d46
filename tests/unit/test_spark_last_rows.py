"""Compacted reads without Spark: against a dictionary of all rows, in any memory (ADR 73)."""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from octavo.client.exports.columns import arrow_schema
from octavo.client.exports.run import export_log
from octavo.proto.offset_map import OffsetMap
from octavo.runtime.errors import ConfigError, StorageFailed
from octavo.spark import last_rows
from octavo.spark.last_rows import MEMORY_BYTES, Left, ReadPiece, Round, read_compacted
from octavo.spark.options import ReadOptions, StreamOptions
from octavo.spark.plan import (
    CompactedSplit,
    FileSplit,
    LedgerSplit,
    Split,
    compacted,
    narrow,
    plan,
    view_of,
)
from octavo.spark.reading import ledger_rows, plan_files, read_file_split
from tests.spark_memory import MemoryTopic, Row
from tests.unit.test_spark_plan import log, never, options

KEYS = [None, b"", b"\x00", b"a", b"ab", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\x00", b"k" * 90]
ALL = ("key", "value", "offset")


class Source:
    """A topic of memory, exported in part or not at all; counts what is opened."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.opened: list[tuple[int, int, tuple[str, ...]]] = []

    def read(self, piece: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.opened.append((piece.first, piece.end, tuple(columns)))
        if isinstance(piece, FileSplit):
            yield from read_file_split(piece, columns)
        else:
            yield from asyncio.run(self._ledger(piece, columns))

    async def _ledger(self, piece: LedgerSplit, columns: Sequence[str]) -> list[pa.RecordBatch]:
        return [rows async for rows in ledger_rows(self.topic, piece, columns)]

    def split(self, *, drop_tombstones: bool = False, **given: str) -> CompactedSplit:
        """Of partition 0, from ledgers alone."""
        more = {"dropTombstones": str(drop_tombstones), **given}
        asked = options(compacted="true", **more)
        views = [view_of(self.topic.topic, 0, log=self.topic.log().partitions[0])]
        (made,) = compacted(plan(asked, views, never), asked)
        return made


def rows_of(
    split: CompactedSplit,
    read: ReadPiece,
    columns: Sequence[str] = ALL,
    memory_bytes: int = MEMORY_BYTES,
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for rows in read_compacted(split, columns, read, memory_bytes=memory_bytes):
        assert rows.num_rows
        assert rows.schema.equals(arrow_schema(columns))
        found += rows.to_pylist()
    return found


def random_topic(seed: int) -> MemoryTopic:
    rng = random.Random(seed)
    topic = MemoryTopic()
    for ledger in range(rng.randrange(1, 5)):
        keys = KEYS if rng.random() < 0.8 else [b"only"]
        topic.append(
            [
                [
                    Row(rng.choice(keys), None if rng.random() < 0.2 else b"%d" % ledger)
                    for _ in range(rng.randrange(1, 9))
                ]
                for _ in range(rng.randrange(1, 5))
            ]
        )
    return topic


def want(rows: dict[int, Row], *, drop_tombstones: bool = False) -> dict[int, Row]:
    """The same in a dictionary."""
    last = {row.key: offset for offset, row in rows.items() if row.key is not None}
    return {
        offset: row
        for offset, row in rows.items()
        if row.key is None
        or (last[row.key] == offset and not (drop_tombstones and row.value is None))
    }


@pytest.mark.parametrize("drop_tombstones", [False, True])
@pytest.mark.parametrize("memory_bytes", [1, 60, MEMORY_BYTES])
def test_the_last_row_of_each_key_whatever_the_memory(
    memory_bytes: int, drop_tombstones: bool
) -> None:
    """K4, K5: what the broker's cleaner would leave, over several ledgers and rounds."""
    for seed in range(7):
        topic = random_topic(seed)
        source = Source(topic)
        end = topic.end()
        for first, last in ((0, end), (end // 3, end - end // 4)):
            split = source.split(
                drop_tombstones=drop_tombstones,
                startingOffsets=json.dumps({"orders": {"0": first}}),
                endingOffsets=json.dumps({"orders": {"0": last}}),
            )
            inside = {at: row for at, row in topic.rows[0].items() if first <= at < last}
            got = rows_of(split, source.read, memory_bytes=memory_bytes)
            assert len(got) == len({row["offset"] for row in got}), "a row came twice"
            expected = want(inside, drop_tombstones=drop_tombstones)
            assert {row["offset"]: (row["key"], row["value"]) for row in got} == {
                at: (row.key, row.value) for at, row in expected.items()
            }, (seed, first, last)


def test_little_memory_means_more_rounds_and_never_more_memory() -> None:
    """Each round remembers a key at least, and no more than fits beside what one batch brought."""
    topic = MemoryTopic()
    topic.append(
        [[Row(b"%05d" % n, b"v") for n in range(at, at + 100)] for at in range(0, 900, 100)]
    )
    source = Source(topic)
    largest = 0

    class Watched(OffsetMap):
        def add(self, keys: pa.Array, offsets: pa.Array) -> bytes | None:
            nonlocal largest
            above = super().add(keys, offsets)
            largest = max(largest, self.size_bytes)
            return above

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_rows, "OffsetMap", Watched)
        got = rows_of(source.split(), source.read, memory_bytes=4000)
    assert sorted(ints_of(got)) == list(range(900))
    assert largest <= 4000
    rounds = sum(columns == ("key", "offset") for _, _, columns in source.opened)
    assert 4 < rounds < 12


def ints_of(rows: Sequence[dict[str, object]]) -> list[int]:
    return [int(str(row["offset"])) for row in rows]


def test_pieces_of_which_nothing_is_left_are_not_opened_again() -> None:
    """Nor the columns that nobody asked for."""
    topic = MemoryTopic()
    topic.append([[Row(b"a", b"1"), Row(b"b", b"1")]])
    topic.append([[Row(b"c", b"1"), Row(b"b", b"2"), Row(b"a", b"2"), Row(b"a", b"3")]])
    source = Source(topic)
    got = rows_of(source.split(), source.read, ("value",))
    assert got == [{"value": b"1"}, {"value": b"2"}, {"value": b"3"}]
    keys = ("key", "offset")
    assert source.opened == [(0, 2, keys), (2, 6, keys), (2, 6, ("value", "offset"))]
    topic.append([[Row(b"c", b"2"), Row(b"a", None)]])
    source.opened.clear()
    (split,) = [source.split(drop_tombstones=True)]
    assert rows_of(split, source.read, ("value",)) == [{"value": b"2"}, {"value": b"2"}]
    assert source.opened[3:] == [
        (3, 4, ("value", "offset", "key")),
        (6, 8, ("value", "offset", "key")),
    ]


def test_rows_without_a_key_are_read_where_they_are() -> None:
    topic = MemoryTopic()
    topic.append([[Row(b"a", b"1"), Row(None, b"1"), Row(b"a", b"2")]])
    topic.append([[Row(b"a", b"3"), Row(None, None)]])
    source = Source(topic)
    got = rows_of(source.split(drop_tombstones=True), source.read, ("offset", "value"), 1)
    assert ints_of(got) == [1, 3, 4]
    assert [one[:2] for one in source.opened[2:4]] == [(1, 3), (3, 5)]


def test_files_and_ledgers_of_a_partition_are_one_task(tmp_path: pathlib.Path) -> None:
    """Half of it exported, with gaps, the rest in ledgers."""
    topic = MemoryTopic(partitions=2)
    for turn in range(3):
        topic.append([[Row(b"k%d" % n, b"%d" % turn) for n in range(turn, 40)]])
    topic.append([[Row(b"k1", b"other partition")]], partition=1)
    asyncio.run(export_log(topic, "orders", tmp_path))
    topic.append([[Row(b"k7", None), Row(b"k39", b"last")]])
    asked = ReadOptions.parse({"path": str(tmp_path), "subscribe": "orders", "compacted": "TRUE"})
    files = plan_files(asked)
    assert [type(one) for one in files] == [FileSplit, FileSplit]
    first = files[0]
    ledger = topic.segments[0][-1]
    live = LedgerSplit("orders", 0, ledger, ledger.base_offset, topic.end())
    both, other = compacted([first, live, files[1]], asked)
    source = Source(topic)
    expected = want(topic.rows[0])
    assert sorted(ints_of(rows_of(both, source.read))) == sorted(expected)
    assert expected[topic.end() - 2].value is None
    assert [row["value"] for row in rows_of(other, source.read)] == [b"other partition"]


def test_damage_is_an_error_and_never_fewer_rows(tmp_path: pathlib.Path) -> None:
    """P8: in either pass."""
    topic = MemoryTopic()
    topic.append([[Row(b"k%d" % (n % 10), b"%d" % n * 100) for n in range(2000)]])
    asyncio.run(export_log(topic, "orders", tmp_path, codec="none"))
    asked = ReadOptions.parse({"path": str(tmp_path), "subscribe": "orders", "compacted": "true"})
    (split,) = compacted(plan_files(asked), asked)
    assert len(rows_of(split, read_file_split_of)) == 10
    (harmed,) = (tmp_path / "orders").glob("p00000-*")
    data = bytearray(harmed.read_bytes())
    for at in (len(data) // 20, len(data) // 2):
        changed = data.copy()
        changed[at] ^= 1
        harmed.write_bytes(bytes(changed))
        with pytest.raises(StorageFailed, match=harmed.name):
            rows_of(split, read_file_split_of)


def read_file_split_of(piece: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    assert isinstance(piece, FileSplit)
    return read_file_split(piece, columns)


def test_narrowing_keeps_what_a_file_promises() -> None:
    (piece,) = plan(options(), [view_of("orders", 0, log=log(0, 100))], never)
    assert (narrow(piece, 5, 9).first, narrow(piece, 5, 9).end) == (5, 9)


def test_what_a_round_leaves_to_the_next() -> None:
    this = Round(None, 1)
    schema = arrow_schema(("key", "offset"))
    keys = [b"c", b"a", None, b"b"]
    this.learn(pa.RecordBatch.from_arrays([pa.array(keys), pa.array([3, 5, 7, 8])], schema=schema))
    assert this.end == b"b"
    left = this.left()
    assert isinstance(left, Left)
    assert left.offsets.to_pylist() == [5]
    assert left.within(0, 6) == (5, 6)
    assert left.within(6, 100) == (7, 8)
    assert left.within(8, 100) == (8, 8)
    after = Round(this.end, MEMORY_BYTES)
    after.learn(pa.RecordBatch.from_arrays([pa.array(keys), pa.array([3, 5, 7, 8])], schema=schema))
    assert (after.end, after.left().offsets.to_pylist()) == (None, [3, 8])


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"compacted": "yes"}, "compacted"),
        ({"dropTombstones": "true"}, "dropTombstones"),
        ({"compacted": "true", "minPartitions": "4"}, "minPartitions"),
        ({"compacted": "true", "maxRecordsPerPartition": "4"}, "maxRecordsPerPartition"),
        ({"compact": "true"}, "compact"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    assert caught.value.details["option"] == option
    assert option != "compact" or "'compacted'" in str(caught.value.hint)


def test_a_stream_is_not_compacted() -> None:
    given = {"path": "lake", "subscribe": "orders", "compacted": "true"}
    with pytest.raises(ConfigError, match="compacted") as caught:
        StreamOptions.parse(given)
    assert "foreachBatch" in str(caught.value.hint)
    StreamOptions.parse({**given, "compacted": "false"})
