"""`make bench-backlog`: what the tail of one topic feels of the backlog of another (F078).

One cluster of three bookies and one broker, real processes. A topic gets `--gb` of records, which
leave the caches of brokers and bookies. Another topic is written at a fixed pace and read at its
tail, from when each record was due to when its reader has it (no coordinated omission): in turn
while nobody and while a process of its own reads the backlog as fast as it can, over and over from
the start, in the order A B B A. Neighbours in that order are compared with each other only.

The last line is `bench-backlog: OK …`; it says FAILED, and the command ends with 1, when the p99
with the backlog read is more than `RATIO_MAX` times the one without, in the median of the pairs.
Usage: python -m bench.backlog [--gb 1] [--pairs 8] [--seconds 10] [--per-s 200] [--rate-mb 0]
           [--pace-mb 0]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import NamedTuple

from bench import campaign, machine, pacing
from bench.alternating import turns
from bench.plan import KIB, MIB
from bench.stats import Latency, Spread, latency, spread
from octavo import AsyncClient, Client
from octavo.runtime.malloc import tune_malloc
from octavo.testing import LocalCluster

BACKLOG, TAIL = "backlog", "tail"
RATIO_MAX = 1.2
PARTITIONS = 4
"""Of the backlog; the tail has one."""
RECORD_BYTES = 1_000
WRITE_MANY = 100_000
SETTLE_S = 1.0
"""Between the beginning or the end of the reading and the measuring."""
POLL_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 120.0
STRAGGLERS_S = 30.0
"""Within which every record of a block must have been read."""
_LASTS = threading.Event()
"""Never set: a wait lasts its time."""


class Block(NamedTuple):
    """What was measured in one turn."""

    tail: Latency
    """From due to read."""
    ack: Latency
    """From due to acknowledged."""
    read_mb_per_s: float
    """Of the backlog meanwhile."""


# --- who reads the backlog ------------------------------------------------------------------------


def read_backlog(servers: str, reads: Event, ends: Event, told: Connection, rate_mb: float) -> None:
    """Read while `reads` is set, over and over; the bytes of each poll go to `told`."""
    tune_malloc()
    with Client(servers) as client, client.consumer(BACKLOG) as consumer:
        consumer.seek_to_beginning()
        places = consumer.assignment()
        due_s = 0.0
        while not ends.is_set():
            if not reads.wait(POLL_TIMEOUT_S):
                continue
            batch = consumer.poll_arrow(timeout=POLL_TIMEOUT_S)
            if batch is None:  # all of it was read
                for place in places:
                    consumer.seek(place, 0)
                continue
            told.send(batch.nbytes)
            if rate_mb:
                due_s = max(due_s, time.monotonic()) + batch.nbytes / (rate_mb * 1e6)
                _LASTS.wait(max(0.0, due_s - time.monotonic()))


class Reader:
    """The process that reads the backlog."""

    def __init__(self, servers: str, rate_mb: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._reads, self._ends = context.Event(), context.Event()
        self._bytes, told = context.Pipe(duplex=False)
        self._process = context.Process(
            target=read_backlog, args=(servers, self._reads, self._ends, told, rate_mb), daemon=True
        )

    def __enter__(self) -> Reader:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._reads.set()
        self._process.join(POLL_TIMEOUT_S + 10)
        self._process.kill()

    def turn(self, *, reads: bool) -> None:
        """Read from now on, or stop."""
        if reads:
            self._reads.set()
        else:
            self._reads.clear()

    def taken_bytes(self) -> int:
        """What was read since the last call."""
        size = 0
        while self._bytes.poll():
            size += self._bytes.recv()
        return size


# --- who writes and reads the tail ----------------------------------------------------------------


class Arrivals:
    """When each record of the tail was read."""

    def __init__(self) -> None:
        self.at_s: dict[int, float] = {}
        self._changed = asyncio.Event()

    def note(self, numbers: Iterable[int], now_s: float) -> None:
        """These were read."""
        self.at_s.update(dict.fromkeys(numbers, now_s))
        self._changed.set()

    async def take(self, first: int, count: int) -> list[float]:
        """Of so many records, once all of them are there."""
        wanted = range(first, first + count)
        async with asyncio.timeout(STRAGGLERS_S):
            while not all(number in self.at_s for number in wanted):
                self._changed.clear()
                await self._changed.wait()
        return [self.at_s.pop(number) for number in wanted]


async def _measure(
    client: AsyncClient, asked: Connection, arrivals: Arrivals, per_s: float
) -> None:
    """A block for each number of seconds that is asked for; its samples are answered."""
    loop = asyncio.get_running_loop()
    filler = random.Random(2).randbytes(RECORD_BYTES)
    number = 0
    async with client.producer(linger_ms=0, compression_type="none") as producer:
        while seconds := await loop.run_in_executor(None, asked.recv):
            first, due_s = number, list[float]()
            acks: list[asyncio.Future[float]] = []

            async def send(number: int, due: float) -> float:
                await producer.send(TAIL, b"%016d" % number + filler[16:])
                return time.monotonic() - due

            schedule = pacing.soon(time.monotonic, per_s, int(seconds * per_s))
            async for due in pacing.paced_async(schedule, time.monotonic, asyncio.sleep):
                due_s.append(due)
                acks.append(asyncio.ensure_future(send(number, due)))
                number += 1
            acknowledged = await asyncio.gather(*acks)
            read_s = await arrivals.take(first, len(due_s))
            to_read = [at_s - due for at_s, due in zip(read_s, due_s, strict=True)]
            asked.send((to_read, list(acknowledged)))


async def _follow(client: AsyncClient, arrivals: Arrivals, ready: asyncio.Event) -> None:
    """Note when each record was read."""
    async with client.consumer(TAIL, auto_offset_reset="earliest") as consumer:
        ready.set()
        while True:
            records = await consumer.poll(timeout=POLL_TIMEOUT_S)
            numbers = [int((record.value or b"")[:16]) for record in records]
            arrivals.note(numbers, time.monotonic())


async def _tail(servers: str, asked: Connection, per_s: float) -> None:
    arrivals = Arrivals()
    ready = asyncio.Event()
    async with AsyncClient(servers) as client:
        follows = asyncio.ensure_future(_follow(client, arrivals, ready))
        await ready.wait()
        measures = asyncio.ensure_future(_measure(client, asked, arrivals, per_s))
        done, pending = await asyncio.wait({follows, measures}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        for task in done:
            task.result()


def tail(servers: str, asked: Connection, per_s: float) -> None:
    """The process that writes and reads the tail."""
    tune_malloc()
    asyncio.run(_tail(servers, asked, per_s))


class Tail:
    """The same, from outside."""

    def __init__(self, servers: str, per_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ask, asked = context.Pipe()
        self._process = context.Process(target=tail, args=(servers, asked, per_s), daemon=True)

    def __enter__(self) -> Tail:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._ask.send(0.0)
        self._process.join(10)
        self._process.kill()

    def block(self, seconds: float) -> tuple[list[float], list[float]]:
        """Seconds from due to read and to acknowledged, of each record."""
        self._ask.send(seconds)
        ends_s = time.monotonic() + seconds + ANSWER_TIMEOUT_S
        while not self._ask.poll(1.0):
            if not self._process.is_alive() or time.monotonic() > ends_s:
                raise RuntimeError("the process that writes and reads the tail gave no answer")
        samples: tuple[list[float], list[float]] = self._ask.recv()
        return samples


# --- a run ----------------------------------------------------------------------------------------


def fill(client: Client, size_bytes: int) -> None:
    """Write the backlog: records that no codec makes smaller."""
    rng = random.Random(1)
    with client.producer(
        batch_size=256 * KIB, linger_ms=20, compression_type="none", buffer_memory=64 * MIB
    ) as producer:
        for left in range(size_bytes // RECORD_BYTES, 0, -WRITE_MANY):
            noise = rng.randbytes(RECORD_BYTES + WRITE_MANY)
            count = min(WRITE_MANY, left)
            values = [noise[at : at + RECORD_BYTES] for at in range(count)]
            producer.send_many(BACKLOG, values)


def measure(args: argparse.Namespace) -> tuple[list[Block], list[Block]]:
    """Blocks without and with the backlog read; those with the same index lay side by side."""
    settings: dict[str, object] = {}
    if args.pace_mb is not None:
        settings["cold_read_bytes_per_s"] = int(args.pace_mb * 1e6)
    with (
        campaign.work_folder() as work,
        LocalCluster(3, 1, data=work / "cluster", broker_settings=settings) as cluster,
    ):
        servers = cluster.bootstrap_servers
        with Client(servers) as client:
            client.admin.create_topic(BACKLOG, PARTITIONS)
            client.admin.create_topic(TAIL, 1)
            campaign.say(f"writing {args.gb:g} GB")
            fill(client, int(args.gb * 1e9))
        found: tuple[list[Block], list[Block]] = ([], [])
        with Reader(servers, args.rate_mb) as reader, Tail(servers, args.per_s) as written:
            written.block(2 * SETTLE_S)  # connections, imports, the first ledger
            for reads in turns(args.pairs):
                reader.turn(reads=reads)
                _LASTS.wait(SETTLE_S)
                reader.taken_bytes()
                began_s = time.monotonic()
                to_read, to_ack = written.block(args.seconds)
                passed_s = time.monotonic() - began_s
                rate = reader.taken_bytes() / 1e6 / passed_s
                block = Block(latency(to_read), latency(to_ack), rate)
                found[reads].append(block)
                campaign.say(
                    f"{'with   ' if reads else 'without'} p50={block.tail.p50_ms:.1f} "
                    f"p99={block.tail.p99_ms:.1f} ms, {rate:.0f} MB/s read, "
                    f"load average {machine.load_now():.1f}"
                )
        return found


def p99_ratio(without: list[Block], beside: list[Block]) -> Spread:
    """Of neighbours."""
    both = zip(without, beside, strict=True)
    return spread([b.tail.p99_ms / a.tail.p99_ms for a, b in both])


def summary(
    args: argparse.Namespace, without: list[Block], beside: list[Block]
) -> tuple[bool, str]:
    """Whether it is as it must be, and the last line."""
    ratio = p99_ratio(without, beside)
    read = spread([block.read_mb_per_s for block in beside])
    holds = ratio.median <= RATIO_MAX and read.low > 0
    parts = [f"backlog_gb={args.gb:g} pairs={args.pairs} read_mb_per_s={read.median:.0f}"]
    for name, blocks in (("without", without), ("with", beside)):
        tail_p50 = spread([block.tail.p50_ms for block in blocks]).median
        tail_p99 = spread([block.tail.p99_ms for block in blocks]).median
        ack_p99 = spread([block.ack.p99_ms for block in blocks]).median
        parts.append(
            f"p50_{name}_ms={tail_p50:.2f} p99_{name}_ms={tail_p99:.2f} "
            f"ack_p99_{name}_ms={ack_p99:.2f}"
        )
    parts.append(f"p99_ratio={ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
    return holds, f"bench-backlog: {'OK' if holds else 'FAILED'} {' '.join(parts)}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0, help="of the backlog; three copies of it")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--per-s", type=float, default=200.0, help="records of the tail a second")
    parser.add_argument(
        "--rate-mb", type=float, default=0.0, help="of the backlog a second; 0: any"
    )
    parser.add_argument(
        "--pace-mb", type=float, help="the broker's cold_read_bytes_per_s in MB; 0: no pace"
    )
    args = parser.parse_args()
    tune_malloc()
    holds, line = summary(args, *measure(args))
    print(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
