"""Settings and partitions of a topic that is used (F016, F026, P7, M-3)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from octavo.metadata.memory import MemoryCluster
from octavo.metadata.partition_record import PartitionState, TrashedLedger
from octavo.metadata.paths import Paths
from octavo.metadata.topics import Decommissioned, PartitionCatalog, Topic, TopicCatalog
from octavo.proto import records_pb2
from octavo.proto.segments import Segment
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvalidConfig,
    InvalidPartition,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidRequest,
    MetadataCorrupt,
    OctavoError,
    UnknownTopic,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_changes import Alteration, TopicChanges, altered, with_removed
from octavo.serving.topic_config import effective
from tests.serving_rig import make_config

NOW_MS = 1_700_000_000_000
TOPIC = Topic("orders", uuid.UUID(int=4), 2, {"segment.ms": "5000"})


def test_what_a_topic_is_to_be() -> None:
    wanted = altered(TOPIC, Alteration({"retention.ms": "7"}, ["segment.ms"], 5), NOW_MS)
    assert (wanted.config, wanted.partitions) == ({"retention.ms": "7"}, 5)
    assert altered(TOPIC, Alteration({}), NOW_MS) == TOPIC
    assert altered(TOPIC, Alteration({}, partitions=2), NOW_MS) == TOPIC
    with pytest.raises(InvalidPartitions, match="never removed"):
        altered(TOPIC, Alteration({}, partitions=1), NOW_MS)


def test_f088_tiering_stays_set_once_it_was_for_files_go_with_the_topic() -> None:
    once = altered(TOPIC, Alteration({"tiering": "true"}), NOW_MS)
    assert altered(once, Alteration({}, ["tiering"]), NOW_MS).config["tiering"] == "false"
    assert "tiering" not in altered(TOPIC, Alteration({}, ["tiering"]), NOW_MS).config


def test_f027_a_decommissioned_partition_stays_one_and_one_that_takes_records_is_left() -> None:
    once = altered(TOPIC, Alteration({}, decommission=[1]), NOW_MS)
    assert once.decommissioned == (Decommissioned(1, NOW_MS),)
    assert altered(once, Alteration({}, decommission=[1]), NOW_MS + 5) == once
    assert (once.partitions, once.writable, once.removed) == (2, 1, frozenset())
    with pytest.raises(InvalidPartitions, match="no partition that takes records"):
        altered(once, Alteration({}, decommission=[0]), NOW_MS)
    for number in (-1, 2):
        with pytest.raises(InvalidPartition):
            altered(TOPIC, Alteration({}, decommission=[number]), NOW_MS)
    grown = altered(once, Alteration({}, partitions=3, decommission=[0]), NOW_MS)
    assert [one.partition for one in grown.decommissioned] == [0, 1]
    gone = with_removed(grown, 1)
    assert (gone.removed, gone.writable) == (frozenset({1}), 1)
    assert with_removed(gone, 1) == gone


def test_f027_an_older_build_does_not_take_a_record_that_it_would_write_to() -> None:
    assert records_pb2.TopicRecord.FromString(TOPIC.to_bytes()).format_version == 1
    once = altered(TOPIC, Alteration({}, decommission=[1]), NOW_MS)
    stored = once.to_bytes()
    assert records_pb2.TopicRecord.FromString(stored).format_version == 2
    assert Topic.from_bytes(stored) == once
    for numbers in ([0, 1], [1, 1], [2]):
        record = records_pb2.TopicRecord.FromString(stored)
        del record.decommissioned[:]
        for number in numbers:
            record.decommissioned.add(partition=number)
        with pytest.raises(MetadataCorrupt):
            Topic.from_bytes(record.SerializeToString())


def test_effective_settings_name_every_one() -> None:
    found = effective({"retention.ms": "7", "replication.factor": "1"}, make_config())
    assert found["retention.ms"] == "7"
    assert found["min.insync.replicas"] == "1"  # follows a smaller factor
    assert found["cleanup.policy"] == "delete"
    assert effective({}, make_config(), internal=True)["retention.ms"] == "-1"


class Setup:
    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.store = self.cluster.connect()
        self.clock = SystemClock()
        self.catalog = TopicCatalog(
            self.store, Paths("/octavo"), clock=self.clock, entropy=SeededEntropy(3)
        )
        self.partitions = PartitionCatalog(
            self.store, Paths("/octavo"), clock=self.clock, entropy=SeededEntropy(4)
        )
        self.heard: list[str] = []
        self.live = 3
        self.changes = TopicChanges(
            self.catalog,
            self.partitions,
            config=make_config(),
            clock=self.clock,
            live_bookies=lambda: self.live,
            changed=self.heard.append,
            store_answers=StoreAnswers(self.store, "memory://test/octavo", self.clock),
        )

    async def alter(self, partitions: int = 0, /, **config: str) -> tuple[Topic, str]:
        named = {name.replace("_", "."): value for name, value in config.items()}
        return await self.changes.alter("orders", b"", Alteration(named, (), partitions))

    async def stored(self) -> Topic:
        return (await self.catalog.get("orders", barrier=True)).topic


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    await made.catalog.create("orders", 2, {"segment.ms": "5000"})
    yield made
    await made.store.close()


async def test_a_change_is_stored_and_told(setup: Setup) -> None:
    topic, warning = await setup.alter(retention_ms="60000")
    assert topic == await setup.stored()
    assert topic.config == {"segment.ms": "5000", "retention.ms": "60000"}
    assert (warning, setup.heard) == ("", ["orders"])


async def test_p7_growing_says_that_keys_move(setup: Setup) -> None:
    topic, warning = await setup.alter(4)
    assert topic.partitions == (await setup.stored()).partitions == 4
    assert "order of one key" in warning
    assert await setup.alter(4) == (topic, "")


@pytest.mark.parametrize("executed", [False, True])
async def test_m3_a_lost_answer_is_settled(setup: Setup, executed: bool) -> None:
    (setup.store.faults.lose_reply if executed else setup.store.faults.lose_request)("put")
    topic, warning = await setup.alter(4, retention_ms="1")
    assert topic == await setup.stored()
    assert (topic.partitions, topic.config["retention.ms"]) == (4, "1")
    assert warning


async def test_changes_at_the_same_time_are_all_kept(setup: Setup) -> None:
    real = setup.catalog.update
    before = [True]

    async def update(old: object, new: object) -> object:
        if before.pop() if before else False:
            found = await setup.catalog.get("orders")
            await real(found, altered(found.topic, Alteration({"retention.bytes": "9"}), 0))
        return await real(old, new)  # type: ignore[arg-type]

    setup.catalog.update = update  # type: ignore[method-assign,assignment]
    topic, _ = await setup.alter(retention_ms="8")
    assert topic.config == {"segment.ms": "5000", "retention.bytes": "9", "retention.ms": "8"}


REFUSED: list[tuple[dict[str, str], list[str], int, type[OctavoError]]] = [
    ({"retention.ms": "soon"}, [], 0, InvalidConfig),
    ({"nonsense": "1"}, [], 0, InvalidConfig),
    ({}, ["nonsense"], 0, InvalidConfig),
    ({"segment.ms": "9000"}, ["segment.ms"], 0, InvalidConfig),
    ({"min.insync.replicas": "5"}, [], 0, InvalidConfig),
    ({"replication.factor": "5"}, [], 0, InvalidReplicationFactor),
    ({"cleanup.policy": "compact,"}, [], 0, InvalidConfig),
    ({f"s{n}": "1" for n in range(70)}, [], 0, InvalidConfig),
    ({}, [], 0, InvalidRequest),
    ({}, [], 1, InvalidPartitions),
    ({}, [], -1, InvalidPartitions),
    ({}, [], 20_000, InvalidPartitions),
]


@pytest.mark.parametrize(("config", "unset", "partitions", "expected"), REFUSED)
async def test_what_cannot_be_is_refused_and_nothing_changes(
    setup: Setup,
    config: dict[str, str],
    unset: list[str],
    partitions: int,
    expected: type[OctavoError],
) -> None:
    before = await setup.stored()
    with pytest.raises(expected):
        await setup.changes.alter("orders", b"", Alteration(config, unset, partitions))
    assert await setup.stored() == before
    assert not setup.heard


async def test_another_life_an_internal_one_or_none_is_left_alone(setup: Setup) -> None:
    with pytest.raises(InconsistentTopicId):
        await setup.changes.alter("orders", bytes(16), Alteration({"segment.ms": "9000"}))
    with pytest.raises(InvalidRequest, match="internal"):
        await setup.changes.alter("__consumer_offsets", b"", Alteration({"retention.ms": "9"}))
    with pytest.raises(UnknownTopic):
        await setup.changes.alter("nowhere", b"", Alteration({"retention.ms": "9"}))
    await setup.catalog.mark_deleting(await setup.catalog.get("orders"))
    with pytest.raises(UnknownTopic):
        await setup.alter(4)


async def test_f027_a_decommission_is_one_compare_and_set_and_says_that_keys_move(
    setup: Setup,
) -> None:
    setup.store.faults.lose_reply("put")  # M-3: its answer may be lost
    topic, warning = await setup.changes.alter("orders", b"", Alteration({}, decommission=[0]))
    assert topic == await setup.stored()
    assert [one.partition for one in topic.decommissioned] == [0]
    assert "order of one key" in warning
    assert await setup.changes.alter("orders", b"", Alteration({}, decommission=[0])) == (topic, "")
    await setup.changes.remove_drained(topic, 0)
    assert (await setup.stored()).removed == {0}


async def test_fewer_copies_are_asked_for_whoever_lives(setup: Setup) -> None:
    setup.live = 1
    topic, _ = await setup.alter(replication_factor="2", min_insync_replicas="2")
    assert topic.config["replication.factor"] == "2"


COPIED = Segment(LedgerId(1), 0, 10, 100, 1, 1, EntryId(3), object_version=4)
TRASHED = TrashedLedger(LedgerId(1), "retention", 1, has_objects=True)


LISTED = PartitionState(uuid.UUID(int=1), 1, max_ledger_id_ever=1)


@pytest.mark.parametrize(
    "kept", [replace(LISTED, segments=(COPIED,)), replace(LISTED, trash=(TRASHED,))]
)
async def test_f088_a_log_with_files_is_not_asked_to_be_compacted(
    setup: Setup, kept: PartitionState
) -> None:
    """It never would be (ADR 70), and what is only compacted does not age either (K9)."""
    topic = await setup.stored()
    made = await setup.partitions.create(replace(kept, topic_id=topic.topic_id))
    for policy in ("compact", "compact,delete"):
        with pytest.raises(InvalidConfig, match="orders-1 are in exported files") as refused:
            await setup.alter(tiering="false", cleanup_policy=policy)
        assert "octavo topic trim orders" in (refused.value.hint or "")
    await setup.alter(tiering="false", retention_ms="60000")  # the rest is as ever
    await setup.partitions.cas(made, replace(made.state, segments=(), trash=()))
    topic, _ = await setup.alter(cleanup_policy="compact")
    assert topic.config["cleanup.policy"] == "compact"
    await setup.alter(retention_ms="60001")


async def test_a_list_that_cannot_be_read_may_have_files(setup: Setup) -> None:
    topic = await setup.stored()
    await setup.store.create(Paths("/octavo").partition(topic.topic_id, 0), b"no record")
    with pytest.raises(MetadataCorrupt):
        await setup.alter(cleanup_policy="compact")
    assert await setup.stored() == topic
