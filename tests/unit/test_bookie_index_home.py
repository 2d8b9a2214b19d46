"""An index on another disk than its journal: which folder is trusted (B-23, B-27, 6.13, ADR 65)."""

from __future__ import annotations

import asyncio
import errno
import itertools
import pathlib
import shutil
import uuid

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.identity import BootKind
from octavo.bookie.index_home import FolderFacts, HomeVerdict, judge_home
from octavo.bookie.space import SpaceGauge
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import Status
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    DiskFailed,
    HistoryInDoubt,
    OctavoError,
    StorageFailed,
    StorageUnavailable,
)
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import DEADLINE_S, ROOT, BookieRig, entry, until
from tests.disk_faults import DiskSites, Killed, Site
from tests.unit.test_bookie_renewal import KillPoints

LIFE = uuid.UUID(int=1)


def cookie(counter: int = 7, index: str = "i", data: str = "d", bookie: str = "b") -> Cookie:
    return Cookie(bookie, "c", LIFE, {"data": data, "index": index}, (), counter)


def judged(facts: FolderFacts, kind: BootKind = BootKind.NORMAL, known: str = "i") -> HomeVerdict:
    return judge_home(
        kind,
        "b",
        "c",
        facts,
        known=frozenset(known),
        known_data=frozenset("d"),
        counter=7,
        separate=True,
    )


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        (FolderFacts(cookie(), has_index=True), ""),
        (FolderFacts(cookie(8)), ""),
        (FolderFacts(), "not mounted"),
        (FolderFacts(has_index=True), "not mounted"),
        (FolderFacts(damage="torn"), "torn"),
        (FolderFacts(cookie(6), has_index=True), "rolled back"),
    ],
)
def test_b27_the_folder_of_the_index_is_the_registered_one_and_not_older(
    facts: FolderFacts, lost: str
) -> None:
    verdict = judged(facts)
    assert lost in verdict.lost
    assert bool(verdict.lost) == bool(lost)
    assert verdict.counter == (facts.cookie.boot_counter if facts.cookie and not lost else 0)


@pytest.mark.parametrize(
    ("facts", "kind", "known", "why"),
    [
        (FolderFacts(cookie(bookie="x")), BootKind.NORMAL, "i", "belongs to bookie 'x'"),
        (FolderFacts(cookie(bookie="x")), BootKind.DOUBTFUL, "i", "belongs to bookie 'x'"),
        (FolderFacts(cookie(index="j")), BootKind.NORMAL, "i", "not the one"),
        (FolderFacts(cookie(index="j")), BootKind.DOUBTFUL, "i", "not the one"),
        (FolderFacts(cookie(data="e"), has_index=True), BootKind.NORMAL, "", "another data folder"),
        (FolderFacts(has_index=True), BootKind.NEW, "", "not empty"),
        (FolderFacts(damage="torn"), BootKind.NEW, "", "not empty"),
        (FolderFacts(has_index=True, elsewhere=True), BootKind.NORMAL, "", "another one in"),
    ],
)
def test_b27_a_folder_of_another_life_is_refused_whatever_is_accepted(
    facts: FolderFacts, kind: BootKind, known: str, why: str
) -> None:
    with pytest.raises(StorageFailed, match=why):
        judged(facts, kind, known)


def test_b27_a_first_start_and_a_renewal_go_on_with_what_is_there() -> None:
    for kind in (BootKind.RESUMED, BootKind.RENEWED, BootKind.DOUBTFUL):
        assert judged(FolderFacts(), kind) == HomeVerdict()
        assert judged(FolderFacts(), kind, known="") == HomeVerdict()
    assert judged(FolderFacts(), BootKind.NEW, known="") == HomeVerdict()
    assert judged(FolderFacts(has_index=True), known="").moves_in
    assert judged(FolderFacts(cookie(), has_index=True), known="").moves_in, "cut short"
    assert judged(FolderFacts(), known="").lost


def test_613_the_fullest_disk_decides() -> None:
    """Read-only at 95 % of any disk that is needed; each goes back by its own measurements."""
    config = BookieConfig.load(
        bookie_id="b", data_dir="d", index_dir="i", segment_bytes=4096, memtable_bytes=1 << 20
    )
    gauge = SpaceGauge(config)
    assert gauge.index is not None
    gauge.data.observe(900 << 20, 1000 << 20)
    for free, writable, recovery in (
        (500, True, True),
        (50, False, True),
        (60, False, True),
        (80, True, True),
        (3, False, True),
        (1, False, False),
    ):
        gauge.index.observe(free << 20, 1000 << 20)
        assert (gauge.writable, gauge.recovery_allowed) == (writable, recovery), free
    gauge.index.observe(500 << 20, 1000 << 20)
    gauge.allocation_failed()
    gauge.data.observe(900 << 20, 1000 << 20)
    assert not gauge.writable, "which disk it was is not known: each proves itself"
    gauge.index.observe(500 << 20, 1000 << 20)
    assert gauge.writable
    assert gauge.free_bytes() == {"free_bytes": 900 << 20, "index_free_bytes": 500 << 20}


# --- a bookie -----------------------------------------------------------------------------------


def rig_in(base: pathlib.Path, segment_bytes: int = 1 << 20) -> BookieRig:
    return BookieRig(
        base / "data",
        index_dir=base / "fast",
        registration_wait_s=0.0,
        segment_bytes=segment_bytes,
    )


async def filled(rig: BookieRig, count: int = 20, size: int = 0) -> LedgerId:
    ledger = await rig.ledger()
    for i in range(count):
        assert await rig.add(entry(ledger, i, b"x" * size)) == [Status.OK]
    assert (await rig.server.store.fence(ledger)).status is Status.OK
    return ledger


async def holds(rig: BookieRig, ledger: LedgerId, count: int = 20, size: int = 0) -> None:
    for i in range(count):
        assert await rig.read(ledger, i) == (Status.OK, [entry(ledger, i, b"x" * size)])
    assert await rig.add(entry(ledger, count)) == [Status.FENCED], "INV-8"
    assert await rig.read(ledger, count) == (Status.NO_SUCH_ENTRY, [])


async def stored(rig: BookieRig) -> Cookie:
    catalog = CookieCatalog(
        rig.cluster.connect(), Paths(ROOT), clock=rig.clock, entropy=rig.entropy
    )
    found = await catalog.read_cookie("bookie-1")
    assert found is not None
    return found.cookie


async def test_b27_the_index_lies_in_its_own_folder_and_the_cluster_knows_it(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_in(tmp_path) as rig:
        ledger = await filled(rig)
        assert not (rig.data_dir / "index").exists()
        assert list((tmp_path / "fast" / "bookie-1" / "index").glob("*"))
        incarnation = rig.server.incarnation
        await rig.stop()
        await rig.start()
        await holds(rig, ledger)
        assert set((await stored(rig)).directories) == {"data", "index"}
        assert rig.server.incarnation == incarnation
        await rig.server._reopen()  # pyright: ignore[reportPrivateUsage]
        await holds(rig, ledger)
        assert rig.server.desk.index_rebuilds == 0


async def test_b27_an_index_disk_that_is_not_mounted_is_no_loss_until_somebody_says_so(
    tmp_path: pathlib.Path,
) -> None:
    async with rig_in(tmp_path) as rig:
        ledger = await filled(rig)
        incarnation = rig.server.incarnation
        await rig.stop()
        fast = tmp_path / "fast"
        fast.rename(tmp_path / "unmounted")
        with pytest.raises(StorageUnavailable, match="empty, or not mounted") as caught:
            await rig.start()
        assert "accept_index_loss" in caught.value.hint
        assert not fast.exists(), "nothing is made where the disk is missing"
        (tmp_path / "unmounted").rename(fast)
        await rig.start()
        assert rig.server.desk.index_rebuilds == 0
        await rig.stop()
        shutil.rmtree(fast)
        await rig.start(accept_index_loss=True)
        assert rig.server.incarnation == incarnation, "R5: the journal is whole"
        assert rig.server.desk.index_rebuilds == 1
        await holds(rig, ledger)
        await rig.stop()
        await rig.start()
        await holds(rig, ledger)


async def test_b23_an_index_disk_that_was_rolled_back_is_not_trusted(
    tmp_path: pathlib.Path,
) -> None:
    """An older index may name segments that compaction emptied, and miss those it wrote."""
    async with rig_in(tmp_path, segment_bytes=4096) as rig:
        await rig.stop()
        fast = tmp_path / "fast"
        shutil.copytree(fast, tmp_path / "old")
        await rig.start()
        ledger = await filled(rig, 8, 900)
        await rig.stop()
        shutil.rmtree(fast)
        (tmp_path / "old").rename(fast)
        with pytest.raises(StorageUnavailable, match="rolled back"):
            await rig.start()
        first = rig.segments()[0]
        await asyncio.to_thread(first.rename, tmp_path / first.name)
        with pytest.raises(HistoryInDoubt, match=r"rolled back.*; segments before 2 are missing"):
            await rig.start(accept_index_loss=True)
        (tmp_path / first.name).rename(first)
        await rig.start(accept_index_loss=True)
        await holds(rig, ledger, 8, 900)


async def test_b23_an_index_disk_proves_that_the_data_disk_was_rolled_back(
    tmp_path: pathlib.Path,
) -> None:
    """Killed behind a roll that the metadata store never heard of: both cookies of the old copy
    agree, the index's does not."""
    async with rig_in(tmp_path, segment_bytes=4096) as rig:
        await rig.stop()
        old = tmp_path / "old"
        shutil.copytree(rig.data_dir, old)
        cookie_key = Paths(ROOT).cookie("bookie-1")
        told = rig.cluster.snapshot()[cookie_key].value
        await rig.start()
        await filled(rig, 8, 900)
        await rig.stop()
        store = rig.cluster.connect()
        found = await store.get(cookie_key)
        assert found is not None
        await store.put(cookie_key, told, expected=found.version)
        rig.data_dir = old
        with pytest.raises(HistoryInDoubt, match="index folder's cookie"):
            await rig.start()


async def test_b27_a_folder_of_another_bookie_is_refused(tmp_path: pathlib.Path) -> None:
    async with rig_in(tmp_path) as rig:
        await rig.stop()
        taken = tmp_path / "fast" / "bookie-1" / "index.cookie"
        other = rig_in(tmp_path / "other")
        other.entropy = SeededEntropy(9)
        async with other:
            pass
        shutil.copy(tmp_path / "other" / "fast" / "bookie-1" / "index.cookie", taken)
        for accept in ({}, {"accept_index_loss": True}, {"accept_data_loss": True}):
            with pytest.raises(StorageFailed, match="the index folder belongs to bookie"):
                await rig.start(**accept)


async def test_b25_a_renewal_takes_its_index_folder_along(tmp_path: pathlib.Path) -> None:
    async with rig_in(tmp_path) as rig:
        ledger = await filled(rig)
        before = await stored(rig)
        await rig.stop()
        (rig.data_dir / "cookie").unlink()
        shutil.rmtree(tmp_path / "fast")
        await rig.start(accept_data_loss=True)
        after = await stored(rig)
        assert after.salvage == (before.incarnation,)
        assert not set(after.directories.values()) & set(before.directories.values())
        assert (await rig.read(ledger, 3))[0] is Status.OK, "it is in the journal"
        await rig.stop()
        await rig.start()


# --- moving it ----------------------------------------------------------------------------------


async def inside(base: pathlib.Path) -> tuple[BookieRig, LedgerId]:
    """A bookie with its index in the data folder, stopped in good order."""
    rig = BookieRig(base / "data", registration_wait_s=0.0, segment_bytes=4096)
    await rig.start()
    ledger = await filled(rig, 8, 900)
    await rig.stop()
    return rig, ledger


def move(rig: BookieRig, base: pathlib.Path) -> pathlib.Path:
    home = base / "fast" / "bookie-1"
    home.mkdir(parents=True)
    shutil.move(rig.data_dir / "index", home / "index")
    return home


async def test_b27_an_index_moves_to_another_disk_and_back(tmp_path: pathlib.Path) -> None:
    rig, ledger = await inside(tmp_path)
    fast = tmp_path / "fast"
    with pytest.raises(StorageUnavailable, match="holds no index") as caught:
        await rig.start(index_dir=fast)
    assert f"move {rig.data_dir / 'index'} to {fast / 'bookie-1' / 'index'}" in caught.value.hint
    home = move(rig, tmp_path)
    await rig.start(index_dir=fast)
    assert rig.server.desk.index_rebuilds == 0
    assert set((await stored(rig)).directories) == {"data", "index"}
    await holds(rig, ledger, 8, 900)
    await rig.stop()
    with pytest.raises(StorageUnavailable, match="empty, or not mounted"):
        await rig.start()
    for path in home.iterdir():
        shutil.move(path, rig.data_dir / path.name)
    await rig.start()
    await holds(rig, ledger, 8, 900)
    assert rig.server.desk.index_rebuilds == 0
    await rig.stop()


async def test_b27_a_copy_or_an_older_index_does_not_move_in(tmp_path: pathlib.Path) -> None:
    rig, ledger = await inside(tmp_path)
    fast, home = tmp_path / "fast", tmp_path / "fast" / "bookie-1"
    shutil.copytree(rig.data_dir / "index", home / "index")
    with pytest.raises(StorageFailed, match="another one in the data folder"):
        await rig.start(index_dir=fast)
    await rig.start()
    await rig.stop()
    shutil.rmtree(rig.data_dir / "index")
    with pytest.raises(StorageFailed, match="is of an older moment"):
        await rig.start(index_dir=fast)
    shutil.rmtree(home)
    other = BookieRig(tmp_path / "other" / "data")
    other.entropy = SeededEntropy(9)
    async with other:
        await other.stop()
        shutil.copytree(other.data_dir / "index", home / "index")
    with pytest.raises(StorageFailed, match=r"cannot be used: the index .* is missing or foreign"):
        await rig.start(index_dir=fast)
    shutil.rmtree(home)
    await rig.start(index_dir=fast, accept_index_loss=True)
    await holds(rig, ledger, 8, 900)
    await rig.stop()


async def test_b27_killed_at_each_step_of_a_move_it_can_be_repeated(tmp_path: pathlib.Path) -> None:
    """Around each of the steps that change anything: a file replaced, a key written."""
    for number in itertools.count():
        base = tmp_path / str(number) / "base"
        base.mkdir(parents=True)
        rig, ledger = await inside(base)
        move(rig, base)
        with pytest.MonkeyPatch.context() as monkeypatch:
            points = KillPoints(rig, monkeypatch, base)
            points.kill_at, points.only = number, ("rename", "put ")
            try:
                await rig.start(index_dir=base / "fast")
            except Killed:
                assert points.image is not None
            else:
                points.kill_at = -1
                assert number > 4, "points were met"
                await rig.stop()
                return
        await rig.stop()
        rig.data_dir = points.image / "data"
        try:
            await rig.start(index_dir=points.image / "fast")
        except OctavoError as error:
            pytest.fail(f"killed at {points.at}: {error}")
        await holds(rig, ledger, 8, 900)
        assert set((await stored(rig)).directories) == {"data", "index"}
        await rig.stop()
        await asyncio.to_thread(shutil.rmtree, base.parent)


# --- its disk is full ---------------------------------------------------------------------------


async def test_613_a_full_index_disk_makes_read_only(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_in(tmp_path) as rig:
        ledger = await rig.ledger()
        assert await rig.add(entry(ledger, 0)) == [Status.OK]
        free = {"fast": 1 << 20, "data": 1 << 40}

        def measured(path: pathlib.Path) -> tuple[int, int]:
            return free["fast" if "fast" in path.parts else "data"], 1 << 41

        monkeypatch.setattr(rig.disk, "free_bytes", measured)
        await until(lambda: not rig.server.store.writable)
        assert await rig.add(entry(ledger, 1)) == [Status.READONLY]
        assert rig.server.desk.info().full_index_folder == str(tmp_path / "fast" / "bookie-1")
        assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])
        assert (await rig.server.store.fence(ledger)).status is Status.OK
        free["fast"] = 1 << 40
        await until(lambda: rig.server.store.writable)
        assert not rig.server.desk.info().full_index_folder


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_613_b8_the_cookie_of_the_index_disk_cannot_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Without space a running bookie goes on and a start is read-only until there is some; what is
    acknowledged is read in both. Any other error ends it."""
    async with rig_in(tmp_path, segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        sites = DiskSites(tmp_path / "fast").install(monkeypatch)
        failing = asyncio.Event()

        def fail(_number: int, site: Site) -> None:
            if failing.is_set() and site.file.startswith(".index.cookie.tmp"):
                raise OSError(error, "injected")

        sites.before = fail
        failing.set()
        seen = len(sites.sites)
        for i in range(8):
            await rig.add(entry(ledger, i, b"x" * 900))
        if error == errno.EIO:
            await asyncio.wait_for(rig.server.failed, DEADLINE_S)
            await rig.stop()
            with pytest.raises(DiskFailed):
                await rig.start()
            return
        await until(lambda: any("cookie" in site.file for site in sites.sites[seen:]))
        assert await rig.add(entry(ledger, 8)) == [Status.OK]
        await rig.stop()
        await rig.start()
        assert await rig.read(ledger, 8) == (Status.OK, [entry(ledger, 8)])
        assert await rig.add(entry(ledger, 9)) == [Status.READONLY]
        failing.clear()
        await until(lambda: rig.server.store.writable)
        assert await rig.add(entry(ledger, 9)) == [Status.OK]
        await rig.stop()
        await rig.start()
        assert await rig.read(ledger, 9) == (Status.OK, [entry(ledger, 9)])
