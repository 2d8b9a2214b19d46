"""The methods of the two long-lived streams, produce and fetch."""

from __future__ import annotations

import grpc

from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import Clock
from octavo.runtime.histogram import REQUEST_SECONDS, Histogram
from octavo.serving.budget import ByteBudget
from octavo.serving.config import BrokerConfig
from octavo.serving.registry import PartitionRegistry
from octavo.serving.services.rpc import Context, Handlers
from octavo.serving.streams import FetchStream, ProduceStream


class StreamService:
    """Makes the streams, which share two budgets of bytes."""

    def __init__(self, registry: PartitionRegistry, config: BrokerConfig, clock: Clock) -> None:
        self._registry = registry
        self._config = config
        self._clock = clock
        self._produce_budget = ByteBudget(config.produce_bytes_in_flight)
        self._fetch_budget = ByteBudget(config.fetch_bytes_in_flight)
        self.producing = 0
        """Open produce streams."""
        self.fetching = 0
        """Open fetch streams."""
        self.ack_seconds = Histogram(REQUEST_SECONDS)
        """Of each message with answers, what its longest waiting batch waited."""

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "Produce": grpc.stream_stream_rpc_method_handler(
                self._produce, response_serializer=pb.ProduceReply.SerializeToString
            ),
            "Fetch": grpc.stream_stream_rpc_method_handler(self._fetch),  # bytes: proto.fetch_wire
        }

    async def _produce(self, _requests: object, context: Context) -> None:
        stream = ProduceStream(
            context,
            self._registry,
            self._produce_budget,
            self._config,
            clock=self._clock,
            ack_seconds=self.ack_seconds,
        )
        self.producing += 1
        try:
            await stream.run()
        finally:
            self.producing -= 1

    async def _fetch(self, _requests: object, context: Context) -> None:
        stream = FetchStream(context, self._registry, self._fetch_budget, self._config, self._clock)
        self.fetching += 1
        try:
            await stream.run()
        finally:
            self.fetching -= 1
