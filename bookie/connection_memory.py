"""What all connections of a bookie together may hold in memory (BP-2, limits before allocation).

Owns two budgets: replies that clients do not take, and frames that clients announced. Both are
bounded for the process, because a bound per connection times the number of connections is none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from octavo.proto.bookie_wire import EAGER_BYTES

ANNOUNCED_BYTES_MAX = 256 * 1024 * 1024
"""Memory given to frames on the strength of their length field, before their bytes arrive."""
EAGER_BYTES_MIN = 64 * 1024


class Sending(Protocol):
    """A connection, as far as its unsent bytes go."""

    def outstanding_bytes(self) -> int:
        """Bytes handed over but not yet accepted by the kernel."""
        ...


class UnsentReplies:
    """Replies that wait for their clients, over all connections.

    Args:
        max_bytes: above this no further ordinary read is executed.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._slow: set[Sending] = set()

    def sent(self, connection: Sending) -> None:
        """A reply was handed to the connection's transport."""
        if connection.outstanding_bytes():
            self._slow.add(connection)

    def forget(self, connection: Sending) -> None:
        """The connection ended."""
        self._slow.discard(connection)

    @property
    def full(self) -> bool:
        """True while clients owe so much reading that there is no memory for more replies."""
        if not self._slow:
            return False
        self._slow = {c for c in self._slow if c.outstanding_bytes()}
        return sum(c.outstanding_bytes() for c in self._slow) > self._max_bytes


def eager_bytes(connections: Collection[object]) -> int:
    """Size up to which one of so many connections gets a frame's memory at once."""
    share = ANNOUNCED_BYTES_MAX // max(1, len(connections))
    return max(EAGER_BYTES_MIN, min(EAGER_BYTES, share))
