"""Exported files that stand for their ledgers: their index, its damage, its place (ADR 68)."""

from __future__ import annotations

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.client.exports.batch_index import FIELDS
from octavo.client.exports.cold import ColdFile
from octavo.client.exports.manifest import (
    FileEntry,
    Manifest,
)
from octavo.client.exports.run import export_log
from octavo.client.exports.sealed import FORMAT_VERSION, INDEXED_VERSION
from octavo.client.exports.tree import LocalTree
from octavo.proto import batch as batches
from octavo.proto.batch import BatchFlags
from octavo.proto.compression import Codec
from octavo.proto.segments import StoredBatch
from octavo.runtime.errors import ConfigError, IllegalStateError, StorageFailed
from tests.spark_damage import flips
from tests.spark_memory import MemoryTopic, Row, numbered


def entries_of(root: pathlib.Path) -> list[FileEntry]:
    return Manifest(LocalTree(root), "orders").load().of_partition(0)


def opened(root: pathlib.Path, entry: FileEntry | None = None) -> ColdFile:
    return ColdFile(LocalTree(root), "orders", entry or entries_of(root)[0])


def offsets(stored: list[StoredBatch]) -> list[int]:
    return [o for item in stored for o in batches.decode_rows(item.batch).offsets]


def read_or_refusal(root: pathlib.Path) -> list[StoredBatch] | str:
    """All batches of the only file, or what the typed error says."""
    try:
        with opened(root) as cold:
            return cold.batches(0, 1 << 20)
    except StorageFailed as error:
        return str(error)


async def exported(root: pathlib.Path, topic: MemoryTopic | None = None) -> MemoryTopic:
    if topic is None:
        topic = MemoryTopic()
        topic.append([numbered(10), numbered(5, 10)])
        topic.append([numbered(5, 15)], producer=(4, 1, 9))
    await export_log(topic, "orders", root, index=True)
    return topic


async def test_finds_by_offset_and_time_without_rows(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10, timestamp_ms=1000)])
    topic.append([numbered(2)], flags=BatchFlags.CONTROL)
    topic.append([numbered(5, timestamp_ms=500), numbered(5, timestamp_ms=3000)])
    await exported(tmp_path, topic)
    with opened(tmp_path) as cold:
        assert [cold.find(o) for o in (0, 9, 10, 11, 12, 17, 21, 22)] == [0, 0, 1, 1, 1, 2, 2, 3]
        assert [cold.find_time(t) for t in (0, 1009, 1010, 3005)] == [0, 0, 2, 3]
        assert [cold.header(n).header.base_offset for n in range(cold.entries)] == [0, 12, 17]
        with pytest.raises(IndexError):
            cold.header(3)
        assert offsets(cold.batches(0, 1)) == list(range(10))
        assert offsets(cold.batches(10, 1 << 20)) == list(range(12, 22))
        assert offsets(cold.batches(0, 1 << 20, end_offset=17)) == [*range(10), *range(12, 17)]
        assert cold.batches(22, 1 << 20) == []


async def test_batches_are_the_stored_bytes_where_the_codec_gives_the_same(
    tmp_path: pathlib.Path,
) -> None:
    topic = MemoryTopic()
    for codec in (Codec.LZ4, Codec.NONE, Codec.ZSTD):
        topic.append([numbered(50)], codec=codec, producer=(7, 2, 50))
    await exported(tmp_path, topic)
    with opened(tmp_path) as cold:
        assert [b.batch for b in cold.batches(0, 1 << 20)] == [
            item.batch for ledger in (1, 2, 3) for item in topic.stored[ledger]
        ]


async def test_a_batch_that_was_exported_in_part_keeps_the_rest(tmp_path: pathlib.Path) -> None:
    """Its first records are in another file: what is left has the sequences that it had."""
    topic = MemoryTopic()
    topic.append([numbered(10)], producer=(7, 0, 2**31 - 3))
    await exported(tmp_path, topic)
    other = MemoryTopic()
    other.next_ledger = 2
    other.append([numbered(15, timestamp_ms=2**62)], producer=(7, 0, 2**31 - 3))
    await exported(tmp_path, other)
    _, second = entries_of(tmp_path)
    with opened(tmp_path, second) as cold:
        (left,) = cold.batches(0, 1 << 20)
    rows = batches.decode_rows(left.batch)
    assert list(rows.offsets) == [10, 11, 12, 13, 14]
    assert list(rows.timestamps_ms) == [2**62 + n for n in range(10, 15)]
    assert rows.header.base_sequence == 7
    assert not rows.header.flags & BatchFlags.COMPACTED


async def test_a_batch_that_became_too_large_is_divided(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another product's codec packed better than ours does: each record still comes out."""
    topic = MemoryTopic()
    rows = [Row(b"k%d" % n, os.urandom(500)) for n in range(9)]
    topic.append([rows], producer=(5, 0, 40))
    await exported(tmp_path, topic)
    with opened(tmp_path) as cold:
        monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 2000)
        made = cold.batches(0, 1 << 20)
    headers = [batches.verify(item.batch) for item in made]
    assert [h.base_offset for h in headers] == [0, 2, 4, 6, 7][: len(headers)]
    assert [h.base_sequence for h in headers] == [40 + h.base_offset for h in headers]
    assert headers[-1].next_offset == 9
    assert offsets(made) == list(range(9))
    assert [v for i in made for v in batches.decode_rows(i.batch).values] == [r.value for r in rows]


async def test_p8_no_flipped_bit_of_file_or_index_gives_another_record(
    tmp_path: pathlib.Path,
) -> None:
    await exported(tmp_path)
    (entry,) = entries_of(tmp_path)
    with opened(tmp_path) as cold:
        right = cold.batches(0, 1 << 20)
    refused = 0
    for path in (
        tmp_path / "orders" / entry.file,
        tmp_path / "_octavo/orders/_index" / entry.index,
    ):
        data = path.read_bytes()
        for changed in flips(data, 120, seed=1):
            path.write_bytes(changed)
            found = read_or_refusal(tmp_path)
            refused += isinstance(found, str)
            assert path.name in found if isinstance(found, str) else found == right
        for wrong in (data[:-1], data + b"\0", b""):
            path.write_bytes(wrong)
            with pytest.raises(StorageFailed, match=path.name):
                opened(tmp_path)
        path.unlink()
        with pytest.raises(StorageFailed, match="gone"):
            opened(tmp_path)
        path.write_bytes(data)
    assert refused > 200
    with opened(tmp_path) as cold:
        assert cold.batches(0, 1 << 20) == right


async def test_damaged_index_is_found_and_written_again(tmp_path: pathlib.Path) -> None:
    topic = await exported(tmp_path)
    (entry,) = entries_of(tmp_path)
    path = tmp_path / "_octavo/orders/_index" / entry.index
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes((data[40] ^ 1,)) + data[41:])
    assert (await export_log(topic, "orders", tmp_path)).damaged == ()  # its size is right
    report = await export_log(topic, "orders", tmp_path, verify=True)
    assert (report.damaged, report.unrepaired) == ((entry.file,), ())
    assert path.read_bytes() == data
    path.unlink()
    assert (await export_log(topic, "orders", tmp_path)).damaged == (entry.file,)
    assert (path.read_bytes(), entries_of(tmp_path)) == (data, [entry])
    topic.segments[0].clear()
    path.unlink()
    assert (await export_log(topic, "orders", tmp_path)).unrepaired == (entry.file,)


async def test_a_tree_keeps_indexes_or_not_from_its_first_run_on(tmp_path: pathlib.Path) -> None:
    topic = await exported(tmp_path / "with")
    topic.append([numbered(5, 20)])
    await export_log(topic, "orders", tmp_path / "with")
    assert all(entry.index for entry in entries_of(tmp_path / "with"))
    await export_log(topic, "orders", tmp_path / "without")
    assert not any(entry.index for entry in entries_of(tmp_path / "without"))
    assert not (tmp_path / "without/_octavo/orders/_index").exists()
    with pytest.raises(ConfigError, match="without indexes"):
        await exported(tmp_path / "without", topic)
    with pytest.raises(ConfigError, match="no index"):
        opened(tmp_path / "without")
    for root, version in (("with", INDEXED_VERSION), ("without", FORMAT_VERSION)):
        for path in (tmp_path / root / "_octavo").rglob("*.json"):
            assert f'"format_version": {version},' in path.read_text()


async def test_sweep_knows_index_files(tmp_path: pathlib.Path) -> None:
    topic = await exported(tmp_path)
    folder = tmp_path / "_octavo/orders/_index"
    (named,) = folder.iterdir()
    orphan = folder / named.name.replace(".arrow-", ".parquet-")
    leftover = folder / ".tmp-0123"
    for path in (orphan, leftover):
        path.write_bytes(b"x")
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    await export_log(topic, "orders", tmp_path)
    assert list(folder.iterdir()) == [named]


async def test_files_end_before_their_index_becomes_large(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.client.exports.arrow_files.BATCHES_MAX", 4)
    topic = MemoryTopic()
    topic.append([numbered(3, 3 * n) for n in range(10)])
    await exported(tmp_path, topic)
    assert [entry.index_batches for entry in entries_of(tmp_path)] == [4, 4, 2]
    got = [
        o for e in entries_of(tmp_path) for o in offsets(opened(tmp_path, e).batches(0, 1 << 20))
    ]
    assert got == list(range(30))


async def test_threads_may_share_a_file(tmp_path: pathlib.Path) -> None:
    topic = MemoryTopic()
    topic.append([numbered(100, 100 * n) for n in range(20)])
    await exported(tmp_path, topic)
    with opened(tmp_path) as cold, ThreadPoolExecutor(4) as threads:
        asked = [100 * (n * 7 % 20) for n in range(80)]

        def read(start: int) -> list[int]:
            return offsets(cold.batches(start, 1))

        found = threads.map(read, asked)
        assert list(found) == [list(range(start, start + 100)) for start in asked]
        cold.close()
        with pytest.raises(IllegalStateError):
            cold.batches(0, 1)


def test_the_columns_of_an_index_are_those_of_a_header() -> None:
    """Part of the stored form: another header needs another version."""
    assert list(FIELDS)[2:] == list(batches.BatchHeader._fields)
