"""When a segment is said to hold a record at each of its offsets, and what readers make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.proto import batch as batches
from octavo.proto.batch import BatchFlags, BatchHeader
from octavo.runtime.ids import LedgerId
from octavo.serving.partition.log import Figures
from octavo.spark import ledger_reading, reading
from octavo.spark.ledger_reading import read_split
from octavo.spark.plan import LedgerSplit
from octavo.spark.reading import ledger_rows
from tests.serving_rig import NAME, Answers, Rig, make_batch, produce
from tests.spark_memory import MemoryTopic, numbered

HIDDEN = BatchFlags.CONTROL | BatchFlags.TRANSACTIONAL | BatchFlags.COMPACTED


def header(base: int, records: int, delta: int, flags: int) -> BatchHeader:
    plain = batches.decode_header(make_batch([b"v"]))
    return plain._replace(
        record_count=records, base_offset=base, last_offset_delta=delta, flags=flags
    )


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, list[BatchHeader]]:
    """A base offset and batches behind it: most of them whole, some with less than all offsets."""
    base = at = draw(st.integers(0, 50))
    found: list[BatchHeader] = []
    for _ in range(draw(st.integers(0, 5))):
        at += draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1]))
        records = draw(st.integers(1, 4))
        missing = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
        flags = draw(
            st.sampled_from([0, 0, 0, BatchFlags.HEADERS, BatchFlags.APPEND_TIME, 1, 2, 8, 33])
        )
        found.append(header(at, records, records - 1 + missing, flags))
        at = found[-1].next_offset
    return base, found


@given(logs())
def test_a_segment_is_dense_only_if_each_offset_is_a_record_for_everybody(
    log: tuple[int, list[BatchHeader]],
) -> None:
    base, headers = log
    figures = Figures(whole_from=base)
    held: set[int] = set()
    end = base
    for one in headers:
        figures.note(one, 10)
        end = one.next_offset
        if not one.flags & HIDDEN and one.record_count == one.last_offset_delta + 1:
            held.update(range(one.base_offset, end))
    assert (figures.dense_to == end) == (held == set(range(base, end)))
    assert figures.dense_to in (None, end)


def test_figures_that_begin_in_the_middle_know_nothing_of_what_was_before() -> None:
    figures = Figures(Figures().value)
    figures.note(header(7, 2, 1, 0), 10)
    assert figures.dense_to is None


async def test_owners_tell_it_of_what_they_wrote_and_of_what_they_read_whole(rig: Rig) -> None:
    first = rig.broker()
    shell = await first.open()
    await produce(shell, make_batch([b"a", b"b"]))
    assert [(one.closed, one.dense) for one in shell.described()] == [(False, True)]
    await shell.roll()
    await produce(shell, make_batch([b"c"]))
    # It dies: the next owner recovers the open one and reads it from its first snapshot on.
    second = rig.broker()
    moved = await second.open()
    record = await second.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert [(one.end_offset, one.dense) for one in record.state.segments] == [(2, True), (3, True)]
    assert [one.dense for one in moved.described()] == [True, True]


async def test_a_segment_that_was_read_from_its_middle_is_not_called_dense(rig: Rig) -> None:
    """Its newest snapshot tells the next owner what it needs, but not which records lie before."""
    first = rig.broker(snapshot_interval_records=2)
    shell = await first.open()
    answers = Answers()
    for number in range(6):
        shell.append(make_batch([b"%d" % number]), -1, answers.reply)
        await answers.wait(number + 1)
    second = rig.broker()
    await second.open()
    record = await second.catalog.read(NAME.topic_id, 0)
    assert record is not None
    assert [(one.end_offset, one.dense) for one in record.state.segments] == [(6, False)]


# --- readers -------------------------------------------------------------------------------------

PLACE = ("offset", "partition", "topic", "ledgerId")


@pytest.mark.parametrize("columns", [PLACE, ("partition",), ("ledgerId", "offset")])
def test_columns_that_follow_from_the_place_of_a_dense_ledger_are_not_read(
    columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bookie has an address here; the rows are those that reading gives."""
    monkeypatch.setattr(reading, "NARROW_ROWS", 7)
    topic = MemoryTopic()
    segment = topic.append([numbered(4, 4 * n) for n in range(10)])
    split = LedgerSplit("orders", 3, replace(segment, dense=True), 6, 31)
    told = pa.Table.from_batches(read_split(split, columns))

    async def read() -> list[pa.RecordBatch]:
        return [rows async for rows in ledger_rows(topic, split, columns)]

    assert told.equals(pa.Table.from_batches(asyncio.run(read())))
    assert told.num_rows == 25


@pytest.mark.parametrize(
    ("columns", "change"),
    [
        (("offset",), {"dense": False}),
        (("offset",), {"compacted": True}),
        (("offset", "timestampType"), {}),
        (("offset", "key"), {}),
        ((), {}),
    ],
)
def test_whatever_does_not_surely_follow_is_read(
    columns: tuple[str, ...], change: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LedgerId] = []

    def iterate(*_: object) -> Iterator[pa.RecordBatch]:
        asked.append(split.segment.ledger_id)
        return iter(())

    monkeypatch.setattr(ledger_reading, "iterate", iterate)
    segment = MemoryTopic().append([numbered(4)])
    split = LedgerSplit("orders", 0, replace(segment, dense=True), 0, 4)
    split = replace(split, segment=replace(split.segment, **change))  # type: ignore[arg-type]
    assert list(read_split(split, columns)) == []
    assert asked == [segment.ledger_id]
