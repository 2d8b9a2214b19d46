"""What reads through the Spark source cost beside Spark's own Parquet reader, same rows, same run.

`python -m bench.spark_reads --rows 1000000`: an export of both formats, read in turn in one warm
session. CPU is that of the JVM and its Python workers together; ratios are against Parquet read by
Spark itself in the same job. Never compare with numbers of another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import psutil
from pyspark.sql import DataFrame, SparkSession

from octavo.spark.export_run import export_log
from tests.fix_spark import SPARK_CONFIG
from tests.spark_memory import MemoryTopic, Row

BATCH_ROWS = 5_000
VALUE = b'{"carrier":"UA","flight":%d,"origin":"EWR","dest":"IAH","delay":%d,"note":"%s"}'
JOBS: dict[str, tuple[str, list[str]]] = {
    "count()": ("offset bigint", ["count(*)"]),
    "offset only": ("offset bigint", ["sum(offset)"]),
    "key and offset": ("key binary, offset bigint", ["sum(offset + length(key))"]),
    "all columns": (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int",
        [
            "sum(offset + length(key) + length(value) + length(topic) + partition + timestampType)",
            "max(timestamp)",
        ],
    ),
}


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.Builder()
    config = {**SPARK_CONFIG, "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def cpu_s() -> float:
    """Of all processes that this one started, those that ended since included."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system + used.children_user + used.children_system
    return total


def timed(job: Callable[[], DataFrame]) -> tuple[float, float]:
    began, used = time.perf_counter(), cpu_s()
    job().collect()
    return time.perf_counter() - began, cpu_s() - used


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


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of Spark reads against Parquet")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    spark = session()
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
            best: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way, job in ways.items():
                    best[way].append(timed(job))
            base_wall, base_cpu = (min(x) for x in zip(*best["parquet"][1:], strict=True))
            for way, found in best.items():
                wall, cpu = (min(x) for x in zip(*found[1:], strict=True))
                print(
                    f"{what:15} {way:34} {wall:6.2f} s {cpu:6.2f} CPU s   "
                    f"{wall / base_wall:5.1f} x wall {cpu / base_cpu:5.1f} x CPU",
                    flush=True,
                )
    spark.stop()


if __name__ == "__main__":
    main()
