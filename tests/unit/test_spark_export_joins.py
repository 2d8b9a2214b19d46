"""Small exported files become larger ones: which, how often, and what readers keep (spark §5)."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from octavo.client.exports.arrow_files import FILE_BYTES_MAX, checks_of, read_file
from octavo.client.exports.columns import EXPORTED
from octavo.client.exports.joining import JOIN_BYTES_MIN, JOIN_FACTOR, next_join
from octavo.client.exports.manifest import FileEntry, Manifest, ManifestState
from octavo.client.exports.reports import ExportReport, JoinProgress, RunOptions
from octavo.client.exports.run import TopicExport, export_log
from octavo.client.exports.tree import LocalTree
from octavo.runtime.errors import StorageFailed
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, numbered, rows_back

TARGET = 1 << 20


def entry(first: int, size_bytes: int, *, schema_id: int = 0, arrow_bytes: int = 0) -> FileEntry:
    """A file of ten offsets."""
    return FileEntry(
        file=f"p00000-{first:020d}-{first + 9:020d}-{first}-{first:08x}.arrow",
        partition=0,
        ledgers=(first,),
        first=first,
        last=first + 9,
        rows=10,
        bytes=size_bytes,
        arrow_bytes=arrow_bytes,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        sha256="",
        schema_id=schema_id,
        codec="zstd",
        block_crcs="",
    )


def joined(files: Sequence[FileEntry], target: int = TARGET) -> tuple[list[FileEntry], int]:
    """All joins carried out as sizes; and the bytes that were written for them."""
    left, written = list(files), 0
    while (join := next_join(left, target)) is not None:
        at = left.index(join.files[0])
        assert tuple(left[at : at + len(join.files)]) == join.files, "only neighbours are joined"
        assert len(join.files) > 1
        size = sum(one.bytes for one in join.files)
        written += size
        arrow_bytes = sum(one.arrow_bytes for one in join.files)
        left[at : at + len(join.files)] = [
            entry(
                join.files[0].first,
                size,
                schema_id=join.files[0].schema_id,
                arrow_bytes=arrow_bytes,
            )
        ]
    return left, written


def test_few_small_files_are_left_and_a_byte_is_written_once_a_class() -> None:
    rng = random.Random(7)
    classes = 4  # of 1 MiB: 1 MiB, 128 KiB, 16 KiB, and below 4 KiB none
    left: list[FileEntry] = []
    total = written = 0
    for number in range(2000):
        size = rng.randrange(3000, 9000)
        total += size
        left.append(entry(number * 10, size))
        left, more = joined(left)
        written += more
    assert sum(one.bytes for one in left) == total
    assert len([one for one in left if one.bytes < TARGET]) <= classes * JOIN_FACTOR
    assert all(one.bytes < 2 * TARGET for one in left)
    assert written <= classes * total


def test_full_files_and_other_schemas_are_left_alone() -> None:
    assert next_join([entry(0, TARGET), entry(10, TARGET)], TARGET) is None
    assert next_join([], TARGET) is None
    assert next_join([entry(0, 3 * JOIN_BYTES_MIN)], TARGET) is None
    mixed = [entry(n * 10, TARGET // 2, schema_id=n % 2) for n in range(6)]
    assert next_join(mixed, TARGET) is None
    indexed = [replace(entry(n * 10, TARGET // 2), index=f"{n}.index") for n in range(6)]
    assert next_join(indexed, TARGET) is None
    join = next_join([*mixed, entry(60, TARGET // 2, schema_id=1)], TARGET)
    assert join is not None
    assert [one.first for one in join.files] == [50, 60]


def test_rows_that_compress_well_fill_a_file_too() -> None:
    """A file of 256 MiB of rows is never rewritten, however small it is on disk."""
    full = [entry(n * 10, 5000, arrow_bytes=FILE_BYTES_MAX * 6 // 10) for n in range(4)]
    assert next_join(full, TARGET) is None


def topic_of_small_ledgers(count: int) -> MemoryTopic:
    topic = MemoryTopic()
    topic.append([ODD_ROWS[:-1]])
    for number in range(1, count):
        topic.append([numbered(40, number * 40)])
    return topic


async def one_by_one(topic: MemoryTopic, root: pathlib.Path, fmt: str = "arrow") -> list[FileEntry]:
    """Each ledger exported by a run of its own."""
    segments = topic.segments[0]
    for count in range(1, len(segments) + 1):
        topic.segments[0] = segments[:count]
        await export_log(topic, "orders", root, fmt=fmt)
    return Manifest(LocalTree(root), "orders").load().of_partition(0)


async def join(
    topic: MemoryTopic, tree: LocalTree, told: list[JoinProgress], fmt: str = "arrow"
) -> ExportReport:
    export = TopicExport(topic, "orders", tree, fmt=fmt)
    return await export.run(RunOptions(join_bytes=20_000, joined=told.append))


def rows_of(root: pathlib.Path, state: ManifestState) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for one in state.of_partition(0):
        path, fmt = root / "orders" / one.file, one.file.rpartition(".")[2]
        for rows in read_file(path, EXPORTED, checks=checks_of(one), fmt=fmt):
            found.update(rows_back(rows))
    return found


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
async def test_the_same_rows_in_fewer_files_and_old_plans_go_on(
    tmp_path: pathlib.Path, fmt: str
) -> None:
    topic = topic_of_small_ledgers(12)
    before = await one_by_one(topic, tmp_path, fmt)
    told: list[JoinProgress] = []
    report = await join(topic, LocalTree(tmp_path), told, fmt)
    state = Manifest(LocalTree(tmp_path), "orders").load()
    after = state.of_partition(0)
    assert len(after) < len(before) == 12
    assert report.joined == sum(one.files for one in told)
    assert state.ledgers(0) == frozenset(range(1, 13))
    assert set(state.removed) >= {one.file for one in before} - {one.file for one in after}
    assert rows_of(tmp_path, state) == {
        offset: row._replace(headers=tuple(row.headers)) for offset, row in topic.rows[0].items()
    }
    for one in before:  # a query that was planned before the join
        rows = read_file(
            tmp_path / "orders" / one.file, ("offset",), checks=checks_of(one), fmt=fmt
        )
        assert sum(batch.num_rows for batch in rows) == one.rows
    assert (await join(topic, LocalTree(tmp_path), told, fmt)).joined == 0


async def test_a_joined_file_is_mended_from_all_its_ledgers(tmp_path: pathlib.Path) -> None:
    topic = topic_of_small_ledgers(12)
    await one_by_one(topic, tmp_path)
    await join(topic, LocalTree(tmp_path), [])
    state = Manifest(LocalTree(tmp_path), "orders").load()
    largest = max(state.of_partition(0), key=lambda one: one.bytes)
    (tmp_path / "orders" / largest.file).unlink()
    report = await export_log(topic, "orders", tmp_path)
    assert (report.damaged, report.unrepaired) == ((largest.file,), ())
    assert Manifest(LocalTree(tmp_path), "orders").load() == state, "the same bytes again"


async def test_damaged_files_are_not_joined(tmp_path: pathlib.Path) -> None:
    topic = topic_of_small_ledgers(12)
    files = await one_by_one(topic, tmp_path)
    path = tmp_path / "orders" / files[3].file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageFailed, match="damaged"):
        await join(topic, LocalTree(tmp_path), [])
    assert Manifest(LocalTree(tmp_path), "orders").load().of_partition(0) == files


class Stopped(BaseException):
    """The machine stops before a system call."""


class StoppingTree(LocalTree):
    """A tree whose machine stops before its n-th rename or link."""

    def __init__(self, root: pathlib.Path, after: int) -> None:
        super().__init__(root)
        self.left = after

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def _rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._step()
        super()._rename(source, target)

    def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._step()
        super()._link(source, target)


async def test_a_join_that_died_anywhere_is_whole_or_not_there(tmp_path: pathlib.Path) -> None:
    topic = topic_of_small_ledgers(12)
    for after in range(100):
        root = tmp_path / str(after)
        await one_by_one(topic, root)
        told: list[JoinProgress] = []
        try:
            await join(topic, StoppingTree(root, after), told)
        except Stopped:
            pass
        else:
            assert after > 2
            return
        state = Manifest(LocalTree(root), "orders").load()
        assert set(rows_of(root, state)) == set(topic.rows[0])
        await join(topic, LocalTree(root), told)
        assert rows_of(root, Manifest(LocalTree(root), "orders").load()) == {
            offset: row._replace(headers=tuple(row.headers))
            for offset, row in topic.rows[0].items()
        }
    pytest.fail("the run never got through")
