"""Changes of rows become a table of Parquet files: the last row of each key, without deleted ones.

    python examples/pipelines/table.py --bootstrap localhost:7650

Each batch of the stream makes a new version of the table, a folder of its own; the file `_current`
names the newest that is whole. Who reads a version is not disturbed by the next; of older ones only
the one before is kept. A batch that runs again after a crash finds its own version, so each change
counts once.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from octavo.spark import compact

ROW = "name string, city string"


class Table:
    """Versions of a table below a folder, which holds the checkpoint as well: they go together."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self._pointer = root / "_current"

    def current(self) -> int | None:
        """The newest whole version; None before the first."""
        return int(self._pointer.read_text()) if self._pointer.exists() else None

    def version(self, number: int) -> str:
        """Its folder."""
        return str(self.root / f"version={number}")

    def apply(self, batch: DataFrame, number: int) -> None:
        """Make the version `number` of the one before and some changes."""
        before = self.current()
        if before is not None and before >= number:
            return  # it was made, and Spark did not get to know
        row = F.from_json(F.col("value").cast("string"), ROW).alias("row")
        changes = compact(batch).where("key IS NOT NULL")
        changes = changes.select(F.col("key").cast("string").alias("id"), "value", row).persist()
        rows = changes.where("value IS NOT NULL").select("id", "row.*")
        if before is not None:
            old = batch.sparkSession.read.parquet(self.version(before))
            rows = old.join(changes, "id", "left_anti").unionByName(rows)
        rows.coalesce(1).write.mode("overwrite").parquet(self.version(number))
        changes.unpersist()
        new = self.root / "_current.new"
        new.write_text(str(number))
        new.replace(self._pointer)
        for folder in self.root.glob("version=*"):
            if int(folder.name.partition("=")[2]) not in (before, number):
                shutil.rmtree(folder)


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    table = Table(arguments.table)
    changes = (
        spark.readStream.format("octavo")
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = changes.writeStream.foreachBatch(table.apply)
    writer = writer.option("checkpointLocation", str(table.root / "_checkpoint"))
    if arguments.follow:
        return writer.trigger(processingTime="10 seconds").start()
    return writer.trigger(availableNow=True).start()


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    query = start(spark, arguments)
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    while not query.awaitTermination(1):
        if interrupted.is_set():
            query.stop()  # the next run goes on where this one was
    taken = sum(batch.numInputRows for batch in query.recentProgress)
    table = Table(arguments.table)
    current = table.current()
    if current is None:
        print(f"table: {arguments.source} is empty")
        return
    rows = spark.read.parquet(table.version(current)).count()
    print(f"table: took {taken} changes; {table.version(current)} holds {rows} rows")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="keeps a table of the last row of each key")
    parser.add_argument("--bootstrap", default="localhost:7650")
    parser.add_argument("--source", default="customers", help="topic of changes, by key")
    parser.add_argument("--table", default="./customers", type=pathlib.Path, help="folder")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("table").config("spark.sql.shuffle.partitions", "4")
    run(builder.getOrCreate(), parse())
