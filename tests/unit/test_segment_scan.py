"""Reading one stored segment: where a scan starts, how far it goes, what it does when it cannot."""

from __future__ import annotations

import asyncio

import pytest

from octavo.client.segments import scan as scanning
from octavo.client.segments.footers import read_footer
from octavo.client.segments.index import SparseIndex
from octavo.client.segments.pieces import entry_runs, first_batch, payloads, read_entry
from octavo.client.segments.reader import DescribedLedgers
from octavo.client.segments.scan import scan, scan_headers, start_entry
from octavo.proto.batch import decode_header
from octavo.proto.segment_entries import SegmentFigures, encode_footer, encode_mark
from octavo.proto.segments import Segment
from octavo.runtime.errors import CorruptBatch, MetadataCorrupt, NoSuchEntry, ReadUnknown
from octavo.runtime.ids import EntryId, LedgerId
from tests.segment_world import LEDGER, StoredSegment, snapshot, stored_batch


def ten(chunk: int = 3, batches: int = 10, *, footer: bool = False) -> StoredSegment:
    """A snapshot, batches of four records each, and a footer if asked."""
    entries = [snapshot(0), *(stored_batch(4, 4 * n) for n in range(batches))]
    if footer:
        index = SparseIndex(1)
        for entry_id, payload in enumerate(entries[1:], 1):
            index.note(decode_header(payload), entry_id, len(payload))
        made = index.to_footer(
            base_offset=0, end_offset=4 * batches, snapshot_entry=0, figures=SegmentFigures()
        )
        entries.append(encode_footer(made))
    return StoredSegment(0, entries, chunk=chunk, lac=len(entries) - 1)


async def offsets(
    world: StoredSegment, start: int, end: int = 40, *, closed: bool = True
) -> list[int]:
    """Base offsets of the batches of a scan."""
    segment = world.segment(closed=closed)
    return [decode_header(s.batch).base_offset async for s in scan(world, segment, start, end)]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("footer", [False, True])
@pytest.mark.parametrize("start", [0, 1, 3, 4, 17, 39])
async def test_scan_starts_at_the_batch_that_holds_the_offset(
    chunk: int, footer: bool, start: int
) -> None:
    found = await offsets(ten(chunk, footer=footer), start)
    assert found == list(range(start - start % 4, 40, 4))


async def test_a_footer_spares_the_search() -> None:
    world = ten(chunk=100, batches=1000, footer=True)
    await offsets(world, 3600)
    assert world.reads[:2] == [1001, 901]  # the footer, and then at once the batch
    searched = ten(chunk=100, batches=1000)
    await offsets(searched, 3600)
    assert 4 < len(searched.reads) <= 1 + 10 + 2  # no footer there, a search, the last tenth


async def test_start_behind_all_batches_is_behind_the_last_entry() -> None:
    world = ten()
    assert await start_entry(world, world.segment(closed=True), 40, EntryId(10)) == 11
    assert await offsets(world, 40) == []


async def test_a_segment_without_batches_gives_none() -> None:
    world = StoredSegment(5, [snapshot(5), encode_mark()], lac=1)
    assert await start_entry(world, world.segment(closed=True), 6, EntryId(1)) == 2
    assert await offsets(world, 5) == await offsets(world, 6) == []
    empty = StoredSegment(5, [])
    assert await offsets(empty, 5) == await offsets(empty, 9) == []
    assert empty.reads == []


# --- open segments ------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [4, 12, 40])
async def test_an_open_segment_is_read_to_the_high_watermark_only(end: int) -> None:
    assert await offsets(ten(), 0, end, closed=False) == list(range(0, end, 4))


async def test_a3_a_batch_behind_a_gap_at_the_end_is_not_shown() -> None:
    """A part of a segment may end inside a gap: the batch behind it is above that end."""
    world = StoredSegment(0, [stored_batch(4, 0), stored_batch(4, 10)], lac=1)
    assert await offsets(world, 0, 7, closed=False) == [0]
    assert await offsets(world, 0, 11, closed=False) == [0, 10]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (8, 8), (9, 8), (40, 12)])
async def test_nothing_visible_asks_nobody(start: int, end: int) -> None:
    world = ten()
    assert await offsets(world, start, end, closed=False) == []
    assert world.reads == []


async def test_rd6_an_open_segment_waits_for_the_trailing_lac() -> None:
    """Bookies may know less than the broker for a moment."""
    world = ten()
    world.lac, world.later = 4, [4, 6, 10]
    assert await offsets(world, 0, closed=False) == list(range(0, 40, 4))
    assert world.later == []


async def test_rd6_a_start_that_is_not_confirmed_yet_waits_too() -> None:
    world = ten()
    world.lac, world.later = 2, [5, 10]
    assert await offsets(world, 30, closed=False) == [28, 32, 36]


async def test_an_open_segment_that_never_confirms_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "LAC_WAIT_S", 0.0)
    world = ten()
    world.lac = 4
    with pytest.raises(ReadUnknown, match=r"only to entry 4, offset 40 was acknowledged") as told:
        await offsets(world, 0, closed=False)
    assert "run the query again" in told.value.hint


# --- what cannot be read ------------------------------------------------------------------------


async def test_a_scan_left_early_leaves_no_task_behind() -> None:
    world = ten()
    running = scan(world, world.segment(closed=True), 0, 40)
    await anext(running)
    await running.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_failed_read_ahead_is_raised_once_it_is_needed() -> None:
    world = ten()
    world.broken[3] = ReadUnknown
    running = scan(world, world.segment(closed=True), 0, 40)
    assert [(await anext(running)).entry_id for _ in range(2)] == [1, 2]
    with pytest.raises(ReadUnknown, match="entry 3 is broken"):
        await anext(running)


@pytest.mark.parametrize("error", [NoSuchEntry, ReadUnknown])
@pytest.mark.parametrize("at", [0, 5, 10])
async def test_an_entry_that_is_gone_is_an_error_and_not_the_end(
    error: type[NoSuchEntry] | type[ReadUnknown], at: int
) -> None:
    world = ten()
    world.broken[at] = error
    with pytest.raises(error, match=f"entry {at} is broken"):
        await offsets(world, 0)


async def test_an_empty_answer_says_nothing() -> None:
    """It is neither the end nor "no such entry", and never an endless loop."""
    world = ten()
    world.empty.add(5)
    with pytest.raises(ReadUnknown, match="entry 5"):
        await offsets(world, 0)
    with pytest.raises(ReadUnknown, match="entry 5"):
        await read_entry(world, 5)
    with pytest.raises(ReadUnknown, match="entry 5"):
        await first_batch(world, 5, 10)


async def test_a_batch_with_a_damaged_header_is_no_control_entry() -> None:
    world = ten()
    segment = world.segment(closed=True)
    world.payloads[5] = world.payloads[5][:40]
    with pytest.raises(CorruptBatch):
        _ = [stored async for stored in scan(world, segment, 0, 40)]


async def test_more_entries_than_asked_for_are_not_taken() -> None:
    world = ten(chunk=100)
    plain = world.read

    async def generous(first: EntryId, *, max_count: int, max_bytes: int):  # type: ignore[no-untyped-def]
        return await plain(first, max_count=max_count + 5, max_bytes=max_bytes)

    world.read = generous  # type: ignore[method-assign]
    assert [at async for at, _ in payloads(world, 2, 4)] == [2, 3, 4]
    assert decode_header(bytes(await read_entry(world, 2))[36:]).base_offset == 4


async def test_one_piece_is_read_ahead_and_not_two() -> None:
    world = ten(chunk=2)
    running = entry_runs(world, 0, 10)
    await anext(running)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.reads == [0, 2]
    await running.aclose()


# --- footers ------------------------------------------------------------------------------------


async def test_a_footer_is_the_last_entry_or_none() -> None:
    world = ten(footer=True)
    footer = await read_footer(world, LEDGER, 11)
    assert footer is not None
    assert (footer.end_offset, list(footer.entries)) == (40, list(range(1, 11)))
    assert await read_footer(world, LEDGER, 10) is None
    assert await read_footer(world, LEDGER, -1) is None


async def test_a_damaged_footer_is_none_and_a_lost_one_is_an_error() -> None:
    world = ten(footer=True)
    world.payloads[11] = world.payloads[11][:-1] + b"\x00"
    assert await read_footer(world, LEDGER, 11) is None
    assert await offsets(world, 30) == [28, 32, 36]
    world.broken[11] = ReadUnknown
    with pytest.raises(ReadUnknown):
        await read_footer(world, LEDGER, 11)


async def test_a_record_that_is_none_opens_no_reader() -> None:
    ledgers = DescribedLedgers({}, "test")
    with pytest.raises(MetadataCorrupt):
        ledgers.open(Segment(LedgerId(1), 0, ledger_record=b"junk"))
    await ledgers.close()


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(("start", "end"), [(0, 40), (5, 22), (17, 40), (39, 40), (8, 8)])
async def test_headers_are_those_of_the_batches_of_a_scan(
    start: int, end: int, closed: bool
) -> None:
    world = ten()
    segment = world.segment(closed=closed)
    whole = [(s.entry_id, decode_header(s.batch)) async for s in scan(world, segment, start, end)]
    headers = [one async for some in scan_headers(world, segment, start, end) for one in some]
    assert headers == whole


async def test_headers_wait_for_what_was_acknowledged() -> None:
    world = ten()
    world.lac, world.later = 4, [4, 8, 10]
    segment = world.segment(closed=False)
    found = [one.header async for some in scan_headers(world, segment, 0, 40) for one in some]
    assert [header.base_offset for header in found] == list(range(0, 40, 4))


async def test_headers_of_what_cannot_be_read_are_an_error() -> None:
    world = ten()
    world.broken[5] = ReadUnknown
    with pytest.raises(ReadUnknown):
        async for _ in scan_headers(world, world.segment(closed=True), 0, 40):
            pass
