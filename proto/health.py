"""What a server says of itself through grpc.health.v1: alive, started, ready (interface §4.3).

    name                     SERVING while
    "" (liveness)            the process answers; not the place to ask before sending work
    STARTED                  it has registered and was not asked to stop: `up`, `status`, `probe`
    name of a service        the service takes work now: what a load balancer asks

The library answers `Check` and `Watch`; here is only who changes what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

LIVENESS = ""
STARTED = "octavo.started"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthBoard:
    """The statuses of one server.

    Args:
        services: names of services; nothing is ready before it is told.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._servicer = aio.HealthServicer()
        self._told: dict[str, bool] = {}
        self._services = (STARTED, *services)
        self._is_leaving = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer health checks on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def begin(self) -> None:
        """Alive, and nothing more."""
        await self.tell({LIVENESS: True, **dict.fromkeys(self._services, False)})

    async def tell(self, serving: Mapping[str, bool]) -> None:
        """Change these; nothing is SERVING again once the server leaves."""
        for service, is_serving in serving.items():
            if self._is_leaving and is_serving:
                continue
            if self._told.get(service) is not is_serving:
                self._told[service] = is_serving
                await self._servicer.set(service, _SERVING if is_serving else _NOT_SERVING)

    async def leave(self) -> None:
        """The server was asked to stop: it takes no new work, and lives until it has stopped."""
        self._is_leaving = True
        await self.tell(dict.fromkeys(self._services, False))

    async def end(self) -> None:
        """Not alive any more."""
        self._is_leaving = True
        await self._servicer.enter_graceful_shutdown()
