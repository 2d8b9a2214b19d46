"""Bundles that this broker gives to a named successor, so that nobody has to look for it (O-3).

For each bundle: the successor is told what will come and reads it up; requests are not taken any
more, but wait; the partitions are closed, each with a snapshot and a footer; the bundle's key is
released; the successor takes it, loads the partitions, and answers; whoever waited is told where to
go. A successor that does not answer costs time only: the bundle is free, and who looks finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import grpc

from octavo.metadata.brokers import BrokerInfo
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.proto import peers_pb2 as pb
from octavo.proto.endpoints import open_channel
from octavo.proto.peers_pb2_grpc import PeersStub
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.owner_hints import OwnerHints
from octavo.serving.partition.name import PartitionName

if TYPE_CHECKING:
    from octavo.proto.peers_pb2_grpc import PeersAsyncStub

PREPARE_S = 0.5
"""How long a successor has to read up what it will get."""
TAKE_S = 5.0
"""How long it has to take a bundle and load its partitions; who waits looks elsewhere then."""
AT_ONCE = 2
"""Bundles on the move at a time: each is away for a short time, though all take longer."""

_log = get_logger("octavo.serving.handover")


class Giving(NamedTuple):
    """What is asked of the owner of partitions."""

    partitions: Callable[[int], Sequence[PartitionName]]
    """Those of a bundle that are served here."""
    unload: Callable[[int], Awaitable[None]]
    """Close them in good order."""
    holds: Callable[[int], bool]
    """Whether the bundle is served here."""
    let_go: Callable[[int], None]
    """Take no more requests for the bundle."""
    mine: Callable[[], BundleOwner]
    """Who has the bundle's key until now."""


class HandOvers:
    """The bundles on the move away from here."""

    def __init__(
        self, registry: BundleRegistry, hints: OwnerHints, clock: Clock, giving: Giving
    ) -> None:
        self.moving: dict[int, asyncio.Future[None]] = {}
        """Bundles whose successor is not known to be ready yet, and when it is."""
        self._registry = registry
        self._hints = hints
        self._clock = clock
        self._giving = giving
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def give(self, bundle: int, to: BrokerInfo | None, *, leaving: bool = False) -> None:
        """Hand one bundle over; `to` None: to whoever asks for it first. At most AT_ONCE at a time.

        A successor that does not answer to begin with gets nothing, except from a broker that is
        `leaving` and cannot wait for a better one. Never raises for a peer or the store.
        """
        async with self._gate:
            if bundle in self.moving or not self._giving.holds(bundle):
                return  # given away, or lost, while this waited
            self.moving[bundle] = asyncio.get_running_loop().create_future()
            try:
                await self._give(bundle, to, leaving=leaving)
            except OctavoError as error:
                _log.warning("bundle-not-released", bundle=bundle, cause=error.cause)
            finally:
                self.moving.pop(bundle).set_result(None)

    async def _give(self, bundle: int, to: BrokerInfo | None, *, leaving: bool) -> None:
        giving, mine = self._giving, self._giving.mine()
        began_s = self._clock.monotonic()
        request = pb.TakeRequest(bundle=bundle, prepare=True)
        for name in giving.partitions(bundle):
            request.partitions.add(topic=name.topic, partition=name.partition)
        channel = None if to is None else open_channel(to.address)
        try:
            stub: PeersAsyncStub | None = None if channel is None else PeersStub(channel)
            if not await self._ask(stub, request, PREPARE_S) and not leaving:
                return
            giving.let_go(bundle)  # before the unload: no lookup lands on a closing owner (O-1)
            away_s = self._clock.monotonic()
            await giving.unload(bundle)
            closed_s = self._clock.monotonic()
            await self._registry.release(bundle, mine)
            self._hints.gone(bundle, mine)
            request.prepare = False
            await self._ask(stub, request, TAKE_S)
        finally:
            if channel is not None:
                await channel.close()
        now_s = self._clock.monotonic()
        _log.info(
            "bundle-handed-over",
            bundle=bundle,
            to=to.broker_id if to is not None else "",
            partitions=len(request.partitions),
            prepared_ms=round((away_s - began_s) * 1000),
            closed_ms=round((closed_s - away_s) * 1000),
            away_ms=round((now_s - away_s) * 1000),
        )

    async def _ask(
        self, stub: PeersAsyncStub | None, request: pb.TakeRequest, timeout_s: float
    ) -> bool:
        """Whether it answered; nobody always does."""
        if stub is None:
            return True
        try:
            reply = await stub.Take(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            _log.info("successor-does-not-answer", bundle=request.bundle, code=error.code().name)
            return False
        if reply.owner_id:
            owner = BundleOwner(reply.owner_id, reply.owner_address, reply.process_nonce)
            self._hints.seen(request.bundle, owner)
        return True
