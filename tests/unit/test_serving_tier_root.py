"""Whose folder `tier_root` is: one of others, or none, is never "files are gone" (F088, ADR 75)."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import threading
import uuid
from collections.abc import Callable

import pytest

from octavo.client.exports.tier_marker import MARKER, TierMark, make_mark, read_mark
from octavo.metadata.tier import TierCatalog
from octavo.metadata.topics import Topic
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    ConfigError,
    MetadataCorrupt,
    ReadUnknown,
    StorageFailed,
    UnknownOutcome,
    UnsupportedVersion,
)
from octavo.serving.partition.read_path import offset_for_time
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering import reads
from octavo.serving.tiering import root as tier_root
from octavo.serving.tiering import rounds as tier_rounds
from octavo.serving.tiering.root import TierRoot
from tests.compaction_rig import read_all
from tests.serving_rig import NAME, Rig
from tests.tiering_rig import TieredBroker, settle

GONE_LOCALLY = {"retention_local_bytes": "0"}
MINE = TierMark("cluster-1", uuid.UUID(int=5).hex)


def catalog_of(rig: Rig) -> TierCatalog:
    return TierCatalog(rig.metadata.connect(), rig.paths, rig.clock)


async def begun(rig: Rig, path: pathlib.Path, cluster_id: str = "cluster-1") -> TierRoot:
    root = TierRoot(str(path))
    await root.begin(cluster_id, catalog_of(rig), SeededEntropy(9))
    return root


def marks(path: pathlib.Path) -> bytes:
    return (path / MARKER).read_bytes()


def unmount(path: pathlib.Path) -> pathlib.Path:
    """What lies there is elsewhere, and an empty folder in its place."""
    hidden = path.with_name("hidden")
    path.rename(hidden)
    path.mkdir()
    return hidden


def mount(hidden: pathlib.Path, path: pathlib.Path) -> None:
    path.rmdir()
    hidden.rename(path)


async def test_the_first_broker_marks_the_folder_and_the_others_find_it(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    first, second = await asyncio.gather(begun(rig, tmp_path), begun(rig, tmp_path))
    assert (first.problem, second.problem) == (None, None)
    mark = read_mark(str(tmp_path))
    assert mark is not None
    assert (mark.cluster_id, mark.tier_id) == ("cluster-1", await catalog_of(rig).tier_id())
    before = marks(tmp_path)
    third = await begun(rig, tmp_path)
    third.check()
    assert marks(tmp_path) == before
    for root in (first, second, third):
        await root.close()
    await rig.close()


@pytest.mark.parametrize("named", [False, True])
async def test_whoever_died_behind_the_marker_is_followed_by_one_who_takes_it(
    named: bool, tmp_path: pathlib.Path
) -> None:
    rig = Rig()
    make_mark(str(tmp_path), MINE)
    if named:
        assert await catalog_of(rig).name(MINE.tier_id) == MINE.tier_id
    root = await begun(rig, tmp_path)
    assert root.problem is None
    assert await catalog_of(rig).tier_id() == MINE.tier_id
    assert await catalog_of(rig).name(uuid.UUID(int=6).hex) == MINE.tier_id
    await root.close()
    await rig.close()


async def test_a_folder_of_another_cluster_is_refused_and_left_alone(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    make_mark(str(tmp_path), MINE._replace(cluster_id="cluster-2"))
    before = marks(tmp_path)
    with pytest.raises(ConfigError, match="belongs to cluster cluster-2") as refused:
        await begun(rig, tmp_path)
    assert "a folder of its own" in (refused.value.hint or "")
    assert marks(tmp_path) == before
    assert await catalog_of(rig).tier_id() == ""
    await rig.close()


async def test_another_tier_of_the_same_cluster_is_not_the_one(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    await catalog_of(rig).name(uuid.UUID(int=6).hex)
    make_mark(str(tmp_path), MINE)
    root = await begun(rig, tmp_path)
    assert "the same folder on every broker" in str(root.problem)
    with pytest.raises(StorageFailed, match=f"holds tier {MINE.tier_id}"):
        root.require()
    await root.close()
    await rig.close()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"format_version": 1, "cluster_id": "cluster-1"}', "cannot be read"),
        (b'{"format_version": 1, "cluster_id": "cluster-1", "tier_id": "5"}', "cannot be read"),
        (MINE.text().replace(": 1,", ": 2,").encode(), "format version 2"),
    ],
)
async def test_a_marker_that_cannot_be_read_makes_nobody_the_owner(
    content: bytes, says: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / MARKER).write_bytes(content)
    with pytest.raises((StorageFailed, UnsupportedVersion), match=says):
        read_mark(str(tmp_path))
    rig = Rig()
    root = await begun(rig, tmp_path)
    assert says in str(root.problem)
    assert marks(tmp_path) == content
    assert await catalog_of(rig).tier_id() == ""
    await root.close()
    await rig.close()


async def test_a_stored_id_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    await rig.metadata.connect().create(rig.paths.tier, b"no uuid")
    root = await begun(rig, tmp_path)
    assert isinstance(root.problem, MetadataCorrupt)
    assert read_mark(str(tmp_path)) is None
    await root.close()
    await rig.close()


async def test_a_folder_that_is_not_there_keeps_no_broker_from_starting(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    path = tmp_path / "tier"
    root = await begun(rig, path)
    assert "is no folder" in str(root.problem)
    path.mkdir()
    await root.look()
    assert root.problem is None
    await root.close()
    await rig.close()


async def tiered(rig: Rig, path: pathlib.Path) -> tuple[TieredBroker, PartitionShell]:
    path.mkdir()  # noqa: ASYNC240
    broker = TieredBroker(rig, path)
    shell = await broker.filled(4, **GONE_LOCALLY)
    await settle(broker.rounds(shell), shell)
    return broker, shell


async def test_unknown_is_not_no_an_empty_folder_in_the_place_of_the_tier(
    tmp_path: pathlib.Path,
) -> None:
    """A file system that is not mounted: nothing is written, removed, deleted or answered."""
    rig = Rig()
    path = tmp_path / "tier"
    broker, shell = await tiered(rig, path)
    rounds = broker.rounds(shell)
    before = await read_all(shell)
    await shell.trim(12)
    hidden = unmount(path)
    kept = shell.tiers.state()
    await broker.tiered.root.look()
    failures = rounds.failures
    await rounds.round()
    assert rounds.failures == failures + 1
    with pytest.raises(StorageFailed, match=f"{MARKER} is not there") as refused:
        await rounds.look_at(shell)
    assert "mount what holds it" in (refused.value.hint or "")
    assert shell.tiers.state() == kept
    with pytest.raises(UnknownOutcome, match="cannot be deleted now"):
        await rounds.delete_tree(Topic(NAME.topic, NAME.topic_id, 1, {"tiering": "false"}))
    fresh = TieredBroker(rig, path)
    again = await fresh.opened(**GONE_LOCALLY)
    with pytest.raises(ReadUnknown, match=f"{MARKER} is not there"):
        await read_all(again, 12)
    assert os.listdir(path) == []
    mount(hidden, path)
    await fresh.tiered.root.look()
    assert await read_all(again, 12) == [row for row in before if row[0] >= 12]
    await settle(fresh.rounds(again), again)
    await fresh.rounds(again).delete_tree(Topic(NAME.topic, NAME.topic_id, 1, {"tiering": "true"}))
    assert os.listdir(path) == [MARKER]
    await rig.close()


async def test_a_tree_that_is_not_there_has_not_lost_its_files(tmp_path: pathlib.Path) -> None:
    rig = Rig()
    path = tmp_path / "tier"
    broker, shell = await tiered(rig, path)
    await shell.trim(12)
    (tree,) = (one for one in path.iterdir() if one.is_dir())
    shutil.move(tree, tmp_path / "hidden")
    with pytest.raises(StorageFailed):
        await broker.rounds(shell).look_at(shell)
    assert any(one.has_objects for one in shell.tiers.state().trash)
    await rig.close()


async def test_a_topic_without_files_is_deleted_while_the_tier_is_away(
    tmp_path: pathlib.Path,
) -> None:
    rig = Rig()
    broker = TieredBroker(rig, tmp_path / "away")
    await broker.begin_tier()
    await broker.rounds().delete_tree(Topic(NAME.topic, NAME.topic_id, 1, {}))
    await rig.close()


async def test_a_file_system_that_does_not_answer_is_told_and_waited_for_by_nobody(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    root = await begun(rig, tmp_path)
    thaw = threading.Event()

    def frozen(path: str) -> TierMark | None:
        thaw.wait()
        return read_mark(path)

    monkeypatch.setattr(tier_root, "read_mark", frozen)
    monkeypatch.setattr(tier_root, "LOOK_TIMEOUT_S", 0.01)
    for _ in range(3):
        await root.look()
        assert "does not answer" in str(root.problem)
    thaw.set()
    monkeypatch.setattr(tier_root, "LOOK_TIMEOUT_S", 10.0)
    async with asyncio.timeout(10):
        while root.problem is not None:
            await asyncio.sleep(0.001)
            await root.look()
    thaw.clear()
    monkeypatch.setattr(tier_root, "LOOK_TIMEOUT_S", 0.01)
    await root.look()
    await root.close()  # though a call hangs
    thaw.set()
    await rig.close()


async def test_what_is_wrong_is_said_once_in_one_line(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    path = tmp_path / "tier"
    root = await begun(rig, path)
    await root.look()
    await root.look()
    said = [one.getMessage() for one in caplog.records if "tier-root" in one.getMessage()]
    assert len(said) == 1
    assert "is no folder" in said[0]
    path.mkdir()
    await root.look()
    assert "tier-root-usable-again" in caplog.records[-1].getMessage()
    await root.close()
    await rig.close()


async def test_a_file_that_hangs_is_unknown_and_holds_nobody_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer: whoever opens it waits."""
    rig = Rig()
    path = tmp_path / "tier"
    _, shell = await tiered(rig, path)
    local = next(one.base_offset for one in shell.tiers.state().segments if one.in_ledger)
    monkeypatch.setattr(reads, "READ_TIMEOUT_S", 0.05)
    monkeypatch.setattr(reads, "CLOSE_TIMEOUT_S", 0.05)
    fresh = TieredBroker(rig, path)
    again = await fresh.opened(**GONE_LOCALLY)
    thaw = hang(path)
    failures = fresh.tiered.failures
    with pytest.raises(ReadUnknown, match="does not answer"):
        await read_all(again)
    with pytest.raises(ReadUnknown, match="does not answer"):
        await offset_for_time(again.view(), 1)
    assert fresh.tiered.failures == failures + 2
    assert (await read_all(again, local))[0][0] == local
    await fresh.tiered.close()
    thaw()
    await rig.close()


def hang(path: pathlib.Path) -> Callable[[], None]:
    """Each index of the tier is a pipe from now on; what ends that."""
    (index,) = path.glob("*/_octavo/orders/_index/*.index")
    index.unlink()
    os.mkfifo(index)

    def thaw() -> None:
        os.close(os.open(index, os.O_RDWR | os.O_NONBLOCK))

    return thaw


async def test_a_tree_that_is_not_deleted_in_time_holds_no_deletion_up(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker's housekeeping, which goes on with deletions, would stand still."""
    rig = Rig()
    path = tmp_path / "tier"
    broker, shell = await tiered(rig, path)
    rounds = broker.rounds(shell)
    topic = Topic(NAME.topic, NAME.topic_id, 1, {"tiering": "true"})
    monkeypatch.setattr(tier_rounds, "DELETE_TIMEOUT_S", 0.05)
    busy = (await broker.tiered.files()).tree(NAME)._lock  # pyright: ignore[reportPrivateUsage]
    with busy, pytest.raises(UnknownOutcome, match="may be later"):
        await rounds.delete_tree(topic)
    monkeypatch.setattr(tier_rounds, "DELETE_TIMEOUT_S", 10.0)
    await rounds.delete_tree(topic)
    assert os.listdir(path) == [MARKER]
    await rounds.close()
    await rig.close()
