"""A full disk is no loss: the bookie starts and lives read-only, serves reads, and returns when
space is back (spec/ledger.md §6.13)."""

from __future__ import annotations

import asyncio
import errno
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import pytest_asyncio

from octavo.bookie.storage.rocks_index import RocksIndex
from octavo.proto.bookie_wire import Status
from octavo.runtime.disk import Appender
from octavo.runtime.errors import StorageFull
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import DEADLINE_S, BookieRig, entry, flip

LITTLE = (1 << 10, 1 << 40)
PLENTY = (1 << 40, 1 << 41)


@pytest_asyncio.fixture
async def rig(tmp_path: pathlib.Path) -> AsyncIterator[BookieRig]:
    async with BookieRig(tmp_path / "data") as made:
        yield made


def no_index_space(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """RocksDB has no space: its calls fail as they do on a full file system."""
    for name in names:

        def full(_self: RocksIndex, *_rest: object) -> None:
            raise StorageFull("IO error: No space left on device: injected")

        monkeypatch.setattr(RocksIndex, name, full)


async def when(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def state(rig: BookieRig) -> str:
    return rig.server._state  # pyright: ignore[reportPrivateUsage]


def frozen(rig: BookieRig) -> bool:
    return rig.server._boot.frozen  # pyright: ignore[reportPrivateUsage]


async def filled(rig: BookieRig, count: int = 20) -> LedgerId:
    ledger = await rig.ledger()
    for i in range(count):
        assert await rig.add(entry(ledger, i)) == [Status.OK]
    return ledger


async def test_613_a_start_without_space_is_read_only_and_returns(rig: BookieRig) -> None:
    ledger = await filled(rig)
    other = await rig.ledger()
    await rig.add(entry(other, 0))
    await rig.server.store.fence(other)
    incarnation = rig.server.incarnation
    await rig.stop()
    rig.disk.no_space, rig.disk.space = True, LITTLE
    await rig.start()
    assert (rig.server.incarnation, state(rig), frozen(rig)) == (incarnation, "ro", True)
    assert await rig.read(ledger, 0, 100) == (Status.OK, [entry(ledger, i) for i in range(20)])
    assert await rig.read(ledger, 20) == (Status.NO_SUCH_ENTRY, [])
    assert await rig.add(entry(ledger, 20)) == [Status.READONLY]
    assert await rig.add(entry(ledger, 20), recovery=True) == [Status.READONLY]
    assert (await rig.server.store.fence(ledger)).status is Status.DISK_FULL
    assert (await rig.server.store.fence(ledger)).status is Status.DISK_FULL, "and again"
    assert (await rig.server.store.fence(other)).status is Status.OK, "it was durable before"
    assert (await rig.read(ledger, 0, fence=True))[0] is Status.DISK_FULL
    client = await rig.client()
    rig.disk.no_space, rig.disk.space = False, PLENTY
    await when(lambda: state(rig) == "rw")
    assert await client.closed(), "connections are made anew"
    assert not frozen(rig)
    assert await rig.read(ledger, 0, 100) == (Status.OK, [entry(ledger, i) for i in range(20)])
    assert await rig.add(entry(ledger, 20)) == [Status.OK]
    assert (await rig.server.store.fence(ledger)).status is Status.OK
    await rig.crash()
    assert await rig.read(ledger, 20) == (Status.OK, [entry(ledger, 20)])


async def test_613_what_is_not_indexed_is_replayed_into_memory(rig: BookieRig) -> None:
    """Killed with everything in the journal only, then started without space."""
    ledger = await filled(rig)
    journal = rig.server._boot.journal  # pyright: ignore[reportPrivateUsage]
    await when(lambda: not journal.unproven)
    rig.disk.no_space, rig.disk.space = True, LITTLE
    await rig.crash()
    assert frozen(rig)
    assert await rig.read(ledger, 0, 100) == (Status.OK, [entry(ledger, i) for i in range(20)])
    assert await rig.read(ledger, 20) == (Status.NO_SUCH_ENTRY, [])
    assert await rig.read(ledger + 1, 0) == (Status.NO_SUCH_LEDGER, [])


async def test_b3_what_nothing_proves_durable_is_unknown_without_space(rig: BookieRig) -> None:
    """It cannot be written again, so it is neither answered OK nor absent."""
    ledger = await filled(rig, 5)
    rig.disk.gate.clear()
    last = asyncio.ensure_future(rig.add(entry(ledger, 5)))
    segment = rig.segments()[-1]
    await when(lambda: b"payload of %d/5" % ledger in segment.read_bytes())
    rig.disk.no_space, rig.disk.space = True, LITTLE
    await rig.crash()
    await asyncio.wait([last])
    assert frozen(rig)
    assert await rig.read(ledger, 4) == (Status.OK, [entry(ledger, 4)])
    assert await rig.read(ledger, 5) == (Status.EIO, [])
    rig.disk.no_space, rig.disk.space = False, PLENTY
    await when(lambda: state(rig) == "rw")
    assert await rig.read(ledger, 5) == (Status.OK, [entry(ledger, 5)]), "written again and synced"


@pytest.mark.parametrize("call", ["write", "flush"])
async def test_613_an_index_without_space_ends_in_a_frozen_store(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    await rig.stop()
    await rig.start(memtable_flush_s=0.1)
    collector = rig.server._open.reclaimer.collector  # pyright: ignore[reportPrivateUsage]
    await when(lambda: collector.stats.last_pass_s is not None)  # it writes to the index, too
    with monkeypatch.context() as shortage:
        no_index_space(shortage, call)
        rig.disk.no_space, rig.disk.space = True, LITTLE
        ledger = await rig.ledger()
        stored: list[bytes] = []  # a slow disk may freeze the store before all five are in
        while len(stored) < 5 and await rig.add(entry(ledger, len(stored))) == [Status.OK]:
            stored.append(entry(ledger, len(stored)))
        assert stored
        await when(lambda: state(rig) == "ro" and frozen(rig))
        assert await rig.read(ledger, 0, 9) == (Status.OK, stored)
        assert not rig.server.failed.done()
    rig.disk.no_space, rig.disk.space = False, PLENTY
    await when(lambda: state(rig) == "rw")
    assert await rig.read(ledger, 0, 9) == (Status.OK, stored)


async def test_613_a_write_without_space_ends_in_a_boot_in_place(
    rig: BookieRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even what was allocated may find no space on some file systems; B-8 forbids to go on behind
    a failed write, so the storage is opened again."""
    ledger = await filled(rig, 5)
    real = RealWrite(rig)
    monkeypatch.setattr("tests.bookie_rig.FaultyAppender.write", real)
    client = await rig.client()
    client.send_add(1, entry(ledger, 5))
    assert await client.closed(), "not acknowledged"
    await when(lambda: state(rig) in ("ro", "rw") and real.failed)
    assert await rig.read(ledger, 0, 5) == (Status.OK, [entry(ledger, i) for i in range(5)])
    assert not rig.server.failed.done()
    await when(lambda: state(rig) == "rw")
    assert await rig.add(entry(ledger, 5)) == [Status.OK]


class RealWrite:
    """Fails one write with ENOSPC."""

    def __init__(self, rig: BookieRig) -> None:
        self.failed = False

    def __get__(self, appender: Appender, _owner: type) -> Callable[[Sequence[bytes]], None]:
        def write(buffers: Sequence[bytes]) -> None:
            if not self.failed:
                self.failed = True
                raise OSError(errno.ENOSPC, "injected")
            appender._inner.write(buffers)  # type: ignore[attr-defined]

        return write


async def test_613_a_new_bookie_without_space_is_refused_without_advice_to_lose_data(
    tmp_path: pathlib.Path,
) -> None:
    rig = BookieRig(tmp_path / "data")
    rig.disk.no_space = True
    with pytest.raises(StorageFull) as caught:
        await rig.start()
    assert "accept" not in str(caught.value)
    rig.disk.no_space = False
    await rig.start()
    await rig.stop()


async def test_613_a_damaged_index_and_no_space_name_both(rig: BookieRig) -> None:
    await filled(rig)
    await rig.stop()
    current = rig.data_dir / "index" / "CURRENT"
    flip(current, 3)
    rig.disk.no_space, rig.disk.space = True, LITTLE
    with pytest.raises(StorageFull, match=r"space.*index"):
        await rig.start()
    rig.disk.no_space = False
    await rig.start()
