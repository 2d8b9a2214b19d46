"""A broker is replaced before its session ends, and finds out before it answers (ADR 34)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from octavo.metadata.brokers import unregister
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.paths import Paths
from octavo.proto import broker_pb2 as pb
from octavo.proto import peers_pb2
from octavo.proto.peers_pb2_grpc import PeersStub
from octavo.runtime.clock import SystemClock
from octavo.serving.liveness.standing import LEASE_S
from octavo.serving.server import BrokerServer
from tests.serving_rig import make_batch, until
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_spread_topic,
    find_owner,
    loopback,
)

PARTITIONS = 8
PATHS = Paths("/octavo")
CLOCK = SystemClock()


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


async def two_brokers(cluster: Loopback, **settings: object) -> dict[str, Client]:
    """Both serve something; bundles move only when one is gone."""
    for number in (1, 2):
        await cluster.broker(f"broker-{number}", ownership_settle_s=1000, **settings)
    for server in cluster.servers:
        await until(lambda server=server: len(server._brokers.live()) == 2)  # pyright: ignore
    await create_spread_topic(cluster, PARTITIONS)
    clients = {client.address: client for client in cluster.clients}
    for partition in range(PARTITIONS):
        owner = clients[await find_owner(clients, "orders", partition)]
        # Opens it: of two partitions in one bundle a lookup may have opened one only.
        await owner.stub.DescribeLog(pb.DescribeLogRequest(topic="orders", partition=partition))
    assert all(server.ownership.held for server in cluster.servers)
    return clients


async def die(server: BrokerServer) -> None:
    """As if the process were killed: it answers nobody, and its session goes on."""
    member, grpc_server = server._member, server._server  # pyright: ignore[reportPrivateUsage]
    assert member is not None
    assert grpc_server is not None
    await member._heartbeats.close()  # pyright: ignore[reportPrivateUsage]
    await member.standing.close()
    await keeps_no_registration(server)
    server.ownership._stopping = True  # pyright: ignore[reportPrivateUsage]
    await grpc_server.stop(None)


async def keeps_no_registration(server: BrokerServer) -> None:
    assert server._member is not None  # pyright: ignore[reportPrivateUsage]
    await server._member._registrar._registration._tasks.close()  # pyright: ignore[reportPrivateUsage]


async def test_the_bundles_of_a_dead_broker_are_taken_though_its_session_lives_and_nobody_asks(
    cluster: Loopback,
) -> None:
    await two_brokers(cluster)
    dead, alive = cluster.servers
    # An owner is named when it has the bundle: the partition itself may still be loading.
    await until(lambda: len(dead.registry) + len(alive.registry) == PARTITIONS)
    theirs, partitions = dead.ownership.held, len(dead.registry)
    died_s = time.monotonic()
    await die(dead)
    await until(lambda: theirs <= alive.ownership.held)
    assert time.monotonic() - died_s >= LEASE_S  # what it may have answered counted so long
    assert [broker.broker_id for broker in alive._brokers.live()] == ["broker-2"]  # pyright: ignore[reportPrivateUsage]
    seconds = alive._figures.take_over_seconds  # pyright: ignore[reportPrivateUsage]
    await until(lambda: sum(seconds.counts) == partitions)
    assert partitions
    assert len(alive.registry) == PARTITIONS


async def test_a_deputy_replaces_the_leader_and_the_leader_a_deputy(cluster: Loopback) -> None:
    await two_brokers(cluster)
    alive, dead = cluster.servers
    theirs = dead.ownership.held
    await die(dead)
    await until(lambda: theirs <= alive.ownership.held)


async def test_a_replaced_broker_that_lives_registers_as_another_and_goes_on(
    cluster: Loopback,
) -> None:
    """O-5: what nobody took meanwhile it takes back, under its new name."""
    clients = await two_brokers(cluster)
    first, second = cluster.servers
    before, held = first.ownership._standing.me, first.ownership.held  # pyright: ignore[reportPrivateUsage]
    assert await unregister(cluster.stores[1], PATHS, before, clock=CLOCK)
    await until(lambda: first.ownership._standing.me != before)  # pyright: ignore[reportPrivateUsage]
    await until(lambda: first.ownership.held == held)
    me = first.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    bundles = BundleRegistry(cluster.stores[1], PATHS, clock=CLOCK)
    owners = await bundles.owners()
    assert {owners[n] for n in held} == {BundleOwner(me.broker_id, me.address, me.process_nonce)}
    # Whoever still takes bundles of the earlier life away does not meet these.
    earlier = BundleOwner(before.broker_id, before.address, before.process_nonce)
    assert [await bundles.evict(n, earlier) for n in held] == [False] * len(held)
    for partition in range(PARTITIONS):
        owner = await find_owner(clients, "orders", partition)
        (ack,) = await clients[owner].produce(batch_of(make_batch(), partition=partition))
        assert not ack.HasField("error")
    assert not await unregister(cluster.stores[1], PATHS, before, clock=CLOCK)
    assert second.ownership.held.isdisjoint(held)


async def test_a_replaced_broker_gives_up_what_others_took(cluster: Loopback) -> None:
    clients = await two_brokers(cluster)
    first, second = cluster.servers
    held, me = first.ownership.held, first.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    bundles = BundleRegistry(cluster.stores[1], PATHS, clock=CLOCK)
    assert await unregister(cluster.stores[1], PATHS, me, clock=CLOCK)
    usurper = BundleOwner("broker-2", second.address, b"another process")
    theirs = BundleOwner(me.broker_id, me.address, me.process_nonce)
    taken = [
        n for n in held if await bundles.evict(n, theirs) and await bundles.acquire(n, usurper)
    ]
    assert taken  # the others it took back sooner
    await until(lambda: not first.ownership.lost and first.ownership._standing.certain())  # pyright: ignore[reportPrivateUsage]
    assert first.ownership.held == held - set(taken)
    assert len(clients) == 2


async def test_a_broker_that_is_replaced_again_while_it_takes_back_goes_on(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lives are looked through with questions to the store between them."""
    await two_brokers(cluster)
    ownership = cluster.servers[0].ownership
    standing, held = ownership._standing, ownership.held  # pyright: ignore[reportPrivateUsage]
    registry = ownership._registry  # pyright: ignore[reportPrivateUsage]
    evict = registry.evict

    async def replace_again(bundle: int, owner: BundleOwner) -> bool:
        if len(standing.former) == 1 and await unregister(
            cluster.stores[1], PATHS, standing.me, clock=CLOCK
        ):
            await until(lambda: len(standing.former) == 2)
        return await evict(bundle, owner)

    monkeypatch.setattr(registry, "evict", replace_again)
    assert await unregister(cluster.stores[1], PATHS, standing.me, clock=CLOCK)
    await until(lambda: len(standing.former) >= 2)
    await until(lambda: ownership.held == held)


async def test_a_broker_whose_stop_takes_too_long_does_not_come_back(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It neither registers again nor takes back what others took: its process is about to end."""
    await two_brokers(cluster, stop_deadline_s=0.05)
    late, alive = cluster.servers
    theirs = late.ownership.held
    monkeypatch.setattr(late.ownership, "leave", asyncio.Event().wait)
    await late.stop()
    assert "broker-stops-late" in caplog.text
    assert late._member is not None  # pyright: ignore[reportPrivateUsage]
    registration = late._member._registrar._registration  # pyright: ignore[reportPrivateUsage]
    assert not registration._tasks  # pyright: ignore[reportPrivateUsage]
    assert not late.ownership._standing.is_registered  # pyright: ignore[reportPrivateUsage]
    await until(lambda: theirs <= alive.ownership.held)
    await until(lambda: len(alive._brokers.live()) == 1)  # pyright: ignore[reportPrivateUsage]


async def test_a_broker_is_certain_for_a_lease_and_a_replaced_one_is_told_when_it_asks(
    cluster: Loopback,
) -> None:
    await two_brokers(cluster)
    standing = cluster.servers[0].ownership._standing  # pyright: ignore[reportPrivateUsage]
    assert standing.certain()
    assert await standing.confirm()
    await keeps_no_registration(cluster.servers[0])
    assert await unregister(cluster.stores[1], PATHS, standing.me, clock=CLOCK)
    asked_s = time.monotonic()
    assert not await standing.confirm()
    # So it is certain for a lease from then on at most, whenever this test gets to look.
    assert standing._confirmed_s <= asked_s  # pyright: ignore[reportPrivateUsage]
    assert standing._lease_s <= LEASE_S  # pyright: ignore[reportPrivateUsage]
    await until(lambda: not standing.certain())
    reply = await cluster.clients[0].stub.Metadata(pb.MetadataRequest(topics=["orders"]))
    named = {part.owner_id for topic in reply.topics for part in topic.partitions}
    assert "broker-1" not in named  # it does not call itself an owner any more


async def test_a_heartbeat_names_the_process_and_is_held_no_longer_than_allowed(
    cluster: Loopback,
) -> None:
    await cluster.broker("broker-1")
    channel = grpc.aio.insecure_channel(cluster.servers[0].address)
    stub = PeersStub(channel)
    asked = peers_pb2.HeartbeatRequest(from_broker="x", hold_ms=0)
    reply = await asyncio.wait_for(stub.Heartbeat(asked), 8)  # pyright: ignore
    assert reply.process_nonce == cluster.servers[0].ownership._standing.me.process_nonce  # pyright: ignore[reportPrivateUsage]
    for hold_ms in (-1, 10_001):
        with pytest.raises(grpc.aio.AioRpcError, match="cannot be held"):
            await stub.Heartbeat(peers_pb2.HeartbeatRequest(hold_ms=hold_ms))  # pyright: ignore
    await channel.close()
