"""Giving up a history is crash-safe: killed at any point, the start can be repeated (spec/ledger.md
B-25, B-27)."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
import shutil
from typing import Any

import pytest

from octavo.metadata.memory import MemoryStore
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import HistoryInDoubt, OctavoError
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import BookieRig, copy_live, entry
from tests.disk_faults import DiskSites, Killed, Site


class KillPoints:
    """Every system call of the disk seam and every write of the metadata store is a point where
    the process may be killed; what the disk holds then is kept as an image."""

    def __init__(
        self, rig: BookieRig, monkeypatch: pytest.MonkeyPatch, root: pathlib.Path | None = None
    ) -> None:
        self._root = root or rig.data_dir
        self.only: tuple[str, ...] = ("",)
        """Points whose name holds one of these are met, all others passed."""
        self._count = 0
        self.kill_at = -1
        self.image: pathlib.Path | None = None
        self.at = ""
        DiskSites(self._root).install(monkeypatch).before = self._at_disk
        for name in ("put", "create"):
            self._watch_store(name, monkeypatch)

    def _watch_store(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        original = getattr(MemoryStore, name)

        async def watched(store: MemoryStore, key: str, *rest: Any, **named: Any) -> Any:
            self._point(f"before {name} {key}")
            result = await original(store, key, *rest, **named)
            self._point(f"after {name} {key}")
            return result

        monkeypatch.setattr(MemoryStore, name, watched)

    def _at_disk(self, _number: int, site: Site) -> None:
        if site.call not in ("pread", "statvfs", "listdir"):
            self._point(str(site))

    def _point(self, what: str) -> None:
        if not any(word in what for word in self.only):
            return
        self._count += 1
        if self._count - 1 != self.kill_at or self.image is not None:
            return
        self.at = what
        self.image = self._root.with_name("image")
        if self._root.exists():
            copy_live(self._root, self.image)
        raise Killed(what)


async def doubtful(folder: pathlib.Path) -> tuple[BookieRig, LedgerId]:
    """A bookie with 10 entries whose directory lost its cookie."""
    rig = BookieRig(folder / "data", registration_wait_s=0.0)
    await rig.start()
    ledger = await rig.ledger()
    for i in range(10):
        assert await rig.add(entry(ledger, i)) == [Status.OK]
    await rig.stop()
    (rig.data_dir / "cookie").unlink()
    return rig, ledger


@pytest.mark.parametrize("fresh", [False, True], ids=["renewal", "first boot"])
async def test_b25_killed_at_each_step_it_can_be_repeated(
    tmp_path: pathlib.Path, fresh: bool
) -> None:
    for number in itertools.count():
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as monkeypatch:
            if fresh:
                rig, ledger = BookieRig(folder / "data", registration_wait_s=0.0), LedgerId(0)
            else:
                rig, ledger = await doubtful(folder)
            points = KillPoints(rig, monkeypatch)
            points.kill_at = number
            try:
                await rig.start(accept_data_loss=not fresh)
            except Killed:
                assert points.image is not None
            else:
                points.kill_at = -1
                assert number > 10, "points were met"
                await rig.stop()
                return
        await rig.stop()
        rig.data_dir = points.image
        await go_on(rig, ledger, points.at, fresh)
        await asyncio.to_thread(shutil.rmtree, folder)


async def go_on(rig: BookieRig, ledger: LedgerId, at: str, fresh: bool) -> None:
    """As an operator does after the kill: start again, with the flag if it is asked for."""
    try:
        await rig.start()
    except HistoryInDoubt as error:
        if fresh or "accept_data_loss" not in error.hint:
            pytest.fail(f"killed at {at}: {error}")
        await rig.start(accept_data_loss=True)
    except OctavoError as error:
        pytest.fail(f"killed at {at}: {error}")
    if not fresh:
        assert len(rig.server.salvage) >= 1, at
        for i in range(10):
            assert await rig.read(ledger, i) == (Status.OK, [entry(ledger, i)]), at
    incarnation = rig.server.incarnation
    await rig.stop()
    await rig.start()
    assert rig.server.incarnation == incarnation, at
    await rig.stop()
