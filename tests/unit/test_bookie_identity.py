"""The boot counter and the cookies raise no false doubt (spec/ledger.md B-23, B-27, B-28)."""

from __future__ import annotations

import asyncio
import errno
import pathlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from octavo.bookie.identity import BootKind, judge_cookies
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import Status
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    HistoryInDoubt,
    IllegalStateError,
    MetadataUnavailable,
    StorageUnavailable,
)
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import DEADLINE_S, ROOT, BookieRig, copy_live, entry, flip

ENTROPY = SeededEntropy(5)
OLD = Cookie("b1", "cluster", ENTROPY.uuid(), {"data": "dir"}, (), 4)
RENEWED = replace(
    OLD, incarnation=ENTROPY.uuid(), directories={"data": "new"}, salvage=(OLD.incarnation,)
)


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data", registration_wait_s=0.0) as made:
        yield made


async def stored(rig: BookieRig) -> Cookie:
    catalog = CookieCatalog(
        rig.cluster.connect(), Paths(ROOT), clock=rig.clock, entropy=rig.entropy
    )
    found = await catalog.read_cookie("bookie-1")
    assert found is not None
    return found.cookie


def own(rig: BookieRig) -> Cookie:
    return rig.server._boot.identity.cookie  # pyright: ignore[reportPrivateUsage]


async def roll(rig: BookieRig, ledger: LedgerId, first: int) -> int:
    """Add until the next segment was begun; returns the next entry id."""
    journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
    segment = journal.segment
    while journal.segment == segment:
        assert await rig.add(entry(ledger, first, b"x" * 900)) == [Status.OK]
        first += 1
    return first


async def settle(rig: BookieRig) -> None:
    """Until the store's counter is the directory's, and that one the newest segment's."""
    journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(DEADLINE_S):
        while (await stored(rig)).boot_counter != journal.segment:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def judge(stored_: Cookie, local: Cookie | None, intended: Cookie | None) -> BootKind:
    return judge_cookies(
        "b1", "cluster", stored_, local, directory_empty=False, intended=intended
    ).kind


def test_b25_a_renewal_cut_short_goes_on() -> None:
    assert judge(RENEWED, OLD, RENEWED) is BootKind.RENEWED
    assert judge(RENEWED, None, RENEWED) is BootKind.RENEWED
    assert judge(OLD, OLD, RENEWED) is BootKind.NORMAL, "it was not committed"


def test_b27_a_renewal_without_its_note_can_be_repeated() -> None:
    assert judge(RENEWED, OLD, None) is BootKind.DOUBTFUL


async def test_b28_a_copy_started_by_mistake_changes_nothing(
    rig: BookieRig, tmp_path: pathlib.Path
) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    before = await stored(rig)
    for accept in (False, True):
        copy_live(rig.data_dir, copy := tmp_path / f"copy-{accept}")
        if accept:
            (copy / "cookie").unlink()  # its history is in doubt: the flag would renew
        second = BookieRig(copy, registration_wait_s=0.0)
        second.cluster = rig.cluster
        with pytest.raises(IllegalStateError, match="held by another process"):
            await second.start(accept_data_loss=accept)
        await second.stop()
        after = await stored(rig)
        assert (after.incarnation, after.boot_counter) == (before.incarnation, before.boot_counter)
    assert await rig.add(entry(ledger, 1)) == [Status.OK]
    await rig.stop()
    await rig.start()


async def test_b27_the_counter_follows_again_after_an_outage(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the update before it was executed and its reply lost."""
    await rig.stop()
    await rig.start(segment_bytes=4096)
    ledger = await rig.ledger()
    following = await roll(rig, ledger, 0)
    await settle(rig)
    rig.metadata.faults.lose_reply("put")

    async def away(_self: object) -> None:
        raise MetadataUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr("octavo.metadata.memory.MemoryStore.barrier", away)
        outage.setattr("octavo.metadata.settled.ATTEMPTS_MAX", 2)
        following = await roll(rig, ledger, following)
        await asyncio.sleep(0.3)
    await settle(rig)
    await roll(rig, ledger, following)
    await settle(rig)
    assert not rig.server.failed.done()


async def test_613_a_cookie_without_space_stops_nothing(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.stop()
    await rig.start(segment_bytes=4096)
    ledger = await rig.ledger()
    before = own(rig).boot_counter

    def full(path: pathlib.Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "injected", str(path))

    with monkeypatch.context() as shortage:
        shortage.setattr(rig.disk, "replace", full)
        following = await roll(rig, ledger, 0)
        await asyncio.sleep(0.1)
        assert own(rig).boot_counter == before
        assert not rig.server.failed.done()
    await settle(rig)
    await roll(rig, ledger, following)
    await settle(rig)


async def test_b28_a_cookie_that_another_process_changed_is_fail_stop(rig: BookieRig) -> None:
    await rig.stop()
    await rig.start(segment_bytes=4096)
    ledger = await rig.ledger()
    catalog = CookieCatalog(
        rig.cluster.connect(), Paths(ROOT), clock=rig.clock, entropy=rig.entropy
    )
    found = await catalog.read_cookie("bookie-1")
    assert found is not None
    await catalog.update_cookie(found, replace(found.cookie, boot_counter=99))
    await roll(rig, ledger, 0)
    error = await asyncio.wait_for(asyncio.shield(rig.server.failed), DEADLINE_S)
    assert "another process changed the cookie" in str(error)


@pytest.mark.parametrize("damage", ["flip", "empty", "folder"])
async def test_damage_of_the_first_cookie_is_of_no_matter(rig: BookieRig, damage: str) -> None:
    await rig.stop()
    first = rig.data_dir / "cookie.first"
    if damage == "flip":
        flip(first, 0, 0xFF)
    else:
        first.unlink()
        first.mkdir() if damage == "folder" else first.touch()
    await rig.start()


async def test_b23_a_damaged_cookie_is_doubt_and_has_a_way_out(rig: BookieRig) -> None:
    ledger = await rig.ledger()
    await rig.add(entry(ledger, 0))
    old = rig.server.incarnation
    await rig.stop()
    (rig.data_dir / "cookie").write_bytes(b"")
    with pytest.raises(HistoryInDoubt, match="cookie is damaged") as caught:
        await rig.start()
    assert "costs" in caught.value.hint
    await rig.start(accept_data_loss=True)
    assert rig.server.salvage == {old.bytes}
    assert await rig.read(ledger, 0) == (Status.OK, [entry(ledger, 0)])


async def test_the_lock_of_a_running_bookie_is_not_doubt(rig: BookieRig) -> None:
    second = BookieRig(rig.data_dir)
    second.cluster = rig.cluster
    with pytest.raises(StorageUnavailable, match="in use"):
        await second.start(accept_data_loss=True)
    await second.stop()
    assert not rig.server.failed.done()
