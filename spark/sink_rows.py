"""Which rows of a record batch go where. Pure, over Arrow columns (spec/spark.md §7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from octavo.runtime.errors import InvalidRecord
from octavo.spark.sink_options import SinkColumns

_ROW = "row"


class Portion(NamedTuple):
    """Rows with one target, in the order of the batch."""

    topic: str
    partition: int | None
    """None: the producer's partitioner chooses, by key where there is one."""
    rows: pa.RecordBatch


def portions(rows: pa.RecordBatch, columns: SinkColumns, topic: str | None) -> Iterator[Portion]:
    """Cut a batch by topic and partition; raises InvalidRecord, before the first of them.

    `topic` counts for all rows; None: the column says where each goes.
    """
    if columns.topic is None and columns.partition is None:
        if rows.num_rows:
            yield Portion(topic or "", None, rows)
        return
    count = rows.num_rows
    topics = pa.repeat(topic or "", count)
    if columns.topic is not None:
        topics = rows.column(columns.topic).cast(pa.string())
        if topics.null_count:
            raise InvalidRecord(
                f"{topics.null_count} of {count} rows have no topic: their column "
                f"{columns.topic!r} is null",
                hint='fill it, or name one for all rows: .option("topic", "orders")',
            )
    partitions = pa.nulls(count, pa.int32())
    if columns.partition is not None:
        partitions = rows.column(columns.partition).cast(pa.int32())
        lowest = pc.min(partitions).as_py()
        if lowest is not None and lowest < 0:
            raise InvalidRecord(
                f"partition {lowest} in column {columns.partition!r} is negative",
                hint="null lets the partitioner choose",
            )
    table = pa.table(
        {"topic": topics, "partition": partitions, _ROW: pa.array(range(count), pa.int64())}
    )
    groups = table.group_by(["topic", "partition"], use_threads=False)
    for group in groups.aggregate([(_ROW, "list")]).to_pylist():
        index = group[f"{_ROW}_list"]
        part = rows if len(index) == count else rows.take(pa.array(index, pa.int64()))
        yield Portion(group["topic"], group["partition"], part)
