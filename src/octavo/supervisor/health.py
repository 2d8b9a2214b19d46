"""Asking a server process whether it is ready, through grpc.health.v1."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2

from octavo.proto.bookie_pb2 import CollectRequest, InfoReply, InfoRequest, ScrubRequest
from octavo.proto.bookie_pb2_grpc import BookieControlStub
from octavo.proto.endpoints import open_blocking_channel, open_channel
from octavo.proto.health import STARTED
from octavo.runtime.errors import NotReady

CHECK_TIMEOUT_S = 1.0
_CHECK = "/grpc.health.v1.Health/Check"


async def bookie_info(address: str, timeout_s: float = CHECK_TIMEOUT_S) -> InfoReply | None:
    """What a bookie says of itself at its control port; None when it does not answer in time."""
    async with open_channel(address) as channel:
        try:
            return await BookieControlStub(channel).Info(InfoRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None


async def collect_now(
    address: str, timeout_s: float, *, accept_missing: bool, compact: bool
) -> None:
    """Have a bookie compare its ledgers with the metadata at once; raises NotReady."""
    request = CollectRequest(accept_missing=accept_missing, compact=compact)
    async with open_channel(address) as channel:
        try:
            await BookieControlStub(channel).Collect(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise NotReady(error.details() or error.code().name) from error


async def scrub_now(address: str, timeout_s: float) -> None:
    """Have a bookie read all its segments, beginning now; raises NotReady."""
    async with open_channel(address) as channel:
        try:
            await BookieControlStub(channel).Scrub(ScrubRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise NotReady(error.details() or error.code().name) from error


async def is_serving(
    address: str, timeout_s: float = CHECK_TIMEOUT_S, *, service: str = STARTED
) -> bool:
    """Whether the server at `address` answers within `timeout_s` that this is SERVING.

    `proto.health` has the names; unless another is given: whether it has started.
    """
    async with open_channel(address) as channel:
        check = channel.unary_unary(
            _CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            reply = await check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING


def is_serving_now(
    address: str, timeout_s: float = CHECK_TIMEOUT_S, *, service: str = STARTED
) -> bool:
    """The same for a program without an event loop; blocks for `timeout_s` at most."""
    with open_blocking_channel(address) as channel:
        check = channel.unary_unary(
            _CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            reply = check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return reply.status == health_pb2.HealthCheckResponse.SERVING
