"""How long to wait before an owner is looked for again. Pure."""

from __future__ import annotations

from octavo.runtime.errors import BrokerUnavailable, NotLeader, OctavoError

SEARCH_PAUSE_S = 0.2
"""Longest pause between two looks for a partition whose owner does not answer: a successor is found
this soon."""
SEARCHES_PER_S = 200
"""Looks per second of one searcher while many partitions search: above it each waits longer."""


def search_pause_s(delay_s: float, error: OctavoError, searching: int) -> float:
    """Seconds to wait after `error`, where `delay_s` is the back-off and so many are searched for.

    Short while somebody may take over every moment, at most SEARCHES_PER_S looks in all.
    """
    if isinstance(error, BrokerUnavailable | NotLeader):
        delay_s = min(delay_s, SEARCH_PAUSE_S)
    return max(delay_s, searching / SEARCHES_PER_S)
