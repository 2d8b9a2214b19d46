"""What a broker does for requests that belong to a trace: spans, and `trace_id` in its log (F171).

A request without a context costs one test. With one, the broker's log lines about it have the trace
id, whether the broker makes spans or not. Spans are made with `tracing` set, as children of what
the client sent:

    span                       kind      lasts
    append TOPIC               server    a batch from its arrival until it has an answer
    octavo.broker.Broker/NAME  server    a unary call

A batch carries the context of the span that sent its first record: others of it are found by their
own headers. Where spans go is the process' business (`octavo.serving.span_export`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from octavo.proto import broker_pb2 as pb
from octavo.proto import tracing as t
from octavo.proto.produce_wire import ProduceItem
from octavo.runtime.address import split_address
from octavo.runtime.errors import OctavoError
from octavo.runtime.request_trace import logged_trace
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.log import Answer, Reply

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from octavo.serving.services.rpc import Context


class RequestTracing:
    """Of one server. Raises ConfigError when spans are asked for and OpenTelemetry is missing."""

    def __init__(self, config: BrokerConfig) -> None:
        self._api: Any = t.opentelemetry() if config.tracing else None
        self._tracer: Any = None if self._api is None else t.tracer(self._api)
        self._server = _address_of(config)

    def appending(
        self, item: ProduceItem, reply: Reply
    ) -> tuple[Reply, AbstractContextManager[None]]:
        """What answers a batch, and the block in which it is taken."""
        parent = t.parse_traceparent(item.traceparent)
        if parent is None:
            return reply, nullcontext()
        if self._tracer is not None:
            span = self._tracer.start_span(
                f"append {item.topic}",
                context=self._under(parent),
                kind=self._api.SpanKind.SERVER,
                attributes={
                    **self._server,
                    t.SYSTEM: t.SYSTEM_NAME,
                    t.DESTINATION: item.topic,
                    t.PARTITION: str(item.partition),
                    t.BODY_BYTES: len(item.batch),
                },
            )
            reply = partial(self._answered, span, reply)
        return reply, logged_trace(parent.trace_id)

    def _answered(self, span: Span, reply: Reply, answer: Answer) -> None:
        try:
            reply(answer)
        finally:
            if isinstance(answer, OctavoError):
                self._failed(span, type(answer).__name__, answer.cause)
            else:
                span.set_attribute(t.OFFSET, answer.base_offset)
            span.end()

    def calling(
        self, service: str, method: str, context: Context
    ) -> AbstractContextManager[Callable[[object], None] | None]:
        """The block in which a unary call is served, and what must hear of its reply, if any."""
        for key, value in context.invocation_metadata() or ():
            if key == t.TRACEPARENT:
                parent = t.parse_traceparent(value)
                if parent is not None:
                    return self._calling(service, method, parent, context)
        return nullcontext()

    @contextmanager
    def _calling(
        self, service: str, method: str, parent: t.TraceParent, context: Context
    ) -> Generator[Callable[[object], None] | None]:
        with logged_trace(parent.trace_id):
            if self._tracer is None:
                yield None
                return
            # Not the present span: what the call starts and leaves behind is not a part of it.
            span = self._tracer.start_span(
                f"{service}/{method}",
                context=self._under(parent),
                kind=self._api.SpanKind.SERVER,
                attributes={
                    **self._server,
                    t.RPC_SYSTEM: "grpc",
                    t.RPC_SERVICE: service,
                    t.RPC_METHOD: method,
                },
            )
            try:
                yield partial(self._replied, span)
            except grpc.aio.AbortError:
                self._failed(span, "refused", context.details() or "")
                raise
            except BaseException as error:
                self._failed(span, type(error).__name__, str(error))
                raise
            finally:
                span.end()

    def _replied(self, span: Span, reply: object) -> None:
        """Most refusals are a field of the reply."""
        error = getattr(reply, "error", None)
        if isinstance(error, pb.Error) and error.code:
            self._failed(span, error.code, error.cause)

    def _under(self, parent: t.TraceParent) -> Any:
        api = self._api
        return api.set_span_in_context(api.NonRecordingSpan(t.remote_context(api, parent)))

    def _failed(self, span: Span, kind: str, text: str) -> None:
        span.set_attribute(t.ERROR_TYPE, kind)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, text))


def _address_of(config: BrokerConfig) -> dict[str, str | int]:
    """Where clients find this broker, as far as its settings tell."""
    host, port = config.host, config.port
    if config.advertised_address:
        host, port = split_address(config.advertised_address, what="advertised address")
    found: dict[str, str | int] = {t.SERVER_ADDRESS: host}
    return {**found, t.SERVER_PORT: port} if port else found
