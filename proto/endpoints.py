"""The one place that dials and listens: gRPC channels and servers, framed TCP, Unix sockets.

Owns the options of every channel and server, so that none forgets one (design.md §12), and the
right way to stop listening. What a connection needs besides an address (TLS, a token) comes in
here, once for all. Addresses are `host:port`, IPv6 in brackets.

    whom           dial                                   listen
    gRPC           open_channel, open_blocking_channel    grpc_server, bind
    framed wire    SocketNetwork.dial                     SocketNetwork.listen ─► Listener
    HTTP pages                                            listen_streams ─► Listener
    same machine                                          listen_unix   ─► Listener

A peer that is frozen or behind a half-open link sends nothing, not even an end. gRPC notices only
with all three of keepalive time, keepalive timeout and HTTP/2 ping timeout: the last one is 60 s
unless set, and it alone decides when a connection that answers no ping is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc

from octavo.proto.transport import AnyProtocol, MakeProtocol
from octavo.runtime.address import bare_host, join_address, split_address
from octavo.runtime.errors import ConfigError

ACCEPT_TURNS = 4
"""Turns of asyncio's loop from an accepted connection to the protocol that serves it."""

KEEPALIVE_TIME_MS = 2_000
"""A connection that received nothing for this long is pinged."""
KEEPALIVE_TIMEOUT_MS = 2_000
"""A ping without an answer for this long ends the connection: 4 s of silence at most, about as
long as the shortest session, so that a client is ready when somebody else takes over."""
MIN_PING_INTERVAL_MS = 500
"""Pings that come faster than this are strikes, of which servers count none."""

PENDING_REQUESTS_MAX = 20_000
"""Requests that have arrived and that the event loop has not begun to serve; further ones are
CANCELLED. gRPC's own 1,000 are too few where thousands of clients begin at one time."""

Options = tuple[tuple[str, int], ...]
ServeStream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
AcceptStream = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]

_LIVENESS: Options = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def channel_options(*extra: tuple[str, int], use_http_proxy: bool = False) -> Options:
    """Options of a channel, `extra` ones last.

    `http_proxy` and its relatives in the environment are not for the connections of a cluster, most
    of which are local: they count only with `use_http_proxy`.
    """
    return (
        *_LIVENESS,
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", int(use_http_proxy)),
        *extra,
    )


def server_options(*extra: tuple[str, int]) -> Options:
    """Options of a server: its clients may ping, and clients that fell silent are let go."""
    return (
        *_LIVENESS,
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server.max_pending_requests", PENDING_REQUESTS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_REQUESTS_MAX),
        *extra,
    )


def connection_bound(connections_max: int) -> Options:
    """Option of a server that takes so many connections and closes further ones at once."""
    return (("grpc.max_allowed_incoming_connections", connections_max),)


def open_channel(
    address: str,
    *extra: tuple[str, int],
    use_http_proxy: bool = False,
    interceptors: Sequence[grpc.aio.ClientInterceptor] | None = None,
) -> grpc.aio.Channel:
    """A plain channel to `address`; connects on first use."""
    return grpc.aio.insecure_channel(
        address,
        options=channel_options(*extra, use_http_proxy=use_http_proxy),
        interceptors=interceptors,
    )


def open_blocking_channel(address: str) -> grpc.Channel:
    """The same for a program without an event loop."""
    return grpc.insecure_channel(address, options=channel_options())


def grpc_server(*extra: tuple[str, int]) -> grpc.aio.Server:
    """A gRPC server without services or ports; `bind` and its `start` make it listen."""
    return grpc.aio.server(options=server_options(*extra))


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Take a port for a gRPC server, 0 for a free one; returns it. Raises ConfigError."""
    where = join_address(host, port)
    try:
        return server.add_insecure_port(where)
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {where}", hint="choose a free port, or --port 0"
        ) from error


class Listener:
    """A socket that takes connections, until `close`."""

    def __init__(self, server: asyncio.AbstractServer, port: int = 0) -> None:
        self._server = server
        self.port = port
        """Where it listens; 0 for a Unix socket."""

    async def close(self) -> None:
        """Take no more connections; each one that was accepted has met its protocol afterwards.

        asyncio's `Server.close` loses a connection that it accepted in this turn and has not begun
        to serve: nobody closes that socket, and its peer waits for ever. So the loop stops to
        accept first. uvloop serves a connection in the call that accepts it. A second call does
        nothing. Cancelled, it has closed all the same.
        """
        try:
            if isinstance(self._server, asyncio.Server):
                loop = asyncio.get_running_loop()
                for listening in self._server.sockets:
                    loop.remove_reader(listening.fileno())
                for _ in range(ACCEPT_TURNS):
                    await asyncio.sleep(0)
        finally:
            self._server.close()


class SocketNetwork:
    """The Network of programs that run: framed connections over TCP."""

    async def dial(
        self, address: str, protocol: Callable[[], AnyProtocol], what: str
    ) -> AnyProtocol:
        """Connect to `address`; the protocol that was made for it. Raises OSError, ConfigError.

        `what` names the address where it is wrong. The caller bounds the time it takes.
        """
        host, port = split_address(address, what=what)
        _, connection = await asyncio.get_running_loop().create_connection(protocol, host, port)
        return connection

    async def listen(self, protocol: MakeProtocol, host: str, port: int) -> Listener:
        """Make a protocol for each connection to `host`:`port`, 0 for a free one.

        Raises OSError.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, bare_host(host), port)
        return Listener(server, server.sockets[0].getsockname()[1])


async def listen_streams(
    accept: AcceptStream, host: str, port: int, line_bytes_max: int
) -> Listener:
    """Call `accept` for each connection to `host`:`port`, 0 for a free one; it owns the stream.

    Raises ConfigError.
    """
    try:
        server = await asyncio.start_server(accept, bare_host(host), port, limit=line_bytes_max)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {join_address(host, port)}: {error.strerror or error}",
            hint="choose a free port, or 0",
        ) from error
    return Listener(server, server.sockets[0].getsockname()[1])


async def listen_unix(serve: ServeStream, path: str, line_bytes_max: int) -> Listener:
    """Run `serve` for each connection to the Unix socket `path`; an abstract one begins with NUL.

    Raises OSError when somebody else listens there.
    """
    return Listener(await asyncio.start_unix_server(serve, path, limit=line_bytes_max))
