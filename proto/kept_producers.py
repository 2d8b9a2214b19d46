"""Which producers a partition never forgets: those through which sinks publish (ADR 67).

An ordinary producer is forgotten a day after its last append (I10), because it ends with its
process. What a sink publishes may be sent again at any time, by whoever finishes it: so the owner
knows its producers for as long as the partition lives. The id says so itself: in the log, in each
snapshot, and to each later owner.
"""

from __future__ import annotations

_KEPT = 1 << 62
KEPT_MAX = 10_000
"""Of one partition. Beyond, new ones are refused: none is ever forgotten for another. Each takes
some hundred bytes in the snapshot that a ledger begins with."""
PRODUCER_EPOCH_MAX = (1 << 15) - 1
"""Of a producer (int16)."""


def kept_id(producer_id: int) -> int:
    """The id of a producer that is never forgotten, made of an ordinary one that nobody uses."""
    if not 0 <= producer_id < _KEPT:
        raise ValueError(f"no ordinary producer id: {producer_id}")
    return producer_id | _KEPT


def is_kept(producer_id: int) -> bool:
    """Whether a partition never forgets this producer."""
    return producer_id >= _KEPT


def ordinary_id(producer_id: int) -> int:
    """The ordinary id that a kept one was made of."""
    return producer_id & ~_KEPT
