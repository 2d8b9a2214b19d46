"""Schedules of power cuts and kills over a real bookie, and what must hold after each of them.

One schedule: several lives of a bookie on one `PowerCutDisk`. Each life adds entries, duplicates,
fences and explicit LACs, and ends in a kill, a power cut, a failed sync, or a clean stop, at a
drawn operation, the boot's own included. After each boot everything that was ever promised is asked
for again (INV-1, INV-8, INV-9): what was acknowledged, and what a boot answered, which a recovery
may have counted (INV-6). The index is RocksDB itself: its files are put back as they were.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import BookieRig, entry
from tests.power_cut_disk import PowerCutDisk

T = TypeVar("T")

LEDGERS = 3
COPIES_MAX = 100
BOOTS_MAX = 12
"""Boots in a row that may be cut short before one is left alone."""


class BrokenPromise(AssertionError):
    """Something that was promised does not hold."""


@dataclass
class Promises:
    """What the bookie said, and must stand by."""

    entries: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    fenced: set[int] = field(default_factory=set[int])
    lac: dict[int, int] = field(default_factory=dict[int, int])
    next_id: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class Tally:
    """What schedules did, so that a test sees that they did something."""

    power_cuts: int = 0
    kills: int = 0
    failed_syncs: int = 0
    boots_cut_short: int = 0
    promised: int = 0
    checked: int = 0

    def add(self, other: Tally) -> None:
        """Sum up."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def payload(entry_id: int) -> bytes:
    """Sizes from nothing to several sectors."""
    return bytes([entry_id % 251 + 1]) * (entry_id * 397 % 2500)


def bytes_of(ledger: int, entry_id: int) -> bytes:
    """The one byte string of an entry (INV-5)."""
    return entry(ledger, entry_id, payload(entry_id) or b"-")


class Schedule:
    """One schedule, drawn from a seed."""

    def __init__(self, folder: pathlib.Path, seed: int, bug: str = "") -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self.disk = PowerCutDisk(random.Random(seed + 1), bug=bug)
        segment_bytes = self._rng.choice((4096, 16384, 1 << 20))
        data_dir, index_dir = folder / "deep" / "data", None
        if seed % 3 == 2:  # of three bookies one has its index on another disk
            index_dir = folder / "fast" / "disk"
        self._index = (data_dir if index_dir is None else index_dir / "bookie-1") / "index"
        self._rig = BookieRig(
            data_dir,
            index_dir=index_dir,
            segment_bytes=segment_bytes,
            idle_mark_s=1000.0,
            evidence_interval_s=1000.0,
        )
        self._rig.disk = self.disk  # type: ignore[assignment]  # pyright: ignore
        self._ledgers: list[LedgerId] = []
        self._saved = folder / "saved-index"
        self.promises = Promises()
        self.tally = Tally()

    async def run(self, lives: int) -> Tally:
        """Raises BrokenPromise with the trace of the disk."""
        try:
            await self._boot()
            self._ledgers = [await self._rig.ledger() for _ in range(LEDGERS)]
            for _ in range(lives):
                await self._live()
                await self._end()
                await self._boot()
                await self._check()
        except (OctavoError, BrokenPromise) as error:
            trace = "\n".join(self.disk.trace[-120:])
            raise BrokenPromise(f"seed {self._seed}: {error}\n{trace}") from error
        finally:
            self.disk.dead = True  # nothing more to be written
            await self._rig.stop()
        self.tally.promised = len(self.promises.entries)
        return self.tally

    # --- lives ------------------------------------------------------------------------------

    async def _boot(self) -> None:
        """Start; now and then the machine stops in the middle of it, again and again."""
        for attempt in range(BOOTS_MAX):
            self._save_index()
            begun = len(self.disk.trace)
            if attempt + 1 < BOOTS_MAX and self._rng.random() < 0.4:
                self._arm(22)
            try:
                await self._rig.start()
            except OctavoError:
                failed = any(line.startswith("EIO") for line in self.disk.trace[begun:])
                if not self.disk.dead and not failed:
                    raise  # an honest disk is never refused
                self.tally.boots_cut_short += 1
                # The index is flushed before the cookie; until then its files hold any part of it.
                made = self.disk.trace[begun:]
                flushed = "create .cookie.tmp" in made or "create .index.cookie.tmp" in made
                if not flushed and self._rng.random() < 0.5:
                    self._restore_index()
                self._restart()
                continue
            if self.disk.dead:
                await self._end()
                continue
            self.disk.stop_after = self.disk.fail_sync_after = None
            return

    def _arm(self, operations: int) -> None:
        if self._rng.random() < 0.75:
            self.disk.stop_after = self._rng.randrange(operations)
        else:
            self.disk.fail_sync_after = self._rng.randrange(max(1, operations // 4))

    async def _live(self) -> None:
        if self._rng.random() < 0.85:
            self._arm(40)
        for _ in range(self._rng.randrange(4, 14)):
            if self._rig.server.failed.done() or self.disk.dead:
                return
            await self._act()

    async def _act(self) -> None:
        rng = self._rng
        ledger = rng.choice(self._ledgers)
        action = rng.random()
        if action < 0.6:
            await self._add(ledger, rng.randrange(1, 4))
        elif action < 0.75:
            await self._add_again(ledger)
        elif action < 0.83:
            answer = await self._race(self._rig.server.store.fence(ledger))
            if answer is not None and answer.status is Status.OK:
                self.promises.fenced.add(ledger)
        elif action < 0.9:
            await self._race(self._rig.server.store.write_lac(ledger, rng.randrange(40)))
        else:
            boot = self._rig.server._boot  # pyright: ignore[reportPrivateUsage]
            try:
                await asyncio.to_thread(boot.durable_file.sync)
            except OSError as error:
                self._rig.server.fail(error)

    async def _add(self, ledger: LedgerId, count: int) -> None:
        first = self.promises.next_id.get(ledger, 0)
        self.promises.next_id[ledger] = first + count
        ids = range(first, first + count)
        recovery = ledger in self.promises.fenced or self._rng.random() < 0.1
        answer = await self._race(
            self._rig.add(*(bytes_of(ledger, i) for i in ids), recovery=recovery)
        )
        for entry_id, status in zip(ids, answer or [], strict=False):
            if status is Status.OK:
                self.promises.entries.add((ledger, entry_id))

    async def _add_again(self, ledger: LedgerId) -> None:
        """Entries of any age, sent once more: an OK is a promise like the first one."""
        known = self.promises.next_id.get(ledger, 0)
        if known:
            entry_id = self._rng.randrange(known)
            answer = await self._race(self._rig.add(bytes_of(ledger, entry_id), recovery=True))
            if answer == [Status.OK]:
                self.promises.entries.add((ledger, entry_id))
            elif answer not in (None, [Status.EIO]):
                raise BrokenPromise(f"entry {ledger}/{entry_id} sent again: {answer}")

    async def _race(self, work: Coroutine[None, None, T]) -> T | None:
        """The answer, or None when the bookie fails first."""
        task = asyncio.ensure_future(work)
        waits: set[asyncio.Future[object]] = {task, asyncio.shield(self._rig.server.failed)}  # type: ignore[arg-type]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _end(self) -> None:
        """The process is gone, or stops cleanly."""
        if not self.disk.dead and not self._rig.server.failed.done() and self._rng.random() < 0.2:
            self.disk.stop_after = self.disk.fail_sync_after = None
            await self._rig.stop()
            self._restart()
            return
        self.tally.failed_syncs += self._rig.server.failed.done() and not self.disk.dead
        self.disk.dead = True
        self._save_index()
        await self._rig.stop()
        self._restore_index()
        self._restart()

    def _restart(self) -> None:
        power = self._rng.random() < 0.5
        self.tally.power_cuts += power
        self.tally.kills += not power
        self.disk.restart(power=power)

    def _save_index(self) -> None:
        """Copy RocksDB's files as of one moment: again, if a compaction changed them meanwhile."""
        index = self._index
        for _ in range(COPIES_MAX):
            shutil.rmtree(self._saved, ignore_errors=True)
            if not index.exists():
                return
            before = sorted(index.iterdir())
            try:
                shutil.copytree(index, self._saved)
            except shutil.Error:
                continue
            if sorted(index.iterdir()) == before:
                return
        raise AssertionError("the index does not stand still")

    def _restore_index(self) -> None:
        shutil.rmtree(self._index, ignore_errors=True)
        if self._saved.exists():
            shutil.copytree(self._saved, self._index)

    # --- promises ---------------------------------------------------------------------------

    async def _check(self) -> None:
        store = self._rig.server.store
        for ledger in self._ledgers:
            for entry_id in range(self.promises.next_id.get(ledger, 0)):
                await self._check_entry(ledger, entry_id)
            known = await store.read_lac(ledger, -1, 0)
            if known.lac < self.promises.lac.get(ledger, -1):
                raise BrokenPromise(f"the LAC of ledger {ledger} went back to {known.lac}")
            self.promises.lac[ledger] = known.lac
            if known.fenced:  # said so, hence a promise
                self.promises.fenced.add(ledger)
            if ledger in self.promises.fenced:
                probe = bytes_of(ledger, self.promises.next_id.get(ledger, 0))
                if await self._rig.add(probe) != [Status.FENCED]:
                    raise BrokenPromise(f"ledger {ledger} forgot its fence")

    async def _check_entry(self, ledger: LedgerId, entry_id: int) -> None:
        status, found = await self._rig.read(ledger, entry_id)
        self.tally.checked += 1
        if status is Status.OK and found == [bytes_of(ledger, entry_id)]:
            self.promises.entries.add((ledger, entry_id))
        elif (ledger, entry_id) in self.promises.entries:
            raise BrokenPromise(f"entry {ledger}/{entry_id} was promised and is {status.name}")
        elif status not in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
            raise BrokenPromise(f"entry {ledger}/{entry_id} is {status.name}, on an honest disk")
