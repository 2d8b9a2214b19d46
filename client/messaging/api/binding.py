"""Ties the parts of one async client to its loop and process.

Owns the Cluster, made lazily on the first use inside a running loop, and the set of parts that
`close()` must end. Using a client from another loop, after a fork or after closing raises at once.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import Protocol

from octavo.client.messaging.api.forking import claim_grpc, foreign_client, release_grpc
from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.config import ClientConfig
from octavo.client.messaging.tracing import ClientTracing
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import IllegalStateError


class Part(Protocol):
    """A producer, consumer or reader of a client."""

    async def close(self, timeout: float | None = None) -> None:
        """End it."""
        ...


class Binding:
    """Shared by a client and all its parts."""

    def __init__(self, servers: tuple[str, ...], config: ClientConfig) -> None:
        self.servers = servers
        self.config = config
        self.parts: dict[Part, None] = {}
        self.closed = False
        self._cluster: Cluster | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._claimed = False
        self.tracing = ClientTracing(config.client_id) if config.tracing else None
        """None: no spans, and no context in records."""

    def cluster(self) -> Cluster:
        """The shared cluster; raises ForkedClientError or IllegalStateError."""
        loop = asyncio.get_running_loop()
        if self._cluster is not None:
            if self._pid != os.getpid():
                raise foreign_client(self._pid)
            if self._loop is not loop:
                raise IllegalStateError(
                    "this client belongs to another event loop",
                    hint="make one AsyncClient per loop",
                )
        if self.closed:
            raise IllegalStateError("the client is closed", hint="create a new one")
        if self._cluster is None:
            claim_grpc()
            self._claimed = True
            self._pid = os.getpid()
            self._loop = loop
            self._cluster = Cluster(
                self.servers, self.config, SystemClock(), SystemEntropy(), tracing=self.tracing
            )
        return self._cluster

    def describe(self, kind: str, *, closed: bool = False, more: str = "") -> str:
        """The repr of the client or a part: waits for nothing, so that logging may call it."""
        state = "closed" if closed or self.closed else "open"
        servers = ",".join(self.servers)
        return f"<{kind} {self.config.client_id!r} at {servers}: {state}{more}>"

    def add(self, part: Part) -> None:
        """Register a part, to be closed with the client."""
        self.parts[part] = None

    def forget(self, part: Part) -> None:
        """A part was closed."""
        self.parts.pop(part, None)

    def __del__(self) -> None:
        if self._cluster is not None and not self.closed and self._pid == os.getpid():
            self._release()
            warnings.warn(
                "an octavo client was dropped without close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    async def close(self) -> None:
        """End the connections; parts are closed by then."""
        self.closed = True
        if self._cluster is not None and self._pid == os.getpid():
            try:
                await self._cluster.close()
            finally:
                self._release()

    def _release(self) -> None:
        if self._claimed:
            self._claimed = False
            release_grpc()
