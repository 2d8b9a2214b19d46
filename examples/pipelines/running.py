"""What the pipelines share: a topic as a stream, a topic as a target, and one run of a query.

A program reads like this: `parse` its command line, `start` its query, say what came of it. The
rest is here: where records come from, how the query is triggered, Ctrl-C, and one line for what
goes wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from octavo import Client
from octavo.errors import OctavoError, TopicAlreadyExists

CLICK = "id string, user string, page string, at_ms bigint"
"""The value of a record of the topic of clicks, as JSON."""
INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""

_interrupted = threading.Event()


def parser(description: str, source: str, of: str) -> argparse.ArgumentParser:
    """A command line with what all pipelines take; `source` holds `of` unless told otherwise."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--bootstrap", default="localhost:7650", help="a broker: host:port")
    made.add_argument("--source", default=source, help=f"topic of {of}")
    made.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    return made


def records(spark: SparkSession, arguments: argparse.Namespace, **options: str) -> DataFrame:
    """The source topic as a stream, from its start."""
    return (
        spark.readStream.format("octavo")
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("subscribe", arguments.source)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def clicks(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The columns of CLICK, and the time `at`: what is ten minutes behind the newest is late."""
    click = F.from_json(F.col("value").cast("string"), CLICK).alias("click")
    found = records(spark, arguments).select(click).select("click.*")
    return found.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", "10 minutes")


def into_topic(rows: DataFrame, arguments: argparse.Namespace) -> DataStreamWriter:
    """Columns `key` and `value` into the target topic, each row once for this checkpoint."""
    return (
        rows.writeStream.format("octavo")
        .option("octavo.bootstrap.servers", arguments.bootstrap)
        .option("topic", arguments.target)
        .option("checkpointLocation", arguments.checkpoint)
    )


def started(
    writer: DataStreamWriter, arguments: argparse.Namespace, every: str = "1 second"
) -> StreamingQuery:
    """With --follow a query that goes on; else one that ends when it has what there is now."""
    if arguments.follow:
        return writer.trigger(processingTime=every).start()
    return writer.trigger(availableNow=True).start()


def create_topic(client: Client, name: str, **config: str) -> None:
    """The target, unless it is there."""
    try:
        client.admin.create_topic(name, partitions=2, config=config)
    except TopicAlreadyExists:
        pass


def count(client: Client, topic: str) -> int:
    """How many records the topic has had."""
    return sum(end or 0 for end in client.admin.list_offsets(topic, "latest").values())


def stop_on_interrupt() -> None:
    """Ctrl-C asks the query to stop, instead of tearing Spark's connection; a second one does."""

    def asked(_signal: int, _frame: FrameType | None) -> None:
        if _interrupted.is_set():
            raise KeyboardInterrupt
        _interrupted.set()

    signal.signal(signal.SIGINT, asked)


def rows_taken(query: StreamingQuery) -> int:
    """Wait until the query has ended, or Ctrl-C ends it; the rows that its newest 100 batches took.

    Raises StreamingQueryException: it failed.
    """
    stop_on_interrupt()
    while not _interrupted.is_set() and not query.awaitTermination(1):
        pass
    if _interrupted.is_set():
        query.stop()  # the next run goes on where this one was
    return sum(batch.numInputRows for batch in query.recentProgress)


def main(
    name: str,
    parse: Callable[[], argparse.Namespace],
    run: Callable[[SparkSession, argparse.Namespace], None],
) -> None:
    """A program from its command line to its exit code: what goes wrong is told in one line."""
    arguments = parse()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        with Client(arguments.bootstrap) as client:  # before Spark, which takes its time
            client.connect()
            client.admin.describe_topic(arguments.source)
        builder = SparkSession.builder.appName(name).config("spark.sql.shuffle.partitions", "4")
        builder = builder.config("spark.log.level", "OFF")  # what fails is told below
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        stop_on_interrupt()
        spark = builder.getOrCreate()
        stop_on_interrupt()  # Spark has set a handler of its own
        if _interrupted.is_set():
            raise KeyboardInterrupt
        run(spark, arguments)
    except OctavoError as error:
        sys.exit(f"{name}: {error}")
    except PySparkException as error:
        sys.exit(f"{name}: {reason(error)}")
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def reason(error: PySparkException) -> str:
    """The line of a failed query that says why: that of Octavo if there is one, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("octavo.")]
    return (ours or lines)[-1 if ours else 0]
