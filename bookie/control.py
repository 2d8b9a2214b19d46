"""The gRPC control service of a bookie: health and information, no data (design.md §4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from octavo.proto import bookie_pb2, bookie_pb2_grpc
from octavo.proto.endpoints import bind, grpc_server
from octavo.runtime.errors import OctavoError

SERVICE = "octavo.bookie.BookieControl"
STOP_GRACE_S = 1.0


class _Control(bookie_pb2_grpc.BookieControlServicer):
    def __init__(
        self,
        info: Callable[[], bookie_pb2.InfoReply],
        collect: Callable[[bookie_pb2.CollectRequest], None],
    ) -> None:
        self._info = info
        self._collect = collect

    async def Collect(
        self,
        request: bookie_pb2.CollectRequest,
        context: grpc.aio.ServicerContext[bookie_pb2.CollectRequest, bookie_pb2.CollectReply],
    ) -> bookie_pb2.CollectReply:
        """Begin garbage collection; FAILED_PRECONDITION while nothing is served."""
        try:
            self._collect(request)
        except OctavoError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.cause)
        return bookie_pb2.CollectReply()

    async def Info(
        self,
        request: bookie_pb2.InfoRequest,
        context: grpc.aio.ServicerContext[bookie_pb2.InfoRequest, bookie_pb2.InfoReply],
    ) -> bookie_pb2.InfoReply:
        """What this bookie is and how much it did."""
        return self._info()


class ControlServer:
    """Owns the gRPC server; health is NOT_SERVING until `set_serving(True)`."""

    def __init__(
        self,
        info: Callable[[], bookie_pb2.InfoReply],
        collect: Callable[[bookie_pb2.CollectRequest], None],
    ) -> None:
        self._server = grpc_server()
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        servicer: Any = _Control(info, collect)
        bookie_pb2_grpc.add_BookieControlServicer_to_server(servicer, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        await self.set_serving(False)
        bound = bind(self._server, host, port)
        await self._server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """Tell health checkers whether requests are answered."""
        reply = health_pb2.HealthCheckResponse
        status = reply.SERVING if serving else reply.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def stop(self) -> None:
        """Stop listening."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(STOP_GRACE_S)
