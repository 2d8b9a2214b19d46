"""A bookie that deletes and compacts, stopped at each of its steps (B-19..B-21, G-2, faults §4.6).

One story: ledgers are filled over several segments, half of them are deleted, the rest is copied
together. It is told once for each operation of the disk, and ended there by a kill, a power cut or
a failed sync; then the bookie starts again and finishes. Nothing of the ledgers that live may be
missing at any time, and at the end nothing of the others may be left.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections.abc import Awaitable, Callable

from octavo.bookie.reclaim.collector import Collector
from octavo.bookie.reclaim.compactor import Compactor
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.memory_index import MemoryEngine
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import BookieRig, entry, until
from tests.power_cut_disk import PowerCutDisk

SEGMENT_BYTES = 16 * 1024
ENTRIES = 24
LIVING, DYING = 2, 2
PASSES_MAX = 50
PAYLOADS = (b"short", b"x" * 700, b"y" * 1800)


class BrokenPromise(AssertionError):
    """Something that was promised does not hold."""


def bytes_of(ledger: int, entry_id: int) -> bytes:
    return entry(ledger, entry_id, PAYLOADS[entry_id % len(PAYLOADS)] + b"%d" % entry_id)


class ReclaimStory:
    """The story, with one end.

    Args:
        stop_after: disk operations from the first deletion on until it ends; None: never.
        how: "kill", "power" or "sync", for a sync that fails.
        index_batches: so many batches of the index behind its last flush survive.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        stop_after: int | None,
        how: str,
        index_batches: int,
        seed: int = 0,
        bug: str = "",
    ) -> None:
        self.disk = PowerCutDisk(random.Random(seed), bug=bug)
        self._stop_after = stop_after
        self._how = how
        self._index_batches = index_batches
        self._engine = MemoryEngine()
        self.rig = BookieRig(
            folder / "data",
            self._engine,
            segment_bytes=SEGMENT_BYTES,
            idle_mark_s=1000.0,
            evidence_interval_s=1000.0,
            gc_interval_s=1000.0,
            gc_confirm_s=0.001,
            gc_reads_per_s=1e6,
            compaction_check_s=1000.0,
            compaction_bytes_per_s=1e9,
            compaction_major_ratio=0.9,
            disk_reserve_segments=0.0,
        )
        self.rig.disk = self.disk  # type: ignore[assignment]  # pyright: ignore
        self.living: list[LedgerId] = []
        self.dying: list[LedgerId] = []
        self.steps = 0
        """Operations of the disk that the story takes, when nothing ends it."""
        self.stopped = False
        self.compactions = 0
        self.reclaimed_bytes = 0

    # --- parts ------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        return self.rig.server._boot.index  # pyright: ignore[reportPrivateUsage]

    @property
    def collector(self) -> Collector:
        return self.rig.server._open.reclaimer.collector  # pyright: ignore[reportPrivateUsage]

    @property
    def compactor(self) -> Compactor:
        return self.rig.server._open.reclaimer.compactor  # pyright: ignore[reportPrivateUsage]

    async def run(self) -> ReclaimStory:
        """Tell it; raises BrokenPromise with the trace of the disk."""
        try:
            await self._begin()
            await self._race(self._reclaim)
            if self.stopped or self.disk.dead or self.rig.server.failed.done():
                await self._end()
                await self._start_again()
            self.disk.stop_after = self.disk.fail_sync_after = None
            await self._check()
            await self._reclaim_again()
            await self._check()
            await self._check_gone()
            core = self.compactor.core
            self.compactions, self.reclaimed_bytes = core.compactions, core.reclaimed_bytes
        except (OctavoError, BrokenPromise, AssertionError, TimeoutError) as error:
            trace = "\n".join(self.disk.trace[-60:])
            raise BrokenPromise(
                f"{self._how} after {self._stop_after}: {error!r}\n{trace}"
            ) from error
        finally:
            self.disk.dead = True
            await self.rig.stop()
        return self

    async def _begin(self) -> None:
        rig = self.rig
        await rig.start()
        await until(lambda: self.collector.stats.last_pass_s is not None)
        self.living = [await rig.ledger() for _ in range(LIVING)]
        self.dying = [await rig.ledger() for _ in range(DYING)]
        for entry_id in range(ENTRIES):
            for ledger in self.living + self.dying:
                found = await rig.add(bytes_of(ledger, entry_id))
                assert found == [Status.OK]
        everyone = {*self.living, *self.dying}
        await until(
            lambda: all(len(self.index.entries_of(one, 0, 99)) == ENTRIES for one in everyone)
        )
        for ledger in self.dying:
            await rig.catalog.delete(await rig.catalog.read(ledger, barrier=True))
        self._begun = len(self.disk.trace)
        if self._how == "sync":
            self.disk.fail_sync_after = self._stop_after
        else:
            self.disk.stop_after = self._stop_after

    async def _reclaim(self) -> None:
        """Passes of the collection until the ledgers are gone, then everything compacted."""
        stats = self.collector.stats
        for _ in range(PASSES_MAX):
            if not {ledger for ledger, _ in self.index.ledgers()} & set(self.dying):
                break
            before = stats.last_pass_s
            self.collector.hurry()
            await self._until(lambda: stats.last_pass_s != before)  # noqa: B023
        await self._compact()
        # What is written from now on, so that a segment is open while its neighbours go.
        entry_id = ENTRIES + self.rig.server.store.stats.entries_added % 1000
        await self.rig.add(bytes_of(self.living[0], entry_id), recovery=True)
        self.steps = len(self.disk.trace) - self._begun

    async def _reclaim_again(self) -> None:
        await self._reclaim()

    async def _compact(self) -> None:
        core = self.compactor.core
        due = core.next_deadline_s()
        self.compactor.compact_all()
        await self._until(lambda: not core.asked and core.next_deadline_s() not in (None, due))

    async def _until(self, condition: Callable[[], bool]) -> None:
        await until(lambda: condition() or self.disk.dead or self.rig.server.failed.done())
        if self.disk.dead or self.rig.server.failed.done():
            if self.stopped:
                raise BrokenPromise(f"the bookie failed: {self.rig.server.failed}")
            self.stopped = True
            raise asyncio.CancelledError

    async def _race(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it, or as much as the machine lets us."""
        task = asyncio.ensure_future(work())
        failed = asyncio.shield(self.rig.server.failed)
        await asyncio.wait((task, failed), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            self.stopped = True
            task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is not None:
            await task

    # --- ends -------------------------------------------------------------------------------

    async def _end(self) -> None:
        """The process is gone; the index keeps what it flushed, and some of the rest."""
        self.stopped = True
        self.disk.dead = True
        folder = self.rig.data_dir / "index"
        image = folder.with_name("image")
        self._engine.crash(folder, image, self._index_batches)
        await self.rig.stop()
        self._engine.crash(image, folder)
        self.disk.restart(power=self._how == "power")

    async def _start_again(self) -> None:
        await self.rig.start()

    # --- promises ---------------------------------------------------------------------------

    async def _check(self) -> None:
        for ledger in self.living:
            for entry_id in range(ENTRIES):
                status, found = await self.rig.read(ledger, entry_id)
                if (status, found) != (Status.OK, [bytes_of(ledger, entry_id)]):
                    raise BrokenPromise(f"entry {ledger}/{entry_id} is {status.name}")

    async def _check_gone(self) -> None:
        left = {ledger for ledger, _ in self.index.ledgers()} & set(self.dying)
        if left or self.index.doomed():
            raise BrokenPromise(f"ledgers {left} are still here")
        for ledger in self.dying:
            status, _ = await self.rig.read(ledger, 0)
            if status is not Status.NO_SUCH_LEDGER:
                raise BrokenPromise(f"an entry of the deleted ledger {ledger} is {status.name}")
            if self.index.entries_of(ledger, 0, 1):
                raise BrokenPromise(f"entries of the deleted ledger {ledger} are indexed")
        self._check_files()

    def _check_files(self) -> None:
        """No file without live entries is left, but for those that the open log stands on; what is
        counted is what there is."""
        counted: dict[int, int] = {}
        for ledger in self.living:
            for _, location in self.index.entries_of(ledger, 0, 10_000):
                counted[location.segment] = counted.get(location.segment, 0) + location.length
        mark = self.index.mark(0)
        assert mark is not None
        names = self.disk.list(self.rig.data_dir / "journal")
        for name in names:
            number = int(name.split(".")[0], 16)
            is_old = number < mark.segment or name.endswith(".sorted")
            if is_old and number not in counted:
                raise BrokenPromise(f"{name} holds nothing and is still here: {names}")
            if self.index.live_bytes(number) != counted.get(number, 0):
                raise BrokenPromise(
                    f"{name}: {self.index.live_bytes(number)} bytes are counted, "
                    f"{counted.get(number, 0)} are there"
                )
