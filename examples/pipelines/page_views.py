"""Views of each page in each ten minutes: windowed aggregates back into a topic, exactly once.

    python examples/pipelines/page_views.py --bootstrap localhost:7650

A window is written once, when no click can belong to it any more: ten minutes (the watermark)
behind the newest click. The topic is compacted by key: it keeps the last window of each page for
ever.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from octavo import Client
from octavo.errors import TopicAlreadyExists

CLICK = "id string, user string, page string, at_ms bigint"


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    raw = (
        spark.readStream.format("octavo")
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    clicks = raw.select(F.from_json(F.col("value").cast("string"), CLICK).alias("click"))
    views = (
        clicks.select("click.page", F.timestamp_millis("click.at_ms").alias("at"))
        .withWatermark("at", "10 minutes")
        .groupBy("page", F.window("at", "10 minutes").alias("window"))
        .agg(F.count("*").alias("views"))
        .selectExpr("page", "window.start", "views")
    )
    writer = (
        views.select(F.col("page").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("octavo")
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.target)
        .option("checkpointLocation", arguments.checkpoint)
    )
    if arguments.follow:
        return writer.trigger(processingTime="1 second").start()
    return writer.trigger(availableNow=True).start()


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    with Client(arguments.bootstrap) as client:
        try:
            compacted = {"cleanup.policy": "compact"}
            client.admin.create_topic(arguments.target, partitions=2, config=compacted)
        except TopicAlreadyExists:
            pass
        query = start(spark, arguments)
        interrupted = threading.Event()
        signal.signal(signal.SIGINT, lambda *_: interrupted.set())
        while not query.awaitTermination(1):
            if interrupted.is_set():
                query.stop()  # the next run goes on where this one was
        taken = sum(batch.numInputRows for batch in query.recentProgress)
        there = sum(end or 0 for end in client.admin.list_offsets(arguments.target).values())
        print(f"page views: took {taken} clicks; {arguments.target} has had {there} windows")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="counts the views of each page")
    parser.add_argument("--bootstrap", default="localhost:7650")
    parser.add_argument("--source", default="clicks-once", help="topic of clicks without repeats")
    parser.add_argument("--target", default="page-views", help="topic of windows, by page")
    parser.add_argument("--checkpoint", default="./checkpoints/page-views")
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("page-views").config("spark.sql.shuffle.partitions", "4")
    run(builder.getOrCreate(), parse())
