"""Unary calls count as requests of their client (X24, ADR 52).

Each is carried out and then told for how long to make no other, as messages of streams are; who
comes while it owes too much (`quotas.clients.REQUESTS_OWED_MAX_S`) is refused with THROTTLED
before anything is done. So no call is held here, and none waits in a queue.
"""

from __future__ import annotations

from typing import Any

import grpc

from octavo.proto.client_ids import THROTTLE_MS_KEY, UNCOUNTED_CALLS, is_counted
from octavo.proto.errors import abort
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, Throttled
from octavo.serving.quotas.clients import ClientQuotas
from octavo.serving.quotas.identity import client_id_of
from octavo.serving.services.rpc import Context, Handlers, Service


class CountedCalls:
    """Of one server."""

    def __init__(self, quotas: ClientQuotas, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock

    def of(self, *services: Service) -> Handlers:
        """The methods of these services, with the unary ones counted; streams count their
        messages."""
        return {
            name: handler
            if handler.unary_unary is None or name in UNCOUNTED_CALLS
            else self._counted(name, handler)
            for service in services
            for name, handler in service.handlers().items()
        }

    def _counted(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        answer: Any = handler.unary_unary

        async def counted(raw: bytes, context: Context) -> object:
            if is_counted(method, len(raw)):
                try:
                    client_id = client_id_of(context.invocation_metadata())
                    excess = self._quotas.asked(client_id, self._clock.monotonic())
                except (InvalidRequest, Throttled) as error:
                    await abort(context, error)
                if excess.pause_ms:
                    context.set_trailing_metadata(((THROTTLE_MS_KEY, str(excess.pause_ms)),))
            return await answer(raw, context)

        return grpc.unary_unary_rpc_method_handler(
            counted,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
