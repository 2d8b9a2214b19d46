"""The passes that find how far the groups of this broker are behind (M4).

    coordinator ── where groups go on ──► core ── one question for each owner ──► owners
                                           ▲                                        │
                      found ◄── rows ──────┴──────── where their logs end ◄─────────┘

One pass begins every few seconds. Each owner is asked once, for all of its logs, and has a moment:
one that is frozen or dead costs its own partitions only. Where no group is, nothing is asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc

from octavo.proto import peers_pb2 as pb
from octavo.proto.endpoints import open_channel
from octavo.proto.group_records import Slot
from octavo.proto.peers_pb2_grpc import PeersStub
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.coordinating.coordinator import GroupCoordinator
from octavo.serving.coordinating.group_partition import GroupPartition
from octavo.serving.group_lag.core import STEP, GroupLagCore, Log
from octavo.serving.group_lag.ends import LogEnds
from octavo.serving.group_lag.rows import Look
from octavo.serving.groups.values import PositionsReply
from octavo.serving.ownership import Ownership
from octavo.serving.registry import PartitionRegistry

if TYPE_CHECKING:
    from octavo.proto.peers_pb2_grpc import PeersAsyncStub

HOMES_S = 0.5
"""How long the partitions of groups have to tell where their groups go on."""
ASK_S = 1.0
"""How long an owner has to answer; longer than it gives itself (`ends.ANSWER_S`)."""
OWNERS_AT_ONCE = 32
"""Owners that are asked at a time."""
TAKE_EVERY = 15
"""Passes from one look for partitions of groups that nobody asked for to the next."""

_log = get_logger("octavo.serving.group_lag")


class GroupLagRounds:
    """Of one broker.

    Args:
        here: the address of this broker.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        registry: PartitionRegistry,
        ownership: Callable[[], Ownership],
        *,
        here: Callable[[], str],
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._coordinator = coordinator
        self._registry = registry
        self._ownership = ownership
        self.ends = LogEnds(registry, ownership)
        """Answers the same question of other brokers."""
        self._here = here
        self._clock = clock
        self._interval_s = config.metrics_groups_interval_ms / 1000
        self._is_wanted = config.metrics_port is not None and config.metrics_groups_max > 0
        self._core = GroupLagCore()
        self._tasks = TaskOwner("group lag")
        self._telling: dict[int, asyncio.Task[PositionsReply | None]] = {}
        """Partitions of groups that were asked; one that is slow is not asked again meanwhile."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        """To the owners of the last pass."""
        self._bundles: dict[Slot, int] = {}
        self._passes = 0
        self._take_at = 1
        """In which pass partitions of groups that nobody asked for are looked for."""

    def look(self, series_max: int) -> Look:
        """What the last pass found, as far as it may be shown now."""
        return Look(
            self._core.found,
            self._coordinator.homes().keys(),
            series_max,
            now_s=self._clock.monotonic(),
            now_ms=self._clock.wall_ms(),
        )

    async def run(self) -> None:
        """For ever, if there is a page to show it; a pass that meets an error is given up."""
        while self._is_wanted:
            began_s = self._clock.monotonic()
            try:
                await self.round()
            except OctavoError as error:
                _log.info("group-lag-not-found", cause=error.cause)
            passed_s = self._clock.monotonic() - began_s
            await self._clock.sleep(max(self._interval_s - passed_s, self._interval_s / 4))

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._tasks.close()
        await self._keep_channels(set())

    async def round(self) -> None:
        """One pass."""
        core = self._core
        self._passes += 1
        if self._passes >= self._take_at and await self._take_homes():
            self._take_at = self._passes + TAKE_EVERY
        homes = self._coordinator.homes()
        core.begin(homes, self._clock.monotonic())
        await self._ask_homes(homes)
        await _in_turns(core.ask())
        await self._ask_owners()
        await _in_turns(core.end())

    async def _take_homes(self) -> bool:
        """Whether all were looked at; what was taken stays so."""
        try:
            async with asyncio.timeout(HOMES_S):
                await self._coordinator.take_homes()
        except (OctavoError, TimeoutError) as error:
            _log.info("groups-not-taken", cause=str(error))
            return False
        return True

    # --- where groups go on -------------------------------------------------------------------

    async def _ask_homes(self, homes: dict[int, GroupPartition]) -> None:
        self._telling = {n: task for n, task in self._telling.items() if not task.done()}
        asked: dict[int, asyncio.Task[PositionsReply | None]] = {}
        for number, home in homes.items():
            if number not in self._telling:
                asked[number] = self._tasks.spawn(self._told_by(home), name=f"home {number}")
        if not asked:
            return
        await asyncio.wait(asked.values(), timeout=HOMES_S)
        for number, task in asked.items():
            if not task.done():
                self._telling[number] = task
            elif not task.cancelled() and task.exception() is None and (reply := task.result()):
                self._core.told(number, reply)
                await asyncio.sleep(0)

    async def _told_by(self, home: GroupPartition) -> PositionsReply | None:
        most = self._core.followed_max
        try:
            reply = await home.ask(lambda core, token: core.progress.positions(token, most))
        except OctavoError as error:
            _log.debug("groups-not-told", partition=str(home.shell.name), cause=error.cause)
            return None
        return reply if isinstance(reply, PositionsReply) and reply.refusal is None else None

    # --- where logs end -----------------------------------------------------------------------

    async def _ask_owners(self) -> None:
        by_owner: dict[str, list[Slot]] = {}
        bundles: dict[Slot, int] = {}
        owners: dict[int, str] = {}
        for number, slot in enumerate(self._core.questions, 1):
            if number % STEP == 0:
                await asyncio.sleep(0)
            bundle = self._bundles.get(slot)
            if bundle is None:
                bundle = self._registry.bundle(uuid.UUID(slot.topic_id), slot.partition)
            bundles[slot] = bundle
            if bundle not in owners:
                owners[bundle] = self._owner_of(bundle)
            by_owner.setdefault(owners[bundle], []).append(slot)
        self._bundles = bundles
        await self._keep_channels(by_owner.keys() - {self._here()})
        gate = asyncio.Semaphore(OWNERS_AT_ONCE)
        asks = [
            self._tasks.spawn(self._ask(address, slots, gate), name=f"ask {address}")
            for address, slots in by_owner.items()
        ]
        if asks:
            await asyncio.wait(asks)

    def _owner_of(self, bundle: int) -> str:
        """Whom to ask: the owner as last seen, else the broker that should become it."""
        ownership = self._ownership()
        if ownership.owns(bundle):
            return self._here()
        hint = ownership.hint(bundle)
        return ownership.preferred(bundle).address if hint is None else hint.address

    async def _keep_channels(self, wanted: set[str]) -> None:
        for address in self._channels.keys() - wanted:
            await self._channels.pop(address).close()

    async def _ask(self, address: str, slots: list[Slot], gate: asyncio.Semaphore) -> None:
        request = pb.EndsRequest()
        for number, slot in enumerate(slots, 1):
            if number % STEP == 0:
                await asyncio.sleep(0)
            question = self._core.questions[slot]
            request.logs.add(
                topic=question.topic,
                topic_id=bytes.fromhex(slot.topic_id),
                partition=slot.partition,
                positions=question.positions,
            )
        try:
            async with gate:
                reply = await self._ends_at(address, request)
        except OctavoError as error:
            _log.info("owner-does-not-tell", owner=address, cause=error.cause)
            return
        except grpc.aio.AioRpcError as error:
            _log.info("owner-does-not-tell", owner=address, code=error.code().name)
            channel = self._channels.pop(address, None)
            if channel is not None:  # a new one does not wait before it dials
                await channel.close()
            return
        if len(reply.logs) != len(slots):
            _log.warning("owner-tells-others", owner=address, logs=len(reply.logs), of=len(slots))
            return
        count = 0
        for slot, told in zip(slots, reply.logs, strict=True):
            if told.known:
                times_ms = {one.position: one.append_ms for one in told.times}
                count += self._core.answered(slot, Log(told.log_start, told.end, times_ms))
            if count >= STEP:
                count = 0
                await asyncio.sleep(0)

    async def _ends_at(self, address: str, request: pb.EndsRequest) -> pb.EndsReply:
        if address == self._here():
            return await self.ends.tell(request)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        stub: PeersAsyncStub = PeersStub(channel)
        return await stub.Ends(request, timeout=ASK_S)


async def _in_turns(steps: Iterator[None]) -> None:
    """Let others have their turn between two steps."""
    for _ in steps:
        await asyncio.sleep(0)
