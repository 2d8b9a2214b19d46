"""Options of every gRPC channel and server: one place, so that none forgets one (design.md §12).

A peer that is frozen or behind a half-open link sends nothing, not even an end. gRPC notices only
with all three of keepalive time, keepalive timeout and HTTP/2 ping timeout: the last one is 60 s
unless set, and it alone decides when a connection that answers no ping is cut.
"""

from __future__ import annotations

import grpc

KEEPALIVE_TIME_MS = 2_000
"""A connection that received nothing for this long is pinged."""
KEEPALIVE_TIMEOUT_MS = 2_000
"""A ping without an answer for this long ends the connection: 4 s of silence at most, about as
long as the shortest session, so that a client is ready when somebody else takes over."""
MIN_PING_INTERVAL_MS = 500
"""Pings that come faster than this are strikes, of which servers count none."""

Options = tuple[tuple[str, int], ...]

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
        *extra,
    )


def open_channel(
    address: str, *extra: tuple[str, int], use_http_proxy: bool = False
) -> grpc.aio.Channel:
    """A plain channel to `address`; connects on first use."""
    return grpc.aio.insecure_channel(
        address, options=channel_options(*extra, use_http_proxy=use_http_proxy)
    )


def open_blocking_channel(address: str) -> grpc.Channel:
    """The same for a program without an event loop."""
    return grpc.insecure_channel(address, options=channel_options())
