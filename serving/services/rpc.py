"""How a method of a service becomes a gRPC handler.

Request bytes are parsed here, not by the gRPC library, so that garbage is INVALID_ARGUMENT.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from octavo.proto.errors import abort
from octavo.runtime.errors import InvalidRequest, OctavoError
from octavo.serving.services.caller import Caller, caller_of

_Request = TypeVar("_Request", bound=Message)
_Parsable = TypeVar("_Parsable", bound=Message, covariant=True)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
"""The methods of a service, by the names that the protocol gives them."""


class Service(Protocol):
    """Answers the requests of one subject."""

    def handlers(self) -> Handlers:
        """Its methods."""
        ...


class _Parsed(Protocol[_Parsable]):
    def FromString(self, data: bytes, /) -> _Parsable: ...  # protobuf's own name


def unary(
    request_class: _Parsed[_Request], answer: Callable[[_Request, Caller], Awaitable[Message]]
) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary method that parses by itself and ends with our error in the trailing metadata."""

    async def handle(raw: bytes, context: Context) -> Message:
        try:
            try:
                request = request_class.FromString(raw)
            except DecodeError as error:
                raise InvalidRequest(f"malformed request: {error}") from error
            return await answer(request, caller_of(context))
        except OctavoError as error:
            await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(
        handle, response_serializer=lambda reply: reply.SerializeToString()
    )
