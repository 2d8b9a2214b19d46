"""The gRPC control service of a bookie: health and information, no data (design.md §4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from octavo.proto import bookie_pb2, bookie_pb2_grpc
from octavo.proto.endpoints import bind, grpc_server
from octavo.proto.health import STARTED, HealthBoard
from octavo.runtime.errors import OctavoError

SERVICE = "octavo.bookie.BookieControl"
WIRE = "octavo.bookie.Wire"
"""Readiness of the framed port: requests are answered, reads at least."""
JOURNAL = "octavo.bookie.Journal"
"""Readiness of the journal: new records are taken; not while the bookie is read-only."""
STOP_GRACE_S = 1.0
ListLedgers = Callable[[bookie_pb2.ListLedgersRequest], Awaitable[bookie_pb2.ListLedgersReply]]


class _Control(bookie_pb2_grpc.BookieControlServicer):
    def __init__(
        self,
        info: Callable[[], bookie_pb2.InfoReply],
        collect: Callable[[bookie_pb2.CollectRequest], None],
        scrub: Callable[[], None],
        list_ledgers: ListLedgers,
    ) -> None:
        self._info = info
        self._collect = collect
        self._scrub = scrub
        self._list_ledgers = list_ledgers

    async def Scrub(
        self,
        request: bookie_pb2.ScrubRequest,
        context: grpc.aio.ServicerContext[bookie_pb2.ScrubRequest, bookie_pb2.ScrubReply],
    ) -> bookie_pb2.ScrubReply:
        """Begin to read all segments; FAILED_PRECONDITION while nothing is served."""
        try:
            self._scrub()
        except OctavoError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.cause)
        return bookie_pb2.ScrubReply()

    async def ListLedgers(
        self,
        request: bookie_pb2.ListLedgersRequest,
        context: grpc.aio.ServicerContext[
            bookie_pb2.ListLedgersRequest, bookie_pb2.ListLedgersReply
        ],
    ) -> bookie_pb2.ListLedgersReply:
        """A page of the ledgers stored here; FAILED_PRECONDITION while nothing is served."""
        try:
            return await self._list_ledgers(request)
        except OctavoError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.cause)

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
    """Owns the gRPC server and what health checks are told."""

    def __init__(
        self,
        info: Callable[[], bookie_pb2.InfoReply],
        collect: Callable[[bookie_pb2.CollectRequest], None],
        scrub: Callable[[], None],
        list_ledgers: ListLedgers,
    ) -> None:
        self._server = grpc_server()
        self._health = HealthBoard((SERVICE, WIRE, JOURNAL))
        self._health.add_to(self._server)
        servicer: Any = _Control(info, collect, scrub, list_ledgers)
        bookie_pb2_grpc.add_BookieControlServicer_to_server(servicer, self._server)

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        await self._health.begin()
        await self._health.tell({SERVICE: True})
        bound = bind(self._server, host, port)
        await self._server.start()
        return bound

    async def started(self) -> None:
        """The bookie has registered."""
        await self._health.tell({STARTED: True})

    async def tell(self, *, answers: bool, writable: bool) -> None:
        """Whether requests are answered, and whether new records are taken."""
        await self._health.tell({WIRE: answers, JOURNAL: writable})

    async def leave(self) -> None:
        """The bookie was asked to stop: told before anything is closed."""
        await self._health.leave()

    async def stop(self) -> None:
        """Stop listening."""
        await self._health.end()
        await self._server.stop(STOP_GRACE_S)
