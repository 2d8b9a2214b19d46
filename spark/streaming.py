"""A stream's driver side: Spark's questions, answered by the core over what is there now.

Kept apart from `octavo.spark.source`, which every worker imports, and from where topics are: of
exported files alone (`ExportedWorld`, here) or of a cluster (`octavo.spark.stream_live`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.errors import OctavoError, RetriableError
from octavo.spark.exported import ExportedTopics
from octavo.spark.options import ReadOptions, StreamOptions
from octavo.spark.plan import PartitionView, Split, TimeLookup
from octavo.spark.positions import Positions
from octavo.spark.reading import file_time_lookup, views
from octavo.spark.stream_core import Head, StreamCore

PUBLISH_EVERY_S = 1.0
"""How often at most a query tells its group where it is."""
_log = logging.getLogger("octavo.spark")

Publish = Callable[[str, Positions], None]
"""Stores the positions of a stream as what a group has committed."""
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


class GroupProgress:
    """Shows a query as a consumer group: its position is what the group has committed (§7).

    Display only: a stream goes on from Spark's checkpoint, never from here. So what cannot be told
    now is told later, and ends no query; but a group that cannot be used at all ends it at once.
    """

    def __init__(self, group: str, publish: Publish) -> None:
        self._group = group
        self._publish = publish
        self._told: Positions | None = None
        self._tried_s: float | None = None

    def at(self, position: Positions, now_s: float, *, last: bool) -> None:
        """Every batch below `position` is committed; `last`: the query is about to end.

        Raises what a refused group raises (NonEmptyGroup, InvalidGroupId) if nothing was told yet.
        """
        early = self._tried_s is not None and now_s - self._tried_s < PUBLISH_EVERY_S
        if position == self._told or (early and not last):
            return
        self._tried_s = now_s
        try:
            self._publish(self._group, position)
        except OctavoError as error:
            if self._told is None and not isinstance(error, RetriableError):
                raise
            _log.warning("group %s does not show where the stream is: %s", self._group, error)
        else:
            self._told = position


class StreamPlanner:
    """One running query; its answers are what Spark writes down and compares.

    Methods raise OctavoError, which ends the query; Spark's calls come one at a time.
    """

    def __init__(
        self,
        options: StreamOptions,
        world: StreamWorld,
        *,
        publish: Publish | None = None,
        clock: Clock | None = None,
    ) -> None:
        group = options.group
        self._progress = GroupProgress(group, publish) if group and publish else None
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
        """The end of the next batch; `start` when there is nothing to do.

        Spark asks once the batch that ended at `start` is committed: so that is told to the group.
        """
        position = Positions.parse(start)
        self._heads = self._world.heads()
        end = position
        now_s = self._clock.monotonic()
        if self._core.has_news(position, self._heads):
            found = self._world.views()
            end = self._core.advance(position, found, everything=everything, now_s=now_s)
            self._planned = (end, found)
        if self._progress is not None:
            last = self._core.is_frozen and end == position
            self._progress.at(self._subscribed(position), now_s, last=last)
        return start if end == position else end.to_json()

    def _subscribed(self, position: Positions) -> Positions:
        """Without topics that are gone, or not read any more: a group cannot show those."""
        ids = {topic: head.topic_id for topic, head in self._heads.items()}
        there = {topic: inner for topic, inner in position.next_offsets.items() if topic in ids}
        return Positions(there, {topic: ids[topic] for topic in there})

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
