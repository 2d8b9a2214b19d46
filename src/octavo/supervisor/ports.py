"""Choosing TCP ports for the processes of a local cluster."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

import psutil

from octavo.runtime.address import bare_host, join_address
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError

# Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that a
# port found free now is not gone a moment later when the child binds it.
_LOWEST = 15_000
_HIGHEST = 32_000
_TRIES_MAX = 200


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    return why_not(host, port) is None


def why_not(host: str, port: int) -> OSError | None:
    """What the system answers to a server that wants to listen there; None: it may."""
    bare = bare_host(host)
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bare, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def choose_free(host: str, taken: set[int], entropy: Entropy, preferred: int | None = None) -> int:
    """A port free on `host`, not in `taken` but added to it; the preferred one if possible."""
    candidates = [] if preferred is None else [preferred]
    candidates += [_LOWEST + entropy.below(_HIGHEST - _LOWEST) for _ in range(_TRIES_MAX)]
    for port in candidates:
        if port not in taken and is_free(host, port):
            taken.add(port)
            return port
    reason = why_not(host, 0)
    because = f": {reason.strerror or reason}" if reason is not None else ""
    raise IllegalStateError(
        f"no free port found on {host} in {_TRIES_MAX} tries{because}",
        hint="is the host name right?",
    )


def require_free(host: str, ports: Iterable[int]) -> None:
    """Raise an error that says why a server cannot listen on one of `ports`.

    It names the process in the way, or the right that is missing (PermissionError).
    """
    for port in ports:
        reason = why_not(host, port)
        if isinstance(reason, PermissionError):
            denied = PermissionError(reason.errno, "you may not listen on it", f"port {port}")
            denied.add_note("ports below 1024 need rights: choose one above with --port N")
            raise denied
        if reason is not None and reason.errno != errno.EADDRINUSE:
            raise IllegalStateError(
                f"cannot listen on {join_address(host, port)}: {reason.strerror or reason}",
                hint="is the host name right?",
            )
        if reason is not None:
            raise IllegalStateError(
                f"port {port} is taken{listener(port)}",
                hint="stop that process, choose another port with --port N, or let --port 0 choose",
            )


def listener(port: int) -> str:
    """` by NAME (pid N)`, as far as this user may know; else ""."""
    try:
        listeners = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return ""
    for found in listeners:
        if (
            found.status == psutil.CONN_LISTEN
            and found.laddr
            and found.laddr[1] == port
            and found.pid
        ):
            try:
                return f" by {psutil.Process(found.pid).name()} (pid {found.pid})"
            except psutil.Error:
                return f" by pid {found.pid}"
    return ""
