"""Asking a server process whether it is ready, through grpc.health.v1."""

from __future__ import annotations

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

CHECK_TIMEOUT_S = 1.0


async def is_serving(address: str, timeout_s: float = CHECK_TIMEOUT_S) -> bool:
    """Whether the server at `address` answers SERVING within `timeout_s`."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
