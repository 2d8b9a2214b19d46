"""What the last row of each key costs in Spark: in the source, as a window, as a grouping.

`python -m bench.spark_compaction --rows 1000000`: exported Arrow files of a topic with two
partitions, once with few keys and once with a key of its own for each other row, in one warm
session. CPU is that of the JVM and its Python workers together; ratios are to `groupBy` with
`max_by`. Never compare with numbers of another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import tempfile
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.spark_reads import BATCH_ROWS, VALUE, session, timed
from octavo.client.exports.run import export_log
from octavo.spark import compact
from tests.spark_memory import MemoryTopic, Row

KEYS_FEW = 4_043
ANSWER = ("count(*)", "sum(offset)", "sum(length(value))")


def build(rows: int, keys: int, root: pathlib.Path) -> None:
    topic = MemoryTopic(partitions=2)
    ledger = BATCH_ROWS * 20
    for first in range(0, rows, ledger):
        groups = [
            [
                Row(b"N%08d" % (n * 7919 % keys), VALUE % (n, n % 97, b"%064x" % (n * n)))
                for n in range(start, min(start + BATCH_ROWS, rows))
            ]
            for start in range(first, min(first + ledger, rows), BATCH_ROWS)
        ]
        topic.append(groups, partition=first // ledger % 2)
    asyncio.run(export_log(topic, "orders", root))


def grouped(frame: DataFrame) -> DataFrame:
    """What one writes without knowing better."""
    row = F.max_by(F.struct(*frame.columns), "offset").alias("row")
    return frame.groupBy("topic", "partition", "key").agg(row).select("row.*")


def measure(spark: SparkSession, root: pathlib.Path, what: str, rounds: int) -> None:
    def load(**given: str) -> DataFrame:
        reader = spark.read.format("octavo").option("path", str(root))
        return reader.option("subscribe", "orders").options(**given).load()

    ways: dict[str, Callable[[], DataFrame]] = {
        "groupBy, max_by": lambda: grouped(load()),
        "compact(df)": lambda: compact(load()),
        "compacted=true": lambda: load(compacted="true"),
    }
    answers = {way: job().selectExpr(*ANSWER).first() for way, job in ways.items()}  # warms up
    assert len(set(answers.values())) == 1, answers
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, job in ways.items():
            found[way].append(timed(lambda job=job: job().selectExpr(*ANSWER)))
    best = {way: tuple(min(x) for x in zip(*times, strict=True)) for way, times in found.items()}
    base_wall, base_cpu = best["groupBy, max_by"]
    for way, (wall, cpu) in best.items():
        print(
            f"{what:28} {way:16} {wall:6.2f} s {cpu:6.2f} CPU s "
            f"{wall / base_wall:5.2f} x wall {cpu / base_cpu:5.2f} x CPU",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of the last row of each key in Spark")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = session()
    for keys in (KEYS_FEW, arguments.rows // 2):
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            build(arguments.rows, keys, root)
            measure(spark, root, f"{arguments.rows} rows, {keys} keys", arguments.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
