"""Sparse index and binary search against brute force."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from octavo.client.segments.index import SparseIndex
from octavo.client.segments.search import OffsetSearch
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.segment_entries import SegmentFigures, decode_footer, encode_footer
from tests.serving_rig import make_batch

_TEMPLATE = decode_header(make_batch([b"v"]))


class Stored(NamedTuple):
    """An entry of a ledger: a batch, or a control entry without a header."""

    header: BatchHeader | None
    size: int


@st.composite
def ledgers(draw: st.DrawFn) -> list[Stored]:
    entries: list[Stored] = []
    offset = draw(st.integers(0, 1000))
    for _ in range(draw(st.integers(1, 60))):
        if draw(st.integers(0, 5)) == 0:
            entries.append(Stored(None, 50))
            continue
        count = draw(st.integers(1, 5))
        offset += draw(st.sampled_from([0, 0, 0, 3]))  # a gap, as compaction leaves it
        header = _TEMPLATE._replace(
            base_offset=offset,
            last_offset_delta=count - 1,
            max_timestamp_ms=draw(st.integers(0, 50)),
        )
        entries.append(Stored(header, draw(st.integers(80, 400))))
        offset += count
    return entries


def build(entries: list[Stored], interval: int) -> SparseIndex:
    index = SparseIndex(interval)
    for entry_id, stored in enumerate(entries):
        if stored.header is not None:
            index.note(stored.header, entry_id, stored.size)
    return index


def first_batch_after(entries: list[Stored], offset: int) -> int | None:
    """The entry a reader of `offset` must get: the first batch that ends after it."""
    for entry_id, stored in enumerate(entries):
        if stored.header is not None and stored.header.next_offset > offset:
            return entry_id
    return None


def scan_from(entries: list[Stored], start: int, offset: int) -> int | None:
    found = first_batch_after(entries[start:], offset)
    return None if found is None else found + start


@given(ledgers(), st.sampled_from([1, 200, 1000, 10**9]), st.integers(-1, 1500))
def test_index_never_starts_after_the_batch(
    entries: list[Stored], interval: int, offset: int
) -> None:
    index = build(entries, interval)
    start = index.entry_for_offset(offset)
    wanted = first_batch_after(entries, offset)
    if start is None:
        assert all(stored.header is None for stored in entries)
        return
    assert scan_from(entries, start, offset) == wanted
    if wanted is not None:
        skipped = sum(s.size for s in entries[start:wanted] if s.header is not None)
        assert skipped <= interval + 400  # bounded work behind the index


@given(ledgers(), st.sampled_from([1, 200, 10**9]), st.integers(-1, 60))
def test_time_lookup_never_passes_the_first_batch_that_reaches_the_time(
    entries: list[Stored], interval: int, timestamp: int
) -> None:
    index = build(entries, interval)
    start = index.entry_for_time(timestamp)
    reaching = [
        entry_id
        for entry_id, stored in enumerate(entries)
        if stored.header is not None and stored.header.max_timestamp_ms >= timestamp
    ]
    if reaching:
        assert start is not None
        assert start <= reaching[0]


@given(ledgers(), st.sampled_from([1, 200]), st.integers(-1, 1500))
def test_footer_answers_like_the_index_it_came_from(
    entries: list[Stored], interval: int, offset: int
) -> None:
    index = build(entries, interval)
    footer = index.to_footer(
        base_offset=0, end_offset=0, snapshot_entry=0, figures=SegmentFigures()
    )
    again = SparseIndex.from_footer(decode_footer(encode_footer(footer)))
    assert again.entry_for_offset(offset) == index.entry_for_offset(offset)
    assert again.entry_for_time(offset) == index.entry_for_time(offset)


@given(ledgers(), st.integers(-1, 1500))
def test_binary_search_equals_a_scan(entries: list[Stored], offset: int) -> None:
    search = OffsetSearch(offset, len(entries) - 1)
    while (probe := search.probe) is not None:
        for entry_id in range(probe.entry, probe.last + 1):
            header = entries[entry_id].header
            if header is not None:
                search.found(entry_id, header)
                break
        else:
            search.none_found()
    assert search.result == first_batch_after(entries, offset)
    assert search.probes <= len(entries).bit_length() + 1
