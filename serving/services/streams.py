"""The methods of the two long-lived streams, produce and fetch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import grpc

from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import abort
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, TooManyConnections
from octavo.runtime.histogram import REQUEST_SECONDS, Histogram
from octavo.serving.budget import ByteBudget
from octavo.serving.cold_pace import ColdPace
from octavo.serving.config import BrokerConfig
from octavo.serving.quotas.clients import ClientQuotas, ClientUse
from octavo.serving.quotas.identity import client_id_of
from octavo.serving.recompression import Recompressor
from octavo.serving.registry import PartitionRegistry
from octavo.serving.services.rpc import Context, Handlers
from octavo.serving.streams import FetchStream, ProduceStream
from octavo.serving.tracing import RequestTracing


class StreamService:
    """Makes the streams, which share two budgets of bytes."""

    def __init__(
        self,
        registry: PartitionRegistry,
        quotas: ClientQuotas,
        config: BrokerConfig,
        clock: Clock,
        pace: ColdPace,
    ) -> None:
        self._registry = registry
        self.quotas = quotas
        self._config = config
        self._clock = clock
        self._pace = pace
        self._produce_budget = ByteBudget(config.produce_bytes_in_flight)
        self._recompressor = Recompressor()
        self._tracing = RequestTracing(config)
        self._fetch_budget = ByteBudget(config.fetch_bytes_in_flight)
        self.producing = 0
        """Open produce streams."""
        self.fetching = 0
        """Open fetch streams."""
        self.ack_seconds = Histogram(REQUEST_SECONDS)
        """Of each message with answers, what its longest waiting batch waited."""

    async def close(self) -> None:
        """End what works for the streams, once they have ended."""
        await self._recompressor.close()

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "Produce": grpc.stream_stream_rpc_method_handler(
                self._produce, response_serializer=pb.ProduceReply.SerializeToString
            ),
            "Fetch": grpc.stream_stream_rpc_method_handler(self._fetch),  # bytes: proto.fetch_wire
        }

    async def _produce(self, _requests: object, context: Context) -> None:
        self.producing += 1
        try:
            async with self._client(context) as client:
                await ProduceStream(
                    context,
                    self._registry,
                    self._produce_budget,
                    self._config,
                    client=client,
                    clock=self._clock,
                    pace=self._pace,
                    recompressor=self._recompressor,
                    ack_seconds=self.ack_seconds,
                    tracing=self._tracing,
                ).run()
        finally:
            self.producing -= 1

    async def _fetch(self, _requests: object, context: Context) -> None:
        self.fetching += 1
        try:
            async with self._client(context) as client:
                await FetchStream(
                    context,
                    self._registry,
                    self._fetch_budget,
                    self._config,
                    client=client,
                    clock=self._clock,
                    pace=self._pace,
                ).run()
        finally:
            self.fetching -= 1

    @asynccontextmanager
    async def _client(self, context: Context) -> AsyncGenerator[ClientUse]:
        """Who a stream is of, counted for as long as it is open (X24)."""
        connection = context.peer()
        try:
            client_id = client_id_of(context.invocation_metadata())
            use = self.quotas.opened(client_id, connection, self._clock.monotonic())
        except (InvalidRequest, TooManyConnections) as error:
            await abort(context, error)
        try:
            yield use
        finally:
            self.quotas.closed(use, connection)
