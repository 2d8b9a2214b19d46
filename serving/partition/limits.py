"""The bounds and intervals of one partition: from its topic's settings and the broker's. Pure."""

from __future__ import annotations

from typing import NamedTuple

from octavo.metadata.ledger_record import Quorum
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.open_segment import SnapshotLimits
from octavo.serving.retention import RetentionRule
from octavo.serving.segments import RollLimits
from octavo.serving.topic_config import TopicSettings

AGE_JITTER_MAX = 0.05
"""Part of a segment's age by which rolls of many partitions are spread (ML-5)."""


class Bounds(NamedTuple):
    """What one partition holds at most, and for how long."""

    pending_batches: int
    pending_bytes: int
    stall_s: float
    """Batches that wait longer make the partition say which bookies it lacks (A6)."""
    produce_timeout_s: float


class RetentionLimits(NamedTuple):
    """What is kept, and how often is looked for what is not."""

    rule: RetentionRule
    check_interval_ms: int
    goes_when_consumed: bool = False
    """A closed segment goes, too, when every registered group is past it (R5)."""


class Limits(NamedTuple):
    """The bounds and intervals of one partition."""

    bounds: Bounds
    roll: RollLimits
    snapshot: SnapshotLimits
    ack_quorum: int
    index_interval_bytes: int
    retention: RetentionLimits
    backlog_check_interval_ms: int = 60_000
    writer_lease_ms: int = 10_000
    spread: float = 0.0
    """0..1: where in an interval this partition begins."""


def quorum_of(settings: TopicSettings, config: BrokerConfig) -> Quorum:
    """The quorum of the partition's ledgers; a topic of few copies has no larger ensemble."""
    copies = settings.replication_factor
    ensemble = config.ensemble_size if copies == config.write_quorum else copies
    return Quorum(max(copies, ensemble), copies, settings.min_insync_replicas)


def limits_of(settings: TopicSettings, config: BrokerConfig, *, spread: float) -> Limits:
    """The limits of one partition; `spread`: 0 to 1, drawn for each."""
    return Limits(
        Bounds(
            config.partition_pending_batches,
            config.partition_pending_bytes,
            stall_s=config.stall_s,
            produce_timeout_s=config.produce_timeout_s,
        ),
        RollLimits(
            settings.segment_bytes,
            _segment_ms(settings),
            settings.replication_factor,
            age_jitter=AGE_JITTER_MAX * spread,
        ),
        SnapshotLimits(
            config.snapshot_interval_records,
            config.snapshot_interval_bytes,
            config.snapshot_interval_ms,
        ),
        ack_quorum=settings.min_insync_replicas,
        index_interval_bytes=config.index_interval_bytes,
        retention=RetentionLimits(
            settings.retention,
            config.retention_check_interval_ms,
            settings.goes_when_consumed,
        ),
        backlog_check_interval_ms=config.backlog_check_interval_ms,
        writer_lease_ms=config.writer_lease_ms,
        spread=spread,
    )


def _segment_ms(settings: TopicSettings) -> int:
    """What is in the open segment is not compacted (K2): it must end in time (K3)."""
    if settings.compacts:
        return min(settings.segment_ms, settings.max_compaction_lag_ms)
    return settings.segment_ms
