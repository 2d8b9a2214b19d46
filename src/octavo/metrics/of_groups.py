"""The part of the catalogue that tells of groups of consumers (M4, F163).

Shown by the broker that coordinates a group; `metrics_groups_max` bounds the series.
"""

from __future__ import annotations

from octavo.metrics.metric import BROKER, Metric


def _of_groups(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "gauge", BROKER, meaning, labels, setting="metrics_groups_max")


_PARTITION = ("group", "topic", "partition")
_TOPIC = ("group", "topic")
SUBSCRIPTION_LAG = _of_groups(
    "octavo_subscription_lag_messages",
    "records between what the group committed and the high watermark; where it committed nothing, "
    "all retained ones; shown by the coordinator of the group, not older than 5 s",
    *_PARTITION,
)
SUBSCRIPTION_LAG_SECONDS = _of_groups(
    "octavo_subscription_lag_seconds",
    "how long the first of them has been there, by its append time; 0 without lag",
    *_PARTITION,
)
SUBSCRIPTION_DRAIN = _of_groups(
    "octavo_subscription_drain_messages_per_second",
    "records that were consumed and committed, over the last 60 s",
    *_PARTITION,
)
SUBSCRIPTION_INFLOW = _of_groups(
    "octavo_subscription_inflow_messages_per_second",
    "records that were appended, over the last 60 s",
    *_PARTITION,
)
TOPIC_LAG = _of_groups(
    "octavo_subscription_topic_lag_messages",
    "as octavo_subscription_lag_messages, over all partitions of the topic; no series unless all "
    "are known",
    *_TOPIC,
)
TOPIC_LAG_SECONDS = _of_groups(
    "octavo_subscription_topic_lag_seconds",
    "of the partition that is behind for longest; no series unless all are known",
    *_TOPIC,
)
TOPIC_DRAIN = _of_groups(
    "octavo_subscription_topic_drain_messages_per_second",
    "over all partitions of the topic; no series unless all are known",
    *_TOPIC,
)
TOPIC_INFLOW = _of_groups(
    "octavo_subscription_topic_inflow_messages_per_second",
    "over all partitions of the topic; no series unless all are known",
    *_TOPIC,
)
TOPIC_UNKNOWN = _of_groups(
    "octavo_subscription_topic_unknown_partitions",
    "partitions of which the group's lag is not known, for their owner did not tell",
    *_TOPIC,
)
SUBSCRIPTION_CONSUMERS = _of_groups(
    "octavo_subscription_consumers", "members of the group; 0 until it expires", "group"
)
SUBSCRIPTION_LEFT_OUT = Metric(
    "octavo_subscription_left_out",
    "gauge",
    BROKER,
    "groups, topics of groups (no sums) and partitions of those (no series of their own) that are "
    "coordinated here and not shown, because of metrics_groups_max or because a broker follows "
    "10,000 partitions of groups at most",
    ("kind",),
)

ALL: tuple[Metric, ...] = tuple(one for one in globals().values() if isinstance(one, Metric))
"""In the order of this file."""
