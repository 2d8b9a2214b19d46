"""Damage of exported files and what a Spark query makes of it (P8).

Each trial changes one file of an export, control files too, and asks the running session. It is
*right* when all rows came and *refused* when the query failed with a typed error that names the
file; anything else is a fault. Every third query reads one column only. Data files take nine of
ten trials and are read by frames planned before: the planner reads control files only, and its
worker is the dearest part of a query.
"""

from __future__ import annotations

import asyncio
import collections
import pathlib
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from pyspark.errors import PySparkException

from octavo.client.exports.run import export_log
from tests.spark_memory import ODD_ROWS, MemoryTopic, numbered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPED = ("STORAGE_FAILED", "METADATA_CORRUPT", "UNSUPPORTED_VERSION")
FORMATS = (("arrow", "none"), ("parquet", "zstd"))
NARROW_EVERY = 3
CONTROL_SHARE = 10
"""One trial of so many damages a control file."""

Rows = list[tuple[object, ...]]


def files_below(root: pathlib.Path) -> list[pathlib.Path]:
    """Every file of an export, in a stable order."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def flips(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The bytes with one bit changed, `count` times."""
    rng = random.Random(seed)
    for _ in range(count):
        at = rng.randrange(len(data))
        yield data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]


def cuts(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The bytes cut short: to nothing, by one, and anywhere."""
    rng = random.Random(seed)
    for size in [0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(count))][:count]:
        yield data[:size]


class DamagedExport:
    """One export in one format, damaged and read again and again by one session."""

    def __init__(self, spark: SparkSession, root: pathlib.Path, fmt: str, codec: str) -> None:
        self.seen: collections.Counter[str] = collections.Counter()
        """right, refused, or what went wrong."""
        self._spark = spark
        self._root = root
        topic = MemoryTopic(partitions=2)
        topic.append([numbered(2500), ODD_ROWS[:-1]])
        topic.append([numbered(40)], partition=1)
        asyncio.run(export_log(topic, "orders", root, fmt=fmt, codec=codec))
        self._right = {narrow: self._rows(narrow) for narrow in (False, True)}
        assert len(self._right[False]) == 2540 + len(ODD_ROWS) - 1

    def run(self, flip_count: int, cut_count: int) -> None:
        """Damage each file in turn; the counts are of the whole export."""
        paths = files_below(self._root)
        data_files = [path for path in paths if path.parent == self._root / "orders"]
        control_files = [path for path in paths if path not in data_files]
        planned = {narrow: self._load(narrow) for narrow in (False, True)}
        for narrow, frame in planned.items():
            assert self._rows(narrow, frame) == self._right[narrow]
        for group, frames in ((data_files, planned), (control_files, None)):
            for n, path in enumerate(group):
                data = path.read_bytes()
                for damage, total in ((flips, flip_count), (cuts, cut_count)):
                    few = -(-total // CONTROL_SHARE)
                    count = share(few if frames is None else total - few, n, len(group))
                    self._try(path, damage(data, count, seed=n), frames)
                path.write_bytes(data)
        assert self._rows(False) == self._right[False]

    def _try(
        self, path: pathlib.Path, damaged: Iterator[bytes], frames: Mapping[bool, DataFrame] | None
    ) -> None:
        for n, data in enumerate(damaged):
            path.write_bytes(data)
            narrow = n % NARROW_EVERY == 0
            self.seen[self._verdict(path, narrow, frames[narrow] if frames else None)] += 1

    def _verdict(self, path: pathlib.Path, narrow: bool, frame: DataFrame | None) -> str:
        try:
            found = self._rows(narrow, frame)
        except PySparkException as error:
            said = str(error)
            if path.name in said and any(code in said for code in TYPED):
                return "refused"
            return f"{path.name}: an error that does not name it: {said[-300:]}"
        if found == self._right[narrow]:
            return "right"
        return f"{path.name}: {len(found)} rows, some wrong or missing"

    def _load(self, narrow: bool) -> DataFrame:
        reader = self._spark.read.format("octavo").option("path", str(self._root))
        reader = reader.option("subscribe", "orders").option("includeHeaders", "true")
        return (reader.schema("offset bigint") if narrow else reader).load()

    def _rows(self, narrow: bool, frame: DataFrame | None = None) -> Rows:
        table = (self._load(narrow) if frame is None else frame).toArrow()
        rows = cast("list[dict[str, object]]", table.to_pylist())
        return sorted(tuple(repr(value) for value in row.values()) for row in rows)

    def faults(self) -> dict[str, int]:
        """What came out and must not, with its count."""
        return {what: n for what, n in self.seen.items() if what not in ("right", "refused")}


def share(total: int, n: int, parts: int) -> int:
    """The n-th of `parts` shares that sum to `total`."""
    return total * (n + 1) // parts - total * n // parts
