"""Where moved bundles are for: one record, of whose writers one is first (O-3, M-3, M-7)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.placements import NOTHING, Placed, Placements
from octavo.proto import records_pb2
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import MetadataCorrupt, UnsupportedVersion
from tests.unit.metadata_stores import CLOCK, PATHS


def placements(store: MemoryStore) -> Placements:
    return Placements(store, PATHS, clock=CLOCK, entropy=SystemEntropy())


async def started(store: MemoryStore) -> Placements:
    made = placements(store)
    await made.start()
    return made


async def test_what_one_broker_notes_the_others_follow() -> None:
    cluster = MemoryCluster()
    first, second = await started(cluster.connect()), await started(cluster.connect())
    assert await first.read() == NOTHING
    changed = asyncio.ensure_future(second.wait_changed())
    await asyncio.sleep(0)
    assert await first.replace(NOTHING, {3: "b", 1: "a"})
    assert first.brokers() == {1: "a", 3: "b"}  # whoever wrote it needs no watch
    async with asyncio.timeout(30):
        await changed
    assert second.brokers() == {1: "a", 3: "b"}
    await first.close()
    await second.close()


async def test_of_two_that_decide_at_once_one_has_no_effect() -> None:
    cluster = MemoryCluster()
    first, second = placements(cluster.connect()), placements(cluster.connect())
    assert await first.replace(NOTHING, {1: "a"})
    assert not await second.replace(NOTHING, {1: "b"})
    seen = await second.read()
    assert seen.brokers == {1: "a"}
    assert await first.replace(await first.read(), {1: "c"})
    assert not await second.replace(seen, {1: "b"})
    assert (await first.read()).brokers == {1: "c"}


async def test_a_lost_reply_is_settled_by_what_is_stored() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    mine = placements(store)
    store.faults.lose_reply()
    assert await mine.replace(NOTHING, {1: "a"})
    store.faults.lose_reply()
    assert await mine.replace(await mine.read(), {2: "b"})
    store.faults.lose_request()
    assert await mine.replace(await mine.read(), {})
    assert (await mine.read()).brokers == {}


async def test_a_record_that_nobody_can_read_changes_nothing() -> None:
    cluster = MemoryCluster()
    store = cluster.connect()
    mine = await started(store)
    assert await mine.replace(NOTHING, {1: "a"})
    await store.put(PATHS.placement, b"\xff\xff", expected=None)
    with pytest.raises(MetadataCorrupt):
        await mine.read()
    assert mine.brokers() == {1: "a"}
    other = await started(store)  # a broker starts in spite of it
    assert other.brokers() == {}
    await mine.close()
    await other.close()


def test_records_are_checked() -> None:
    newer = records_pb2.PlacementRecord(format_version=2).SerializeToString()
    with pytest.raises(UnsupportedVersion):
        Placed.from_bytes(newer, 0)
    record = records_pb2.PlacementRecord(format_version=1)
    record.bundles.add(bundle=1)
    for data in (b"", record.SerializeToString()):
        with pytest.raises(MetadataCorrupt):
            Placed.from_bytes(data, 0)
