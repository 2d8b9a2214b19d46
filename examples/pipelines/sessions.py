"""Clicks become sessions: one record for each visit of a user, exactly once.

    python -m examples.pipelines.sessions --bootstrap localhost:7650

A session ends when its user does nothing for ten minutes. It is written when no click can belong to
it any more, ten minutes (the watermark) behind the newest click: the last visits wait for later
ones.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
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
    sessions = (
        clicks(spark, arguments)
        .groupBy("user", F.session_window("at", "10 minutes").alias("session"))
        .agg(
            F.count("*").alias("clicks"),
            F.min_by("page", "at").alias("first_page"),
            F.max("at").alias("last_click"),
        )
        .selectExpr("user", "session.start", "last_click", "clicks", "first_page")
    )
    rows = sessions.select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
    return started(into_topic(rows, arguments), arguments)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    with Client(arguments.bootstrap) as client:
        create_topic(client, arguments.target)
        taken = rows_taken(start(spark, arguments))
        there = count(client, arguments.target)
    print(f"sessions: took {taken} clicks; {arguments.target} holds {there}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    made = parser("puts clicks together to sessions", "clicks-once", "clicks without repeats")
    made.add_argument("--target", default="sessions", help="topic of sessions")
    made.add_argument("--checkpoint", default="./checkpoints/sessions")
    return made.parse_args(argv)


if __name__ == "__main__":
    main("sessions", parse, run)
