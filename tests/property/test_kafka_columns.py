"""`poll_arrow` and the Spark source give the same eight columns for the same stored bytes."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.exports.columns import EXPORTED, arrow_schema, join_columns, to_columns
from octavo.client.messaging.reading import arrow
from octavo.client.messaging.records import TopicPartition
from octavo.proto.batch import BatchFlags, decode_header
from octavo.proto.kafka_columns import SCHEMA, micros
from octavo.proto.segments import StoredBatch
from tests.spark_memory import MemoryTopic, Row

INT64_MAX = 2**63 - 1
BINARY = st.none() | st.binary(max_size=5)
HEADERS = st.lists(st.tuples(st.text("ab", max_size=2), BINARY), max_size=2).map(tuple)
TIMES = st.integers(-(10**11), 10**13) | st.sampled_from(
    [0, -1, INT64_MAX, -INT64_MAX - 1, INT64_MAX // 1000, INT64_MAX // 1000 + 1]
)
BATCHES = st.lists(
    st.tuples(
        st.lists(st.builds(Row, BINARY, BINARY, HEADERS, TIMES), min_size=1, max_size=5),
        st.sampled_from([0, BatchFlags.APPEND_TIME]),
    ),
    min_size=1,
    max_size=5,
)


def polled(stored: list[StoredBatch], first: int, end: int) -> pa.RecordBatch:
    where = TopicPartition("orders", 0)
    items = [
        arrow.StoredBatch(where, item.batch, decode_header(item.batch), first, end)
        for item in stored
    ]
    return arrow.to_record_batch(items)


@given(BATCHES, st.integers(0, 6), st.integers(0, 25))
def test_p13_polled_and_scanned_columns_are_equal(
    batches: list[tuple[list[Row], int]], first: int, end: int
) -> None:
    topic = MemoryTopic()
    for rows, flags in batches:
        topic.append([rows], flags=flags)
    stored = [item for ledger in topic.stored.values() for item in ledger]
    scanned = pa.Table.from_batches([to_columns(item, "orders", 0, EXPORTED) for item in stored])
    got = polled(stored, 0, topic.end())
    assert got.schema.equals(SCHEMA)
    assert SCHEMA.equals(arrow_schema(EXPORTED))
    assert pa.Table.from_batches([got]).equals(scanned)
    assert pa.Table.from_batches([join_columns(stored, "orders", 0, EXPORTED)]).equals(scanned)
    part = polled(stored, first, end).column("offset").to_pylist()
    assert part == [n for n in range(topic.end()) if first <= n < end]


def test_a_record_without_headers_has_none_whatever_its_neighbours_have() -> None:
    topic = MemoryTopic()
    topic.append([[Row(b"k", b"v"), Row(b"k", b"v", (("a", b"1"),))], [Row(None, b"v")]])
    assert polled(topic.stored[1], 0, 3).column("headers").to_pylist() == [
        None,
        [{"key": "a", "value": b"1"}],
        None,
    ]


@pytest.mark.parametrize(
    ("stored_ms", "given_us"),
    [(-1, -1000), (INT64_MAX, INT64_MAX), (-INT64_MAX - 1, -INT64_MAX), (2**53, 2**53 * 1000)],
)
def test_an_absurd_time_is_the_nearest_that_there_is(stored_ms: int, given_us: int) -> None:
    times = micros(pa.array([0, stored_ms], pa.timestamp("ms", tz="UTC")))
    assert cast("list[int]", times.cast(pa.int64()).to_pylist()) == [0, given_us]
