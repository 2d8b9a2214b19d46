"""Autorecovery as a process of its own: `octavo autorecovery`."""

from __future__ import annotations

import asyncio

from octavo.client.autorecovery.service import Autorecovery
from octavo.client.autorecovery.settings import AutorecoveryConfig
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.paths import Paths
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.process import run_server
from octavo.runtime.telemetry import get_logger

EXIT_OK = 0
EXIT_REFUSED = 1
"""Start-up was refused; the log says why and what to do."""

_log = get_logger("octavo.autorecovery.process")


def run(config: AutorecoveryConfig) -> int:
    """Work until SIGTERM or SIGINT; returns the exit code."""

    async def main(stop: asyncio.Event) -> int:
        return await serve(config, stop)

    return run_server(main)


async def serve(config: AutorecoveryConfig, stop: asyncio.Event) -> int:
    """Start, and wait for `stop`."""
    clock, entropy = SystemClock(), SystemEntropy()
    try:
        store = await connect_store(
            config.metadata_url,
            client_name=config.name,
            session_timeout_s=config.metadata_session_timeout_s,
            clock=clock,
            entropy=entropy,
        )
    except OctavoError as error:
        _log.error("autorecovery-refused", cause=error.cause, hint=error.hint)
        return EXIT_REFUSED
    healing = Autorecovery(
        store,
        Paths(root_of(config.metadata_url)),
        settings=config,
        name=config.name,
        clock=clock,
        entropy=entropy,
    )
    try:
        try:
            await healing.start()
        except OctavoError as error:
            _log.error("autorecovery-refused", cause=error.cause, hint=error.hint)
            return EXIT_REFUSED
        _log.info("autorecovery-started", name=config.name)
        await stop.wait()
        return EXIT_OK
    finally:
        await healing.close()
        await store.close()
