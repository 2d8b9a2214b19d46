"""Brokers with too much to do give bundles away, by the decision of one of them (O-4, ADR 40)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from octavo.metadata.load_reports import Load, LoadReport, LoadReports
from octavo.metadata.paths import Paths
from octavo.metadata.placements import Placed, Placements
from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from tests.integration.test_broker_handover import brokers, drain
from tests.serving_rig import make_batch, until
from tests.serving_server import Client, Loopback, batch_of, fetch_of, find_owner, loopback

PATHS = Paths("/octavo")
QUICK: dict[str, float] = {
    "ownership_settle_s": 0.05,
    "load_report_interval_s": 0.15,
    "shedding_interval_s": 0.3,
}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


class Told:
    """The load of every broker, as this test says it is: all of them are one process here."""

    def __init__(self, cluster: Loopback) -> None:
        self.reports = LoadReports(cluster.metadata.connect(), PATHS)
        self.servers = cluster.servers
        self.usage = dict.fromkeys((server.config.broker_id for server in self.servers), 0.1)
        self.number = 0

    async def tell(self) -> None:
        """One more report of each that has a usage, and everybody's look at them."""
        self.number += 1
        for server in self.servers:
            name, held = server.config.broker_id, sorted(server.ownership.held)
            if name in self.usage:
                usage, shares = self.usage[name], dict.fromkeys(held, 1 / max(1, len(held)))
                load = Load(usage, usage, 0.0, 7, 8, 9, 1, len(held), shares)
                await self.reports.publish(LoadReport(name, b"told", self.number, load))
        for server in self.servers:
            now_s = SystemClock().monotonic()
            server._board.looked(await self.reports.read(), now_s)  # pyright: ignore[reportPrivateUsage]

    @property
    def placed(self) -> dict[int, str]:
        """The bundles that were moved by decision, and where to."""
        return dict(self.servers[-1]._fleet.placements.brokers())  # pyright: ignore[reportPrivateUsage]

    async def until_placed(self, count: int) -> dict[int, str]:
        """Tell until so many bundles are moved."""
        async with asyncio.timeout(30):
            while len(self.placed) < count:
                await self.tell()
                await asyncio.sleep(0.03)
        return self.placed

    async def for_a_while(self) -> dict[int, str]:
        """Tell for six evaluations."""
        for _ in range(24):
            await self.tell()
            await asyncio.sleep(QUICK["shedding_interval_s"] / 4)
        return self.placed


async def started(cluster: Loopback, count: int, **changes: object) -> Told:
    """So many brokers with equal shares of the bundles, that do not tell their load themselves."""
    await brokers(cluster, count, **{**QUICK, **changes})
    for server in cluster.servers:
        for bundle in range(server.config.bundles):
            if server.ownership.preferred(bundle).broker_id == server.config.broker_id:
                assert await server.ownership.acquire(bundle)
    for task in asyncio.all_tasks():
        if task.get_name() == "broker:load":
            task.cancel()
    boards = [server._board for server in cluster.servers]  # pyright: ignore[reportPrivateUsage]
    clock = SystemClock()
    await until(lambda: not any(board.fresh(clock.monotonic()) for board in boards))
    return Told(cluster)


def held(cluster: Loopback) -> dict[str, frozenset[int]]:
    """Bundles by broker."""
    return {server.config.broker_id: server.ownership.held for server in cluster.servers}


async def listed(client: Client) -> dict[str, pb.FleetBroker]:
    reply = await client.stub.ListBrokers(pb.ListBrokersRequest())
    return {one.broker_id: one for one in reply.brokers}


async def test_every_broker_tells_its_load_and_the_list_shows_it(cluster: Loopback) -> None:
    clients = await brokers(cluster, 2, load_report_interval_s=0.05)
    owner = await find_owner(clients, "orders", 0)
    name = next(s.config.broker_id for s in cluster.servers if s.address == owner)
    async with asyncio.timeout(30):
        while True:
            await clients[owner].produce(batch_of(make_batch([b"x" * 100] * 50)))
            await clients[owner].fetch(fetch_of(0))
            found = (await listed(cluster.clients[0]))[name]
            reply = await cluster.clients[1].stub.ListBundles(pb.ListBundlesRequest())
            if found.load.bytes_out_per_s and any(
                view.usage for view in reply.bundles if view.owner_id == name
            ):
                break
    assert found.load.records_in_per_s >= 1
    assert found.load.bytes_in_per_s > found.load.records_in_per_s * 100
    assert 0 < found.load.usage <= 1
    assert found.load.partitions >= 1
    assert found.load.hottest == "orders-0"  # F175: only it gets records
    assert found.load.partition_load_ratio > 0.5


async def test_a_busy_broker_gives_to_the_idlest_one_and_then_rests(cluster: Loopback) -> None:
    told = await started(cluster, 3)
    busy, idlest = cluster.servers[1], cluster.servers[2]
    before = held(cluster)
    told.usage |= {"broker-1": 0.45, "broker-2": 0.8}
    await told.until_placed(2)
    told.usage |= {"broker-2": 0.45, "broker-3": 0.45}
    await told.tell()
    await asyncio.sleep(QUICK["shedding_interval_s"])  # one more may be decided by older reports
    placed = told.placed
    assert set(placed.values()) == {"broker-3"}
    assert placed.keys() <= before["broker-2"]
    await until(lambda: placed.keys() <= idlest.ownership.held)
    assert await told.for_a_while() == placed
    assert busy.ownership.held == before["broker-2"] - placed.keys()
    assert held(cluster)["broker-1"] == before["broker-1"]


async def test_neither_the_drained_nor_the_unknown_get_anything(cluster: Loopback) -> None:
    told = await started(cluster, 4)
    assert await drain(cluster.clients[0], "broker-4") == ""
    await until(lambda: not cluster.servers[3].ownership.held)
    told.usage |= {"broker-1": 0.3, "broker-2": 0.8}
    del told.usage["broker-3"]
    placed = await told.until_placed(1)
    assert set(placed.values()) == {"broker-1"}
    await until(lambda: placed.keys() <= cluster.servers[0].ownership.held)
    assert not cluster.servers[3].ownership.held


async def test_shedding_that_is_switched_off_moves_nothing(cluster: Loopback) -> None:
    told = await started(cluster, 2, shedding_enabled=False)
    told.usage |= {"broker-1": 0.9}
    assert await told.for_a_while() == {}


async def test_of_two_that_decide_at_once_one_has_no_effect(cluster: Loopback) -> None:
    told = await started(cluster, 3)
    told.usage |= {"broker-1": 0.3, "broker-2": 0.8}
    server = cluster.servers[0]
    shedder = server._shedder(server._member, server.ownership)  # type: ignore[arg-type]  # pyright: ignore
    await until(lambda: server.ownership.certain())
    for _ in range(2):
        await told.tell()
        await shedder.step()
    fleet = server._fleet  # pyright: ignore[reportPrivateUsage]
    other = Placements(
        cluster.metadata.connect(), PATHS, clock=SystemClock(), entropy=SystemEntropy()
    )
    read, seen = fleet.placements.read, await other.read()
    noted = {1000: "broker-1"}

    async def overtaken() -> Placed:
        found = await read()
        assert await other.replace(found, {**found.brokers, **noted})
        return found

    assert 1000 not in seen.brokers
    fleet.placements.read = overtaken  # type: ignore[method-assign]
    await told.tell()
    await shedder.step()
    fleet.placements.read = read  # type: ignore[method-assign]
    assert (await other.read()).brokers == {**seen.brokers, **noted}


async def test_the_next_broker_decides_when_the_first_one_is_gone(cluster: Loopback) -> None:
    told = await started(cluster, 3)
    await cluster.servers[0].stop()
    told.servers = cluster.servers[1:]
    told.usage = {"broker-2": 0.8, "broker-3": 0.1}
    placed = await told.until_placed(1)
    assert set(placed.values()) == {"broker-3"}
