"""How a client reaches brokers: stubs and streams by address, whatever carries them.

`BrokerTransport` is the seam: the client's cluster knows nothing of channels, so that what stands
in for a network can stand here. `GrpcTransport` is the one that dials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import grpc

from octavo.client.messaging.cluster.paced_calls import PacedChannel
from octavo.client.messaging.cluster.throttles import Throttle
from octavo.proto import broker_pb2 as pb
from octavo.proto.broker_pb2_grpc import BrokerStub
from octavo.proto.client_ids import CLIENT_ID_KEY
from octavo.proto.endpoints import open_channel
from octavo.proto.groups_pb2_grpc import GroupsStub
from octavo.runtime.clock import Clock

if TYPE_CHECKING:
    from octavo.proto.broker_pb2_grpc import BrokerAsyncStub
    from octavo.proto.groups_pb2_grpc import GroupsAsyncStub

ProduceCall = grpc.aio.StreamStreamCall[bytes, pb.ProduceReply]
FetchCall = grpc.aio.StreamStreamCall[pb.FetchRequest, bytes]

MESSAGE_BYTES_MAX = 64 << 20
"""gRPC message limit of both directions: above the largest fetch (G7)."""
FRAME_BYTES_MAX = 1 << 20
"""HTTP/2 frames the client accepts: the default of 16 KiB costs a tenth of a read's CPU."""
PRODUCE_METHOD = "/octavo.broker.Broker/Produce"
FETCH_METHOD = "/octavo.broker.Broker/Fetch"

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.max_frame_size", FRAME_BYTES_MAX),
)


class BrokerTransport(Protocol):
    """Connections to brokers by address, made at the first use of each."""

    def stub(self, address: str) -> BrokerAsyncStub:
        """The unary calls of one broker."""
        ...

    def groups(self, address: str) -> GroupsAsyncStub:
        """The calls of one broker as a coordinator of groups."""
        ...

    def fetch_stream(self, address: str) -> FetchCall:
        """A new Fetch stream to one broker; its replies are the bytes `proto.fetch_wire` reads."""
        ...

    def produce_stream(self, address: str) -> ProduceCall:
        """A new Produce stream to one broker; its messages come from `proto.produce_wire`."""
        ...

    async def close(self) -> None:
        """End every connection; calls under way are cancelled."""
        ...


class _Connection(NamedTuple):
    """What one broker is asked through."""

    channel: grpc.aio.Channel
    broker: BrokerAsyncStub
    groups: GroupsAsyncStub


class GrpcTransport:
    """One gRPC channel per broker.

    Args:
        client_id: what brokers are told, once for each stream and with each call (X24).
        interceptors: of unary calls.
    """

    def __init__(
        self,
        *,
        client_id: str,
        use_http_proxy: bool,
        clock: Clock,
        interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
    ) -> None:
        self._interceptors = interceptors
        self._client_id = client_id
        self._metadata = ((CLIENT_ID_KEY, client_id.encode()),)
        self._clock = clock
        self._use_http_proxy = use_http_proxy
        self._connections: dict[str, _Connection] = {}

    def _connected(self, address: str) -> _Connection:
        found = self._connections.get(address)
        if found is None:
            channel = open_channel(
                address,
                *_CHANNEL_OPTIONS,
                use_http_proxy=self._use_http_proxy,
                interceptors=self._interceptors,
            )
            throttle = Throttle(address, self._clock)
            paced = PacedChannel(channel, address, self._client_id, throttle, self._clock)
            as_channel = cast("grpc.aio.Channel", paced)
            found = _Connection(channel, BrokerStub(as_channel), GroupsStub(as_channel))
            self._connections[address] = found
        return found

    def stub(self, address: str) -> BrokerAsyncStub:
        """See `BrokerTransport`."""
        return self._connected(address).broker

    def groups(self, address: str) -> GroupsAsyncStub:
        """See `BrokerTransport`."""
        return self._connected(address).groups

    def fetch_stream(self, address: str) -> FetchCall:
        """See `BrokerTransport`."""
        method: grpc.aio.StreamStreamMultiCallable[pb.FetchRequest, bytes] = self._connected(
            address
        ).channel.stream_stream(FETCH_METHOD, request_serializer=pb.FetchRequest.SerializeToString)
        return method(metadata=self._metadata)

    def produce_stream(self, address: str) -> ProduceCall:
        """See `BrokerTransport`."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProduceReply] = self._connected(
            address
        ).channel.stream_stream(PRODUCE_METHOD, response_deserializer=pb.ProduceReply.FromString)
        return method(metadata=self._metadata)

    async def close(self) -> None:
        """See `BrokerTransport`; closing a channel waits for nothing."""
        connections, self._connections = self._connections, {}
        for channel in [found.channel for found in connections.values()]:
            await channel.close()
