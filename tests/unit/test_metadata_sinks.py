"""Decisions of sinks: one for each batch, whoever asks, however often (ADR 67)."""

from __future__ import annotations

import asyncio

import pytest

from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.sinks import (
    PLAN_BYTES_MAX,
    SINK_ID_BYTES_MAX,
    Identity,
    Sink,
    SinkCatalog,
    decided,
    from_bytes,
    needs_decision,
    next_identity,
    published,
    to_bytes,
)
from octavo.proto.kept_producers import PRODUCER_EPOCH_MAX, is_kept, kept_id, ordinary_id
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import InvalidRequest, MetadataCorrupt, UnsupportedVersion
from tests.unit.metadata_stores import CLOCK, PATHS

BY = Identity(kept_id(5), 3)


def catalog(store: MemoryStore) -> SinkCatalog:
    ids = ProducerIdAllocator(store, PATHS, CLOCK)
    return SinkCatalog(store, PATHS, ids, clock=CLOCK, entropy=SystemEntropy())


def test_a_batch_is_decided_once_and_after_the_one_before_is_published() -> None:
    fresh = Sink("s")
    assert needs_decision(fresh, 0)
    first = decided(fresh, 4, b"plan", BY, 1)
    assert not needs_decision(first, 4)
    assert not needs_decision(first, 3)
    assert not needs_decision(first, 5)  # 4 is not published
    done = published(first, 4)
    assert (done.is_published, done.plan) == (True, b"plan")
    assert needs_decision(done, 5)
    assert not needs_decision(done, 4)
    assert published(done, 4) == published(done, 2) == done
    with pytest.raises(InvalidRequest, match="batch 5 of sink 's' was never decided"):
        published(done, 5)


def test_each_batch_has_an_epoch_of_its_own_and_epochs_end() -> None:
    sink = published(decided(Sink("s"), 0, b"p", BY, 1), 0)
    assert next_identity(sink, 0) == Identity(BY.producer_id, 4)
    assert next_identity(Sink("s"), 0) is None
    assert next_identity(sink._replace(producer_epoch=PRODUCER_EPOCH_MAX), 0) is None
    # Drawn before a backup was restored: what it published since is not known (ADR 23).
    assert next_identity(sink, 1) is None


def test_kept_ids_are_told_apart_and_lead_back() -> None:
    assert is_kept(kept_id(0))
    assert not is_kept((1 << 62) - 1)
    assert not is_kept(-1)
    assert ordinary_id(kept_id(77)) == 77
    for wrong in (-1, 1 << 62, kept_id(1)):
        with pytest.raises(ValueError, match="no ordinary"):
            kept_id(wrong)


def test_a_record_survives_the_store_and_a_wrong_one_is_refused() -> None:
    sink = decided(Sink("s"), 7, b"plan", BY, 1)
    assert from_bytes(to_bytes(sink, b"n"), "s") == sink
    with pytest.raises(MetadataCorrupt, match="contradicts"):
        from_bytes(to_bytes(sink, b"n"), "other")
    with pytest.raises(MetadataCorrupt, match="contradicts"):
        from_bytes(to_bytes(Sink("s"), b"n"), "s")
    with pytest.raises(MetadataCorrupt):
        from_bytes(b"\xff", "s")
    with pytest.raises(UnsupportedVersion):
        from_bytes(b"\x08\x02", "s")


async def test_of_many_that_ask_at_once_one_decides_and_all_are_told() -> None:
    cluster = MemoryCluster()
    catalogs = [catalog(cluster.connect()) for _ in range(6)]
    answers = await asyncio.gather(
        *(one.decide("s", 0, b"%d" % number) for number, one in enumerate(catalogs))
    )
    assert len(set(answers)) == 1
    assert is_kept(answers[0].producer_id)
    assert answers[0].producer_epoch == 0
    assert await catalogs[3].read("s") == answers[0]
    assert (await catalogs[0].decide("s", 1, b"next")).batch_id == 0  # not published yet
    await catalogs[1].published("s", 0)
    later = await catalogs[2].decide("s", 1, b"next")
    assert (later.batch_id, later.plan, later.producer_epoch) == (1, b"next", 1)
    assert later.producer_id == answers[0].producer_id


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_lost_reply_decides_nothing_twice(operation: str) -> None:
    store = MemoryCluster().connect()
    sinks = catalog(store)
    if operation == "put":
        await sinks.decide("s", 0, b"before")
        await sinks.published("s", 0)
    store.faults.lose_reply(operation)
    mine = await sinks.decide("s", 1, b"mine")
    assert (mine.batch_id, mine.plan) == (1, b"mine")
    assert await catalog(store).decide("s", 1, b"other") == mine
    store.faults.lose_request("put")
    await sinks.published("s", 1)
    assert (await sinks.read("s")).is_published


async def test_after_a_restore_a_sink_publishes_through_another_producer() -> None:
    store = MemoryCluster().connect()
    first = await catalog(store).decide("s", 0, b"p")
    await catalog(store).published("s", 0)
    epoch = await LedgerIdAllocator(store, PATHS, CLOCK).raise_epoch()
    second = await catalog(store).decide("s", 1, b"p")
    assert second.producer_id != first.producer_id
    assert (second.id_epoch, second.producer_epoch) == (epoch, 0)


async def test_ids_and_plans_have_bounds_and_any_text_is_an_id() -> None:
    sinks = catalog(MemoryCluster().connect())
    assert (await sinks.read("ключ/../ x")).batch_id == -1
    await sinks.decide("ключ/../ x", 0, b"p")
    assert (await sinks.read("ключ/../ x")).batch_id == 0
    for sink_id in ("", "x" * (SINK_ID_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequest, match="the id of a sink"):
            await sinks.read(sink_id)
    for batch_id, plan in ((-1, b"p"), (0, b""), (0, b"p" * (PLAN_BYTES_MAX + 1))):
        with pytest.raises(InvalidRequest, match="batches count from 0"):
            await sinks.decide("s", batch_id, plan)
