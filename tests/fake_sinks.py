"""Decisions of sinks at a fake broker: the real rules over a store in memory."""

from __future__ import annotations

import grpc

from octavo.metadata.memory import MemoryCluster
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.sinks import SinkCatalog
from octavo.proto import broker_pb2_grpc
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.serving.services.caller import Caller
from octavo.serving.services.sinks import SinkService
from octavo.serving.store_answers import StoreAnswers
from tests.fake_faults import Faults
from tests.unit.metadata_stores import PATHS

NOBODY = Caller("")


def sinks_in_memory() -> SinkService:
    """What the brokers of one cluster share."""
    clock, store = SystemClock(), MemoryCluster().connect()
    ids = ProducerIdAllocator(store, PATHS, clock)
    catalog = SinkCatalog(store, PATHS, ids, clock=clock, entropy=SystemEntropy())
    return SinkService(catalog, StoreAnswers(store, "memory://fake/octavo", clock))


class FakeSinks(broker_pb2_grpc.BrokerServicer):
    """The requests about sinks."""

    sinks: SinkService
    faults: Faults

    async def DescribeSink(self, request, context):  # type: ignore[no-untyped-def]
        return await self.sinks.describe(request, NOBODY)

    async def DecideSink(self, request, context):  # type: ignore[no-untyped-def]
        reply = await self.sinks.decide(request, NOBODY)
        if self.faults.lose_decisions:
            self.faults.lose_decisions -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")  # pyright: ignore
        return reply

    async def OpenSink(self, request, context):  # type: ignore[no-untyped-def]
        return await self.sinks.open(request, NOBODY)

    async def ListSinks(self, request, context):  # type: ignore[no-untyped-def]
        return await self.sinks.list_sinks(request, NOBODY)

    async def EndSink(self, request, context):  # type: ignore[no-untyped-def]
        return await self.sinks.end(request, NOBODY)

    async def PublishedSink(self, request, context):  # type: ignore[no-untyped-def]
        return await self.sinks.published(request, NOBODY)
