"""Views of each page in each ten minutes: windowed aggregates back into a topic, exactly once.

    python -m examples.pipelines.page_views --bootstrap localhost:7650

A window is written once, when no click can belong to it any more: ten minutes (the watermark)
behind the newest click. The topic is compacted by key: it keeps the last window of each page for
ever.
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
    views = (
        clicks(spark, arguments)
        .groupBy("page", F.window("at", "10 minutes").alias("window"))
        .agg(F.count("*").alias("views"))
        .selectExpr("page", "window.start", "views")
    )
    rows = views.select(F.col("page").alias("key"), F.to_json(F.struct("*")).alias("value"))
    return started(into_topic(rows, arguments), arguments)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    with Client(arguments.bootstrap) as client:
        create_topic(client, arguments.target, **{"cleanup.policy": "compact"})
        taken = rows_taken(start(spark, arguments))
        there = count(client, arguments.target)
    print(f"page views: took {taken} clicks; {arguments.target} has had {there} windows")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    made = parser("counts the views of each page", "clicks-once", "clicks without repeats")
    made.add_argument("--target", default="page-views", help="topic of windows, by page")
    made.add_argument("--checkpoint", default="./checkpoints/page-views")
    return made.parse_args(argv)


if __name__ == "__main__":
    main("page_views", parse, run)
