"""Addresses as people write them and as servers tell them: `host:port`, IPv6 in brackets.

    name:7650   127.0.0.1:7650   [::1]:7650   [fe80::1%eth0]:7650

A bare IPv6 host is accepted wherever no port is expected behind it (`--host ::1`). Pure.
"""

from __future__ import annotations

from octavo.runtime.errors import ConfigError

PORT_MAX = 65535


def bare_host(host: str) -> str:
    """The host as sockets take it: without brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join_address(host: str, port: int) -> str:
    """`host:port`; a host with colons is an IPv6 literal and gets brackets."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def split_address(
    text: str, *, default_port: int | None = None, what: str = "address"
) -> tuple[str, int]:
    """Host (without brackets) and port of `text`.

    Raises ConfigError, naming `what`, for anything else: a URL, a missing port without a
    `default_port`, a port out of range, an IPv6 literal without brackets in front of a port.
    """
    scheme, found, rest = text.partition("://")
    if found:
        raise _refused(what, text, f"is a URL; write {rest or 'host:port'} without {scheme}://")
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise _refused(what, text, "has brackets that do not hold an IPv6 address")
        digits = tail[1:] if tail else None
    elif text.count(":") > 1:
        host, digits = text, None
        if default_port is None:
            raise _refused(what, text, "is IPv6 without brackets; write [address]:port")
    else:
        host, colon, tail = text.partition(":")
        digits = tail if colon else None
    if not host or any(letter.isspace() or letter == "/" for letter in host):
        raise _refused(what, text, "is not host:port")
    if digits is None:
        if default_port is None:
            raise _refused(what, text, "has no port; write host:port")
        return host, default_port
    if not (digits.isascii() and digits.isdecimal() and 0 < int(digits) <= PORT_MAX):
        raise _refused(what, text, f"is not host:port: ports are 1 to {PORT_MAX}")
    return host, int(digits)


def _refused(what: str, text: str, why: str) -> ConfigError:
    return ConfigError(f"{what} {text!r} {why}", hint="for example localhost:7650 or [::1]:7650")
