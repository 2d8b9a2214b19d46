"""The methods of the two long-lived streams, produce and fetch."""

from __future__ import annotations

import grpc

from octavo.proto import broker_pb2 as pb
from octavo.runtime.clock import Clock
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

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "Produce": grpc.stream_stream_rpc_method_handler(
                self._produce, response_serializer=pb.ProduceReply.SerializeToString
            ),
            "Fetch": grpc.stream_stream_rpc_method_handler(self._fetch),  # bytes: proto.fetch_wire
        }

    async def _produce(self, _requests: object, context: Context) -> None:
        await ProduceStream(context, self._registry, self._produce_budget, self._config).run()

    async def _fetch(self, _requests: object, context: Context) -> None:
        await FetchStream(
            context, self._registry, self._fetch_budget, self._config, self._clock
        ).run()
