"""How long does a bookie with much in it take to start after kill -9, and is all of it there?

One bookie is filled with many ledgers of small entries, then with large entries up to `--gib`, and
killed with -9 while it writes, again and again: once soon after a flush of its index and once as
late as possible before the next one, which is when a start replays most. Measured is the time from
the start of the process until it serves, the processor time that it used until then, and the load
of the machine. With more load than processors a start waits for its turn most of the time; then it
is judged by what it used, half of the limit. At the end every acknowledged entry must be listed
by the index and a sample of all ledgers be read, and the index is thrown away and built anew.

The folder is removed at the end. Usage: python -m tools.soak_start [--gib 20] [--ledgers 10000]
[--entries 1000000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from octavo.chaos.toxiproxy import wait_until
from octavo.client.autorecovery.operator import Operator, operating
from octavo.client.ledger.writer import LedgerWriter
from octavo.metadata.ledgers import Quorum
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import NotReady, OctavoError
from octavo.runtime.ids import EntryId, LedgerId
from octavo.testing import LocalCluster

ONE = Quorum(1, 1, 1)
BOOKIE = "bookie-1"
SMALL_BYTES = 1000
LARGE_BYTES = 256 << 10
AT_ONCE = 64
"""Ledgers of small entries that are written together."""
FLUSH_S = 60.0
"""Between two flushes of the index, as bookies do by default (B-11)."""
EARLY_S, LATE_S = 5.0, FLUSH_S - 3.0
SAMPLE = 300
START_MAX_S = 10.0
REBUILD_MAX_S = 1_200.0
"""A gibibyte in a minute (faults 4.6)."""
GIB = 1 << 30


class Written(NamedTuple):
    """A ledger, and its last acknowledged entry."""

    ledger_id: LedgerId
    last: int


class Start(NamedTuple):
    """One start after a kill."""

    what: str
    seconds: float
    cpu_s: float
    """Processor time of the bookie until it served, imports included."""
    load: float
    replayed: str
    """What the bookie's log says of it."""

    @property
    def is_late(self) -> bool:
        """It broke the promise, and would have on a machine that had time for it."""
        is_crowded = self.load > (os.cpu_count() or 1)
        return self.seconds > START_MAX_S and (not is_crowded or self.cpu_s > START_MAX_S / 2)


class Soak:
    """One bookie's life."""

    def __init__(self, cluster: LocalCluster, args: argparse.Namespace) -> None:
        self.cluster = cluster
        self.gib: float = args.gib
        self.ledgers: int = args.ledgers
        self.entries: int = args.entries
        self.payload = random.Random(1).randbytes(LARGE_BYTES)
        self.written: list[Written] = []
        self.starts: list[Start] = []
        self.wrong: list[str] = []
        self.nbytes = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Operator]:
        """Fresh for each phase: a killed bookie ends what was under way."""
        async with operating(self.cluster.metadata) as operator:
            yield operator

    async def fill_small(self) -> None:
        """Many ledgers, so that the index has many of both."""
        each = max(1, self.entries // self.ledgers)
        body = self.payload[:SMALL_BYTES]
        async with self.client() as operator:

            async def one() -> None:
                writer = await operator.client.create_ledger(ONE, {})
                await append_all(writer, body, each)
                await writer.close()
                self.written.append(Written(writer.ledger_id, each - 1))
                self.nbytes += each * (SMALL_BYTES + 36)

            for first in range(0, self.ledgers, AT_ONCE):
                await asyncio.gather(*(one() for _ in range(min(AT_ONCE, self.ledgers - first))))

    async def fill_large(self, until_bytes: int) -> None:
        """Ledgers of a gibibyte each."""
        async with self.client() as operator:
            while self.nbytes < until_bytes:
                writer = await operator.client.create_ledger(ONE, {})
                count = min(GIB, until_bytes - self.nbytes) // LARGE_BYTES + 1
                await append_all(writer, self.payload, count)
                await writer.close()
                self.written.append(Written(writer.ledger_id, count - 1))
                self.nbytes += count * LARGE_BYTES

    async def kill_in_writing(self, seconds: float, what: str) -> None:
        """Write for so long since a start made the index durable, kill, start again.

        Not above `gib`: then it waits for the time to pass.
        """
        began_s = time.monotonic()
        async with self.client() as operator:
            writer = await operator.client.create_ledger(ONE, {})
            before = self.nbytes
            while time.monotonic() - began_s < seconds:
                if self.nbytes < self.gib * GIB:
                    await append_all(writer, self.payload, 64)
                    self.nbytes += 64 * LARGE_BYTES
                else:
                    await operator.clock.sleep(0.1)
            acknowledged = int(writer.last_add_confirmed)
            await asyncio.to_thread(self.cluster.kill, BOOKIE)
        say(f"{(self.nbytes - before) / GIB:.1f} GiB since the index was flushed")
        await self.start(what)
        async with self.client() as operator:
            found = await operator.client.recover_ledger(writer.ledger_id)
            last = -1 if found.last_entry is None else int(found.last_entry)
            if last < acknowledged:
                self.wrong.append(f"ledger {found.ledger_id} ends at {last}, not {acknowledged}")
            self.written.append(Written(writer.ledger_id, last))

    async def start(self, what: str) -> None:
        """Start the bookie; its pages are dropped first, as after a reboot."""
        drop_pages()
        before = len(self.cluster.log(BOOKIE))
        began_s = time.monotonic()
        try:
            await asyncio.to_thread(self.cluster.restart, BOOKIE)
        except NotReady:  # its supervisor waits no longer; an index is built for minutes
            say(f"{what}: not ready yet")
            await asyncio.to_thread(wait_until, self._has_started, REBUILD_MAX_S)
        took_s = time.monotonic() - began_s
        log = self.cluster.log(BOOKIE)[before:]
        replayed = next((line for line in log.splitlines() if "replayed" in line), "")
        load, cpu_s = os.getloadavg()[0], cpu_seconds(self.cluster.process(BOOKIE).pid)
        self.starts.append(Start(what, took_s, cpu_s, load, replayed))
        say(f"{what}: {took_s:.2f} s, {cpu_s:.2f} CPU s at load {load:.1f}; {replayed[:160]}")

    def _has_started(self) -> bool:
        return self.cluster.process(BOOKIE).state != "starting"

    async def check(self) -> None:
        """Every acknowledged entry is in the index; entries of a sample are read."""
        wrong = self.wrong
        async with self.client() as operator:
            fleet = await operator.fleet()
            (member,) = fleet.registered
            for ledger_id, last in self.written:
                first = 0
                while first <= last:
                    reply = await operator.calls.list_entries(
                        ledger_id, member, first, last, timeout_s=60
                    )
                    if list(reply.runs) != [(first, reply.through)]:
                        wrong.append(f"ledger {ledger_id}: {reply.status.name} {reply.runs[:3]}")
                        break
                    first = reply.through + 1
            some = [one for one in self.written if one.last >= 0]
            chosen = random.Random(2).sample(some, min(SAMPLE, len(some)))
            for ledger_id, last in chosen:
                reader = await operator.client.open_reader(ledger_id)
                for entry in {0, last}:
                    found = await reader.read(EntryId(entry), max_count=1, max_bytes=1 << 20)
                    if not self.payload.startswith(bytes(found[0])[36:]):
                        wrong.append(f"ledger {ledger_id}: entry {entry} is another one")
                await reader.close()


async def append_all(writer: LedgerWriter, payload: bytes, count: int) -> None:
    """Append so many entries and wait for the last; raises what ended the writer."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = count

    def on_done(_entry: int, error: OctavoError | None) -> None:
        nonlocal left
        left -= 1
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif left == 0:
            done.set_result(None)

    for _ in range(count):
        await writer.wait_capacity()
        writer.add(payload, on_done)
    await done


def cpu_seconds(pid: int) -> float:
    """Processor time that a process used so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop_pages() -> None:
    """Forget the page cache, where this user may."""
    with suppress(OSError):
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n", "ascii")


def say(text: str) -> None:
    """A line for who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def run(soak: Soak) -> None:
    """The whole story."""
    clock, began_s = SystemClock(), time.monotonic()
    most = int(soak.gib * GIB)
    await soak.fill_small()
    say(f"{len(soak.written)} ledgers of small entries after {time.monotonic() - began_s:.0f} s")
    await asyncio.to_thread(soak.cluster.kill, BOOKIE)
    await soak.start("many ledgers, killed at once")
    await soak.fill_large(most // 4)
    await soak.kill_in_writing(EARLY_S, "a quarter, killed after 5 s of writing")
    await soak.kill_in_writing(LATE_S, "killed just before a flush")
    await soak.fill_large(most)
    say(f"{soak.nbytes / GIB:.1f} GiB after {time.monotonic() - began_s:.0f} s")
    await clock.sleep(FLUSH_S + 5)  # the index is flushed, and idle
    await asyncio.to_thread(soak.cluster.kill, BOOKIE)
    await soak.start("all, killed while idle")
    await soak.check()
    await asyncio.to_thread(soak.cluster.terminate, BOOKIE)
    await asyncio.to_thread(shutil.rmtree, soak.cluster.data / BOOKIE / "index")
    await soak.start("all, index lost and built anew")
    await soak.check()


def main() -> int:
    """Run it; 1 when something is lost or a start after a kill took longer than the promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=20.0)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--data", type=pathlib.Path, default=None)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="soak-start-", dir=args.data))
    settings: dict[str, object] = {"segment_bytes": 256 << 20, "autorecovery": False}
    try:
        with LocalCluster(bookies=1, data=folder, bookie_settings=settings) as cluster:
            soak = Soak(cluster, args)
            asyncio.run(run(soak))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = soak.wrong
    for text in wrong[:20]:
        say(f"wrong: {text}")
    killed = soak.starts[:-1]
    late = any(start.is_late for start in killed)
    figures = " ".join(f"{start.seconds:.2f}" for start in killed)
    cpu = " ".join(f"{start.cpu_s:.2f}" for start in killed)
    entries = sum(one.last + 1 for one in soak.written)
    say(
        f"soak-start: {'LOST' if wrong else 'LATE' if late else 'OK'} "
        f"gib={soak.nbytes / GIB:.1f} ledgers={len(soak.written)} entries={entries} "
        f"start_s={figures} cpu_s={cpu} rebuild_s={soak.starts[-1].seconds:.2f} wrong={len(wrong)}"
    )
    return 1 if wrong or late else 0


if __name__ == "__main__":
    sys.exit(main())
