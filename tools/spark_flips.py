"""Flipped bits and cuts of exported files, each read by Spark: how many gave wrong or fewer rows.

`python -m tools.spark_flips --flips 2000 --cuts 50` damages an export of each format so often, data
and control files alike, and reads it in one session after each. Ends with a line per format; exit
code 1 when a query gave wrong rows or an error that does not name the file.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

from pyspark.sql import SparkSession

from tests.fix_spark import SPARK_CONFIG, java_problem
from tests.spark_damage import FORMATS, DamagedExport

DAEMON = """
import os

import octavo.spark.reading
import pyarrow.parquet
from pyspark import daemon

os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a worker that refused dies with a traceback
daemon.manager()
"""
"""A refused query ends its worker; the next one is forked from a daemon that has all modules."""


def session(folder: pathlib.Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (folder / "spark_flips_daemon.py").write_text(DAEMON)
    os.environ["PYTHONPATH"] = str(folder)
    config = {
        **SPARK_CONFIG,
        "spark.python.daemon.module": "spark_flips_daemon",
        "spark.log.level": "OFF",  # each refused query would print the worker's traceback
    }
    builder = SparkSession.Builder()
    for key, value in config.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="damage exported files and read them with Spark")
    parser.add_argument("--flips", type=int, default=2_000, help="for each format")
    parser.add_argument("--cuts", type=int, default=50, help="for each format")
    parser.add_argument("--format", choices=[fmt for fmt, _ in FORMATS], help="only this one")
    arguments = parser.parse_args()
    problem = java_problem()
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
        return 2
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        spark = session(pathlib.Path(name))
        for fmt, codec in FORMATS:
            if arguments.format in (None, fmt):
                export = DamagedExport(spark, pathlib.Path(name, fmt), fmt, codec)
                export.run(arguments.flips, arguments.cuts)
                bad += report(f"{fmt}/{codec}", export)
        spark.stop()
    return 1 if bad else 0


def report(what: str, export: DamagedExport) -> int:
    """Write the line of one format; returns how many trials went wrong."""
    faults = export.faults()
    wrong = sum(faults.values())
    sys.stdout.write(
        f"spark {what}: tried={export.seen.total()} right={export.seen['right']} "
        f"refused={export.seen['refused']} wrong={wrong}\n"
    )
    for how, count in faults.items():
        sys.stdout.write(f"  {count} x {how}\n")
    sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
