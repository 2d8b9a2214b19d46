"""Every crash point and every flipped byte of a recorded journal (spec/ledger.md §6.8; faults
§4.6)."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.bookie.journal.replay import Evidence, judge, span_records
from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    START,
    Position,
    RecordType,
    batch_records,
    scan_segment,
)
from octavo.runtime.errors import CorruptEntry
from tests.bookie_rig import entry
from tests.unit.test_bookie_segment import INSTANCE, SegmentBytes, replayed, verdict

batches = st.lists(
    st.lists(st.integers(0, 60).map(lambda n: b"p" * n), max_size=4), min_size=1, max_size=5
)


def recorded(shape: list[list[bytes]]) -> tuple[SegmentBytes, list[tuple[int, list[bytes]]]]:
    """A segment written from `shape`, and what was acknowledged once each offset was synced."""
    segment = SegmentBytes()
    acked: list[tuple[int, list[bytes]]] = []
    next_id = 0
    for payloads in shape:
        entries: list[bytes] = []
        for payload in payloads:
            entries.append(entry(1, next_id, payload))
            next_id += 1
        end = segment.batch(*((RecordType.ENTRY, data) for data in entries))
        acked.append((end.offset, entries))
    return segment, acked


@given(batches)
def test_round_trip(shape: list[list[bytes]]) -> None:
    segment, acked = recorded(shape)
    data = segment.blank()
    scan = scan_segment(data, 0)
    found = [[r.data for r in batch_records(data, b)] for b in scan.batches]
    assert found == [entries for _, entries in acked]
    assert scan.end == len(segment.data)
    assert not scan.beyond


@settings(max_examples=25, deadline=None)
@given(batches)
def test_crash_at_every_prefix_keeps_what_was_acknowledged(shape: list[list[bytes]]) -> None:
    """B-15, B-16: acked ⊆ readable, and what is readable is a prefix of what was written."""
    segment, acked = recorded(shape)
    whole = [data for _, entries in acked for data in entries]
    full = len(segment.data)
    for cut in range(HEADER_BYTES, full + 1):
        files = {1: bytes(segment.data[:cut]) + b"\0" * (full - cut + 64)}
        found = verdict(files)
        assert found.problems == []
        readable = replayed(files, found)
        must = [data for end, entries in acked if end <= cut for data in entries]
        assert readable[: len(must)] == must
        assert readable == whole[: len(readable)]


@settings(max_examples=10, deadline=None)
@given(batches, st.integers(1, 255))
def test_every_flipped_byte_is_harmless_or_noticed(shape: list[list[bytes]], mask: int) -> None:
    """Never wrong bytes, never a silent loss: torn only behind the last proof, else uncertain
    boot."""
    segment, acked = recorded(shape)
    segment.batch()  # the idle mark proves everything before it (B-15)
    data = segment.blank(64)
    whole = [record for _, entries in acked for record in entries]
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= mask
        files = {1: bytes(changed)}
        found = verdict(files)
        readable = replayed(files, found)
        assert readable == whole[: len(readable)]
        if readable != whole:
            assert found.problems, f"flip at {offset} lost acknowledged entries silently"


@given(batches, st.data())
def test_replay_from_any_mark_gives_the_rest(shape: list[list[bytes]], data: st.DataObject) -> None:
    """B-14: from the start of any batch on, replay yields exactly the later records."""
    segment, acked = recorded(shape)
    index = data.draw(st.integers(0, len(acked) - 1))
    files = {1: segment.blank()}
    found = judge(Position(1, acked[index][0]), [1], lambda n: files[n], INSTANCE)
    assert found.problems == []
    assert replayed(files, found) == [e for _, entries in acked[index + 1 :] for e in entries]


@given(st.binary(max_size=400))
def test_arbitrary_bytes_never_raise_anything_unforeseen(tail: bytes) -> None:
    segment = SegmentBytes()
    segment.batch((0, b"acked"))
    files = {1: bytes(segment.data) + tail, 2: tail}
    found = judge(START, [1, 2], lambda n: files[n], INSTANCE)
    for span in (*found.spans, *found.tail):
        for _, records in span_records(span, files[span.segment]):
            assert all(len(r.data) <= MAX_RECORD_BYTES for r in records)


@given(st.integers(0, 2**32 - 1))
def test_declared_lengths_are_checked_before_use(word: int) -> None:
    segment = SegmentBytes()
    segment.batch((0, b"abc"))
    data = bytearray(segment.data)
    scan = scan_segment(bytes(data), 0)
    struct.pack_into(">I", data, scan.batches[0].end - 3 - 4, word)
    if (word & MAX_RECORD_BYTES) != 3:
        try:
            list(batch_records(bytes(data), scan.batches[0]))
        except CorruptEntry:
            return
        raise AssertionError("wrong length was accepted")


def damaged(data: bytes, how: str, at: int) -> bytes:
    """What a disk may make of a file: its end is gone, zeroed, or one sector is."""
    if how == "cut":
        return data[:at]
    if how == "zeroed from here":
        return data[:at] + bytes(len(data) - at)
    return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]


@settings(max_examples=15, deadline=None)
@given(batches, st.sampled_from(["cut", "zeroed from here", "one sector"]), st.data())
def test_inv9_no_damage_passes_for_a_torn_tail(
    shape: list[list[bytes]], how: str, data: st.DataObject
) -> None:
    """With evidence outside of the file every loss of what it covers is a problem, never an end;
    what lies behind it is kept, or was torn."""
    segment, acked = recorded(shape)
    proven_count = data.draw(st.integers(0, len(acked)))
    proven = Position(1, acked[proven_count - 1][0] if proven_count else HEADER_BYTES)
    must = [record for _, entries in acked[:proven_count] for record in entries]
    whole = segment.blank(64)
    evidence = [Evidence(proven, "a test")]
    for at in range(0, len(segment.data), 7):
        files = {1: damaged(whole, how, at)}
        found = judge(START, [1], files.__getitem__, INSTANCE, evidence=evidence)
        if not found.problems:
            assert replayed(files, found)[: len(must)] == must, f"{how} at {at} passed"
            assert found.durable >= proven
