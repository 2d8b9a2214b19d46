# pyright: reportPrivateUsage=false
"""Health of brokers and bookies: alive, started, ready, and what is told first (interface §4.3)."""

from __future__ import annotations

import asyncio
import pathlib

import grpc
import pytest

from octavo.bookie.control import JOURNAL, WIRE
from octavo.bookie.control import SERVICE as CONTROL
from octavo.metadata.brokers import BrokerInfo
from octavo.proto import broker_pb2 as pb
from octavo.proto.endpoints import bind, grpc_server
from octavo.proto.health import LIVENESS, STARTED, HealthBoard
from octavo.serving.server import GROUP_SERVICE, PEERS, SERVICE
from tests.bookie_rig import BookieRig
from tests.bookie_rig import until as bookie_until
from tests.health_client import statuses, watching
from tests.serving_rig import until
from tests.serving_server import create_topic, find_owner, loopback

BROKER_NAMES = (LIVENESS, STARTED, SERVICE, GROUP_SERVICE, PEERS)
BOOKIE_NAMES = (LIVENESS, STARTED, CONTROL, WIRE, JOURNAL)
SERVING = "SERVING"
NOT = "NOT_SERVING"
WAIT_S = 30.0


async def test_a_broker_is_alive_started_and_ready_and_knows_no_other_names() -> None:
    async with loopback() as made:
        client = await made.broker()
        assert await statuses(client.address, BROKER_NAMES) == dict.fromkeys(BROKER_NAMES, SERVING)
        assert await statuses(client.address, ["octavo.other"]) == {"octavo.other": "unknown"}


async def test_a_drained_broker_lives_and_is_not_ready_before_it_gives_anything_away() -> None:
    async with loopback() as made:
        client = await made.broker("broker-1")
        await create_topic(client, partitions=4)
        for partition in range(4):
            await find_owner({client.address: client}, "orders", partition)
        await made.broker("broker-2", ownership_settle_s=1000)
        await made.acquainted()
        one = made.servers[0]
        bundles = range(one.config.bundles)
        own = {n for n in bundles if one.ownership.preferred(n).broker_id == "broker-1"}
        assert await one.ownership.acquire(min(own))
        await until(lambda: one.ownership.held <= own)  # the others went to the newcomer
        told = one._readiness.board._told
        ready_when_given: list[bool] = []
        give = one.ownership._leaving.give

        async def watched(bundle: int, to: BrokerInfo | None, *, leaving: bool = False) -> None:
            ready_when_given.append(told[SERVICE])
            await give(bundle, to, leaving=leaving)

        one.ownership._leaving.give = watched  # type: ignore[method-assign]
        await one._fleet.drains.drain("broker-1")
        await until(lambda: not one.ownership.held)
        assert ready_when_given
        assert not any(ready_when_given)
        found = await statuses(client.address, BROKER_NAMES)
        expected = {LIVENESS: SERVING, STARTED: SERVING, PEERS: SERVING}
        assert found == {**expected, SERVICE: NOT, GROUP_SERVICE: NOT}
        await one._fleet.drains.undrain("broker-1")
        await until(lambda: told[SERVICE])


async def test_a_broker_that_lost_its_session_is_ready_when_it_has_all_back() -> None:
    """Interface §4.3: owner claims done."""
    async with loopback() as made:
        client = await made.broker("broker-1")
        await create_topic(client)
        await find_owner({client.address: client}, "orders", 0)
        server = made.servers[0]
        server.ownership.lost.add(4095)  # it will not be taken back: nobody follows it
        await server._readiness.tell(server._member.standing, server.ownership)  # type: ignore[union-attr]
        assert (await statuses(client.address, [SERVICE, STARTED])) == {
            SERVICE: NOT,
            STARTED: SERVING,
        }
        server.ownership.lost.clear()
        await until(lambda: server._readiness.board._told[SERVICE])


async def test_a_broker_that_stops_says_so_before_anything_else() -> None:
    async with loopback() as made:
        client = await made.broker()
        server = made.servers[0]
        seen: list[dict[str, bool]] = []
        close = server._tasks.close

        async def watched() -> None:
            seen.append(dict(server._readiness.board._told))
            await close()

        server._tasks.close = watched  # type: ignore[method-assign]
        await server.stop()
        assert seen
        assert seen[0] == {LIVENESS: True, **dict.fromkeys(BROKER_NAMES[1:], False)}
        assert await statuses(client.address, [LIVENESS]) == {LIVENESS: ""}


async def test_who_watches_is_told_of_a_change() -> None:
    server = grpc_server()
    board = HealthBoard(["a"])
    board.add_to(server)
    await board.begin()
    port = bind(server, "127.0.0.1", 0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = watching(channel, "a")
        seen: list[str] = []
        async with asyncio.timeout(WAIT_S):
            for change in ({}, {"a": True}, {"a": True, STARTED: True}, {"a": False}):
                await board.tell(change)
                if change in ({"a": True, STARTED: True},):
                    continue  # not a change of "a"
                seen.append(await anext(watch))
        assert seen == [NOT, SERVING, NOT]
    await board.end()
    await server.stop(None)


async def test_nothing_is_ready_again_once_a_server_leaves() -> None:
    board = HealthBoard(["a"])
    await board.begin()
    await board.tell({"a": True, STARTED: True})
    await board.leave()
    await board.tell({"a": True, STARTED: True})
    assert board._told == {LIVENESS: True, STARTED: False, "a": False}


async def test_a_bookie_is_ready_for_records_only_while_its_journal_takes_them(
    tmp_path: pathlib.Path,
) -> None:
    async with BookieRig(tmp_path) as rig:
        address = rig.server.control_address
        assert await statuses(address, BOOKIE_NAMES) == dict.fromkeys(BOOKIE_NAMES, SERVING)
        rig.disk.space = (1_000, 1_000_000)
        told = rig.server._control._health._told
        await bookie_until(lambda: not told[JOURNAL])
        found = await statuses(address, BOOKIE_NAMES)
        assert found == {**dict.fromkeys(BOOKIE_NAMES, SERVING), JOURNAL: NOT}
        rig.disk.space = None
        await bookie_until(lambda: told[JOURNAL])


@pytest.mark.parametrize("service", [WIRE, JOURNAL, STARTED])
async def test_a_bookie_that_stops_says_so_first(tmp_path: pathlib.Path, service: str) -> None:
    async with BookieRig(tmp_path) as rig:
        server = rig.server
        told = server._control._health._told
        seen: list[bool] = []
        close = server._tasks.close

        async def watched() -> None:
            seen.append(told[service])
            await close()

        server._tasks.close = watched  # type: ignore[method-assign]
        await rig.stop()
        assert seen[0] is False
        assert not told[service]


async def test_a_drain_over_the_wire_shows_in_readiness() -> None:
    async with loopback() as made:
        client = await made.broker("broker-1")
        await made.broker("broker-2")
        await until(lambda: len(made.servers[0]._brokers.live()) == 2)
        await client.stub.DrainBroker(pb.DrainBrokerRequest(broker_id="broker-1", drain=True))
        board = made.servers[0]._readiness.board
        await until(lambda: not board._told[SERVICE])
