"""Exporting: fidelity, byte stability, incremental runs, races and crashes (P13, spec spark §5)."""

from __future__ import annotations

import asyncio
import hashlib
import pathlib
from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa
import pytest
from pyarrow import dataset

from octavo.client.exports import arrow_files
from octavo.client.exports import plan as export_plan
from octavo.client.exports.arrow_files import checks_of, read_file, verify_file
from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.index_files import check_index
from octavo.client.exports.manifest import Manifest, ManifestState
from octavo.client.exports.reports import ExportProgress
from octavo.client.exports.run import export_log
from octavo.client.exports.tree import LocalTree
from octavo.proto.batch import BatchFlags
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import ConfigError, CorruptEntry, StorageFailed
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, ints, numbered, rows_back


def state_of(root: pathlib.Path, topic: str = "orders") -> ManifestState:
    return Manifest(LocalTree(root), topic).load()


def exported_rows(root: pathlib.Path, partition: int = 0) -> dict[int, Row]:
    """Everything the manifest names, back as rows."""
    found: dict[int, Row] = {}
    for entry in state_of(root).of_partition(partition):
        path = root / "orders" / entry.file
        for rows in read_file(
            path, EXPORTED, checks=checks_of(entry), fmt=entry.file.rpartition(".")[2]
        ):
            assert rows.schema.equals(arrow_schema(EXPORTED))
            assert not found.keys() & set(ints(rows, "offset"))
            found.update(rows_back(rows))
    assert list(found) == sorted(found)
    return found


def found(root: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    return sorted(root.glob(pattern))


def digests(root: pathlib.Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.glob("[!_]*/*")
    }


def same(rows: dict[int, Row]) -> dict[int, Row]:
    return {offset: row._replace(headers=tuple(row.headers)) for offset, row in rows.items()}


def sample() -> MemoryTopic:
    topic = MemoryTopic(partitions=3)
    topic.append([numbered(100), numbered(7, 100)])
    topic.append([ODD_ROWS], partition=1)
    topic.append([numbered(9000, 107)])
    topic.append([numbered(5)], closed=False)
    return topic


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
async def test_p13_export_equals_the_log(tmp_path: pathlib.Path, codec: str, fmt: str) -> None:
    topic = sample()
    report = await export_log(topic, "orders", tmp_path, codec=codec, fmt=fmt)
    topic.rows[0] = {o: r for o, r in topic.rows[0].items() if o < 9107}  # the rest is still open
    assert exported_rows(tmp_path, 0) == same(topic.rows[0])
    assert exported_rows(tmp_path, 1) == same(topic.rows[1])
    assert exported_rows(tmp_path, 2) == {}
    assert (report.rows, report.ledgers, report.open_ledgers) == (9107 + len(ODD_ROWS), 3, 1)
    assert report.bytes == sum(entry.bytes for entry in state_of(tmp_path).files.values())


async def test_p13_reexport_is_byte_stable(tmp_path: pathlib.Path) -> None:
    first = await export_log(sample(), "orders", tmp_path / "a")
    second = await export_log(sample(), "orders", tmp_path / "b")
    assert first.files == second.files
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    entries = state_of(tmp_path / "a").files.values()
    assert {e.file: e.sha256 for e in entries} == digests(tmp_path / "a")
    assert all(e.file.endswith(f"-{e.ledgers[0]}-{e.sha256[:8]}.arrow") for e in entries)


async def test_files_do_not_depend_on_fetch_sizes(tmp_path: pathlib.Path) -> None:
    """The same rows in the same batches, handed to the writer in other chunks."""
    writer = arrow_files.LedgerExporter(LocalTree(tmp_path / "one"), "orders", 0)
    topic = MemoryTopic()
    topic.append([numbered(300, 300 * n) for n in range(60)])
    writer.begin_ledger(1)
    for item in topic.stored[1]:
        writer.add([item])
    (one,) = writer.finish()
    await export_log(topic, "orders", tmp_path / "many")
    assert list(state_of(tmp_path / "many").files.values()) == [one]


@pytest.mark.parametrize(("fmt", "reader"), [("arrow", "ipc"), ("parquet", "parquet")])
async def test_any_arrow_reader_opens_the_tree(
    tmp_path: pathlib.Path, fmt: str, reader: str
) -> None:
    """Folders and hidden names as other tools expect them; no code of ours needed (spec §5)."""
    await export_log(sample(), "orders", tmp_path, fmt=fmt)
    found = dataset.dataset(str(tmp_path / "orders"), format=reader, partitioning="hive")
    assert found.count_rows() == 9107 + len(ODD_ROWS)


async def test_second_run_is_a_no_op_and_third_takes_only_what_is_new(
    tmp_path: pathlib.Path,
) -> None:
    topic = sample()
    await export_log(topic, "orders", tmp_path)
    before = digests(tmp_path)
    topic.reads.clear()
    again = await export_log(topic, "orders", tmp_path)
    assert (again.files, again.rows, topic.reads) == ((), 0, [])
    assert digests(tmp_path) == before
    topic.close_last()
    third = await export_log(topic, "orders", tmp_path)
    assert (len(third.files), third.rows, topic.reads) == (1, 5, [4])
    assert exported_rows(tmp_path) == same(topic.rows[0])


async def test_small_ledgers_share_a_file_and_large_ones_do_not(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    big = export_plan.SMALL_LEDGER_BYTES
    for n, size in enumerate([100, 100, big, 100, big - 50, 100]):
        topic.append([numbered(10, n * 10)], size_bytes=size)
    await export_log(topic, "orders", tmp_path)
    files = state_of(tmp_path).of_partition(0)
    assert [entry.ledgers for entry in files] == [(1, 2), (3,), (4, 5), (6,)]
    assert [(entry.first, entry.last) for entry in files] == [(0, 19), (20, 29), (30, 49), (50, 59)]


async def test_large_ledger_is_split_at_a_batch_border(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "FILE_BYTES_MAX", 600_000)
    topic = MemoryTopic()
    topic.append([numbered(5000, 5000 * n) for n in range(8)])
    report = await export_log(topic, "orders", tmp_path)
    files = state_of(tmp_path).of_partition(0)
    assert report.manifest_version == 1  # all parts of a ledger become visible together
    assert len(files) > 1
    assert all((entry.last + 1) % 5000 == 0 for entry in files)
    assert all(entry.ledgers == (1,) for entry in files)
    assert exported_rows(tmp_path) == same(topic.rows[0])


async def test_large_values_make_shorter_record_batches(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "BATCH_BYTES_MAX", 1 << 20)
    topic = MemoryTopic()
    topic.append([[Row(b"k", bytes(300_000))] * 3 for _ in range(4)])
    await export_log(topic, "orders", tmp_path)
    (entry,) = state_of(tmp_path).of_partition(0)
    with pa.memory_map(str(tmp_path / "orders" / entry.file)) as source:
        assert pa.ipc.open_file(source).num_record_batches == 2
    assert exported_rows(tmp_path) == same(topic.rows[0])


async def test_control_batches_are_gaps(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(5)])
    topic.append([numbered(2, 900)], flags=BatchFlags.CONTROL)
    topic.append([numbered(5, 5)])
    await export_log(topic, "orders", tmp_path)
    assert list(exported_rows(tmp_path)) == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    assert (await export_log(topic, "orders", tmp_path)).files == ()


async def test_schema_change_starts_a_new_file(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(5)], schema_id=3)
    topic.append([numbered(5, 5)], schema_id=4)
    await export_log(topic, "orders", tmp_path)
    assert [e.schema_id for e in state_of(tmp_path).of_partition(0)] == [3, 4]
    assert exported_rows(tmp_path) == same(topic.rows[0])


async def test_append_time_is_the_timestamp(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(2)], flags=BatchFlags.APPEND_TIME)
    await export_log(topic, "orders", tmp_path)
    (entry,) = state_of(tmp_path).of_partition(0)
    rows = pa.Table.from_batches(
        read_file(
            tmp_path / "orders" / entry.file,
            ("timestamp", "timestampType"),
            checks=checks_of(entry),
        )
    )
    assert rows.column("timestampType").to_pylist() == [1, 1]
    assert entry.min_timestamp_ms == entry.max_timestamp_ms == 1_700_000_111_000


async def test_absurd_timestamp_does_not_block_the_partition(tmp_path: pathlib.Path) -> None:
    """P11: a producer's nonsense harms that record only."""
    topic = MemoryTopic()
    topic.append([[Row(b"a", b"1", timestamp_ms=2**62), Row(b"b", b"2", timestamp_ms=5)]])
    await export_log(topic, "orders", tmp_path)
    (entry,) = state_of(tmp_path).of_partition(0)
    assert (entry.rows, entry.min_timestamp_ms) == (2, 5)


async def test_retention_before_the_first_export_of_a_range_is_reported(
    tmp_path: pathlib.Path,
) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10)])
    await export_log(topic, "orders", tmp_path)
    topic.append([numbered(10, 10)])
    topic.append([numbered(10, 20)])
    del topic.segments[0][:2]
    topic.log_start[0] = 20
    report = await export_log(topic, "orders", tmp_path)
    assert report.lost == ((0, 10, 20),)
    assert [e.first for e in state_of(tmp_path).of_partition(0)] == [0, 20]


async def test_compacted_ledgers_are_exported_with_their_gaps(tmp_path: pathlib.Path) -> None:
    """K4: also when the end of a ledger, or all of it, is a gap."""
    topic = MemoryTopic()
    for base in range(0, 40, 10):
        topic.append([numbered(10, base)])
    topic.compact(2, {3, 4, 12})
    topic.append([numbered(10, 40)], closed=False)
    await export_log(topic, "orders", tmp_path)
    wanted = {o: row for o, row in topic.rows[0].items() if o < 40}
    assert list(wanted) == [3, 4, 12, *range(20, 40)]
    assert exported_rows(tmp_path) == same(wanted)
    empty = MemoryTopic()
    empty.append([numbered(10)])
    empty.compact(1, set())
    assert (await export_log(empty, "orders", tmp_path / "empty")).rows == 0


async def test_what_was_exported_is_left_out_of_a_ledger_that_was_compacted_since(
    tmp_path: pathlib.Path,
) -> None:
    """The tree has each offset once, whatever ledgers its records lie in by now."""
    topic = MemoryTopic()
    topic.append([numbered(10)])
    topic.append([numbered(6, 10), numbered(4, 16)])
    topic.compact(2, {2, 11, 13})
    await export_log(topic, "orders", tmp_path)
    before = exported_rows(tmp_path)
    assert list(before) == [2, 11, 13]
    topic.append([numbered(5, 20)])
    topic.compact(1, {2, 11, 13})  # 14, 15 are gaps behind the last record that was exported
    topic.compact(2, {11, 13, 22})
    report = await export_log(topic, "orders", tmp_path)
    assert report.rows == 1
    assert list(exported_rows(tmp_path)) == [2, 11, 13, 22]
    assert (await export_log(topic, "orders", tmp_path)).rows == 0


async def test_ledger_that_ends_early_is_not_exported(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10), numbered(10, 10)])
    topic.stored[1].pop()
    with pytest.raises(CorruptEntry, match="ends at offset 10"):
        await export_log(topic, "orders", tmp_path)
    assert state_of(tmp_path).files == {}
    assert not found(tmp_path, "_octavo/orders/.*")


async def test_progress_tells_every_group(tmp_path: pathlib.Path) -> None:
    seen: list[ExportProgress] = []
    await export_log(sample(), "orders", tmp_path, progress=seen.append)
    assert sorted(p.groups_done for p in seen) == [1, 2]
    assert {p.groups_total for p in seen} == {2}
    assert sum(p.rows for p in seen) == 9107 + len(ODD_ROWS)


@pytest.mark.parametrize(("codec", "fmt"), [("gzip", "arrow"), ("zstd", "csv")])
async def test_unknown_codec_or_format(tmp_path: pathlib.Path, codec: str, fmt: str) -> None:
    with pytest.raises(ConfigError):
        await export_log(sample(), "orders", tmp_path, codec=codec, fmt=fmt)


async def test_recreated_topic_is_not_mixed_with_the_old_one(tmp_path: pathlib.Path) -> None:
    await export_log(sample(), "orders", tmp_path)
    other = MemoryTopic(topic_id="cd" * 16)
    with pytest.raises(ConfigError, match="topic_id"):
        await export_log(other, "orders", tmp_path)


async def test_an_export_does_not_lie_in_another(tmp_path: pathlib.Path) -> None:
    """Whoever opens the outer one would take the control files of the inner one for data."""
    topic = MemoryTopic()
    topic.append([numbered(20)])
    await export_log(topic, "orders", tmp_path)
    for inside in ("orders", "orders/deeper", "_octavo", "_octavo/orders/x"):
        with pytest.raises(ConfigError, match="lies in the export") as caught:
            await export_log(topic, "orders", tmp_path / inside)
        assert str(tmp_path) in str(caught.value.hint)
    assert (await export_log(topic, "orders", tmp_path / "other" / "orders")).rows == 20


async def test_another_format_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(20)])
    await export_log(topic, "orders", tmp_path)
    with pytest.raises(ConfigError, match="of format 'arrow', not 'parquet'") as caught:
        await export_log(topic, "orders", tmp_path, fmt="parquet")
    assert caught.value.hint == "export it as arrow, or into another folder"


async def test_two_exporters_at_once_export_everything_once(tmp_path: pathlib.Path) -> None:
    """The slower one finds its plan void, plans again and ends with the rest."""
    topic = MemoryTopic()
    for n in range(6):
        topic.append([numbered(50, 50 * n)], size_bytes=export_plan.SMALL_LEDGER_BYTES)
    reports = await asyncio.gather(*(export_log(topic, "orders", tmp_path) for _ in range(3)))
    assert exported_rows(tmp_path) == same(topic.rows[0])
    assert sum(report.rows for report in reports) == 300
    assert len(state_of(tmp_path).files) == 6


async def test_slower_exporter_with_another_grouping_yields(tmp_path: pathlib.Path) -> None:
    """One saw two ledgers, the other three: the joined files differ, the offsets do not."""
    topic = MemoryTopic()
    topic.append([numbered(10)])
    topic.append([numbered(10, 10)])

    class Slow(MemoryTopic):
        """While it reads its first ledger, the other exporter publishes two."""

        async def batches(
            self, segment: Segment, start_offset: int, visible_end: int
        ) -> AsyncGenerator[StoredBatch, None]:
            if not self.reads:
                await export_log(topic, "orders", tmp_path)
            async for item in super().batches(segment, start_offset, visible_end):
                yield item

    slow = Slow()
    for n in range(3):
        slow.append([numbered(10, 10 * n)])
    await export_log(slow, "orders", tmp_path)
    assert exported_rows(tmp_path) == same(slow.rows[0])
    assert [e.ledgers for e in state_of(tmp_path).of_partition(0)] == [(1, 2), (3,)]


async def test_cancelled_run_leaves_no_half_file(tmp_path: pathlib.Path) -> None:
    """Ctrl-C inside a ledger: nothing visible, nothing hidden left; the next run does it all."""
    reached = asyncio.Event()

    class Stuck(MemoryTopic):
        """Delivers one batch and then nothing more."""

        async def batches(
            self, segment: Segment, start_offset: int, visible_end: int
        ) -> AsyncGenerator[StoredBatch, None]:
            async for item in super().batches(segment, start_offset, visible_end):
                yield item
                reached.set()
                await asyncio.get_running_loop().create_future()

    stuck, topic = Stuck(), MemoryTopic()
    for target in (stuck, topic):
        target.append([[Row(b"k", bytes(900_000))] * 4 for _ in range(9)])
    run = asyncio.ensure_future(export_log(stuck, "orders", tmp_path))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert state_of(tmp_path).files == {}
    assert not found(tmp_path, "orders/*")
    assert not found(tmp_path, "_octavo/orders/.*")
    await export_log(topic, "orders", tmp_path)
    assert exported_rows(tmp_path) == same(topic.rows[0])


class Crash(BaseException):
    """The machine stops; nothing after this happens, clean-up included."""


class CrashingTree(LocalTree):
    """Stops before the n-th file operation."""

    def __init__(self, root: pathlib.Path, survive: int) -> None:
        super().__init__(root)
        self.left = survive

    def _tick(self) -> None:
        if self.left <= 0:
            raise Crash
        self.left -= 1

    def _mkdir(self, path: pathlib.Path) -> None:
        self._tick()
        super()._mkdir(path)

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        self._tick()
        if self.left == 0:
            data = data[: len(data) // 2]  # torn
        super()._write(path, data)

    def _fsync(self, path: pathlib.Path) -> None:
        self._tick()
        super()._fsync(path)

    def _fsync_folder(self, path: pathlib.Path) -> None:
        self._tick()
        super()._fsync_folder(path)

    def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._tick()
        super()._link(source, target)

    def _rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._tick()
        super()._rename(source, target)

    def _unlink(self, path: pathlib.Path) -> None:
        self._tick()
        super()._unlink(path)


def crash_points() -> Iterator[int]:
    yield from range(75)


async def test_crash_before_every_step_of_publish(tmp_path: pathlib.Path) -> None:
    """Whatever was cut off: readers see whole files only, and the next run completes the export."""
    topic = MemoryTopic()
    topic.append([numbered(20)], size_bytes=export_plan.SMALL_LEDGER_BYTES)
    topic.append([numbered(20, 20)])
    want, finished = same(topic.rows[0]), False
    for survive in crash_points():
        root = tmp_path / str(survive)
        try:
            tree = CrashingTree(root, survive)
            await export_log(topic, "orders", root, tree=tree, index=True)
            finished = True
        except Crash:
            pass
        seen = exported_rows(root)
        assert seen == {offset: want[offset] for offset in range(len(seen))}
        for entry in state_of(root).files.values():
            verify_file(root / "orders" / entry.file, entry)
            check_index(LocalTree(root), "orders", entry, deep=True)
        await export_log(topic, "orders", root, index=True)
        assert exported_rows(root) == want
        assert [bool(entry.index) for entry in state_of(root).files.values()] == [True, True]
    assert finished, "every step was reached"


async def test_unreadable_half_file_is_never_listed(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(20)])
    folder = tmp_path / "orders"
    await export_log(topic, "orders", tmp_path)
    (tmp_path / "_octavo" / "orders" / ".tmp-0123").write_bytes(b"ARROW1 half a file")
    (folder / f"p00000-{20:020d}-{39:020d}-9-deadbeef.arrow").write_bytes(
        b"ARROW1 no version names me"
    )
    assert len(exported_rows(tmp_path)) == 20
    topic.append([numbered(20, 20)])
    await export_log(topic, "orders", tmp_path)
    assert exported_rows(tmp_path) == same(topic.rows[0])


async def test_sweep_takes_old_leftovers_only(tmp_path: pathlib.Path) -> None:
    import os

    topic = MemoryTopic()
    topic.append([numbered(20)])
    await export_log(topic, "orders", tmp_path)
    folder = tmp_path / "orders"
    control = tmp_path / "_octavo" / "orders"
    orphan = f"p00000-{9:020d}-{19:020d}-9-deadbeef.arrow"
    ahead = f"p00000-{20:020d}-{29:020d}-9-deadbeef.arrow"
    names = [control / ".tmp-new", folder / "theirs.arrow", folder / ahead]
    names += [folder / orphan, control / ".tmp-old"]
    names += [control / "_manifest" / ".tmp-old"]
    for name in names:
        name.write_bytes(b"x")
    named = [path for path in folder.glob("p0*.arrow") if path.name not in (orphan, ahead)]
    for name in [*names[1:], *named, control / "_export.json"]:
        os.utime(name, (0, 0))
    await export_log(topic, "orders", tmp_path)
    assert [name.exists() for name in names] == [True, True, True, False, False, False]
    assert len(exported_rows(tmp_path)) == 20
    topic.append([numbered(20, 20)])
    await export_log(topic, "orders", tmp_path)
    assert not (folder / ahead).exists(), "the end of the partition has passed it"
    assert len(exported_rows(tmp_path)) == 40


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
async def test_damaged_file_is_a_typed_error(tmp_path: pathlib.Path, damage: str) -> None:
    topic = MemoryTopic()
    topic.append([numbered(20)])
    await export_log(topic, "orders", tmp_path)
    (entry,) = state_of(tmp_path).files.values()
    path = tmp_path / "orders" / entry.file
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:200] + bytes((data[200] ^ 1,)) + data[201:])
        with pytest.raises(StorageFailed, match="SHA-256"):
            verify_file(path, entry)
        return
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    with pytest.raises(StorageFailed):
        list(read_file(path, EXPORTED, checks=checks_of(entry)))
