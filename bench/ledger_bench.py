"""Ledger-level benchmark: one `LedgerClient`, three bookie processes, no broker, no batches.

Prints for each entry size: entries/s, MB/s, median and p99 of the acknowledgement, beside what
fdatasync alone reaches with one file in the same run. With three copies on one disk the ledger can
reach at most about a third of that. Usage: python -m bench.ledger_bench [--seconds 3] [--profile].
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

import uvloop

from bench import limits
from octavo.client.ledger import LedgerClient, LedgerClientConfig, LedgerWriter, Quorum
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.paths import Paths
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import EntryId
from octavo.runtime.malloc import tune_malloc

KIB = 1024
BOOKIES = 3
LIMIT_BYTES = 96 * KIB * KIB
_CHILD = """
import sys, pathlib
from octavo.bookie.config import BookieConfig
from octavo.bookie.process import run
from octavo.runtime.telemetry import configure_logging
configure_logging("WARNING")
sys.exit(run(BookieConfig(bookie_id=sys.argv[1], data_dir=pathlib.Path(sys.argv[2]),
                          metadata_url=sys.argv[3])))
"""


class Load(NamedTuple):
    """One row of the table."""

    entry_bytes: int
    in_flight: int


LOADS = (
    Load(KIB, 1),
    Load(KIB, 4096),
    Load(16 * KIB, 512),
    Load(64 * KIB, 128),
    Load(KIB * KIB, 16),
)


class Outcome(NamedTuple):
    """What a load reached."""

    entries_per_s: float
    mb_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time of the client's process per entry."""


class Window:
    """Keeps a bounded number of adds in flight and measures each."""

    def __init__(
        self, writer: LedgerWriter, payload: bytes, in_flight: int, seconds: float
    ) -> None:
        self._writer = writer
        self._payload = payload
        self._in_flight = in_flight
        self._until = time.perf_counter() + seconds
        self._sent: dict[EntryId, float] = {}
        self._done = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self) -> Outcome:
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(self._in_flight):
            self._send()
        await self._done.wait()
        taken = time.perf_counter() - began
        cpu = time.process_time() - cpu
        count = len(self.latencies)
        self.latencies.sort()
        return Outcome(
            count / taken,
            count * len(self._payload) / taken / 1e6,
            statistics.median(self.latencies) * 1e3,
            self.latencies[int(count * 0.99)] * 1e3,
            cpu / count * 1e6,
        )

    def _send(self) -> None:
        now = time.perf_counter()
        self._sent[self._writer.add(self._payload, self._acked)] = now

    def _acked(self, entry: EntryId, error: OctavoError | None) -> None:
        if error is not None:
            raise error
        now = time.perf_counter()
        self.latencies.append(now - self._sent.pop(entry))
        if now < self._until:
            self._send()
        elif not self._sent:
            self._done.set()


async def measure(work: pathlib.Path, seconds: float, loads: tuple[Load, ...]) -> None:
    """Start everything, print the table, stop everything."""
    clock, entropy = SystemClock(), SystemEntropy()
    metadata = EmbeddedMetadataServer(work / "metadata", clock)
    url = f"embedded://127.0.0.1:{await metadata.start(0)}/octavo"
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, f"b{i}", str(work / f"b{i}"), url
        )
        for i in range(BOOKIES)
    ]
    store = await connect_store(url, client_name="bench", clock=clock, entropy=entropy)
    client = LedgerClient(
        store,
        Paths(root_of(url)),
        config=LedgerClientConfig(client_name="bench"),
        clock=clock,
        entropy=entropy,
    )
    await client.start()
    try:
        async with asyncio.timeout(30):
            while len(client.directory.live()) < BOOKIES:
                await client.directory.wait_changed()
        for load in loads:
            await _one(client, work, load, seconds)
    finally:
        await client.close()
        await store.close()
        for child in children:
            child.terminate()
        for child in children:
            await child.wait()
        await metadata.stop()


async def _one(client: LedgerClient, work: pathlib.Path, load: Load, seconds: float) -> None:
    block = max(load.entry_bytes, 64 * KIB)
    disk = await asyncio.to_thread(limits.fsync_mb_per_s, work, block, LIMIT_BYTES)
    writer = await client.create_ledger(Quorum(3, 3, 2), {})
    payload = os.urandom(load.entry_bytes)
    await writer.append(payload)
    done = await Window(writer, payload, load.in_flight, seconds).run()
    await writer.close()
    print(
        f"{load.entry_bytes // KIB:5d} KiB x{load.in_flight:<5d}"
        f"{done.entries_per_s:9.0f} entries/s {done.mb_per_s:7.1f} MB/s   "
        f"p50 {done.p50_ms:7.2f} ms  p99 {done.p99_ms:7.2f} ms   "
        f"client {done.cpu_us:6.1f} us/entry   "
        f"fdatasync {disk:6.0f} MB/s, {3 * done.mb_per_s / disk:4.0%} of it used by 3 copies",
        flush=True,
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", type=int, default=-1, help="index of the only load to run")
    args = parser.parse_args()
    loads = LOADS if args.only < 0 else (LOADS[args.only],)
    tune_malloc()
    with tempfile.TemporaryDirectory(prefix="octavo-ledger-") as work:
        uvloop.run(measure(pathlib.Path(work), args.seconds, loads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
