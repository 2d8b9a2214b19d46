"""What reads through the Spark source cost beside Spark's own Parquet reader, same rows, same run.

`python -m bench.spark_reads --rows 1000000`: an export of both formats, read in turn in one warm
session. CPU is that of the JVM and its Python workers together; ratios are against Parquet read by
Spark itself in the same job. With `--live` the rows are those of a topic of a local cluster, read
from the bookies; beside time it says how many bytes each projection makes of those of all columns.
Never compare with numbers of another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from bench.spark_session import SparkProcesses, Stages, session
from octavo import Client
from octavo.client.exports.run import export_log
from octavo.proto import batch_arrow
from octavo.proto.batch import BatchHeader
from octavo.runtime.checksum import Buffer
from octavo.spark.live_reading import plan_cluster, read_split
from octavo.spark.options import ReadOptions
from octavo.testing import LocalCluster
from tests.spark_memory import MemoryTopic, Row

BATCH_ROWS = 5_000
VALUE = b'{"carrier":"UA","flight":%d,"origin":"EWR","dest":"IAH","delay":%d,"note":"%s"}'
SERVERS = "octavo.bootstrap.servers"
ALL = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
LIVE_JOBS: dict[str, tuple[str, list[str]]] = {
    "count()": ("partition int", ["count(*)"]),
    "offset only": ("offset bigint", ["sum(offset)"]),
    "key and offset": ("key binary, offset bigint", ["sum(offset + length(key))"]),
    "all columns": (ALL, ["sum(offset + length(key) + length(value))"]),
}
JOBS: dict[str, tuple[str, list[str]]] = {
    "count()": ("partition int", ["count(*)"]),
    "offset only": ("offset bigint", ["sum(offset)"]),
    "key and offset": ("key binary, offset bigint", ["sum(offset + length(key))"]),
    "all columns": (
        ALL,
        [
            "sum(offset + length(key) + length(value) + length(topic) + partition + timestampType)",
            "max(timestamp)",
        ],
    ),
}


class Decoded:
    """Bytes of batch bodies that were decompressed, and of the columns that came of it."""

    def __init__(self, options: ReadOptions, schema: str) -> None:
        columns = [part.split()[0] for part in schema.split(", ")]
        self.body_bytes = self.column_bytes = 0
        before = batch_arrow.body_of
        batch_arrow.body_of = self._counted(before)
        try:
            for split in plan_cluster(options):
                self.column_bytes += sum(rows.nbytes for rows in read_split(split, columns))
        finally:
            batch_arrow.body_of = before

    def _counted(
        self, body_of: Callable[[Buffer, BatchHeader], Buffer]
    ) -> Callable[[Buffer, BatchHeader], Buffer]:
        def counting(batch: Buffer, header: BatchHeader) -> Buffer:
            self.body_bytes += header.uncompressed_bytes
            return body_of(batch, header)

        return counting


def timed(processes: SparkProcesses, job: Callable[[], DataFrame]) -> tuple[float, float]:
    began, used = time.perf_counter(), sum(processes.cpu_s())
    job().collect()
    return time.perf_counter() - began, sum(processes.cpu_s()) - used


def build(rows: int, folder: pathlib.Path) -> None:
    topic = MemoryTopic()
    for first in range(0, rows, BATCH_ROWS * 20):
        topic.append(
            [
                [
                    Row(b"N%05d" % (n * 7919 % 4043), VALUE % (n, n % 97, b"%064x" % (n * n)))
                    for n in range(start, start + BATCH_ROWS)
                ]
                for start in range(first, min(first + BATCH_ROWS * 20, rows), BATCH_ROWS)
            ]
        )
    for fmt in ("arrow", "parquet"):
        asyncio.run(export_log(topic, "orders", folder / fmt, fmt=fmt))


def live(rows: int, rounds: int) -> None:
    """The same from a topic: two closed ledgers of each of two partitions, and their open tails."""
    spark = session()
    stages, processes = Stages(spark), SparkProcesses(spark)
    with LocalCluster() as cluster, Client(cluster.bootstrap_servers) as client:
        client.admin.create_topic("orders", partitions=2)
        with client.producer() as producer:
            for part in range(6):
                numbers = range(part * rows // 6, (part + 1) * rows // 6)
                producer.send_many(
                    "orders",
                    (VALUE % (n, n % 97, b"%064x" % (n * n)) for n in numbers),
                    keys=(b"N%05d" % (n * 7919 % 4043) for n in numbers),
                    partition=part % 2,
                )
                if part in (1, 3):
                    for partition in range(2):
                        client.admin.roll("orders", partition)
        given = {SERVERS: cluster.bootstrap_servers, "subscribe": "orders"}
        whole = Decoded(ReadOptions.parse(given), ALL)
        for what, (schema, answer) in LIVE_JOBS.items():
            reader = spark.read.format("octavo").schema(schema).options(**given)
            best = [(10.0**9, 0.0, 0.0)]
            for _ in range(rounds):
                wall, cpu = timed(
                    processes,
                    lambda reader=reader, answer=answer: reader.load().selectExpr(*answer),
                )
                best.append((stages.executor_s(), wall, cpu))
            executor, wall, cpu = min(best)
            made = Decoded(ReadOptions.parse(given), schema)
            print(
                f"live {what:15} {executor:6.2f} executor s {wall:6.2f} s {cpu:6.2f} CPU s   "
                f"{made.body_bytes / whole.body_bytes:6.1%} of the bodies decompressed, "
                f"{made.column_bytes / whole.column_bytes:6.1%} of the column bytes",
                flush=True,
            )
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of Spark reads against Parquet")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--live", action="store_true", help="a topic instead of exports")
    arguments = parser.parse_args()
    if arguments.live:
        live(arguments.rows, arguments.rounds)
        return
    spark = session()
    stages, processes = Stages(spark), SparkProcesses(spark)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        build(arguments.rows, root)

        def ours(fmt: str, schema: str) -> DataFrame:
            reader = spark.read.format("octavo").schema(schema)
            return reader.option("path", str(root / fmt)).option("subscribe", "orders").load()

        for what, (schema, answer) in JOBS.items():
            ways: dict[str, Callable[[], DataFrame]] = {
                "parquet": lambda answer=answer: spark.read.parquet(
                    str(root / "parquet" / "orders")
                ).selectExpr(*answer),
                "octavo, arrow files": lambda schema=schema, answer=answer: ours(
                    "arrow", schema
                ).selectExpr(*answer),
                "octavo, parquet files": lambda schema=schema, answer=answer: ours(
                    "parquet", schema
                ).selectExpr(*answer),
            }
            if what == "count()":
                ways["octavo, arrow files, no .schema()"] = lambda answer=answer: (
                    spark.read.format("octavo")
                    .option("path", str(root / "arrow"))
                    .option("subscribe", "orders")
                    .load()
                    .selectExpr(*answer)
                )
            best: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way, job in ways.items():
                    best[way].append((*timed(processes, job), stages.executor_s()))
            base_wall, base_cpu, _ = (min(x) for x in zip(*best["parquet"][1:], strict=True))
            for way, found in best.items():
                wall, cpu, executor = (min(x) for x in zip(*found[1:], strict=True))
                print(
                    f"{what:15} {way:34} {wall:6.2f} s {cpu:6.2f} CPU s {executor:6.2f} executor s "
                    f"{wall / base_wall:5.1f} x wall {cpu / base_cpu:5.1f} x CPU",
                    flush=True,
                )
    spark.stop()


if __name__ == "__main__":
    main()
