"""Freeze the owner again and again (SIGSTOP) under an open producer and reader, and judge both.

    python -m tools.frozen_owner [--rounds 20] [--freeze-s 60] [--metadata embedded|zookeeper]

Each round: freeze the partition's owner, note when its successor acknowledges a fresh client, when
the open producer and the open reader go on, thaw the owner and ask it at once where the log ends.
Right: both go on within a second of the take-over, and the thawed broker never answers with an end
below what was acknowledged. At last every acknowledged record is read where it was acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator

import grpc

from octavo import Client
from octavo.proto import broker_pb2 as pb
from octavo.proto.broker_pb2_grpc import BrokerStub
from octavo.proto.endpoints import channel_options
from octavo.runtime.errors import OctavoError
from octavo.testing import LocalCluster

TOPIC = "frozen"
LATE_S = 1.0
ROUND_LIMIT_S = 90.0


class _Clock:
    """When something happened last, for one thread that does it and one that waits."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._times: list[float] = []

    def tick(self) -> None:
        with self._condition:
            self._times.append(time.monotonic())
            self._condition.notify_all()

    def first_after(self, start_s: float, limit_s: float) -> float:
        """Seconds from `start_s` to the first tick at least 0.1 s after it; infinite: none came."""

        def found() -> float | None:
            return next((at for at in self._times if at > start_s + 0.1), None)

        with self._condition:
            self._condition.wait_for(lambda: found() is not None, limit_s)
            at = found()
        return float("inf") if at is None else at - start_s


class _Load:
    """The open producer and the open reader."""

    def __init__(self, servers: str) -> None:
        self.acked: dict[int, bytes] = {}
        self.sent_clock, self.read_clock = _Clock(), _Clock()
        self.failure: OctavoError | None = None
        self._servers = servers
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(body,), daemon=True)
            for body in (self._send, self._read)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(ROUND_LIMIT_S)

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except OctavoError as error:  # told by the main thread
            self.failure = error

    def _send(self) -> None:
        with Client(self._servers) as client, client.producer(linger_ms=0) as producer:
            number = 0
            while not self._ended.wait(0.01):
                value = b"%d" % number
                self.acked[producer.send(TOPIC, value).offset] = value
                self.sent_clock.tick()
                number += 1

    def _read(self) -> None:
        with Client(self._servers) as client, client.reader(TOPIC, start="earliest") as reader:
            while not self._ended.is_set():
                if reader.poll(timeout=0.2):
                    self.read_clock.tick()


@contextlib.contextmanager
def _stub(address: str) -> Generator[BrokerStub]:
    with grpc.insecure_channel(address, options=channel_options()) as channel:
        yield BrokerStub(channel)


def _take_over_s(address: str, start_s: float) -> float:
    """Seconds until the surviving broker serves the partition (asked every 50 ms)."""
    pause = threading.Event()
    request = pb.LookupRequest(topic=TOPIC, partition=0)
    with _stub(address) as stub:
        while time.monotonic() < start_s + ROUND_LIMIT_S:
            with contextlib.suppress(grpc.RpcError):
                reply = stub.Lookup(request, timeout=20)
                if not reply.HasField("error") and reply.owner_address == address:
                    return time.monotonic() - start_s
            pause.wait(0.05)
    return float("inf")


def _stale_answers(address: str, load: _Load) -> list[str]:
    """What a broker that was just thawed says of the end that is not so."""
    wrong: list[str] = []
    latest = pb.ListOffset(topic=TOPIC, partition=0, latest=True)
    ends = time.monotonic() + 3.0
    with _stub(address) as stub:
        while time.monotonic() < ends:
            acked = max(load.acked, default=-1) + 1
            with contextlib.suppress(grpc.RpcError):
                listed = stub.ListOffsets(pb.ListOffsetsRequest(offsets=[latest]), timeout=2)
                found = listed.offsets[0]
                if not found.HasField("error") and found.offset < acked:
                    wrong.append(f"latest {found.offset} of {acked}")
    return wrong


def run(rounds: int, freeze_s: float, metadata: str) -> int:
    """All rounds; returns the exit code."""
    bad = 0
    with LocalCluster(bookies=3, brokers=2, metadata=metadata) as cluster:
        servers = cluster.bootstrap_servers
        with Client(servers) as client:
            client.admin.create_topic(TOPIC, partitions=1)
            load = _Load(servers)
            load.start()
            load.sent_clock.first_after(time.monotonic(), ROUND_LIMIT_S)
            for number in range(1, rounds + 1):
                bad += _round(number, cluster, client, load, freeze_s)
            load.end()
            with client.reader(TOPIC, start="earliest") as reader:
                read = {record.offset: record.value for record in reader.read_to_end()}
    lost = sum(read.get(offset) != value for offset, value in load.acked.items())
    twice = len(read) - len(set(read.values()))
    print(f"acknowledged {len(load.acked)}, lost {lost}, stored twice {twice}, bad rounds {bad}")
    if load.failure is not None:
        print(f"the load failed: {load.failure!r}")
    return int(bool(bad or lost or twice or load.failure))


def _round(number: int, cluster: LocalCluster, client: Client, load: _Load, freeze_s: float) -> int:
    owner = ""
    while not owner:
        with contextlib.suppress(OctavoError):
            owner = client.admin.describe_topic(TOPIC).partitions[0].owner_id
    other = next(n for n in cluster.processes if n.startswith("broker") and n != owner)
    addresses = {name: cluster.process(name).address for name in (owner, other)}
    cluster.freeze(owner)
    start_s = time.monotonic()
    taken_s = _take_over_s(addresses[other], start_s)
    sent_s = load.sent_clock.first_after(start_s, ROUND_LIMIT_S)
    read_s = load.read_clock.first_after(start_s, ROUND_LIMIT_S)
    threading.Event().wait(max(0.0, start_s + freeze_s - time.monotonic()))
    cluster.thaw(owner)
    stale = _stale_answers(addresses[owner], load)
    late = max(sent_s, read_s) - taken_s > LATE_S
    print(
        f"round {number}: taken over after {taken_s:.1f} s, producer {sent_s:.1f} s, reader "
        f"{read_s:.1f} s{' LATE' if late else ''}; thawed: {stale or 'nothing stale'}",
        flush=True,
    )
    load.sent_clock.first_after(time.monotonic(), ROUND_LIMIT_S)
    return int(late or bool(stale))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--freeze-s", type=float, default=60.0)
    parser.add_argument("--metadata", default="embedded", help="embedded, zookeeper or zk://…")
    asked = parser.parse_args()
    if asked.metadata != "zookeeper":
        return run(asked.rounds, asked.freeze_s, asked.metadata)
    # Imported here: needs Java and the jars of PySpark.
    from tests.fix_zookeeper import running_zookeeper

    with (
        tempfile.TemporaryDirectory() as work,
        running_zookeeper(pathlib.Path(work)) as server,
    ):
        return run(asked.rounds, asked.freeze_s, f"zk://{server.hosts}/frozen")


if __name__ == "__main__":
    sys.exit(main())
