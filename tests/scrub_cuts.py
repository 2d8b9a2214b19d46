"""A bookie that finds damage and has it repaired, stopped at each of its steps (6.15, faults §4.6).

One story: a ledger is filled over several segments; bits flip in an entry, in a head and in a
footer; a scrub finds them, a worker makes the entry again, the segments are emptied. It is told
once for each operation of the disk, of the index and of the marks, and ended there; then the bookie
starts again. Nothing may ever be wrong or absent, and in the end nothing may be damaged.
"""

from __future__ import annotations

import asyncio
import pathlib

from octavo.bookie.journal.segment import segment_name
from octavo.bookie.scrub.scrubber import Scrubber
from octavo.bookie.storage.index_jobs import Flush, IndexJob
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog, RepairMark
from octavo.proto.bookie_wire import Status
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import ROOT, until
from tests.reclaim_cuts import BrokenPromise, ReclaimStory, bytes_of

ENTRIES = 72
DAMAGED = 7
"""The entry that a bit flips in."""
SETTINGS: dict[str, object] = {
    "gc_interval_s": 1000.0,
    "scrub_bytes_per_s": 1e9,
    "scrub_start_s": 0.0,
    "scrub_interval_s": 1000.0,
    "scrub_recheck_s": 0.01,
}


class ScrubStory(ReclaimStory):
    """The story, with one end; see ReclaimStory for its arguments."""

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
        super().__init__(
            folder,
            stop_after=stop_after,
            how=how,
            index_batches=index_batches,
            seed=seed,
            bug=bug,
        )
        self.rig.settings |= SETTINGS
        self.ledger = LedgerId(0)
        self.flipped: list[int] = []
        self.repaired = 0

    @property
    def scrubber(self) -> Scrubber:
        return self.rig.server._open.scrubber  # pyright: ignore[reportPrivateUsage]

    @property
    def marks(self) -> RepairCatalog:
        return RepairCatalog(self.rig.metadata, Paths(ROOT), clock=self.rig.clock)

    async def _begin(self) -> None:
        rig = self.rig
        await rig.start()
        self.ledger = await rig.ledger()
        for entry_id in range(ENTRIES):
            stored = await rig.add(bytes_of(self.ledger, entry_id))
            if stored != [Status.OK]:
                raise BrokenPromise(f"entry {entry_id} is not stored: {stored}")
        await until(lambda: len(self.index.entries_of(self.ledger, 0, 99)) == ENTRIES)
        await until(lambda: self.scrubber.core.passes > 0)
        # Damage above the flushed mark is another story: a start that replays it is refused.
        await rig.server._open.index_writer.do(Flush(0))  # pyright: ignore[reportPrivateUsage]
        place = self.index.locate(self.ledger, DAMAGED)
        mark = self.index.mark(0)
        if place is None or mark is None or place.segment + 2 >= mark.segment:
            raise BrokenPromise(f"the damage would lie at {place}, above the mark {mark}")
        self._place = place
        self._flip(place.segment, place.offset + 60)
        self._flip(place.segment + 1, 40)
        self._flip(place.segment + 2, -30)
        self._count_steps()
        self._begun = len(self.disk.trace)
        if self._how == "sync":
            self.disk.fail_sync_after = self._stop_after
        else:
            self.disk.stop_after = self._stop_after

    def _flip(self, number: int, offset: int) -> None:
        file = self.disk.names[self.rig.data_dir / "journal" / segment_name(number)]
        at = offset % len(file.cached)
        for data in (file.cached, file.durable):
            data[at] ^= 0x10
        self.flipped.append(number)

    def _count_steps(self) -> None:
        """Let the machine stop in front of changes of the index and of marks, too."""
        scrubber, path = self.scrubber, self.rig.data_dir / "index"
        real_do = scrubber._do  # pyright: ignore[reportPrivateUsage]
        real_mark = scrubber._repairs.mark  # pyright: ignore[reportPrivateUsage]

        async def do(job: IndexJob) -> None:
            self.disk.tick(type(job).__name__, path)
            await real_do(job)
            self.disk.tick(f"after {type(job).__name__}", path)

        async def mark(mark: RepairMark) -> None:
            self.disk.tick("mark", path)
            await real_mark(mark)
            self.disk.tick("after mark", path)

        scrubber._do = do  # pyright: ignore[reportPrivateUsage]
        scrubber._repairs.mark = mark  # type: ignore[method-assign]  # pyright: ignore

    async def _start_again(self) -> None:
        """What somebody was asked to repair is known to the next process."""
        await super()._start_again()
        place = self.index.locate(self.ledger, DAMAGED)
        if place is None or place.segment != self.flipped[0] or place.offset != self._place.offset:
            return
        asked = self.ledger in await self.marks.marked(10)
        if asked and self.scrubber.quarantine.suspects.find(self.ledger, DAMAGED) is None:
            raise BrokenPromise("a repair is asked for, and nobody knows of what")

    # --- what is done -----------------------------------------------------------------------

    async def _reclaim(self) -> None:
        """Scrub and repair until everything is as it was."""
        scrubber = self.scrubber
        before = scrubber.core.passes
        scrubber.hurry()
        worker = asyncio.ensure_future(self._repair())
        try:
            await self._until(
                lambda: (
                    scrubber.core.passes > before
                    and not scrubber.quarantine.suspects.count
                    and not scrubber.quarantine.quarantined()
                )
            )
            await self._check()
        finally:
            worker.cancel()
            await asyncio.wait((worker,))
        self.repaired = scrubber.quarantine.repaired
        self.steps = len(self.disk.trace) - self._begun

    async def _repair(self) -> None:
        """A worker of another bookie: what the listing leaves out is added again (A-5, A-8)."""
        while True:
            for ledger in await self.marks.marked(10):
                found = await self.marks.read(ledger)
                listed = await self.rig.server.store.list_entries(ledger, 0, ENTRIES - 1)
                if listed.status is not Status.OK or found is None:
                    continue
                held = {e for first, last in listed.runs for e in range(first, last + 1)}
                missing = set(range(ENTRIES)) - held
                answers = [
                    await self.rig.add(bytes_of(ledger, e), recovery=True) for e in sorted(missing)
                ]
                if all(answer == [Status.OK] for answer in answers):
                    await self.marks.remove(found)
            await asyncio.sleep(0.005)

    # --- promises ---------------------------------------------------------------------------

    async def _check(self) -> None:
        """Every entry is itself; until its repair the damaged one is EIO, and never absent."""
        for entry_id in range(ENTRIES):
            status, found = await self.rig.read(self.ledger, entry_id)
            if status is Status.EIO and entry_id == DAMAGED:
                continue
            if (status, found) != (Status.OK, [bytes_of(self.ledger, entry_id)]):
                raise BrokenPromise(f"entry {entry_id} is {status.name}")

    async def _check_gone(self) -> None:
        """Nothing is damaged any more, and nothing is suspected."""
        status, found = await self.rig.read(self.ledger, DAMAGED)
        if (status, found) != (Status.OK, [bytes_of(self.ledger, DAMAGED)]):
            raise BrokenPromise(f"the damaged entry is {status.name}")
        names = self.disk.list(self.rig.data_dir / "journal")
        left = [number for number in self.flipped if segment_name(number) in names]
        if left:
            raise BrokenPromise(f"the damaged segments {left} are still here")
        if self.index.suspects(10):
            raise BrokenPromise("something is suspected still")
