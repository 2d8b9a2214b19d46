"""What an analytical reader needs to know of a topic: its segments, and how to get their batches.

These are plain values that travel from the planner to workers and the exporter. They know neither
the broker nor the bookies: `octavo.spark.live` fills them from a cluster, tests fill them from
memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.proto.segments import Segment, StoredBatch, StoredHeader


@dataclass(frozen=True)
class PartitionLog:
    """One partition: its retained range and the segments that hold it, in offset order."""

    partition: int
    log_start: int
    high_watermark: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class TopicLog:
    """A topic at one moment."""

    topic: str
    topic_id: str
    """Hex; tells a topic from a later one of the same name."""
    partitions: Mapping[int, PartitionLog]
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    """bookie id -> address of the framed protocol."""
    tier_tree: str = ""
    """Root of the exported tree that holds what is on no bookie any more (F088); empty: none."""


class BatchSource(Protocol):
    """The seam between ledgers and everything that turns batches into columns."""

    def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """Data batches of `segment` in offset order, from the one that holds `start_offset`.

        Entries that are no batches (snapshot, footer) are left out; control batches are not. A
        closed segment is read to its last entry, an open one until `visible_end` is reached. Every
        entry has been verified (INV-3). Ends with a typed error rather than with fewer batches.
        """
        ...

    def headers(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[Sequence[StoredHeader], None]:
        """The headers of the same batches, some at a time; bodies are not opened."""
        ...


class LogSource(BatchSource, Protocol):
    """A cluster as the exporter sees it."""

    async def describe(self, topic: str) -> TopicLog:
        """The topic's segments now; raises UnknownTopic."""
        ...


class FollowSource(LogSource, Protocol):
    """A cluster as an exporter sees it that follows topics."""

    async def roll(self, topic: str, partition: int) -> None:
        """Have the open segment closed, if it holds batches."""
        ...

    async def topics(self) -> list[str]:
        """The names of all topics now."""
        ...
