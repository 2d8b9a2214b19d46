"""Reading ledgers entry by entry and handing rows to a thread that is not the loop's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from octavo.client.segments import scan as scanning
from octavo.client.segments.scan import scan, start_entry
from octavo.proto import batch as batches
from octavo.proto.entry import encode_header
from octavo.proto.segments import Segment
from octavo.runtime.errors import CorruptEntry, ReadUnknown
from octavo.runtime.ids import EntryId
from octavo.spark.loop_bridge import iterate
from octavo.spark.plan import LedgerSplit
from octavo.spark.reading import ledger_rows
from tests.spark_memory import MemoryTopic, numbered


class MemoryReader:
    """A ledger's entries with a snapshot first and a footer last, read a few at a time."""

    def __init__(
        self, topic: MemoryTopic, ledger: int, *, chunk: int = 3, lac: int | None = None
    ) -> None:
        payloads = [
            b"\xb8snapshot",
            *(bytes(s.batch) for s in topic.stored[ledger]),
            b"\xb9footer",
        ]
        self.entries = [
            encode_header(ledger, n, n - 1, 0, payload) + payload
            for n, payload in enumerate(payloads)
        ]
        self.chunk = chunk
        self.lac = len(self.entries) - 1 if lac is None else lac
        self.reads: list[int] = []
        self.beyond: list[int] = []

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> list[bytes]:
        self.reads.append(first)
        assert first <= self.lac
        return self.entries[first : min(first + min(max_count, self.chunk), self.lac + 1)]

    async def last_add_confirmed(self) -> EntryId:
        return EntryId(self.lac)

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        self.lac = self.beyond.pop(0) if self.beyond else self.lac
        return EntryId(self.lac)

    async def close(self) -> None:
        return


def ledger(count: int = 10, size: int = 4, *, closed: bool = True) -> tuple[MemoryTopic, Segment]:
    topic = MemoryTopic()
    made = topic.append([numbered(size, size * n) for n in range(count)], closed=closed)
    return topic, replace(made, last_entry=EntryId(count + 1)) if closed else made


async def offsets(reader: MemoryReader, segment: Segment, start: int, end: int = 40) -> list[int]:
    found: list[int] = []
    async for stored in scan(reader, segment, start, end):
        found += batches.decode_rows(stored.batch).offsets
    return found


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("start", [0, 1, 3, 4, 17, 39])
async def test_scan_starts_at_the_batch_that_holds_the_offset(chunk: int, start: int) -> None:
    topic, segment = ledger()
    found = await offsets(MemoryReader(topic, 1, chunk=chunk), segment, start)
    assert found == list(range(start - start % 4, 40))


async def test_start_in_the_middle_reads_no_more_than_it_must() -> None:
    topic, segment = ledger(count=1000)
    reader = MemoryReader(topic, 1, chunk=100)
    await offsets(reader, segment, 3600)
    assert len(reader.reads) < 1 + 10 + 3  # the footer, a binary search, then the last tenth


async def test_find_entry_in_a_ledger_without_batches() -> None:
    """Nothing to read: it starts behind the last entry."""
    topic = MemoryTopic()
    empty = replace(topic.append([]), last_entry=EntryId(1))
    assert await start_entry(MemoryReader(topic, 1), empty, 5, EntryId(1)) == 2
    assert await offsets(MemoryReader(topic, 1), empty, 5) == []


async def test_open_ledger_is_read_to_the_high_watermark_only() -> None:
    topic, segment = ledger(closed=False)
    reader = MemoryReader(topic, 1, lac=10)
    assert await offsets(reader, segment, 0, 12) == list(range(12))


async def test_open_ledger_waits_for_the_trailing_lac() -> None:
    """RD-6: bookies may know less than the broker for a moment."""
    topic, segment = ledger(closed=False)
    reader = MemoryReader(topic, 1, lac=4)
    reader.beyond = [4, 6, 10]
    assert await offsets(reader, segment, 0) == list(range(40))
    assert reader.beyond == []


async def test_open_ledger_that_never_confirms_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "LAC_WAIT_S", 0.0)
    topic, segment = ledger(closed=False)
    with pytest.raises(ReadUnknown, match="offset 40 was acknowledged"):
        await offsets(MemoryReader(topic, 1, lac=4), segment, 0)


async def test_scan_left_early_leaves_no_task_behind() -> None:
    topic, segment = ledger()
    running = scan(MemoryReader(topic, 1), segment, 0, 40)
    await anext(running)
    await running.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_failed_read_ahead_is_raised_once_it_is_needed() -> None:
    topic, segment = ledger()
    reader = MemoryReader(topic, 1)

    async def read(first: EntryId, *, max_count: int, max_bytes: int) -> list[bytes]:
        if first == 3:
            raise ReadUnknown("bookies are gone")
        return reader.entries[first : first + 3]

    reader.read = read  # type: ignore[method-assign]
    running = scan(reader, segment, 0, 40)
    assert [(await anext(running)).entry_id for _ in range(2)] == [1, 2]
    with pytest.raises(ReadUnknown, match="are gone"):
        await anext(running)


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
    assert not [t for t in threading.enumerate() if t.name == "octavo-scan"]


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
    assert not [t for t in threading.enumerate() if t.name == "octavo-scan"]


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
    assert beats.wait(timeout=10)
    assert list(running) == list(range(1, 100))
