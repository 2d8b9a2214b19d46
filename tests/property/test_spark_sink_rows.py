"""Cutting a batch by target loses no row, adds none, and keeps the order of each target."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from octavo.spark.sink_options import SinkColumns
from octavo.spark.sink_rows import portions

TOPICS = st.sampled_from(["a", "b", "c"])
PARTITIONS = st.none() | st.integers(0, 3)
ROWS = st.lists(st.tuples(TOPICS, PARTITIONS, st.binary(max_size=3)), max_size=40)


@given(ROWS)
def test_portions_are_the_rows_of_each_target_in_their_order(
    rows: list[tuple[str, int | None, bytes]],
) -> None:
    batch = pa.record_batch(
        {
            "t": pa.array([topic for topic, _, _ in rows], pa.string()),
            "p": pa.array([partition for _, partition, _ in rows], pa.int32()),
            "v": pa.array([value for _, _, value in rows], pa.binary()),
        }
    )
    wanted: dict[tuple[str, int | None], list[bytes]] = {}
    for topic, partition, value in rows:
        wanted.setdefault((topic, partition), []).append(value)
    found = {
        (part.topic, part.partition): part.rows.column("v").to_pylist()
        for part in portions(batch, SinkColumns("v", topic="t", partition="p"), None)
    }
    assert found == wanted
