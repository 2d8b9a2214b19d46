"""The two stored forms of a segment: both directions, and what was stored before (ML-1)."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.partition_record import PartitionState
from octavo.proto import broker_pb2 as pb
from octavo.proto import records_pb2
from octavo.proto.segment_codecs import from_info, from_record, to_info, to_record
from octavo.proto.segment_entries import SegmentFigures, known_time
from octavo.proto.segments import Segment
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId

INT64_MAX = 2**63 - 1
WHOLE = st.integers(0, INT64_MAX)
WALL_MS = st.none() | st.integers(1, INT64_MAX)
"""Nobody appends at the very beginning of 1970."""


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    closed = draw(st.booleans())
    return Segment(
        ledger_id=LedgerId(draw(WHOLE)),
        base_offset=draw(WHOLE),
        end_offset=draw(WHOLE) if closed else None,
        size_bytes=draw(WHOLE),
        first_append_ms=draw(WALL_MS),
        last_append_ms=draw(WALL_MS),
        last_entry=EntryId(draw(st.integers(-1, INT64_MAX))) if closed else NO_ENTRY,
        max_timestamp_ms=draw(st.none() | WHOLE),
        ledger_record=draw(st.binary(max_size=4)),
        compacted=draw(st.booleans()),
        dense=draw(st.booleans()),
    )


@given(segments())
def test_the_list_keeps_everything_but_the_ledgers_record(segment: Segment) -> None:
    stored = to_record(segment).SerializeToString(deterministic=True)
    found = from_record(records_pb2.SegmentRecord.FromString(stored))
    assert found == replace(segment, ledger_record=b"")
    assert to_record(found).SerializeToString(deterministic=True) == stored


@given(segments(), WHOLE)
def test_a_reader_gets_the_segment_that_the_broker_has(segment: Segment, end: int) -> None:
    info = pb.SegmentInfo.FromString(to_info(segment, end).SerializeToString())
    assert from_info(info) == segment
    assert info.state == ("CLOSED" if segment.closed else "OPEN")
    assert info.end_offset == (segment.end_offset if segment.closed else end)


@given(segments(), WHOLE)
def test_where_a_segment_ends_for_a_reader(segment: Segment, high_watermark: int) -> None:
    end = segment.end_below(high_watermark)
    assert end <= high_watermark
    assert end in (segment.end_offset, high_watermark)


@given(segments())
def test_a_segment_travels_to_workers(segment: Segment) -> None:
    assert pickle.loads(pickle.dumps(segment)) == segment  # noqa: S301  # our own bytes


BEFORE = bytes.fromhex(
    "08011210000000000000000000000000000000071803222008091004181420bc052881d095ffbc313089d095ffbc31"
    "38064085d095ffbc312213080b10141814204040ffffffffffffffffff01221a080c101438ffffffffffffffffff01"
    "40ffffffffffffffffff012805300c38044a0177"
)
"""A partition's record as the first release wrote it: a closed segment, one that holds a snapshot
only, and the open one."""


def test_a_record_stored_before_reads_as_it_was_meant_and_is_written_the_same() -> None:
    state = PartitionState.from_bytes(BEFORE, uuid.UUID(int=7), 3)
    assert state.segments == (
        Segment(
            LedgerId(9),
            4,
            20,
            700,
            first_append_ms=1_700_000_000_001,
            last_append_ms=1_700_000_000_009,
            last_entry=EntryId(6),
            max_timestamp_ms=1_700_000_000_005,
        ),
        Segment(LedgerId(11), 20, 20, 64, last_entry=EntryId(0)),
        Segment(LedgerId(12), 20),
    )
    assert [segment.closed for segment in state.segments] == [True, True, False]
    assert state.to_bytes() == BEFORE


@pytest.mark.parametrize("state", ["OPEN", "", "SEALING", "closed"])
def test_a_state_that_is_not_known_is_not_closed(state: str) -> None:
    """A newer broker may have more states; the end of such a segment is not final for us."""
    info = pb.SegmentInfo(ledger_id=3, base_offset=5, end_offset=9, state=state, last_entry=8)
    assert from_info(info) == Segment(LedgerId(3), 5, max_timestamp_ms=0)


def test_what_is_not_known_has_one_spelling_in_each_form() -> None:
    unknown = Segment(LedgerId(3), 5, 5)
    for form in (to_record(unknown), to_info(unknown, 5)):
        assert (form.first_append_ms, form.last_append_ms, form.max_timestamp_ms) == (0, 0, -1)
        assert form.last_entry == NO_ENTRY


def test_a_record_of_1970_has_a_time() -> None:
    """0 is a record's time like another; only of appends it means nothing."""
    segment = Segment(LedgerId(3), 5, 6, max_timestamp_ms=0)
    assert from_record(to_record(segment)).max_timestamp_ms == 0
    assert from_info(to_info(segment, 6)).max_timestamp_ms == 0


def test_figures_without_batches_tell_no_time() -> None:
    assert [known_time(figure) for figure in SegmentFigures()[1:]] == [None, None, None]
    assert [known_time(figure) for figure in (0, 1)] == [0, 1]
