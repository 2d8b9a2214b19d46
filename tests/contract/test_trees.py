"""What an export root promises, wherever it lies: a folder, any pyarrow.fs, S3 (ADR 69)."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from pyarrow import fs

from octavo.client.exports import history, manifest, object_tree, s3_writer
from octavo.client.exports import tree as trees
from octavo.client.exports.arrow_files import check_bytes, checks_of, read_file
from octavo.client.exports.cold import ColdFile
from octavo.client.exports.columns import EXPORTED
from octavo.client.exports.history import History
from octavo.client.exports.manifest import Manifest
from octavo.client.exports.object_tree import ObjectTree
from octavo.client.exports.places import source_at, tree_at
from octavo.client.exports.run import export_log
from octavo.client.exports.sweep import sweep
from octavo.client.exports.tree import ABANDONED_AFTER_S, LocalTree, Tree
from octavo.runtime.errors import ConfigError, OctavoError, StorageFailed, StorageUnavailable
from octavo.spark.options import ReadOptions
from octavo.spark.plan import FileSplit
from octavo.spark.reading import plan_files, read_file_split
from tests.spark_memory import MemoryTopic, Row, numbered, rows_back

START_TIMEOUT_S = 120.0
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The options of a URI that lead to a running S3 server."""
    said = tmp_path_factory.mktemp("s3") / "stderr.txt"
    with pytest.MonkeyPatch.context() as patch, said.open("wb") as errors:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "tests.s3_server"]
        root = pathlib.Path(__file__).parents[2]
        with subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server:
            watch = threading.Timer(START_TIMEOUT_S, server.kill)
            watch.start()
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            watch.cancel()
            assert port, f"the S3 server did not start: {said.read_text()[-2000:]}"
            yield f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
            server.kill()


@dataclass
class LocalWriter:
    """Writes for a tree over pyarrow's local file system."""

    tree: LocalTree

    def create(self, name: str, data: bytes) -> bool:
        self.tree.make_folder(os.path.dirname(name))
        return self.tree.create_exclusive(name, data)

    def put(self, name: str, data: bytes | pathlib.Path) -> None:
        self.tree.make_folder(os.path.dirname(name))
        self.tree.replace(name, data if isinstance(data, bytes) else data.read_bytes())

    def remove(self, name: str) -> None:
        self.tree.remove(name)


def bucket_uri(s3: str, bucket: str = "lake") -> str:
    return f"s3://{bucket}/{uuid.uuid4().hex[:8]}/trees?{s3}"


@pytest.fixture(params=["folder", "subtree", "s3"])
def tree(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Tree:
    """An empty tree of each kind."""
    if request.param == "folder":
        return tree_at(tmp_path / "lake")
    if request.param == "subtree":
        store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        return ObjectTree(store, "lake", "mock://lake", LocalWriter(LocalTree(tmp_path / "lake")))
    return tree_at(bucket_uri(request.getfixturevalue("s3")))


def test_absent_and_empty(tree: Tree) -> None:
    assert tree.names("orders") == []
    assert tree.read("orders/none") is None
    assert tree.abandoned("orders") == []
    tree.remove("orders/none")
    with pytest.raises(StorageFailed, match="orders/none is gone"):
        tree.open("orders/none")


def test_one_of_many_creates_a_file(tree: Tree) -> None:
    tree.make_folder("c/_manifest")
    with ThreadPoolExecutor(4) as threads:
        for n in range(3):
            name = f"c/_manifest/{n}.json"
            told = list(threads.map(partial(tree.create_exclusive, name), [b"0", b"1", b"2", b"3"]))
            assert told.count(True) == 1
            assert tree.read(name) == b"%d" % told.index(True)
    assert tree.names("c/_manifest") == ["0.json", "1.json", "2.json"]
    assert tree.names("c") == ["_manifest"]


def test_replaced_published_and_removed(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("orders", "_octavo/orders"):
        tree.make_folder(folder)
    tree.replace("_octavo/orders/checkpoint", b"one")
    tree.replace("_octavo/orders/checkpoint", b"second")
    assert tree.read("_octavo/orders/checkpoint") == b"second"
    data = os.urandom(200_000)
    monkeypatch.setattr(object_tree, "READ_BACK_BYTES", 64 << 10)
    for _ in range(2):  # the same name has the same content
        made = tree.temporary("_octavo/orders")
        made.write_bytes(data)
        tree.sync(made)
        tree.publish(made, "orders/%2Efile.arrow")
        assert not made.exists()
    file = tree.open("orders/%2Efile.arrow")
    assert (file.size_bytes, file.pread(5, 7)) == (len(data), data[7:12])
    assert file.pread(100, len(data) - 3) == data[-3:]
    file.close()
    assert tree.names("orders") == ["%2Efile.arrow"]
    assert tree.sizes("orders") == {"%2Efile.arrow": len(data)}
    assert tree.sizes("none") == {}
    made = tree.temporary("orders")
    made.write_bytes(b"half")
    tree.discard(made)
    tree.discard(made)
    assert not made.exists()
    tree.remove("orders/%2Efile.arrow")
    tree.remove("orders/%2Efile.arrow")
    assert tree.names("orders") == []


def test_hidden_files_are_swept_and_not_listed(tree: Tree) -> None:
    tree.make_folder("orders")
    for name in (".tmp-1", "seen"):
        tree.replace(f"orders/{name}", b"x")
    later = time.time() + ABANDONED_AFTER_S + 60
    assert tree.names("orders") == ["seen"]
    assert tree.abandoned("orders") == []
    assert tree.abandoned("orders", later) == [".tmp-1", "seen"]


def log_of_two() -> MemoryTopic:
    topic = MemoryTopic()
    topic.append([numbered(50)], producer=(3, 0, 0))
    topic.append([numbered(50, 50)], size_bytes=20 << 20)
    return topic


def rows_of(tree: Tree) -> dict[int, Row]:
    found: dict[int, Row] = {}
    for entry in Manifest(tree, "orders").load().of_partition(0):
        for rows in read_file(tree.open(f"orders/{entry.file}"), EXPORTED, checks=checks_of(entry)):
            found.update(rows_back(rows))
    return found


async def test_an_export_is_the_same_everywhere(tree: Tree, tmp_path: pathlib.Path) -> None:
    """Two exporters at once, then one with more to do; batches and rows come back."""
    topic = log_of_two()
    place = tmp_path / "unused"
    run = [export_log(topic, "orders", place, tree=tree, index=True) for _ in range(2)]
    reports = await asyncio.gather(*run)
    assert sum(report.rows for report in reports) == 100
    assert reports[0].root == tree.where("orders")
    topic.append([numbered(10, 100)])
    assert (await export_log(topic, "orders", place, tree=tree)).rows == 10
    assert rows_of(tree) == topic.rows[0]
    entries = Manifest(tree, "orders").load().of_partition(0)
    await export_log(topic, "orders", tmp_path / "plain", index=True)
    plain = Manifest(LocalTree(tmp_path / "plain"), "orders").load().of_partition(0)
    assert plain[0].sha256 == entries[0].sha256
    with ColdFile(tree, "orders", entries[0]) as cold:
        assert [b.batch for b in cold.batches(0, 1 << 20)] == [
            item.batch for item in topic.stored[1] + topic.stored[2]
        ][: cold.entries]
    assert (await export_log(topic, "orders", place, tree=tree, verify=True)).damaged == ()
    for damaged in (f"orders/{entries[0].file}", f"_octavo/orders/_index/{entries[0].index}"):
        stored = tree.read(damaged)
        assert stored is not None
        tree.replace(damaged, stored[:-20] + bytes(20))
        report = await export_log(topic, "orders", place, tree=tree, verify=True)
        assert (report.damaged, report.unrepaired) == ((entries[0].file,), ())
        assert tree.read(damaged) == stored
    tree.remove(f"orders/{entries[1].file}")
    assert (await export_log(topic, "orders", place, tree=tree)).damaged == (entries[1].file,)
    check_bytes(tree.open(f"orders/{entries[1].file}"), entries[1])


async def test_old_versions_go_everywhere(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(history, "VERSIONS_KEPT", 3)
    topic = MemoryTopic()
    exporter = Manifest(tree, "orders")
    for n in range(7):
        topic.append([numbered(10, n * 10)], size_bytes=20 << 20)
    await export_log(topic, "orders", "unused", tree=tree)
    sweep(tree, exporter, "orders")
    assert History.of(tree.names("_octavo/orders/_manifest")).oldest == 1, "nothing is old"
    monkeypatch.setattr(trees, "ABANDONED_AFTER_S", -60.0)
    monkeypatch.setattr(object_tree, "ABANDONED_AFTER_S", -60.0)
    sweep(tree, exporter, "orders")
    found = History.of(tree.names("_octavo/orders/_manifest"))
    assert (found.oldest, found.newest, found.checkpoints) == (5, 7, (4, 6))
    assert rows_of(tree) == topic.rows[0]
    topic.append([numbered(10, 70)])
    assert (await export_log(topic, "orders", "unused", tree=tree)).rows == 10


async def test_spark_plans_and_reads_s3(s3: str) -> None:
    """Plans hold the URI of each file, options and all; workers open it with nothing else."""
    root = bucket_uri(s3)
    topic = log_of_two()
    await export_log(topic, "orders", root, fmt="parquet")
    found: dict[int, Row] = {}
    for split in plan_files(ReadOptions.parse({"path": root, "subscribe": "orders"})):
        assert isinstance(split, FileSplit)
        assert split.path.startswith(root.partition("?")[0] + "/orders/p00000-")
        assert "test" not in split.path.partition("?")[2], "no credentials"
        for rows in read_file_split(split, EXPORTED):
            found.update(rows_back(rows))
    assert found == topic.rows[0]
    with pytest.raises(OctavoError, match="holds no export of topic 'other'"):
        plan_files(ReadOptions.parse({"path": root, "subscribe": "other"}))


async def test_a_store_that_ignores_the_condition_is_refused(s3: str) -> None:
    """Two exporters would overwrite each other's manifest versions."""
    with pytest.raises(ConfigError, match="does not obey If-None-Match"):
        await export_log(log_of_two(), "orders", bucket_uri(s3, "odd"))


async def test_m3_a_lost_reply_of_a_version_is_told_from_a_lost_race(s3: str) -> None:
    tree = tree_at(bucket_uri(s3, "lossy"))
    topic = log_of_two()
    await export_log(topic, "orders", "unused", tree=tree)
    assert tree.names("_octavo/orders/_manifest") == [f"{n:020d}.json" for n in (1, 2)]
    assert rows_of(tree) == topic.rows[0]


async def test_errors_say_what_is_wrong(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log_of_two()
    for bucket, kind, said in (
        ("missing", ConfigError, "no such bucket"),
        ("denied", StorageUnavailable, "access denied"),
    ):
        uri = bucket_uri(s3, bucket)
        with pytest.raises(kind, match=said):
            await export_log(topic, "orders", uri)
        with pytest.raises(kind, match=said):
            plan_files(ReadOptions.parse({"path": uri, "subscribe": "orders"}))
    monkeypatch.setattr(s3_writer, "_ATTEMPTS", 1)
    nobody = "s3://lake/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with pytest.raises(StorageUnavailable, match="cannot be reached now"):
        tree_at(nobody).replace("a/b", b"")
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    with pytest.raises(ConfigError, match="needs botocore") as caught:
        tree_at(nobody + "2").replace("a/b", b"")  # a client that is not made yet
    assert caught.value.hint == "pip install 'octavo[s3]'"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("ftp://host/x", "ftp:// is not supported"),
        ("s3a://lake/x", "write s3://"),
        ("s3://key:secret@lake/x", "holds credentials"),
        ("s3:///x", "names no bucket"),
        ("s3://lake/x?nonsense=1&region=a", "nonsense"),
    ],
)
def test_places_that_are_none(place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tree_at(place)
    assert "secret" not in str(caught.value)


def test_a_tree_that_cannot_be_written_exclusively_is_read_only(tmp_path: pathlib.Path) -> None:
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    tree = ObjectTree(store, "lake", "gs://lake", None)
    assert Manifest(tree, "orders").publish(lambda _: None).files == {}
    with pytest.raises(ConfigError, match="can be read and not be written"):
        tree.create_exclusive("a/b", b"")


def test_file_uris_are_folders(tmp_path: pathlib.Path) -> None:
    tree = tree_at((tmp_path / "a b").as_uri())
    assert isinstance(tree, LocalTree)
    assert tree.where("orders/x") == f"{tmp_path}/a b/orders/x"
    assert source_at(f"{tmp_path}/x") == tmp_path / "x"
