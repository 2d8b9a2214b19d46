"""How long requests take, by method and gRPC status (interface §4.1); the place of their spans."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from octavo.runtime.clock import Clock
from octavo.runtime.histogram import REQUEST_SECONDS, Histogram
from octavo.serving.services.rpc import Context, Handlers
from octavo.serving.tracing import RequestTracing

_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class RequestTimes:
    """Of one server. Methods are those that were given here, so there are few series."""

    def __init__(self, clock: Clock, tracing: RequestTracing) -> None:
        self._clock = clock
        self._tracing = tracing
        self.seconds: dict[tuple[str, str], Histogram] = {}
        """By method and status; made when they first occur."""

    def measured(self, service: str, handlers: Handlers) -> Handlers:
        """The same methods, with the unary ones measured, and traced where their clients do;
        streams are as long as their clients."""
        return {
            name: self._of(service, name, handler) if handler.unary_unary is not None else handler
            for name, handler in handlers.items()
        }

    def _of(
        self, service: str, method: str, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        answer: Any = handler.unary_unary

        async def measured(raw: bytes, context: Context) -> object:
            began_s = self._clock.monotonic()
            code = grpc.StatusCode.UNKNOWN.name
            try:
                with self._tracing.calling(service, method, context) as replied:
                    reply = await answer(raw, context)
                    if replied is not None:
                        replied(reply)
                code = grpc.StatusCode.OK.name
                return reply
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED.name
                raise
            except grpc.aio.AbortError:
                code = _name_of(context.code())
                raise
            finally:
                self._note(method, code, self._clock.monotonic() - began_s)

        return grpc.unary_unary_rpc_method_handler(
            measured,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _note(self, method: str, code: str, seconds: float) -> None:
        histogram = self.seconds.get((method, code))
        if histogram is None:
            histogram = self.seconds[method, code] = Histogram(REQUEST_SECONDS)
        histogram.observe(seconds)


def _name_of(code: object) -> str:
    """gRPC gives a StatusCode or the number of one."""
    if isinstance(code, grpc.StatusCode):
        return code.name
    return _NAMES.get(code, "UNKNOWN") if isinstance(code, int) else "UNKNOWN"
