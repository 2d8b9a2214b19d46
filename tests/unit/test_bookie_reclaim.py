"""A bookie deletes what the metadata has not any more, and its files with it (6.9, 6.14)."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import pytest

from octavo.bookie.journal.segment import SORTED_BASE, segment_name
from octavo.bookie.reclaim.collection_actions import Alarm
from octavo.bookie.reclaim.collector import Collector
from octavo.bookie.reclaim.compactor import Compactor
from octavo.bookie.storage.index import Index, Location
from octavo.bookie.storage.keyed_index import doom_key
from octavo.bookie.storage.memory_index import MemoryIndex
from octavo.bookie.storage.reads import EntryReader, SegmentFiles
from octavo.metadata.envelope import seal
from octavo.metadata.ledgers import LedgerCatalog, Quorum
from octavo.metadata.paths import Paths
from octavo.metadata.store import Versioned
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import HistoryInDoubt
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import ROOT, BookieRig, entry, flip, until

SEGMENT_BYTES = 64 * 1024
PAYLOAD = b"x" * 8000
SETTINGS: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "gc_interval_s": 0.05,
    "gc_confirm_s": 0.05,
    "gc_reads_per_s": 100_000.0,
    "compaction_check_s": 0.05,
    "disk_reserve_segments": 0.0,
}


def rig_of(folder: pathlib.Path, **settings: object) -> BookieRig:
    return BookieRig(folder / "data", None, **{**SETTINGS, **settings})


def index_of(rig: BookieRig) -> Index:
    return rig.server._boot.index  # pyright: ignore[reportPrivateUsage]


def collector_of(rig: BookieRig) -> Collector:
    return rig.server._open.reclaimer.collector  # pyright: ignore[reportPrivateUsage]


def compactor_of(rig: BookieRig) -> Compactor:
    return rig.server._open.reclaimer.compactor  # pyright: ignore[reportPrivateUsage]


async def fill(rig: BookieRig, *ledgers: LedgerId, first: int = 0, count: int = 20) -> None:
    """Entries of these ledgers in turn."""
    for entry_id in range(first, first + count):
        found = await rig.add(*(entry(ledger, entry_id, PAYLOAD) for ledger in ledgers))
        assert found == [Status.OK] * len(ledgers)


async def settled(rig: BookieRig) -> None:
    """Wait until the index shows everything that was added."""
    table = rig.server.store._table  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not any(ledger.pending for ledger in table.by_id.values()))


async def delete(rig: BookieRig, *ledgers: LedgerId) -> None:
    for ledger in ledgers:
        await rig.catalog.delete(await rig.catalog.read(ledger, barrier=True))


async def gone(rig: BookieRig, *ledgers: LedgerId) -> None:
    """Wait until the index knows nothing of these ledgers."""
    index = index_of(rig)
    await until(lambda: not set(ledgers) & {known for known, _ in index.ledgers()})


async def passes(rig: BookieRig, count: int = 3) -> None:
    """Wait for so many passes, however they end."""
    stats = collector_of(rig).stats
    wanted = stats.passes + count
    await until(lambda: stats.passes >= wanted)


def stored_bytes(rig: BookieRig) -> int:
    total = 0
    for path in (rig.data_dir / "journal").iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as it should be
            total += path.stat().st_size
    return total


async def test_space_of_deleted_ledgers_returns(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        kept, dropped = await rig.ledger(), await rig.ledger()
        await fill(rig, kept)
        await fill(rig, dropped, count=60)
        before = len(rig.segments())
        assert before > 8
        await delete(rig, dropped)
        await gone(rig, dropped)
        await until(lambda: len(rig.segments()) < before - 5)
        assert await rig.read(dropped, 0) == (Status.NO_SUCH_LEDGER, [])
        for entry_id in range(20):
            assert await rig.read(kept, entry_id) == (
                Status.OK,
                [entry(kept, entry_id, PAYLOAD)],
            )
        assert await rig.add(entry(dropped, 60)) == [Status.FENCED]
        assert await rig.add(entry(dropped, 60), recovery=True) == [Status.NO_SUCH_LEDGER]
        core = compactor_of(rig).core
        assert core.reclaimed_bytes > 5 * SEGMENT_BYTES // 2
        assert collector_of(rig).stats.ledgers_deleted == 1


async def test_a_restart_in_the_middle_of_a_deletion_ends_it(tmp_path: pathlib.Path) -> None:
    """The record is in the stream, the entries are not removed yet: the next start does it."""
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger)
        index = index_of(rig)
        await settled(rig)
        batch = index.new_batch()
        batch.put(doom_key(ledger), b"d")
        index.write(batch)
        assert index.doomed() == [ledger]
        await rig.stop()
        await rig.start()
        assert not index_of(rig).doomed()
        assert index_of(rig).ledger(ledger) is None
        assert not index_of(rig).entries_of(ledger, 0, 100)


async def test_g5_a_replay_deletes_in_the_order_of_the_stream(tmp_path: pathlib.Path) -> None:
    """Deleted, and added again by a recovery: what was added behind the deletion stays."""
    rig = rig_of(tmp_path, memtable_flush_s=1000.0, gc_interval_s=1000.0)
    async with rig:
        ledger = await rig.ledger()
        await fill(rig, ledger, count=6)

        await settled(rig)
        assert await rig.server.store.deletions.delete([ledger]) == [ledger]
        assert await rig.read(ledger, 0) == (Status.NO_SUCH_LEDGER, [])
        again = [entry(ledger, entry_id, PAYLOAD) for entry_id in range(3)]
        assert await rig.add(*again, recovery=True) == [Status.OK] * 3
        await rig.crash()
        assert await rig.read(ledger, 0, 10) == (Status.OK, again)
        assert [one for one, _ in index_of(rig).entries_of(ledger, 0, 100)] == [0, 1, 2]


async def test_g5_a_ledger_that_is_written_to_is_left_alone(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger, count=1)
        rig.disk.gate.clear()
        adding = asyncio.ensure_future(rig.add(entry(ledger, 1), recovery=True))
        table = rig.server.store._table  # pyright: ignore[reportPrivateUsage]
        await until(lambda: 1 in table.by_id[ledger].pending)
        assert await rig.server.store.deletions.delete([ledger]) == []
        rig.disk.gate.set()
        assert await adding == [Status.OK]
        assert await rig.add(entry(ledger, 2)) == [Status.OK]


async def test_g5_nothing_is_accepted_while_a_ledger_is_deleted(tmp_path: pathlib.Path) -> None:
    """Adds, fences and LACs are told to come again, and then meet admission."""
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger, count=2)

        await settled(rig)
        await delete(rig, ledger)
        rig.disk.gate.clear()
        deleting = asyncio.ensure_future(rig.server.store.deletions.delete([ledger]))
        table = rig.server.store._table  # pyright: ignore[reportPrivateUsage]
        await until(lambda: table.by_id[ledger].doomed)
        table.by_id[ledger].validate()
        assert await rig.add(entry(ledger, 2)) == [Status.OVERLOADED]
        assert await rig.add(entry(ledger, 2), recovery=True) == [Status.OVERLOADED]
        store = rig.server.store
        assert (await store.fence(ledger)).status is Status.OVERLOADED
        assert await store.write_lac(ledger, 1) is Status.OVERLOADED
        assert await store.deletions.delete([ledger]) == [], "it is under way"
        rig.disk.gate.set()
        assert await deleting == [ledger]
        assert ledger not in table.by_id
        assert await rig.add(entry(ledger, 2)) == [Status.FENCED]
        assert (await store.fence(ledger)).status is Status.OK
        assert store.deletions.nbytes > 2 * len(PAYLOAD)


async def test_613_a_deletion_without_space_for_its_record_is_as_if_never_asked(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_of(tmp_path, gc_interval_s=1000.0, segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger, count=1)
        rig.disk.no_space = True
        while True:  # until the open segment has no place for one more record
            if await rig.server.store.deletions.delete([ledger]) == []:
                break
            rig.disk.no_space = False
            await fill(rig, ledger := await rig.ledger(), count=1)
            rig.disk.no_space = True
        table = rig.server.store._table  # pyright: ignore[reportPrivateUsage]
        assert not table.by_id[ledger].doomed
        rig.disk.no_space = False
        await until(lambda: rig.server.store.writable)
        assert await rig.add(entry(ledger, 1)) == [Status.OK]


# --- a store that lies -------------------------------------------------------------------------


async def test_g3_another_cluster_behind_the_same_address(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger)
        rig.cluster.corrupt(Paths(ROOT).instance_id, seal(b"00000000-0000-4000-8000-000000000001"))
        await passes(rig)
        collector = collector_of(rig)
        assert collector.core.alarm is Alarm.OTHER_CLUSTER
        assert "this bookie belongs to" in collector.alarm
        assert (await rig.read(ledger, 0))[0] is Status.OK


async def test_g3_an_emptied_tree_of_ledgers_deletes_nothing(tmp_path: pathlib.Path) -> None:
    """Every record of a ledger is gone, and nobody has deleted one."""
    async with rig_of(tmp_path) as rig:
        ledgers = [await rig.ledger() for _ in range(3)]
        await fill(rig, *ledgers)
        for ledger in ledgers:
            await rig.metadata.delete(Paths(ROOT).ledger(ledger), expected=None)
        await passes(rig, 5)
        assert "3 of 3 ledgers are missing from the metadata, and 0 deletions" in (
            collector_of(rig).alarm
        )
        info = rig.server.desk.info()
        assert info.collection_alarm == collector_of(rig).alarm
        for ledger in ledgers:
            assert (await rig.read(ledger, 0))[0] is Status.OK
        rig.server.desk.collect(bookie_pb2.CollectRequest(accept_missing=True))
        await gone(rig, *ledgers)
        await until(lambda: collector_of(rig).alarm == "")


async def test_g3_a_copy_of_the_metadata_put_back_stops_it_for_good(
    tmp_path: pathlib.Path,
) -> None:
    """Ledgers that were made after the copy are unknown to it, and must stay; also after a
    restart."""
    async with rig_of(tmp_path) as rig:
        old = await rig.ledger()
        await fill(rig, old)
        await passes(rig)
        copy = rig.cluster.snapshot()
        new = await rig.ledger()
        await fill(rig, new)
        await until(lambda: rig.server._open.keeper._published.segment > 1)  # pyright: ignore[reportPrivateUsage]
        put_back(rig, copy)
        await passes(rig, 5)
        assert collector_of(rig).core.alarm is Alarm.OLDER_METADATA
        assert "older-metadata: " in collector_of(rig).alarm
        await rig.stop()
        await rig.start(accept_older_metadata=True)
        collector_of(rig).hurry()
        await passes(rig, 3)
        assert collector_of(rig).core.alarm is Alarm.OLDER_METADATA
        for ledger in (old, new):
            assert (await rig.read(ledger, 0))[0] is Status.OK


def put_back(rig: BookieRig, copy: dict[str, Versioned]) -> None:
    """The persistent keys are as they were then."""
    tree = rig.cluster.tree
    for key in tree.snapshot():
        if key not in copy and "/L/" in key:
            tree.delete(key, None)
    for key, found in copy.items():
        if key.startswith((f"{ROOT}/L", f"{ROOT}/cookies/", f"{ROOT}/idgen", f"{ROOT}/ledgers-")):
            tree.damage(key, value=seal(found.value), version=int(found.version))


async def test_m7_a_record_that_cannot_be_read_exists(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await fill(rig, ledger, other)
        rig.cluster.corrupt(Paths(ROOT).ledger(ledger), b"what is this")
        await delete(rig, other)
        await gone(rig, other)
        await passes(rig)
        assert collector_of(rig).alarm == ""
        assert (await rig.read(ledger, 0))[0] is Status.OK


async def test_m4_a_listing_that_leaves_out_what_exists(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger)

        async def nothing(_self: LedgerCatalog) -> AsyncIterator[LedgerId]:
            for ledger_id in list[LedgerId]():
                yield ledger_id

        monkeypatch.setattr(LedgerCatalog, "walk", nothing)
        await passes(rig)
        assert collector_of(rig).alarm == (
            "listing: 1 ledgers exist that the metadata does not list"
        )
        assert (await rig.read(ledger, 0))[0] is Status.OK


async def test_m4_a_follower_that_stands_still_deletes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers from the past for good, also behind barriers: ledgers made since look deleted."""
    async with rig_of(tmp_path) as rig:
        old = await rig.ledger()
        await fill(rig, old)
        await passes(rig)
        past = rig.cluster.tree.copy()
        new = [await rig.ledger() for _ in range(3)]
        await fill(rig, *new)
        monkeypatch.setattr(rig.metadata, "_view", lambda: past)
        await passes(rig, 5)
        assert collector_of(rig).core.alarm is Alarm.OLDER_METADATA
        monkeypatch.undo()
        await passes(rig, 5)
        for ledger in (old, *new):
            assert (await rig.read(ledger, 0))[0] is Status.OK
        assert "older-metadata: " in collector_of(rig).alarm, "until an operator says so"


async def test_m4_a_follower_that_lags_between_barriers_hides_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made is never taken for deleted, and what is deleted goes."""
    async with rig_of(tmp_path) as rig:
        store, catch_up = rig.metadata, rig.metadata.barrier

        async def barrier() -> None:
            await catch_up()
            store.lag()

        monkeypatch.setattr(store, "barrier", barrier)
        other = rig.cluster.connect()
        catalog = LedgerCatalog(other, Paths(ROOT), clock=rig.clock, entropy=rig.entropy)
        kept: list[LedgerId] = []
        for _ in range(6):
            made = [
                (await catalog.create(Quorum(1, 1, 1), [rig.server.member])).metadata.ledger_id
                for _ in range(2)
            ]
            await fill(rig, *made, count=3)
            await passes(rig, 1)
            kept.append(made[0])
            await catalog.delete(await catalog.read(made[1]))
            await gone(rig, made[1])
        assert collector_of(rig).alarm == ""
        for ledger in kept:
            assert (await rig.read(ledger, 0))[0] is Status.OK


async def test_g1_a_store_that_is_away_ends_the_pass_and_no_more(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path) as rig:
        ledger = await rig.ledger()
        await fill(rig, ledger)
        await delete(rig, ledger)
        rig.metadata.suspend()
        await passes(rig)
        assert (await rig.read(ledger, 0))[0] is Status.OK
        assert collector_of(rig).alarm == ""
        rig.metadata.resume()
        await gone(rig, ledger)


# --- compaction --------------------------------------------------------------------------------


async def test_b19_what_lives_is_copied_together_in_order(tmp_path: pathlib.Path) -> None:
    settings: dict[str, object] = {"compaction_major_interval_s": 0.01}
    async with rig_of(tmp_path, **settings) as rig:
        kept, dropped = await rig.ledger(), await rig.ledger()
        for start in range(0, 40, 4):
            await fill(rig, kept, first=start, count=4)
            await fill(rig, dropped, first=start, count=4)
        before = stored_bytes(rig)
        await delete(rig, dropped)
        await gone(rig, dropped)
        core = compactor_of(rig).core
        folder = rig.data_dir / "journal"
        await until(lambda: core.compactions > 0 and core.next_deadline_s() is not None)
        await until(lambda: stored_bytes(rig) < 0.8 * before)
        assert list(folder.glob("*.sorted"))
        for entry_id in range(40):
            expected = [entry(kept, entry_id, PAYLOAD)]
            assert await rig.read(kept, entry_id) == (Status.OK, expected)
        locations = [place for _, place in index_of(rig).entries_of(kept, 0, 100)]
        copied = [place for place in locations if place.segment >= SORTED_BASE]
        assert len(copied) > 20
        assert copied == sorted(copied), "neighbours lie side by side"
        info = rig.server.desk.info()
        assert info.compactions == core.compactions
        assert 0 < info.live_bytes <= info.stored_bytes
        await rig.crash()
        for entry_id in range(40):
            assert (await rig.read(kept, entry_id))[0] is Status.OK


async def test_b20_a_read_follows_an_entry_that_is_moved_under_it(tmp_path: pathlib.Path) -> None:
    """The index was asked, then the entry moved and its old segment was removed."""
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await fill(rig, ledger, other, count=20)
        index = index_of(rig)
        await settled(rig)
        assert await rig.server.store.deletions.delete([other]) == [other]
        old = index.locate(ledger, 0)
        core = compactor_of(rig).core
        compactor_of(rig).compact_all()
        await until(lambda: core.compactions > 0 and core.next_deadline_s() is not None)
        assert old is not None
        assert not (rig.data_dir / "journal" / segment_name(old.segment)).exists()

        class Late(MemoryIndex):
            """Answers once with where the entry lay before."""

            first = True

            def __init__(self) -> None:
                pass

            def locate_run(
                self, ledger_id: int, first: int, max_count: int, max_bytes: int
            ) -> list[Location]:
                if self.first:
                    self.first = False
                    assert old is not None
                    return [old]
                return index.locate_run(ledger_id, first, max_count, max_bytes)

            def locate(self, ledger_id: int, entry_id: int) -> Location | None:
                return index.locate(ledger_id, entry_id)

        files = SegmentFiles(rig.data_dir / "journal", rig.disk)
        found = EntryReader(Late(), files).read_run(ledger, 0, 1, 1 << 20, {})
        assert found.status is Status.OK
        assert bytes(found.entries[0]) == entry(ledger, 0, PAYLOAD)
        files.close()


async def test_b21_a_damaged_entry_keeps_its_segment(tmp_path: pathlib.Path) -> None:
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        ledger, other = await rig.ledger(), await rig.ledger()
        await fill(rig, ledger, other, count=20)
        index = index_of(rig)
        await settled(rig)
        assert await rig.server.store.deletions.delete([other]) == [other]
        place = index.locate(ledger, 1)
        assert place is not None
        path = rig.data_dir / "journal" / segment_name(place.segment)
        flip(path, place.offset + 100)
        core = compactor_of(rig).core
        compactor_of(rig).compact_all()
        await until(lambda: core.compactions > 0 and core.next_deadline_s() is not None)
        assert path.exists()
        assert compactor_of(rig).damaged_entries == 1
        assert await rig.read(ledger, 1) == (Status.EIO, [])
        good = [entry_id for entry_id in range(20) if entry_id != 1]
        for entry_id in good:
            assert (await rig.read(ledger, entry_id))[0] is Status.OK
        # Repaired from another copy (6.15), it lies elsewhere, and the segment is free to go.
        assert await rig.add(entry(ledger, 1, PAYLOAD), recovery=True) == [Status.OK]
        assert (await rig.read(ledger, 1))[0] is Status.OK


async def test_a_lost_index_finds_its_entries_in_sorted_segments(tmp_path: pathlib.Path) -> None:
    """Segments are gone, so the journal is not whole: only an operator's word builds the index
    anew, under a new incarnation, from what there is (6.9, B-25)."""
    async with rig_of(tmp_path, gc_interval_s=1000.0) as rig:
        kept, dropped = await rig.ledger(), await rig.ledger()
        await fill(rig, kept, dropped, count=30)

        await settled(rig)
        assert await rig.server.store.deletions.delete([dropped]) == [dropped]
        core = compactor_of(rig).core
        compactor_of(rig).compact_all()
        await until(lambda: core.compactions > 0 and core.next_deadline_s() is not None)
        await rig.stop()
        for path in (rig.data_dir / "index").iterdir():
            path.unlink()
        with pytest.raises(HistoryInDoubt):
            await rig.start()
        await rig.start(accept_data_loss=True)
        for entry_id in range(30):
            assert (await rig.read(kept, entry_id))[0] is Status.OK
        found = index_of(rig).entries_of(kept, 0, 100)
        assert len(found) == 30
        assert any(place.segment >= SORTED_BASE for _, place in found)


async def test_a_bookie_lists_its_ledgers_in_pages_whatever_the_metadata_says(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_of(tmp_path) as rig:
        ledgers = sorted([await rig.ledger() for _ in range(5)])
        await fill(rig, *ledgers, count=2)
        await settled(rig)
        await rig.metadata.delete(Paths(ROOT).ledger(ledgers[2]), expected=None)
        listed: list[int] = []
        more, above = True, -1
        while more:
            request = bookie_pb2.ListLedgersRequest(above=above, limit=2)
            reply = await rig.server.desk.list_ledgers(request)
            listed += reply.ledger_ids
            more, above = reply.more, listed[-1]
            assert reply.stored == len(ledgers)
        assert listed == ledgers
        assert 0 < rig.server.desk.info().free_bytes <= rig.server.desk.info().disk_total_bytes
