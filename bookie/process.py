"""A bookie as a process: metadata, signals, exit code."""

from __future__ import annotations

import asyncio

from octavo.bookie.config import BookieConfig
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.server import BookieServer
from octavo.client.autorecovery.service import Autorecovery
from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.measured import MeasuredStore
from octavo.metadata.paths import Paths
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import ConfigError, DiskFailed, OctavoError
from octavo.runtime.process import run_server
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.unexpected import EXIT_BROKEN, watch_loop

EXIT_OK = 0
EXIT_REFUSED = 1
"""Start-up was refused; the log says why and what to do."""
EXIT_FAILED = EXIT_BROKEN
"""Fail-stop (B-8) or the id was taken (B-28)."""

_log = get_logger("octavo.bookie.process")


def run(config: BookieConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code, not 0 after a failure (B-8)."""

    async def main(stop: asyncio.Event) -> int:
        return await serve(config, stop)

    return run_server(main)


async def serve(config: BookieConfig, stop: asyncio.Event) -> int:
    """Start a bookie and wait for `stop` or its failure."""
    clock, entropy = SystemClock(), SystemEntropy()
    _log.info("bookie-config", **config.model_dump(mode="json"))
    try:
        connected = await connect_store(
            config.metadata_url,
            client_name=config.bookie_id,
            session_timeout_s=config.metadata_session_timeout_s,
            clock=clock,
            entropy=entropy,
        )
    except OctavoError as error:
        _log.error("bookie-refused", cause=error.cause, hint=error.hint)
        return EXIT_REFUSED
    store, healing = MeasuredStore(connected, clock), None
    if config.autorecovery:
        healing = Autorecovery(
            store,
            Paths(root_of(config.metadata_url)),
            settings=config,
            name=config.bookie_id,
            clock=clock,
            entropy=entropy,
        )
    server = BookieServer(config, store=store, clock=clock, entropy=entropy)
    metrics = BookieMetrics(
        config, server.desk, lambda: server.connections, store=store, healing=healing, clock=clock
    )
    try:
        await metrics.start()
        return await serve_with(server, stop, healing)
    except ConfigError as error:
        _log.error("bookie-refused", cause=error.cause, hint=error.hint)
        return EXIT_REFUSED
    finally:
        await metrics.close()
        await store.close()


async def serve_with(
    server: BookieServer, stop: asyncio.Event, healing: Autorecovery | None = None
) -> int:
    """Start a server, and what heals copies beside it; wait for `stop` or the server's failure.

    Returns the exit code, whatever else goes wrong while it stops.
    """
    ended = asyncio.Event()
    stopped = asyncio.ensure_future(_forward(stop, ended))
    watch_loop(server.fail)
    server.failed.add_done_callback(lambda _: ended.set())
    try:
        try:
            await server.start()
        except OctavoError as error:
            _log.error("bookie-refused", cause=error.cause, hint=error.hint)
            return EXIT_FAILED if isinstance(error, DiskFailed) else EXIT_REFUSED
        beside = TaskOwner("bookie-autorecovery")
        if healing is not None:
            server.desk.beside.append(healing.tell)
            beside.spawn(_heal(healing, server), name="start")
        try:
            await ended.wait()
        finally:
            await beside.close()
            if healing is not None:
                await healing.close()
    finally:
        stopped.cancel()
        await server.stop()
    return EXIT_FAILED if server.failed.done() else EXIT_OK


async def _heal(healing: Autorecovery, server: BookieServer) -> None:
    """Start it once the metadata store answers: a bookie serves without it."""
    while True:
        try:
            await healing.start()
        except OctavoError as error:
            _log.warning("autorecovery-waits", cause=error.cause)
            await asyncio.sleep(server.config.fleet_poll_s)
        else:
            return


async def _forward(stop: asyncio.Event, ended: asyncio.Event) -> None:
    await stop.wait()
    ended.set()
