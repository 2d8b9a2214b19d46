"""What a broker's page says after what was done to it; brokers in this process, real gRPC."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc
import pytest

from octavo.metrics import catalogue
from octavo.proto import broker_pb2 as pb
from octavo.serving.measuring.partitions import PartitionFigures
from octavo.serving.server import BrokerServer
from tests.metrics_client import Page, page_of
from tests.serving_rig import make_batch, until
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_topic,
    fetch_of,
    find_owner,
    loopback,
)

Call: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


async def shown(server: BrokerServer) -> Page:
    return await page_of(server.metrics.page.address)


async def serving(made: Loopback, partitions: int = 1, *, series: int = 0) -> Client:
    """A broker with a page, and a topic whose partitions it has taken."""
    client = await made.broker(metrics_port=0, metrics_partitions_max=series)
    await create_topic(client, partitions=partitions)
    for partition in range(partitions):
        await find_owner({client.address: client}, "orders", partition)
    return client


def messages(page: Page, direction: str) -> float:
    return page.value("octavo_broker_messages_total", direction=direction)


async def test_what_was_written_and_read_is_on_the_page_and_no_series_of_partitions() -> None:
    async with loopback() as made:
        client = await serving(made)
        batches = [make_batch([b"v"] * 3), make_batch([b"w"] * 4)]
        acks = await client.produce(*(batch_of(b, correlation=n) for n, b in enumerate(batches)))
        assert not any(ack.HasField("error") for ack in acks)
        await client.fetch(fetch_of(0))
        await client.fetch(fetch_of(7))  # nothing is there: nothing went out
        page = await shown(made.servers[0])
    assert messages(page, "in") == 7
    assert messages(page, "out") == 7
    stored = page.value("octavo_broker_bytes_total", direction="in")
    assert stored == sum(map(len, batches))
    assert page.value("octavo_broker_bytes_total", direction="out") == stored
    assert page.value("octavo_broker_publish_ack_seconds_count") == 1  # one message of answers
    assert page.value("octavo_broker_partitions") == 1
    assert page.value("octavo_broker_bundles") >= 1
    assert page.value("octavo_broker_partition_load_seconds_count") == 1
    assert page.value("octavo_broker_bookies", state="rw") == 3
    assert page.value("octavo_broker_tail_cache_bytes") > stored
    assert page.value("octavo_connections") == 1
    assert page.value("octavo_metrics_failures_total") == 0
    assert page.values("octavo_partition_end_offset") == []
    assert page.families.keys() == {m.name for m in catalogue.of_server("broker")}


async def test_streams_are_counted_while_they_are_open() -> None:
    async with loopback() as made:
        client = await serving(made)
        call = client.stub.Produce()
        await call.write(pb.ProduceRequest(batches=[batch_of(make_batch())]))
        await call.read()
        page = await shown(made.servers[0])
        assert page.value("octavo_broker_streams", kind="produce") == 1
        assert page.value("octavo_broker_streams", kind="fetch") == 0
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        page = await shown(made.servers[0])
        assert page.value("octavo_broker_streams", kind="produce") == 0


async def test_requests_are_counted_by_method_and_status() -> None:
    async with loopback() as made:
        client = await serving(made)
        call: Call = client.channel.unary_unary("/octavo.broker.Broker/Lookup")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\xff\xff\xff")
        page = await shown(made.servers[0])
    name = "octavo_broker_request_seconds_count"
    assert page.value(name, method="CreateTopic", code="OK") == 1
    assert page.value(name, method="Lookup", code="INVALID_ARGUMENT") == 1
    assert page.values(name, method="Produce") == []


async def test_a_request_that_its_client_gives_up_counts_as_cancelled() -> None:
    async with loopback() as made:
        client = await made.broker(metrics_port=0)
        server = made.servers[0]
        started = asyncio.Event()

        async def hold(_raw: bytes, _context: object) -> bytes:
            started.set()
            await asyncio.Event().wait()
            return b""

        held: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(hold)
        handlers = server._request_times.measured("Held", {"Hold": held})
        server._server.add_generic_rpc_handlers(  # type: ignore[union-attr]
            (grpc.method_handlers_generic_handler("test.Held", handlers),)
        )
        hold_call: Call = client.channel.unary_unary("/test.Held/Hold")
        asked = hold_call(b"")
        await started.wait()
        asked.cancel()
        await until(lambda: ("Hold", "CANCELLED") in server._request_times.seconds)


async def test_series_of_partitions_are_there_for_as_many_as_the_setting_says() -> None:
    async with loopback() as made:
        client = await serving(made, 3, series=2)
        await client.produce(*(batch_of(make_batch([b"v"] * 5), partition=n) for n in range(3)))
        await client.fetch(fetch_of(0, partitions=[0, 1, 2]))
        server = made.servers[0]
        page = await shown(server)
        ends = page.values("octavo_partition_end_offset", topic="orders")
        assert ends == [5, 5]
        assert page.values("octavo_partition_begin_offset", topic="orders") == [0, 0]
        counted = page.values("octavo_partition_messages_total", direction="in")
        assert counted == [5, 5]
        assert messages(page, "in") == 15  # the total is of all three
        assert page.values("octavo_partition_load_ratio") == [0, 0]  # no interval has passed


async def test_the_busiest_partition_shows() -> None:
    """F175: one hot partition is told from an even load."""
    async with loopback() as made:
        client = await serving(made, 4, series=10)
        hot = make_batch([b"x" * 200_000])
        await client.produce(*(batch_of(hot, correlation=n, partition=1) for n in range(20)))
        await client.produce(*(batch_of(make_batch(), partition=n) for n in range(4)))
        figures: PartitionFigures = made.servers[0]._figures
        taken = list(figures.take())  # what the load reporter does in each interval
        assert sum(traffic.records_in for _, _, traffic in taken) <= 24
        page = await shown(made.servers[0])
        assert page.value("octavo_broker_busiest_partition_ratio") > 0.9
        hottest = page.value("octavo_partition_load_ratio", topic="orders", partition="1")
        assert hottest == page.value("octavo_broker_busiest_partition_ratio")
        list(figures.take())  # nothing went through since
        page = await shown(made.servers[0])
        assert page.value("octavo_broker_busiest_partition_ratio") == 0


async def test_no_total_falls_when_partitions_go() -> None:
    async with loopback() as made:
        client = await serving(made)
        server = made.servers[0]
        await client.produce(batch_of(make_batch([b"v"] * 3)))
        await client.stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
        await until(lambda: not len(server.registry))
        assert messages(await shown(server), "in") == 3
        await create_topic(client, "others")
        await find_owner({client.address: client}, "others", 0)
        await client.produce(batch_of(make_batch([b"w"] * 2), topic="others"))
        page = await shown(server)
        assert messages(page, "in") == 5
        assert page.value("octavo_broker_partitions") == 1


async def test_internal_topics_do_not_count() -> None:
    async with loopback() as made:
        await serving(made, series=100)
        server = made.servers[0]
        partition, _ = await server._groups.find("billing")
        found = await server._groups.of_partition(partition)
        assert found.shell.is_internal
        found.shell.traffic.wrote(1_000, 1_000)
        page = await shown(server)
        assert messages(page, "in") == 0
        assert page.values("octavo_partition_end_offset", topic=found.shell.name.topic) == []


async def test_a_page_while_the_metadata_store_is_away_and_two_brokers_beside() -> None:
    async with loopback() as made:
        await made.broker("broker-1", metrics_port=0)
        await made.broker("broker-2", metrics_port=0)
        made.stores[0].suspend()
        one, two = await asyncio.gather(*map(shown, made.servers))
        assert one.value("octavo_zk_session_state", state="suspended") == 1
        assert two.value("octavo_zk_session_state", state="connected") == 1
        assert one.value("octavo_zk_session_state", state="connected") == 0
        made.stores[0].resume()


async def test_a_broker_whose_page_has_no_port_does_not_start() -> None:
    made = Loopback()
    try:
        await made.broker("broker-1", metrics_port=0)
        taken = int(made.servers[0].metrics.page.address.rpartition(":")[2])
        with pytest.raises(Exception, match="cannot listen"):
            await made.broker("broker-2", metrics_port=taken)
    finally:
        await made.close()
