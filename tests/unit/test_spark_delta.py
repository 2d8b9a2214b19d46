"""A Delta table over exported Parquet files: the same rows, once, whoever dies when (ADR 71)."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections import Counter
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.delta_table import LOG_FOLDER, DeltaLog, statistics
from octavo.client.exports.layout import folder_of
from octavo.client.exports.manifest import Manifest, ManifestState
from octavo.client.exports.reports import RunOptions
from octavo.client.exports.run import TopicExport, export_log
from octavo.client.exports.tree import LocalTree
from octavo.runtime.errors import ConfigError, StorageFailed
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, numbered
from tests.tidy_rules import ROOT
from tests.unit.test_spark_export_joins import Stopped, StoppingTree

ABSURD = Row(b"absurd", b"time", timestamp_ms=2**62)


def sample() -> MemoryTopic:
    topic = MemoryTopic(partitions=2)
    topic.append([numbered(10)])
    topic.append([[*ODD_ROWS[:-1], ABSURD]], 1)
    return topic


def table_of(root: pathlib.Path, topic: str = "orders") -> Any:
    return DeltaTable((root / folder_of(topic)).as_uri())


def state_of(root: pathlib.Path) -> ManifestState:
    return Manifest(LocalTree(root), "orders").load()


def offsets_of(rows: pa.Table) -> Counter[tuple[int, int]]:
    pairs = zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    return Counter(cast("list[tuple[int, int]]", list(pairs)))


def rows_of(root: pathlib.Path) -> pa.Table:
    found: pa.Table = table_of(root).to_pyarrow_table()
    return found


def check_mirror(root: pathlib.Path, topic: MemoryTopic) -> None:
    """The table names the manifest's files, and holds each record once."""
    state, table = state_of(root), table_of(root)
    names = [uri.rpartition("/")[2] for uri in table.file_uris()]
    assert sorted(names) == sorted(state.files)
    assert table.transaction_version(f"octavo-{topic.topic_id}") == state.version
    wanted = {(part, offset): 1 for part, rows in topic.rows.items() for offset in rows}
    assert offsets_of(rows_of(root)) == wanted


async def export(topic: MemoryTopic, root: pathlib.Path, *, table: bool = True) -> None:
    await export_log(topic, topic.topic, root, fmt="parquet", table=table)


async def test_the_table_is_the_log_and_grows_with_it(tmp_path: pathlib.Path) -> None:
    topic = sample()
    await export(topic, tmp_path)
    check_mirror(tmp_path, topic)
    before = set((tmp_path / "orders").glob("*.parquet"))
    assert len(before) == 2, "nothing is copied"
    version = table_of(tmp_path).version()
    await export(topic, tmp_path)
    assert table_of(tmp_path).version() == version, "a run with nothing new commits nothing"
    topic.append([numbered(5, 10)])
    await export(topic, tmp_path)
    check_mirror(tmp_path, topic)
    assert table_of(tmp_path).version() == version + 1


async def test_types_nulls_headers_and_odd_times_by_other_programs(tmp_path: pathlib.Path) -> None:
    await export(sample(), tmp_path)
    rows = rows_of(tmp_path)
    assert rows.schema.names == list(EXPORTED)
    for name in EXPORTED[:-1]:
        assert rows.schema.field(name).type == arrow_schema(EXPORTED).field(name).type
    wanted = [row.key for row in [*ODD_ROWS[:-1], ABSURD]]
    load: Any = importlib.import_module
    uri = (tmp_path / "orders").as_uri()
    frame = load("polars").scan_delta(uri).filter(load("polars").col("partition") == 1)
    assert frame.sort("offset").collect()["key"].to_list() == wanted
    con = load("duckdb").connect()
    con.register("orders", table_of(tmp_path).to_pyarrow_dataset())
    found = con.sql('select key, value from orders where partition = 1 order by "offset"')
    assert [key for key, _ in found.fetchall()] == wanted
    assert con.sql("select count(*) from orders where value is null").fetchall() == [(2,)]
    headers = con.sql('select headers from orders where partition = 1 order by "offset"').fetchall()
    assert [h and [(i["key"], i["value"]) for i in h] for (h,) in headers] == [
        list(row.headers) or None for row in [*ODD_ROWS[:-1], ABSURD]
    ]


async def test_statistics_let_readers_leave_files_out(tmp_path: pathlib.Path) -> None:
    await export(sample(), tmp_path)
    first, second = sorted(state_of(tmp_path).files.values(), key=lambda entry: entry.partition)
    assert json.loads(statistics(first)) == {
        "numRecords": 10,
        "minValues": {"partition": 0, "offset": 0, "timestamp": "2023-11-14T22:13:20.000Z"},
        "maxValues": {"partition": 0, "offset": 9, "timestamp": "2023-11-14T22:13:20.009Z"},
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }
    assert "timestamp" not in json.loads(statistics(second))["minValues"], "no year 292277"
    (tmp_path / "orders" / second.file).unlink()  # so reading it would be an error
    found = table_of(tmp_path).to_pyarrow_table(filters=[("partition", "=", 0)])
    assert found.num_rows == 10


async def test_joins_are_one_commit_and_no_change_of_data(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    tree = LocalTree(tmp_path)
    for number in range(6):
        topic.append([numbered(40, number * 40)])
        await export(topic, tmp_path)
    # Without asking for the table: one that is there is kept in any case.
    await TopicExport(topic, "orders", tree, fmt="parquet").run(RunOptions(join_bytes=20_000))
    assert len(state_of(tmp_path).files) < 6
    check_mirror(tmp_path, topic)
    logs = sorted((tmp_path / "orders" / LOG_FOLDER).glob("*.json"))
    actions = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    kinds = Counter(next(iter(action)) for action in actions)
    assert kinds["remove"] > kinds["add"] == 1
    assert not any(a[k]["dataChange"] for a in actions for k in ("add", "remove") if k in a)


async def test_a_run_that_died_anywhere_leaves_nothing_twice(tmp_path: pathlib.Path) -> None:
    """The tree's machine stops before each of its renames and links; then a run goes on."""
    for after in range(100):
        topic, root = sample(), tmp_path / str(after)
        try:
            tree = StoppingTree(root, after)
            await export_log(topic, "orders", root, fmt="parquet", table=True, tree=tree)
        except Stopped:
            pass
        else:
            assert after > 3
            return
        await export(topic, root)
        check_mirror(root, topic)
    pytest.fail("the run never got through")


KILLED = """
import asyncio, os, pathlib, signal, sys
from octavo.client.exports.delta_table import DeltaLog
from tests.unit.test_spark_delta import export, sample

when, commit = sys.argv[2], DeltaLog._commit

def killed(*args):
    if when == "after":
        commit(*args)
    os.kill(os.getpid(), signal.SIGKILL)

DeltaLog._commit = killed
asyncio.run(export(sample(), pathlib.Path(sys.argv[1])))
"""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_killed_between_manifest_and_table(tmp_path: pathlib.Path, when: str) -> None:
    """kill -9 with a manifest version that the table does not know, or has just got."""
    words = [sys.executable, "-c", KILLED, str(tmp_path), when]
    work = await asyncio.to_thread(
        subprocess.run, words, timeout=180, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert work.returncode == -signal.SIGKILL
    topic = sample()
    assert state_of(tmp_path).version > 0
    done = table_of(tmp_path).transaction_version(f"octavo-{topic.topic_id}")
    assert (done is None) is (when == "before")
    await export(topic, tmp_path)
    check_mirror(tmp_path, topic)


async def test_two_exporters_commit_each_file_once(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic(partitions=3)
    for number in range(4):
        for partition in range(3):
            topic.append([numbered(20, number * 20)], partition, size_bytes=1 << 25)
    await asyncio.gather(*(export(topic, tmp_path) for _ in range(3)))
    check_mirror(tmp_path, topic)


async def test_a_table_that_somebody_else_changed_is_refused_and_made_anew(
    tmp_path: pathlib.Path,
) -> None:
    topic = MemoryTopic()
    for number in range(3):
        topic.append([numbered(10, number * 10)], size_bytes=1 << 25)
    await export(topic, tmp_path)
    table_of(tmp_path).optimize.compact()
    with pytest.raises(ConfigError, match="somebody else") as caught:
        await export(topic, tmp_path)
    assert LOG_FOLDER in (caught.value.hint or "")
    shutil.rmtree(tmp_path / "orders" / LOG_FOLDER)
    await export(topic, tmp_path)
    check_mirror(tmp_path, topic)


async def test_a_damaged_table_log_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    await export(sample(), tmp_path)
    log = tmp_path / "orders" / LOG_FOLDER / f"{1:020d}.json"
    log.write_bytes(log.read_bytes()[:-40])
    with pytest.raises(StorageFailed, match=str(tmp_path / "orders")):
        await export(sample(), tmp_path)


def test_arrow_files_make_no_table(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="Parquet") as caught:
        TopicExport(sample(), "orders", LocalTree(tmp_path), table=True)
    assert "--format parquet" in (caught.value.hint or "")


@pytest.mark.parametrize("name", [".hidden", "partition=0", "%2Ehidden"])
def test_folders_with_escapes_are_refused_before_anything_is_written(
    tmp_path: pathlib.Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="escapes"):
        TopicExport(MemoryTopic(name), name, LocalTree(tmp_path), fmt="parquet", table=True)
    assert not list(tmp_path.iterdir())


async def test_a_root_with_spaces_and_other_letters(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "my läke #1"
    await export(sample(), root)
    check_mirror(root, sample())


def test_the_table_catches_up_with_many_versions_in_one_commit(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    for number in range(4):
        topic.append([numbered(10, number * 10)], size_bytes=1 << 25)
    asyncio.run(export(topic, tmp_path, table=False))
    assert state_of(tmp_path).version == 4
    DeltaLog(LocalTree(tmp_path), "orders", topic.topic_id).catch_up()
    check_mirror(tmp_path, topic)
    assert table_of(tmp_path).version() == 1
