"""Changes of rows become a table of Parquet files: the last row of each key, without deleted ones.

    python -m examples.pipelines.table --bootstrap localhost:7650

Each batch of the stream makes a new version of the table, a folder of its own; the file `_current`
names the newest that is whole. Who reads a version is not disturbed by the next; of older ones only
the one before is kept. A batch that runs again after a crash finds its own version, so each change
counts once.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from examples.pipelines.running import main, parser, records, rows_taken, started
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
    writer = records(spark, arguments).writeStream.foreachBatch(table.apply)
    writer = writer.option("checkpointLocation", str(table.root / "_checkpoint"))
    return started(writer, arguments, every="10 seconds")


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    taken = rows_taken(start(spark, arguments))
    table = Table(arguments.table)
    current = table.current()
    if current is None:
        print(f"table: {arguments.source} is empty")
        return
    rows = spark.read.parquet(table.version(current)).count()
    print(f"table: took {taken} changes; {table.version(current)} holds {rows} rows")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    made = parser("keeps a table of the last row of each key", "customers", "changes, by key")
    made.add_argument("--table", default="./customers", type=pathlib.Path, help="folder")
    return made.parse_args(argv)


if __name__ == "__main__":
    main("table", parse, run)
