"""What is wrong with a request by itself, whoever sends it, and the bounds that say so."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.proto.group_records import Subscription
from octavo.runtime.errors import ConfigError
from octavo.serving.groups.assignors import DEFAULT_ASSIGNOR, named
from octavo.serving.groups.core import GroupLimits
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import OffsetToCommit, Refusal


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """Bounds of the groups of one partition."""

    group: GroupLimits = field(default_factory=GroupLimits)
    groups_max: int = 100_000
    name_bytes_max: int = 1_000
    """Of ids of groups, members and instances."""
    metadata_bytes_max: int = 4_096
    """Of one committed offset (O2)."""
    batch_bytes_max: int = 1 << 20
    """Beyond it a batch takes no further event; one event is divided only beyond
    `append_queue.EVENT_BYTES_MAX`."""
    unstored_max: int = 20_000
    """Records and answers that wait; beyond it requests are THROTTLED."""
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_check_interval_ms: int = 600_000


def is_name(name: str, limits: PartitionLimits) -> bool:
    """Whether it may be the id of a group, a member or an instance."""
    return 0 < len(name.encode(errors="replace")) <= limits.name_bytes_max


def makes_sense(subscription: Subscription | None) -> bool:
    """Whether a coordinator can do what the subscription says."""
    if subscription is None:
        return True
    try:
        named(subscription.assignor or DEFAULT_ASSIGNOR)
    except ConfigError:
        return False
    return 0.0 < subscription.rebalance_timeout_s < float("inf")


def offset_error(
    one: OffsetToCommit, limits: PartitionLimits, directory: TopicDirectory
) -> Refusal | None:
    """O2; the directory knows every topic of the request that exists."""
    if one.offset < 0:
        return Refusal.INVALID_COMMIT_OFFSET
    if len(one.metadata.encode(errors="replace")) > limits.metadata_bytes_max:
        return Refusal.OFFSET_METADATA_TOO_LARGE
    if not directory.has(one.key.topic, one.key.slot):
        return Refusal.UNKNOWN_TOPIC_OR_PARTITION
    return None
