"""The part of the catalogue that tells of segments in exported files (F088).

Shown by each broker for the partitions with tiering that it serves.
"""

from __future__ import annotations

from octavo.metrics.metric import BROKER, Kind, Metric


def _of_tiering(name: str, kind: Kind, meaning: str) -> Metric:
    return Metric(name, kind, BROKER, meaning)


LOCAL_BYTES = _of_tiering(
    "octavo_tier_local_bytes",
    "gauge",
    "closed segments of partitions with tiering served here that are on bookies, one copy of each",
)
TIERED_BYTES = _of_tiering(
    "octavo_tier_bytes",
    "gauge",
    "closed segments of partitions served here that files hold, as they were in ledgers",
)
WAITING_BYTES = _of_tiering(
    "octavo_tier_waiting_bytes",
    "gauge",
    "closed segments of partitions with tiering served here that no file holds yet",
)
UNUSABLE = _of_tiering(
    "octavo_tier_unusable",
    "gauge",
    "1 while tier_root is not there, does not answer or is not this cluster's; the log says which",
)
COPIED_BYTES = _of_tiering(
    "octavo_tier_copied_bytes_total", "counter", "batches that this broker copied to files"
)
FREED_LEDGERS = _of_tiering(
    "octavo_tier_freed_ledgers_total", "counter", "ledgers that left the bookies for files"
)
REMOVED_FILES = _of_tiering(
    "octavo_tier_removed_files_total", "counter", "files that went by the start of their log"
)
FAILURES = _of_tiering(
    "octavo_tier_failures_total",
    "counter",
    "looks at a partition with tiering that ended with an error, and are begun anew",
)
READ_BYTES = _of_tiering(
    "octavo_tier_read_bytes_total", "counter", "batches that were read from files for readers"
)
READ_FAILURES = _of_tiering(
    "octavo_tier_read_failures_total", "counter", "reads of files that ended with READ_UNKNOWN"
)

ALL: tuple[Metric, ...] = tuple(one for one in globals().values() if isinstance(one, Metric))
"""In the order of this file."""
