"""A client's request does not outwait a silent metadata store, and is told which part is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from octavo.metadata.memory import MemoryCluster
from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import MetadataUnavailable, UnknownTopic
from octavo.serving import store_answers
from octavo.serving.store_answers import StoreAnswers
from tests.serving_rig import make_batch
from tests.serving_server import Client, Loopback, batch_of

URL = "embedded://127.0.0.1:7660/octavo"
SILENT_S = 3600.0


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_answers, "PATIENCE_S", 0.05)
    monkeypatch.setattr(store_answers, "PROBE_S", 0.05)


@pytest_asyncio.fixture
async def silent_store() -> AsyncIterator[StoreAnswers]:
    cluster = MemoryCluster(clock=SystemClock())
    store = cluster.connect()
    cluster.latency_s = lambda: SILENT_S
    answers = StoreAnswers(store, URL, SystemClock())
    yield answers
    await answers.close()


async def test_waiting_ends_when_the_store_is_silent_and_names_it(
    silent_store: StoreAnswers,
) -> None:
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(MetadataUnavailable) as caught:
        await silent_store.during(endless())
    assert ended.is_set()
    assert "embedded://127.0.0.1:7660" in caught.value.cause
    assert caught.value.details == {"address": "embedded://127.0.0.1:7660"}


async def test_long_work_goes_on_while_the_store_answers() -> None:
    store = MemoryCluster(clock=SystemClock()).connect()
    answers = StoreAnswers(store, URL, SystemClock())

    async def several_patiences_long() -> str:
        await asyncio.sleep(0.4)
        return "done"

    assert await answers.during(several_patiences_long()) == "done"
    await answers.close()


async def test_errors_of_the_work_pass_and_its_own_timeout_stays_one(
    silent_store: StoreAnswers,
) -> None:
    async def fails(error: Exception) -> None:
        raise error

    with pytest.raises(UnknownTopic):
        await silent_store.during(fails(UnknownTopic("t")))
    with pytest.raises(TimeoutError):
        await silent_store.during(fails(TimeoutError()))


# --- a broker whose store is silent -------------------------------------------------------------


@pytest_asyncio.fixture
async def loopback() -> AsyncIterator[Loopback]:
    made = Loopback()
    yield made
    made.metadata.latency_s = None
    await made.close()


async def silenced(loopback: Loopback) -> Client:
    """A broker that serves "orders", of a store that answers nothing any more."""
    broker = await loopback.broker()
    await broker.stub.CreateTopic(pb.CreateTopicRequest(name="orders", partitions=1))
    reply = await broker.stub.Lookup(pb.LookupRequest(topic="orders"))
    assert not reply.HasField("error"), reply
    (ack,) = await broker.produce(batch_of(make_batch()))
    assert not ack.HasField("error"), ack
    loopback.metadata.latency_s = lambda: SILENT_S
    return broker


def is_named(error: pb.Error) -> bool:
    return error.code == MetadataUnavailable.code and "memory://loopback" in error.cause


async def test_every_request_that_needs_the_store_names_it(loopback: Loopback) -> None:
    broker = await silenced(loopback)
    stub = broker.stub
    async with asyncio.timeout(30):
        found = await stub.Metadata(pb.MetadataRequest(topics=["a", "orders", "b"]))
        assert [is_named(topic.error) for topic in found.topics] == [True, False, True]
        lookup = await stub.Lookup(pb.LookupRequest(topic="new"))
        assert is_named(lookup.error)
        wanted = [pb.ListOffset(topic=f"t{n}", earliest=True) for n in range(100)]
        wanted.append(pb.ListOffset(topic="orders", earliest=True))
        listed = await stub.ListOffsets(pb.ListOffsetsRequest(offsets=wanted))
        assert [is_named(one.error) for one in listed.offsets] == [True] * 100 + [False]
        described = await stub.DescribeLog(pb.DescribeLogRequest(topic="new"))
        assert is_named(described.error)
        shown = await stub.ShowLedger(pb.ShowLedgerRequest(ledger_id=1))
        assert is_named(shown.error)
        made = await stub.CreateTopic(pb.CreateTopicRequest(name="new", partitions=1))
        assert is_named(made.error)
        gone = await stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
        assert is_named(gone.error)
        granted = await stub.InitProducerId(pb.InitProducerIdRequest())
        assert is_named(granted.error)
        (ack,) = await broker.produce(batch_of(make_batch(), topic="new"))
        assert is_named(ack.error)
        health = await stub.ClusterHealth(pb.ClusterHealthRequest())
    assert not health.metadata_connected
    assert "memory://loopback" in health.metadata_error


async def test_open_ledgers_go_on_and_their_owner_is_found(loopback: Loopback) -> None:
    broker = await silenced(loopback)
    (ack,) = await broker.produce(batch_of(make_batch()))
    assert not ack.HasField("error")
    assert ack.base_offset == 1
    reply = await broker.stub.Lookup(pb.LookupRequest(topic="orders"))
    assert not reply.HasField("error"), reply
    assert reply.owner_id == "broker-1"
