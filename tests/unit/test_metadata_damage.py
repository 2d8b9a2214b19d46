"""Damage of metadata is refused by name, absence included (M-7, INV-9 for metadata)."""

from __future__ import annotations

import pathlib
import shutil
import sqlite3

import pytest

from octavo.metadata.embedded_file import FILE_NAME
from octavo.metadata.embedded_proof import Witness
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.embedded_tree import SqliteTree
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.memory import MemoryCluster
from octavo.metadata.store import Put
from octavo.metadata.topics import PartitionCatalog, PartitionState, TopicCatalog
from octavo.metadata.version_floor import VersionFloor
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    MetadataCorrupt,
    OctavoError,
    StorageFailed,
)
from tests.unit.metadata_stores import PATHS, ImpatientClock, ledger_catalog, new_ledger
from tools import metadata_flips

WAL = f"{FILE_NAME}-wal"


# --- the embedded store's files ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "trials"),
    [
        (metadata_flips.flip_bit, 100),
        (metadata_flips.zero_sector, 20),
        (metadata_flips.cut, 20),
        (metadata_flips.empty, 4),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_no_damage_of_the_files_is_believed(damage: metadata_flips.Damage, trials: int) -> None:
    """`make soak-metadata` runs 2,000."""
    seen = metadata_flips.run(2, trials, damage)
    assert not metadata_flips.faults(seen), seen
    assert seen["refused"], seen


def a_store(folder: pathlib.Path, keys: int = 5) -> SqliteTree:
    tree = SqliteTree(folder)
    for number in range(keys):
        tree.create(f"/octavo/k{number}", b"value %d" % number, 0)
    return tree


def copy_unclosed(tree: SqliteTree, folder: pathlib.Path, to: pathlib.Path) -> None:
    """The files as they are when the process is killed now."""
    shutil.copytree(folder, to)
    tree.close()


def test_killed_store_comes_back_whole(tmp_path: pathlib.Path) -> None:
    copy_unclosed(a_store(tmp_path / "a"), tmp_path / "a", tmp_path / "b")
    tree = SqliteTree(tmp_path / "b")
    assert tree.children("/octavo") == [f"k{number}" for number in range(5)]
    tree.close()


def test_lost_log_is_refused(tmp_path: pathlib.Path) -> None:
    """SQLite itself would open an older state without a word."""
    copy_unclosed(a_store(tmp_path / "a"), tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / WAL).unlink()
    with pytest.raises(MetadataCorrupt, match="last 5 changes are missing"):
        SqliteTree(tmp_path / "b")


def test_lost_log_is_refused_without_the_witness_too(tmp_path: pathlib.Path) -> None:
    copy_unclosed(a_store(tmp_path / "a"), tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / WAL).unlink()
    (tmp_path / "b" / Witness.FILE_NAME).unlink()
    with pytest.raises(MetadataCorrupt, match="was not closed"):
        SqliteTree(tmp_path / "b")


def test_older_copy_of_the_file_is_refused(tmp_path: pathlib.Path) -> None:
    a_store(tmp_path).close()
    old = (tmp_path / FILE_NAME).read_bytes()
    tree = SqliteTree(tmp_path)
    tree.put("/octavo/k1", b"newer", 0)
    tree.close()
    (tmp_path / FILE_NAME).write_bytes(old)
    with pytest.raises(MetadataCorrupt, match="rolled back"):
        SqliteTree(tmp_path)


def test_file_that_is_gone_or_empty_is_no_new_cluster(tmp_path: pathlib.Path) -> None:
    a_store(tmp_path).close()
    (tmp_path / FILE_NAME).write_bytes(b"")
    with pytest.raises(MetadataCorrupt, match="empty"):
        SqliteTree(tmp_path)
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(MetadataCorrupt, match="gone"):
        SqliteTree(tmp_path)


def test_witness_may_be_lost_of_a_file_that_was_closed(tmp_path: pathlib.Path) -> None:
    a_store(tmp_path).close()
    (tmp_path / Witness.FILE_NAME).unlink()
    tree = SqliteTree(tmp_path)
    assert tree.get("/octavo/k1") is not None
    tree.close()


def test_what_is_no_database_is_refused_with_the_way_out(tmp_path: pathlib.Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(MetadataCorrupt) as caught:
        SqliteTree(tmp_path)
    assert "restore" in caught.value.hint


def test_folder_in_use_and_unreadable_file_are_no_damage(tmp_path: pathlib.Path) -> None:
    tree = a_store(tmp_path)
    with pytest.raises(IllegalStateError, match="cannot be opened"):
        SqliteTree(tmp_path)
    tree.close()
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StorageFailed):
        SqliteTree(tmp_path)


def test_crash_between_commit_and_witness_is_no_damage(tmp_path: pathlib.Path) -> None:
    tree = a_store(tmp_path / "a")
    witness = (tmp_path / "a" / Witness.FILE_NAME).read_bytes()
    tree.put("/octavo/k1", b"committed, not answered", 0)
    copy_unclosed(tree, tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / Witness.FILE_NAME).write_bytes(witness)
    again = SqliteTree(tmp_path / "b")
    assert (again.get("/octavo/k1") or (b"",))[0] == b"committed, not answered"
    again.close()


def test_witness_that_cannot_be_written_stops_writes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = a_store(tmp_path)

    def fail(_self: Witness, _witnessed: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Witness, "write", fail)
        with pytest.raises(StorageFailed):
            tree.put("/octavo/k1", b"new", 0)
    with pytest.raises(StorageFailed):  # it works again, but what it missed cannot be known
        tree.put("/octavo/k2", b"new", 0)
    tree.close()


async def test_check_finds_what_went_bad_while_it_ran(tmp_path: pathlib.Path) -> None:
    server = EmbeddedMetadataServer(tmp_path, SystemClock())
    await server.start()
    tree = server._open_tree  # pyright: ignore[reportPrivateUsage]
    db: sqlite3.Connection = tree._db  # pyright: ignore[reportPrivateUsage]

    def fill() -> None:
        for name in ("good", "bad", "gone"):
            tree.create(f"/octavo/{name}", b"value", 0)
        db.execute("UPDATE nodes SET version = 7 WHERE name = 'bad'")
        db.execute("DELETE FROM nodes WHERE name = 'gone'")

    await server._in_thread(fill)  # pyright: ignore[reportPrivateUsage]
    assert await server.check() == ["/octavo/bad", "/octavo/gone"]

    def ask() -> None:
        assert tree.children("/octavo") == ["bad", "gone", "good"]
        scanned = tree.scan(["/octavo"], "", 10)[0].children
        damaged = [child.name for child in scanned if isinstance(child.found, MetadataCorrupt)]
        assert ([child.name for child in scanned], damaged) == (
            ["bad", "gone", "good"],
            ["bad", "gone"],
        )
        for key in ("/octavo/bad", "/octavo/gone"):
            for call in (
                lambda key=key: tree.get(key),
                lambda key=key: tree.put(key, b"x", None),
                lambda key=key: tree.delete(key, None),
                lambda key=key: tree.fetch_add(key),
                lambda key=key: tree.create_and_put("/octavo/new", b"x", Put(key, b"x", 0)),
            ):
                with pytest.raises(MetadataCorrupt, match=key):
                    call()
            with pytest.raises(KeyExists):
                tree.create(key, b"x", 0)
        assert tree.get("/octavo/new") is None

    await server._in_thread(ask)  # pyright: ignore[reportPrivateUsage]
    await server.stop()


# --- catalogs ----------------------------------------------------------------------------------


async def test_m7_one_damaged_topic_hides_no_other_and_is_not_absent() -> None:
    cluster = MemoryCluster()
    topics = TopicCatalog(cluster.connect(), PATHS, clock=ImpatientClock(), entropy=SystemEntropy())
    for name in ("a", "b", "c"):
        await topics.create(name, 1)
    cluster.corrupt(PATHS.topic("b"), b"zeros")
    assert [found.topic.name for found in await topics.list()] == ["a", "c"]
    with pytest.raises(MetadataCorrupt):
        await topics.get("b")
    with pytest.raises(OctavoError):
        await topics.create("b", 1)


async def test_ledger_whose_version_went_back_is_refused() -> None:
    """A restored snapshot shows an OPEN ledger that was CLOSED: acting on it would reopen it."""
    cluster = MemoryCluster()
    catalog = ledger_catalog(cluster.connect())
    made = await new_ledger(catalog)
    ledger_id = made.metadata.ledger_id
    closed = await catalog.cas(made, made.metadata.closed(made.metadata.last_fragment[0], 5))
    assert closed.metadata.state is LedgerState.CLOSED
    cluster.force_version(PATHS.ledger(ledger_id), 0)
    for barrier in (False, True):
        with pytest.raises(MetadataCorrupt, match="went back from version 1 to 0"):
            await catalog.read(ledger_id, barrier=barrier)
    assert catalog.corrupt_records == 2


async def test_lagging_follower_is_no_rollback() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    catalog = ledger_catalog(store)
    made = await new_ledger(catalog)
    store.lag()
    rival = ledger_catalog(cluster.connect())
    recovering = await rival.cas(made, made.metadata.in_recovery())
    assert (await catalog.read(made.metadata.ledger_id, barrier=True)).version == 1
    store.lag()
    assert await catalog.read(made.metadata.ledger_id) == recovering


async def test_partition_whose_version_went_back_is_refused() -> None:
    cluster = MemoryCluster()
    catalog = PartitionCatalog(
        cluster.connect(), PATHS, clock=ImpatientClock(), entropy=SystemEntropy()
    )
    topic_id = SystemEntropy().uuid()
    made = await catalog.create(PartitionState(topic_id, 0))
    await catalog.cas(made, made.state)
    cluster.force_version(PATHS.partition(topic_id, 0), 0)
    with pytest.raises(MetadataCorrupt, match="went back"):
        await catalog.read(topic_id, 0)


def test_versions_are_remembered_within_a_bound() -> None:
    floor = VersionFloor(limit=2)
    for number in range(5):
        floor.saw(f"/k{number}", 3)
    assert [floor.of(f"/k{number}") for number in range(5)] == [-1, -1, -1, 3, 3]
    floor.check("/k4", 3, floor.of("/k4"))
    floor.forget("/k4")
    assert floor.of("/k4") == -1


async def test_inv11_a_restored_backup_never_gives_an_id_again() -> None:
    """ID-3: ids drawn after the backup are unknown to it; the next epoch is above all of them."""
    cluster = MemoryCluster()
    store = cluster.connect()
    allocator = LedgerIdAllocator(store, PATHS, ImpatientClock())
    drawn = [await allocator.allocate() for _ in range(10)]
    cluster.force_version(PATHS.idgen_epoch(0), 2)  # what the backup knows
    await LedgerIdAllocator(store, PATHS, ImpatientClock()).raise_epoch()
    fresh = LedgerIdAllocator(cluster.connect(), PATHS, ImpatientClock())
    assert min([await fresh.allocate() for _ in range(10)]) > max(drawn)
