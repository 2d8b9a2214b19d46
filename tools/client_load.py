"""Many real clients on one broker: whether it bears them, and what each of them costs it (F104).

Each client is an `AsyncClient` with a connection of its own; several processes hold them. By role:
producers that send now and then; members of groups, most of which rest, because a group has more
members than partitions; and clients that only stay connected. Every record must reach each group
once. Prints one line for each figure; the last one is `client-load: OK …`, or what was wrong, and
the command ends with 1 then.

Usage: python -m tools.client_load [--clients 2000] [--processes 8] [--seconds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from octavo import AsyncClient, Client
from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
from octavo.client.messaging.api.producer import AsyncProducer
from octavo.runtime.errors import OctavoError
from octavo.runtime.malloc import tune_malloc
from octavo.runtime.process import die_with_parent
from octavo.testing import LocalCluster

PRODUCERS_PART, MEMBERS_PART = 0.05, 0.85
"""Of all clients; the others only stay connected."""
MEMBERS_OF_A_GROUP = 100
PARTITIONS = 10
"""Of the topic of each group: the other members of the group rest."""
SEND_EVERY_S = 1.0
AT_ONCE = 50
"""Clients of one process that begin at one time."""
READY_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 60.0
STEADY_S = 10.0
PROBES = 200


class Share(NamedTuple):
    """Clients that one process holds."""

    producers: list[str]
    """Topic of each."""
    members: list[str]
    """Topic, and by the same name group, of each."""
    idle: int


def shares(clients: int, processes: int) -> list[Share]:
    """Who holds which clients; each group is spread over all of the processes."""
    producers = max(round(clients * PRODUCERS_PART), 1)
    members = max(round(clients * MEMBERS_PART), 1)
    groups = -(-members // MEMBERS_OF_A_GROUP)
    of_all = [Share([], [], 0) for _ in range(processes)]
    for number in range(producers):
        of_all[number % processes].producers.append(topic_of(number % groups))
    for number in range(members):
        of_all[number % processes].members.append(topic_of(number // MEMBERS_OF_A_GROUP))
    idle = clients - producers - members
    return [
        one._replace(idle=idle // processes + (number < idle % processes))
        for number, one in enumerate(of_all)
    ]


def topic_of(group: int) -> str:
    """The topic that a group reads, and its own name."""
    return f"load-{group:03}"


# --- a process that holds clients -----------------------------------------------------------------


class Holder:
    """The clients of one process, and what became of their records."""

    def __init__(self, servers: str, share: Share, name: str) -> None:
        self._servers = servers
        self._share = share
        self._name = name
        self._clients: list[AsyncClient] = []
        self._producers: list[tuple[AsyncProducer, str]] = []
        self._consumers: list[AsyncGroupConsumer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sends: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()
        self.errors: collections.Counter[str] = collections.Counter()
        self.sent: list[str] = []
        self.received: list[str] = []
        self.latencies_s: list[float] = []

    async def connect(self) -> float:
        """Every client asks the broker something; returns how long all of them took, seconds."""
        count = len(self._share.producers) + len(self._share.members) + self._share.idle
        gate = asyncio.Semaphore(AT_ONCE)
        self._clients = [AsyncClient(self._servers) for _ in range(count)]
        began_s = time.monotonic()

        async def one(client: AsyncClient) -> None:
            async with gate:
                await self._guard(client.admin.describe_topic(topic_of(0)))

        await asyncio.gather(*map(one, self._clients))
        return time.monotonic() - began_s

    async def _guard(self, work: Any) -> Any:  # an awaitable of whatever it gives
        try:
            return await work
        except OctavoError as error:
            self.errors[f"{type(error).__name__}: {error.cause}"[:160]] += 1
            return None

    async def join(self) -> None:
        """Every member begins to read; returns at once."""
        clients = iter(self._clients)
        self._producers = [(next(clients).producer(), topic) for topic in self._share.producers]
        for topic in self._share.members:
            consumer = next(clients).consumer(topic, group=topic, auto_offset_reset="earliest")
            self._consumers.append(consumer)
            self._tasks.append(asyncio.create_task(self._read(consumer)))

    async def _read(self, consumer: AsyncGroupConsumer) -> None:
        while True:
            records = await self._guard(consumer.poll(timeout=5.0))
            self.received += [record.value.decode() for record in records or () if record.value]

    async def assigned(self) -> dict[str, int]:
        """Partitions of each group that members of this process have."""
        found: collections.Counter[str] = collections.Counter()
        for topic, consumer in zip(self._share.members, self._consumers, strict=True):
            with contextlib.suppress(OctavoError):  # one that has not begun
                found[topic] += len(await consumer.assignment())
        return dict(found)

    async def produce(self) -> None:
        """Every producer sends now and then; returns at once."""
        for number, (producer, topic) in enumerate(self._producers):
            sending = self._send(producer, topic, f"{self._name}-{number}")
            self._sends.append(asyncio.create_task(sending))

    async def _send(self, producer: AsyncProducer, topic: str, name: str) -> None:
        count = 0
        due_s = time.monotonic()
        while not self._stopped.is_set():
            value = f"{name}-{count}"
            began_s = time.monotonic()
            if await self._guard(producer.send(topic, value.encode())) is not None:
                self.sent.append(value)
                self.latencies_s.append(time.monotonic() - began_s)
            count += 1
            due_s += SEND_EVERY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due_s - time.monotonic(), 0.0)):
                    await self._stopped.wait()

    async def stop_sending(self) -> None:
        """Returns when nothing is under way any more, and the outcome of each record is known."""
        self._stopped.set()
        await asyncio.gather(*self._sends)

    async def close(self) -> None:
        """End every client; members leave their groups."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._guard(client.close()) for client in self._clients))


async def hold(job: Mapping[str, Any]) -> None:
    """Do what the parent says, a line each, until it says that this is the end."""
    share = Share(**job["share"])
    holder = Holder(job["servers"], share, job["name"])
    process = psutil.Process()
    empty_bytes = process.memory_info().rss

    async def figures() -> dict[str, object]:
        return {
            "errors": dict(holder.errors),
            "sent": holder.sent,
            "received": holder.received,
            "latencies_s": holder.latencies_s,
            "grown_bytes": process.memory_info().rss - empty_bytes,
        }

    async def counts() -> dict[str, int]:
        return {"sent": len(holder.sent), "received": len(holder.received)}

    calls = {
        "connect": holder.connect,
        "join": holder.join,
        "assigned": holder.assigned,
        "produce": holder.produce,
        "stop_sending": holder.stop_sending,
        "counts": counts,
        "figures": figures,
        "close": holder.close,
    }
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        answer = await calls[line]()
        print(json.dumps(answer), flush=True)
        if line == "close":
            return


# --- the parent -----------------------------------------------------------------------------------


class Hand:
    """One process that holds clients."""

    def __init__(self, job: Mapping[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.client_load", "--hold", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, what: str) -> None:
        """Begin it."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of it; waits."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process that holds clients ended")
        return json.loads(line)

    def end(self) -> None:
        """Wait for its end, or make one."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def ask(hands: Sequence[Hand], what: str) -> list[Any]:
    """All of them do it at once; what each answered."""
    for hand in hands:
        hand.say(what)
    return [await asyncio.to_thread(hand.answer) for hand in hands]


def say(name: str, **figures: float) -> None:
    """One line."""
    print(f"{name}: " + " ".join(f"{key}={value:g}" for key, value in figures.items()), flush=True)


class Broker:
    """What the broker's process uses."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._process = psutil.Process(cluster.process("broker-1").pid)

    @property
    def rss_bytes(self) -> int:
        """Memory."""
        return int(self._process.memory_info().rss)

    @property
    def cpu_s(self) -> float:
        """User and system."""
        return sum(self._process.cpu_times()[:2])

    def look(self, name: str, began_s: float, cpu_s: float) -> None:
        """Say what it used since then."""
        took_s = time.monotonic() - began_s
        say(
            name,
            seconds=round(took_s, 1),
            broker_cpu_percent=round(100 * (self.cpu_s - cpu_s) / took_s, 1),
            broker_rss_mib=round(self.rss_bytes / (1 << 20)),
            broker_descriptors=self._process.num_fds(),
            broker_threads=self._process.num_threads(),
        )


async def until_assigned(hands: Sequence[Hand], groups: int) -> float:
    """Seconds until every partition of every group has a member."""
    began_s = time.monotonic()
    while True:
        found: collections.Counter[str] = collections.Counter()
        for one in await ask(hands, "assigned"):
            found.update(one)
        took_s = time.monotonic() - began_s
        if all(found[topic_of(group)] == PARTITIONS for group in range(groups)):
            return took_s
        if took_s > SETTLE_TIMEOUT_S:
            missing = [g for g in range(groups) if found[topic_of(g)] != PARTITIONS]
            raise RuntimeError(f"groups {missing} did not settle within {SETTLE_TIMEOUT_S:g} s")
        await asyncio.sleep(0.2)


async def until_drained(hands: Sequence[Hand]) -> None:
    """Every record that was acknowledged has been read, or nothing comes any more."""
    ends_s = time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < ends_s:
        found = await ask(hands, "counts")
        if sum(one["received"] for one in found) >= sum(one["sent"] for one in found):
            return
        await asyncio.sleep(0.5)


async def run(cluster: LocalCluster, args: argparse.Namespace) -> list[str]:
    """All of it; returns what was wrong."""
    of_all = shares(args.clients, args.processes)
    groups = len({topic for share in of_all for topic in share.members})
    with Client(cluster.bootstrap_servers) as client:
        for group in range(groups):
            client.admin.create_topic(topic_of(group), PARTITIONS)
    broker = Broker(cluster)
    empty_bytes = broker.rss_bytes
    jobs = [
        {"servers": cluster.bootstrap_servers, "share": share._asdict(), "name": f"p{number}"}
        for number, share in enumerate(of_all)
    ]
    hands = [Hand(job) for job in jobs]
    try:
        began_s, cpu_s = time.monotonic(), broker.cpu_s
        took = await ask(hands, "connect")
        say("connect", clients=args.clients, seconds=round(max(took), 2))
        broker.look("connected", began_s, cpu_s)
        per_client = (broker.rss_bytes - empty_bytes) / args.clients / 1024
        say("memory-of-a-connection", broker_kib=round(per_client, 1))

        began_s, cpu_s = time.monotonic(), broker.cpu_s
        await ask(hands, "join")
        settle_s = await until_assigned(hands, groups)
        say("join", groups=groups, settle_s=round(settle_s, 2))
        broker.look("joined", began_s, cpu_s)

        await asyncio.sleep(STEADY_S)
        began_s, cpu_s = time.monotonic(), broker.cpu_s
        await asyncio.sleep(STEADY_S)
        broker.look("resting", began_s, cpu_s)

        began_s, cpu_s = time.monotonic(), broker.cpu_s
        await ask(hands, "produce")
        await asyncio.sleep(args.seconds)
        broker.look("working", began_s, cpu_s)
        await ask(hands, "stop_sending")
        await until_drained(hands)
        found = await ask(hands, "figures")
        per_client = (broker.rss_bytes - empty_bytes) / args.clients / 1024
        began_s, cpu_s = time.monotonic(), broker.cpu_s
        await ask(hands, "close")
        broker.look("closed", began_s, cpu_s)
    finally:
        for hand in hands:
            hand.end()
    return judge(found, args.clients, settle_s, per_client, cluster.log("broker-1"))


def judge(
    found: Sequence[Mapping[str, Any]],
    clients: int,
    settle_s: float,
    per_client_kib: float,
    log: str,
) -> list[str]:
    """The last line but for its verdict; returns what was wrong."""
    errors: collections.Counter[str] = collections.Counter()
    for one in found:
        errors.update(one["errors"])
    sent = {value for one in found for value in one["sent"]}
    received = collections.Counter(value for one in found for value in one["received"])
    latencies_s = sorted(second for one in found for second in one["latencies_s"])
    lost, repeated = sent - received.keys(), received.total() - len(received)
    wrong = [f"{count} x {text}" for text, count in errors.items()]
    wrong += [f"{len(lost)} records were not read"] * bool(lost)
    wrong += [f"{repeated} records were read again"] * bool(repeated)
    wrong += ["nothing was sent"] * (not sent)
    wrong += [
        line
        for line in log.splitlines()
        if "level='error'" in line or "too many open files" in line.lower()
    ]
    say(
        "figures",
        clients=clients,
        settle_s=round(settle_s, 2),
        broker_kib_per_client=round(per_client_kib, 1),
        client_kib=round(sum(one["grown_bytes"] for one in found) / clients / 1024, 1),
        sent=len(sent),
        received=received.total(),
        send_p50_ms=round(1000 * latencies_s[len(latencies_s) // 2], 1) if latencies_s else -1,
        send_p99_ms=round(1000 * latencies_s[len(latencies_s) * 99 // 100], 1)
        if latencies_s
        else -1,
        errors=errors.total(),
    )
    return wrong


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long producers send")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.hold is not None:
        die_with_parent()
        tune_malloc()
        asyncio.run(hold(json.loads(args.hold)))
        return 0
    with LocalCluster(bookies=3, brokers=1) as cluster:
        wrong = asyncio.run(run(cluster, args))
    for line in wrong:
        print(line)
    print(f"client-load: {'FAILED' if wrong else 'OK'} clients={args.clients}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
