"""The lag of groups on the pages of brokers in this process, over real gRPC (M4, F163)."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import grpc
import pytest

from octavo.proto import broker_pb2, peers_pb2
from octavo.proto.peers_pb2_grpc import PeersStub
from octavo.serving.group_lag import core, ends, rows
from octavo.serving.partition.read_path import batch_at
from octavo.serving.server import BrokerServer
from tests.group_brokers import World, world
from tests.metrics_client import Page, page_of
from tests.serving_rig import Rig, make_batch, produce, until
from tests.serving_server import batch_of, create_topic, find_owner
from tests.tcp_proxy import TcpProxy

SPREAD = 16
"""Partitions of which one of two brokers has none once in 30,000 times."""
PAGES = {"metrics_port": 0, "metrics_groups_interval_ms": 20}
LAG = "octavo_subscription_lag_messages"
SECONDS = "octavo_subscription_lag_seconds"
TOPIC_LAG = "octavo_subscription_topic_lag_messages"
TOPIC_SECONDS = "octavo_subscription_topic_lag_seconds"
UNKNOWN = "octavo_subscription_topic_unknown_partitions"
CONSUMERS = "octavo_subscription_consumers"


async def page_with(server: BrokerServer, holds: Callable[[Page], bool]) -> Page:
    """The first page of which that holds."""
    async with asyncio.timeout(30):
        while True:
            page = await page_of(server.metrics.page.address)
            if holds(page):
                return page
            await asyncio.sleep(0.01)


async def send(made: World, partition: int, records: int, topic: str = "t") -> str:
    """Records in one partition; returns the address of its owner."""
    by_address = {client.address: client for client in made.brokers}
    owner = await find_owner(by_address, topic, partition)
    batch = batch_of(make_batch([b"v"] * records), topic=topic, partition=partition)
    (ack,) = await by_address[owner].produce(batch)
    assert not ack.HasField("error"), ack.error
    return owner


async def home_of(made: World, group: str = "g") -> BrokerServer:
    """The broker that coordinates a group."""
    found = await made.client.find(group)
    return made.server(found.address)


async def test_lag_is_on_the_page_of_the_coordinator_and_0_when_all_is_consumed() -> None:
    async with world(2, **PAGES) as made:
        await create_topic(made.brokers[0], "t", SPREAD)
        owners = {await send(made, number, 5) for number in range(SPREAD)}
        assert len(owners) == 2, "or nobody is asked over the wire"
        await made.client.commit("g", await made.offset(0, 2))
        member = made.member("m", "t")
        home = await home_of(made)
        page = await page_with(
            home,
            lambda page: (
                page.values(TOPIC_LAG) == [5.0 * SPREAD - 2]
                and len(page.values(TOPIC_SECONDS)) == 1
            ),
        )
        assert page.value(LAG, group="g", topic="t", partition="0") == 3
        assert page.value(LAG, group="g", topic="t", partition="1") == 5, "it committed nothing"
        assert 0 < page.value(SECONDS, group="g", topic="t", partition="0") < 60
        assert page.value(CONSUMERS, group="g") == 1
        assert page.value(UNKNOWN, group="g", topic="t") == 0
        (other,) = [one for one in made.loopback.servers if one is not home]
        elsewhere = await page_of(other.metrics.page.address)
        assert elsewhere.values(LAG) == elsewhere.values(CONSUMERS) == []
        await until(lambda: len(member.owned) == SPREAD)
        offsets = [await made.offset(number, 5) for number in range(SPREAD)]
        await made.client.commit("g", *offsets, who=member.committer())
        page = await page_with(home, lambda page: page.values(TOPIC_LAG, group="g") == [0.0])
        assert page.values(LAG) == page.values(SECONDS) == [0] * SPREAD
        await page_with(
            home,
            lambda page: page.values("octavo_subscription_topic_drain_messages_per_second") > [0.0],
        )


async def test_a_group_without_members_is_shown_until_it_is_gone() -> None:
    async with world(1, **PAGES) as made:
        await create_topic(made.brokers[0], "t", 1)
        await send(made, 0, 4)
        await made.client.commit("left", await made.offset(0, 1))
        (server,) = made.loopback.servers
        page = await page_with(server, lambda page: page.values(LAG, group="left") == [3.0])
        assert page.value(CONSUMERS, group="left") == 0
        found = await made.partition("left")
        await found.ask(lambda core, token: core.delete_group(token, "left"))
        page = await page_with(server, lambda page: not page.values(CONSUMERS))
        assert page.values(LAG) == page.values(TOPIC_LAG) == []


async def test_a_coordinator_that_moves_takes_its_groups_along() -> None:
    async with world(2, **PAGES) as made:
        await create_topic(made.brokers[0], "t", 1)
        await send(made, 0, 4)
        await made.client.commit("g", await made.offset(0, 1))
        old = await home_of(made)
        (new,) = [one for one in made.loopback.servers if one is not old]
        await page_with(old, lambda page: page.values(LAG, group="g") == [3.0])
        drain = broker_pb2.DrainBrokerRequest(broker_id=old.config.broker_id, drain=True)
        await made.brokers[0].stub.DrainBroker(drain)
        page = await page_with(new, lambda page: page.values(LAG, group="g") == [3.0])
        assert page.value(CONSUMERS, group="g") == 0
        page = await page_of(old.metrics.page.address)
        assert page.values(LAG) == page.values(CONSUMERS) == page.values(UNKNOWN) == []


async def test_an_owner_that_falls_silent_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "AGE_MAX_S", 0.5)
    monkeypatch.setattr("octavo.serving.group_lag.rounds.ASK_S", 0.1)
    patient = PAGES | {"suspect_after_s": 60.0, "session_timeout_s": 60.0}
    async with world(1, **patient) as made:
        proxy = TcpProxy("127.0.0.1", 0)  # the port is known once the broker listens
        try:
            await proxy.start()
            frozen = await made.loopback.broker(
                "broker-1", advertised_address=proxy.address, **patient
            )
            proxy._target = ("127.0.0.1", made.loopback.servers[1]._port)
            assert frozen.address == proxy.address
            made.brokers.append(frozen)
            await made.loopback.acquainted()
            await create_topic(made.brokers[0], "t", SPREAD)
            owners = [await send(made, number, 2) for number in range(SPREAD)]
            here = made.brokers[0].address
            assert {here, proxy.address} == set(owners)
            near, far = owners.index(here), owners.index(proxy.address)
            group = await _group_at(made, here)
            zero = [await made.offset(number, 0) for number in range(SPREAD)]
            await made.client.commit(group, *zero)
            server = made.server(here)
            await page_with(server, lambda page: page.values(TOPIC_LAG) == [2.0 * SPREAD])
            proxy.fall_silent(frozen=True)
            await send_here(made, near)
            gone = float(owners.count(proxy.address))

            def is_so(page: Page) -> bool:
                near_lag = page.values(LAG, partition=str(near))
                return near_lag == [3.0] and page.values(UNKNOWN) == [gone]

            page = await page_with(server, is_so)
            assert page.values(LAG, partition=str(far)) == []
            assert page.values(TOPIC_LAG) == [], "a part is no whole"
        finally:
            await proxy.close()


async def send_here(made: World, partition: int) -> None:
    """One more record, to the first broker."""
    sent = batch_of(make_batch(), topic="t", partition=partition)
    (ack,) = await made.brokers[0].produce(sent)
    assert not ack.HasField("error"), ack.error


async def _group_at(made: World, address: str) -> str:
    """The name of a group that the broker at that address coordinates."""
    for number in range(100):
        if (await made.client.find(f"g{number}")).address == address:
            return f"g{number}"
    raise AssertionError("it coordinates nothing")


async def test_without_a_page_nobody_is_asked_and_without_groups_neither() -> None:
    async with world(1) as made:
        (server,) = made.loopback.servers
        await until(lambda: "group lag" not in str(server._tasks._tasks))
        assert server._group_lag._passes == 0
    async with world(1, **PAGES) as made:
        (server,) = made.loopback.servers
        lags = server._group_lag
        await until(lambda: lags._passes >= 5)
        assert (lags._core.questions, lags._channels) == ({}, {})
        topics = await made.brokers[0].stub.ListTopics(
            broker_pb2.ListTopicsRequest(include_internal=True, limit=10)
        )
        assert not topics.topics, "looking does not make the topic of groups"


async def test_a_group_that_nobody_asked_for_since_the_start_is_found() -> None:
    async with world(1, **PAGES) as made:
        await create_topic(made.brokers[0], "t", 1)
        await send(made, 0, 4)
        await made.client.commit("left", await made.offset(0, 1))
        await made.stop_broker(made.brokers[0].address)
        await made.loopback.broker("broker-9", **PAGES)
        page = await page_with(
            made.loopback.servers[0], lambda page: page.values(LAG, group="left") == [3.0]
        )
        assert page.value(CONSUMERS, group="left") == 0


# --- what an owner tells -----------------------------------------------------------------------


async def test_an_owner_tells_what_it_knows_and_of_the_rest_nothing() -> None:
    async with world(1, **PAGES) as made:
        await create_topic(made.brokers[0], "t", 2)
        await send(made, 0, 3)
        topic_id = await made.topic_id("t")
        stub = PeersStub(made.brokers[0].channel)
        request = peers_pb2.EndsRequest()
        request.logs.add(topic="t", topic_id=topic_id, partition=0, positions=[0, 2, 3, 9])
        request.logs.add(topic="t", topic_id=topic_id, partition=1)  # nobody opened it yet
        request.logs.add(topic="t", topic_id=uuid.uuid4().bytes, partition=0)  # another life
        request.logs.add(topic="none", topic_id=uuid.uuid4().bytes, partition=0)
        request.logs.add(topic="t", topic_id=topic_id, partition=7)
        reply = await stub.Ends(request)
        told = [(one.known, one.log_start, one.end) for one in reply.logs]
        assert told == [(True, 0, 3), (True, 0, 0), *[(False, 0, 0)] * 3]
        assert [one.position for one in reply.logs[0].times] == [0, 2], "behind the end is nothing"
        assert len({one.append_ms for one in reply.logs[0].times}) == 1
        for wrong in (
            peers_pb2.EndsRequest(logs=[peers_pb2.AskedLog()] * (ends.LOGS_MAX + 1)),
            peers_pb2.EndsRequest(logs=[peers_pb2.AskedLog(topic_id=b"short")]),
            peers_pb2.EndsRequest(
                logs=[peers_pb2.AskedLog(topic_id=topic_id, positions=[0] * 10_001)]
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Ends(wrong)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert min(ends.LOGS_MAX, ends.POSITIONS_MAX) >= core.FOLLOWED_MAX


async def test_g3_an_owner_in_doubt_proves_a_few_ends_and_tells_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(1, **PAGES) as made:
        await create_topic(made.brokers[0], "t", 3)
        for number in range(2):
            await send(made, number, 3)
        topic_id = await made.topic_id("t")
        stub = PeersStub(made.brokers[0].channel)
        request = peers_pb2.EndsRequest()
        for number in range(3):  # nobody opened the last one
            request.logs.add(topic="t", topic_id=topic_id, partition=number, positions=[1])
        (server,) = made.loopback.servers
        made.loopback.stores[0].suspend()
        await until(lambda: not server.registry.certain())
        reply = await stub.Ends(request)
        assert [(one.known, one.end, len(one.times)) for one in reply.logs] == [
            (True, 3, 1),
            (True, 3, 1),
            (False, 0, 0),
        ]
        monkeypatch.setattr(ends, "PROOFS_MAX", 1)
        assert [one.known for one in (await stub.Ends(request)).logs] == [True, False, False]
        made.loopback.bookies.hold = True
        monkeypatch.setattr(ends, "ANSWER_S", 0.2)
        assert not any(one.known for one in (await stub.Ends(request)).logs)
        made.loopback.bookies.release()
        made.loopback.stores[0].resume()
        async with asyncio.timeout(30):
            while True:
                reply = await stub.Ends(request)
                if all(one.known for one in reply.logs):
                    break
                await asyncio.sleep(0.01)


async def test_append_times_are_found_in_closed_segments_and_in_the_open_one() -> None:
    rig = Rig()
    try:
        old = await rig.broker().open()
        times: list[int] = []
        for number in range(3):
            times += [(await produce(old, make_batch([b"v"] * 2))).append_time_ms] * 2
            if number == 0:
                await old.roll()
        await old.close(5.0)
        broker = rig.broker(broker_id="broker-2")
        shell = await broker.open()
        times += [(await produce(shell, make_batch([b"v"] * 2))).append_time_ms] * 2
        headers = [await batch_at(shell.view(), offset) for offset in range(8)]
        assert [header and header.append_time_ms for header in headers] == times
        assert await batch_at(shell.view(), 8) is None
        assert broker.cold.reads > 0, "or the tail had all of them"
    finally:
        await rig.close()
