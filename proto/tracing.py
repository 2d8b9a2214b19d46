"""What carries a trace from a producer over a broker to a consumer, and what spans are called.

A trace's context is W3C's `traceparent` (and `tracestate`): a header of each record, metadata of a
unary call, a field of a batch on a Produce stream, which is as long as its client. OpenTelemetry's
conventions for messaging are in development: names that may change stand here and nowhere else
(interface §4.2, F171). OpenTelemetry itself is loaded by who asks for spans, and by nobody else.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from octavo.runtime.errors import ConfigError
from octavo.runtime.request_trace import also_forget

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
"""Names of the two headers of a record, and keys in the metadata of a call."""
TRACESTATE_CHARACTERS_MAX = 512
"""A longer one is not carried (W3C Trace Context §3.3.1.5)."""
SCOPE = "octavo"
"""Who makes our spans."""
EXTRA = "otel"

# --- names of OpenTelemetry's semantic conventions -------------------------------------------

SYSTEM = "messaging.system"
SYSTEM_NAME = "octavo"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
PARTITION = "messaging.destination.partition.id"
GROUP = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
MESSAGES = "messaging.batch.message_count"
OFFSET = "messaging.octavo.offset"
"""Of one record, or of the first of a batch; a name of ours."""
BODY_BYTES = "messaging.message.envelope.size"
ERROR_TYPE = "error.type"
RPC_SYSTEM = "rpc.system"
RPC_SERVICE = "rpc.service"
RPC_METHOD = "rpc.method"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
TRACEPARENT_CHARACTERS_MAX = 128
"""What is longer is none: version 0 has 55, and later ones may have more."""


class TraceParent(NamedTuple):
    """A span somewhere else, to which something belongs."""

    trace_id: str
    """32 hexadecimal digits, never all zero."""
    span_id: str
    """16 hexadecimal digits, never all zero."""
    flags: int
    """Bit 0: its trace is recorded."""


def parse_traceparent(text: str | bytes | None) -> TraceParent | None:
    """What a `traceparent` says; None for what is none, as W3C wants: then there is no trace."""
    if not text or len(text) > TRACEPARENT_CHARACTERS_MAX:
        return None
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    found = _TRACEPARENT.fullmatch(text)
    if found is None or (found[4] is not None and text.startswith("00")):
        return None
    if not found[1].strip("0") or not found[2].strip("0"):
        return None
    return TraceParent(found[1], found[2], int(found[3], 16))


def traceparent_of(context: SpanContext) -> str:
    """The `traceparent` of a span; empty when nobody records spans."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def opentelemetry() -> Any:
    """The package `opentelemetry.trace`; raises ConfigError when it is not installed."""
    try:
        # Imported here: an extra, for who wants spans.
        from opentelemetry import trace as loaded
    except ImportError as error:
        raise ConfigError(
            "tracing is on, but OpenTelemetry is not installed",
            hint=f"pip install 'octavo[{EXTRA}]'",
        ) from error
    also_forget(_no_present_span)
    return loaded


def _no_present_span() -> None:
    # Imported here: as above, by which it is loaded.
    from opentelemetry import context

    context.attach(context.Context())


def tracer(api: Any) -> Any:
    """Who makes our spans, of the tracer provider that the program set up."""
    return api.get_tracer(SCOPE, importlib.metadata.version(SCOPE))


def remote_context(api: Any, parent: TraceParent) -> Any:
    """A span somewhere else as OpenTelemetry's SpanContext."""
    return api.SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(parent.flags),
    )


class CallTracing(grpc.aio.UnaryUnaryClientInterceptor):
    """Gives the present span's context to each unary call, in its metadata.

    Args:
        api: what `opentelemetry` returned.
    """

    def __init__(self, api: Any) -> None:
        self._api = api

    async def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.aio.ClientCallDetails, Any], Any],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        """See grpc.aio."""
        text = traceparent_of(self._api.get_current_span().get_span_context())
        if text:
            metadata = client_call_details.metadata or grpc.aio.Metadata()
            metadata.add(TRACEPARENT, text)
            client_call_details = grpc.aio.ClientCallDetails(
                client_call_details.method,
                client_call_details.timeout,
                metadata,
                client_call_details.credentials,
                client_call_details.wait_for_ready,
            )
        return await continuation(client_call_details, request)
