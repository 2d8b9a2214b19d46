"""How a client says who it is, and how it is told to use less: in the metadata of calls (X24)."""

from __future__ import annotations

from collections.abc import Iterable

CLIENT_ID_KEY = "octavo-client-id-bin"
"""gRPC carries values of keys with this end as bytes."""
CLIENT_ID_BYTES_MAX = 200
"""Of a client id as UTF-8."""
THROTTLE_MS_KEY = "octavo-throttle-ms"
"""In the trailing metadata of a unary call: for so long the client should make no other."""
UNCOUNTED_CALLS = frozenset(("Heartbeat", "FindCoordinator", "ClaimWriter", "Consumed", "Evict"))
"""No quota holds up what keeps a member in its group or a writer in its seat, nor what brokers ask
each other."""


def is_counted(call: str, size_bytes: int) -> bool:
    """Whether a unary call with a request of that size counts as a request of its client.

    Metadata of no topic is a sign of life: who gets none takes the broker for dead.
    """
    return call not in UNCOUNTED_CALLS and (size_bytes > 0 or call != "Metadata")


def throttle_ms_of(trailing: Iterable[tuple[str, str | bytes]] | None) -> int:
    """The pause that the trailing metadata of an answer ask for; 0: none."""
    for key, value in trailing or ():
        if key == THROTTLE_MS_KEY:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            return int(text) if text.isascii() and text.isdigit() else 0
    return 0
