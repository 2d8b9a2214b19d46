"""Planning a read of a cluster through one broker."""

from __future__ import annotations

from octavo.spark.exported import ExportedTopics
from octavo.spark.ledger_reading import read_split
from octavo.spark.live import describe_topics
from octavo.spark.options import ReadOptions
from octavo.spark.plan import Split, plan
from octavo.spark.reading import time_lookup, views

__all__ = ["plan_cluster", "read_split"]


def plan_cluster(options: ReadOptions) -> list[Split]:
    """Ask a broker once for all segments and cut what is asked for into splits."""
    exported = ExportedTopics(options).load()
    logs = describe_topics(options, exported)
    return plan(options, views(options, exported, logs), time_lookup(read_split))
