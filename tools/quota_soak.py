"""Rates of a client on a real broker: what is acknowledged in 30 seconds is the quota, within 10 %.

Two producers of one client id send as fast as they may to a topic of four partitions; then two
readers of another id read it all. Both quotas are set live, while the client is connected. Every
record must be there afterwards.

Prints `quota: OK …`, or what is wrong, exit code 1.
Usage: python -m tools.quota_soak [--rate 1000000] [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable

from octavo import Client
from octavo.testing import LocalCluster

TOPIC = "limited"
RECORD_BYTES = 10_000
WITHIN = 0.10
WRITERS = 2


def rate_of(work: Callable[[float], int], threads: int, seconds: float) -> float:
    """Bytes per second of so many threads, each of which is told when to end."""
    counts = [0] * threads
    end_s = time.monotonic() + seconds

    def run(number: int) -> None:
        counts[number] = work(end_s)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts) / seconds


def writing(bootstrap: str) -> Callable[[float], int]:
    """Sends random records until the end; bytes that were acknowledged by then."""

    def work(end_s: float) -> int:
        acknowledged = 0
        with (
            Client(bootstrap, client_id="writer") as client,
            client.producer(compression_type="none", buffer_memory=4 << 20) as producer,
        ):
            while time.monotonic() < end_s:
                values = [os.urandom(RECORD_BYTES) for _ in range(20)]
                report = producer.send_many(TOPIC, values)
                if time.monotonic() < end_s:
                    acknowledged += report.count * RECORD_BYTES
        return acknowledged

    return work


def reading(bootstrap: str) -> Callable[[float], int]:
    """Polls from the start until the end; bytes of records that came."""

    def work(end_s: float) -> int:
        read = 0
        with (
            Client(bootstrap, client_id="reader") as client,
            client.reader(TOPIC, start="earliest") as reader,
        ):
            while time.monotonic() < end_s:
                records = reader.poll(timeout=0.2)
                read += sum(len(record.value or b"") for record in records)
        return read

    return work


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with LocalCluster(bookies=3, brokers=1) as cluster:
        bootstrap = cluster.bootstrap_servers
        with Client(bootstrap) as client:
            client.admin.create_topic(TOPIC, partitions=4)
            client.admin.set_quota("writer", bytes_in_per_s=options.rate)
            client.admin.set_quota("reader", bytes_out_per_s=options.rate // 2)
            written = rate_of(writing(bootstrap), WRITERS, options.seconds)
            read = rate_of(reading(bootstrap), 1, options.seconds)
            client.admin.unset_quota("reader")
            with client.reader(TOPIC, start="earliest") as reader:
                stored = sum(1 for _ in reader.read_to_end()) * RECORD_BYTES
    shares = {"in": written / options.rate, "out": read / (options.rate // 2)}
    wrong = [name for name, share in shares.items() if abs(share - 1) > WITHIN]
    lost = stored < written * options.seconds
    verdict = "OK" if not wrong and not lost else f"WRONG ({', '.join(wrong) or 'records lost'})"
    print(
        f"quota: {verdict} in={shares['in']:.3f} out={shares['out']:.3f} of the quota over "
        f"{options.seconds:g} s, acknowledged={written * options.seconds:.0f} stored={stored}"
    )
    return 0 if verdict == "OK" else 1


if __name__ == "__main__":
    sys.exit(main())
