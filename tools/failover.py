"""Take the owner of partitions away under load, again and again, and measure who waits how long.

    python -m tools.failover [--kills 40] [--terms 10] [--drains 10] [--freezes 10] [--seed 1]
                             [--metadata zookeeper|embedded|zk://…] [--pause-ms 50]

Three brokers and three bookies serve one topic. Each partition has a thread that sends one record
after the other through one established producer, and one established reader follows them all. A
round takes one broker away (SIGKILL, SIGTERM, a drain, SIGSTOP), and measures for each partition
it owned the time until a send that began afterwards was acknowledged, and its record read; for
SIGTERM and drains, where the owner goes on for a while, the slowest send that began before it had
left. Each record carries a number of its partition: the reader
proves that none is lost, stored twice, or out of order. `busy_percent` is how busy the whole
machine was: beside a load that takes all of it, a hand-over waits for processors as well.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator

import psutil

from octavo import Client
from octavo.runtime.errors import OctavoError
from octavo.serving.liveness.suspicion import CALM_S
from octavo.testing import LocalCluster

TOPIC = "failover"
PARTITIONS = 12
PAUSE_MS = 50
"""Between two sends of one partition. Brokers, bookies, store and clients share one machine here: a
load that takes all of two processors is measured by 10."""
ROUND_LIMIT_S = 60.0
SETTLE_LIMIT_S = 20.0
FREEZE_S = 4.0
"""Measured from the answer: a thawed owner has missed all of its replacement."""
LIMITS_MS = {"kill": 2_000, "term": 300, "drain": 300, "freeze": 3_000}
"""What p99 of the next acknowledged send may be."""


class Marks:
    """When the newest event of each partition began and ended; one thread writes each."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[collections.deque[tuple[float, float]]] = [
            collections.deque(maxlen=10_000) for _ in range(PARTITIONS)
        ]

    def note(self, partition: int, began_s: float, ended_s: float) -> None:
        """Something that began then is complete."""
        with self._changed:
            self._events[partition].append((began_s, ended_s))
            self._changed.notify_all()

    def first_after(self, partition: int, start_s: float) -> float:
        """Seconds from `start_s` until something was complete that began after it."""

        def found() -> float | None:
            events = self._events[partition]
            return next((end for began, end in events if began > start_s), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, ROUND_LIMIT_S)
            ended_s = found()
        return float("inf") if ended_s is None else ended_s - start_s

    def slowest(self, partition: int, start_s: float, end_s: float) -> float:
        """The longest time in seconds that anything took which began in between."""
        self.first_after(partition, end_s)  # what began before is complete then
        with self._changed:
            took = [
                end - began for began, end in self._events[partition] if start_s < began < end_s
            ]
        return max(took, default=0.0)


class Load:
    """The established producer and reader, and what the reader proves."""

    def __init__(self, servers: str, pause_s: float) -> None:
        self._pause_s = pause_s
        self.acked, self.read = Marks(), Marks()
        self.errors: list[str] = []
        self.lost = self.duplicated = self.reordered = 0
        self._sent = [0] * PARTITIONS
        self._seen = [-1] * PARTITIONS
        self._missing: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self._client = Client(servers)
        self._producer = self._client.producer(linger_ms=0)
        self._ended, self._drained = threading.Event(), threading.Event()
        self._senders = [
            threading.Thread(target=self._send, args=(number,), daemon=True)
            for number in range(PARTITIONS)
        ]
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        """Begin to send and to read; returns when each partition took a record."""
        start_s = time.monotonic()
        for thread in (*self._senders, self._reader):
            thread.start()
        for partition in range(PARTITIONS):
            self.read.first_after(partition, start_s)

    def end(self) -> int:
        """Send no more, read what is there; how many records were acknowledged."""
        self._ended.set()
        for thread in self._senders:
            thread.join(ROUND_LIMIT_S)
        ends_s = time.monotonic() + ROUND_LIMIT_S
        while time.monotonic() < ends_s and any(
            seen + 1 < sent for seen, sent in zip(self._seen, self._sent, strict=True)
        ):
            time_passes(0.05)
        self._drained.set()
        self._reader.join(ROUND_LIMIT_S)
        for seen, sent in zip(self._seen, self._sent, strict=True):
            self.lost += max(0, sent - 1 - seen)
        self.lost += sum(len(missing) for missing in self._missing)
        self._producer.close()
        self._client.close()
        return sum(self._sent)

    def _send(self, partition: int) -> None:
        while not self._ended.wait(self._pause_s):
            began_s, number = time.monotonic(), self._sent[partition]
            value = b"%d %.6f" % (number, began_s)
            try:
                self._producer.send(TOPIC, value, partition=partition)
            except OctavoError as error:
                # Not known whether it is there: this thread ends, the round that saw it fails.
                self.errors.append(f"{TOPIC}-{partition}: {error!r}")
                return
            self._sent[partition] = number + 1
            self.acked.note(partition, began_s, time.monotonic())

    def _read(self) -> None:
        with self._client.reader(TOPIC, start="earliest") as reader:
            while not self._drained.is_set():
                for record in reader.poll(timeout=0.2):
                    number, began_s = (record.value or b"").split()
                    self._judge(record.partition, int(number))
                    self.read.note(record.partition, float(began_s), time.monotonic())

    def _judge(self, partition: int, number: int) -> None:
        newest, missing = self._seen[partition], self._missing[partition]
        if number > newest:
            missing.update(range(newest + 1, number))
            self._seen[partition] = number
        elif number in missing:
            missing.discard(number)
            self.reordered += 1
        else:
            self.duplicated += 1


def time_passes(seconds: float) -> None:
    """Let the load run."""
    threading.Event().wait(seconds)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class Rounds:
    """One cluster under load, from which brokers are taken away."""

    def __init__(self, cluster: LocalCluster, client: Client, seed: int, pause_s: float) -> None:
        self._cluster = cluster
        self._client = client
        self._random = random.Random(seed)
        self.load = Load(cluster.bootstrap_servers, pause_s)
        self.sent_ms: dict[str, list[float]] = collections.defaultdict(list)
        self.read_ms: dict[str, list[float]] = collections.defaultdict(list)
        self._frozen_s: dict[str, float] = {}
        """When each broker was frozen last."""

    def owners(self) -> list[str]:
        """Who owns each partition, as one broker knows it."""
        while True:
            with contextlib.suppress(OctavoError):
                found = self._client.admin.describe_topic(TOPIC).partitions
                return [partition.owner_id for partition in found]

    def settle(self) -> list[str]:
        """The owners, once each broker owns something (or nobody moves any more)."""
        ends_s = time.monotonic() + SETTLE_LIMIT_S
        names = {name for name in self._cluster.processes if name.startswith("broker")}
        while True:
            owners = self.owners()
            if set(owners) == names or time.monotonic() > ends_s:
                return owners
            time_passes(0.2)

    def round(self, kind: str) -> None:
        """Take one broker away as `kind` says, measure, and bring it back."""
        owners = self.settle()
        victim = self._random.choice(sorted({owner for owner in owners if owner}))
        affected = [number for number, owner in enumerate(owners) if owner == victim]
        time_passes(self._random.uniform(0.2, 1.0))
        if kind == "freeze":  # one that stands still again and again is waited for longer (HB-5)
            time_passes(max(0.0, self._frozen_s.get(victim, -CALM_S) + CALM_S - time.monotonic()))
            self._frozen_s[victim] = time.monotonic()
        start_s = time.monotonic()
        self._take_away(kind, victim)
        sent, read = self._measure(kind, victim, affected, start_s)
        self.sent_ms[kind] += sent
        self.read_ms[kind] += read
        print(
            f"  {kind} {victim}: {len(affected)} partitions, send {max(sent):.0f} ms, "
            f"record read {max(read):.0f} ms",
            flush=True,
        )
        self._bring_back(kind, victim, start_s)

    def _measure(
        self, kind: str, victim: str, affected: list[int], start_s: float
    ) -> tuple[list[float], list[float]]:
        """Milliseconds for each partition: until the next send was acknowledged, and its record
        read; where the owner leaves in good order, of the slowest one until it had left."""
        marks = (self.load.acked, self.load.read)
        if kind in ("kill", "freeze"):
            sent, read = ([m.first_after(n, start_s) * 1000 for n in affected] for m in marks)
            return sent, read
        if kind == "term":
            with contextlib.suppress(psutil.Error):
                psutil.Process(self._cluster.process(victim).pid).wait(ROUND_LIMIT_S)
        end_s = time.monotonic()
        sent, read = ([m.slowest(n, start_s, end_s) * 1000 for n in affected] for m in marks)
        return sent, read

    def _take_away(self, kind: str, victim: str) -> None:
        process = psutil.Process(self._cluster.process(victim).pid)
        if kind == "drain":
            self._client.admin.drain_broker(victim, timeout=ROUND_LIMIT_S)
        elif kind == "freeze":
            self._cluster.freeze(victim)
        else:
            process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)

    def _bring_back(self, kind: str, victim: str, start_s: float) -> None:
        if kind == "drain":
            self._client.admin.undrain_broker(victim)
        elif kind == "freeze":
            time_passes(max(0.0, start_s + FREEZE_S - time.monotonic()))
            self._cluster.thaw(victim)
        else:
            with contextlib.suppress(psutil.Error):
                psutil.Process(self._cluster.process(victim).pid).wait(ROUND_LIMIT_S)
            self._cluster.restart(victim)

    def report(self, kind: str, rounds: int, busy_percent: float) -> bool:
        """One line; whether it is as it should be."""
        load, sent, read = self.load, self.sent_ms[kind], self.read_ms[kind]
        p99_ms = percentile(sent, 0.99)
        broken = load.lost or load.duplicated or load.reordered or load.errors
        verdict = "BROKEN" if broken else "OK" if p99_ms <= LIMITS_MS[kind] else "SLOW"
        print(
            f"failover: {verdict} {kind}s={rounds} p50_ms={percentile(sent, 0.5):.0f} "
            f"p99_ms={p99_ms:.0f} max_ms={max(sent):.0f} read_p50_ms={percentile(read, 0.5):.0f} "
            f"read_p99_ms={percentile(read, 0.99):.0f} read_max_ms={max(read):.0f} "
            f"lost={load.lost} duplicated={load.duplicated} reordered={load.reordered} "
            f"errors={len(load.errors)} busy_percent={busy_percent:.0f}"
        )
        return verdict == "OK"


def run(counts: dict[str, int], asked: argparse.Namespace, metadata: str) -> int:
    """All rounds; returns the exit code."""
    settings = {"ownership_settle_s": 1.0, "session_timeout_s": asked.session_timeout_s}
    with (
        LocalCluster(bookies=3, brokers=3, metadata=metadata, broker_settings=settings) as cluster,
        Client(cluster.bootstrap_servers) as client,
    ):
        client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        rounds = Rounds(cluster, client, asked.seed, asked.pause_ms / 1000)
        rounds.load.start()
        psutil.cpu_percent(None)
        for kind, count in counts.items():
            for _ in range(count):
                rounds.round(kind)
        busy_percent = psutil.cpu_percent(None)
        acked = rounds.load.end()
    for error in rounds.load.errors[:10]:
        print(f"  error: {error}")
    print(f"  {acked} records acknowledged")
    fine = [rounds.report(kind, count, busy_percent) for kind, count in counts.items() if count]
    return int(not all(fine))


@contextlib.contextmanager
def metadata_of(asked: str) -> Generator[str]:
    """The store's address; `zookeeper` starts one for as long as this lasts."""
    if asked != "zookeeper":
        yield asked
        return
    # Imported here: needs Java and the jars of PySpark.
    from tests.fix_zookeeper import running_zookeeper

    with (
        tempfile.TemporaryDirectory() as work,
        running_zookeeper(pathlib.Path(work)) as server,
    ):
        yield f"zk://{server.hosts}/failover"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for kind, count in (("kill", 40), ("term", 10), ("drain", 10), ("freeze", 10)):
        parser.add_argument(f"--{kind}s", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metadata", default="zookeeper", help="zookeeper, embedded or zk://…")
    parser.add_argument("--session-timeout-s", type=float, default=6.0)
    parser.add_argument(
        "--pause-ms", type=float, default=PAUSE_MS, help="between two sends of a partition"
    )
    asked = parser.parse_args()
    counts = {kind: int(vars(asked)[f"{kind}s"]) for kind in LIMITS_MS}
    with metadata_of(asked.metadata) as metadata:
        return run(counts, asked, metadata)


if __name__ == "__main__":
    sys.exit(main())
