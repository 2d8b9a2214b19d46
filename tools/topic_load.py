"""Ten thousand topics, a hundred thousand partitions: what a cluster does with so much metadata.

Fills the metadata store of a real cluster through the catalogs that brokers use, a record for each
topic and each partition, as if every partition had been served once. Then measures, through real
clients and a real broker: the rate of creations, listing and describing all of it, the start of a
broker, a first member of a group, a change of one topic, and the memory of broker and store. Prints
a line for each figure; the last is `topic-load: OK …`, or what was wrong, and it ends with 1 then
(F028, F143).

Usage: python -m tools.topic_load [--topics 10000] [--partitions 10] [--metadata zk://…]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import psutil

from octavo import AsyncClient
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import PartitionCatalog, PartitionState, TopicCatalog
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.malloc import tune_malloc
from octavo.supervisor.spec import EMBEDDED
from octavo.testing import LocalCluster

AT_ONCE = 64
"""Creations under way at a time."""
CREATED_BY_BROKER = 300
"""Topics that are created through a broker, to tell its rate."""
DESCRIBED_ONE_BY_ONE = 200
LIST_LIMIT_S, START_LIMIT_S, CHANGE_LIMIT_S = 2.0, 60.0, 1.0
"""What F028 and F143 ask for."""
ROUNDS = 3
SPREAD = 7
"""Stride in which topics are picked for single descriptions."""
_T = TypeVar("_T")


def say(what: str, **figures: object) -> None:
    """One line."""
    print(what, " ".join(f"{name}={value}" for name, value in figures.items()), flush=True)


def name_of(number: int) -> str:
    """A topic's name."""
    return f"load.{number:05}"


async def _each(numbers: Iterable[_T], work: Callable[[_T], Awaitable[object]]) -> float:
    """Do it for all, some at a time; returns seconds."""
    began_s = time.monotonic()
    left = iter(numbers)

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return time.monotonic() - began_s


async def fill(url: str, topics: int, partitions: int) -> tuple[float, float]:
    """Write the records; returns seconds for topics, and for partitions."""
    clock, entropy = SystemClock(), SystemEntropy()
    store: MetadataStore = await connect_store(
        url, client_name="topic-load", clock=clock, entropy=entropy
    )
    paths = Paths(root_of(url))
    catalog = TopicCatalog(store, paths, clock=clock, entropy=entropy)
    lists = PartitionCatalog(store, paths, clock=clock, entropy=entropy)
    ids: list[uuid.UUID] = []

    async def topic(number: int) -> None:
        made = await catalog.create(name_of(number), partitions, {"retention.ms": "3600000"})
        ids.append(made.topic.topic_id)

    async def partition(where: tuple[uuid.UUID, int]) -> None:
        await lists.create(PartitionState(where[0], where[1]))

    try:
        topics_s = await _each(range(topics), topic)
        wanted = ((topic_id, number) for topic_id in ids for number in range(partitions))
        return topics_s, await _each(wanted, partition)
    finally:
        await store.close()


class Measurement:
    """One run on one cluster; `wrong` says what missed its limit."""

    def __init__(self, cluster: LocalCluster, topics: int, partitions: int) -> None:
        self.cluster = cluster
        self.topics = topics
        self.partitions = partitions
        self.wrong: list[str] = []

    def memory(self, when: str) -> None:
        """Resident memory of the broker, and of the supervisor, which serves embedded metadata."""
        found = {"broker-1": self.cluster.process("broker-1").pid}
        if self.cluster.metadata.startswith("embedded"):
            found["store"] = self.cluster.cluster.supervisor_pid
        mib = {
            name: f"{psutil.Process(pid).memory_info().rss / 2**20:.0f}"
            for name, pid in found.items()
        }
        say("memory-mib", when=when, **mib)

    def limit(self, what: str, took_s: float, limit_s: float) -> None:
        """Note what took too long."""
        if took_s > limit_s:
            self.wrong.append(f"{what} took {took_s:.2f} s, more than {limit_s:g} s")

    async def created_by_broker(self, client: AsyncClient) -> None:
        """The rate of creations that go through a broker."""

        async def create(number: int) -> None:
            await client.admin.create_topic(f"made.{number:05}", self.partitions)

        took_s = await _each(range(CREATED_BY_BROKER), create)
        say("create-through-broker", topics_per_s=round(CREATED_BY_BROKER / took_s))

    async def listed(self, client: AsyncClient, when: str) -> None:
        """All topics with settings, partitions and owners, page by page."""
        for number in range(ROUNDS):
            began_s = time.monotonic()
            found = await client.admin.list_topics()
            took_s = time.monotonic() - began_s
            partitions = sum(len(topic.partitions) for topic in found)
            say("list", when=when, topics=len(found), partitions=partitions, s=f"{took_s:.2f}")
            if len(found) != self.topics + CREATED_BY_BROKER:
                self.wrong.append(f"{len(found)} topics were listed")
            if number == 0 or when == "again":
                self.limit(f"a list ({when})", took_s, LIST_LIMIT_S)

    async def described(self, client: AsyncClient) -> None:
        """Topics one after the other, with every setting as it works."""
        took: list[float] = []
        for number in range(DESCRIBED_ONE_BY_ONE):
            name = name_of(number * SPREAD % self.topics)
            began_s = time.monotonic()
            found = await client.admin.describe_topic(name)
            took.append(time.monotonic() - began_s)
            if len(found.partitions) != self.partitions:
                self.wrong.append(f"{name} has {len(found.partitions)} partitions")
        took.sort()
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        say("describe-one", p50_ms=f"{1000 * p50:.1f}", p99_ms=f"{1000 * p99:.1f}")
        self.limit("describing one topic (p99)", p99, LIST_LIMIT_S)

    async def used(self, client: AsyncClient) -> None:
        """A first record, and a first member of the first group, which follows all topics."""
        async with client.producer() as producer:
            began_s = time.monotonic()
            await producer.send(name_of(0), b"one", key=b"k")
            say("first-record", s=f"{time.monotonic() - began_s:.2f}")
        reader = client.consumer(name_of(0), group="load", auto_offset_reset="earliest")
        async with reader as consumer:
            began_s = time.monotonic()
            while not await consumer.poll(timeout=1.0):
                if time.monotonic() - began_s > START_LIMIT_S:
                    self.wrong.append("the first member of a group got nothing")
                    return
            say("first-record-in-a-group", s=f"{time.monotonic() - began_s:.2f}")

    async def changed(self, clients: list[AsyncClient]) -> None:
        """A change through one broker, until each broker tells it (F143)."""
        name, value = name_of(1), "7200000"
        await asyncio.gather(*(one.admin.describe_topic(name) for one in clients))
        began_s = time.monotonic()
        await clients[0].admin.alter_topic(name, {"retention.ms": value})

        async def seen(client: AsyncClient) -> None:
            while (await client.admin.describe_topic(name)).config["retention.ms"] != value:
                pass  # each look is a request

        await asyncio.gather(*map(seen, clients))
        took_s = time.monotonic() - began_s
        say("change-seen-by-all-brokers", brokers=len(clients), s=f"{took_s:.3f}")
        self.limit("a change", took_s, CHANGE_LIMIT_S)

    def restarted(self) -> None:
        """A broker that is killed and started."""
        self.cluster.kill("broker-1")
        began_s = time.monotonic()
        self.cluster.restart("broker-1")
        took_s = time.monotonic() - began_s
        say("broker-start", s=f"{took_s:.2f}")
        self.limit("the start of a broker", took_s, START_LIMIT_S)


async def run(cluster: LocalCluster, args: argparse.Namespace) -> list[str]:
    """All of it; returns what was wrong."""
    measured = Measurement(cluster, args.topics, args.partitions)
    addresses = [p.address for p in cluster.processes.values() if p.role == "broker"]
    measured.memory("empty")
    async with AsyncClient(addresses[0]) as client:
        await measured.created_by_broker(client)
    topics_s, partitions_s = await fill(cluster.metadata, args.topics, args.partitions)
    count = args.topics * args.partitions
    say("fill", topics_per_s=round(args.topics / topics_s), partitions=count,
        partitions_per_s=round(count / partitions_s))  # fmt: skip
    measured.memory("filled")
    await asyncio.to_thread(measured.restarted)
    measured.memory("started")
    async with AsyncClient(addresses[0]) as client:
        await measured.listed(client, "first")
        await measured.listed(client, "again")
        measured.memory("listed")
        await measured.described(client)
        await measured.used(client)
    clients = [AsyncClient(address) for address in addresses]
    try:
        await measured.changed(clients)
    finally:
        for one in clients:
            await one.close()
    measured.memory("used")
    return measured.wrong


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=10, help="of each topic")
    parser.add_argument("--metadata", default=EMBEDDED, help="zk://host:port/root of a ZooKeeper")
    args = parser.parse_args()
    tune_malloc()
    with LocalCluster(bookies=3, brokers=2, metadata=args.metadata) as cluster:
        wrong = asyncio.run(run(cluster, args))
    for line in wrong:
        print(line)
    verdict = "FAILED" if wrong else "OK"
    print(f"topic-load: {verdict} topics={args.topics} partitions={args.topics * args.partitions}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
