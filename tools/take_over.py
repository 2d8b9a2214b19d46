"""How long the partitions of a dead broker are away, when they are many, and what the taker uses.

Two brokers serve one topic of twice as many partitions as one of them is to lose; each has one
record. Then one broker is killed, and the time runs until the other one has recovered every
partition that it had, and then until each of them took a record, for which it needs a new ledger.
Prints one line; profile the taker meanwhile with `--profile FILE` (py-spy, raw).

Usage: python -m tools.take_over [--partitions 1000] [--rounds 1] [--profile FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterable

import psutil

from octavo import Client
from octavo.testing import LocalCluster

TOPIC = "take-over"
LIMIT_S = 30.0
"""Of the whole take-over."""
GIVE_UP_S = 120.0
SEND_TIMEOUT_MS = 120_000


@contextlib.contextmanager
def profiled(pid: int, path: str | None) -> Generator[None]:
    """Sample the process meanwhile, if there is a file for it."""
    if path is None:
        yield
        return
    command = ["py-spy", "record", "-r", "200", "-f", "raw", "-d", "120", "-o", path]
    spy = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        spy.send_signal(2)
        spy.wait(60)


def written(client: Client, partitions: list[int]) -> None:
    """One more record is durable in each of these."""
    with client.producer(linger_ms=0, delivery_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for future in [producer.send_nowait(TOPIC, b"x", partition=one) for one in partitions]:
            future.result()


def claimed(cluster: LocalCluster) -> int:
    """How many partitions the surviving broker has taken so far."""
    return cluster.log("broker-1").count("partition-claimed")


def take_over(cluster: LocalCluster, partitions: int, profile: str | None) -> float:
    """One take-over; returns how many seconds it took until all partitions were recovered."""
    with Client(cluster.bootstrap_servers, request_timeout_ms=SEND_TIMEOUT_MS // 2) as client:
        written(client, list(range(2 * partitions)))
        described = client.admin.describe_topic(TOPIC).partitions
        lost = [one.partition for one in described if one.owner_id == "broker-2"]
        taker = Usage([cluster.process("broker-1").pid])
        metadata = Usage([cluster.cluster.supervisor_pid])
        bookies = Usage([cluster.process(f"bookie-{number}").pid for number in (1, 2, 3)])
        before = claimed(cluster)
        with profiled(cluster.process("broker-1").pid, profile):
            cluster.kill("broker-2")
            began_s = time.monotonic()
            pause = threading.Event()
            while claimed(cluster) - before < len(lost):
                if time.monotonic() - began_s > GIVE_UP_S:
                    raise RuntimeError(f"{claimed(cluster) - before} of {len(lost)} were taken")
                pause.wait(0.05)
            took_s, load_cpu_s = time.monotonic() - began_s, taker.lap_s()
            others = f"metadata_cpu_s={metadata.lap_s():.2f} bookies_cpu_s={bookies.lap_s():.2f}"
        written(client, lost)
        total_s, write_cpu_s = time.monotonic() - began_s, taker.lap_s()
    print(
        f"take-over: {'OK' if took_s < LIMIT_S else 'FAILED'} partitions={len(lost)} "
        f"recovered_s={took_s:.2f} written_s={total_s:.2f} "
        f"cpu_ms_per_partition={1000 * load_cpu_s / max(len(lost), 1):.2f} {others} "
        f"first_write_cpu_ms={1000 * write_cpu_s / max(len(lost), 1):.2f}",
        flush=True,
    )
    return took_s


class Usage:
    """CPU seconds of some processes, user and system, since they were asked for last."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._before_s = self._now_s()

    def _now_s(self) -> float:
        return float(sum(sum(one.cpu_times()[:2]) for one in self._processes))

    def lap_s(self) -> float:
        """Since the last call."""
        now_s = self._now_s()
        used_s, self._before_s = now_s - self._before_s, now_s
        return used_s


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", help="file for py-spy's samples of the taker")
    args = parser.parse_args()
    took: list[float] = []
    for _ in range(args.rounds):
        with LocalCluster(bookies=3, brokers=2) as cluster:
            with Client(cluster.bootstrap_servers) as client:
                client.admin.create_topic(TOPIC, partitions=2 * args.partitions)
            took.append(take_over(cluster, args.partitions, args.profile))
    return 1 if max(took) >= LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
