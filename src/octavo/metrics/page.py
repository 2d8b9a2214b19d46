"""The page of a server's metrics: HTTP on a port of its own, for Prometheus and for people.

A look at the server takes one short turn of its loop for each part; families and text are made on
another thread, by prometheus-client, from a registry that belongs to this page alone. Nobody who
asks can hold anything: connections, the time of each and the length of a request are bounded, the
oldest connection makes room for a new one, one page is made at a time, and those who ask meanwhile
get that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from octavo.metrics import catalogue
from octavo.metrics.loop_lag import LoopLag
from octavo.metrics.metric import Server
from octavo.metrics.readings import Readings
from octavo.proto.endpoints import Listener, listen_streams
from octavo.runtime.address import join_address
from octavo.runtime.clock import Clock
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

PATH = "/metrics"
CONNECTIONS_MAX = 16
"""Connections at a time; for one more the oldest is dropped, which nobody reads any more."""
REQUEST_BYTES_MAX = 8 * 1024
"""Of a request's line and headers."""
CONNECTION_S = 10.0
"""Longest that one connection lives, whatever its client does."""

Source = Callable[[Readings], Awaitable[None]]
"""Adds what one part of the server knows; on the event loop, in short turns."""

_log = get_logger("octavo.metrics")


class _Latest(Collector):
    """Gives the library what the last look found."""

    def __init__(self) -> None:
        self.readings = Readings(())

    def collect(self) -> Iterator[Family]:
        return self.readings.families()


class _Request(NamedTuple):
    method: str
    path: str
    accept: str


class MetricsPage:
    """One server's page; several may live in one process.

    Args:
        version: of the software, for `octavo_build_info`.
    """

    def __init__(self, server: Server, *, version: str, clock: Clock) -> None:
        self._server = server
        self._version = version
        self._metrics = tuple(one for one in catalogue.of_server(server) if not one.by_library)
        self.lag = LoopLag(clock)
        self._sources: list[Source] = []
        self._failures = 0
        self._latest = _Latest()
        self._registry = CollectorRegistry()
        self._registry.register(self._latest)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._tasks = TaskOwner("metrics")
        self._connections: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        """Oldest first."""
        self._listener: Listener | None = None
        self._making: dict[str, asyncio.Task[tuple[bytes, str]]] = {}
        self._one = asyncio.Lock()
        self.address = ""
        """Where it listens, once it does."""

    def add(self, *sources: Source) -> None:
        """Show what these know as well."""
        self._sources += sources

    async def start(self, host: str, port: int | None) -> None:
        """Measure the loop, and listen unless `port` is None; raises ConfigError."""
        self._tasks.spawn(self.lag.run(), name="loop lag")
        if port is None:
            return
        self._listener = await listen_streams(self._accept, host, port, REQUEST_BYTES_MAX)
        self.address = join_address(host, self._listener.port)
        _log.info("metrics-page", address=self.address, path=PATH)

    async def close(self) -> None:
        """Listen no more, and drop who is being served."""
        if self._listener is not None:
            await self._listener.close()
        await self._tasks.close()

    @property
    def connections(self) -> int:
        """Connections that are being served."""
        return len(self._connections)

    # --- one connection -----------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._tasks.is_closed:
            writer.transport.abort()
            return
        if len(self._connections) >= CONNECTIONS_MAX:
            self._drop(next(iter(self._connections)))
        task = self._tasks.spawn(self._serve(reader, writer), name="connection")
        self._connections[writer] = task
        task.add_done_callback(lambda _: self._drop(writer))

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        """The connection ends now, with whatever it was not given yet."""
        task = self._connections.pop(writer, None)
        if task is not None:
            task.cancel()
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(CONNECTION_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # gone, or too slow: nothing is owed to it

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = _parsed(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return _reply(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if request is None:
            return _reply(HTTPStatus.BAD_REQUEST)
        if request.method not in ("GET", "HEAD"):
            return _reply(HTTPStatus.METHOD_NOT_ALLOWED, extra="Allow: GET, HEAD\r\n")
        if request.path == "/":
            text = f"<a href='{PATH}'>{PATH}</a>\n".encode()
            return _reply(HTTPStatus.OK, text, "text/html", head=request.method == "HEAD")
        if request.path != PATH:
            return _reply(HTTPStatus.NOT_FOUND)
        body, content_type = await self.text(request.accept)
        return _reply(HTTPStatus.OK, body, content_type, head=request.method == "HEAD")

    # --- the page -----------------------------------------------------------------------------

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The page as it is now, and its content type; in the form that `accept` asks for.

        Whoever asks while one of this form is made gets that one.
        """
        _, content_type = choose_encoder(accept)
        task = self._making.get(content_type)
        if task is None:
            task = self._tasks.spawn(self._make(accept), name="page")
            self._making[content_type] = task
            task.add_done_callback(lambda _: self._making.pop(content_type, None))
        return await asyncio.shield(task)

    async def _make(self, accept: str) -> tuple[bytes, str]:
        async with self._one:
            readings = await self._look()
            return await asyncio.to_thread(self._written, readings, accept)

    async def _look(self) -> Readings:
        readings = Readings(self._metrics)
        for source in self._sources:
            try:
                await source(readings)
            except Exception as error:  # noqa: BLE001 - the other parts are shown all the same
                self._failures += 1
                _log.error("metrics-left-out", source=repr(source), cause=repr(error))
        readings.add(catalogue.BUILD_INFO, 1, self._version, self._server)
        readings.add(catalogue.SCRAPE_FAILURES, self._failures)
        readings.add_histogram(catalogue.LOOP_LAG, self.lag.seconds)
        return readings

    def _written(self, readings: Readings, accept: str) -> tuple[bytes, str]:
        """On a thread: reads /proc, makes families and text."""
        self._latest.readings = readings
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


def _parsed(head: bytes) -> _Request | None:
    """The request; None when it is none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    accept = ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "accept":
            accept = value.strip()
    return _Request(words[0], words[1].partition("?")[0], accept)


def _reply(
    status: HTTPStatus,
    body: bytes | None = None,
    content_type: str = "text/plain; charset=utf-8",
    *,
    head: bool = False,
    extra: str = "",
) -> bytes:
    text = f"{status.phrase}\n".encode() if body is None else body
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {content_type}\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"{extra}Connection: close\r\n\r\n"
    )
    return lines.encode("latin-1") + (b"" if head else text)
