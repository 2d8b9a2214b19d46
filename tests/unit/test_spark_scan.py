"""Rows of a ledger, and handing them to a thread that is not the loop's."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace

import pyarrow as pa
import pytest

from octavo.client.exports import columns as export_columns
from octavo.client.exports.columns import to_columns
from octavo.client.exports.run import export_log
from octavo.client.segments.reader import DescribedLedgers
from octavo.proto import batch as batches
from octavo.proto.batch import BatchHeader
from octavo.proto.batch_arrow import join_arrow
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptEntry, ReadUnknown, StorageFailed
from octavo.runtime.ids import EntryId
from octavo.spark import reading, worker_connections
from octavo.spark.loop_bridge import ScanLoop, iterate
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit, LedgerSplit
from octavo.spark.reading import ledger_rows, plan_files, read_file_split
from octavo.spark.worker_connections import CLUSTERS_MAX, WorkerConnections
from tests.spark_memory import ODD_ROWS, MemoryTopic, ints, numbered


def ledger(count: int = 10, size: int = 4) -> tuple[MemoryTopic, Segment]:
    topic = MemoryTopic()
    made = topic.append([numbered(size, size * n) for n in range(count)])
    return topic, replace(made, last_entry=EntryId(count + 1))


# --- rows of a split -----------------------------------------------------------------------------


async def test_rows_of_a_ledger_split() -> None:
    topic, segment = ledger()
    split = LedgerSplit("orders", 0, segment, 6, 31)
    got = [rows async for rows in ledger_rows(topic, split, ("value", "offset"))]
    assert [o for rows in got for o in rows.column("offset").to_pylist()] == list(range(6, 31))
    assert got[0].schema.names == ["value", "offset"]


async def test_control_batches_are_not_rows() -> None:
    topic = MemoryTopic()
    segment = topic.append([numbered(4)], flags=batches.BatchFlags.CONTROL)
    split = LedgerSplit("orders", 0, segment, 0, 4)
    assert [rows async for rows in ledger_rows(topic, split, ("offset",))] == []


async def test_ledger_that_ends_early_is_an_error_not_the_end() -> None:
    topic, segment = ledger()
    del topic.stored[1][5:]
    with pytest.raises(CorruptEntry, match="ends at offset 20"):
        async for _ in ledger_rows(topic, LedgerSplit("orders", 0, segment, 0, 40), ("offset",)):
            pass


async def test_a_compacted_ledger_may_end_in_a_gap() -> None:
    topic = MemoryTopic()
    topic.append([numbered(10), numbered(10, 10)])
    segment = topic.compact(1, {4, 7})
    split = LedgerSplit("orders", 0, segment, 5, 20)
    got = [rows async for rows in ledger_rows(topic, split, ("offset",))]
    assert [o for rows in got for o in rows.column("offset").to_pylist()] == [7]
    split = LedgerSplit("orders", 0, segment, 12, 20)
    assert [rows async for rows in ledger_rows(topic, split, ("offset",))] == []


class CountsBodies(MemoryTopic):
    """Says how many batches were given with their bodies."""

    bodies = 0

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        async with aclosing(super().batches(segment, start_offset, visible_end)) as found:
            async for item in found:
                self.bodies += 1
                yield item


NARROW = ("offset", "partition", "topic", "timestampType", "ledgerId", "entryId", "batchIndex",
          "producer", "sequence", "schemaId")  # fmt: skip


@pytest.mark.parametrize(("first", "end"), [(0, 60), (6, 31), (8, 9), (20, 44), (39, 60)])
@pytest.mark.parametrize("narrow_rows", [5, 1000])
async def test_columns_of_headers_are_those_of_bodies(
    first: int, end: int, narrow_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows, and no body opened: batches of two producers, control records between."""
    monkeypatch.setattr(reading, "NARROW_ROWS", narrow_rows)
    topic = CountsBodies()
    topic.append([numbered(4)])
    topic.segments[0].clear()
    topic.ends[0] = 0
    segment = topic.append(
        [*(numbered(4, 4 * n) for n in range(10)), numbered(20, 40)], producer=(9, 2, 40)
    )
    split = LedgerSplit("orders", 0, segment, first, end)
    narrow = [rows async for rows in ledger_rows(topic, split, NARROW)]
    assert topic.bodies == 0
    whole = [rows async for rows in ledger_rows(topic, split, (*NARROW, "value"))]
    assert topic.bodies > 0
    assert pa.Table.from_batches(narrow).to_pylist() == (
        pa.Table.from_batches(whole).drop_columns(["value"]).to_pylist()
    )
    assert all(rows.num_rows < narrow_rows + 20 for rows in narrow)


async def test_headers_of_control_batches_are_no_rows() -> None:
    topic = CountsBodies()
    topic.append([numbered(3)], flags=batches.BatchFlags.CONTROL)
    split = LedgerSplit("orders", 0, topic.segments[0][0], 0, 3)
    assert [rows async for rows in ledger_rows(topic, split, ("partition",))] == []


async def test_a_batch_that_lacks_records_is_opened_for_its_offsets() -> None:
    """Also where its segment is not known to be a compacted one."""
    topic = CountsBodies()
    topic.append([numbered(10), numbered(10, 10)])
    segment = replace(topic.compact(1, {4, 7, 12, 19}), compacted=False)
    split = LedgerSplit("orders", 0, segment, 5, 20)
    got = [rows async for rows in ledger_rows(topic, split, ("offset",))]
    assert [o for rows in got for o in rows.column("offset").to_pylist()] == [7, 12, 19]
    assert topic.bodies == 2


async def test_headers_that_end_early_are_an_error_too() -> None:
    topic, segment = ledger()
    del topic.stored[1][5:]
    with pytest.raises(CorruptEntry, match="ends at offset 20"):
        async for _ in ledger_rows(topic, LedgerSplit("orders", 0, segment, 0, 40), ("topic",)):
            pass


@pytest.mark.parametrize(
    ("columns", "decoded"),
    [
        (("offset", "value"), ["offset", "value"]),
        (("eventTime", "partition"), ["offset", "timestamp"]),
        (("key", "headers"), ["offset", "key", "headers"]),
    ],
)
def test_stored_columns_that_nobody_wants_are_not_decoded(
    columns: tuple[str, ...], decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def watched(
        given: Iterable[tuple[Buffer, BatchHeader]], names: Sequence[str]
    ) -> pa.RecordBatch:
        asked.append(names)
        return join_arrow(given, names)

    monkeypatch.setattr(export_columns, "join_arrow", watched)
    topic = MemoryTopic()
    topic.append([ODD_ROWS])
    stored = topic.stored[1][0]
    got = to_columns(stored, "orders", 0, columns)
    assert sorted(asked[0]) == sorted(decoded)
    monkeypatch.undo()
    everything = to_columns(stored, "orders", 0, tuple(export_columns.TYPES))
    assert got.equals(everything.select(list(columns)))


# --- files whose manifest says it all ------------------------------------------------------------


def exported(tmp_path: pathlib.Path, topic: MemoryTopic) -> list[FileSplit]:
    asyncio.run(export_log(topic, "orders", tmp_path))
    options = ReadOptions.parse({"path": str(tmp_path), "subscribe": "orders"})
    return [split for split in plan_files(options) if isinstance(split, FileSplit)]


@pytest.mark.parametrize(("first", "end"), [(0, 30), (7, 22), (29, 30)])
def test_offsets_of_a_file_without_gaps_are_not_read(
    tmp_path: pathlib.Path, first: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = MemoryTopic()
    topic.append([numbered(30)])
    (split,) = exported(tmp_path, topic)
    cut = replace(split, first=first, end=end, whole=(first, end) == (0, 30))
    columns = ("offset", "topic", "partition")
    read = pa.Table.from_batches(read_file_split(replace(cut, dense=False), columns))
    pathlib.Path(split.path).unlink()
    monkeypatch.setattr(reading, "NARROW_ROWS", 4)
    assert pa.Table.from_batches(read_file_split(cut, columns)).to_pylist() == read.to_pylist()
    with pytest.raises(StorageFailed, match="is gone"):
        list(read_file_split(cut, ("offset", "timestampType")))


def test_a_file_with_gaps_is_read_for_its_offsets(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10), numbered(10, 10)])
    topic.compact(1, {4, 7, 12, 19})
    (split,) = exported(tmp_path, topic)
    assert not split.dense
    (rows,) = read_file_split(split, ("offset",))
    assert ints(rows, "offset") == [4, 7, 12, 19]


# --- connections of a worker ---------------------------------------------------------------------


async def test_a_worker_keeps_its_connections_from_split_to_split() -> None:
    kept = WorkerConnections("test")
    one, two = {"bookie-1": "h:1"}, {"bookie-1": "h:2"}
    async with kept.of(one) as first, kept.of(dict(one)) as again, kept.of(two) as other:
        assert first is again
        assert other is not first, "the same id in another cluster is another bookie"
    async with kept.of(one) as later:
        assert later is first


async def test_a_worker_closes_what_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: asyncio.Queue[DescribedLedgers] = asyncio.Queue(CLUSTERS_MAX)

    async def closing(self: DescribedLedgers) -> None:
        await closed.put(self)

    monkeypatch.setattr(DescribedLedgers, "close", closing)
    kept = WorkerConnections("test")
    made: list[DescribedLedgers] = []
    for port in range(CLUSTERS_MAX + 2):
        async with kept.of({"bookie-1": f"h:{port}"}) as ledgers:
            made.append(ledgers)
    for longest_unused in made[:2]:
        gone = await closed.get()
        assert gone is longest_unused
    monkeypatch.setattr(worker_connections, "IDLE_S", 0.0)
    async with kept.of({"bookie-1": "h:5"}) as ledgers:
        assert ledgers is made[5]
    gone = await closed.get()
    assert gone is made[5]
    async with kept.of({"bookie-1": "h:5"}) as anew:
        assert anew is not made[5]


async def test_a_forked_child_makes_its_own_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = WorkerConnections("test")
    async with kept.of({"bookie-1": "h:1"}) as parents:
        pass
    monkeypatch.setattr(os, "getpid", lambda: -1)
    async with kept.of({"bookie-1": "h:1"}) as own:
        assert own is not parents


# --- the bridge to a synchronous consumer --------------------------------------------------------


async def counting(limit: int, made: list[int], closed: list[bool]) -> AsyncIterator[int]:
    try:
        for n in range(limit):
            made.append(n)
            yield n
    finally:
        closed.append(True)


def test_bridge_gives_everything_in_order_and_ends() -> None:
    closed: list[bool] = []
    assert list(iterate(lambda: counting(1000, [], closed), 4)) == list(range(1000))
    assert closed == [True]
    assert len(ScanLoop.current().tasks) == 0


def test_all_scans_of_a_process_share_a_thread() -> None:
    first, second = (iterate(lambda: counting(100, [], []), 4) for _ in range(2))
    assert list(zip(first, second, strict=True)) == [(n, n) for n in range(100)]
    assert len([t for t in threading.enumerate() if t.name == "octavo-scan"]) == 1


def test_bridge_runs_only_a_few_items_ahead() -> None:
    made: list[int] = []
    running = iterate(lambda: counting(1000, made, []), 4)
    for expected in range(10):
        assert next(running) == expected
        assert len(made) <= expected + 2 + 4
    running.close()  # type: ignore[attr-defined]


def test_bridge_left_early_cleans_up_the_source() -> None:
    closed: list[bool] = []
    running = iterate(lambda: counting(1000, [], closed), 4)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert len(ScanLoop.current().tasks) == 0


def test_bridge_raises_what_the_source_raised_after_its_items() -> None:
    async def failing() -> AsyncIterator[int]:
        yield 1
        raise ReadUnknown("lost")

    running = iterate(failing, 4)
    assert next(running) == 1
    with pytest.raises(ReadUnknown, match="lost"):
        next(running)


def test_bridge_keeps_the_loop_alive_while_the_consumer_is_away() -> None:
    """Keep-alives of connections must not depend on how fast Spark pulls."""
    beats = threading.Event()

    async def with_heartbeat() -> AsyncIterator[int]:
        async def beat() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
            beats.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beat())
            for n in range(100):
                yield n

    running = iterate(with_heartbeat, 1)
    assert next(running) == 0
    assert beats.wait(timeout=60)
    assert list(running) == list(range(1, 100))
