"""Identity, refusal and replay of one bookie's directory (spec/ledger.md §6.7, §6.8, §6.10,
§6.11)."""

from __future__ import annotations

import asyncio
import pathlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from octavo.bookie.directory_lock import DirectoryLock
from octavo.bookie.identity import BootKind, judge_cookies
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import Status
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import IllegalStateError, StorageFailed
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import ROOT, BookieRig, copy_live, entry, flip, snapshot, until

ENTROPY = SeededEntropy(5)
COOKIE = Cookie("b1", "cluster", ENTROPY.uuid(), {"data": "dir"}, (), 4)


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data") as made:
        yield made


def judge(
    stored: Cookie | None, local: Cookie | None, *, empty: bool = False, want: Cookie | None = None
) -> BootKind:
    return judge_cookies("b1", "cluster", stored, local, directory_empty=empty, intended=want).kind


def test_b27_cookies_that_agree() -> None:
    assert judge(COOKIE, COOKIE) is BootKind.NORMAL
    assert judge(None, None, empty=True) is BootKind.NEW
    ahead = replace(COOKIE, boot_counter=5)
    assert judge(COOKIE, ahead) is BootKind.NORMAL, "the directory is written first"


def test_b23_cookies_that_mean_doubt() -> None:
    assert judge(ahead := replace(COOKIE, boot_counter=9), COOKIE) is BootKind.DOUBTFUL
    assert judge(COOKIE, None, empty=True) is BootKind.DOUBTFUL
    assert judge(COOKIE, None) is BootKind.DOUBTFUL
    assert judge(replace(ahead, incarnation=ENTROPY.uuid()), COOKIE) is BootKind.DOUBTFUL


def test_a_first_boot_cut_short_goes_on() -> None:
    assert judge(COOKIE, None, want=COOKIE) is BootKind.RESUMED
    assert judge(COOKIE, None, want=replace(COOKIE, boot_counter=0)) is BootKind.DOUBTFUL


@pytest.mark.parametrize(
    ("stored", "local", "message"),
    [
        (None, None, "not empty"),
        (None, COOKIE, "does not know bookie"),
        (COOKIE, replace(COOKIE, bookie_id="b2"), "belongs to bookie 'b2'"),
        (COOKIE, replace(COOKIE, instance_id="other"), "belongs to cluster other"),
        (COOKIE, replace(COOKIE, directories={"data": "copy"}), "not the one"),
    ],
)
def test_b27_any_other_mix_is_refused(
    stored: Cookie | None, local: Cookie | None, message: str
) -> None:
    with pytest.raises(StorageFailed, match=message) as caught:
        judge(stored, local)
    assert caught.value.hint


def test_directory_lock_is_exclusive(tmp_path: pathlib.Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(StorageFailed, match="in use by another process"):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()


async def filled(rig: BookieRig, count: int = 20) -> LedgerId:
    ledger = await rig.ledger()
    for entry_id in range(count):
        assert await rig.add(entry(ledger, entry_id)) == [Status.OK]
    return ledger


async def everything(rig: BookieRig, ledger: LedgerId) -> list[bytes]:
    status, entries = await rig.read(ledger, 0, 1000)
    assert status is Status.OK
    return entries


async def test_b14_b17_crash_and_replay(rig: BookieRig) -> None:
    ledger = await filled(rig)
    expected = [entry(ledger, i) for i in range(20)]
    incarnation = rig.server.incarnation
    for _ in range(3):
        await rig.crash()
        assert await everything(rig, ledger) == expected
        assert rig.server.incarnation == incarnation
    assert await rig.add(entry(ledger, 20)) == [Status.OK], "the admission was replayed too"
    await until(lambda: rig.server.store.stats.entries_added == 1)
    boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
    state = await asyncio.to_thread(boot.index.ledger, ledger)
    assert state is not None
    assert (state.entries, state.last_entry, state.fenced) == (21, 20, False), "counted once (B-14)"


async def test_clean_stop_seals_and_replays_nothing(rig: BookieRig) -> None:
    ledger = await filled(rig)
    await rig.stop()
    sizes = [path.stat().st_size for path in rig.segments()]
    assert all(size < 100_000 for size in sizes), "preallocated space is given back"
    await rig.start()
    assert len(await everything(rig, ledger)) == 20


async def test_roll_over_many_segments(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        entries = [entry(ledger, i, bytes([i]) * 900) for i in range(40)]
        for data in entries:
            assert await rig.add(data) == [Status.OK]
        assert len(rig.segments()) > 8
        await rig.crash()
        assert await everything(rig, ledger) == entries
        identity = rig.server._boot.identity  # pyright: ignore[reportPrivateUsage]
        newest = int(rig.segments()[-1].name.partition(".")[0], 16)
        assert identity.cookie.boot_counter == newest


async def test_an_item_larger_than_a_segment_gets_a_segment_of_its_own(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path / "data", segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        big = entry(ledger, 0, b"x" * 50_000)
        assert await rig.add(big) == [Status.OK]
        assert await everything(rig, ledger) == [big]


async def test_fences_and_lac_survive_a_crash(rig: BookieRig) -> None:
    ledger = await filled(rig, 3)
    await rig.server.store.fence(ledger)
    await rig.crash()
    assert await rig.add(entry(ledger, 3)) == [Status.FENCED]
    assert (await rig.server.store.fence(ledger)).lac == 1


async def refused(rig: BookieRig, match: str) -> None:
    with pytest.raises(StorageFailed, match=match) as caught:
        await rig.start()
    assert "accept_data_loss" in caught.value.hint


async def test_b23_damage_before_a_proof_refuses_and_b25_salvages(rig: BookieRig) -> None:
    ledger = await filled(rig)
    old = rig.server.incarnation
    boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not boot.journal.unproven)
    image = rig.data_dir.with_name("image")
    snapshot(rig.data_dir, image)
    await rig.stop()
    rig.data_dir = image
    (segment,) = rig.segments()
    position = segment.read_bytes().index(b"payload of %d/7" % ledger)
    flip(segment, position)
    await refused(rig, "damaged")
    await refused(rig, "damaged")
    assert rig.cluster.snapshot()  # nothing was registered
    await rig.start(accept_data_loss=True)
    new = rig.server.incarnation
    assert new != old
    assert rig.server.salvage == {old.bytes}
    for entry_id in range(20):
        status, entries = await rig.read(ledger, entry_id)
        expected = Status.NO_SUCH_ENTRY if entry_id == 7 else Status.OK
        assert status is expected
        assert entries == ([] if entry_id == 7 else [entry(ledger, entry_id)])
    client = await rig.client()
    client.incarnation = old.bytes
    assert await client.add(entry(ledger, 20)) == [Status.WRONG_INCARNATION]
    assert (await client.read(ledger, 7)).status == Status.UNKNOWN
    assert (await client.read(ledger, 8)).entries == [entry(ledger, 8)]
    # The old admission does not count for the new incarnation, which is in no ensemble (B-34).
    assert await rig.add(entry(ledger, 20)) == [Status.FENCED]
    await rig.stop()
    await rig.start()
    assert rig.server.incarnation == new


async def test_r5_a_lost_index_is_built_anew_from_a_whole_journal(rig: BookieRig) -> None:
    ledger = await filled(rig)
    await rig.server.store.fence(ledger)
    incarnation = rig.server.incarnation
    assert rig.server.desk.index_rebuilds == 0
    await rig.stop()
    shutil.rmtree(rig.data_dir / "index")
    await rig.start()
    assert rig.server.incarnation == incarnation, "nothing is lost, nothing is given up"
    assert rig.server.desk.index_rebuilds == 1
    await rig.server._reopen()  # pyright: ignore[reportPrivateUsage]
    assert rig.server.desk.index_rebuilds == 1, "a store that is opened again has its index"
    assert await everything(rig, ledger) == [entry(ledger, i) for i in range(20)]
    assert await rig.add(entry(ledger, 20)) == [Status.FENCED], "INV-8"
    assert await rig.read(ledger, 20) == (Status.NO_SUCH_ENTRY, [])


async def test_b23_a_lost_index_and_a_journal_that_is_not_whole_refuse(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path / "data", segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        for i in range(12):
            await rig.add(entry(ledger, i, bytes([i]) * 900))
        await rig.stop()
        shutil.rmtree(rig.data_dir / "index")
        rig.segments()[0].unlink()
        await refused(rig, "index.* is missing or foreign; segments before 2 are missing")
        await rig.start(accept_data_loss=True)
        status, entries = await rig.read(ledger, 11)
        assert (status, entries) == (Status.OK, [entry(ledger, 11, bytes([11]) * 900)])


async def test_b23_replaced_disk_refuses(rig: BookieRig) -> None:
    ledger = await filled(rig)
    await rig.stop()
    shutil.rmtree(rig.data_dir)
    await refused(rig, "lost its cookie, or was replaced")
    await rig.start(accept_data_loss=True)
    assert await rig.read(ledger, 0) == (Status.NO_SUCH_LEDGER, [])
    client = await rig.client()
    (old,) = rig.server.salvage
    client.incarnation = old
    assert (await client.read(ledger, 0)).status == Status.UNKNOWN, "H4: never a negative"


async def test_b23_rolled_back_directory_refuses(rig: BookieRig) -> None:
    await filled(rig, 2)
    await rig.stop()
    old = rig.data_dir.with_name("old")
    shutil.copytree(rig.data_dir, old, ignore=shutil.ignore_patterns("*.tmp"))
    await rig.start()
    await rig.stop()
    rig.data_dir = old
    await refused(rig, "rolled back")


async def test_b13_missing_newest_segment_refuses(tmp_path: pathlib.Path) -> None:
    async with BookieRig(tmp_path / "data", segment_bytes=4096) as rig:
        ledger = await rig.ledger()
        for i in range(12):
            await rig.add(entry(ledger, i, bytes([i]) * 900))
        await rig.stop()
        rig.segments()[-1].unlink()
        await refused(rig, "missing")


async def test_another_cluster_refuses(rig: BookieRig) -> None:
    await filled(rig, 1)
    await rig.stop()
    rig.cluster = type(rig.cluster)()
    with pytest.raises(StorageFailed, match="belongs to cluster"):
        await rig.start()


async def test_two_servers_on_one_directory(rig: BookieRig) -> None:
    second = BookieRig(rig.data_dir)
    second.cluster = rig.cluster
    with pytest.raises(StorageFailed, match="in use by another process"):
        await second.start()
    await second.stop()
    ledger = await filled(rig, 1)
    assert await everything(rig, ledger) == [entry(ledger, 0)], "the first one is unharmed"


async def test_b28_two_processes_with_one_id(rig: BookieRig, tmp_path: pathlib.Path) -> None:
    """A copy of the directory on another machine, same id: the registration tells them apart."""
    copy = tmp_path / "copy"
    copy_live(rig.data_dir, copy)
    second = BookieRig(copy, registration_wait_s=0.0)
    second.cluster = rig.cluster
    with pytest.raises(IllegalStateError, match="held by another process"):
        await second.start()
    await second.stop()
    assert not rig.server.failed.done()


async def test_cookie_counts_boots(rig: BookieRig) -> None:
    async def counter() -> int:
        catalog = CookieCatalog(rig.metadata, Paths(ROOT), clock=rig.clock, entropy=rig.entropy)
        found = await catalog.read_cookie("bookie-1")
        assert found is not None
        return found.cookie.boot_counter

    first = await counter()
    await rig.stop()
    await rig.start()
    assert await counter() > first


# --- what a boot reads, and what proves it (ADR 14) -----------------------------------------------


async def test_b17_an_entry_whose_sync_failed_is_written_again_and_synced(rig: BookieRig) -> None:
    """INV-1: after EIO the page cache still shows the bytes, and a later sync proves nothing."""
    ledger = await filled(rig, 3)
    rig.disk.fail_sync = True
    unsynced = asyncio.create_task(rig.add(entry(ledger, 3)))
    await asyncio.wait_for(asyncio.shield(rig.server.failed), 30)
    unsynced.cancel()
    rig.disk.fail_sync = False
    await rig.crash()
    before = rig.disk.syncs
    assert before
    assert await rig.add(entry(ledger, 3)) == [Status.OK]
    newest = rig.segments()[-1].read_bytes()
    assert b"payload of %d/3" % ledger in newest, "served from where this boot synced it"
    boot = rig.server._boot  # pyright: ignore[reportPrivateUsage]
    found = await asyncio.to_thread(boot.index.locate, ledger, 3)
    assert found is not None
    assert found.segment == boot.journal.segment


@pytest.mark.parametrize("what", ["half", "last sector", "empty", "short", "zeros"])
async def test_inv9_an_idle_stream_that_lost_synced_bytes_is_refused(
    rig: BookieRig, what: str
) -> None:
    ledger = await filled(rig, 200)
    image = rig.data_dir.with_name("image")
    snapshot(rig.data_dir, image)
    await rig.stop()
    rig.data_dir = image
    (segment,) = rig.segments()
    data = segment.read_bytes()
    end = len(data.rstrip(b"\0"))
    changed = {
        "half": data[: end // 2],
        "last sector": data[: (end - 1) // 4096 * 4096],
        "empty": b"",
        "short": data[:64],
        "zeros": bytes(len(data)),
    }[what]
    segment.write_bytes(changed)
    await refused(rig, "durable")
    await rig.start(accept_data_loss=True)
    (old,) = rig.server.salvage
    client = await rig.client()
    client.incarnation = old
    assert (await client.read(ledger, 199)).status == Status.UNKNOWN


async def test_inv8_a_directory_rolled_back_within_a_segment_is_refused(rig: BookieRig) -> None:
    """The whole directory goes back, its own evidence with it; the cluster remembers."""
    ledger = await filled(rig, 10)
    image = rig.data_dir.with_name("image")
    snapshot(rig.data_dir, image)
    assert (await rig.server.store.fence(ledger)).status is Status.OK
    await rig.stop()
    rig.data_dir = image
    await refused(rig, "the cluster's cookie|durable")


async def test_inv8_rolled_back_after_a_kill_of_an_idle_bookie(rig: BookieRig) -> None:
    """Nobody stopped it in good order; what it published when it was idle is enough."""
    ledger = await filled(rig, 10)
    image = rig.data_dir.with_name("image")
    snapshot(rig.data_dir, image)
    assert (await rig.server.store.fence(ledger)).status is Status.OK
    await until_published(rig)
    with pytest.raises(StorageFailed, match="the cluster's cookie"):
        await rig.crash(image)


async def published(rig: BookieRig) -> tuple[int, int]:
    """What the cluster knows of the log's durable end."""
    catalog = CookieCatalog(rig.metadata, Paths(ROOT), clock=rig.clock, entropy=rig.entropy)
    found = await catalog.read_cookie("bookie-1")
    assert found is not None
    return found.cookie.durable_up_to


async def until_published(rig: BookieRig) -> tuple[int, int]:
    journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(30):
        while await published(rig) != tuple(journal.recorded):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return await published(rig)


async def test_idle_bookie_publishes_how_far_its_log_is_durable(rig: BookieRig) -> None:
    ledger = await filled(rig, 5)
    first = await until_published(rig)
    assert await rig.add(entry(ledger, 5)) == [Status.OK]
    assert await until_published(rig) > first
    await rig.stop()
    await rig.start()
    assert await published(rig) >= first


@pytest.mark.parametrize("what", ["missing", "damaged"])
async def test_b23_lost_durable_file_refuses(rig: BookieRig, what: str) -> None:
    await filled(rig, 2)
    await rig.stop()
    path = rig.data_dir / "durable"
    if what == "missing":
        path.unlink()
    else:
        for slot in range(3):
            flip(path, slot * 4096 + 20)
    await refused(rig, "file 'durable' is missing or damaged")
    await rig.start(accept_data_loss=True)


async def test_one_whole_slot_of_the_durable_file_is_enough(rig: BookieRig) -> None:
    ledger = await filled(rig, 5)
    await rig.stop()
    data = (rig.data_dir / "durable").read_bytes()
    for slot in range(3):
        changed = bytearray(data)
        changed[slot * 4096 + 20] ^= 1
        (rig.data_dir / "durable").write_bytes(changed)
        await rig.start()
        assert len(await everything(rig, ledger)) == 5
        await rig.stop()
        data = (rig.data_dir / "durable").read_bytes()


async def test_b28_a_copy_that_lost_its_registration_publishes_nothing(
    rig: BookieRig, tmp_path: pathlib.Path
) -> None:
    await filled(rig, 3)
    before = await until_published(rig)
    copy = tmp_path / "copy"
    copy_live(rig.data_dir, copy)
    second = BookieRig(copy, registration_wait_s=0.0)
    second.cluster = rig.cluster
    with pytest.raises(IllegalStateError, match="held by another process"):
        await second.start()
    await second.stop()
    assert await published(rig) <= before
