"""`unload` moves one bundle, to the broker that is named or idlest, where it stays (O-3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from octavo.proto import broker_pb2 as pb
from tests.integration.test_broker_handover import PARTITIONS, brokers, drain, served
from tests.serving_rig import until
from tests.serving_server import Client, Loopback, find_owner, loopback


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


async def unload(client: Client, bundle: int, away_from: str = "", to: str = "") -> pb.BundleView:
    asked = pb.UnloadBundleRequest(bundle=bundle, away_from=away_from, to_broker=to)
    reply = await client.stub.UnloadBundle(asked)
    assert not reply.HasField("error"), reply.error
    return reply.bundle


async def refusal(client: Client, bundle: int, away_from: str = "", to: str = "") -> pb.Error:
    asked = pb.UnloadBundleRequest(bundle=bundle, away_from=away_from, to_broker=to)
    return (await client.stub.UnloadBundle(asked)).error


async def bundles(client: Client) -> dict[int, pb.BundleView]:
    reply = await client.stub.ListBundles(pb.ListBundlesRequest())
    assert not reply.HasField("error"), reply.error
    return {one.bundle: one for one in reply.bundles}


async def bundle_of(client: Client, partition: int) -> pb.BundleView:
    name = pb.PartitionName(topic="orders", partition=partition)
    reply = await client.stub.ListBundles(pb.ListBundlesRequest(partition=name))
    (found,) = reply.bundles
    return found


async def test_exactly_the_bundle_that_is_named_moves_and_stays(cluster: Loopback) -> None:
    clients = await brokers(cluster, 3, ownership_settle_s=0.05)
    before = {n: view.owner_id for n, view in (await bundles(cluster.clients[0])).items()}
    found = await bundle_of(cluster.clients[1], 2)
    to = next(f"broker-{n}" for n in (1, 2, 3) if f"broker-{n}" != found.owner_id)
    view = await unload(cluster.clients[2], found.bundle, found.owner_id, to)
    assert view.placed_on == to
    new = next(server for server in cluster.servers if server.config.broker_id == to)
    await until(lambda: found.bundle in new.ownership.held)
    await until(lambda: 2 in served(new))  # loaded before anybody asked
    assert await find_owner(clients, "orders", 2) == new.address
    after = {n: view.owner_id for n, view in (await bundles(cluster.clients[0])).items()}
    assert after == {**before, found.bundle: to}
    again = await unload(cluster.clients[0], found.bundle, found.owner_id, to)
    assert (again.owner_id, again.placed_on) == (to, to)  # asking again is safe
    assert await unload(cluster.clients[0], found.bundle, found.owner_id) == again


async def test_without_a_name_it_goes_to_the_one_with_the_fewest_bundles(
    cluster: Loopback,
) -> None:
    await brokers(cluster, 3, ownership_settle_s=0.05)
    owner, busiest, idlest = cluster.servers
    for bundle in sorted(idlest.ownership.held):
        await unload(cluster.clients[0], bundle, "broker-3", "broker-2")
    await until(lambda: not idlest.ownership.held)
    if not owner.ownership.held:  # hashing may give it none
        await unload(cluster.clients[0], min(busiest.ownership.held), "broker-2", "broker-1")
        await until(lambda: bool(owner.ownership.held))
    bundle = min(owner.ownership.held)
    assert (await unload(cluster.clients[1], bundle, "broker-1")).placed_on == "broker-3"
    await until(lambda: list(idlest.ownership.held) == [bundle])


async def test_a_moved_bundle_outlives_its_broker_and_returns_with_it(cluster: Loopback) -> None:
    clients = await brokers(cluster, 2, ownership_settle_s=0.05)
    first, second = cluster.servers
    bundle = min(first.ownership.held)
    await unload(cluster.clients[0], bundle, "broker-1", "broker-2")
    await until(lambda: bundle in second.ownership.held)
    assert await drain(cluster.clients[0], "broker-2") == ""
    await until(lambda: bundle in first.ownership.held)
    assert await drain(cluster.clients[0], "broker-2", back=True) == ""
    await until(lambda: bundle in second.ownership.held)
    for partition in range(PARTITIONS):
        assert await find_owner(clients, "orders", partition)


async def test_what_cannot_be_is_refused_with_what_can(cluster: Loopback) -> None:
    await brokers(cluster, 2)
    client, held = cluster.clients[0], min(cluster.servers[0].ownership.held)
    error = await refusal(client, 64)
    assert (error.code, error.cause) == ("INVALID_REQUEST", "there is no bundle 64")
    assert error.hint == "bundles are numbered from 0 to 63"
    assert (await refusal(client, -1)).code == "INVALID_REQUEST"
    error = await refusal(client, held, to="brokr-2")
    assert "no broker is called 'brokr-2'" in error.cause
    assert "broker-2" in error.hint
    assert await drain(client, "broker-2") == ""
    error = await refusal(client, held, to="broker-2")
    assert "takes nothing" in error.cause
    assert "undrain" in error.hint
    error = await refusal(client, held, "broker-1")
    assert error.cause == "no other broker may serve the bundle"
    for name, code in (("nothing", "UNKNOWN_TOPIC"), ("orders", "INVALID_PARTITION")):
        asked = pb.ListBundlesRequest(partition=pb.PartitionName(topic=name, partition=99))
        assert (await client.stub.ListBundles(asked)).error.code == code


async def test_two_that_move_bundles_at_once_are_both_heard(cluster: Loopback) -> None:
    await brokers(cluster, 2, ownership_settle_s=0.05)
    first, second = cluster.servers
    held = sorted(first.ownership.held)[:4]
    await asyncio.gather(
        *(unload(cluster.clients[n % 2], b, "broker-1", "broker-2") for n, b in enumerate(held))
    )
    await until(lambda: set(held) <= second.ownership.held)
