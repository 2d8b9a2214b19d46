"""Which open ledgers to close, so that their records come into files in time. Pure.

Only closed ledgers are exported, and brokers close them by their own rules (`segment.ms`,
`segment.bytes`). A follower has a lag target: it asks for a ledger to be closed once that was seen
with records for so long, or is so large. An empty one is left open. What was seen is not kept over
a restart: then a record waits once more at most.
"""

from __future__ import annotations

from octavo.client.exports.log_view import TopicLog
from octavo.runtime.ids import LedgerId


class RollWatch:
    """Sees a topic again and again, and says which partitions are due.

    Args:
        open_s: how long a ledger may be seen with records; None: for ever.
        flush_bytes: the size at which it is due at once; None: none is.
    """

    def __init__(self, open_s: float | None, flush_bytes: int | None) -> None:
        self._open_s = open_s
        self._flush_bytes = flush_bytes
        self._seen: dict[int, tuple[LedgerId, float]] = {}
        """Partition -> its open ledger that holds records, and since when; one each at most."""

    def due(self, log: TopicLog, now_s: float) -> list[int]:
        """The partitions whose open ledger should be closed now."""
        found: list[int] = []
        seen: dict[int, tuple[LedgerId, float]] = {}
        for number, partition in sorted(log.partitions.items()):
            if not partition.segments or partition.segments[-1].closed:
                continue
            segment = partition.segments[-1]
            if partition.high_watermark <= segment.base_offset:
                continue
            ledger, since_s = self._seen.get(number, (segment.ledger_id, now_s))
            if ledger != segment.ledger_id:
                since_s = now_s
            seen[number] = (segment.ledger_id, since_s)
            late = self._open_s is not None and now_s - since_s >= self._open_s
            large = self._flush_bytes is not None and segment.size_bytes >= self._flush_bytes
            if late or large:
                found.append(number)
        self._seen = seen
        return found
