"""`octavo broker`: one broker process from its first to its last breath."""

from __future__ import annotations

import asyncio

from octavo.metadata.connect import connect_store
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.process import run_server
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.server import BrokerServer
from octavo.serving.span_export import exporting_spans

EXIT_OK = 0
EXIT_FAILED = 1

_log = get_logger("octavo.serving.process")


def run(config: BrokerConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises ConfigError when a package for `tracing` is missing.
    """

    async def main(stop: asyncio.Event) -> int:
        return await serve(config, stop)

    with exporting_spans(config):
        return run_server(main)


async def serve(config: BrokerConfig, stop: asyncio.Event) -> int:
    """Connect to metadata, run a broker until `stop` is set, stop it in good order."""
    clock, entropy = SystemClock(), SystemEntropy()
    try:
        store = await connect_store(
            config.metadata_url,
            client_name=config.broker_id,
            session_timeout_s=config.session_timeout_s,
            clock=clock,
            entropy=entropy,
        )
    except OctavoError as error:
        _log.error("metadata-not-reached", url=config.metadata_url, cause=str(error))
        return EXIT_FAILED
    server = BrokerServer(config, store=store, clock=clock, entropy=entropy)
    code = EXIT_OK
    try:
        await server.start()
        await stop.wait()
    except OctavoError as error:
        _log.error("broker-failed", cause=str(error))
        code = EXIT_FAILED
    finally:
        await server.stop()
        await store.close()
    return code
