"""Which closed ledgers an export run copies, and which of them share files (spec/spark.md §5).

Pure. The only memory is the manifest: a partition goes on at its last exported offset.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.client.exports.log_view import PartitionLog
from octavo.client.exports.manifest import ManifestState
from octavo.proto.segments import Segment

SMALL_LEDGER_BYTES = 16 << 20
"""Adjacent ledgers are joined until together they reach this size."""


@dataclass(frozen=True)
class Group:
    """Adjacent ledgers of one partition that are exported together, in one manifest version."""

    partition: int
    segments: tuple[Segment, ...]
    size_bytes: int
    start: int = 0
    """Records below it are left out: they are exported, and lie in a compacted ledger too."""


@dataclass(frozen=True)
class PartitionPlan:
    """The work of one partition."""

    partition: int
    resume_at: int
    """What the manifest said; the plan is void once it says something else."""
    groups: tuple[Group, ...]
    open_ledgers: int
    """Ledgers left out because they are still open."""
    lost: tuple[int, int] | None
    """Offsets that retention removed before they were exported, [first, end)."""


def plan_partition(log: PartitionLog, state: ManifestState) -> PartitionPlan:
    """Group the closed ledgers that the manifest does not hold yet."""
    resume_at = state.next_offset(log.partition)
    done = state.ledgers(log.partition)
    wanted: list[Segment] = []
    still_open = 0
    for segment in log.segments:
        if segment.end_offset is None:
            still_open += 1
        elif still_open or segment.ledger_id in done:
            continue  # ledgers behind an open one wait: offsets ascend from file to file
        elif segment.end_offset > max(resume_at, segment.base_offset):
            wanted.append(segment)
    lost = None
    if resume_at and wanted and wanted[0].base_offset > resume_at and log.log_start > resume_at:
        lost = (resume_at, wanted[0].base_offset)
    groups = tuple(_group(log.partition, wanted, resume_at))
    return PartitionPlan(log.partition, resume_at, groups, still_open, lost)


def _group(partition: int, segments: list[Segment], start: int) -> list[Group]:
    groups: list[Group] = []
    pending: list[Segment] = []
    size = 0

    def close() -> None:
        nonlocal pending, size
        if pending:
            groups.append(Group(partition, tuple(pending), size, start))
        pending, size = [], 0

    for segment in segments:
        if segment.size_bytes >= SMALL_LEDGER_BYTES:
            close()
        pending.append(segment)
        size += segment.size_bytes
        if size >= SMALL_LEDGER_BYTES:
            close()
    close()
    return groups
