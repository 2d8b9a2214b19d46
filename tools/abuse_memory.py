"""Abuse a broker, a bookie and a client one way after the other: does their memory stay bounded?

    python -m tools.abuse_memory [--only paused unread-acks …]

Each abuse runs in a process of its own, so that the resident memory of the client is its alone,
against a server that was just restarted. From the moment the abuse is ready until it ends, memory
of server and client is sampled every 20 ms. It may grow by what the named setting allows plus
64 MiB; and the abuse may find something wrong itself (a reader that starves, a call that hangs).
One line per abuse; exit code 1 when one is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import IO, cast

import grpc
import psutil

from octavo import Client
from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.messaging.cluster.transport import ProduceCall
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.sync.producer import Producer
from octavo.proto import broker_pb2 as pb
from octavo.proto.bookie_wire import HELLO_FRAME_BYTES_MAX, MAX_FRAME_BYTES, PREFIX
from octavo.proto.broker_pb2_grpc import BrokerStub
from octavo.proto.endpoints import channel_options
from octavo.runtime.errors import BufferFull, LogTruncated, OctavoError
from octavo.testing import LocalCluster

MIB = 1 << 20
SLACK_BYTES = 64 * MIB
SAMPLE_S = 0.02
CHILD_LIMIT_S = 150.0
BROKER, BOOKIE = "broker-1", "bookie-1"
DATA, SMALL = "data", "small"
FULL_PARTITIONS = 63
RECORDS_EACH, RECORD_BYTES = 12, 1 << 18
PREFETCH_BYTES = 16 * MIB
BUFFER_BYTES = 4 * MIB
IDLE_CONNECTIONS = 100
FETCH_STREAMS, FETCHES_EACH = 64, 4
GRPC_WINDOW_BYTES = 4 * MIB
UNREAD_BATCHES = 315_000
HOT_LOOP_S, HOT_LOOP_CPU_MAX = 5.0, 0.25
MAX_BLOCK_MS = 1_000
BROKER_SETTINGS = {
    "fetch_bytes_in_flight": 64 * MIB,
    "produce_bytes_in_flight": 16 * MIB,
    "tail_cache_bytes": 4 * MIB,
    "cold_cache_bytes": 4 * MIB,
    "cold_read_budget_bytes": 4 * MIB,
}
_LASTS = threading.Event()
"""Never set: waiting for it is waiting for that long."""


class _Parent:
    """What an abuse says to the process that measures it, over standard input and output."""

    def ready(self) -> None:
        """Warmed up: returns once the measurement has begun."""
        print("ready", flush=True)
        sys.stdin.readline()

    def done(self, seen: str, wrong: str = "") -> None:
        print(json.dumps({"seen": seen, "wrong": wrong}), flush=True)


def _paused(address: str, parent: _Parent) -> None:
    with Client(address) as client:
        client.admin.describe_topic(DATA)
        parent.ready()
        consumer = client.consumer(
            DATA, auto_offset_reset="earliest", prefetch_max_bytes=PREFETCH_BYTES
        )
        with consumer, client.producer() as producer:
            consumer.poll(1, timeout=30)
            consumer.pause(*(TopicPartition(DATA, number) for number in range(FULL_PARTITIONS)))
            _LASTS.wait(5)
            while consumer.poll(timeout=0):
                pass
            producer.send(DATA, b"active", partition=FULL_PARTITIONS)
            start_s = time.monotonic()
            got = consumer.poll(timeout=20)
            waited_s = time.monotonic() - start_s
    wrong = "" if got else "the partition that is not paused was not read"
    parent.done(f"{FULL_PARTITIONS} paused, the other read after {waited_s:.2f} s", wrong)


def _poll(address: str, parent: _Parent) -> None:
    count = 0
    with Client(address) as client:
        client.admin.describe_topic(DATA)
        parent.ready()
        consumer = client.consumer(
            DATA, auto_offset_reset="earliest", prefetch_max_bytes=PREFETCH_BYTES
        )
        with consumer:
            consumer.poll(1, timeout=30)
            while got := consumer.poll(timeout=5):
                count += len(got)
    wrong = "" if count + 1 >= FULL_PARTITIONS * RECORDS_EACH else "records are missing"
    parent.done(f"{count} records of {RECORD_BYTES >> 10} KiB read", wrong)


def _unread_error(address: str, parent: _Parent) -> None:
    with Client(address) as client:
        consumer = client.consumer(auto_offset_reset="none", prefetch_max_bytes=PREFETCH_BYTES)
        with consumer:
            part = TopicPartition(SMALL, 0)
            consumer.assign([part])
            consumer.seek(part, 10**9)
            _LASTS.wait(1)  # the fetch has ended in LogTruncated, which nobody reads
            parent.ready()
            before_s = time.process_time()
            _LASTS.wait(HOT_LOOP_S)
            cpu = (time.process_time() - before_s) / HOT_LOOP_S
            wrong = "the fetch loop is hot" if cpu > HOT_LOOP_CPU_MAX else ""
            try:
                consumer.poll(timeout=5)
                wrong = wrong or "poll did not raise the error"
            except LogTruncated:
                pass
    parent.done(f"{100 * cpu:.1f} % of a CPU for {HOT_LOOP_S:.0f} s", wrong)


def _acks0(address: str, parent: _Parent, records: int, limit_s: float) -> None:
    """Send without acknowledgement until enough were taken or time is up."""
    value = os.urandom(60_000)
    with Client(address) as client:
        producer = client.producer(
            acks=0, buffer_memory=BUFFER_BYTES, compression_type="none", linger_ms=0,
            max_block_ms=MAX_BLOCK_MS,
        )  # fmt: skip
        producer.send(SMALL, b"first")
        producer.flush(30)
        parent.ready()
        taken, refused, longest_s = _send_all(producer, value, records, limit_s)
        if taken == records:
            producer.flush(60)
        seen = (
            f"{taken * len(value) / MIB:.0f} MiB taken, BufferFull {refused} times, longest "
            f"send {longest_s:.1f} s"
        )
        wrong = "send blocked too long" if longest_s > MAX_BLOCK_MS / 1000 + 1.5 else ""
        if not refused and taken < records:
            wrong = wrong or "no BufferFull"
        parent.done(seen, wrong)
        sys.stdin.readline()  # the broker goes on
        try:
            producer.close(20)
        except OctavoError as error:
            print(f"close: {error}", file=sys.stderr)


def _send_all(
    producer: Producer, value: bytes, records: int, limit_s: float
) -> tuple[int, int, float]:
    taken, refused, longest_s = 0, 0, 0.0
    ends_s = time.monotonic() + limit_s
    while taken < records and time.monotonic() < ends_s:
        start_s = time.monotonic()
        try:
            producer.send_nowait(SMALL, value)
            taken += 1
        except BufferFull:
            refused += 1
        longest_s = max(longest_s, time.monotonic() - start_s)
    return taken, refused, longest_s


def _acks0_frozen(address: str, parent: _Parent) -> None:
    _acks0(address, parent, 2_000, 20.0)


def _acks0_live(address: str, parent: _Parent) -> None:
    _acks0(address, parent, 4_000, 60.0)


def _raw(body: Callable[[str, _Parent], Awaitable[None]]) -> Callable[[str, _Parent], None]:
    def run(address: str, parent: _Parent) -> None:
        asyncio.run(asyncio.wait_for(body(address, parent), CHILD_LIMIT_S))

    return run


def _open(address: str, streams: int = 1) -> list[grpc.aio.Channel]:
    own = ("grpc.use_local_subchannel_pool", 1)
    return [
        grpc.aio.insecure_channel(address, options=[*channel_options(), own])
        for _ in range(streams)
    ]


def _produce(channel: grpc.aio.Channel) -> ProduceCall:
    """A produce stream whose requests are bytes, whatever they say."""
    return cast("ProduceCall", channel.stream_stream("/octavo.broker.Broker/Produce")())


async def _empty_batches(address: str, parent: _Parent) -> None:
    one = pb.ProduceRequest(batches=[pb.ProduceBatch(correlation=1, topic="x", acks=-1)])
    raw = one.SerializeToString() * 100_000
    (channel,) = _open(address)
    stub = BrokerStub(channel)
    await stub.Lookup(pb.LookupRequest(topic=SMALL, partition=0))
    parent.ready()
    # 40 messages on streams of their own: what is kept of one adds up
    refused = 0
    for _ in range(40):
        call = _produce(channel)
        try:
            await call.write(raw)
            await call.done_writing()
            while isinstance(await call.read(), bytes):
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            refused += 1
    start_s = time.monotonic()
    await stub.Lookup(pb.LookupRequest(topic=SMALL, partition=0))
    waited_s = time.monotonic() - start_s
    await channel.close()
    parent.done(
        f"40 messages of {len(raw) / MIB:.1f} MiB, {refused} ended the stream, the next call "
        f"{waited_s:.2f} s"
    )


async def _unread_acks(address: str, parent: _Parent) -> None:
    raw = pb.ProduceRequest(
        batches=[
            pb.ProduceBatch(correlation=number, topic=SMALL, partition=0, acks=-1, batch=b"x")
            for number in range(500)
        ]
    ).SerializeToString()
    (channel,) = _open(address)
    await BrokerStub(channel).Lookup(pb.LookupRequest(topic=SMALL, partition=0))
    parent.ready()
    call = _produce(channel)
    sent, stopped = 0, False
    while sent < UNREAD_BATCHES and not stopped:
        try:
            async with asyncio.timeout(8):
                await call.write(raw)
            sent += 500
        except TimeoutError:
            stopped = True
    call.cancel()
    await channel.close()
    wrong = "" if stopped else "the broker never stopped reading"
    parent.done(f"{sent} batches sent until the broker stopped reading", wrong)


async def _unread_fetches(address: str, parent: _Parent) -> None:
    channels = _open(address, FETCH_STREAMS)
    for channel in channels:
        await BrokerStub(channel).Lookup(pb.LookupRequest(topic=DATA, partition=0))
    parent.ready()
    written = 0
    calls = [BrokerStub(channel).Fetch() for channel in channels]
    for number in range(FETCHES_EACH):
        for call in calls:
            parts = [
                pb.FetchPartition(topic=DATA, partition=part, offset=0, max_bytes=4 * MIB)
                for part in range(FULL_PARTITIONS)
            ]
            request = pb.FetchRequest(
                correlation=number, partitions=parts, max_bytes=48 * MIB, max_wait_ms=1_000
            )
            try:
                async with asyncio.timeout(1):
                    await call.write(request)
                written += 1
            except TimeoutError:
                continue
    await asyncio.sleep(10)  # replies pile up wherever they may
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    parent.done(f"{written} fetches of 48 MiB on {FETCH_STREAMS} streams, no reply read")


def _idle_connections(address: str, parent: _Parent) -> None:
    host, _, port = address.rpartition(":")
    start = PREFIX.pack(MAX_FRAME_BYTES - 4, 1, 1, 0, 1, 0, 0, 0)[:16]
    parent.ready()
    opened = [socket.create_connection((host, int(port)), 10) for _ in range(IDLE_CONNECTIONS)]
    for connection in opened:
        connection.sendall(start)
    still = 0
    for connection in opened:
        connection.settimeout(15)
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            still += 1
        except ConnectionError:
            pass
        connection.close()
    wrong = f"{still} connections stay open without a hello" if still else ""
    parent.done(f"{IDLE_CONNECTIONS} connections, 16 bytes each, {still} left open", wrong)


@dataclass(frozen=True, slots=True)
class Bound:
    """The setting that holds growth, and the bytes it allows."""

    setting: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Abuse:
    """One abuse: what it does, and what holds the growth of the server and of the client."""

    run: Callable[[str, _Parent], None]
    server: Bound
    client: Bound
    target: str = BROKER
    freezes: bool = False


_FETCH = Bound("fetch_bytes_in_flight", BROKER_SETTINGS["fetch_bytes_in_flight"])
_PRODUCE = Bound("produce_bytes_in_flight", BROKER_SETTINGS["produce_bytes_in_flight"])
_PREFETCH = Bound("prefetch_max_bytes", PREFETCH_BYTES)
_BUFFER = Bound("buffer_memory", BUFFER_BYTES)
_RECEIVE = Bound("max_receive_bytes", 32 * MIB)
_ACKS = Bound("connection_pending_batches", 1_000 * 1_024)
_NOTHING = Bound("nothing", 0)
# A client that does not read keeps what gRPC's window lets the broker send; that is not ours.
_WINDOWS = Bound("windows of gRPC", FETCH_STREAMS * GRPC_WINDOW_BYTES)
_HANDLE_BYTES = (
    LedgerClientConfig().handle_in_flight_bytes
)  # one partition, so one ledger at a time
_WRITES = Bound(
    "produce_bytes_in_flight and handle_in_flight_bytes", _PRODUCE.size_bytes + _HANDLE_BYTES
)
_HELLO = Bound("HELLO_FRAME_BYTES_MAX", IDLE_CONNECTIONS * HELLO_FRAME_BYTES_MAX)

ABUSES = {
    "paused": Abuse(_paused, _FETCH, _PREFETCH),
    "empty-batches": Abuse(_raw(_empty_batches), _RECEIVE, _NOTHING),
    "unread-acks": Abuse(_raw(_unread_acks), _ACKS, _ACKS),
    "acks0-frozen": Abuse(_acks0_frozen, _PRODUCE, _BUFFER, freezes=True),
    "acks0-live": Abuse(_acks0_live, _WRITES, _BUFFER),
    "unread-fetches": Abuse(_raw(_unread_fetches), _FETCH, _WINDOWS),
    "unread-error": Abuse(_unread_error, _NOTHING, _PREFETCH),
    "poll": Abuse(_poll, _FETCH, _PREFETCH),
    "idle-connections": Abuse(_idle_connections, _HELLO, _NOTHING, target=BOOKIE),
}


class _Sampler(threading.Thread):
    """The most that the resident memory of some processes grew while it ran."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self._processes = [psutil.Process(pid) for pid in pids]
        self._first = [self._rss(process) for process in self._processes]
        self.growth_bytes = [0] * len(pids)
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for number, process in enumerate(self._processes):
                grown = self._rss(process) - self._first[number]
                self.growth_bytes[number] = max(self.growth_bytes[number], grown)

    @staticmethod
    def _rss(process: psutil.Process) -> int:
        try:
            return int(process.memory_info().rss)
        except psutil.NoSuchProcess:
            return 0


def _pipes(child: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if child.stdin is None or child.stdout is None:
        raise ValueError("the child was started without pipes")
    return child.stdin, child.stdout


def judge(cluster: LocalCluster, name: str) -> bool:
    """Run one abuse and print its line; whether all was well."""
    abuse = ABUSES[name]
    cluster.restart(abuse.target)
    server = cluster.process(abuse.target)
    child = subprocess.Popen(
        [sys.executable, "-m", "tools.abuse_memory", "--abuse", name, server.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told, heard = _pipes(child)
    limit = threading.Timer(CHILD_LIMIT_S, child.kill)
    limit.start()
    growth, seen, wrong = [0, 0], "", "it did not become ready"
    try:
        if heard.readline().strip() == "ready":
            sampler = _Sampler(server.pid, child.pid)
            sampler.start()
            if abuse.freezes:
                cluster.freeze(abuse.target)
            print("go", file=told, flush=True)
            answer = heard.readline()
            sampler.end()
            growth = sampler.growth_bytes
            said = json.loads(answer or '{"seen": "", "wrong": "it ended without a word"}')
            seen, wrong = said["seen"], said["wrong"]
    finally:
        if abuse.freezes:
            cluster.thaw(abuse.target)
        child.communicate("end\n")
        limit.cancel()
    bounds = (abuse.server, abuse.client)
    over = any(
        grown > bound.size_bytes + SLACK_BYTES for grown, bound in zip(growth, bounds, strict=True)
    )
    sides = "; ".join(
        f"{side} +{grown / MIB:.0f} MiB ({bound.setting} {bound.size_bytes / MIB:.1f} MiB)"
        for side, grown, bound in zip(
            (abuse.target.partition("-")[0], "client"), growth, bounds, strict=True
        )
    )
    verdict = "OVER" if over else f"WRONG {wrong}" if wrong else "OK"
    print(f"{name}: {sides}; {seen}: {verdict}", flush=True)
    return verdict == "OK"


def _fill(cluster: LocalCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic(DATA, partitions=FULL_PARTITIONS + 1)
        client.admin.create_topic(SMALL, partitions=1)
        with client.producer(compression_type="none", batch_size=MIB) as producer:
            for number in range(FULL_PARTITIONS):
                values = [os.urandom(RECORD_BYTES) for _ in range(RECORDS_EACH)]
                producer.send_many(DATA, values, partition=number)
            producer.flush(120)


def run(names: list[str]) -> int:
    """All abuses of these names; returns the exit code."""
    with LocalCluster(bookies=3, brokers=1, broker_settings=BROKER_SETTINGS) as cluster:
        _fill(cluster)
        fine = [judge(cluster, name) for name in names]
    print(f"memory: ok={fine.count(True)} over={fine.count(False)}")
    return int(not all(fine))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=sorted(ABUSES), help="default: all")
    parser.add_argument("--abuse", nargs=2, metavar=("NAME", "ADDRESS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.abuse:
        name, address = asked.abuse
        ABUSES[name].run(address, _Parent())
        return 0
    return run(asked.only or list(ABUSES))


if __name__ == "__main__":
    sys.exit(main())
