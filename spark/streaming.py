"""A stream's driver side: Spark's questions, answered by the core over what is there now.

Kept apart from `octavo.spark.source`, which every worker imports, and from where topics are: of
exported files alone (`ExportedWorld`, here) or of a cluster (`octavo.spark.stream_live`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from octavo.runtime.clock import Clock, SystemClock
from octavo.spark.exported import ExportedTopics
from octavo.spark.options import ReadOptions, StreamOptions
from octavo.spark.plan import PartitionView, Split, TimeLookup
from octavo.spark.positions import Positions
from octavo.spark.reading import file_time_lookup, views
from octavo.spark.stream_core import Head, StreamCore

Json = dict[str, dict[str, int] | dict[str, str]]
"""Offsets as Spark keeps them (`octavo.spark.positions`)."""


class StreamWorld(Protocol):
    """Where the topics of a stream are; asked anew for each trigger."""

    def heads(self) -> Mapping[str, Head]:
        """The subscribed topics in short, as cheaply as it goes."""
        ...

    def views(self) -> Sequence[PartitionView]:
        """All that a plan needs of each subscribed partition."""
        ...

    def find(self, view: PartitionView, time_ms: int) -> int | None:
        """First offset whose record timestamp is at or after the time."""
        ...

    def close(self) -> None:
        """Release connections; a second call does nothing."""
        ...


class ExportedWorld:
    """Topics of which only exported files are read."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._exported = ExportedTopics(options)
        self._find: TimeLookup = file_time_lookup()

    def heads(self) -> Mapping[str, Head]:
        """See `StreamWorld`."""
        return heads_of(self.views())

    def views(self) -> Sequence[PartitionView]:
        """See `StreamWorld`."""
        return views(self._options, self._exported.load(), {})

    def find(self, view: PartitionView, time_ms: int) -> int | None:
        """See `StreamWorld`."""
        return self._find(view, time_ms)

    def close(self) -> None:
        """See `StreamWorld`: there is nothing to release."""


def heads_of(found: Sequence[PartitionView]) -> dict[str, Head]:
    """The same in short."""
    ends: dict[str, dict[int, int]] = {}
    for view in found:
        ends.setdefault(view.topic, {})[view.partition] = view.latest
    ids = {view.topic: view.topic_id for view in found}
    return {topic: Head(ids[topic], inner) for topic, inner in ends.items()}


class StreamPlanner:
    """One running query; its answers are what Spark writes down and compares.

    Methods raise OctavoError, which ends the query; Spark's calls come one at a time.
    """

    def __init__(
        self, options: StreamOptions, world: StreamWorld, *, clock: Clock | None = None
    ) -> None:
        self._core = StreamCore(options)
        self._world = world
        self._clock = clock or SystemClock()
        self._initial: Positions | None = None
        self._heads: Mapping[str, Head] = {}
        self._planned: tuple[Positions, Sequence[PartitionView]] | None = None
        """The end of the batch last decided, and what it was decided on."""

    def initial(self) -> Json:
        """Where a new query begins: the same answer each time, for Spark asks twice."""
        if self._initial is None:
            self._initial = self._core.begin(self._world.views(), self._world.find)
        return self._initial.to_json()

    def latest(self, start: Json, *, everything: bool) -> Json:
        """The end of the next batch; `start` when there is nothing to do."""
        position = Positions.parse(start)
        self._heads = self._world.heads()
        if not self._core.has_news(position, self._heads):
            return start
        found = self._world.views()
        now_s = self._clock.monotonic()
        end = self._core.advance(position, found, everything=everything, now_s=now_s)
        self._planned = (end, found)
        return start if end == position else end.to_json()

    def reported(self) -> Json | None:
        """The ends of all partitions at the last trigger, for the progress of the query."""
        ends = {
            (topic, partition): end
            for topic, head in self._heads.items()
            for partition, end in head.ends.items()
        }
        ids = {topic: head.topic_id for topic, head in self._heads.items()}
        return Positions().moved(ends, ids).to_json() if ends else None

    def freeze(self) -> None:
        """Trigger.AvailableNow: what comes later is not for this run."""
        self._core.freeze(self._world.heads())

    def splits(self, start: Json, end: Json) -> list[Split]:
        """What a batch reads; after a restart Spark asks for one that it did not finish."""
        until = Positions.parse(end)
        planned = self._planned
        found = planned[1] if planned and planned[0] == until else self._world.views()
        return self._core.splits(Positions.parse(start), until, found)

    def close(self) -> None:
        """The query ended."""
        self._world.close()


def plan_stream_of_files(options: StreamOptions) -> StreamPlanner:
    """A stream that names only a `path`."""
    return StreamPlanner(options, ExportedWorld(options.read))
