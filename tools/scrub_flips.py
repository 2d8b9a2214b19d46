"""Flipped bits in closed segments while bookies scrub and readers read (spec/ledger.md §6.15).

Four bookies on real disks, with sockets, RocksDB and autorecovery, in this process; ledgers of
three copies and a writer that goes on. Bits are flipped in segments that are not written to,
anywhere in their files: on one bookie, or with `--spread` on any, but never so that no sound copy
of an entry is left. All the time readers compare what each bookie answers, and what a ledger client
reads, with what was written: other bytes, or "no such entry", are wrong; EIO is the truth.

Found means that a scrub named a bad spot that holds the flipped byte. A byte that is no entry that
the index looks for (a head, a table, a footer, a dead entry) counts as well: its segment has to be
emptied. `unowned` are those whose file was removed before a scrub came by, because nothing lived in
it any more: its entries were copied out of it before the flip. At the end every copy of every entry
is read on its bookie, and no flipped file is left.

Prints `scrub: OK flips=… found=… repaired=… wrong=0 lost=0`, or what is wrong, exit code 1.
Usage: python -m tools.scrub_flips [--flips 500] [--seed 1] [--spread]
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import NamedTuple

from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.segment import segment_name, segment_number, sorted_number
from octavo.bookie.scrub.segment_check import Findings
from octavo.bookie.server import BookieServer
from octavo.bookie.storage.index import Index, Location
from octavo.bookie.storage.reads import is_intact
from octavo.client.autorecovery.service import Autorecovery
from octavo.client.ledger import LedgerClient, LedgerClientConfig
from octavo.metadata.ledgers import LedgerMetadata, Quorum
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER_BYTES
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.ids import EntryId, LedgerId
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import configure_logging
from tests.bookie_rig import flip

ROOT = "/octavo"
QUORUM = Quorum(3, 3, 2)
SEGMENT_BYTES = 256 * 1024
PAYLOAD_SIZES = (60, 700, 3000, 9000)
AT_ONCE = 20
"""Flips that wait to be found at a time."""
WAIT_S = 400.0
"""Longer than a worker waits that found no readable copy, because a bookie was slow (A-7)."""
READ_MAX_BYTES = 1 << 20
SETTINGS: dict[str, object] = {
    "segment_bytes": SEGMENT_BYTES,
    "idle_mark_s": 0.2,
    "gc_interval_s": 1000.0,
    "compaction_check_s": 1000.0,
    "compaction_minor_ratio": 0.0,
    "compaction_major_ratio": 0.0,
    "compaction_bytes_per_s": float(256 << 20),
    "disk_reserve_segments": 0.0,
    "scrub_bytes_per_s": float(256 << 20),
    "scrub_interval_s": 1.0,
    "scrub_start_s": 0.0,
    "scrub_recheck_s": 0.2,
    "fleet_poll_s": 0.2,
    "audit_interval_s": 1000.0,
    "lost_delay_s": 600.0,
}


class Flip(NamedTuple):
    """One flipped bit."""

    bookie: str
    number: int
    offset: int
    entry: tuple[int, int] | None
    """The entry that the index looked for at that byte."""


@dataclass
class Bookie:
    """One of the cluster."""

    server: BookieServer
    healing: Autorecovery
    spots: set[tuple[int, int, int]]
    """(segment, from, to) that its scrub found bad."""

    @property
    def index(self) -> Index:
        return self.server._boot.index  # pyright: ignore[reportPrivateUsage]

    @property
    def journal(self) -> pathlib.Path:
        return self.server._boot.journal_dir  # pyright: ignore[reportPrivateUsage]

    def closed_segments(self) -> list[int]:
        """Segments that are not written to and that something lives in."""
        mark = self.index.mark(0)
        below = mark.segment if mark is not None else 0
        names = [path.name for path in self.journal.iterdir()]
        numbers = [n for name in names if (n := segment_number(name)) is not None and n < below]
        numbers += [n for n in map(sorted_number, names) if n is not None]
        return sorted(n for n in numbers if self.index.live_bytes(n))

    def owner_of(self, number: int, offset: int) -> tuple[int, int] | None:
        """Whose byte that is, as the index sees it."""
        for ledger_id, entry_id, place in self.index.rows_from(0, 0, 1 << 30):
            if place.segment == number and place.offset <= offset < place.offset + place.length:
                return ledger_id, entry_id
        return None

    def watch(self) -> None:
        """Hear of every bad spot that a scrub finds."""
        checker = self.server._open.scrubber._checker  # pyright: ignore[reportPrivateUsage]
        real: Callable[[int], Findings] = checker.check

        def told(number: int) -> Findings:
            found = real(number)
            self.spots |= {(number, start, end) for start, end in found.spots}
            return found

        checker.check = told  # type: ignore[method-assign]


class World:
    """The cluster, what was written, and what was done to it."""

    def __init__(self, folder: pathlib.Path, seed: int, *, bookies: int = 4) -> None:
        self.rng = random.Random(seed)
        self._seed = seed
        self._folder = folder
        self._count = bookies
        self.meta = MemoryCluster()
        self.bookies: dict[str, Bookie] = {}
        self.records: dict[LedgerId, LedgerMetadata] = {}
        self.payloads: dict[LedgerId, list[bytes]] = {}
        self.flips: list[Flip] = []
        self.found: set[Flip] = set()
        self.unowned: set[Flip] = set()
        self.wrong: list[str] = []
        self.reads = 0
        self.refused = 0
        """Answers of EIO."""
        self.written = 0
        """Entries added while bits were flipped."""
        self._ending = AsyncExitStack()
        self._tasks = TaskOwner("readers", self._reader_failed)
        self.client: LedgerClient

    def _reader_failed(self, name: str, error: BaseException) -> None:
        self.wrong.append(f"{name} failed: {error!r}")

    async def __aenter__(self) -> World:
        clock, entropy = SystemClock(), SeededEntropy(self._seed)
        for number in range(self._count):
            name = f"bookie-{number}"
            config = BookieConfig.load(
                bookie_id=name,
                data_dir=self._folder / name,
                metadata_url=f"memory://flips{ROOT}",
                **SETTINGS,
            )
            store = self.meta.connect()
            self._ending.push_async_callback(store.close)
            server = BookieServer(config, store=store, clock=clock, entropy=entropy)
            self._ending.push_async_callback(server.stop)
            await server.start()
            healing = Autorecovery(
                store, Paths(ROOT), settings=config, name=name, clock=clock, entropy=entropy
            )
            self._ending.push_async_callback(healing.close)
            await healing.start()
            self.bookies[name] = Bookie(server, healing, set())
            self.bookies[name].watch()
        store = self.meta.connect()
        self._ending.push_async_callback(store.close)
        self.client = LedgerClient(
            store,
            Paths(ROOT),
            config=LedgerClientConfig(client_name="flips"),
            clock=clock,
            entropy=entropy,
        )
        await self.client.start()
        self._ending.push_async_callback(self.client.close)
        self._ending.push_async_callback(self._tasks.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ending.aclose()

    # --- what is written --------------------------------------------------------------------

    async def fill(self, ledgers: int, entries: int) -> None:
        """Closed ledgers, all of whose copies are in the indexes."""
        writers = [await self.client.create_ledger(QUORUM, {}) for _ in range(ledgers)]
        for writer in writers:
            self.payloads[writer.ledger_id] = []
        for _ in range(entries):
            for writer in writers:
                payload = self.rng.randbytes(self.rng.choice(PAYLOAD_SIZES))
                self.payloads[writer.ledger_id].append(payload)
            await asyncio.gather(*(w.append(self.payloads[w.ledger_id][-1]) for w in writers))
        for writer in writers:
            self.records[writer.ledger_id] = await writer.close()
        await until(self._all_there, "every copy to be in an index")

    def _all_there(self) -> bool:
        return all(
            len(self.bookies[name].index.entries_of(ledger, 0, 1 << 30)) == len(payloads)
            for ledger, payloads in self.payloads.items()
            for name in self.holders(ledger)
        )

    def holders(self, ledger: LedgerId) -> list[str]:
        """Who has copies of a ledger."""
        return [member.bookie_id for member in self.records[ledger].last_fragment[1]]

    def start(self) -> None:
        """Readers, and a writer that goes on."""
        for number in range(2):
            self._tasks.spawn(self._ask_bookies(random.Random(number)), name="reader of bookies")
        self._tasks.spawn(self._read_ledgers(random.Random(3)), name="reader of ledgers")
        self._tasks.spawn(self._write_on(), name="writer")

    async def _write_on(self) -> None:
        writer = await self.client.create_ledger(QUORUM, {})
        while True:
            await writer.append(b"%08d" % self.written * 100)
            self.written += 1
            await asyncio.sleep(0.005)

    async def _ask_bookies(self, rng: random.Random) -> None:
        while True:
            ledger = rng.choice(list(self.records))
            name = rng.choice(self.holders(ledger))
            await self.ask(name, ledger, rng.randrange(len(self.payloads[ledger])), 16)

    async def ask(self, name: str, ledger: LedgerId, first: int, count: int) -> int:
        """What one bookie answers; how many entries it gave, 0 for EIO."""
        store = self.bookies[name].server.store
        answer = await store.read(ledger, first, count, READ_MAX_BYTES, fence=False, salvage=False)
        self.reads += 1
        if answer.status is Status.EIO:
            self.refused += 1
        elif answer.status is not Status.OK:
            self.wrong.append(f"{name}: {ledger}/{first} is {answer.status.name}")
        for entry_id, entry in enumerate(answer.entries, first):
            payload = self.payloads[ledger][entry_id]
            whole = is_intact(entry, ledger, entry_id, HEADER_BYTES + len(payload))
            if not whole or bytes(entry)[HEADER_BYTES:] != payload:
                self.wrong.append(f"{name}: wrong bytes of {ledger}/{entry_id}")
        await asyncio.sleep(0.001)
        return len(answer.entries)

    async def _read_ledgers(self, rng: random.Random) -> None:
        """While one copy is sound a ledger can be read."""
        while True:
            ledger = rng.choice(list(self.records))
            first = rng.randrange(len(self.payloads[ledger]))
            reader = self.client.reader_of(self.records[ledger])
            got = await reader.read(EntryId(first), max_count=16, max_bytes=READ_MAX_BYTES)
            self.reads += 1
            for entry_id, entry in enumerate(got, first):
                if bytes(entry)[HEADER_BYTES:] != self.payloads[ledger][entry_id]:
                    self.wrong.append(f"a client got wrong bytes of {ledger}/{entry_id}")
            await asyncio.sleep(0.001)

    # --- what is done to it -----------------------------------------------------------------

    def flip_one(self, names: list[str]) -> bool:
        """Flip a bit somewhere; False: not this time, the last sound copy would have been hit."""
        name = self.rng.choice(names)
        bookie = self.bookies[name]
        closed = bookie.closed_segments()
        if not closed:
            return False
        number = self.rng.choice(closed)
        path = bookie.journal / segment_name(number)
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:  # it was emptied and removed this moment
            return False
        offset = self.rng.randrange(size_bytes)
        owner = bookie.owner_of(number, offset)
        if owner is not None and self._sound_copies(owner, name) < 1:
            return False
        try:
            flip(path, offset, 1 << self.rng.randrange(8))
        except FileNotFoundError:
            return False
        self.flips.append(Flip(name, number, offset, owner))
        return True

    def _sound_copies(self, owner: tuple[int, int], but: str) -> int:
        """Copies of an entry that no flip lies in."""
        ledger_id, entry_id = owner
        if LedgerId(ledger_id) not in self.records:  # the open one: another bookie has it surely
            others = [b for b in self.bookies if b != but]
        else:
            others = [b for b in self.holders(LedgerId(ledger_id)) if b != but]
        hit = {(f.bookie, f.number) for f in self.flips if f.entry == owner}
        sound = 0
        for name in others:
            place = self.bookies[name].index.locate(ledger_id, entry_id)
            sound += place is not None and not self._is_hit(name, place, hit)
        return sound

    @staticmethod
    def _is_hit(name: str, place: Location, hit: set[tuple[str, int]]) -> bool:
        return (name, place.segment) in hit

    def waiting(self) -> list[Flip]:
        """Flips that no scrub has found yet."""
        for one in self.flips:
            if one in self.found or one in self.unowned:
                continue
            bookie = self.bookies[one.bookie]
            if any(n == one.number and a <= one.offset < b for n, a, b in bookie.spots):
                self.found.add(one)
            elif not (bookie.journal / segment_name(one.number)).exists() and self._is_away(one):
                self.unowned.add(one)
        return [one for one in self.flips if one not in self.found | self.unowned]

    def _is_away(self, one: Flip) -> bool:
        """Whether the byte was nobody's, or its entry lies elsewhere on that bookie by now."""
        if one.entry is None:
            return True
        place = self.bookies[one.bookie].index.locate(*one.entry)
        return place is not None and place.segment != one.number

    def entries_hit(self) -> set[tuple[str, tuple[int, int]]]:
        """Entries on a bookie that a flip was found in."""
        return {(one.bookie, one.entry) for one in self.found if one.entry is not None}

    def unrepaired(self) -> Iterator[str]:
        """What is not as it was yet."""
        for one in self.flips:
            if (self.bookies[one.bookie].journal / segment_name(one.number)).exists():
                yield f"{one} is on the disk still"
        for name, bookie in self.bookies.items():
            quarantine = bookie.server._open.scrubber.quarantine  # pyright: ignore[reportPrivateUsage]
            if quarantine.suspects.count or quarantine.quarantined():
                yield f"{name} has {quarantine.suspects.count} suspects"

    async def run(self, count: int, *, spread: bool) -> None:
        """Flip so many bits, and wait until everything is as it was."""
        names = list(self.bookies) if spread else [self.rng.choice(list(self.bookies))]
        while len(self.flips) < count:
            for _ in range(min(AT_ONCE, count - len(self.flips))):
                await until(lambda: self.flip_one(names), "an entry with another sound copy")
            await until(lambda: not self.waiting(), "flips to be found")
        await until(lambda: not list(self.unrepaired()), "everything to be repaired")
        await self._tasks.close()

    async def lost(self) -> int:
        """Copies that are not there, every one of them asked for."""
        missing = 0
        for ledger, payloads in self.payloads.items():
            for name in self.holders(ledger):
                for entry_id in range(len(payloads)):
                    missing += not await self.ask(name, ledger, entry_id, 1)
        return missing

    def totals(self) -> tuple[int, int]:
        """Damaged entries that were found, and those that were repaired."""
        infos = [bookie.server.desk.info() for bookie in self.bookies.values()]
        return (
            sum(info.scrub_entries_damaged for info in infos),
            sum(info.scrub_entries_repaired for info in infos),
        )


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; TimeoutError names it."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited in vain for {what}")
        await asyncio.sleep(0.02)


async def soak(
    folder: pathlib.Path, *, flips: int, seed: int, spread: bool, ledgers: int, entries: int
) -> tuple[bool, str]:
    """All of it; whether it is well, and the line that says so."""
    async with World(folder, seed) as world:
        await world.fill(ledgers, entries)
        world.start()
        try:
            await world.run(flips, spread=spread)
        except TimeoutError as error:
            left = [*map(str, world.waiting()), *world.unrepaired()]
            world.wrong += [str(error), *left[:10]]
        lost = await world.lost()
        damaged, repaired = world.totals()
        if damaged != repaired:
            world.wrong.append(f"{damaged} entries damaged, {repaired} repaired")
        hit = len(world.entries_hit())
        well = not world.wrong and not lost and not world.waiting()
        for line in world.wrong[:20]:
            sys.stdout.write(f"scrub: WRONG {line}\n")
        return well, (
            f"scrub: {'OK' if well else 'FAILED'} flips={len(world.flips)} "
            f"found={len(world.found)} repaired={repaired} wrong={len(world.wrong)} lost={lost} "
            f"unowned={len(world.unowned)} entries_hit={hit} reads={world.reads} "
            f"eio={world.refused} written={world.written} "
            f"spread={'yes' if spread else 'no'} seed={seed}"
        )


def main() -> int:
    """Print the outcome; exit code 1 when a flip was missed, believed or not repaired."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spread", action="store_true", help="on any bookie, not on one")
    parser.add_argument("--ledgers", type=int, default=8)
    parser.add_argument("--entries", type=int, default=400)
    options = parser.parse_args()
    configure_logging("CRITICAL")
    with tempfile.TemporaryDirectory(prefix="octavo-scrub-") as folder:
        well, line = asyncio.run(
            soak(
                pathlib.Path(folder),
                flips=options.flips,
                seed=options.seed,
                spread=options.spread,
                ledgers=options.ledgers,
                entries=options.entries,
            )
        )
    sys.stdout.write(line + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
