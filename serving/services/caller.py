"""Who makes a request."""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc


class Caller(NamedTuple):
    """The other side of a connection, as every handler is told of it."""

    peer: str
    """Its transport address, as gRPC writes it (`ipv4:127.0.0.1:4242`). A principal joins it once
    there is authentication (ADR 21)."""


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Who makes the request of this context."""
    return Caller(context.peer())
