"""One bookie that reads its segments before anybody asks for them (6.15, 6.5, INV-9)."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from octavo.bookie.journal.segment import (
    HEADER_BYTES,
    SORTED_BASE,
    decode_segment_header,
    footer_offset,
    segment_name,
)
from octavo.bookie.reclaim.compaction_actions import Hold
from octavo.bookie.scrub.scrubber import Scrubber
from octavo.bookie.storage.index import Index, Location
from octavo.bookie.storage.keyed_index import entry_key
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import IllegalStateError, NotReady
from octavo.runtime.ids import LedgerId
from octavo.supervisor.health import bookie_info, scrub_now
from tests.bookie_rig import ROOT, BookieRig, entry, flip, until

SEGMENT_BYTES = 64 * 1024
PAYLOAD = b"x" * 4000
COUNT = 60
SETTINGS: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 1000.0,
    "compaction_check_s": 1000.0,
    "disk_reserve_segments": 0.0,
    "scrub_bytes_per_s": 1e9,
    "scrub_start_s": 0.0,
    "scrub_interval_s": 1000.0,
    "scrub_recheck_s": 0.02,
}


def rig_of(folder: pathlib.Path, **settings: object) -> BookieRig:
    return BookieRig(folder / "data", None, **{**SETTINGS, **settings})


def index_of(rig: BookieRig) -> Index:
    return rig.server._boot.index  # pyright: ignore[reportPrivateUsage]


def scrubber_of(rig: BookieRig) -> Scrubber:
    return rig.server._open.scrubber  # pyright: ignore[reportPrivateUsage]


async def filled(rig: BookieRig) -> LedgerId:
    """A ledger over several segments, all of it in the index, after a first pass."""
    ledger = await rig.ledger()
    for entry_id in range(COUNT):
        assert await rig.add(entry(ledger, entry_id, PAYLOAD)) == [Status.OK]
    await until(lambda: len(index_of(rig).entries_of(ledger, 0, COUNT)) == COUNT)
    await scrubbed(rig)
    return ledger


async def scrubbed(rig: BookieRig) -> None:
    """Another whole pass, begun from now on."""
    scrubber = scrubber_of(rig)
    wanted = scrubber.core.passes + 1 + scrubber.core.in_pass
    scrubber.hurry()
    await until(lambda: scrubber.core.passes >= wanted)


async def marks(rig: BookieRig) -> list[LedgerId]:
    return await RepairCatalog(rig.metadata, Paths(ROOT), clock=rig.clock).marked(10)


async def marked(rig: BookieRig, ledger: LedgerId) -> None:
    while ledger not in await marks(rig):
        await rig.clock.sleep(0.01)


def place_of(rig: BookieRig, ledger: LedgerId, entry_id: int) -> Location:
    place = index_of(rig).locate(ledger, entry_id)
    assert place is not None
    return place


def path_of(rig: BookieRig, number: int) -> pathlib.Path:
    return rig.data_dir / "journal" / segment_name(number)


def flip_at(rig: BookieRig, number: int, offset: int) -> None:
    flip(path_of(rig, number), offset)


async def read_all(rig: BookieRig, ledger: LedgerId) -> list[int]:
    """Every entry is itself, or EIO; those that are EIO."""
    bad: list[int] = []
    for entry_id in range(COUNT):
        status, found = await rig.read(ledger, entry_id)
        if status is Status.EIO:
            bad.append(entry_id)
        else:
            assert (status, found) == (Status.OK, [entry(ledger, entry_id, PAYLOAD)])
    return bad


async def left(rig: BookieRig, number: int) -> None:
    """Wait until a segment was emptied and removed."""
    await until(lambda: not path_of(rig, number).exists())
    await until(lambda: scrubber_of(rig).hold_of(number) is Hold.NONE)


async def test_what_is_sound_is_read_and_left_alone(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        before = rig.segments()
        closed = sum(path.stat().st_size for path in before[:-2])
        read = scrubber_of(rig).stats.scrubbed_bytes
        await scrubbed(rig)
        assert scrubber_of(rig).stats.scrubbed_bytes - read >= closed - HEADER_BYTES * len(before)
        assert rig.segments() == before
        assert await read_all(rig, ledger) == []
        assert await marks(rig) == []
        info = rig.server.desk.info()
        assert info.scrub_passes >= 2
        assert info.scrub_ended_ms > 0
        assert (info.scrub_entries_damaged, info.scrub_segments_quarantined) == (0, 0)


async def test_615_a_damaged_entry_is_asked_for_and_its_segment_emptied(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number, offset, _ = place_of(rig, ledger, 7)
        flip_at(rig, number, offset + 2000)
        await scrubbed(rig)
        scrubber = scrubber_of(rig)
        assert scrubber.hold_of(number) is Hold.KEPT
        assert await read_all(rig, ledger) == [7]
        listed = await rig.server.store.list_entries(ledger, 0, COUNT - 1)
        assert listed.runs == [(0, 6), (8, COUNT - 1)]
        await marked(rig, ledger)
        rig.server._open.reclaimer.compactor.compact_all()  # pyright: ignore[reportPrivateUsage]
        assert path_of(rig, number).exists()
        assert await rig.add(entry(ledger, 7, PAYLOAD), recovery=True) == [Status.OK]
        await left(rig, number)
        assert await read_all(rig, ledger) == []
        listed = await rig.server.store.list_entries(ledger, 0, COUNT - 1)
        assert listed.runs == [(0, COUNT - 1)]
        info = rig.server.desk.info()
        assert (info.scrub_entries_damaged, info.scrub_entries_repaired) == (1, 1)
        assert (info.scrub_entries_waiting, info.scrub_segments_quarantined) == (0, 0)


def header_byte(path: pathlib.Path) -> int:
    del path
    return 40


def batch_byte(path: pathlib.Path) -> int:
    del path
    return HEADER_BYTES + 6


def footer_byte(path: pathlib.Path) -> int:
    data = path.read_bytes()
    offset = footer_offset(data, decode_segment_header(data[:HEADER_BYTES]))
    assert offset is not None
    return offset + 20


def footer_magic(path: pathlib.Path) -> int:
    return footer_byte(path) - 20


def trailer_byte(path: pathlib.Path) -> int:
    return path.stat().st_size - 3


@pytest.mark.parametrize(
    "where", [header_byte, batch_byte, footer_byte, footer_magic, trailer_byte]
)
async def test_615_a_segment_whose_own_words_are_damaged_is_emptied(
    tmp_path: pathlib.Path, where: Callable[[pathlib.Path], int]
) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number = place_of(rig, ledger, 7).segment
        flip_at(rig, number, where(path_of(rig, number)))
        await scrubbed(rig)
        await left(rig, number)
        assert place_of(rig, ledger, 7).segment >= SORTED_BASE
        assert await read_all(rig, ledger) == []
        assert await marks(rig) == []
        assert scrubber_of(rig).quarantine.damaged == 0


async def test_615_each_bad_spot_of_a_segment_is_named(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number = place_of(rig, ledger, 7).segment
        places = [place_of(rig, ledger, entry_id) for entry_id in (5, 7)]
        assert {place.segment for place in places} == {number}
        wanted = [footer_byte(path_of(rig, number)), *(place.offset + 99 for place in places)]
        for offset in wanted:
            flip_at(rig, number, offset)
        found = scrubber_of(rig)._checker.check(number)  # pyright: ignore[reportPrivateUsage]
        assert [s.entry_id for s in found.damaged] == [5, 7]
        for offset in wanted:
            assert sum(start <= offset < end for start, end in found.spots) == 1
        assert sum(end - start for start, end in found.spots) < SEGMENT_BYTES / 2


async def test_615_what_a_power_cut_gave_back_behind_a_footer_is_no_damage(
    tmp_path: pathlib.Path,
) -> None:
    """The preallocated zeros come back when the cut file size was not durable yet."""
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number = place_of(rig, ledger, 7).segment
        with path_of(rig, number).open("ab") as file:
            file.write(bytes(100_000))
        await scrubbed(rig)
        assert scrubber_of(rig).stats.segments_damaged == 0
        assert path_of(rig, number).exists()


async def test_615_the_control_service_tells_and_begins(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        await filled(rig)
        passes = scrubber_of(rig).core.passes
        await scrub_now(rig.server.control_address, 5.0)
        await until(lambda: scrubber_of(rig).core.passes > passes)
        info = await bookie_info(rig.server.control_address, 5.0)
        assert info is not None
        assert info.scrub_passes > passes
    async with rig_of(tmp_path / "other", scrub_bytes_per_s=0.0) as rig:
        with pytest.raises(NotReady, match="scrub_bytes_per_s is 0"):
            await scrub_now(rig.server.control_address, 5.0)


async def test_615_a_sorted_segment_is_read_like_any_other(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        first = place_of(rig, ledger, 7).segment
        flip_at(rig, first, 40)
        await scrubbed(rig)
        await left(rig, first)
        number, offset, _ = place_of(rig, ledger, 7)
        flip_at(rig, number, offset + 100)
        await scrubbed(rig)
        assert await read_all(rig, ledger) == [7]
        assert await rig.add(entry(ledger, 7, PAYLOAD), recovery=True) == [Status.OK]
        await left(rig, number)
        assert await read_all(rig, ledger) == []


async def test_b13_entries_of_a_missing_segment_are_asked_for(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number = place_of(rig, ledger, 7).segment
        path_of(rig, number).unlink()
        files = rig.server._open._files  # pyright: ignore[reportPrivateUsage]
        files.forget(number)
        await scrubbed(rig)
        bad = await read_all(rig, ledger)
        assert 7 in bad
        await marked(rig, ledger)
        for entry_id in bad:
            assert await rig.add(entry(ledger, entry_id, PAYLOAD), recovery=True) == [Status.OK]
        await until(lambda: scrubber_of(rig).hold_of(number) is Hold.NONE)
        assert await read_all(rig, ledger) == []
        assert number not in index_of(rig).segments()


class LoseRow:
    """An index that loses a row, as none should."""

    def __init__(self, ledger: int, entry_id: int) -> None:
        self._key = entry_key(ledger, entry_id)

    def step(self, index: Index) -> bool:
        batch = index.new_batch()
        batch.delete(self._key)
        index.write(batch)
        return True


async def test_inv9_an_entry_that_the_index_lost_is_no_absent_one(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path, scrub_recheck_s=1000.0) as rig:
        ledger = await filled(rig)
        await rig.server._open.index_writer.do(LoseRow(ledger, 7))  # pyright: ignore[reportPrivateUsage]
        assert (await rig.read(ledger, 7))[0] is Status.NO_SUCH_ENTRY
        settler = scrubber_of(rig)._settler  # pyright: ignore[reportPrivateUsage]
        settler.read = lambda location: b""  # type: ignore[method-assign]
        await scrubbed(rig)
        assert (await rig.read(ledger, 7))[0] is Status.EIO
        await marked(rig, ledger)


async def test_615_what_the_index_lost_is_added_again_from_its_own_bytes(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        await rig.server._open.index_writer.do(LoseRow(ledger, 7))  # pyright: ignore[reportPrivateUsage]
        await scrubbed(rig)
        scrubber = scrubber_of(rig)
        await until(lambda: scrubber.stats.restored >= 1)
        await until(lambda: not scrubber.quarantine.suspects.count)
        assert await read_all(rig, ledger) == []


async def test_what_was_deleted_is_dead_and_not_lost(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path, gc_interval_s=0.05, gc_confirm_s=0.05, gc_reads_per_s=1e5) as rig:
        kept, dropped = await filled(rig), await rig.ledger()
        for entry_id in range(20):
            await rig.add(entry(kept, COUNT + entry_id, PAYLOAD))
            await rig.add(entry(dropped, entry_id, PAYLOAD))
        await until(lambda: len(index_of(rig).entries_of(dropped, 0, 20)) == 20)
        await rig.catalog.delete(await rig.catalog.read(dropped, barrier=True))
        await until(lambda: index_of(rig).ledger(dropped) is None)
        await scrubbed(rig)
        assert not scrubber_of(rig).quarantine.suspects.count
        assert (await rig.read(dropped, 0))[0] is Status.NO_SUCH_LEDGER


async def test_e2_what_a_reader_could_not_get_is_looked_at_at_once(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number, offset, _ = place_of(rig, ledger, 7)
        passes = scrubber_of(rig).core.passes
        flip_at(rig, number, offset + 2000)
        assert (await rig.read(ledger, 7))[0] is Status.EIO
        await marked(rig, ledger)
        assert scrubber_of(rig).hold_of(number) is Hold.KEPT
        assert scrubber_of(rig).core.passes == passes


async def test_615_a_repair_that_is_damaged_itself_is_looked_at(tmp_path: pathlib.Path) -> None:
    """The index names another place by then, and the listing tells of the entry."""
    async with rig_of(tmp_path, scrub_recheck_s=0.3) as rig:
        ledger = await filled(rig)
        first, offset, _ = place_of(rig, ledger, 7)
        flip_at(rig, first, offset + 2000)
        await scrubbed(rig)
        await rig.add(entry(ledger, 7, PAYLOAD), recovery=True)
        await until(lambda: place_of(rig, ledger, 7).segment != first)
        second, offset, _ = place_of(rig, ledger, 7)
        flip_at(rig, second, offset + 2000)
        for entry_id in range(COUNT, COUNT + 20):
            await rig.add(entry(ledger, entry_id, PAYLOAD))
        await until(lambda: scrubber_of(rig).hold_of(second) is Hold.KEPT)
        assert await rig.add(entry(ledger, 7, PAYLOAD), recovery=True) == [Status.OK]
        await left(rig, first)
        await left(rig, second)
        assert await read_all(rig, ledger) == []


async def test_615_suspicions_and_quarantine_survive_a_kill(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await filled(rig)
        number, offset, _ = place_of(rig, ledger, 7)
        flip_at(rig, number, offset + 2000)
        await scrubbed(rig)
        await rig.crash(scrub_start_s=1000.0)
        assert scrubber_of(rig).hold_of(number) is Hold.KEPT
        listed = await rig.server.store.list_entries(ledger, 0, COUNT - 1)
        assert listed.runs == [(0, 6), (8, COUNT - 1)]
        await rig.add(entry(ledger, 7, PAYLOAD), recovery=True)
        await left(rig, number)
        await rig.crash(scrub_start_s=1000.0)
        await until(lambda: not scrubber_of(rig).quarantine.quarantined())
        assert await read_all(rig, ledger) == []


async def test_615_a_start_goes_on_where_the_last_one_was(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        await filled(rig)
        scrubber = scrubber_of(rig)
        numbers = [int(path.stem, 16) for path in rig.segments()]
        ended_ms = scrubber.core.progress.ended_ms
        real = scrubber._checker.check  # pyright: ignore[reportPrivateUsage]

        def third_fails(number: int) -> object:
            if number == numbers[2]:
                raise OSError("not now")
            return real(number)

        scrubber._checker.check = third_fails  # type: ignore[method-assign,assignment]  # pyright: ignore
        scrubber.hurry()
        await until(lambda: scrubber.core.progress.after == numbers[1])
        await rig.stop()
        await rig.start()
        core = scrubber_of(rig).core
        assert core.in_pass
        assert core.progress.ended_ms == ended_ms
        await until(lambda: core.passes == 1)
        assert core.checked_segments <= len(rig.segments()) - 2  # a start may have closed one


async def test_615_nothing_is_read_where_nothing_should(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path, scrub_bytes_per_s=0.0) as rig:
        ledger = await rig.ledger()
        for entry_id in range(COUNT):
            await rig.add(entry(ledger, entry_id, PAYLOAD))
        assert not scrubber_of(rig).enabled
        with pytest.raises(IllegalStateError, match="scrub_bytes_per_s"):
            rig.server.desk.scrub()


async def test_613_without_space_a_scrub_waits(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        await filled(rig)
        rig.disk.space = (SEGMENT_BYTES, 1 << 40)
        scrubber = scrubber_of(rig)
        read, passes = scrubber.stats.scrubbed_bytes, scrubber.core.passes
        scrubber.hurry()
        until_s = scrubber.core.next_deadline_s
        await until(lambda: (until_s() or 0.0) > rig.clock.monotonic() + 30)
        assert (scrubber.stats.scrubbed_bytes, scrubber.core.passes) == (read, passes)
