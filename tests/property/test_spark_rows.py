"""Any log comes out of an export as it went in, whole and in any range (P13)."""

from __future__ import annotations

import asyncio
import json
import pathlib
import tempfile
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.client.exports import arrow_files
from octavo.client.exports.arrow_files import checks_of, read_file
from octavo.client.exports.columns import EXPORTED
from octavo.client.exports.manifest import Manifest, ManifestState
from octavo.client.exports.run import export_log
from octavo.client.exports.sealed import checksum_of
from octavo.client.exports.tree import LocalTree
from octavo.proto.batch import BatchFlags
from octavo.runtime.errors import OctavoError
from tests.spark_memory import MemoryTopic, Row, rows_back

BINARY = st.none() | st.binary(max_size=12)
ROWS = st.builds(
    Row,
    BINARY,
    BINARY,
    st.lists(st.tuples(st.text("ab", max_size=2), BINARY), max_size=2).map(tuple),
    st.integers(-(10**11), 10**13),
)
LEDGERS = st.lists(
    st.tuples(
        st.lists(st.lists(ROWS, min_size=1, max_size=9), max_size=4),  # batches
        st.sampled_from([0, 0, 0, BatchFlags.CONTROL]),
        st.sampled_from([100, 20 << 20]),  # small ledgers share files
        st.booleans(),  # an export run after this ledger
    ),
    max_size=6,
)


def read_back(root: pathlib.Path, state: ManifestState, first: int, end: int) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for entry in state.of_partition(0):
        path = root / "orders" / entry.file
        for rows in read_file(path, EXPORTED, first, end, checks=checks_of(entry)):
            found.update(rows_back(rows))
    return found


@settings(max_examples=30, deadline=None)
@given(ledgers=LEDGERS, first=st.integers(0, 80), length=st.integers(0, 80))
def test_p13_any_log_survives_export(
    ledgers: list[tuple[list[list[Row]], int, int, bool]], first: int, length: int
) -> None:
    topic = MemoryTopic()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_files, "BATCH_ROWS", 7)
        patch.setattr(arrow_files, "FILE_BYTES_MAX", 2000)
        root = pathlib.Path(folder)
        for batches, flags, size_bytes, run in ledgers:
            topic.append(batches, flags=flags, size_bytes=size_bytes)
            if run:
                asyncio.run(export_log(topic, "orders", root))
        asyncio.run(export_log(topic, "orders", root))
        state = Manifest(LocalTree(root), "orders").load()
        want = topic.rows[0]
        assert read_back(root, state, 0, topic.end()) == want
        part = {o: row for o, row in want.items() if first <= o < first + length}
        assert read_back(root, state, first, first + length) == part


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(body=st.fixed_dictionaries({"add": JSON, "remove": JSON, "token": JSON}) | JSON)
def test_no_manifest_version_causes_anything_but_a_typed_error(body: object) -> None:
    if isinstance(body, dict):
        body = {"format_version": 2, **cast("dict[str, object]", body)}
        body["crc32c"] = checksum_of(body)
    with tempfile.TemporaryDirectory() as folder:
        tree = LocalTree(folder)
        tree.make_folder("_octavo/orders/_manifest")
        tree.path(f"_octavo/orders/_manifest/{1:020d}.json").write_text(json.dumps(body))
        try:
            state = Manifest(tree, "orders").load()
        except OctavoError:
            return
        assert state.files == {}
