"""Each single system call that a bookie makes on its files fails once, with ENOSPC and with EIO.

Whatever the call, nothing acknowledged is lost, nothing is advised that would lose it, and a start
afterwards works (spec/ledger.md B-8, §6.13). What happens at each call is the table in
bookie/DESIGN.md; `OCTAVO_WRITE_TABLE=1` writes it anew.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import os
import pathlib
import re

import pytest

from octavo.proto.bookie_wire import Status
from octavo.runtime.errors import OctavoError, StorageFailed
from octavo.runtime.ids import LedgerId
from tests.bookie_rig import DEADLINE_S, BookieRig, entry
from tests.disk_faults import DiskSites, Site

DESIGN = pathlib.Path(__file__).parents[2] / "bookie" / "DESIGN.md"
TABLE = re.compile(r"<!-- sites -->\n(.*?)<!-- /sites -->\n", re.DOTALL)
READS = frozenset({"pread", "listdir", "statvfs", "posix_fadvise"})
LIVES_AT_ONCE = 6
OCCURRENCES_MAX = int(os.environ.get("OCTAVO_TEST_OCCURRENCES", "1"))
"""Of one kind of call in one phase: the first ones fail, each in a life of its own."""
ERRORS = {"ENOSPC": (errno.ENOSPC, errno.EDQUOT), "EIO": (errno.EIO,)}
"""A quota that is used up is a full disk."""

Fault = tuple[str, Site, int]
"""Phase, kind of call, which of them."""


class Life:
    """One boot, run, roll and stop of a bookie, with at most one failing call."""

    def __init__(self, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = BookieRig(
            folder / "data",
            segment_bytes=4096,
            disk_check_s=60.0,
            evidence_interval_s=60.0,
            registration_wait_s=0.0,
        )
        self._sites = DiskSites(folder).install(monkeypatch)
        self._phase = ""
        self.met: collections.Counter[tuple[str, Site]] = collections.Counter()
        self._fault: Fault | None = None
        self._code = 0
        self.hit = False
        self.acked: list[bytes] = []
        self.fenced: list[LedgerId] = []
        self.outcome = ""

    async def prepare(self) -> None:
        """A directory with a past."""
        rig = self.rig
        await rig.start()
        self._ledgers = [await rig.ledger() for _ in range(2)]
        for ledger in self._ledgers:
            self.acked.append(entry(ledger, 0))
            assert await rig.add(self.acked[-1]) == [Status.OK]
        await rig.stop()
        self._sites.before = self._before

    def arm(self, fault: Fault, code: int) -> None:
        """Let one call fail."""
        self._fault, self._code = fault, code

    def _before(self, _number: int, site: Site) -> None:
        if site.call in READS or not self._phase:
            return
        key = (self._phase, site)
        self.met[key] += 1
        if self._fault == (*key, self.met[key]) and not self.hit:
            self.hit = True
            raise OSError(self._code, f"injected: {os.strerror(self._code)}")

    async def live(self) -> None:
        """Run the phases and note what came of the fault."""
        self._phase = "boot"
        try:
            await self.rig.start()
        except StorageFailed as error:
            if "accept_data_loss" in str(error):
                pytest.fail(f"{self._fault}: a failing call is not lost history: {error}")
            self.outcome = f"refused, {error.code}"
            self._phase = ""
            return
        if self.hit:
            frozen = self.rig.server._boot.frozen  # pyright: ignore[reportPrivateUsage]
            self.outcome = "read-only" if frozen else "goes on"
        await self._run()
        if not self.outcome and self.hit:
            self.outcome = self._running_outcome()
        self._phase = "stop"
        was_hit, server = self.hit, self.rig.server
        await self.rig.stop()
        self._phase = ""
        if self.hit and not was_hit:
            self.outcome = "fail-stop" if server.failed.done() else "stops"

    def _running_outcome(self) -> str:
        server = self.rig.server
        if server.failed.done():
            return "fail-stop"
        if server._boot is not self._booted:  # pyright: ignore[reportPrivateUsage]
            return "opens again"
        return "goes on" if server.store.writable else "read-only"

    async def _run(self) -> None:
        rig = self.rig
        boot = self._booted = rig.server._boot  # pyright: ignore[reportPrivateUsage]
        opened = rig.server._open  # pyright: ignore[reportPrivateUsage]
        first, second = self._ledgers
        self._phase = "run"
        for i in range(1, 3):
            await self._add(entry(first, i, b"x" * 500))
        await self._fence(second)
        self._phase = "roll"
        segment, i = boot.journal.segment, 3
        while boot.journal.segment == segment and await self._add(entry(first, i, b"x" * 500)):
            i += 1
        if boot.journal.segment != segment:
            await self._until(
                lambda: (
                    opened.keeper.counted == boot.journal.segment
                    and rig.segments()[-2].stat().st_size < 4096
                ),
                2.0,
            )

    async def _until(self, condition: object, limit_s: float) -> None:
        assert callable(condition)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(DEADLINE_S):
            while not (condition() or self._is_over()):
                if self.hit and loop.time() - began_s > limit_s:
                    return  # the fault keeps it from happening, as it may
                await asyncio.sleep(0.002)

    def _is_over(self) -> bool:
        server = self.rig.server
        return (
            server.failed.done() or server._boot is not self._booted  # pyright: ignore[reportPrivateUsage]
        )

    async def _add(self, data: bytes) -> bool:
        """Add one entry; False when it was refused or will not be answered."""
        replies: list[list[Status] | None] = []
        self.rig.server.store.add([data], len(data), recovery=False, reply=replies.append)
        await self._until(lambda: replies, DEADLINE_S)
        if replies == [None]:
            self.acked.append(data)
        return replies == [None]

    async def _fence(self, ledger: LedgerId) -> None:
        task = asyncio.ensure_future(self.rig.server.store.fence(ledger))
        await self._until(task.done, DEADLINE_S)
        if task.done() and task.result().status is Status.OK:
            self.fenced.append(ledger)
        task.cancel()

    async def verify(self) -> None:
        """Start without faults: everything acknowledged is there, fences hold."""
        self._sites.before = lambda _number, _site: None
        await self.rig.start(disk_check_s=0.05)
        for data in self.acked:
            ids = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:16], "big")
            assert await self.rig.read(*ids) == (Status.OK, [data])
        for ledger in self.fenced:
            assert await self.rig.add(entry(ledger, 9)) == [Status.FENCED]
        assert await self.rig.add(entry(self._ledgers[0], 99)) == [Status.OK], "it is writable"
        await self.rig.stop()


async def one_life(life: Life, fault: Fault | None = None, code: int = 0) -> Life:
    """Live, with a fault or without, and verify what is left."""
    await life.prepare()
    if fault is not None:
        life.arm(fault, code)
    try:
        await life.live()
        await life.verify()
    except (AssertionError, OctavoError) as error:
        pytest.fail(f"after {fault} with {os.strerror(code)} ({life.outcome}): {error!r}")
    return life


async def test_b8_613_each_call_fails_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = await one_life(Life(tmp_path / "reference", monkeypatch))
    assert {phase for phase, _ in reference.met} == {"boot", "run", "roll", "stop"}
    found: dict[tuple[str, Site], dict[str, set[str]]] = {}
    slots = asyncio.Semaphore(LIVES_AT_ONCE)
    lives = 0

    async def fail(number: int, fault: Fault, name: str, code: int) -> None:
        async with slots:
            made = Life(tmp_path / f"{number}", monkeypatch)
            life = await one_life(made, fault, code)
        if life.hit:  # what is done by time may come at another moment
            row = found.setdefault(fault[:2], {})
            row.setdefault(name, set()).add(life.outcome)

    async with asyncio.TaskGroup() as group:
        for (phase, site), count in sorted(reference.met.items()):
            for occurrence in range(1, min(count, OCCURRENCES_MAX) + 1):
                fault = (phase, site, occurrence)
                for name, codes in ERRORS.items():
                    for code in codes:
                        lives += 1
                        group.create_task(fail(lives, fault, name, code))
    assert lives > 50
    check_table(found)


def check_table(found: dict[tuple[str, Site], dict[str, set[str]]]) -> None:
    """Every outcome is one that the table in DESIGN.md names for this call."""
    text = DESIGN.read_text()
    match = TABLE.search(text)
    assert match is not None
    if os.environ.get("OCTAVO_WRITE_TABLE") == "1":
        lines = ["| when | call | ENOSPC | EIO |", "| --- | --- | --- | --- |"]
        for (phase, site), row in sorted(found.items()):
            cells = [" or ".join(sorted(row.get(name, {"-"}))) for name in ERRORS]
            lines.append(f"| {phase} | {site} | {cells[0]} | {cells[1]} |")
        DESIGN.write_text(text[: match.start(1)] + "\n".join(lines) + "\n" + text[match.end(1) :])
        return
    known: dict[tuple[str, str], list[set[str]]] = {}
    for line in match[1].splitlines()[2:]:
        phase, call, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        known[phase, call] = [set(cell.split(" or ")) for cell in cells]
    for (phase, site), row in found.items():
        assert (phase, str(site)) in known, f"{phase}: {site} is not in the table of {DESIGN.name}"
        for name, allowed in zip(ERRORS, known[phase, str(site)], strict=True):
            assert row.get(name, set()) <= allowed, f"{phase}: {site} with {name}"
