"""Quotas of clients on real streams: what is told, what waits, what is refused (X24, BP-4)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import grpc
import pytest

from octavo import AsyncClient
from octavo.client.messaging.api.descriptions import ClientQuota
from octavo.errors import OctavoError
from octavo.proto import broker_pb2 as pb
from octavo.proto import broker_pb2_grpc, groups_pb2, groups_pb2_grpc
from octavo.proto.client_ids import CLIENT_ID_KEY, throttle_ms_of
from octavo.proto.endpoints import open_channel
from octavo.proto.errors import from_rpc_error
from octavo.runtime.errors import (
    InvalidRequest,
    RequestTimedOut,
    Throttled,
    TooManyConnections,
)
from tests.serving_rig import make_batch
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_topic,
    fetch_of,
    find_owner,
    loopback,
)

APP = ((CLIENT_ID_KEY, b"app"),)
KB = 1_000
NOISE = bytes(range(256)) * 400
"""100 KB."""


async def ready(cluster: Loopback, **config: object) -> Client:
    client = await cluster.broker("broker-1", **config)
    await create_topic(client, partitions=1)
    await find_owner({client.address: client}, "orders", 0)
    return client


async def sent(client: Client, count: int, acks: int = -1) -> tuple[list[pb.ProduceReply], float]:
    """So many messages of 100 KB on one stream: the replies, and how long it all took."""
    call = client.stub.Produce(metadata=APP)
    began_s = time.monotonic()
    for number in range(count):
        batch = batch_of(make_batch([NOISE]), correlation=number, acks=acks)
        await call.write(pb.ProduceRequest(batches=[batch]))
    await call.done_writing()
    return [reply async for reply in call], time.monotonic() - began_s


@pytest.mark.parametrize("acks", [-1, 0])
async def test_x24_a_stream_over_its_rate_is_read_later_and_told_so(acks: int) -> None:
    async with loopback() as cluster:
        client = await ready(cluster, client_bytes_in_per_s=200 * KB)
        replies, took_s = await sent(client, 5, acks)
        assert [len(reply.acks) for reply in replies if reply.acks]
        answers = [ack for reply in replies for ack in reply.acks]
        assert sorted(ack.correlation for ack in answers) == list(range(5))
        assert not any(ack.HasField("error") for ack in answers), "nothing is dropped"
        assert any(500 <= reply.throttle_ms <= 1_600 for reply in replies)
        assert took_s > 0.8, "a burst of a second, then the rate"
        (other,) = await client.produce(batch_of(make_batch([b"x"])))  # of another client id
        assert not other.HasField("error")


async def test_x24_a_reader_over_its_rate_gets_its_reply_and_is_told_to_pause() -> None:
    async with loopback() as cluster:
        client = await ready(cluster)
        await client.produce(batch_of(make_batch([NOISE * 9])))
        await set_quota(client, bytes_out_per_s=100 * KB)
        call = client.stub.Fetch(metadata=APP)
        await call.write(fetch_of(0))
        reply = await call.read()
        assert isinstance(reply, pb.FetchReply)
        assert len(reply.partitions[0].batches) == 1
        assert reply.throttle_ms > 5_000
        call.cancel()
        again = await client.fetch(fetch_of(0))  # another client id
        assert again.throttle_ms == 0


async def set_quota(client: Client, **values: int) -> None:
    quota = pb.QuotaView(client_id="app", **values)
    reply = await client.stub.SetQuota(pb.SetQuotaRequest(quota=quota))
    assert not reply.HasField("error"), reply.error


async def refused(address: str, metadata: tuple[tuple[str, bytes], ...]) -> OctavoError:
    """How a stream on a connection of its own ends: raw channels of the rig may share one."""
    channel = open_channel(address)
    call = broker_pb2_grpc.BrokerStub(channel).Produce(metadata=metadata)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    await channel.close()
    return from_rpc_error(caught.value, address)


async def test_x24_a_connection_too_many_is_a_typed_error_with_a_hint() -> None:
    async with loopback() as cluster:
        client = await ready(cluster, client_connections_max=1)
        first = client.stub.Produce(metadata=APP)
        await first.write(pb.ProduceRequest(batches=[batch_of(make_batch([b"x"]))]))
        await first.read()
        error = await refused(client.address, APP)
        assert isinstance(error, TooManyConnections)
        assert "octavo quotas set" in error.hint
        too_long = ((CLIENT_ID_KEY, b"x" * 201),)
        assert isinstance(await refused(client.address, too_long), InvalidRequest)
        await first.done_writing()
        await first.code()


async def test_x24_unary_calls_are_told_to_pause_then_refused_but_for_what_keeps_sessions() -> None:
    async with loopback() as cluster:
        client = await ready(cluster)
        await set_quota(client, requests_per_s=1)
        told: list[int] = []
        for _ in range(3):
            call = client.stub.Metadata(pb.MetadataRequest(topics=["orders"]), metadata=APP)
            assert len((await call).topics) == 1
            told.append(throttle_ms_of(await call.trailing_metadata()))
        assert told[0] == 0 < 500 < told[1] < told[2]
        call = client.stub.Metadata(pb.MetadataRequest(topics=["orders"]), metadata=APP)
        await call  # it owes less than two seconds
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.ListTopics(pb.ListTopicsRequest(limit=1), metadata=APP)
        error = from_rpc_error(caught.value, client.address)
        assert isinstance(error, Throttled)
        assert error.retriable
        assert "octavo quotas set" in error.hint
        assert int(error.details["throttle_ms"]) > 500
        await client.stub.Metadata(pb.MetadataRequest(), metadata=APP)  # a sign of life
        groups = groups_pb2_grpc.GroupsStub(open_channel(client.address))
        beat = await groups.Heartbeat(groups_pb2.HeartbeatRequest(), metadata=APP)
        assert beat.error.code == "INVALID_GROUP_ID", "it was answered, not refused"
        found = await groups.FindCoordinator(groups_pb2.FindCoordinatorRequest(), metadata=APP)
        assert found.partitions
        await client.stub.Metadata(pb.MetadataRequest(topics=["orders"]))  # of another client id


async def test_x24_calls_of_the_sdk_keep_the_rate_and_say_when_there_is_no_time_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with loopback() as cluster:
        broker = await ready(cluster)
        async with AsyncClient(broker.address, client_id="app") as client:
            await client.admin.list_topics()
            await set_quota(broker, requests_per_s=20)
            began_s = time.monotonic()
            with caplog.at_level(logging.WARNING, "octavo.client"):
                for _ in range(3):  # the third one waits for what the second one owes
                    await asyncio.gather(*(client.admin.list_topics() for _ in range(20)))
            took_s = time.monotonic() - began_s
            assert took_s > 0.8, "60 calls: a burst of a second, then the rate"
            assert len([one for one in caplog.messages if "by its quota" in one]) == 1
            await set_quota(broker, requests_per_s=1)

            async def listed_until_refused() -> None:
                for _ in range(40):
                    with contextlib.suppress(RequestTimedOut):  # nobody got to it in that time
                        await client.admin.list_topics(timeout=0.3)

            with pytest.raises(Throttled, match="longer than this one may take") as caught:
                await listed_until_refused()
            assert caught.value.retriable
            assert "octavo quotas set" in caught.value.hint
            cluster_of = client.admin._binding.cluster()  # pyright: ignore[reportPrivateUsage]
            groups = cluster_of.transport.groups(broker.address)
            beat = await groups.Heartbeat(groups_pb2.HeartbeatRequest(), timeout=5)
            assert beat.error.code == "INVALID_GROUP_ID", "members are not held up"


async def test_x24_the_sdk_pauses_says_so_once_and_goes_by_a_change_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with loopback() as cluster:
        broker = await ready(cluster)
        address = broker.address
        async with AsyncClient(address, client_id="app") as client:
            quotas = await client.admin.list_quotas()
            assert quotas == [ClientQuota("", 0, 0, 0, 0)]
            assert repr(quotas[0]).count("no limit") == 4, "nobody reads 0 as none at all"
            set_to = await client.admin.set_quota("app", bytes_in_per_s=200 * KB)
            assert set_to == ClientQuota("app", bytes_in_per_s=200 * KB)
            assert (await client.admin.list_quotas())[1:] == [set_to]
            began_s = time.monotonic()
            with caplog.at_level(logging.WARNING, "octavo.client"):
                async with client.producer(compression_type="none") as producer:
                    for _ in range(6):
                        await producer.send("orders", NOISE)
            assert time.monotonic() - began_s > 1.2
            said = [one for one in caplog.messages if "by its quota" in one]
            assert len(said) == 1
            await client.admin.unset_quota("app")
            async with client.reader("orders", start="earliest") as reader:
                found = [record.value async for record in reader.read_to_end()]
            assert found == [NOISE] * 6
            assert (await client.admin.list_quotas())[1:] == []
