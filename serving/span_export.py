"""Where a broker's spans go: over OTLP and HTTP to a collector, as the environment says.

The variables are OpenTelemetry's own (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER,
OTEL_BSP_MAX_QUEUE_SIZE and so on). Spans wait in a queue of 2,048 unless told otherwise, and are
dropped above it: a collector that is away costs spans, never requests. A tracer provider that the
program has set up already (`opentelemetry-instrument`) is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import octavo
from octavo.proto.tracing import opentelemetry
from octavo.runtime.errors import ConfigError
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import Worker
from octavo.serving.config import BrokerConfig

EXTRA = "otel-broker"
SERVICE_NAME = "octavo-broker"
STOP_TIMEOUT_S = 3.0
"""How long the end of a broker waits for the last spans to leave."""

_log = get_logger("octavo.serving.spans")


@contextmanager
def exporting_spans(config: BrokerConfig) -> Generator[None]:
    """Spans made in this block are sent; nothing happens unless `tracing` is set.

    Raises ConfigError when a package is missing.
    """
    if not config.tracing:
        yield
        return
    api = opentelemetry()
    try:
        # Imported here: an extra, for brokers that send spans.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "tracing is on, but what sends spans is not installed",
            hint=f"pip install 'octavo[{EXTRA}]'",
        ) from error
    if not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        yield
        return
    attributes = {"service.instance.id": config.broker_id, "service.version": octavo.__version__}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = SERVICE_NAME
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    api.set_tracer_provider(provider)
    try:
        yield
    finally:
        # On a thread of its own: against a collector that is away it takes longer than we wait.
        leaving = Worker("last-spans", provider.shutdown, _not_left)
        leaving.start()
        if not leaving.join(STOP_TIMEOUT_S):
            _log.warning("spans-lost", cause="the collector did not take the last spans in time")


def _not_left(error: BaseException) -> None:
    _log.warning("spans-lost", cause=repr(error))
