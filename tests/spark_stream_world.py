"""Topics as a stream sees them, and an engine that drives one as Spark does.

`StreamTopics` is a `StreamWorld` in memory. `Engine` keeps what Spark keeps in a checkpoint: the
offsets of each batch before it runs, and whether it was committed; it can die at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from octavo.client.exports.log_view import PartitionLog
from octavo.proto.segments import Segment
from octavo.runtime.clock import ManualClock
from octavo.runtime.ids import LedgerId
from octavo.spark.options import StreamOptions
from octavo.spark.plan import PartitionView, Split, view_of
from octavo.spark.stream_core import Head
from octavo.spark.streaming import StreamPlanner, StreamWorld, heads_of

Delivered = dict[tuple[str, int], list[int]]
"""Offsets by topic and partition, in the order of their delivery."""
RECORD_BYTES = 100


@dataclass
class StreamTopic:
    """One topic: partitions of full segments of ten offsets and an open one."""

    topic_id: str
    ends: list[int]
    starts: list[int] = field(default_factory=list[int])

    def log(self, partition: int) -> PartitionLog:
        end, start = self.ends[partition], self.starts[partition]
        segments = [
            Segment(
                LedgerId(base + 1),
                base,
                base + 10 if base + 10 <= end else None,
                min(end - base, 10) * RECORD_BYTES,
                max_timestamp_ms=base + 10,
                last_append_ms=base + 10,
            )
            for base in range(start // 10 * 10, end + 1, 10)
        ]
        return PartitionLog(partition, start, end, tuple(segments))


class StreamTopics:
    """All topics of a cluster."""

    def __init__(self, subscribed: Callable[[str], bool] = lambda name: True) -> None:
        self.topics: dict[str, StreamTopic] = {}
        self.subscribed = subscribed
        self.made = 0
        self.asked_views = 0
        self.closed = False

    def create(self, name: str, partitions: int = 1) -> StreamTopic:
        self.made += 1
        topic = StreamTopic(f"{self.made:032x}", [0] * partitions, [0] * partitions)
        self.topics[name] = topic
        return topic

    def grow(self, name: str, partitions: int) -> None:
        topic = self.topics[name]
        for ends in (topic.ends, topic.starts):
            ends += [0] * (partitions - len(ends))

    def heads(self) -> Mapping[str, Head]:
        """StreamWorld."""
        return heads_of(self._views())

    def views(self) -> Sequence[PartitionView]:
        """StreamWorld."""
        self.asked_views += 1
        return self._views()

    def _views(self) -> list[PartitionView]:
        return [
            view_of(name, partition, log=topic.log(partition), topic_id=topic.topic_id)
            for name, topic in sorted(self.topics.items())
            if self.subscribed(name)
            for partition in range(len(topic.ends))
        ]

    def find(self, view: PartitionView, time_ms: int) -> int | None:
        """StreamWorld: each record has its offset for a time."""
        return max(view.earliest, time_ms) if time_ms < view.latest else None

    def close(self) -> None:
        """StreamWorld."""
        self.closed = True


def stream_options(**given: str) -> StreamOptions:
    common = {"octavo.bootstrap.servers": "h:1"}
    if not {"subscribe", "subscribePattern", "assign"} & given.keys():
        common["subscribe"] = "orders"
    return StreamOptions.parse({**common, **given})


class Engine:
    """A query and its checkpoint; `restart` is the process dying and beginning again."""

    def __init__(
        self,
        world: StreamWorld,
        make: Callable[..., StreamPlanner] = StreamPlanner,
        read: Callable[[Split], list[int]] = lambda split: list(range(split.first, split.end)),
        **given: Any,
    ) -> None:
        self.world = world
        self.make = make
        self.read = read
        self.options = stream_options(**given)
        self.clock = ManualClock()
        self.offsets: list[str] = []
        """The log of offsets: where it begins, then the end of each batch, as JSON text."""
        self.committed = 0
        self.delivered: Delivered = {}
        self.planner = self._planner()

    def _planner(self) -> StreamPlanner:
        return self.make(self.options, self.world, clock=self.clock)

    @property
    def position(self) -> Any:
        """The end of the newest batch, as a user reads it."""
        return json.loads(self.offsets[-1])

    def restart(self, **given: str) -> None:
        self.options = stream_options(**given) if given else self.options
        self.planner = self._planner()

    def trigger(self, *, once: bool = False, die: bool = False) -> bool:
        """One trigger; False when nothing was new. `die`: the batch ran and was not committed."""
        if not self.offsets:
            first = self.planner.initial()
            assert self.planner.initial() == first
            self.offsets.append(json.dumps(first))
        if self.committed < len(self.offsets) - 1:
            self._run(die)  # of an earlier life
            return True
        start = self.offsets[-1]
        end = json.dumps(self.planner.latest(json.loads(start), everything=once))
        if end == start:
            return False
        self.offsets.append(end)
        self._run(die)
        return True

    def _run(self, die: bool) -> None:
        start, end = self.offsets[-2], self.offsets[-1]
        batch: Delivered = {}
        for split in self.planner.splits(json.loads(start), json.loads(end)):
            batch.setdefault((split.topic, split.partition), []).extend(self.read(split))
        if die:
            return
        self.committed = len(self.offsets) - 1
        for place, found in batch.items():
            self.delivered.setdefault(place, []).extend(found)

    def run_dry(self, triggers_max: int = 1000) -> int:
        """Trigger until nothing is new; how many batches that took."""
        for count in range(triggers_max):
            if not self.trigger():
                return count
        raise AssertionError("the stream never comes to an end")


def world(**ends: int) -> StreamTopics:
    """One partition of each named topic with so many records."""
    made = StreamTopics()
    for name, end in (ends or {"orders": 100}).items():
        made.create(name).ends[0] = end
    return made


def earliest(topics: StreamTopics, **given: str) -> Engine:
    return Engine(topics, **cast("dict[str, Any]", {"startingOffsets": "earliest", **given}))
