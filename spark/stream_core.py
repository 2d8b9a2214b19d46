"""What a stream reads next, decided from where it is and what is there (spec/spark.md §8). Pure.

Events are the questions of Spark's engine: where to begin, how far to go, what a batch consists of.
All that happens meanwhile is in the views: new partitions, ranges that retention removed, topics
that were deleted or created again. Nothing is left out in silence: what was promised and cannot be
read any more is an error, or with `failOnDataLoss=false` a warning in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.runtime.errors import ConfigError, OffsetOutOfRange, UnknownTopic
from octavo.spark.admission import Admission, Limits, Place, Stretch
from octavo.spark.options import StreamOptions
from octavo.spark.plan import (
    FileSplit,
    PartitionView,
    Split,
    TimeLookup,
    check_named,
    check_same_topic,
    cut,
    divide,
    resolve,
)
from octavo.spark.positions import Positions

_log = logging.getLogger("octavo.spark")


class Head(NamedTuple):
    """A topic in short: enough to see that nothing is new."""

    topic_id: str
    ends: Mapping[int, int]
    """Exclusive end of each partition."""


class StreamCore:
    """One stream; remembers what `Trigger.AvailableNow` may not pass, and the fair shares."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._read = options.read
        limits = Limits(
            options.max_offsets, options.min_offsets, options.max_bytes, options.max_delay_s
        )
        self._admission = Admission(limits)
        self._frozen: dict[Place, int] | None = None
        self._warned: dict[Place, str] = {}

    def begin(self, views: Sequence[PartitionView], find: TimeLookup) -> Positions:
        """Where a new query begins; raises ConfigError and OffsetOutOfRange as a batch read does.

        Offsets by partition must name all partitions: one that was left out would begin at the
        end, and what it holds would be missed in silence.
        """
        bound = self._read.start
        self._check_topics(Positions(), _ids(views))
        check_named(bound, views)
        for view in views:
            if bound.kind == "offsets" and bound.of(view.topic, view.partition) is None:
                raise ConfigError(
                    f"option {bound.option} does not name {view.topic}-{view.partition}",
                    hint="name every partition: -2 is its start, -1 its end",
                    option=bound.option,
                )
        start = {_place(view): resolve(self._read, bound, view, find) for view in views}
        return Positions().moved(start, _ids(views))

    def freeze(self, heads: Mapping[str, Head]) -> None:
        """`Trigger.AvailableNow`: from now on nothing behind these ends exists."""
        self._frozen = {
            (topic, partition): end
            for topic, head in heads.items()
            for partition, end in head.ends.items()
        }

    @property
    def is_frozen(self) -> bool:
        """Whether the query ends once it has reached what there was."""
        return self._frozen is not None

    def has_news(self, start: Positions, heads: Mapping[str, Head]) -> bool:
        """Whether anything waits behind `start`; raises as `advance` does for topics that went.

        A log that ends before `start` is news, too: `advance` says what that means.
        """
        self._check_topics(start, {topic: head.topic_id for topic, head in heads.items()})
        for topic, head in heads.items():
            for partition, end in head.ends.items():
                place = topic, partition
                position = start.of(topic, partition) or 0
                if self._exists(place) and (
                    topic not in start.next_offsets
                    or end < position < self._visible(place, position + 1)
                    or self._visible(place, end) > position
                ):
                    return True
        return False

    def advance(
        self,
        start: Positions,
        views: Sequence[PartitionView],
        *,
        everything: bool,
        now_s: float,
    ) -> Positions:
        """How far the next batch goes; `start` itself when there is nothing to do.

        `everything`: limits do not count (Trigger.Once). A topic that is new to the stream is only
        written down, at its start: the batch after that reads it, and can be repeated exactly.
        Raises OffsetOutOfRange, InconsistentTopicId, UnknownTopic.
        """
        self._check_topics(start, _ids(views))
        waiting: dict[Place, Stretch] = {}
        added: dict[Place, int] = {}
        for view in views:
            if not self._exists(_place(view)):
                continue
            if view.topic not in start.next_offsets:
                added[_place(view)] = view.earliest
                continue
            first, end = self._readable(view, start.of(view.topic, view.partition) or 0)
            end = self._visible(_place(view), end)
            if first < end:
                waiting[_place(view)] = Stretch(first, end, _weights(view))
        if everything:
            ends = {place: stretch.end for place, stretch in waiting.items()}
        elif not waiting or (not self.is_frozen and self._admission.held_back(waiting, now_s)):
            ends = {}
        else:
            ends = self._admission.ends(waiting)
        moved = {place: end for place, end in ends.items() if end > waiting[place].first}
        return start.moved(added | moved, _ids(views)) if added or moved else start

    def splits(
        self, start: Positions, end: Positions, views: Sequence[PartitionView]
    ) -> list[Split]:
        """What the batch from `start` to `end` reads: the same records each time it is asked.

        Raises OffsetOutOfRange where they are not all there any more.
        """
        self._check_topics(end, _ids(views))
        known = {_place(view): view for view in views}
        found: list[Split] = []
        for topic, partitions in sorted(end.next_offsets.items()):
            if topic not in start.next_offsets:
                continue  # only written down by this batch
            for partition, last in sorted(partitions.items()):
                first = start.of(topic, partition) or 0
                view = known.get((topic, partition))
                if first >= last:
                    continue
                if view is None:
                    self._lost(
                        f"the batch holds offsets {first} to {last - 1} of {topic}-{partition}, "
                        "which is gone or not subscribed any more",
                        (topic, partition),
                        first,
                    )
                    continue
                first, readable = self._readable(view, first)
                if readable < last:
                    self._beyond(view, last)
                found += self._pieces(view, first, min(last, readable))
        return divide(found, self._read)

    def _pieces(self, view: PartitionView, first: int, end: int) -> list[Split]:
        hole = view.hole
        if hole is not None and first < hole[1] and hole[0] < end:
            self._lost(
                f"offsets {hole[0]} to {hole[1] - 1} of {view.topic}-{view.partition} were removed "
                "before they were exported",
                _place(view),
                hole[0],
            )
        return cut(view, first, end, fail_on_data_loss=False)

    def _exists(self, place: Place) -> bool:
        return self._frozen is None or place in self._frozen

    def _visible(self, place: Place, end: int) -> int:
        return end if self._frozen is None else min(end, self._frozen.get(place, 0))

    def _check_topics(self, start: Positions, found: Mapping[str, str]) -> None:
        """A subscribed topic that the stream has read is still there, and still the same."""
        for topic in (*self._read.topics, *self._read.assign):
            if topic not in found and topic not in start.next_offsets:
                raise UnknownTopic(f"topic {topic!r} does not exist")
        for topic in start.next_offsets:
            if not self._read.wants(topic):
                continue  # no longer subscribed: its offsets are kept, nobody reads it
            if topic in found:
                check_same_topic(topic, start.topic_ids.get(topic), found[topic])
            elif self._read.fail_on_data_loss:
                raise UnknownTopic(
                    f"topic {topic!r} of this stream does not exist any more",
                    hint="what was left in it is lost: set failOnDataLoss=false to go on with the "
                    "other topics",
                )
            else:
                self._warn((topic, -1), f"topic {topic!r} of this stream does not exist any more")

    def _readable(self, view: PartitionView, first: int) -> tuple[int, int]:
        """What is there of the offsets from `first` on; the rest is an error, or logged."""
        if first < view.earliest:
            self._lost(
                f"offsets {first} to {view.earliest - 1} of {view.topic}-{view.partition} were "
                "removed before the stream read them",
                _place(view),
                first,
            )
        if first > view.latest:
            self._beyond(view, first)
            return first, first
        return max(first, view.earliest), view.latest

    def _beyond(self, view: PartitionView, offset: int) -> None:
        self._lost(
            f"the stream is at offset {offset} of {view.topic}-{view.partition}, which ends at "
            f"{view.latest}: is this the cluster and the folder that it read before?",
            _place(view),
            offset,
        )

    def _lost(self, what: str, place: Place, offset: int) -> None:
        if not self._read.fail_on_data_loss:
            self._warn(place, what)
            return
        raise OffsetOutOfRange(
            what,
            hint="read them from an export with the option path, or set failOnDataLoss=false to "
            "go on without them",
            topic=place[0],
            partition=place[1],
            offset=offset,
        )

    def _warn(self, place: Place, what: str) -> None:
        """Log it, but not at each of a hundred triggers a second."""
        if self._warned.get(place) != what:
            _log.warning("%s; the stream goes on (failOnDataLoss=false)", what)
        self._warned[place] = what


def _place(view: PartitionView) -> Place:
    return view.topic, view.partition


def _ids(views: Sequence[PartitionView]) -> dict[str, str]:
    return {view.topic: view.topic_id for view in views}


def _weights(view: PartitionView) -> tuple[tuple[int, float], ...]:
    """Stored bytes of an offset, file by file and ledger by ledger."""
    found: list[tuple[int, float]] = []
    for split in view.splits:
        if isinstance(split, FileSplit):
            first, end, size = split.first, split.end, split.checks.size_bytes
        else:
            first, size = split.segment.base_offset, split.segment.size_bytes
            end = split.segment.end_below(view.latest)
        found.append((split.end, size / max(end - first, 1)))
    return tuple(found)
