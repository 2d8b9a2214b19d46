"""Scanning and searching stored segments against a plain model, with entries gone or damaged.

Whatever cannot be read is an error, never "no batch" and never the end. The planted faults at the
end show that these checks would notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.client.segments import footers, pieces, scan, search
from octavo.client.segments.index import SparseIndex
from octavo.client.segments.reader import SegmentReader
from octavo.client.segments.search import OffsetSearch
from octavo.proto.batch import BatchHeader, decode_header
from octavo.proto.segment_entries import Footer, SegmentFigures, is_footer
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import NoSuchEntry, OctavoError, ReadUnknown
from octavo.runtime.ids import EntryId, LedgerId
from tests.segment_world import StoredSegment, world_of

SEEDS = st.integers(0, 1 << 32)
STEPS = st.integers(-1, 60)


async def scanned(
    world: StoredSegment, start: int, end: int, *, closed: bool
) -> tuple[list[int], OctavoError | None]:
    """Entries of the batches that a scan gave, and the error that ended it."""
    found: list[int] = []
    try:
        async for stored in scan.scan(world, world.segment(closed=closed), start, end):
            assert stored.batch == world.payloads[stored.entry_id]
            assert stored.ledger_id == world.segment(closed=closed).ledger_id
            found.append(stored.entry_id)
    except OctavoError as error:
        return found, error
    return found, None


def check_closed(world: StoredSegment, start: int) -> None:
    """A scan gives what the model gives, or the beginning of it and an error."""
    found, error = asyncio.run(scanned(world, start, world.end, closed=True))
    wanted = world.batches_from(start)
    bad = world.broken.keys() | world.empty
    if error is None:
        assert found == wanted
        first = wanted[0] if wanted else len(world.payloads)
        assert not [entry for entry in bad if entry >= first], "what was not read was left out"
        return
    assert isinstance(error, (NoSuchEntry, ReadUnknown))
    assert found == wanted[: len(found)]
    assert bad, f"nothing was broken, and yet: {error}"
    if found or not wanted:
        return  # it failed where it should; a search in vain is an error too
    assert any(entry in bad for entry in world.reads)


def check_open(world: StoredSegment, start: int, behind: int) -> None:
    """The bookies' LAC follows; the scan ends at what the broker acknowledged, and not before."""
    world.broken.clear()
    world.empty.clear()
    end = world.end - min(behind, world.end - world.base_offset)
    world.lac, world.later = -1, [*range(len(world.payloads))]
    found, error = asyncio.run(scanned(world, start, end, closed=False))
    assert error is None
    assert found == (world.batches_from(start, end) if start < end else [])


def check_search(world: StoredSegment, offset: int) -> None:
    """A search finds the batch or says why it cannot tell."""

    async def first_batch(first: int, last: int) -> tuple[int, BatchHeader] | None:
        return await pieces.first_batch(world, first, last)

    last = len(world.payloads) - 1
    wanted = world.holding(offset)
    try:
        found = asyncio.run(search.find_entry(offset, last, first_batch))
    except (NoSuchEntry, ReadUnknown):
        assert any(entry in world.broken or entry in world.empty for entry in world.reads)
        return
    assert found == wanted


@given(SEEDS, STEPS)
def test_a_scan_of_a_closed_segment_equals_the_model_or_says_what_it_cannot_read(
    seed: int, step: int
) -> None:
    world = world_of(seed)
    check_closed(world, world.base_offset + step)


@given(SEEDS, STEPS, st.integers(0, 5))
def test_a_scan_of_an_open_segment_ends_at_what_was_acknowledged(
    seed: int, step: int, behind: int
) -> None:
    world = world_of(seed)
    check_open(world, world.base_offset + step, behind)


@given(SEEDS, STEPS)
def test_a_search_equals_the_model_or_says_what_it_cannot_read(seed: int, step: int) -> None:
    world = world_of(seed)
    check_search(world, world.base_offset + step)


@given(SEEDS)
def test_pieces_are_consecutive_whatever_a_reader_gives_at_a_time(seed: int) -> None:
    world = world_of(seed)
    world.broken.clear()
    world.empty.clear()
    last = len(world.payloads) - 1

    async def read() -> list[tuple[int, bytes]]:
        return [(at, bytes(found)) async for at, found in pieces.payloads(world, 0, last)]

    assert asyncio.run(read()) == list(enumerate(world.payloads))


@given(SEEDS, STEPS)
def test_a_footer_that_cannot_be_read_hides_no_batch(seed: int, step: int) -> None:
    """They come all the same, unless the search arrives at the footer too; then it is an error."""
    world = world_of(seed)
    world.broken.clear()
    world.empty.clear()
    last = len(world.payloads) - 1
    if last < 0 or not is_footer(world.payloads[last]):
        return
    world.broken[last] = ReadUnknown
    start = world.base_offset + step
    found, error = asyncio.run(scanned(world, start, world.end, closed=True))
    assert isinstance(error, ReadUnknown)  # whoever reads to the end arrives there
    wanted = world.batches_from(start)
    assert found == wanted or (not found and start > world.base_offset and last in world.reads)


# --- the checks find faults ---------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def gone_is_no_batch(patch: pytest.MonkeyPatch) -> None:
    """A missing entry is taken for one that holds no batch."""
    plain = pieces.first_batch

    async def first_batch(
        reader: SegmentReader, first: int, last: int
    ) -> tuple[int, BatchHeader] | None:
        try:
            return await plain(reader, first, last)
        except NoSuchEntry:
            return None

    patch.setattr(pieces, "first_batch", first_batch)
    patch.setattr(scan, "first_batch", first_batch)


def an_error_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """A piece that cannot be read ends the scan as if nothing followed."""
    plain = pieces.entry_runs

    async def entry_runs(
        reader: SegmentReader, first: int, last: int
    ) -> AsyncGenerator[tuple[EntryId, Sequence[Buffer]], None]:
        try:
            async for run in plain(reader, first, last):
                yield run
        except OctavoError:
            return

    patch.setattr(scan, "entry_runs", entry_runs)


def an_empty_answer_is_skipped(patch: pytest.MonkeyPatch) -> None:
    """A reader that gives nothing is asked for the entry behind."""
    plain = pieces.read_piece

    async def read(
        reader: SegmentReader, first: EntryId, count: int, max_bytes: int
    ) -> Sequence[Buffer]:
        for step in range(count):
            try:
                return await plain(reader, EntryId(first + step), count - step, max_bytes)
            except ReadUnknown:
                continue
        return await plain(reader, first, count, max_bytes)

    patch.setattr(pieces, "read_piece", read)


class StopsBefore(OffsetSearch):
    """A batch that ends at the offset is taken for the one that holds it."""

    def found(self, entry_id: int, header: BatchHeader) -> None:
        if header.next_offset == self._offset:
            self.result, self._high = entry_id, self._low - 1
        else:
            super().found(entry_id, header)


class WrongHalf(OffsetSearch):
    """Nothing is behind the probe, so it looks behind it."""

    def none_found(self) -> None:
        self._low = (self._low + self._high) // 2 + 1


class SkipsOne(OffsetSearch):
    """It goes on two entries behind a batch that ends too early."""

    def found(self, entry_id: int, header: BatchHeader) -> None:
        super().found(entry_id + (header.next_offset <= self._offset), header)


class OnePointLate(SparseIndex):
    """A footer sends readers behind the batch that they ask for."""

    def entry_for_offset(self, offset: int) -> int | None:
        at = sum(point <= offset for point in self._offsets)
        return self._entries[min(at, len(self._entries) - 1)] if self._entries else None


def the_search_stops_before_the_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "OffsetSearch", StopsBefore)


def the_search_goes_on_in_the_wrong_half(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "OffsetSearch", WrongHalf)


def the_search_skips_an_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "OffsetSearch", SkipsOne)


def the_index_is_one_point_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan, "SparseIndex", OnePointLate)


def a_damaged_footer_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A last entry that is no good footer is an index that starts at the end."""
    plain = footers.read_footer

    async def read_footer(
        reader: SegmentReader, ledger_id: LedgerId, last_entry: int
    ) -> Footer | None:
        found = await plain(reader, ledger_id, last_entry)
        if found is not None or last_entry < 0:
            return found
        return (
            SparseIndex(1)
            .to_footer(base_offset=0, end_offset=0, snapshot_entry=-1, figures=SegmentFigures())
            ._replace(offsets=[0], entries=[last_entry], max_timestamps_before=[0])
        )

    patch.setattr(scan, "read_footer", read_footer)


def the_lac_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """An open segment is taken for one that ends where the bookies know it now."""
    plain = scan.scan

    async def short(
        reader: SegmentReader, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        last = segment.last_entry if segment.closed else await reader.last_add_confirmed()
        ended = replace(segment, end_offset=visible_end, last_entry=last)
        async for stored in plain(reader, ended, start_offset, visible_end):
            yield stored

    patch.setattr(scan, "scan", short)


PLANTED: list[Plant] = [
    gone_is_no_batch,
    an_error_is_the_end,
    an_empty_answer_is_skipped,
    the_search_stops_before_the_offset,
    the_search_goes_on_in_the_wrong_half,
    the_search_skips_an_entry,
    the_index_is_one_point_late,
    a_damaged_footer_is_believed,
    the_lac_is_the_end,
]


def check_all(seed: int) -> None:
    """Every check of one world, at an offset of its own."""
    step = seed % 40 - 1
    for check in (check_closed, check_search):
        world = world_of(seed)
        check(world, world.base_offset + step)
    world = world_of(seed)
    check_open(world, world.base_offset + step, seed % 6)


def check_many(seeds: int) -> None:
    """All checks of so many worlds."""
    for seed in range(seeds):
        check_all(seed)


def test_no_fault_is_seen_where_none_is() -> None:
    check_many(150)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check_many(400)


def test_worlds_hold_what_the_checks_are_about() -> None:
    worlds = [world_of(seed) for seed in range(200)]
    assert any(not world.payloads for world in worlds)
    assert any(world.empty for world in worlds)
    assert any(world.broken for world in worlds)
    assert any(world.payloads and is_footer(world.payloads[-1]) for world in worlds)
    headers = [decode_header(payload) for payload in worlds[1].payloads if payload[:1] == b"\xb7"]
    assert headers == sorted(headers, key=lambda header: header.base_offset)
