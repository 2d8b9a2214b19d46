"""Decisions of sinks: one for each batch, whoever asks, however often (ADR 67)."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from octavo.metadata import sinks as sinks_module
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.sinks import (
    PLAN_BYTES_MAX,
    SINK_ID_BYTES_MAX,
    Identity,
    Sink,
    SinkCatalog,
    StagedAt,
    decided,
    from_bytes,
    needs_decision,
    next_identity,
    published,
    to_bytes,
)
from octavo.proto.kept_producers import PRODUCER_EPOCH_MAX, is_kept, kept_id, ordinary_id
from octavo.proto.segment_entries import ProducerSnapshot, WindowItem, pack_producer
from octavo.proto.sink_staging import parse_staging_topic, sink_digest, staging_topic
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import InvalidRequest, MetadataCorrupt, UnsupportedVersion
from octavo.runtime.errors_of_writers import SinkEnded, SinkLimitReached, StagedDataGone
from octavo.serving.partition.producers import WINDOW
from octavo.spark.staged import Pointer
from tests.unit.metadata_stores import CLOCK, PATHS

DIGEST = sink_digest("s")
BY = Identity(kept_id(5), 3)
RECORD_BYTES = 350
PACKED_BYTES = 144


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
    assert from_bytes(to_bytes(sink, b"n"), DIGEST) == sink
    with pytest.raises(MetadataCorrupt, match="contradicts"):
        from_bytes(to_bytes(sink, b"n"), sink_digest("other"))
    opened = Sink("s", generation=3, swept_to=7, touched_ms=5)
    assert from_bytes(to_bytes(opened, b"n"), DIGEST) == opened
    with pytest.raises(MetadataCorrupt, match="contradicts"):
        from_bytes(to_bytes(opened._replace(is_published=False), b"n"), DIGEST)
    with pytest.raises(MetadataCorrupt):
        from_bytes(b"\xff", DIGEST)
    with pytest.raises(UnsupportedVersion):
        from_bytes(b"\x08\x03", DIGEST)


async def test_of_many_that_ask_at_once_one_decides_and_all_are_told() -> None:
    cluster = MemoryCluster()
    catalogs = [catalog(cluster.connect()) for _ in range(6)]
    answers = await asyncio.gather(
        *(one.decide("s", 0, b"%d" % number, None) for number, one in enumerate(catalogs))
    )
    assert len(set(answers)) == 1
    assert is_kept(answers[0].producer_id)
    assert answers[0].producer_epoch == 0
    assert await catalogs[3].read("s") == answers[0]
    assert (await catalogs[0].decide("s", 1, b"next", None)).batch_id == 0  # not published yet
    await catalogs[1].published("s", 0)
    later = await catalogs[2].decide("s", 1, b"next", None)
    assert (later.batch_id, later.plan, later.producer_epoch) == (1, b"next", 1)
    assert later.producer_id == answers[0].producer_id


@pytest.mark.parametrize("operation", ["create", "put"])
async def test_a_lost_reply_decides_nothing_twice(operation: str) -> None:
    store = MemoryCluster().connect()
    sinks = catalog(store)
    if operation == "put":
        await sinks.decide("s", 0, b"before", None)
        await sinks.published("s", 0)
    store.faults.lose_reply(operation)
    mine = await sinks.decide("s", 1, b"mine", None)
    assert (mine.batch_id, mine.plan) == (1, b"mine")
    assert await catalog(store).decide("s", 1, b"other", None) == mine
    store.faults.lose_request("put")
    await sinks.published("s", 1)
    assert (await sinks.read("s")).is_published


async def test_after_a_restore_a_sink_publishes_through_another_producer() -> None:
    store = MemoryCluster().connect()
    first = await catalog(store).decide("s", 0, b"p", None)
    await catalog(store).published("s", 0)
    epoch = await LedgerIdAllocator(store, PATHS, CLOCK).raise_epoch()
    second = await catalog(store).decide("s", 1, b"p", None)
    assert second.producer_id != first.producer_id
    assert (second.id_epoch, second.producer_epoch) == (epoch, 0)


async def test_ids_and_plans_have_bounds_and_any_text_is_an_id() -> None:
    sinks = catalog(MemoryCluster().connect())
    assert (await sinks.read("ключ/../ x")).batch_id == -1
    await sinks.decide("ключ/../ x", 0, b"p", None)
    assert (await sinks.read("ключ/../ x")).batch_id == 0
    for sink_id in ("", "x" * (SINK_ID_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequest, match="the id of a sink"):
            await sinks.read(sink_id)
    for batch_id, plan in ((-1, b"p"), (0, b""), (0, b"p" * (PLAN_BYTES_MAX + 1))):
        with pytest.raises(InvalidRequest, match="batches count from 0"):
            await sinks.decide("s", batch_id, plan, None)


async def test_a_decision_is_refused_once_its_staged_records_are_given_up() -> None:
    """Whichever compare-and-set is first: the decision or the sweep (ADR 74)."""
    store = MemoryCluster().connect()
    sinks = catalog(store)
    opened = await sinks.open("s")
    assert opened == await sinks.open("s") == await sinks.read("s")
    assert await sinks.sweep(opened, 10)
    for first_offset in (0, 9):
        with pytest.raises(StagedDataGone, match="left for too long"):
            await sinks.decide("s", 0, b"p", StagedAt(0, first_offset))
    assert (await sinks.decide("s", 0, b"p", StagedAt(0, 10))).batch_id == 0
    decision = await sinks.read("s")
    assert not await sinks.sweep(decision, 20)  # decided and not published: it stays
    assert not await sinks.retire(decision)
    await sinks.published("s", 0)
    assert not await sinks.retire(decision)  # something happened since
    store.faults.lose_reply("put")
    now = await sinks.read("s")
    assert await sinks.retire(now)
    later = await sinks.read("s")
    assert (later.generation, later.swept_to, later.batch_id) == (1, 0, 0)
    with pytest.raises(StagedDataGone):
        await sinks.decide("s", 1, b"p", StagedAt(0, 99))
    assert not await sinks.sweep(now, 99)  # of another topic
    assert (await sinks.decide("s", 1, b"p", StagedAt(1, 0))).batch_id == 1
    await sinks.published("s", 1)
    assert (await sinks.decide("s", 2, b"empty", None)).batch_id == 2


async def test_a_sink_that_was_ended_decides_nothing_any_more() -> None:
    sinks = catalog(MemoryCluster().connect())
    with pytest.raises(InvalidRequest, match="there is no sink 's'"):
        await sinks.end("s")
    await sinks.decide("s", 0, b"p", None)
    assert (await sinks.end("s")).is_ended
    assert await sinks.end("s") == await sinks.read("s")
    await sinks.published("s", 0)  # a writer that was on its way
    with pytest.raises(SinkEnded):
        await sinks.decide("s", 1, b"p", None)
    assert (await sinks.read("s")).batch_id == 0


async def test_sinks_are_listed_in_pages_and_found_by_their_staging_topics() -> None:
    store = MemoryCluster().connect()
    sinks = catalog(store)
    assert await sinks.page("", 10) == ([], "")
    names = {f"query/{number}" for number in range(25)}
    for name in names:
        await sinks.open(name)
    for limit in (1, 7, 25, 0):
        found: list[Sink] = []
        after, pages = "", 0
        while not pages or after:
            page, after = await sinks.page(after, limit)
            found += page
            pages += 1
        assert {one.sink_id for one in found} == names
        assert len(found) == 25
        assert pages == -(-25 // (limit or 25))
    staging = parse_staging_topic(staging_topic("query/7", 3))
    assert staging is not None
    of_staging = await sinks.of_staging(staging)
    assert of_staging is not None
    assert of_staging.sink_id == "query/7"
    assert await sinks.of_staging(staging._replace(digest="0" * 32)) is None
    await store.create(PATHS.sink("broken"), b"\xff")
    assert len((await sinks.page("", 0))[0]) == 25


async def test_a_directory_takes_so_many_sinks_and_those_that_are_there_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No sink is forgotten for a new one, and the metadata does not grow for ever (ADR 77)."""
    monkeypatch.setattr(sinks_module, "SINKS_OF_A_DIRECTORY_MAX", 2)
    sinks = catalog(MemoryCluster().connect())
    directory = sink_digest("s")[:3]
    alike = [name for n in range(30_000) if sink_digest(name := f"txn/{n}")[:3] == directory][:3]
    for name in alike[:2]:
        await sinks.decide(name, 0, b"p", None)
    for refused in (sinks.open(alike[2]), sinks.decide(alike[2], 0, b"p", None)):
        with pytest.raises(SinkLimitReached, match="takes no new sink"):
            await refused
    assert (await sinks.read(alike[2])).touched_ms < 0
    for name in alike[:2]:
        await sinks.published(name, 0)
        assert (await sinks.decide(name, 1, b"p", None)).batch_id == 1
    assert (await sinks.end(alike[0])).is_ended
    assert (await sinks.open("txn/elsewhere")).touched_ms >= 0


def test_what_a_sink_takes_for_ever_has_a_size() -> None:
    """ADR 77: its record, and what each partition it published to tells in its snapshots."""
    pointer = Pointer(staging_topic(f"query/{uuid.uuid4()}", 7), "0" * 32, 1 << 40).to_bytes()
    sink = decided(Sink(f"query/{uuid.uuid4()}", generation=7), 1 << 30, pointer, BY, 1 << 41)
    assert len(to_bytes(sink._replace(swept_to=1 << 40), b"n" * 16)) <= RECORD_BYTES
    window = tuple(WindowItem(n, n, 1 << 40, 1 << 41) for n in range(WINDOW))
    packed = pack_producer(ProducerSnapshot(BY.producer_id, 3, WINDOW, 1 << 41, window))
    assert len(packed) <= PACKED_BYTES
