"""An exported file with its index gives the stored batches back, whatever they were (ADR 68)."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.exports import arrow_files
from octavo.client.exports.cold import ColdFile
from octavo.client.exports.manifest import Manifest
from octavo.client.exports.run import export_log
from octavo.client.exports.tree import LocalTree
from octavo.proto import batch as batches
from octavo.proto.batch import BatchFlags, BatchHeader, Rows
from octavo.proto.compression import Codec
from octavo.proto.segments import StoredBatch
from tests.spark_memory import MemoryTopic, Row

BINARY = st.none() | st.binary(max_size=12)
ROWS = st.builds(
    Row,
    BINARY,
    BINARY,
    st.lists(st.tuples(st.text("aé", max_size=2), BINARY), max_size=2).map(tuple),
    st.integers(-(10**11), 10**13) | st.sampled_from([-(2**63), 2**63 - 1, 2**62]),
)


class Ledger(NamedTuple):
    """What one ledger is made of."""

    groups: list[list[Row]]
    flags: int
    codec: int
    producer: tuple[int, int, int]
    size_bytes: int


LEDGERS = st.lists(
    st.builds(
        Ledger,
        st.lists(st.lists(ROWS, min_size=1, max_size=9), max_size=4),
        st.sampled_from([0, 0, 0, BatchFlags.APPEND_TIME, BatchFlags.CONTROL]),
        st.sampled_from(list(Codec)),
        st.sampled_from([(-1, -1, -1), (7, 3, 2**31 - 5), (2**40, 0, 0)]),
        st.sampled_from([100, 20 << 20]),  # small ledgers share files
    ),
    min_size=1,
    max_size=5,
)
BODY = ("body_crc", "body_bytes", "uncompressed_bytes")


def kept(topic: MemoryTopic) -> list[StoredBatch]:
    """The data batches of the log, in offset order."""
    found = [item for segment in topic.segments[0] for item in topic.stored[segment.ledger_id]]
    return [b for b in found if not batches.decode_header(b.batch).flags & BatchFlags.CONTROL]


def fields(header: BatchHeader) -> dict[str, int]:
    """What a reader may see of a header; the body is encoded anew."""
    return {name: n for name, n in header._asdict().items() if name not in BODY}


def records(stored: list[StoredBatch]) -> list[tuple[object, ...]]:
    """Every record with all that a reader is told, as the SDK decodes it."""
    found: list[tuple[object, ...]] = []
    for item in stored:
        rows: Rows = batches.decode_rows(item.batch)
        headers = rows.headers or [[] for _ in rows.keys]
        columns = (rows.offsets, rows.timestamps_ms, rows.keys, rows.values, headers)
        found += zip(*columns, strict=True)
    return found


def walk(cold: ColdFile, start: int, size_bytes: int) -> Iterator[StoredBatch]:
    """All batches from `start` on, as a reader asks for them."""
    while some := cold.batches(start, size_bytes):
        yield from some
        start = batches.decode_header(some[-1].batch).next_offset


@settings(max_examples=25, deadline=None)
@given(
    ledgers=LEDGERS,
    compacted=st.integers(0, 3),
    keep=st.sets(st.integers(0, 60)),
    fmt=st.sampled_from(["arrow", "arrow", "parquet"]),
    start=st.integers(0, 90),
    size_bytes=st.sampled_from([1, 300, 1 << 20]),
    time_ms=st.integers(-(10**11), 10**13),
)
def test_a_cold_file_gives_the_batches_of_its_ledgers(
    ledgers: list[Ledger],
    compacted: int,
    keep: set[int],
    fmt: str,
    start: int,
    size_bytes: int,
    time_ms: int,
) -> None:
    topic = MemoryTopic()
    for one in ledgers:
        topic.append(
            one.groups,
            flags=one.flags,
            codec=one.codec,
            producer=one.producer,
            size_bytes=one.size_bytes,
        )
    if compacted:
        topic.compact(compacted, keep)
    want = kept(topic)
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as opened,
    ):
        patch.setattr(arrow_files, "BATCH_ROWS", 7)
        patch.setattr(arrow_files, "FILE_BYTES_MAX", 2000)
        asyncio.run(export_log(topic, "orders", pathlib.Path(folder), fmt=fmt, index=True))
        tree = LocalTree(folder)
        files = [
            opened.enter_context(ColdFile(tree, "orders", entry))
            for entry in Manifest(tree, "orders").load().of_partition(0)
        ]
        got = [item for cold in files for item in walk(cold, 0, size_bytes)]
        assert records(got) == records(want)
        assert [fields(batches.verify(b.batch)) for b in got] == [
            fields(batches.verify(b.batch)) for b in want
        ]
        assert [b[:2] for b in got] == [b[:2] for b in want]
        headers = [cold.header(n) for cold in files for n in range(cold.entries)]
        assert headers == [(b.entry_id, batches.verify(b.batch)) for b in want]
        later = [item for cold in files for item in walk(cold, start, size_bytes)]
        assert later == [b for b in got if batches.decode_header(b.batch).next_offset > start]
        for cold in files:
            held = [cold.header(n).header for n in range(cold.entries)]
            late = [n for n, h in enumerate(held) if h.max_timestamp_ms >= time_ms]
            assert cold.find_time(time_ms) == (late[0] if late else cold.entries)
