"""All clicks there ever were, then those that come: one query over the lake and the live topic.

    octavo export clicks --to ./lake --roll
    python examples/pipelines/history.py --bootstrap localhost:7650 --lake ./lake --follow

Offsets that are exported are read from files, all others from the cluster, whatever the export and
the retention of the topic do meanwhile: no record is missing, none comes twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    rows = (
        spark.readStream.format("octavo")
        .option("path", arguments.lake)
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        rows.selectExpr("partition", "offset", "timestamp", "cast(value AS string) AS click")
        .writeStream.format("parquet")
        .option("path", arguments.table)
        .option("checkpointLocation", f"{arguments.table}-checkpoint")
    )
    if arguments.follow:
        return writer.trigger(processingTime="1 second").start()
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
    print(f"history: took {taken} clicks into {arguments.table}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="reads a topic from its export, then live")
    parser.add_argument("--bootstrap", default="localhost:7650")
    parser.add_argument("--lake", default="./lake", help="folder of `octavo export`")
    parser.add_argument("--source", default="clicks", help="topic")
    parser.add_argument("--table", default="./history", help="folder of Parquet files")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    run(SparkSession.builder.appName("history").getOrCreate(), parse())
