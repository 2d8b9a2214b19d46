"""What all parts of one client share on its loop: calls, what is known of topics, and owners."""

from __future__ import annotations

from octavo.client.messaging.cluster.calls import Calls
from octavo.client.messaging.cluster.coordinators import Coordinators
from octavo.client.messaging.cluster.owners import Owners
from octavo.client.messaging.cluster.topics import Topics
from octavo.client.messaging.cluster.transport import BrokerTransport, GrpcTransport
from octavo.client.messaging.config import ClientConfig
from octavo.client.messaging.tracing import ClientTracing
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy


class Cluster:
    """The cluster as one client sees it; `transport` says how brokers are reached."""

    def __init__(
        self,
        servers: tuple[str, ...],
        config: ClientConfig,
        clock: Clock,
        entropy: Entropy,
        transport: BrokerTransport | None = None,
        *,
        tracing: ClientTracing | None = None,
    ) -> None:
        self.config = config
        self.tracing = tracing
        self.clock = clock
        self.entropy = entropy
        if transport is None:
            transport = GrpcTransport(
                client_id=config.client_id,
                use_http_proxy=config.use_http_proxy,
                interceptors=None if tracing is None else tracing.interceptors(),
                clock=clock,
            )
        self.transport = transport
        self.calls = Calls(servers, config, clock, entropy, transport)
        self.topics = Topics(self.calls)
        self.owners = Owners(self.calls, self.topics)
        self.coordinators = Coordinators(self.calls)

    async def close(self) -> None:
        """Close every connection. Calls under way in other tasks end with IllegalStateError."""
        await self.calls.close()
