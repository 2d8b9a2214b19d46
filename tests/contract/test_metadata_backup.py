"""A copy of the metadata is that of one moment, whole or not there, and put back under new ids, by
every store (ID-3, INV-11, ADR 51)."""

from __future__ import annotations

import asyncio
import pathlib
from dataclasses import replace

import pytest

from octavo.metadata.backup import Copied, CopyRules, back_up, walk_tree
from octavo.metadata.backup_file import BackupFile, BackupHead, BackupItem, BackupWriter
from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledgers import LedgerCatalog, Quorum
from octavo.metadata.memory import MemoryStore
from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.restore import EPOCHS_FROM_MS, Restored, restore
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import ManualClock, SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import IllegalStateError, MetadataCorrupt, NotReady, WrongCluster
from octavo.runtime.ids import Member
from tests.contract.metadata_harness import MetadataHarness

CLOCK, ENTROPY = SystemClock(), SystemEntropy()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """For copies, and nothing else."""
    made = tmp_path / "copies"
    made.mkdir()
    return made


def names_in(folder: pathlib.Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


class Cluster:
    """What a cluster keeps in a store, by the catalogs that write it."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self.store = store
        self.paths = Paths(root)
        self.cookies = CookieCatalog(store, self.paths, clock=CLOCK, entropy=ENTROPY)
        self.ledgers = LedgerCatalog(store, self.paths, clock=CLOCK, entropy=ENTROPY)

    async def filled(self) -> Cluster:
        instance = await self.cookies.cluster_id()
        member = Member("b1", ENTROPY.uuid())
        await self.cookies.create_cookie(Cookie("b1", instance, member.incarnation))
        await self.store.create(f"{self.paths.topics}/aa/t", b"\x00topic")
        await self.store.create(self.paths.repairs_disabled, b"")  # a switch without a value
        for _ in range(5):
            await self.ledgers.create(Quorum(1, 1, 1), [member])
        await ProducerIdAllocator(self.store, self.paths, CLOCK).allocate()
        await self.store.fetch_add(self.paths.ledgers_deleted)
        await self.store.create(self.paths.load("broker-1"), b"x", ephemeral=True)
        await self.store.create(self.paths.bundle(3), b"x", ephemeral=True)
        return self

    async def back_up(self, path: pathlib.Path, *, replace: bool = False) -> Copied:
        return await back_up(
            self.store, self.paths, path, clock=CLOCK, release="1.2", replace=replace
        )

    async def restore(
        self, path: pathlib.Path, *, replace: bool = False, now_ms: int = 0
    ) -> Restored:
        return await restore(
            self.store,
            self.paths,
            path,
            clock=ManualClock(wall_ms=now_ms),
            entropy=ENTROPY,
            replace=replace,
        )

    async def content(self) -> dict[str, bytes]:
        """Everything that a restoration must bring back."""
        rules = CopyRules(self.paths)
        skipped = (self.paths.idgen, self.paths.restored)
        return {
            key.removeprefix(self.paths.root): found.value
            async for key, found in walk_tree(self.store, self.paths.root, rules.is_copied)
            if not rules.is_counter(key) and key not in skipped
        }


async def test_what_was_copied_comes_back_under_another_root(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    copied = await cluster.back_up(folder / "copy")
    assert copied.passes == 2
    before = await cluster.content()
    assert len(before) == 5 + 4  # ledgers; the id, a cookie, a topic and a switch
    other = Cluster(store, root + "-new")
    restored = await other.restore(folder / "copy")
    assert await other.content() == before
    assert (restored.keys, restored.head) == (len(before), copied.head)
    assert names_in(folder) == ["copy"]
    mark = await other.cookies.restored()
    assert mark is not None
    assert (mark.made_ms, mark.epoch) == (copied.head.made_ms, restored.epoch)
    assert await store.get(other.paths.restoring) is None
    assert await store.children(other.paths.bundles) == []


async def test_inv11_no_id_comes_twice_after_a_restoration(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    await cluster.back_up(folder / "copy")
    late = [await cluster.ledgers.allocate_id() for _ in range(50)]
    producers = ProducerIdAllocator(store, cluster.paths, CLOCK)
    late_producers = [await producers.allocate() for _ in range(50)]
    epochs = [(await cluster.restore(folder / "copy", replace=True)).epoch]
    again = LedgerIdAllocator(store, cluster.paths, CLOCK)
    assert await again.allocate() > max(late)
    fresh = ProducerIdAllocator(store, cluster.paths, CLOCK)
    assert await fresh.allocate() > max(late_producers)
    # The store knows of the first restoration; one that was lost, too, has time to tell them apart.
    epochs.append((await cluster.restore(folder / "copy", replace=True)).epoch)
    for minutes in (1000, 1010):
        empty = Cluster(store, f"{root}-{minutes}")
        now_ms = EPOCHS_FROM_MS + minutes * 60_000
        epochs.append((await empty.restore(folder / "copy", now_ms=now_ms)).epoch)
    assert epochs == [1, 2, 1000, 1010]


async def test_a_store_in_use_is_not_touched(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    await cluster.back_up(folder / "copy")
    with pytest.raises(IllegalStateError, match="the store is not empty"):
        await cluster.restore(folder / "copy")
    for key in (cluster.paths.broker("broker-1"), cluster.paths.bookie_ro("b1")):
        await store.create(key, b"x", ephemeral=True)
        with pytest.raises(IllegalStateError, match=r"servers use this metadata: (broker-1|b1)"):
            await cluster.restore(folder / "copy", replace=True)
        await store.delete(key, expected=None)
    stranger = await Cluster(store, root + "-other").filled()
    before = await stranger.content()
    with pytest.raises(WrongCluster, match="the copy is of"):
        await stranger.restore(folder / "copy", replace=True)
    assert await stranger.content() == before
    # What `octavo up` makes in an empty place, before anybody used it, stands in nobody's way.
    fresh = Cluster(store, root + "-fresh")
    await fresh.cookies.cluster_id()
    await fresh.restore(folder / "copy", replace=True)
    assert await fresh.content() == await cluster.content()


async def test_cut_short_anywhere_no_server_starts_and_the_same_call_ends_it(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    await cluster.back_up(folder / "copy")
    before = await cluster.content()
    step = 1 if isinstance(store, MemoryStore) else 9  # of the same writes, each takes its time
    cuts = 0
    while True:
        at = Cluster(Dying(store, cuts), f"{root}-cut{cuts}")  # type: ignore[arg-type]
        there = Cluster(store, at.paths.root)
        await there.filled()
        await there.store.put(there.paths.instance_id, _id_of(folder / "copy"), expected=None)
        try:
            await at.restore(folder / "copy", replace=True)
        except Died:
            begun = await store.get(there.paths.restoring) is not None
            if begun:
                for _ in range(2):
                    with pytest.raises(IllegalStateError, match="is being restored"):
                        await there.cookies.cluster_id()
                with pytest.raises(IllegalStateError, match="is being restored"):
                    await there.back_up(folder / "half")
            first = await there.restore(folder / "copy", replace=not begun)
            assert await there.content() == before
            assert await there.cookies.cluster_id() == first.head.cluster_id
            cuts += step
        else:
            break
    assert cuts > 20


class Died(Exception):
    """The process ended at a write."""


class Dying:
    """A store whose client dies at its `after`th write."""

    def __init__(self, store: MetadataStore, after: int) -> None:
        self._store = store
        self._left = after

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if name not in ("create", "put", "delete"):
            return found

        async def write(*args: object, **kwargs: object) -> object:
            if self._left <= 0:
                raise Died
            self._left -= 1
            return await found(*args, **kwargs)

        return write


def _id_of(path: pathlib.Path) -> bytes:
    return BackupFile.opened(path).head.cluster_id.encode()


# --- of one moment -----------------------------------------------------------------------------


async def test_a_copy_of_a_changing_store_is_of_one_moment(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    """One writer moves a number through keys that the reader meets in both orders."""
    cluster = await Cluster(store, root).filled()
    first, last = f"{cluster.paths.topics}/00/a", f"{cluster.paths.ledgers}/zz"
    await store.create(first, b"0")
    await store.create(last, b"0")
    ended = False

    async def write() -> None:
        nonlocal ended
        for number in range(1, 40):
            await store.put(first, b"%d" % number, expected=None)
            await store.put(last, b"%d" % number, expected=None)
        ended = True

    async def copy() -> Copied:
        return await cluster.back_up(folder / "copy")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        task = tasks.create_task(copy())
    assert ended
    items = {i.key: i.value for i in BackupFile.opened(folder / "copy").items()}
    a, b = int(items["/topics/00/a"]), int(items["/L/zz"])
    assert a in (b, b + 1), f"{a} was written before {b} was, and no later"
    assert task.result().passes > 2


async def test_a_store_that_never_rests_is_not_copied_wrongly(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    key = f"{cluster.paths.topics}/00/a"
    await store.create(key, b"0")
    children = store.children

    class Restless(Dying):
        def __getattr__(self, name: str) -> object:
            if name != "barrier":
                return getattr(store, name)

            async def changed() -> None:
                await store.put(key, b"x", expected=None)  # the same bytes, another version
                await store.barrier()

            return changed

    restless = Cluster(Restless(store, 0), root)  # type: ignore[arg-type]
    with pytest.raises(NotReady, match="changed in each of 20 readings"):
        await restless.back_up(folder / "copy")
    assert names_in(folder) == []
    cookies = cluster.paths.cookie("b1")
    assert await children(cluster.paths.cookies) == ["b1"]

    class Beating(Dying):
        """A bookie publishes how far its log is durable, all the time."""

        def __getattr__(self, name: str) -> object:
            if name != "barrier":
                return getattr(store, name)

            async def changed() -> None:
                found = await store.get(cookies)
                assert found is not None
                cookie = Cookie.from_bytes(found.value)
                moved = replace(cookie, boot_counter=cookie.boot_counter + 1)
                await store.put(cookies, moved.to_bytes(), expected=None)
                await store.fetch_add(cluster.paths.producer_ids)
                await store.barrier()

            return changed

    beating = Cluster(Beating(store, 0), root)  # type: ignore[arg-type]
    assert (await beating.back_up(folder / "copy")).passes == 2


async def test_m7_a_damaged_record_is_named_and_nothing_is_left_out(
    harness: MetadataHarness, store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    await harness.damage(f"{cluster.paths.topics}/aa/t", b"no envelope")
    with pytest.raises(MetadataCorrupt, match="topics/aa/t"):
        await cluster.back_up(folder / "copy")
    assert names_in(folder) == []


async def test_a_file_is_replaced_only_when_asked(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    cluster = await Cluster(store, root).filled()
    path = folder / "copy"
    path.write_bytes(b"somebody's")
    with pytest.raises(FileExistsError):
        await cluster.back_up(path)
    assert path.read_bytes() == b"somebody's"
    await cluster.back_up(path, replace=True)
    assert BackupFile.opened(path).keys > 5
    with pytest.raises(IllegalStateError, match="there is no cluster at"):
        await Cluster(store, root + "-nowhere").back_up(folder / "none")


async def test_what_lives_with_a_session_is_never_put_back(
    store: MetadataStore, root: str, folder: pathlib.Path
) -> None:
    """A file that somebody else made: a dead broker would own a bundle for ever."""
    writer = BackupWriter(folder, "bad")
    writer.add(BackupItem("/INSTANCEID", str(ENTROPY.uuid()).encode(), 0))
    writer.add(BackupItem("/bundles/3", b"broker-1", 0))
    head = BackupHead("x", 0, 0, "1.2")
    writer.finish(head, folder / "bad", replace=False)
    with pytest.raises(MetadataCorrupt, match="bundles/3, which lives with a session"):
        await Cluster(store, root).restore(folder / "bad")
