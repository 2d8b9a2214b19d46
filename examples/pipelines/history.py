"""All clicks there ever were, then those that come: one query over the lake and the live topic.

    octavo export clicks --to ./lake --roll
    python -m examples.pipelines.history --bootstrap localhost:7650 --lake ./lake --follow

Offsets that are exported are read from files, all others from the cluster, whatever the export and
the retention of the topic do meanwhile: no record is missing, none comes twice.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.pipelines.running import main, parser, records, rows_taken, started


def start(spark: SparkSession, arguments: argparse.Namespace) -> StreamingQuery:
    """Start the query."""
    rows = records(spark, arguments, path=arguments.lake)
    writer = (
        rows.selectExpr("partition", "offset", "timestamp", "cast(value AS string) AS click")
        .writeStream.format("parquet")
        .option("path", arguments.table)
        .option("checkpointLocation", f"{arguments.table}-checkpoint")
    )
    return started(writer, arguments)


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """Until there is nothing left, or with --follow until Ctrl-C."""
    taken = rows_taken(start(spark, arguments))
    print(f"history: took {taken} clicks into {arguments.table}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    made = parser("reads a topic from its export, then live", "clicks", "clicks")
    made.add_argument("--lake", default="./lake", help="folder of `octavo export`")
    made.add_argument("--table", default="./history", help="folder of Parquet files")
    return made.parse_args(argv)


if __name__ == "__main__":
    main("history", parse, run)
