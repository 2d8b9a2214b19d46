"""Rows of a ledger, and handing them to a thread that is not the loop's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from octavo.proto import batch as batches
from octavo.proto.segments import Segment
from octavo.runtime.errors import CorruptEntry, ReadUnknown
from octavo.runtime.ids import EntryId
from octavo.spark.loop_bridge import iterate
from octavo.spark.plan import LedgerSplit
from octavo.spark.reading import ledger_rows
from tests.spark_memory import MemoryTopic, numbered


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
