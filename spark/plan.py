"""From segments, files and options to splits: what each Spark task reads (spec/spark.md §5, §7).

Pure. A *view* is one partition at one moment: its exported files, its segments, its readable range.
Where both hold an offset the exported file wins: it is one sequential read and asks nothing of the
cluster. Only the time options need to look inside a piece; that look-up is passed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from octavo.client.exports.checked_file import FileChecks
from octavo.client.exports.layout import folder_of, joined
from octavo.client.exports.log_view import PartitionLog
from octavo.client.exports.manifest import FileEntry, ManifestState
from octavo.proto.edges import EARLIEST, LATEST
from octavo.proto.segments import Segment
from octavo.runtime.errors import ConfigError, InconsistentTopicId, OffsetOutOfRange, StorageFailed
from octavo.spark.options import Bound, ReadOptions


@dataclass(frozen=True)
class FileSplit:
    """Offsets [first, end) of one exported file."""

    topic: str
    partition: int
    path: str
    first: int
    end: int
    whole: bool
    """True when the file holds nothing outside the range, so that no row needs to be compared."""
    max_timestamp_ms: int
    checks: FileChecks
    dense: bool = False
    """Whether the file holds a row for each of its offsets, as the manifest says."""

    @property
    def newest_ms(self) -> int | None:
        """No record of this piece is newer; None when that is not known."""
        return self.max_timestamp_ms


@dataclass(frozen=True)
class LedgerSplit:
    """Offsets [first, end) of one ledger, read from the bookies."""

    topic: str
    partition: int
    segment: Segment
    first: int
    end: int
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def dense(self) -> bool:
        """Whether the ledger holds a row for each of these offsets, as its broker says."""
        return self.segment.dense and not self.segment.compacted

    @property
    def newest_ms(self) -> int | None:
        """No record of this piece is newer, by its own or the broker's time; None: not known."""
        newest_ms, append_ms = self.segment.max_timestamp_ms, self.segment.last_append_ms
        if not self.segment.closed or newest_ms is None or append_ms is None:
            return None
        return max(newest_ms, append_ms)


Split = FileSplit | LedgerSplit


@dataclass(frozen=True)
class CompactedSplit:
    """What is read of one partition, to be left with the last record of each key."""

    pieces: tuple[Split, ...]
    """In offset order."""
    drop_tombstones: bool


@dataclass(frozen=True)
class PartitionView:
    """One partition as the planner sees it."""

    topic: str
    partition: int
    earliest: int
    latest: int
    """Exclusive end of what can be read now."""
    splits: tuple[Split, ...]
    """Whole pieces in offset order that cover [earliest, latest) without overlap."""
    hole: tuple[int, int] | None = None
    """Offsets that retention removed from the cluster before they were exported, [first, end)."""
    topic_id: str = ""
    """Tells the topic from a later one of the same name."""


TimeLookup = Callable[[PartitionView, int], int | None]
"""First offset whose record timestamp is at or after the time, None when there is none."""


def view_of(
    topic: str,
    partition: int,
    *,
    root: str = "",
    exported: ManifestState | None = None,
    log: PartitionLog | None = None,
    addresses: Mapping[str, str] | None = None,
    topic_id: str = "",
    tier_root: str = "",
    tiered: ManifestState | None = None,
) -> PartitionView:
    """Put files and segments of one partition side by side, each offset once.

    Args:
        tiered: files below `tier_root` that hold the segments that are on no bookie any more.
    """
    files = exported.of_partition(partition) if exported is not None else []
    pieces: list[Split] = [_file_split(topic, entry, root) for entry in files]
    in_files: list[tuple[int, int, bool]] = []
    hole: tuple[int, int] | None = None
    earliest = [entry.first for entry in files[:1]]
    latest = [entry.last + 1 for entry in files[-1:]]
    if log is not None:
        covered = (files[0].first, files[-1].last + 1) if files else (0, 0)
        for segment in log.segments:
            for first, end in _outside(segment, covered, log):
                if segment.in_ledger:
                    pieces.append(
                        LedgerSplit(topic, partition, segment, first, end, dict(addresses or {}))
                    )
                else:
                    in_files.append((first, end, segment.compacted))
        entries = tiered.of_partition(partition) if tiered is not None else []
        pieces += _tiered_splits(topic, entries, tier_root, in_files)
        if files and log.log_start > covered[1]:
            hole = (covered[1], log.log_start)
        earliest.append(log.log_start)
        latest.append(log.high_watermark)
    pieces.sort(key=lambda piece: piece.first)
    low, high = min(earliest, default=0), max(latest, default=0)
    return PartitionView(topic, partition, low, high, tuple(pieces), hole, topic_id)


def _tiered_splits(
    topic: str, entries: Sequence[FileEntry], root: str, parts: Sequence[tuple[int, int, bool]]
) -> Iterable[Split]:
    """The parts of files that hold these [first, end) in order; neighbours are read at once.

    The third value says whether offsets may be missing inside. Raises StorageFailed when files do
    not hold an offset that must be there.
    """
    joined: list[tuple[int, int, bool]] = []
    for first, end, has_gaps in parts:
        if joined and joined[-1][1] == first:
            before = joined.pop()
            first, has_gaps = before[0], has_gaps or before[2]
        joined.append((first, end, has_gaps))
    for first, end, has_gaps in joined:
        at = first
        for entry in entries:
            low, high = max(entry.first, first), min(entry.last + 1, end)
            if low < high:
                if low == at or has_gaps:
                    at = high
                yield narrow(_file_split(topic, entry, root), low, high)
        if at < end and not has_gaps:
            raise StorageFailed(
                f"no exported file below {root} holds offset {at} of topic {topic!r}",
                hint="its tree lost files: put them back, or read around them",
            )


def _file_split(topic: str, entry: FileEntry, root: str) -> FileSplit:
    path = joined(root, f"{folder_of(topic)}/{entry.file}")
    checks = FileChecks(entry.bytes, entry.rows, entry.block_crcs)
    newest = entry.max_timestamp_ms
    end = entry.last + 1
    dense = entry.rows == end - entry.first  # offsets ascend (§5), so none is missing
    return FileSplit(topic, entry.partition, path, entry.first, end, True, newest, checks, dense)


def _outside(
    segment: Segment, covered: tuple[int, int], log: PartitionLog
) -> Iterable[tuple[int, int]]:
    """The parts of a segment that no exported file covers, within the readable range."""
    low = max(segment.base_offset, log.log_start)
    high = segment.end_below(log.high_watermark)
    for first, end in ((low, min(high, covered[0])), (max(low, covered[1]), high)):
        if first < end:
            yield first, end


def plan(options: ReadOptions, views: Sequence[PartitionView], find: TimeLookup) -> list[Split]:
    """The splits of one read, in order of topic, partition and offset; may be empty.

    Raises ConfigError for offsets that contradict each other or name no partition of the topics,
    and OffsetOutOfRange for offsets outside the readable range (unless failOnDataLoss is false).
    """
    ordered = sorted(views, key=lambda view: (view.topic, view.partition))
    for bound in (options.start, options.end):
        check_named(bound, ordered)
    pieces: list[Split] = []
    for view in ordered:
        first = resolve(options, options.start, view, find)
        end = resolve(options, options.end, view, find)
        if first > end:
            raise ConfigError(
                f"{view.topic}-{view.partition} starts at offset {first} "
                f"({options.start.option}), after its end {end} ({options.end.option})",
                option=options.start.option,
                offset=first,
            )
        pieces.extend(cut(view, first, end, options.fail_on_data_loss))
    return divide(pieces, options)


def check_named(bound: Bound, views: Sequence[PartitionView]) -> None:
    """Raise unless the bound speaks of what is read.

    ConfigError for a topic or partition that is not read, InconsistentTopicId for offsets of
    another topic of the same name.
    """
    known = {(view.topic, view.partition) for view in views}
    topics = {view.topic: view.topic_id for view in views}
    for topic in {**bound.values, **bound.whole}:
        partitions = bound.values.get(topic, {})
        if topic in topics:
            check_same_topic(topic, bound.topic_ids.get(topic), topics[topic])
        else:
            raise ConfigError(
                f"option {bound.option} names topic {topic!r}, which is not read",
                hint="name only subscribed topics",
                option=bound.option,
                topic=topic,
            )
        for partition in partitions:
            if (topic, partition) not in known:
                raise ConfigError(
                    f"option {bound.option} names {topic}-{partition}, which is not read",
                    hint="name only partitions of the subscribed topics",
                    option=bound.option,
                    topic=topic,
                    partition=partition,
                )


def check_same_topic(topic: str, told: str | None, found: str) -> None:
    """Raise InconsistentTopicId when offsets are of another topic than the one that is there."""
    if told is not None and told != found:
        raise InconsistentTopicId(
            f"topic {topic!r} was deleted and created again: offsets are of topic {told}, the one "
            f"there is {found}",
            hint="old offsets mean nothing in the new topic: start a query with a new checkpoint",
            topic=topic,
        )


def resolve(options: ReadOptions, bound: Bound, view: PartitionView, find: TimeLookup) -> int:
    """The offset one bound means for one partition."""
    starting = bound is options.start
    value = bound.of(view.topic, view.partition)
    ends: dict[object, int] = {
        EARLIEST.value: view.earliest,
        LATEST.value: view.latest,
        EARLIEST.kafka_offset: view.earliest,
        LATEST.kafka_offset: view.latest,
    }
    if bound.kind in ends:
        return ends[bound.kind]
    if value is None:
        return view.earliest if starting else view.latest
    if bound.kind == "time":
        offset = find(view, value)
        if offset is not None:
            return offset
        if starting and options.missing_time == "error":
            raise OffsetOutOfRange(
                f"{view.topic}-{view.partition} has no record at or after {value} ms "
                f"({bound.option})",
                hint="set startingOffsetsByTimestampStrategy=latest to read nothing instead",
                option=bound.option,
                timestamp_ms=value,
            )
        return view.latest
    if value in ends:
        return ends[value]
    if not view.earliest <= value <= view.latest:
        if options.fail_on_data_loss:
            _out_of_range(bound, view, value)
        return min(max(value, view.earliest), view.latest)
    return value


def _out_of_range(bound: Bound, view: PartitionView, offset: int) -> NoReturn:
    raise OffsetOutOfRange(
        f"option {bound.option}: offset {offset} of {view.topic}-{view.partition} is outside "
        f"{view.earliest} to {view.latest}",
        hint="use an offset in this range, or set failOnDataLoss=false to read what is there",
        option=bound.option,
        topic=view.topic,
        partition=view.partition,
        offset=offset,
        earliest=view.earliest,
        latest=view.latest,
    )


def _check_hole(view: PartitionView, hole: tuple[int, int], first: int, end: int) -> None:
    if first < hole[1] and end > hole[0]:
        raise OffsetOutOfRange(
            f"offsets {hole[0]} to {hole[1] - 1} of {view.topic}-{view.partition} were removed by "
            f"retention before they were exported",
            hint="start above them, or set failOnDataLoss=false to read around them",
            option="failOnDataLoss",
            topic=view.topic,
            partition=view.partition,
            offset=hole[0],
        )


def cut(view: PartitionView, first: int, end: int, fail_on_data_loss: bool) -> list[Split]:
    """The pieces inside [first, end); borders are passed on only to those that they cut.

    Raises OffsetOutOfRange when some of it was removed and that is a failure.
    """
    if view.hole is not None and fail_on_data_loss:
        _check_hole(view, view.hole, first, end)
    return [
        narrow(piece, low, high)
        for piece in view.splits
        if (low := max(piece.first, first)) < (high := min(piece.end, end))
    ]


def narrow(piece: Split, first: int, end: int) -> Split:
    """The offsets [first, end) of a piece, which lie in it."""
    if isinstance(piece, FileSplit):
        whole = piece.whole and (first, end) == (piece.first, piece.end)
        return replace(piece, first=first, end=end, whole=whole)
    return replace(piece, first=first, end=end)


def divide(pieces: list[Split], options: ReadOptions) -> list[Split]:
    """Apply maxRecordsPerPartition, then minPartitions; both count offsets."""
    limit = options.max_records_per_partition
    parts = [1 if limit is None else -(-(p.end - p.first) // limit) for p in pieces]
    wanted = (options.min_partitions or 0) - sum(parts)
    # The piece with the most offsets per task is cut next, until enough tasks exist.
    heap = [(-(p.end - p.first) / parts[i], i) for i, p in enumerate(pieces)]
    heapq.heapify(heap)
    while wanted > 0 and heap and heap[0][0] < -1:
        _, i = heap[0]
        parts[i] += 1
        wanted -= 1
        heapq.heapreplace(heap, (-(pieces[i].end - pieces[i].first) / parts[i], i))
    out: list[Split] = []
    for piece, count in zip(pieces, parts, strict=True):
        size = piece.end - piece.first
        borders = [piece.first + size * k // count for k in range(count + 1)]
        for k in range(count):
            out.append(narrow(piece, borders[k], borders[k + 1]))
    return out


def compacted(pieces: Sequence[Split], options: ReadOptions) -> list[CompactedSplit]:
    """One split for each partition: only who sees all of its records knows the last of a key."""
    found: dict[tuple[str, int], list[Split]] = {}
    for piece in pieces:
        found.setdefault((piece.topic, piece.partition), []).append(piece)
    return [CompactedSplit(tuple(mine), options.drop_tombstones) for mine in found.values()]
