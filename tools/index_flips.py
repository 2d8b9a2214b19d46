"""Soak: single bits of every kind of index file are flipped, then the bookie starts and reads.

Each flip must end in the right bytes, in a typed error that names what is damaged, or in EIO; never
in a bare exception, wrong bytes or a false "not there". `make soak-index` runs it; a short form of
it is in the suite.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import pathlib
import random
import shutil
import sys
import tempfile

from octavo.metadata.paths import Paths
from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import configure_logging
from tests.bookie_rig import ROOT, BookieRig, entry, flip

LEDGERS = 4
ENTRIES = 150
COOKIE = Paths(ROOT).cookie("bookie-1")


class Flips:
    """A filled bookie whose index is damaged again and again."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self._ledgers: list[LedgerId] = []
        self._told = b""
        self._rig = BookieRig(folder / "data", segment_bytes=1 << 18, evidence_interval_s=5.0)

    async def fill(self) -> None:
        """Entries, a fence, several index files; the newest part is only in the journal.

        The index's mark is of an earlier flush.
        """
        rig = self._rig
        for _ in range(2):
            await rig.start()
            for _ in range(LEDGERS // 2):
                ledger = await rig.ledger()
                self._ledgers.append(ledger)
                for first in range(0, ENTRIES, 10):
                    batch = [entry(ledger, i, b"%0200d" % i) for i in range(first, first + 10)]
                    await rig.add(*batch)
            await rig.server.store.fence(self._ledgers[-1])
            await rig.stop()
        shutil.copytree(rig.data_dir, self._folder / "pristine")
        self._told = rig.cluster.snapshot()[COOKIE].value

    async def _forget(self) -> None:
        """The cluster knows of the pristine directory, not of the starts since."""
        store = self._rig.cluster.connect()
        found = await store.get(COOKIE)
        assert found is not None
        await store.put(COOKIE, self._told, expected=found.version)
        await store.close()

    def targets(self) -> list[pathlib.Path]:
        """Every non-empty file of the index."""
        index = self._folder / "pristine" / "index"
        return sorted(p for p in index.iterdir() if p.is_file() and p.stat().st_size)

    def _damage(self, target: pathlib.Path) -> str:
        """One flipped bit in a fresh copy of the directory; says where."""
        data = self._rig.data_dir
        shutil.rmtree(data)
        shutil.copytree(self._folder / "pristine", data)
        offset = self._random.randrange(target.stat().st_size)
        mask = 1 << self._random.randrange(8)
        flip(data / "index" / target.name, offset, mask)
        return f"{target.name} offset {offset} mask {mask:#x}"

    async def once(self, target: pathlib.Path) -> None:
        """Flip one bit of `target`, start, read everything, stop."""
        what = self._damage(target)
        await self._forget()
        try:
            await self._rig.start()
        except OctavoError as error:
            self.outcomes[f"refused {error.code}"] += 1
            return
        except Exception as error:  # noqa: BLE001 - a bare one is what is looked for
            self.wrong.append(f"{what}: bare {error!r}")
            return
        try:
            await self._check(what)
        finally:
            await self._rig.stop()

    async def _check(self, what: str) -> None:
        met: set[str] = set()
        for ledger in self._ledgers:
            for i in range(0, ENTRIES + 1, 7):
                status, entries = await self._rig.read(ledger, i)
                met.add(status.name)
                if status is Status.OK and entries != [entry(ledger, i, b"%0200d" % i)]:
                    self.wrong.append(f"{what}: wrong bytes of {ledger}/{i}")
                if status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER) and i < ENTRIES:
                    self.wrong.append(f"{what}: {ledger}/{i} is said to be absent")
                if status is Status.OK and i >= ENTRIES:
                    self.wrong.append(f"{what}: {ledger}/{i} was never added")
        again = await self._rig.add(entry(self._ledgers[-1], ENTRIES))
        if again == [Status.OK]:
            self.wrong.append(f"{what}: a fenced ledger takes adds")
        built = any(self._rig.data_dir.glob("index.damaged-*"))
        self.outcomes["built anew" if built else "EIO" if "EIO" in met else "right"] += 1


async def run(flips_count: int, seed: int, folder: pathlib.Path) -> Flips:
    """Flip that many bits, the files in turn."""
    flips = Flips(folder, seed)
    await flips.fill()
    targets = flips.targets()
    for number in range(flips_count):
        await flips.once(targets[number % len(targets)])
    return flips


def main() -> int:
    """Print the outcomes; exit code 1 when any flip was believed or came out bare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    configure_logging("CRITICAL")
    with tempfile.TemporaryDirectory(prefix="octavo-flips-") as folder:
        flips = asyncio.run(run(options.flips, options.seed, pathlib.Path(folder)))
    for line in flips.wrong:
        sys.stdout.write(f"WRONG {line}\n")
    outcomes = ", ".join(f"{what} {count}" for what, count in sorted(flips.outcomes.items()))
    sys.stdout.write(f"index flips: {options.flips}, wrong {len(flips.wrong)}; {outcomes}\n")
    return 1 if flips.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
