"""Segments as Spark plans with them: what is not known is never a reason to leave a piece out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from octavo.client.exports.columns import arrow_schema
from octavo.client.exports.log_view import PartitionLog
from octavo.client.exports.metadata_columns import METADATA_COLUMNS
from octavo.client.messaging.api.descriptions import LogDescription
from octavo.proto.kafka_columns import TYPES
from octavo.proto.segments import Segment
from octavo.runtime.ids import EntryId, LedgerId
from octavo.spark.live import partition_log
from octavo.spark.plan import LedgerSplit, Split, view_of
from octavo.spark.reading import time_lookup
from octavo.spark.source import HEADER_COLUMNS, KAFKA_COLUMNS

CLOSED = Segment(
    LedgerId(1), 0, 10, 100, last_append_ms=50, last_entry=EntryId(3), max_timestamp_ms=70
)
OPEN = Segment(LedgerId(2), 10)


@pytest.mark.parametrize(
    ("segments", "told", "end"),
    [
        ((CLOSED, OPEN), 14, 14),
        ((CLOSED,), 10, 10),
        ((CLOSED,), 14, 10),  # an older broker told a newer high watermark: nothing holds 10..13
        ((CLOSED, OPEN), 10, 10),
        ((), 7, 7),
    ],
)
def test_no_offset_is_promised_that_no_segment_holds(
    segments: tuple[Segment, ...], told: int, end: int
) -> None:
    found = partition_log(LogDescription("orders", 3, 2, told, 1, segments, ()))
    assert found == PartitionLog(3, 2, end, segments)
    assert view_of("orders", 3, log=found).latest == end


def test_the_open_segment_is_cut_at_the_high_watermark() -> None:
    splits = view_of("orders", 0, log=PartitionLog(0, 4, 13, (CLOSED, OPEN))).splits
    assert [(piece.first, piece.end) for piece in splits] == [(4, 10), (10, 13)]


@pytest.mark.parametrize(
    ("segment", "newest_ms"),
    [
        (CLOSED, 70),
        (replace(CLOSED, last_append_ms=90), 90),
        (replace(CLOSED, max_timestamp_ms=None), None),
        (replace(CLOSED, last_append_ms=None), None),
        (replace(OPEN, max_timestamp_ms=70, last_append_ms=50), None),
    ],
)
def test_a_piece_is_as_new_as_it_may_be(segment: Segment, newest_ms: int | None) -> None:
    assert LedgerSplit("orders", 0, segment, 0, 10).newest_ms == newest_ms


@pytest.mark.parametrize("known", [True, False])
def test_a_piece_whose_newest_time_is_not_known_is_looked_into(known: bool) -> None:
    segment = CLOSED if known else replace(CLOSED, max_timestamp_ms=None)
    view = view_of("orders", 0, log=PartitionLog(0, 0, 10, (segment,)))
    times = pa.array([60_000, 80_000], pa.timestamp("us", tz="UTC"))
    rows = pa.RecordBatch.from_arrays([pa.array([4, 5]), times], names=["offset", "timestamp"])

    def read(_: Split, __: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield rows

    assert time_lookup(read)(view, 75) == (None if known else 5)


def test_columns_are_named_and_typed_once() -> None:
    assert [*KAFKA_COLUMNS, *HEADER_COLUMNS] == list(TYPES)
    names = [*KAFKA_COLUMNS, *HEADER_COLUMNS, *METADATA_COLUMNS]
    assert arrow_schema(names).names == names
