"""The manifest: one version, one winner; nothing half-written is ever seen (spec spark §5,
§14.1).
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache

import pytest

from octavo.client.exports import history as versions
from octavo.client.exports import manifest as manifests
from octavo.client.exports.history import History
from octavo.client.exports.manifest import (
    Change,
    ExportInfo,
    FileEntry,
    Manifest,
    ManifestState,
)
from octavo.client.exports.sealed import FORMAT_VERSION, INDEXED_VERSION, checksum_of
from octavo.client.exports.sweep import sweep
from octavo.client.exports.tree import ABANDONED_AFTER_S, LocalTree
from octavo.runtime.errors import (
    ConfigError,
    MetadataCorrupt,
    StorageFailed,
    UnsupportedVersion,
)

INFO = ExportInfo("orders", "ab" * 16, "arrow", "zstd", 2, "schema")


def entry(first: int, last: int, partition: int = 0) -> FileEntry:
    name = f"p{partition:05d}-{first:020d}-{last:020d}-7-00000000.arrow"
    return FileEntry(
        file=name,
        partition=partition,
        ledgers=(7,),
        first=first,
        last=last,
        rows=last - first + 1,
        bytes=100,
        arrow_bytes=200,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
        sha256="0" * 64,
        schema_id=0,
        codec="zstd",
        block_crcs="00000000",
    )


def adds(*entries: FileEntry) -> Change:
    return Change(add=entries)


def age(tree: LocalTree, *names: str) -> None:
    """Make files of the manifest's folder older than the grace time."""
    for name in names:
        path = tree.path(f"{FOLDER}/{name}")
        written_s = path.stat().st_mtime - ABANDONED_AFTER_S - 10
        os.utime(path, (written_s, written_s))


FOLDER = "_octavo/orders/_manifest"


CHECKPOINT_EVERY, VERSIONS_KEPT = 10, 30
"""In this file."""


@contextmanager
def short_histories() -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "CHECKPOINT_EVERY", CHECKPOINT_EVERY)
        patch.setattr(versions, "VERSIONS_KEPT", VERSIONS_KEPT)
        yield


@pytest.fixture(autouse=True)
def short() -> Generator[None]:
    with short_histories():
        yield


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> LocalTree:
    return LocalTree(tmp_path)


@pytest.fixture
def manifest(tree: LocalTree) -> Manifest:
    made = Manifest(tree, "orders")
    made.create(INFO)
    return made


def test_state_is_the_sum_of_versions(manifest: Manifest, tree: LocalTree) -> None:
    manifest.publish(lambda _: adds(entry(0, 9)))
    manifest.publish(lambda _: adds(entry(10, 19), entry(0, 4, partition=1)))
    state = Manifest(tree, "orders").load()
    assert state.version == 2
    assert [e.first for e in state.of_partition(0)] == [0, 10]
    assert (state.next_offset(0), state.next_offset(1), state.next_offset(2)) == (20, 5, 0)


def test_nothing_to_do_creates_no_version(manifest: Manifest, tree: LocalTree) -> None:
    manifest.publish(lambda _: None)
    manifest.publish(lambda _: Change())
    assert tree.names("_octavo/orders/_manifest") == []


def test_gaps_are_legal_and_overlaps_are_not(manifest: Manifest) -> None:
    manifest.publish(lambda _: adds(entry(0, 9)))
    manifest.publish(lambda _: adds(entry(50, 59)))
    with pytest.raises(MetadataCorrupt, match="overlaps"):
        manifest.publish(lambda _: adds(entry(59, 70)))


def test_compaction_adds_and_removes_in_one_version(manifest: Manifest, tree: LocalTree) -> None:
    old = (entry(0, 9), entry(10, 19))
    manifest.publish(lambda _: adds(*old))
    manifest.publish(lambda _: Change((entry(0, 19),), tuple(e.file for e in old)))
    state = Manifest(tree, "orders").load()
    assert [e.last for e in state.of_partition(0)] == [19]
    assert manifest.recently_removed(state) == {e.file for e in old}
    age(tree, "00000000000000000002.json")
    assert manifest.recently_removed(state) == frozenset()


def test_two_exporters_race_for_each_version(tree: LocalTree) -> None:
    """Every change lands exactly once, in some order, and no version is overwritten."""
    Manifest(tree, "orders").create(INFO)
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def export(partition: int) -> None:
        mine = Manifest(tree, "orders")
        try:
            barrier.wait()
            for n in range(25):
                mine.publish(lambda _, n=n: adds(entry(n * 10, n * 10 + 9, partition)))  # type: ignore[misc]
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=export, args=(p,)) for p in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    state = Manifest(tree, "orders").load()
    assert state.version == 100
    assert [len(state.of_partition(p)) for p in range(4)] == [25] * 4
    assert not [n for n in os.listdir(tree.path("_octavo/orders/_manifest")) if n.startswith(".")]


def test_loser_decides_anew_on_the_state_of_the_winner(tree: LocalTree) -> None:
    first, second = Manifest(tree, "orders"), Manifest(tree, "orders")
    first.create(INFO)
    seen: list[int] = []

    def decide(state: ManifestState) -> Change | None:
        seen.append(state.next_offset(0))
        if len(seen) == 1:  # the other exporter wins while this one is deciding
            first.publish(lambda _: adds(entry(0, 9)))
        return adds(entry(0, 9)) if state.next_offset(0) == 0 else None

    state = second.publish(decide)
    assert seen == [0, 10]
    assert state.version == 1
    assert len(state.files) == 1


def test_lost_reply_of_link_is_recognised_as_our_own_version(tmp_path: pathlib.Path) -> None:
    """M-3 on a network file system: `link` reports EEXIST for what it has just done."""

    class LostReply(LocalTree):
        def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
            super()._link(source, target)
            raise FileExistsError(str(target))

    tree = LostReply(tmp_path / "orders")
    manifest = Manifest(tree, "orders")
    manifest.create(INFO)
    assert manifest.publish(lambda _: adds(entry(0, 9))).version == 1
    assert Manifest(tree, "orders").load().version == 1


def test_checkpoint_and_log_equal_log_alone(manifest: Manifest, tree: LocalTree) -> None:
    for n in range(CHECKPOINT_EVERY + 5):
        old = entry((n - 1) * 10, n * 10 - 1).file
        remove = (old,) if n % 7 == 6 else ()
        manifest.publish(lambda _, n=n, r=remove: Change((entry(n * 10, n * 10 + 9),), r))  # type: ignore[misc]
    names = tree.names("_octavo/orders/_manifest")
    checkpoints = [name for name in names if name.startswith("checkpoint-")]
    assert checkpoints == [f"checkpoint-{CHECKPOINT_EVERY:020d}.json"]
    with_checkpoint = Manifest(tree, "orders").load()
    tree.path(f"_octavo/orders/_manifest/{checkpoints[0]}").unlink()
    log_alone = Manifest(tree, "orders").load()
    assert with_checkpoint == log_alone == manifest.load()


def test_checkpoint_shortens_reading(manifest: Manifest, tree: LocalTree) -> None:
    for n in range(CHECKPOINT_EVERY + 1):
        manifest.publish(lambda _, n=n: adds(entry(n * 10, n * 10 + 9)))  # type: ignore[misc]
    tree.path(f"_octavo/orders/_manifest/{1:020d}.json").write_text("unreadable")
    assert Manifest(tree, "orders").load().version == CHECKPOINT_EVERY + 1


def test_missing_version_is_damage_not_the_end(manifest: Manifest, tree: LocalTree) -> None:
    for n in range(3):
        manifest.publish(lambda _, n=n: adds(entry(n * 10, n * 10 + 9)))  # type: ignore[misc]
    tree.path(f"_octavo/orders/_manifest/{2:020d}.json").unlink()
    with pytest.raises(MetadataCorrupt, match="version 2 is missing"):
        Manifest(tree, "orders").load()


class Unsynced(LocalTree):
    """Syncs of a disk are not what these tests are about."""

    def _fsync(self, path: pathlib.Path) -> None:
        assert path.exists()

    def _fsync_folder(self, path: pathlib.Path) -> None:
        assert path.is_dir()


class Dying(Unsynced):
    """The process dies before its `left`th removal from now on."""

    left = 10**9

    def remove(self, name: str) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        super().remove(name)


FLOOR = 2 * CHECKPOINT_EVERY
"""Where the history of `year_old` can be cut off."""


@cache
def year_old() -> dict[str, bytes]:
    """Files of a tree with many versions; each third one joined the two files before it."""
    with short_histories(), tempfile.TemporaryDirectory() as root:
        tree = Unsynced(root)
        manifest = Manifest(tree, "orders")
        manifest.create(INFO)
        for n in range(FLOOR + VERSIONS_KEPT + 1):
            old = manifest.load().of_partition(0)[-2:] if n % 3 == 2 else []
            first = old[0].first if old else n * 10
            change = Change((entry(first, n * 10 + 9),), tuple(one.file for one in old))
            manifest.publish(lambda _, change=change: change)  # type: ignore[misc]
        found = [path for path in tree.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.fixture
def old_tree(tmp_path: pathlib.Path) -> Dying:
    """A tree whose versions are all older than the grace time."""
    tree = Dying(tmp_path)
    tree.make_folder(FOLDER)
    for name, data in year_old().items():
        tree.path(name).write_bytes(data)
    age(tree, *tree.names(FOLDER))
    return tree


def test_old_versions_go_and_the_list_stays(old_tree: Dying) -> None:
    tree = old_tree
    frozen, kept = Manifest(tree, "orders"), Manifest(tree, "orders")
    before = frozen.load()
    assert len(before.removed) > VERSIONS_KEPT // 3
    sweep(tree, kept, "orders")
    history = History.of(tree.names(FOLDER))
    assert history.oldest == FLOOR + 1
    assert history.checkpoints[0] == FLOOR
    assert len(history.checkpoints) == 1 + VERSIONS_KEPT // CHECKPOINT_EVERY
    after = Manifest(tree, "orders").load()
    assert (after.version, after.files) == (before.version, before.files)
    assert min(after.removed.values()) > FLOOR, "what old versions removed is forgotten"
    assert kept.prune() == 0
    for checkpoint in history.checkpoints[1:]:  # also without any of the newer checkpoints
        tree.path(f"{FOLDER}/checkpoint-{checkpoint:020d}.json").unlink()
    assert Manifest(tree, "orders").load().files == before.files
    assert frozen.publish(lambda _: adds(entry(10**6, 10**6))).version == before.version + 1


def test_a_number_that_was_pruned_is_nobodys(old_tree: Dying) -> None:
    """A writer stood still between its look and its version: that must not count as published."""
    tree = old_tree
    for number in range(FLOOR, FLOOR + VERSIONS_KEPT + 2):
        for name in (f"{number:020d}.json", f"checkpoint-{number:020d}.json"):
            tree.path(f"{FOLDER}/{name}").unlink(missing_ok=True)
    stale, others = Manifest(tree, "orders"), Manifest(tree, "orders")
    shown: list[int] = []

    def decide(state: ManifestState) -> Change:
        shown.append(state.version)
        if len(shown) == 1:
            for n in range(2 + VERSIONS_KEPT + CHECKPOINT_EVERY):
                others.publish(lambda _, n=n: adds(entry(10**6 + n, 10**6 + n)))  # type: ignore[misc]
            age(tree, *tree.names(FOLDER))
            assert others.prune() > 0
            assert not tree.path(f"{FOLDER}/{state.version + 1:020d}.json").exists()
        return adds(entry(10**7, 10**7))

    state = stale.publish(decide)
    assert shown == [FLOOR - 1, state.version - 1]
    assert Manifest(tree, "orders").load().files == state.files
    age(tree, f"{FLOOR:020d}.json")
    assert others.prune() == 1, "and what it left goes"


def test_a_pruner_may_die_at_each_step(old_tree: Dying) -> None:
    tree = old_tree
    files = Manifest(tree, "orders").load().files
    deaths = 0
    while deaths < 10 * CHECKPOINT_EVERY:
        tree.left = 1
        try:
            Manifest(tree, "orders").prune()
            break
        except KeyboardInterrupt:
            deaths += 1
            assert Manifest(tree, "orders").load().files == files
    assert deaths == FLOOR, "one removal each, of the versions and a checkpoint"
    assert History.of(tree.names(FOLDER)).oldest == FLOOR + 1


def test_what_is_young_stays(old_tree: Dying) -> None:
    tree = old_tree
    for number in range(CHECKPOINT_EVERY, FLOOR + 1, CHECKPOINT_EVERY):
        os.utime(tree.path(f"{FOLDER}/checkpoint-{number:020d}.json"))
    assert Manifest(tree, "orders").prune() == 0


def test_a_checkpoint_that_is_not_the_sum_takes_nobodys_place(old_tree: Dying) -> None:
    tree = old_tree
    path = tree.path(f"{FOLDER}/checkpoint-{CHECKPOINT_EVERY:020d}.json")
    body = json.loads(path.read_text())
    body["files"].pop()
    body["crc32c"] = checksum_of(body)
    path.write_text(json.dumps(body))
    age(tree, path.name)
    with pytest.raises(MetadataCorrupt, match="is not the sum of its versions"):
        Manifest(tree, "orders").prune()
    assert History.of(tree.names(FOLDER)).oldest == 1
    path.unlink()
    assert Manifest(tree, "orders").prune() == FLOOR


def test_a_reader_that_is_overtaken_by_a_pruner_looks_again(old_tree: Dying) -> None:
    tree = old_tree
    files = Manifest(tree, "orders").load().files
    others = Manifest(tree, "orders")

    class Slow(Unsynced):
        pruned = 0

        def read(self, name: str) -> bytes | None:
            if name.endswith(f"/{5:020d}.json") and not self.pruned:
                self.pruned = others.prune()
            return super().read(name)

        def names(self, folder: str) -> list[str]:
            found = super().names(folder)
            return found if self.pruned else [n for n in found if "checkpoint" not in n]

    slow = Slow(tree.root)
    assert Manifest(slow, "orders").load().files == files
    assert slow.pruned == FLOOR


def test_a_manifest_does_not_go_back(manifest: Manifest, tree: LocalTree) -> None:
    """A file system that is not mounted looks like an empty folder: nothing is begun anew there."""
    manifest.publish(lambda _: adds(entry(0, 9)))
    tree.path("_octavo").rename(tree.path("unmounted"))
    with pytest.raises(StorageFailed, match="was at version 1 and is at 0 now"):
        manifest.publish(lambda _: adds(entry(10, 19)))
    assert not tree.path("_octavo").exists()
    tree.path("unmounted").rename(tree.path("_octavo"))
    assert manifest.load().version == 1


def test_a_checkpoint_without_its_version_is_damage(manifest: Manifest, tree: LocalTree) -> None:
    """Never a shorter list: the version that it holds was there."""
    for n in range(CHECKPOINT_EVERY):
        manifest.publish(lambda _, n=n: adds(entry(n * 10, n * 10 + 9)))  # type: ignore[misc]
    tree.path(f"{FOLDER}/{CHECKPOINT_EVERY:020d}.json").unlink()
    with pytest.raises(MetadataCorrupt, match=f"version {CHECKPOINT_EVERY} is missing"):
        Manifest(tree, "orders").load()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"file": "../../etc/passwd"}, MetadataCorrupt, "leaves its tree"),
        ({"file": "/etc/passwd"}, MetadataCorrupt, "leaves its tree"),
        ({"first": "0"}, MetadataCorrupt, "'first'"),
        ({"rows": None}, MetadataCorrupt, "'rows'"),
        ({"ledgers": ["7"]}, MetadataCorrupt, "no number"),
        ({"surprise": 1}, MetadataCorrupt, "'surprise'"),
    ],
)
def test_entries_are_not_trusted(
    manifest: Manifest,
    tree: LocalTree,
    change: dict[str, object],
    error: type[Exception],
    text: str,
) -> None:
    body = {
        "format_version": FORMAT_VERSION,
        "token": "t",
        "add": [{**asdict(entry(0, 9)), **change}],
        "remove": [],
    }
    body["crc32c"] = checksum_of(body)
    tree.path(f"_octavo/orders/_manifest/{1:020d}.json").write_text(json.dumps(body))
    with pytest.raises(error, match=text):
        Manifest(tree, "orders").load()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format_version": 2}', "null"])
def test_damaged_version_is_a_typed_error(manifest: Manifest, tree: LocalTree, text: str) -> None:
    tree.path(f"_octavo/orders/_manifest/{1:020d}.json").write_text(text)
    with pytest.raises((MetadataCorrupt, UnsupportedVersion)):
        Manifest(tree, "orders").load()


def test_unknown_format_version_is_refused(tree: LocalTree) -> None:
    tree.make_folder("_octavo/orders")
    body = json.dumps({**asdict(INFO), "format_version": INDEXED_VERSION + 1})
    tree.path("_octavo/orders/_export.json").write_text(body)
    with pytest.raises(UnsupportedVersion):
        Manifest(tree, "orders").info()


@pytest.mark.parametrize(
    "other",
    [
        ExportInfo("other", "ab" * 16, "arrow", "zstd", 2, "schema"),
        ExportInfo("orders", "cd" * 16, "arrow", "zstd", 2, "schema"),
        ExportInfo("orders", "ab" * 16, "parquet", "zstd", 2, "schema"),
    ],
)
def test_a_tree_belongs_to_one_topic(
    manifest: Manifest, tree: LocalTree, other: ExportInfo
) -> None:
    with pytest.raises(ConfigError):
        Manifest(tree, "orders").create(other)
    assert Manifest(tree, "orders").create(INFO) == INFO


def test_foreign_folders_are_refused(tree: LocalTree) -> None:
    """S15: nothing is written beside files of somebody else."""
    tree.make_folder("orders")
    tree.path("orders/holiday.jpg").write_text("beach")
    with pytest.raises(ConfigError, match=r"holiday\.jpg"):
        Manifest(tree, "orders").create(INFO)
    assert [path.name for path in tree.root.rglob("*")] == ["orders", "holiday.jpg"]
