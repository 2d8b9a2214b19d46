"""A bundle goes to a named successor that is ready before anybody is sent to it (O-3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from octavo.proto import broker_pb2 as pb
from octavo.serving.server import BrokerServer
from tests.serving_rig import make_batch, until
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_spread_topic,
    fetch_of,
    find_owner,
    loopback,
)

PARTITIONS = 8


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


async def brokers(cluster: Loopback, count: int, **settings: object) -> dict[str, Client]:
    """So many brokers that know each other, and a topic whose partitions all have owners."""
    for number in range(1, count + 1):
        await cluster.broker(f"broker-{number}", **{"ownership_settle_s": 1000, **settings})
    for server in cluster.servers:
        await until(lambda server=server: len(server._fleet.eligible()) == count)  # pyright: ignore
    await create_spread_topic(cluster, PARTITIONS)
    clients = {client.address: client for client in cluster.clients}
    for partition in range(PARTITIONS):
        owner = await find_owner(clients, "orders", partition)
        (ack,) = await clients[owner].produce(batch_of(make_batch([b"a"]), partition=partition))
        assert not ack.HasField("error"), ack.error
    return clients


def served(server: BrokerServer) -> list[int]:
    return sorted(shell.name.partition for shell in server.registry.shells())


async def test_what_is_produced_during_a_hand_over_is_sent_on_to_a_successor_that_is_ready(
    cluster: Loopback,
) -> None:
    clients = await brokers(cluster, 2)
    first, second = cluster.servers
    partition = served(first)[0]
    bundle = first.registry.bundle(first.registry.shells()[0].name.topic_id, partition)
    bundle = next(
        first.registry.bundle(shell.name.topic_id, shell.name.partition)
        for shell in first.registry.shells()
        if shell.name.partition == partition
    )
    me = second.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    moving = asyncio.ensure_future(first.ownership._leaving.give(bundle, me))  # pyright: ignore[reportPrivateUsage]
    await until(lambda: bundle not in first.ownership.held)
    assert not moving.done()
    (ack,) = await cluster.clients[0].produce(batch_of(make_batch([b"b"]), partition=partition))
    # The answer waited: the successor serves the partition by the time the client hears of it.
    assert ack.error.code == "NOT_LEADER"
    assert ack.error.details["owner_address"] == second.address
    assert partition in served(second)
    (ack,) = await clients[second.address].produce(
        batch_of(make_batch([b"b"]), partition=partition)
    )
    assert ack.base_offset == 1
    await moving
    shell = second.registry.find("orders", partition)
    assert shell is not None
    assert len(shell.described()) == 2  # closed by its first owner, nothing was recovered


async def test_a_lookup_during_a_hand_over_waits_and_names_the_successor(
    cluster: Loopback,
) -> None:
    await brokers(cluster, 2)
    first, second = cluster.servers
    shell = first.registry.shells()[0]
    bundle = first.registry.bundle(shell.name.topic_id, shell.name.partition)
    me = second.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    moving = asyncio.ensure_future(first.ownership._leaving.give(bundle, me))  # pyright: ignore[reportPrivateUsage]
    await until(lambda: bundle not in first.ownership.held)
    reply = await cluster.clients[0].stub.Lookup(
        pb.LookupRequest(topic="orders", partition=shell.name.partition)
    )
    assert (reply.owner_address, reply.redirect) == (second.address, False)
    await moving


async def test_a_successor_that_does_not_answer_costs_time_and_nothing_else(
    cluster: Loopback,
) -> None:
    clients = await brokers(cluster, 2)
    first, second = cluster.servers
    shell = first.registry.shells()[0]
    partition = shell.name.partition
    bundle = first.registry.bundle(shell.name.topic_id, partition)
    nobody = second.ownership._standing.me.__class__("broker-9", "127.0.0.1:1", b"n")  # pyright: ignore[reportPrivateUsage]
    await first.ownership._leaving.give(bundle, nobody)  # pyright: ignore[reportPrivateUsage]
    assert bundle in first.ownership.held  # who can wait keeps it
    await first.ownership._leaving.give(bundle, nobody, leaving=True)  # pyright: ignore[reportPrivateUsage]
    assert bundle not in first.ownership.held
    assert first.ownership.moving(bundle) is None
    owner = await find_owner(clients, "orders", partition)
    reply = await clients[owner].fetch(fetch_of(0, partitions=(partition,)))
    assert len(reply.partitions[0].batches) == 1


async def test_a_broker_that_stops_hands_everything_over_before_it_goes(
    cluster: Loopback,
) -> None:
    await brokers(cluster, 3)
    leaving, *others = cluster.servers
    theirs = served(leaving)
    held = leaving.ownership.held
    await leaving.stop()
    kept = {partition for server in others for partition in served(server)}
    assert set(theirs) <= kept
    assert held <= {bundle for server in others for bundle in server.ownership.held}


async def test_what_is_on_its_way_to_a_broker_that_leaves_goes_on_to_another_one(
    cluster: Loopback,
) -> None:
    # Also when others could not be told that it leaves.
    await brokers(cluster, 2)
    leaving, stays = cluster.servers
    free = set(range(leaving.config.bundles)) - leaving.ownership.held - stays.ownership.held
    comes = min(free)
    taking = asyncio.ensure_future(leaving.ownership.acquire(comes))
    held = leaving.ownership.held
    await asyncio.sleep(0)  # the attempt has begun
    await leaving.ownership.leave()
    assert await taking
    assert not leaving.ownership.held
    assert held | {comes} <= stays.ownership.held


async def test_a_bundle_that_is_given_twice_goes_once_and_leaving_waits_for_it(
    cluster: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    await brokers(cluster, 2)
    first, second = cluster.servers
    me = second.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    bundles = sorted(first.ownership.held)
    with caplog.at_level(logging.INFO, "octavo.serving.handover"):
        moving = [
            asyncio.ensure_future(first.ownership._leaving.give(bundle, me))  # pyright: ignore[reportPrivateUsage]
            for bundle in bundles
        ]
        await until(lambda: bool(first.ownership._leaving.moving))  # pyright: ignore[reportPrivateUsage]
        await first.ownership.leave()
        assert all(one.done() for one in moving)
    gone = [said for said in caplog.messages if "bundle-handed-over" in said]
    assert len(gone) == len(bundles), gone
    assert set(bundles) <= second.ownership.held


async def test_a_broker_that_leaves_is_given_nothing_by_one_that_can_wait(
    cluster: Loopback,
) -> None:
    await brokers(cluster, 2)
    first, second = cluster.servers
    await second.ownership.leave()
    bundle = min(first.ownership.held)
    me = second.ownership._standing.me  # pyright: ignore[reportPrivateUsage]
    await first.ownership._leaving.give(bundle, me)  # pyright: ignore[reportPrivateUsage]
    assert bundle in first.ownership.held


async def test_the_last_broker_stops_without_a_successor(cluster: Loopback) -> None:
    await brokers(cluster, 1, stop_deadline_s=60.0)
    async with asyncio.timeout(30):
        await cluster.servers[0].stop()
    assert not cluster.servers[0].registry.shells()


async def fleet(client: Client) -> dict[str, pb.FleetBroker]:
    reply = await client.stub.ListBrokers(pb.ListBrokersRequest())
    assert not reply.HasField("error")
    return {broker.broker_id: broker for broker in reply.brokers}


async def drain(client: Client, broker_id: str, *, back: bool = False) -> str:
    asked = pb.DrainBrokerRequest(broker_id=broker_id, drain=not back)
    return (await client.stub.DrainBroker(asked)).error.cause


async def test_a_drained_broker_gives_all_away_takes_nothing_and_is_drained_after_a_restart(
    cluster: Loopback,
) -> None:
    clients = await brokers(cluster, 2, ownership_settle_s=0.05)
    first, second = cluster.servers
    assert await drain(cluster.clients[1], "broker-1") == ""
    await until(lambda: served(second) == list(range(PARTITIONS)))
    assert not first.ownership.held
    known = await fleet(cluster.clients[0])
    assert known["broker-1"].drained
    assert known["broker-1"].bundles == 0
    assert not known["broker-2"].drained
    for partition in range(PARTITIONS):
        assert await find_owner(clients, "orders", partition) == second.address
    await first.stop()
    await cluster.stores[0].close()
    assert (await fleet(cluster.clients[1]))["broker-1"].address == ""
    await cluster.broker("broker-1", ownership_settle_s=0.05)
    again = cluster.servers[2]
    await until(lambda: len(second._fleet.brokers.live()) == 2)  # pyright: ignore[reportPrivateUsage]
    assert again._fleet.eligible() == ["broker-2"]  # pyright: ignore[reportPrivateUsage]
    assert await drain(cluster.clients[1], "broker-1", back=True) == ""
    await until(lambda: bool(again.ownership.held))


async def test_the_last_broker_that_may_serve_is_not_drained_nor_one_that_nobody_knows(
    cluster: Loopback,
) -> None:
    await brokers(cluster, 2, ownership_settle_s=0.05)
    assert await drain(cluster.clients[0], "broker-1") == ""
    assert "last broker" in await drain(cluster.clients[0], "broker-2")
    assert "no broker is called" in await drain(cluster.clients[0], "brokr-1")
    assert await drain(cluster.clients[0], "broker-1") == ""  # twice is once
