"""What other programs make of an export: the same rows and types, by their usual calls."""

from __future__ import annotations

import asyncio
import importlib
import pathlib
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import dataset

from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.layout import folder_of, topic_of
from octavo.client.exports.run import export_log
from octavo.runtime.errors import ConfigError
from octavo.spark.exported import ExportedTopics
from octavo.spark.options import ReadOptions
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, numbered

ODD_NAMES = [
    ".hidden",
    "..",
    "_export.json",
    "_manifest",
    "_octavo",
    "partition=0",
    "a.b",
    "%2Ehidden",
    "x" * 249,
]
EXPECTED = Counter({0: 10, 1: 10, 2: 10})


def load(name: str) -> Any:
    """A library of the development environment that ships no types of its own."""
    return importlib.import_module(name)


def table(folder: str, **options: object) -> pa.Table:
    """A folder as pyarrow.dataset reads it."""
    found: pa.Table = load("pyarrow.dataset").dataset(folder, **options).to_table()
    return found


def export(root: pathlib.Path, fmt: str) -> str:
    topic = MemoryTopic(partitions=3)
    for partition in range(3):
        topic.append([numbered(10)], partition)
    asyncio.run(export_log(topic, "orders", root, fmt=fmt))
    return str(root / "orders")


def test_pyarrow_opens_both_formats(tmp_path: pathlib.Path) -> None:
    for fmt, reader in (("arrow", "ipc"), ("parquet", "parquet")):
        folder = export(tmp_path / fmt, fmt)
        for partitioning in (None, "hive"):
            rows = table(folder, format=reader, partitioning=partitioning)
            assert rows.schema.equals(arrow_schema(EXPORTED))
            assert Counter(rows["partition"].to_pylist()) == EXPECTED
    rows = load("pyarrow.parquet").read_table(str(tmp_path / "parquet" / "orders"))
    assert Counter(rows["partition"].to_pylist()) == EXPECTED


def test_pandas_opens_the_parquet_folder(tmp_path: pathlib.Path) -> None:
    frame = load("pandas").read_parquet(export(tmp_path, "parquet"))
    assert list(frame.columns) == list(EXPORTED)
    assert Counter(frame["partition"]) == EXPECTED


def test_polars_opens_both_folders(tmp_path: pathlib.Path) -> None:
    polars = load("polars")
    for fmt, scan in (("arrow", polars.scan_ipc), ("parquet", polars.scan_parquet)):
        frame = scan(export(tmp_path / fmt, fmt)).collect()
        assert frame.columns == list(EXPORTED)
        assert Counter(frame["partition"].to_list()) == EXPECTED


def test_duckdb_opens_the_parquet_files(tmp_path: pathlib.Path) -> None:
    folder = export(tmp_path, "parquet")
    found = load("duckdb").sql(
        f"select partition, count(*) from read_parquet('{folder}/*.parquet') group by 1"
    )
    assert dict(found.fetchall()) == dict(EXPECTED)


def test_duckdb_reads_arrow_through_a_dataset(tmp_path: pathlib.Path) -> None:
    duckdb = load("duckdb")
    found = dataset.dataset(export(tmp_path, "arrow"), format="ipc")
    con = duckdb.connect()
    con.register("orders", found)
    assert con.sql('select count(distinct (partition, "offset")) from orders').fetchall() == [(30,)]


def test_a_topic_folder_holds_data_files_only(tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(export(tmp_path, "arrow"))
    assert all(path.suffix == ".arrow" and path.is_file() for path in folder.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_octavo", "orders"]


Read = Callable[[str], list[dict[str, Any]]]
"""The rows of a topic's folder, as one program gives them, in any order."""


def _dataset(fmt: str) -> Read:
    return lambda folder: table(folder, format=fmt).to_pylist()


def _pandas_parquet(folder: str) -> list[dict[str, Any]]:
    pandas = load("pandas")
    return rows_of_frame(pandas.read_parquet(folder, dtype_backend="pyarrow"))


def _pandas_arrow(folder: str) -> list[dict[str, Any]]:
    pandas = load("pandas")
    files = sorted(pathlib.Path(folder).iterdir())
    return rows_of_frame(
        pandas.concat([pandas.read_feather(f, dtype_backend="pyarrow") for f in files])
    )


def rows_of_frame(frame: Any) -> list[dict[str, Any]]:
    return cast(
        "list[dict[str, Any]]",
        load("pyarrow").Table.from_pandas(frame, preserve_index=False).to_pylist(),
    )


def _polars(scan: str) -> Read:
    return lambda folder: getattr(load("polars"), scan)(folder).collect().to_dicts()


def _duckdb_parquet(folder: str) -> list[dict[str, Any]]:
    found = load("duckdb").sql(f"select * from read_parquet('{folder}/*.parquet')")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def _duckdb_arrow(folder: str) -> list[dict[str, Any]]:
    con = load("duckdb").connect()
    con.register("orders", dataset.dataset(folder, format="ipc"))
    found = con.sql("select * from orders")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


PROGRAMS: dict[str, tuple[str, Read]] = {
    "pyarrow.dataset arrow": ("arrow", _dataset("ipc")),
    "pyarrow.dataset parquet": ("parquet", _dataset("parquet")),
    "pandas arrow": ("arrow", _pandas_arrow),
    "pandas parquet": ("parquet", _pandas_parquet),
    "polars arrow": ("arrow", _polars("scan_ipc")),
    "polars parquet": ("parquet", _polars("scan_parquet")),
    "duckdb arrow": ("arrow", _duckdb_arrow),
    "duckdb parquet": ("parquet", _duckdb_parquet),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_nulls_tombstones_and_headers_are_the_same(
    tmp_path: pathlib.Path, program: str
) -> None:
    """Null is not empty, a tombstone is no empty value, headers keep their order and doubles."""
    fmt, read = PROGRAMS[program]
    topic = MemoryTopic(partitions=2)
    topic.append([ODD_ROWS], 0)
    topic.append([numbered(5)], 1)
    asyncio.run(export_log(topic, "orders", tmp_path, fmt=fmt))
    found = sorted(
        read(str(tmp_path / "orders")), key=lambda row: (row["partition"], row["offset"])
    )
    assert list(found[0]) == list(EXPORTED)
    assert [(row["partition"], row["offset"]) for row in found] == [
        *((0, n) for n in range(len(ODD_ROWS))),
        *((1, n) for n in range(5)),
    ]
    for row, written in zip(found, [*ODD_ROWS, *numbered(5)], strict=True):
        assert (row["key"], row["value"], row["topic"]) == (written.key, written.value, "orders")
        headers = row["headers"]
        pairs = None if headers is None else [(one["key"], one["value"]) for one in headers]
        assert pairs == (list(written.headers) or None)
        stamp: datetime = row["timestamp"]
        assert round(stamp.timestamp() * 1000) == written.timestamp_ms


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_every_topic_reads_back_beside_others(tmp_path: pathlib.Path, name: str) -> None:
    for each in {"a", name}:
        topic = MemoryTopic(each)
        topic.append([[Row(b"k", each.encode())]])
        await export_log(topic, each, tmp_path)
    for each in {"a", name}:
        options = ReadOptions.parse({"path": str(tmp_path), "subscribe": each})
        found = ExportedTopics(options).load()
        assert list(found) == [each]
        assert found[each].state.files
    by_pattern = ExportedTopics(
        ReadOptions.parse({"path": str(tmp_path), "subscribePattern": "(?s).*"})
    ).load()
    assert set(by_pattern) == {"a", name}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_folders_are_neither_hidden_nor_a_column_nor_shared(name: str) -> None:
    folder = folder_of(name)
    assert topic_of(folder) == name
    assert folder[0] not in "._"
    assert "=" not in folder
    assert len(folder.encode()) <= 255
    assert len({folder_of(each) for each in ODD_NAMES}) == len(ODD_NAMES)


async def test_the_folder_of_one_topic_is_no_root(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(3)])
    await export_log(topic, "orders", tmp_path)
    options = ReadOptions.parse({"path": str(tmp_path / "orders"), "subscribe": "orders"})
    with pytest.raises(ConfigError, match="folder of one topic"):
        ExportedTopics(options).load()


def test_arrow_types_are_what_pyarrow_calls_them(tmp_path: pathlib.Path) -> None:
    rows = table(export(tmp_path, "arrow"), format="ipc")
    assert rows.schema.field("partition").type == pa.int32()
    assert rows.schema.field("offset").type == pa.int64()
