"""How long the partitions of a dead broker are away, when they are many, and what the taker uses.

Two brokers serve one topic of twice as many partitions as one of them is to lose; each has one
record. Then one broker is killed, and the time runs until every partition that it had has taken a
record at the other one. Prints one line; profile the taker with `--profile FILE` (py-spy, raw).

Usage: python -m tools.take_over [--partitions 1000] [--rounds 1] [--profile FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Generator

import psutil

from octavo import Client
from octavo.testing import LocalCluster

TOPIC = "take-over"
LIMIT_S = 30.0
"""Of the whole take-over."""
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


def take_over(cluster: LocalCluster, partitions: int, profile: str | None) -> float:
    """One take-over; returns how many seconds the last partition was away."""
    with Client(cluster.bootstrap_servers, request_timeout_ms=SEND_TIMEOUT_MS // 2) as client:
        written(client, list(range(2 * partitions)))
        described = client.admin.describe_topic(TOPIC).partitions
        lost = [one.partition for one in described if one.owner_id == "broker-2"]
        taker = psutil.Process(cluster.process("broker-1").pid)
        cpu_before_s = sum(taker.cpu_times()[:2])
        with profiled(taker.pid, profile):
            cluster.kill("broker-2")
            began_s = time.monotonic()
            written(client, lost)
            took_s = time.monotonic() - began_s
        cpu_s = sum(taker.cpu_times()[:2]) - cpu_before_s
        print(
            f"take-over: {'OK' if took_s < LIMIT_S else 'FAILED'} partitions={len(lost)} "
            f"seconds={took_s:.2f} taker_cpu_s={cpu_s:.2f} "
            f"cpu_ms_per_partition={1000 * cpu_s / max(len(lost), 1):.2f}",
            flush=True,
        )
    return took_s


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
