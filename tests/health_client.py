"""Asks servers for their health as any client of grpc.health.v1 does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health_pb2

TIMEOUT_S = 30.0
_STATUS = {
    health_pb2.HealthCheckResponse.SERVING: "SERVING",
    health_pb2.HealthCheckResponse.NOT_SERVING: "NOT_SERVING",
}


def _request(service: str) -> bytes:
    return health_pb2.HealthCheckRequest(service=service).SerializeToString()


async def statuses(address: str, services: Sequence[str]) -> dict[str, str]:
    """What each service is; "" where nobody answers, "unknown" where nobody knows the name."""
    found: dict[str, str] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=_request,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in services:
            try:
                reply = await check(service, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                is_unknown = error.code() is grpc.StatusCode.NOT_FOUND
                found[service] = "unknown" if is_unknown else ""
            else:
                found[service] = _STATUS[reply.status]
    return found


async def watching(channel: grpc.aio.Channel, service: str) -> AsyncIterator[str]:
    """What a service is, and each change of it."""
    watch = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=_request,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    async for reply in watch(service):
        yield _STATUS[reply.status]
