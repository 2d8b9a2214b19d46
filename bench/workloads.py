"""Loads on a running cluster, through the public SDK only."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from octavo import Client

KIB = 1024
RECORD_BYTES = 1 * KIB
DISTINCT_RECORDS = 4096


class Latency(NamedTuple):
    """Percentiles in milliseconds, measured from the time a record was due (open loop)."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


def percentiles(samples_s: Sequence[float]) -> Latency:
    """p50, p99 and p99.9 of samples in seconds."""
    ordered = sorted(samples_s)

    def at(fraction: float) -> float:
        return 1e3 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]

    return Latency(at(0.5), at(0.99), at(0.999))


def incompressible(count: int, size_bytes: int = RECORD_BYTES) -> list[bytes]:
    """Values no codec can shrink; `DISTINCT_RECORDS` different ones repeat."""
    pool = [os.urandom(size_bytes) for _ in range(min(count, DISTINCT_RECORDS))]
    return [pool[n % len(pool)] for n in range(count)]


def write(bootstrap: str, topic: str, values: Sequence[bytes], *, batch_bytes: int) -> float:
    """Seconds until all `values` are acknowledged by Qa bookies (acks=all, idempotent)."""
    with (
        Client(bootstrap) as client,
        client.producer(batch_size=batch_bytes, linger_ms=5) as producer,
    ):
        producer.send_many(topic, values[: len(values) // 20])
        began = time.perf_counter()
        report = producer.send_many(topic, values)
        seconds = time.perf_counter() - began
        if report.count != len(values):
            raise AssertionError(f"{report.count} of {len(values)} acknowledged")
        return seconds


def publish_latency(bootstrap: str, topic: str, *, per_s: int, count: int) -> Latency:
    """Open loop.

    Record n is due at n / per_s whatever happened before it (no coordinated omission).
    """
    value = os.urandom(RECORD_BYTES)
    samples: list[float] = []
    finished = threading.Event()
    with Client(bootstrap) as client, client.producer(linger_ms=0) as producer:
        for _ in range(200):
            producer.send(topic, value)
        began = time.perf_counter() + 0.1

        def record(due: float) -> None:
            samples.append(time.perf_counter() - due)
            if len(samples) == count:
                finished.set()

        pause = threading.Event()
        for number in range(count):
            due = began + number / per_s
            wait_s = due - time.perf_counter()
            if wait_s > 0:
                pause.wait(wait_s)
            future = producer.send_nowait(topic, value)
            future.add_done_callback(lambda _, due=due: record(due))
        if not finished.wait(60):
            raise AssertionError(f"{len(samples)} of {count} acknowledged")
    return percentiles(samples)


class ReadRate(NamedTuple):
    """What one reader got."""

    rows: int
    payload_bytes: int
    seconds: float


def read_rows(bootstrap: str, topic: str) -> ReadRate:
    """Read a topic from the start to its present end as rows."""
    rows = payload = 0
    with Client(bootstrap) as client, client.reader(topic, start="earliest") as reader:
        began = time.perf_counter()
        for record in reader.read_to_end():
            rows += 1
            payload += len(record.value or b"")
        return ReadRate(rows, payload, time.perf_counter() - began)


def read_arrow(bootstrap: str, topic: str, rows_wanted: int) -> ReadRate:
    """Read a topic from the start as Arrow record batches."""
    rows = payload = 0
    with Client(bootstrap) as client, client.reader(topic, start="earliest") as reader:
        began = time.perf_counter()
        while rows < rows_wanted:
            batch = reader.poll_arrow(timeout=10.0)
            if batch is None:
                raise AssertionError(f"{rows} of {rows_wanted} rows came")
            rows += batch.num_rows
            payload += batch.column("value").nbytes
        return ReadRate(rows, payload, time.perf_counter() - began)
