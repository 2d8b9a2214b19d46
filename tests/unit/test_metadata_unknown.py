"""'May have been ours' is unknown in every catalog that settles lost replies (M-3, INV-2)."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from octavo.metadata.bookies import Cookie, CookieCatalog
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.ledger_ids import ROTATE_AT
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.topics import PartitionCatalog, PartitionState, TopicCatalog
from octavo.proto.segments import Segment
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import TopicAlreadyExists, UnknownOutcome
from octavo.runtime.ids import NO_ENTRY, LedgerId
from octavo.serving import segments as lists
from tests.unit.metadata_stores import PATHS, ImpatientClock, ledger_catalog, new_ledger

Deed = Callable[[], Awaitable[object]]
ENTROPY = SystemEntropy()
ME = BundleOwner("broker-1", "h:1", b"one")
RIVAL = BundleOwner("broker-2", "h:2", b"two")


class Meddled(MemoryStore):
    """Others act between a write and the read that settles it."""

    deed: Deed | None = None

    async def barrier(self) -> None:
        deed, self.deed = self.deed, None
        if deed is not None:
            await deed()
        await super().barrier()

    def lose(self, operation: str, then: Deed) -> None:
        """The next `operation` is executed, its reply lost, and `then` happens."""
        self.faults.lose_reply(operation)
        self.deed = then


def topics(store: MemoryStore) -> TopicCatalog:
    return TopicCatalog(store, PATHS, clock=ImpatientClock(), entropy=ENTROPY)


def partitions(store: MemoryStore) -> PartitionCatalog:
    return PartitionCatalog(store, PATHS, clock=ImpatientClock(), entropy=ENTROPY)


async def test_close_that_others_wrote_over_is_unknown() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    catalog, rival = ledger_catalog(store), ledger_catalog(cluster.connect())
    written = await new_ledger(catalog)

    async def repair() -> None:
        """A re-replicator replaces a member of the ledger that is CLOSED now."""
        found = await rival.read(written.metadata.ledger_id, barrier=True)
        await rival.cas(found, replace(found.metadata, custom={"touched": "yes"}))

    store.lose("put", repair)
    with pytest.raises(UnknownOutcome):
        await catalog.close_as_writer(written, NO_ENTRY, 0)
    # Asked again, the record says that it was ours (M-2).
    closed = await catalog.close_as_writer(written, NO_ENTRY, 0)
    assert closed.metadata.is_closed_at(NO_ENTRY, 0)


async def test_claim_of_a_partition_that_others_wrote_over_is_unknown() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine, rival = partitions(store), partitions(cluster.connect())
    made = await mine.create(PartitionState(uuid.UUID(int=7), 0))

    async def claim() -> None:
        found = await rival.read(uuid.UUID(int=7), 0)
        assert found is not None
        await rival.cas(found, replace(found.state, owner_epoch=found.state.owner_epoch + 1))

    store.lose("put", claim)
    with pytest.raises(UnknownOutcome):
        await mine.cas(made, replace(made.state, owner_epoch=1))


async def test_topic_changed_right_after_its_lost_creation_is_ours() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine, rival = topics(store), topics(cluster.connect())

    async def reconfigure() -> None:
        found = await rival.get("orders", barrier=True)
        await rival.update(found, replace(found.topic, partitions=5))

    store.lose("create", reconfigure)
    created = await mine.create("orders", 3)
    assert (created.topic.partitions, created.version) == (5, 1)


async def test_topic_deleted_right_after_its_lost_creation_comes_back_as_another_life() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine, rival = topics(store), topics(cluster.connect())
    first: list[uuid.UUID] = []

    async def delete() -> None:
        found = await rival.get("orders", barrier=True)
        first.append(found.topic.topic_id)
        await rival.delete(found)

    store.lose("create", delete)
    created = await mine.create("orders", 3)
    assert created.topic.topic_id != first[0]


async def test_topic_made_again_by_others_after_our_lost_creation_is_unknown() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine, rival = topics(store), topics(cluster.connect())

    async def replace_it() -> None:
        await rival.delete(await rival.get("orders", barrier=True))
        await rival.create("orders", 9)

    store.lose("create", replace_it)
    with pytest.raises(UnknownOutcome):
        await mine.create("orders", 3)
    with pytest.raises(TopicAlreadyExists):  # asked again, it is a definite answer
        await mine.create("orders", 3)


async def test_lost_release_leaves_the_next_owner_alone() -> None:
    """Both ownerships have version 0: only their bytes tell them apart."""
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine, next_owner = BundleRegistry(store, PATHS), BundleRegistry(cluster.connect(), PATHS)
    await mine.acquire(3, ME)
    barriers: list[int] = []

    async def at_settling() -> None:
        barriers.append(1)
        if len(barriers) == 1:  # the read that comes before the deletion
            store.deed = at_settling
        else:
            await next_owner.acquire(3, RIVAL)

    store.lose("delete", at_settling)
    await mine.release(3, ME)
    assert await next_owner.owner(3) == RIVAL


async def test_cookie_bumped_with_a_lost_reply_and_bumped_again_is_unknown() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    mine = CookieCatalog(store, PATHS, clock=ImpatientClock(), entropy=ENTROPY)
    rival = CookieCatalog(cluster.connect(), PATHS, clock=ImpatientClock(), entropy=ENTROPY)
    made = await mine.create_cookie(Cookie("b1", "cluster", uuid.UUID(int=1)))

    async def bump() -> None:
        found = await rival.read_cookie("b1")
        assert found is not None
        await rival.update_cookie(found, replace(found.cookie, boot_counter=9))

    store.lose("put", bump)
    with pytest.raises(UnknownOutcome):
        await mine.update_cookie(made, replace(made.cookie, boot_counter=2))


async def test_id2_rotation_whose_reply_is_lost_while_others_rotate_on() -> None:
    cluster = MemoryCluster()
    store = Meddled(cluster)
    catalog, rival = ledger_catalog(store), ledger_catalog(cluster.connect())
    before = await catalog.allocate_id()
    cluster.force_version(PATHS.idgen_epoch(0), ROTATE_AT)

    async def nothing_yet() -> None:
        async def rotate_on() -> None:
            cluster.force_version(PATHS.idgen_epoch(1), ROTATE_AT)
            await rival.allocate_id()

        store.deed = rotate_on

    store.lose("put", nothing_yet)
    drawn = await catalog.allocate_id()
    assert drawn > before
    assert drawn >> 31 >= 1


def test_ml5_a_seal_that_the_list_shows_already_is_not_repeated() -> None:
    """The list write that recorded an empty ledger happened; its outcome was unknown."""
    sealed = Segment(LedgerId(4), 10, 10, last_entry=NO_ENTRY)
    before = PartitionState(uuid.UUID(int=7), 0, (Segment(LedgerId(4), 10),), 1, 4, 0)
    once = lists.advanced(before, sealed=sealed, opened=None, now_ms=1)
    twice = lists.advanced(once, sealed=sealed, opened=(LedgerId(5), 10), now_ms=2)
    assert [t.ledger_id for t in twice.trash] == [4]
    assert [s.ledger_id for s in twice.segments] == [5]
