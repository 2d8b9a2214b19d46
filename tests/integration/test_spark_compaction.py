"""The last row of each key in a real Spark session: in the source and as a window (ADR 73)."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, cast

import pytest

from octavo.runtime.errors import ConfigError
from octavo.spark import compact
from tests.integration.test_spark_files import Lake
from tests.spark_memory import MemoryTopic, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FIRST = [Row(b"%d" % (n % 7), b"%d" % n, timestamp_ms=1000 + n) for n in range(50)]
SECOND = [Row(None, b"no key"), Row(b"3", None, timestamp_ms=5000), Row(None, None)]
OTHER = [Row(b"2", b"moved", timestamp_ms=9000), Row(b"4", b"older", timestamp_ms=1)]


def places(frame: DataFrame) -> list[tuple[int, int]]:
    rows = cast("list[tuple[int, int]]", frame.select("partition", "offset").collect())
    return sorted((partition, offset) for partition, offset in rows)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: pathlib.Path) -> Lake:
    lake = Lake(spark, tmp_path / "lake")
    topic = MemoryTopic(partitions=3)
    topic.append([FIRST])
    lake.export(topic)
    topic.append([SECOND])
    topic.append([OTHER], partition=1)
    lake.export(topic)
    return lake


LAST = [(0, n) for n in (*(n for n in range(43, 50) if n % 7 != 3), 50, 51, 52)]
MOVED = [(1, 0), (1, 1)]


def test_the_source_and_the_window_leave_the_same_rows(lake: Lake) -> None:
    frame = lake.load()
    in_source = lake.load(compacted="true")
    assert in_source.rdd.getNumPartitions() == 2
    assert places(in_source) == places(compact(frame)) == sorted(LAST + MOVED)
    alive = [(0, n) for n in (*(n for n in range(43, 50) if n % 7 != 3), 50, 52)] + MOVED
    assert places(lake.load(compacted="true", dropTombstones="true")) == alive
    assert places(compact(frame, drop_tombstones=True)) == alive
    assert compact(frame).columns == frame.columns
    narrow = lake.load("value binary", compacted="true", endingOffsets='{"orders":{"0":8,"1":0}}')
    values = sorted(bytes(row.value) for row in narrow.collect())
    assert values == [b"%d" % n for n in range(1, 8)]


def test_a_key_that_moved_between_partitions(lake: Lake) -> None:
    """By time, because offsets of two partitions say nothing of each other."""
    moved = {(0, 44): (1, 0)}  # 44 % 7 == 2
    want = sorted(moved.get(place, place) for place in LAST)
    assert places(compact(lake.load(), across_partitions=True)) == want


def test_groups_are_cut_before_the_shuffle(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's WindowGroupLimit: of each key one row of a task goes on."""
    for across in (False, True):
        compact(lake.load(), across_partitions=across).explain()
        plan = capsys.readouterr().out
        assert "WindowGroupLimit" in plan.partition("Exchange")[2], plan


def test_what_compact_needs(lake: Lake) -> None:
    narrow = lake.load("key binary, partition int, offset bigint")
    with pytest.raises(ConfigError, match="'topic'"):
        compact(narrow)
    whole = lake.load("key binary, topic string, partition int, offset bigint")
    with pytest.raises(ConfigError, match="'value'"):
        compact(whole, drop_tombstones=True)
    with pytest.raises(ConfigError, match="'timestamp'"):
        compact(whole, across_partitions=True)
    stream = lake.spark.readStream.format("octavo").option("path", str(lake.root))
    with pytest.raises(ConfigError, match="stream"):
        compact(stream.option("subscribe", "orders").load())
