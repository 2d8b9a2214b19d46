"""Topics and partition lists (spec/ledger.md §8.1, F015, F016, F026)."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from octavo.metadata.connect import connect_store, memory_cluster, parse_url, root_of
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.partition_record import PartitionState, TrashedLedger
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog, check_topic_name
from octavo.proto.segments import Segment
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import (
    ConfigError,
    InvalidPartitions,
    InvalidTopic,
    InvariantViolation,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    TopicAlreadyExists,
    UnknownOutcome,
    UnknownTopic,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from tests.unit.metadata_stores import CLOCK, PATHS, ImpatientClock

TOPIC_ID = uuid.UUID(int=5)


def topics(store: MetadataStore) -> TopicCatalog:
    return TopicCatalog(store, PATHS, clock=CLOCK, entropy=SystemEntropy())


def partitions(store: MetadataStore) -> PartitionCatalog:
    return PartitionCatalog(store, PATHS, clock=ImpatientClock(), entropy=SystemEntropy())


# --- topics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 249])
def test_f015_legal_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "__internal", "a\n"])
def test_f015_illegal_names(name: str) -> None:
    with pytest.raises(InvalidTopic):
        check_topic_name(name)


def test_f015_reserved_prefix_is_for_internal_topics() -> None:
    assert check_topic_name("__consumer_offsets", internal=True)


async def test_created_topic_is_found_and_listed() -> None:
    cluster = MemoryCluster()
    created = await topics(cluster.connect()).create("orders", 3, {"retention.ms": "1000"})
    await topics(cluster.connect()).create("audit", 1)
    assert created.topic.partitions == 3
    catalog = topics(cluster.connect())
    assert await catalog.get("orders") == created
    assert [found.topic.name for found in await catalog.list()] == ["audit", "orders"]


async def test_f015_names_that_differ_in_dot_and_underscore_collide() -> None:
    catalog = topics(MemoryCluster().connect())
    await catalog.create("a.b", 1)
    with pytest.raises(TopicAlreadyExists, match="collides"):
        await catalog.create("a_b", 1)
    with pytest.raises(TopicAlreadyExists, match="exists"):
        await catalog.create("a.b", 1)
    with pytest.raises(UnknownTopic):
        await catalog.get("a_b")


async def test_f015_collision_is_decided_atomically() -> None:
    cluster = MemoryCluster()
    results = await asyncio.gather(
        topics(cluster.connect()).create("a.b", 1),
        topics(cluster.connect()).create("a_b", 1),
        return_exceptions=True,
    )
    assert sum(isinstance(result, TopicAlreadyExists) for result in results) == 1


@pytest.mark.parametrize("executed", [True, False])
async def test_m3_creation_with_lost_reply_is_ours(executed: bool) -> None:
    store = MemoryCluster().connect()
    (store.faults.lose_reply if executed else store.faults.lose_request)("create")
    created = await topics(store).create("orders", 1)
    assert await topics(store).get("orders") == created


async def test_m4_unknown_topic_is_concluded_only_after_a_barrier() -> None:
    cluster = MemoryCluster()
    lagging = cluster.connect()
    lagging.lag()
    created = await topics(cluster.connect()).create("orders", 1)
    assert await topics(lagging).get("orders") == created


@pytest.mark.parametrize("count", [0, -1, 10_001])
async def test_f016_number_of_partitions_is_bounded(count: int) -> None:
    with pytest.raises(InvalidPartitions):
        await topics(MemoryCluster().connect()).create("orders", count)


async def test_f026_partitions_only_grow() -> None:
    catalog = topics(MemoryCluster().connect())
    created = await catalog.create("orders", 3)
    grown = await catalog.update(created, replace(created.topic, partitions=5))
    with pytest.raises(InvalidPartitions):
        await catalog.update(grown, replace(grown.topic, partitions=4))
    with pytest.raises(VersionConflict):
        await catalog.update(created, replace(created.topic, config={"a": "b"}))


async def test_topic_deletion_has_two_steps() -> None:
    catalog = topics(MemoryCluster().connect())
    created = await catalog.create("orders", 1)
    dying = await catalog.mark_deleting(created)
    assert (await catalog.get("orders")).topic.deleting
    await catalog.delete(dying)
    await catalog.delete(dying)
    with pytest.raises(UnknownTopic):
        await catalog.get("orders")
    again = await catalog.create("orders", 1)
    assert again.topic.topic_id != created.topic.topic_id


async def test_unfinished_deletions_are_found_without_reading_all_topics() -> None:
    cluster = MemoryCluster()
    catalog = topics(cluster.connect())
    names = [f"t{n}" for n in range(5)]
    made = [await catalog.create(name, 1) for name in names]
    assert await catalog.unfinished() == []
    dying = [await catalog.mark_deleting(topic) for topic in made[:3]]
    assert await catalog.unfinished() == dying
    await catalog.delete(dying[0])
    assert await catalog.unfinished() == dying[1:]

    notes = {PATHS.deletion(topic.topic.topic_id) for topic in made}
    assert len(notes & set(cluster.snapshot())) == 2
    store = cluster.connect()
    await store.delete(PATHS.topic("t1"), expected=dying[1].version)  # the note outlives its topic
    await store.delete(PATHS.topic("t2"), expected=dying[2].version)
    again = await catalog.create("t2", 1)
    assert await catalog.unfinished() == []
    assert not notes & set(cluster.snapshot())

    note = PATHS.deletion(again.topic.topic_id)
    await store.create(note, b"t2")  # an attempt ended before it marked the topic
    assert await catalog.unfinished() == []
    assert note in cluster.snapshot(), "the attempt may go on"
    dead = await catalog.mark_deleting(again)
    assert await catalog.unfinished() == [dead]


async def test_update_of_a_deleted_topic_is_unknown() -> None:
    catalog = topics(MemoryCluster().connect())
    created = await catalog.create("orders", 1)
    await catalog.delete(created)
    with pytest.raises(UnknownTopic):
        await catalog.update(created, replace(created.topic, config={"a": "b"}))


async def test_topic_changes_are_told() -> None:
    cluster = MemoryCluster()
    changed = asyncio.Event()
    topics(cluster.connect()).watch_topic("orders", changed.set)
    created = await topics(cluster.connect()).create("orders", 1)
    await changed.wait()
    changed.clear()
    await topics(cluster.connect()).delete(created)
    await changed.wait()


async def test_m7_unreadable_topic_is_skipped_in_lists_and_refused_alone() -> None:
    cluster = MemoryCluster()
    catalog = topics(cluster.connect())
    for name in ("a", "b", "c"):
        await catalog.create(name, 1)
    cluster.corrupt(PATHS.topic("b"), b"\xff")
    assert [found.topic.name for found in await catalog.list()] == ["a", "c"]
    with pytest.raises(MetadataCorrupt):
        await catalog.get("b")
    with pytest.raises(MetadataCorrupt):
        await catalog.create("b", 1)


def test_topic_record_round_trips_and_refuses_newer_formats() -> None:
    topic = Topic("orders", TOPIC_ID, 3, {"a": "b"}, 7, deleting=True)
    assert Topic.from_bytes(topic.to_bytes()) == topic
    with pytest.raises(UnsupportedVersion):
        Topic.from_bytes(b"\x08\x09" + topic.to_bytes()[2:])
    with pytest.raises(MetadataCorrupt):
        Topic.from_bytes(replace(topic, partitions=0).to_bytes())


# --- partitions --------------------------------------------------------------------------------


def segment(ledger_id: int, base: int, end: int | None = None) -> Segment:
    last = NO_ENTRY if end is None else EntryId(3)
    return Segment(LedgerId(ledger_id), base, end, last_entry=last)


EMPTY = PartitionState(TOPIC_ID, 2)
ONE_OPEN = replace(EMPTY, segments=(segment(4, 0),), owner_epoch=1, max_ledger_id_ever=4)
TWO = replace(
    ONE_OPEN,
    segments=(segment(4, 0, 10), segment(6, 10)),
    owner_epoch=2,
    max_ledger_id_ever=6,
    trash=(TrashedLedger(LedgerId(2), "retention", 9),),
)


def test_partition_record_round_trips() -> None:
    for state in (EMPTY, ONE_OPEN, replace(TWO, last_writer_token=b"t")):
        assert PartitionState.from_bytes(state.to_bytes(), TOPIC_ID, 2) == state


BROKEN = {
    "ledger above the highest ever": replace(ONE_OPEN, max_ledger_id_ever=3),
    "segment ends before it begins": replace(ONE_OPEN, segments=(segment(4, 9, 8),)),
    "ids do not increase": replace(TWO, segments=(segment(6, 0, 10), segment(4, 10))),
    "open segment in the middle": replace(TWO, segments=(segment(4, 0), segment(6, 10))),
    "gap in offsets": replace(TWO, segments=(segment(4, 0, 10), segment(6, 11))),
    "negative epoch": replace(EMPTY, owner_epoch=-1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_m7_partition_record_that_breaks_a_rule_is_corrupt(name: str) -> None:
    with pytest.raises(MetadataCorrupt):
        PartitionState.from_bytes(BROKEN[name].to_bytes())


def test_m7_partition_record_of_another_place_or_format_is_refused() -> None:
    data = TWO.to_bytes()
    with pytest.raises(MetadataCorrupt):
        PartitionState.from_bytes(data, TOPIC_ID, 3)
    with pytest.raises(MetadataCorrupt):
        PartitionState.from_bytes(data, uuid.UUID(int=6), 2)
    with pytest.raises(MetadataCorrupt):
        PartitionState.from_bytes(b"\xff\xff")
    with pytest.raises(UnsupportedVersion):
        PartitionState.from_bytes(b"\x08\x06" + data[2:])


@pytest.mark.parametrize(
    "successor",
    [
        replace(TWO, segments=(*TWO.segments[:1], segment(5, 10)), max_ledger_id_ever=6),
        replace(TWO, owner_epoch=1),
        replace(TWO, max_ledger_id_ever=7, segments=(segment(4, 0, 10), segment(6, 12))),
        replace(TWO, partition=3),
        replace(TWO, max_ledger_id_ever=5, segments=TWO.segments[:1]),
    ],
    ids=["ML-3 id too low", "epoch back", "gap", "other partition", "highest id back"],
)
def test_ml3_successor_that_breaks_a_promise_is_never_sent(successor: PartitionState) -> None:
    with pytest.raises(InvariantViolation):
        TWO.check_successor(successor)


def test_ml3_holds_when_every_segment_was_trimmed() -> None:
    trimmed = replace(TWO, segments=(), log_start_offset=20)
    with pytest.raises(InvariantViolation):
        trimmed.check_successor(replace(trimmed, segments=(segment(6, 20),)))
    trimmed.check_successor(replace(trimmed, segments=(segment(7, 20),), max_ledger_id_ever=7))


async def test_ml4_of_two_owners_one_compare_and_set_wins() -> None:
    cluster = MemoryCluster()
    mine, rival = partitions(cluster.connect()), partitions(cluster.connect())
    assert await mine.read(TOPIC_ID, 2) is None
    created = await mine.create(EMPTY)
    with pytest.raises(KeyExists):
        await rival.create(EMPTY)
    results = await asyncio.gather(
        mine.cas(created, ONE_OPEN), rival.cas(created, ONE_OPEN), return_exceptions=True
    )
    assert sum(isinstance(result, VersionConflict) for result in results) == 1


@pytest.mark.parametrize("executed", [True, False])
async def test_ml7_list_change_with_lost_reply_is_settled(executed: bool) -> None:
    store = MemoryCluster().connect()
    catalog = partitions(store)
    created = await catalog.create(EMPTY)
    (store.faults.lose_reply if executed else store.faults.lose_request)("put")
    changed = await catalog.cas(created, ONE_OPEN)
    assert await catalog.read(TOPIC_ID, 2) == changed
    assert changed.state.last_writer_token != created.state.last_writer_token


async def test_ml7_equal_list_of_a_rival_is_not_taken_for_our_own() -> None:
    """Two brokers write the same list; the token tells whose write it was (M-3)."""
    cluster = MemoryCluster()
    store = cluster.connect()
    mine, rival = partitions(store), partitions(cluster.connect())
    created = await mine.create(EMPTY)
    store.faults.lose_request("put")
    store.faults.lose_request("barrier")
    task = asyncio.ensure_future(mine.cas(created, ONE_OPEN))
    await rival.cas(created, ONE_OPEN)
    with pytest.raises(VersionConflict):
        await task


async def test_m4_partition_is_read_behind_a_barrier() -> None:
    cluster = MemoryCluster()
    catalog = partitions(cluster.connect())
    created = await catalog.create(EMPTY)
    lagging: MemoryStore = cluster.connect()
    lagging.lag()
    changed = await catalog.cas(created, ONE_OPEN)
    assert await partitions(lagging).read_hint(TOPIC_ID, 2) == created
    assert await partitions(lagging).read(TOPIC_ID, 2) == changed


async def test_deleted_partition_is_missing_for_its_owner() -> None:
    catalog = partitions(MemoryCluster().connect())
    created = await catalog.create(EMPTY)
    told = asyncio.Event()
    catalog.watch(TOPIC_ID, 2, told.set)
    await catalog.delete(created)
    await catalog.delete(created)
    await told.wait()
    with pytest.raises(KeyMissing):
        await catalog.cas(created, ONE_OPEN)
    assert await catalog.read_hint(TOPIC_ID, 2) is None


async def test_unsettled_list_change_is_unknown() -> None:
    store = MemoryCluster().connect()
    catalog = partitions(store)
    created = await catalog.create(EMPTY)
    store.faults.lose_reply("put")
    for _ in range(8):
        store.faults.lose_request("barrier")
    with pytest.raises(UnknownOutcome):
        await catalog.cas(created, ONE_OPEN)


# --- paths and urls ----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["/octavo/L", "/octavo/L/1/2/3/4/5", "/other/L/000", "/octavo/LX"])
def test_key_that_is_no_ledgers_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not the key"):
        PATHS.ledger_id_of(key)


def test_ledger_key_is_split_3_4_4_4_4() -> None:
    assert PATHS.ledger(LedgerId(1234567)) == "/octavo/L/000/0000/0000/0123/4567"


def test_l1_topic_directories_stay_small() -> None:
    shards = {PATHS.topic(f"topic-{i}").rsplit("/", 1)[0] for i in range(5_000)}
    assert len(shards) == 256


async def test_urls_name_a_scheme_hosts_and_a_root() -> None:
    assert parse_url("zk://a:1,b:2/octavo/x") == ("zk", "a:1,b:2", "/octavo/x")
    assert root_of("memory://here/octavo/") == "/octavo"
    assert Paths(root_of("embedded://h:1/o")).brokers == "/o/brokers"
    for url in ("zk://a:1", "zk:///x", "etcd://a/x", "nonsense", "zk://a/x", "zk://a:1,b/x"):
        with pytest.raises(ConfigError):
            parse_url(url)


async def test_memory_url_is_shared_by_name() -> None:
    entropy = SystemEntropy()
    url = "memory://shared-by-name/octavo"
    first = await connect_store(url, client_name="a", clock=CLOCK, entropy=entropy)
    second = await connect_store(url, client_name="b", clock=CLOCK, entropy=entropy)
    await first.create("/octavo/x", b"1")
    assert await second.get("/octavo/x") is not None
    assert memory_cluster("another") is not memory_cluster("shared-by-name")
