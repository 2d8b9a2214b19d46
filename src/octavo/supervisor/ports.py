"""Choosing TCP ports for the processes of a local cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import psutil

from octavo.runtime.address import bare_host
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import IllegalStateError

# Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that a
# port found free now is not gone a moment later when the child binds it.
_LOWEST = 15_000
_HIGHEST = 32_000
_TRIES_MAX = 200


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    bare = bare_host(host)
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bare, port))
            probe.listen(1)
    except OSError:
        return False
    return True


def choose_free(host: str, taken: set[int], entropy: Entropy, preferred: int | None = None) -> int:
    """A port that is free on `host` and not in `taken`, the preferred one if possible; adds it to
    `taken`.
    """
    candidates = [] if preferred is None else [preferred]
    candidates += [_LOWEST + entropy.below(_HIGHEST - _LOWEST) for _ in range(_TRIES_MAX)]
    for port in candidates:
        if port not in taken and is_free(host, port):
            taken.add(port)
            return port
    raise IllegalStateError(
        f"no free port found on {host} in {_TRIES_MAX} tries", hint="is the host name right?"
    )


def require_free(host: str, ports: Iterable[int]) -> None:
    """Raise an error that names the process in the way when one of `ports` is taken."""
    for port in ports:
        if not is_free(host, port):
            raise IllegalStateError(
                f"port {port} is taken{_by_whom(port)}",
                hint="stop that process, choose another port with --port N, or let --port 0 choose",
            )


def _by_whom(port: int) -> str:
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
