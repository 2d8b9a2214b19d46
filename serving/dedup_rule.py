"""Which ids of records a topic remembers, and how many (X14). Pure values."""

from __future__ import annotations

from typing import NamedTuple

WINDOW_MS_MAX = 30 * 86_400_000
IDS_DEFAULT = 10_000
IDS_MAX = 50_000
"""1.6 MB in each snapshot; with as many producers as a partition remembers it fits one entry."""


class DedupRule(NamedTuple):
    """What a topic asks for."""

    window_ms: int
    """How long an id counts; 0: ids are not taken."""
    ids_max: int
    """Ids of one partition that count at a time."""
