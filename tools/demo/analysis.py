"""The analysis part of the demo.

The same aggregate from the bookies and from the export, by Spark.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tools.demo.flights import Totals
from tools.demo.stream import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VALUE = "carrier string, distance bigint, arr_delay bigint"


def session() -> SparkSession:
    """A small local session; workers use this interpreter."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("octavo-demo")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # A job of seconds: the optimising compiler costs more than it gives.
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .getOrCreate()
    )


def from_bookies(spark: SparkSession, bootstrap: str) -> tuple[Totals, int]:
    """Read the topic live: closed ledgers straight from the bookies, the open tail by LAC reads."""
    frame = (
        spark.read.format("octavo")
        .option("octavo.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .load()
    )
    return _totals(frame)


def from_export(spark: SparkSession, path: str) -> tuple[Totals, int]:
    """Read the exported Arrow files."""
    frame = spark.read.format("octavo").option("path", path).option("subscribe", TOPIC).load()
    return _totals(frame)


def _totals(frame: DataFrame) -> tuple[Totals, int]:
    rows = (
        frame.selectExpr(f"from_json(cast(value as string), '{_VALUE}') as f")
        .selectExpr("f.carrier", "f.distance", "coalesce(f.arr_delay, 0) as delay")
        .groupBy("carrier")
        .agg({"*": "count", "distance": "sum", "delay": "sum"})
        .collect()
    )
    found = {
        str(row["carrier"]): (
            int(row["count(1)"]),
            int(row["sum(distance)"]),
            int(row["sum(delay)"]),
        )
        for row in rows
    }
    return found, sum(count for count, _, _ in found.values())
