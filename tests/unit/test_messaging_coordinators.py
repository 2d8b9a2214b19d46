"""A coordinator that stands still: how long a request to it is waited for, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from octavo.client.messaging.cluster.calls import Calls
from octavo.client.messaging.cluster.coordinators import Coordinators
from octavo.client.messaging.cluster.progress import PROBE_S, SILENT_S
from octavo.client.messaging.config import ClientConfig
from octavo.proto import broker_pb2, groups_pb2
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import RequestTimedOut
from tests.virtual_loop import VirtualLoop

FIRST, SECOND = "first:1", "second:1"
NEVER_S = 60.0
OTHER_CALLS_S = 3.0
"""What a request to a broker that stands still takes at most, before another one is asked."""


class Broker:
    """One broker of a network without sockets: stands still, or takes its time."""

    def __init__(self, world: World, address: str) -> None:
        self.world = world
        self.address = address
        self.stands_still = False
        self.takes_s = 0.0
        self.probes = 0

    async def _answer(self, takes_s: float = 0.0) -> None:
        await asyncio.sleep(NEVER_S if self.stands_still else takes_s)

    async def Metadata(self, _request: object, timeout: float) -> broker_pb2.MetadataReply:
        self.probes += 1
        try:
            async with asyncio.timeout(timeout):
                await self._answer()
        except TimeoutError:
            raise AioRpcError(StatusCode.DEADLINE_EXCEEDED, Metadata(), Metadata()) from None
        return broker_pb2.MetadataReply()

    async def FindCoordinator(
        self, request: groups_pb2.FindCoordinatorRequest, timeout: float
    ) -> groups_pb2.FindCoordinatorReply:
        await self._answer()
        found = groups_pb2.Coordinator(
            group_id=request.group_ids[0], address=self.world.coordinator
        )
        return groups_pb2.FindCoordinatorReply(coordinators=[found])

    async def CommitOffsets(
        self, _request: object, timeout: float
    ) -> groups_pb2.CommitOffsetsReply:
        await self._answer(self.takes_s)
        return groups_pb2.CommitOffsetsReply()


class World:
    """Two brokers and who coordinates; a `BrokerTransport`."""

    def __init__(self) -> None:
        self.coordinator = FIRST
        self.brokers = {address: Broker(self, address) for address in (FIRST, SECOND)}

    def stub(self, address: str) -> Any:
        return self.brokers[address]

    groups = stub

    def fetch_stream(self, address: str) -> Any:
        raise AssertionError(f"{address}: nobody opens streams here")

    produce_stream = fetch_stream

    async def close(self) -> None:
        return None


def play(scene: Callable[[World, Coordinators], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World()
        calls = Calls((FIRST, SECOND), ClientConfig(), SystemClock(), SystemEntropy(), world)
        try:
            await scene(world, Coordinators(calls))
        finally:
            await calls.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())


async def commit(coordinators: Coordinators, *, held_s: float = 0.0) -> float:
    """One attempt; returns how long it took."""
    began_s = asyncio.get_running_loop().time()
    request = groups_pb2.CommitOffsetsRequest(group_id="g")
    try:
        await coordinators.ask(
            "g", lambda stub, limit: stub.CommitOffsets(request, timeout=limit), 30, held_s=held_s
        )
    finally:
        took_s = asyncio.get_running_loop().time() - began_s
    return took_s


def test_p9_a_commit_leaves_a_coordinator_that_stands_still_as_soon_as_other_requests_do() -> None:
    """It waited for the end of the connection, 4 s."""

    async def scene(world: World, coordinators: Coordinators) -> None:
        await commit(coordinators)
        world.brokers[FIRST].stands_still = True
        world.coordinator = SECOND
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimedOut, match="fell silent"):
            await commit(coordinators)
        await commit(coordinators)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s == pytest.approx(SILENT_S + PROBE_S)
        assert took_s < OTHER_CALLS_S
        assert world.brokers[SECOND].probes == 0

    play(scene)


def test_p9_a_coordinator_that_is_slow_is_waited_for() -> None:
    async def scene(world: World, coordinators: Coordinators) -> None:
        slow = world.brokers[FIRST]
        slow.takes_s = 7.5
        assert await commit(coordinators) == pytest.approx(7.5)
        assert slow.probes == 7, "it was asked a trifle while it answered nothing"

    play(scene)


def test_rb5_a_heartbeat_that_is_held_is_no_silence() -> None:
    async def scene(world: World, coordinators: Coordinators) -> None:
        held = world.brokers[FIRST]
        held.takes_s = 3.5
        assert await commit(coordinators, held_s=3.0) == pytest.approx(3.5)
        assert held.probes == 0
        held.takes_s = 4.5
        await commit(coordinators, held_s=3.0)
        assert held.probes == 1

    play(scene)
