"""Limits of one append stream, each with its name (spec/ledger.md §6.4, §6.13)."""

from __future__ import annotations

from dataclasses import dataclass

RESERVE_RECORDS = 1000
"""Fences and recovery are queued beyond the ordinary bound by this much (B-9, 6.13)."""
RESERVE_STEP_BYTES = 256 * 1024
"""Size of the segments that fences and recovery get when there is no space for a whole one."""
LAZY_ITEMS_MAX = 256
"""With so many items queued a group is written, even when none of them asks for a sync (RD-6)."""
LAZY_SHARE = 0.5
"""Lazy items may fill this part of the queue: they never cost an add its place (B-9)."""


@dataclass(frozen=True)
class JournalOptions:
    """Limits of one stream."""

    segment_bytes: int
    group_max_bytes: int
    queue_max_records: int
    queue_max_bytes: int
    page_cache_bytes: int | None = None
    """Written bytes that stay in the page cache; None leaves it to the operating system."""
    idle_mark_s: float = 1.0
    """B-15: an idle stream writes one empty batch after this long, which proves the batch before
    it."""
