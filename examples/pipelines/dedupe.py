"""Clicks that were sent twice become one: a topic into a topic, exactly once.

    python -m examples.pipelines.dedupe --bootstrap localhost:7650

Two clicks with one id are one click if they lie within ten minutes of each other; for so long Spark
keeps ids in its checkpoint. What comes later than ten minutes behind the newest click is dropped.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.pipelines.running import (
    clicks,
    count,
    create_topic,
    into_topic,
    main,
    parser,
    rows_taken,
    started,
)
from octavo import Client


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    once = clicks(spark, arguments).dropDuplicatesWithinWatermark(["id"])
    rows = once.selectExpr("user AS key", "to_json(struct(id, user, page, at_ms)) AS value")
    return started(into_topic(rows, arguments), arguments)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    with Client(arguments.bootstrap) as client:
        create_topic(client, arguments.target)
        taken = rows_taken(start(spark, arguments))
        there = count(client, arguments.target)
    print(f"dedupe: took {taken} clicks; {arguments.target} holds {there}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    made = parser("removes clicks that were sent twice", "clicks", "clicks")
    made.add_argument("--target", default="clicks-once", help="topic of clicks without repeats")
    made.add_argument("--checkpoint", default="./checkpoints/dedupe")
    return made.parse_args(argv)


if __name__ == "__main__":
    main("dedupe", parse, run)
