"""Exported files whose bytes changed: right rows or a typed error that names the file (P8)."""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import shutil
import sys

import pytest

from octavo.client.exports import checked_file
from octavo.client.exports.arrow_files import checks_of, read_file
from octavo.client.exports.checked_file import BlockDigest, CheckedFile, FileChecks, LocalFile
from octavo.client.exports.columns import EXPORTED
from octavo.client.exports.manifest import Manifest, ManifestState
from octavo.client.exports.run import export_log
from octavo.client.exports.tree import LocalTree
from octavo.runtime.errors import MetadataCorrupt, OctavoError, StorageFailed, UnsupportedVersion
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit
from octavo.spark.reading import plan_files, read_file_split
from tests.spark_damage import files_below, flips, share
from tests.spark_memory import ODD_ROWS, MemoryTopic, Row, numbered, rows_back

FLIPS = int(os.environ.get("OCTAVO_TEST_FLIPS", "150"))
"""For each format; `make soak-export` makes 2,000, and cuts each file 50 times."""
CUTS = int(os.environ.get("OCTAVO_TEST_CUTS", "10"))


def topic_of_two() -> MemoryTopic:
    topic = MemoryTopic(partitions=2)
    topic.append([numbered(3000), ODD_ROWS])
    topic.append([numbered(40)], partition=1)
    return topic


def exported(root: pathlib.Path, fmt: str, codec: str = "zstd") -> MemoryTopic:
    topic = topic_of_two()
    asyncio.run(export_log(topic, "orders", root, fmt=fmt, codec=codec))
    return topic


def source_rows(root: pathlib.Path, **more: str) -> dict[tuple[int, int], Row]:
    """All rows as the Spark source plans and reads them, by (partition, offset)."""
    options = ReadOptions.parse({"path": str(root), "subscribe": "orders", **more})
    found: dict[tuple[int, int], Row] = {}
    for split in plan_files(options):
        assert isinstance(split, FileSplit)
        for rows in read_file_split(split, EXPORTED):
            found.update({(split.partition, o): row for o, row in rows_back(rows).items()})
    return found


def rows_or_refusal(root: pathlib.Path) -> dict[tuple[int, int], Row] | str:
    """The rows, or what the typed error says."""
    try:
        return source_rows(root)
    except (StorageFailed, MetadataCorrupt, UnsupportedVersion) as error:
        return str(error)


@pytest.mark.parametrize(
    ("fmt", "codec"), [("arrow", "zstd"), ("arrow", "none"), ("parquet", "lz4")]
)
def test_p8_no_flipped_bit_gives_a_wrong_row(tmp_path: pathlib.Path, fmt: str, codec: str) -> None:
    """Of every file of the export, control files too; wrong or fewer rows never come out."""
    exported(tmp_path, fmt, codec)
    right = source_rows(tmp_path)
    paths = files_below(tmp_path)
    refused = 0
    for n, path in enumerate(paths):
        data = path.read_bytes()
        for changed in flips(data, share(FLIPS, n, len(paths)), seed=n):
            path.write_bytes(changed)
            found = rows_or_refusal(tmp_path)
            if isinstance(found, str):
                refused += 1
                assert path.name in found
            else:
                assert found == right
        path.write_bytes(data)
    assert refused > FLIPS // 2, "most bits of a file decide something"
    assert source_rows(tmp_path) == right


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
def test_p8_a_shorter_or_longer_file_is_refused(tmp_path: pathlib.Path, fmt: str) -> None:
    exported(tmp_path, fmt)
    rng = random.Random(7)
    for path in files_below(tmp_path):
        data = path.read_bytes()
        for size in [0, 1, len(data) - 1, *(rng.randrange(len(data)) for _ in range(CUTS))]:
            path.write_bytes(data[:size])
            with pytest.raises(OctavoError, match=path.name):
                source_rows(tmp_path)
        path.write_bytes(data + b"\0")
        with pytest.raises(OctavoError, match=path.name):
            source_rows(tmp_path)
        path.write_bytes(data)


def test_p8_a_narrow_or_partial_read_checks_what_it_touches(tmp_path: pathlib.Path) -> None:
    exported(tmp_path, "arrow")
    state = Manifest(LocalTree(tmp_path), "orders").load()
    (entry,) = state.of_partition(1)
    path = tmp_path / "orders" / entry.file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    for columns, first, end in ((("offset",), None, None), (("value",), 3, 5)):
        with pytest.raises(StorageFailed, match=entry.file):
            list(read_file(path, columns, first, end, checks=checks_of(entry)))


def test_a_file_that_is_another_one_is_refused(tmp_path: pathlib.Path) -> None:
    """Both are whole and well formed; only one of them is what the manifest names."""
    exported(tmp_path, "arrow")
    one, other = sorted((tmp_path / "orders").iterdir())
    shutil.copy(other, one)
    with pytest.raises(StorageFailed, match=one.name):
        source_rows(tmp_path)


@pytest.mark.parametrize("fmt", ["arrow", "parquet"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_file_is_written_again_while_its_ledgers_live(
    tmp_path: pathlib.Path, fmt: str, damage: str
) -> None:
    topic = exported(tmp_path, fmt)
    right = source_rows(tmp_path)
    (entry,) = Manifest(LocalTree(tmp_path), "orders").load().of_partition(0)
    harm(tmp_path / "orders" / entry.file, damage)
    seen: list[tuple[str, bool]] = []

    def run(*, verify: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        report = asyncio.run(
            export_log(
                topic,
                "orders",
                tmp_path,
                fmt=fmt,
                verify=verify,
                checked=lambda one, wrong: seen.append((one.file, wrong is not None)),
            )
        )
        return report.damaged, report.unrepaired

    if damage == "flip":
        assert run(verify=False) == ((), ()), "an ordinary run compares sizes only"
        seen.clear()
    assert run(verify=damage == "flip") == ((entry.file,), ())
    assert (entry.file, True) in seen
    assert len(seen) == 2
    assert source_rows(tmp_path) == right
    assert run(verify=True) == ((), ())


def harm(path: pathlib.Path, damage: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(data[:200] + bytes((data[200] ^ 1,)) + data[201:])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])


async def test_files_that_share_a_ledger_are_written_again_together(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.client.exports.arrow_files.FILE_BYTES_MAX", 600_000)
    topic = MemoryTopic()
    topic.append([numbered(5000, 5000 * n) for n in range(8)])
    topic.append([numbered(10, 40_000)])
    await export_log(topic, "orders", tmp_path)
    before = state_of(tmp_path)
    middle = before.of_partition(0)[1]
    harm(tmp_path / "orders" / middle.file, "cut")
    report = await export_log(topic, "orders", tmp_path)
    assert (report.damaged, report.unrepaired) == ((middle.file,), ())
    assert state_of(tmp_path) == before, "the same rows give the same files"
    assert len(source_rows(tmp_path)) == 40_010


async def test_what_cannot_be_written_again_is_said_and_stays_an_error(
    tmp_path: pathlib.Path,
) -> None:
    topic = MemoryTopic()
    topic.append([numbered(10)])
    await export_log(topic, "orders", tmp_path)
    (entry,) = state_of(tmp_path).of_partition(0)
    harm(tmp_path / "orders" / entry.file, "gone")
    topic.segments[0].clear()
    topic.log_start[0] = 10
    report = await export_log(topic, "orders", tmp_path)
    assert (report.damaged, report.unrepaired) == ((entry.file,), (entry.file,))
    with pytest.raises(StorageFailed, match=entry.file):
        source_rows(tmp_path)


def state_of(root: pathlib.Path) -> ManifestState:
    return Manifest(LocalTree(root), "orders").load()


def test_checked_file_serves_any_range(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_file, "BLOCK_BYTES", 16)
    data = random.Random(1).randbytes(100)
    digest = BlockDigest()
    for start in range(0, 100, 7):
        digest.update(memoryview(data)[start : start + 7])
    path = tmp_path / "file"
    path.write_bytes(data)
    checks = FileChecks(100, 0, digest.finish())
    assert checks.is_complete()
    with CheckedFile(path, checks) as file:
        for start in range(101):
            for size in (0, 1, 15, 16, 17, 50, 200, -1):
                file.seek(start)
                assert file.read(size) == data[start : 100 if size < 0 else start + size]
    damaged = data[:33] + b"?" + data[34:]
    path.write_bytes(damaged)
    with CheckedFile(path, checks) as file:
        assert file.read(32) == data[:32], "blocks before the damage are still good"
        with pytest.raises(StorageFailed, match="block 2"):
            file.read(1)
        file.seek(48)
        assert file.read() == data[48:]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/mem answers EIO on Linux")
def test_an_unreadable_block_is_a_typed_error(tmp_path: pathlib.Path) -> None:
    """A read that fails in the kernel, as a bad sector does, names the file."""
    link = tmp_path / "file"
    link.symlink_to("/proc/self/mem")
    with CheckedFile(link, FileChecks(0, 0, "")) as file:
        file._checks = FileChecks(10, 0, "00000000")  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(StorageFailed, match="cannot be read"):
            file.read(10)


def test_files_of_the_right_size_are_not_opened(tmp_path: pathlib.Path) -> None:
    """A look at 100,000 files in an object store is some listings, not as many requests."""
    topic = MemoryTopic()
    for n in range(3):
        topic.append([numbered(10, n * 10)], size_bytes=20 << 20)

    class Counting(LocalTree):
        opened = 0

        def open(self, name: str) -> LocalFile:
            self.opened += 1
            return super().open(name)

    tree = Counting(tmp_path)
    asyncio.run(export_log(topic, "orders", tmp_path, tree=tree))
    assert asyncio.run(export_log(topic, "orders", tmp_path, tree=tree)).damaged == ()
    assert tree.opened == 0
    entry = Manifest(tree, "orders").load().of_partition(0)[1]
    tree.path(f"orders/{entry.file}").unlink()
    assert asyncio.run(export_log(topic, "orders", tmp_path, tree=tree)).damaged == (entry.file,)
    assert tree.opened == 1
