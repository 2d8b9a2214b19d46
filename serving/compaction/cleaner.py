"""One pass over one partition, from its list to the new list (spec groups §9).

Reads the dirty segments for their keys, then everything from the start of the log, and replaces the
segments that lose records, a few at a time: each replacement is one published list and valid by
itself, because what it takes away comes again further on. How far the log is clean is listed last.
Whatever fails, the list is one of those; what was written in vain stands in the trash (K7).

Decisions are `Cleaning`'s, made on a thread; the rate of bytes read and written is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.telemetry import get_logger
from octavo.serving.compaction.cleaning import Cleaning, Scope
from octavo.serving.compaction.marks import after_pass, tombstones_below
from octavo.serving.compaction.output import CleanedSegment, Place
from octavo.serving.compaction.plan import CompactionRule, cleanable
from octavo.serving.compaction.reading import chunks, snapshot_at, total_bytes
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.pace import Pace
from octavo.serving.partition.rewrites import ListRewrites

GROUP_SEGMENTS_MAX = 100
"""Segments that one replacement takes together."""

_log = get_logger("octavo.serving.compaction")


class PassReport(NamedTuple):
    """What a pass did."""

    cleaned_to: int
    records_seen: int = 0
    records_removed: int = 0
    keys: int = 0
    replaced: int = 0
    """Segments that are gone."""
    is_short: bool = False
    """The map of keys was full: the next pass goes on where this one ended."""
    is_stale: bool = False
    """Segments were trimmed while they were cleaned, or the topic is not compacted any more: the
    next pass begins anew."""


class PartitionCleaner:
    """Runs one pass; a new one for each.

    Args:
        memory_bytes: of the map of keys.
        pace: shared by the passes of a broker.
        is_wanted: whether the topic still compacts; a pass ends where it does not.
    """

    def __init__(
        self,
        rewrites: ListRewrites,
        rule: CompactionRule,
        *,
        backend: LedgerBackend,
        memory_bytes: int,
        index_interval_bytes: int,
        pace: Pace,
        clock: Clock,
        is_wanted: Callable[[], bool],
    ) -> None:
        self._rewrites = rewrites
        self._rule = rule
        self._backend = backend
        self._memory_bytes = memory_bytes
        self._index_interval_bytes = index_interval_bytes
        self._pace = pace
        self._clock = clock
        self._is_wanted = is_wanted
        self._replaced = 0

    async def run(self) -> PassReport:
        """Clean what can be cleaned now.

        Raises NotLeader or UnknownTopic once the partition is not served here, CorruptBatch, and
        what reading, writing and listing raise: then some of it may be done.
        """
        now_ms = self._clock.wall_ms()
        listed = self._rewrites.listed()
        segments = cleanable(listed, self._rule, now_ms)
        if not segments:
            return PassReport(listed.cleaned_to)
        below = tombstones_below(listed.marks, self._rule.delete_retention_ms, now_ms)
        end = segments[-1].end_offset or 0
        dirty_from = max(listed.cleaned_to, listed.log_start)
        scope = Scope(listed.log_start, dirty_from, max(end, dirty_from), below)
        cleaning = Cleaning(scope, self._memory_bytes)
        await self._learn(cleaning, segments)
        within = [one for one in segments if one.base_offset < cleaning.end]
        rest = [*segments[len(within) :], *listed.closed[len(segments) :]]
        if listed.follows is not None:
            rest.append(listed.follows)
        is_whole = await self._clean(cleaning, within, rest[0])
        if is_whole:
            marks = after_pass(
                listed.marks,
                removed_below=below,
                end_offset=cleaning.end,
                retention_ms=self._rule.delete_retention_ms,
                now_ms=self._clock.wall_ms(),
            )
            await self._rewrites.cleaned(max(cleaning.end, listed.cleaned_to), marks)
        report = PassReport(
            cleaning.end if is_whole else listed.cleaned_to,
            cleaning.records_seen,
            cleaning.records_removed,
            cleaning.keys,
            self._replaced,
            cleaning.is_full,
            not is_whole,
        )
        _log.info("partition-cleaned", partition=str(self._rewrites.name), **report._asdict())
        return report

    # --- learning -----------------------------------------------------------------------------

    async def _learn(self, cleaning: Cleaning, segments: Sequence[Segment]) -> None:
        dirty_from = cleaning.scope.dirty_from
        for segment in segments:
            if (segment.end_offset or 0) <= dirty_from:
                continue
            async with aclosing(chunks(self._backend, segment, dirty_from)) as found:
                async for batches in found:
                    self._rewrites.listed()  # raises once the partition is gone
                    await self._pace.spend(total_bytes(batches))
                    if not await asyncio.to_thread(cleaning.learn, batches):
                        return

    # --- cleaning -----------------------------------------------------------------------------

    async def _clean(
        self, cleaning: Cleaning, segments: Sequence[Segment], following: Segment
    ) -> bool:
        """Replace what loses records, in order; False: a segment was trimmed meanwhile, or the
        topic is not compacted any more."""
        at = 0
        while at < len(segments):
            if not self._is_wanted():
                return False
            rest = [*segments[at:], following]
            if self._stands_alone(rest) and not await self._loses(cleaning, rest[0]):
                at += 1
                continue
            count = await self._replace(cleaning, rest)
            if not count:
                return False
            self._replaced += count
            at += count
        return True

    def _stands_alone(self, rest: Sequence[Segment]) -> bool:
        """Whether the first of them would not be put together with the one behind it."""
        if len(rest) < 3:  # the last one is not cleaned
            return True
        return rest[0].size_bytes + rest[1].size_bytes > self._rule.segment_bytes

    async def _loses(self, cleaning: Cleaning, segment: Segment) -> bool:
        """Whether a segment loses any record; it is read up to the first that does."""
        async with aclosing(chunks(self._backend, segment, 0)) as found:
            async for batches in found:
                self._rewrites.listed()
                await self._pace.spend(total_bytes(batches))
                if await asyncio.to_thread(cleaning.removes, batches):
                    return True
        return False

    async def _replace(self, cleaning: Cleaning, rest: Sequence[Segment]) -> int:
        """Write one segment for the first of `rest`, as many as fit; how many it replaced.

        The last of `rest` is not cleaned. 0: one of them is not listed any more.
        """
        writer = await self._rewrites.new_ledger()
        output = CleanedSegment(writer, rest[0].base_offset, self._index_interval_bytes)
        try:
            count = 0
            while count < len(rest) - 1 and (not count or self._fits(output, rest[count], count)):
                await self._copy(cleaning, rest[count], output)
                count += 1
            old = rest[:count]
            new = await self._finish(output, old, rest[count])
            is_listed = await self._rewrites.replace([one.ledger_id for one in old], new)
        except BaseException:
            output.abandon()
            raise
        finally:
            self._rewrites.release(output.ledger_id)
        return count if is_listed else 0

    def _fits(self, output: CleanedSegment, segment: Segment, count: int) -> bool:
        room = self._rule.segment_bytes - output.size_bytes
        return segment.size_bytes <= room and count < GROUP_SEGMENTS_MAX

    async def _copy(self, cleaning: Cleaning, segment: Segment, output: CleanedSegment) -> None:
        async with aclosing(chunks(self._backend, segment, 0)) as found:
            async for batches in found:
                self._rewrites.listed()
                left = await asyncio.to_thread(cleaning.clean, batches)
                written = sum(len(one.payload) for one in left)
                await self._pace.spend(total_bytes(batches) + written)
                for one in left:
                    await output.add(one)

    async def _finish(
        self, output: CleanedSegment, old: Sequence[Segment], following: Segment
    ) -> Segment:
        end = old[-1].end_offset or 0
        snapshot = await snapshot_at(
            self._backend,
            self._rewrites.name,
            end,
            last=old[-1],
            following=following,
            figures=output.figures,
        )
        firsts = [one.first_append_ms for one in old if one.first_append_ms is not None]
        lasts = [one.last_append_ms for one in old if one.last_append_ms is not None]
        place = Place(old[0].base_offset, end, min(firsts, default=None), max(lasts, default=None))
        return await output.finish(place, snapshot)
