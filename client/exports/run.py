"""One export run over closed ledgers, from any source of batches (spec/spark.md §5, P13).

A run describes the topic, compares it with the manifest, and copies what is missing: per
partition in offset order, partitions in parallel. Each group of ledgers is written, verified and
renamed before one manifest version names its files. Stopping anywhere loses at most the work on
unfinished groups; a run with nothing new changes nothing. Files that are gone or damaged are
written again from their ledgers first (`octavo.client.exports.repair`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar, cast

from octavo.client.exports.arrow_files import LedgerExporter, check_codec
from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.layout import folder_of
from octavo.client.exports.log_view import LogSource, PartitionLog, TopicLog
from octavo.client.exports.manifest import (
    Change,
    ExportInfo,
    FileEntry,
    Manifest,
    ManifestState,
)
from octavo.client.exports.places import tree_at
from octavo.client.exports.plan import Group, PartitionPlan, plan_partition
from octavo.client.exports.repair import OnChecked, damaged_files, repair_group, sharing
from octavo.client.exports.sweep import sweep
from octavo.client.exports.tree import Tree
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import CorruptEntry, InvariantViolation, VersionConflict

PARALLEL_PARTITIONS = 2
CHUNK_BYTES = 4 << 20
"""Stored bytes handed to the writing thread at once."""
REPLANS_MAX = 100
"""How often another exporter may overtake one partition in one run."""

T = TypeVar("T")


@dataclass(frozen=True)
class ExportProgress:
    """Told after every published group of ledgers."""

    partition: int
    ledgers: tuple[int, ...]
    rows: int
    bytes: int
    groups_done: int
    groups_total: int


OnProgress = Callable[[ExportProgress], None]


@dataclass(frozen=True)
class ExportReport:
    """What one run did."""

    topic: str
    root: str
    files: tuple[str, ...] = ()
    """Files this run published, relative to the topic's folder."""
    rows: int = 0
    bytes: int = 0
    ledgers: int = 0
    open_ledgers: int = 0
    """Ledgers not exported because they are still open; `admin.roll()` closes them."""
    lost: tuple[tuple[int, int, int], ...] = ()
    """(partition, first, end): offsets that retention removed before any export."""
    damaged: tuple[str, ...] = ()
    """Files found gone or damaged in this run."""
    unrepaired: tuple[str, ...] = ()
    """Those of them that could not be written again, for their ledgers are gone."""
    manifest_version: int = 0


async def export_log(
    source: LogSource,
    topic: str,
    to: str | os.PathLike[str],
    *,
    codec: str = "zstd",
    fmt: str = "arrow",
    progress: OnProgress | None = None,
    verify: bool = False,
    checked: OnChecked | None = None,
    tree: Tree | None = None,
    index: bool = False,
) -> ExportReport:
    """Copy the closed ledgers of `topic` that `to` does not hold yet, and mend what is damaged.

    Every run looks at the sizes of the exported files; `verify` reads all their bytes and tells
    `checked` of each file. `index` creates a tree whose files keep their batches' headers, so that
    they can stand for their ledgers (ADR 68); an existing tree keeps what it has. Cancellation
    keeps published groups and removes unfinished files.
    Raises ConfigError (codec, format, or `to` holds another topic), CorruptBatch, CorruptEntry and
    whatever `source` raises.
    """
    check_codec(codec, fmt)
    log = await source.describe(topic)
    place = tree or tree_at(to)
    manifest = Manifest(place, topic)
    info = manifest.create(
        ExportInfo(
            topic=topic,
            topic_id=log.topic_id,
            format=fmt,
            codec=codec,
            partitions=len(log.partitions),
            schema=str(arrow_schema(EXPORTED)),
            index=index,
        )
    )
    run = _Run(source, log, place, manifest, info, codec, progress)
    await run.mend(verify, checked)
    return await run.all_partitions()


class _Run:
    """One export run over all partitions."""

    def __init__(
        self,
        source: LogSource,
        log: TopicLog,
        tree: Tree,
        manifest: Manifest,
        info: ExportInfo,
        codec: str,
        progress: OnProgress | None,
    ) -> None:
        self._source = source
        self._log = log
        self._tree = tree
        self._manifest = manifest
        self._codec = codec
        self._info = info
        self._progress = progress
        self._slots = asyncio.Semaphore(PARALLEL_PARTITIONS)
        self._groups_done = 0
        self._groups_total = 0
        self._files: list[FileEntry] = []
        self._lost: list[tuple[int, int, int]] = []
        self._open_ledgers = 0
        self._damaged: list[str] = []
        self._unrepaired: list[str] = []

    async def mend(self, verify: bool, checked: OnChecked | None) -> None:
        """Write damaged files again from their ledgers, as far as these exist."""
        state = self._manifest.load()

        def look() -> list[FileEntry]:
            return damaged_files(self._tree, self._log.topic, state, deep=verify, tell=checked)

        damaged = await in_thread(look)
        self._damaged = [entry.file for entry in damaged]
        mended: set[str] = set()
        for entry in damaged:
            if entry.file in mended:
                continue
            together = sharing(state.files.values(), entry)
            mended.update(other.file for other in together)
            group = repair_group(self._log.partitions.get(entry.partition), together)
            if group is None:
                self._unrepaired += [e.file for e in together if e.file in self._damaged]
            else:
                self._replace(together, await self._write(group))

    def _replace(self, old: Sequence[FileEntry], new: Sequence[FileEntry]) -> None:
        """Publish the rewritten files; the same rows mostly have the same names, then none is."""
        if list(old) == list(new):
            return
        names = {entry.file for entry in old}

        def decide(state: ManifestState) -> Change | None:
            if not names <= state.files.keys():
                return None  # somebody else replaced them meanwhile
            return Change(add=tuple(new), remove=tuple(sorted(names)))

        self._manifest.publish(decide)

    async def all_partitions(self) -> ExportReport:
        state = self._manifest.load()
        for log in self._log.partitions.values():
            plan = plan_partition(log, state)
            self._groups_total += len(plan.groups)
            self._open_ledgers += plan.open_ledgers
            if plan.lost is not None:
                self._lost.append((log.partition, *plan.lost))
        try:
            async with asyncio.TaskGroup() as tasks:
                for log in self._log.partitions.values():
                    tasks.create_task(self._partition(log))
        except BaseExceptionGroup as group:
            raise _first_error(group) from None
        sweep(self._tree, self._manifest, self._log.topic)
        entries = sorted(self._files, key=lambda entry: (entry.partition, entry.first))
        return ExportReport(
            topic=self._log.topic,
            root=self._tree.where(folder_of(self._log.topic)),
            files=tuple(entry.file for entry in entries),
            rows=sum(entry.rows for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            ledgers=len({ledger for entry in entries for ledger in entry.ledgers}),
            open_ledgers=self._open_ledgers,
            lost=tuple(sorted(self._lost)),
            damaged=tuple(self._damaged),
            unrepaired=tuple(self._unrepaired),
            manifest_version=self._manifest.load().version,
        )

    async def _partition(self, log: PartitionLog) -> None:
        """Export one partition to its end; plans again whenever another exporter was faster."""
        async with self._slots:
            for _ in range(REPLANS_MAX):
                if await self._planned(log, plan_partition(log, self._manifest.load())):
                    return
        raise VersionConflict(
            f"{self._log.topic}-{log.partition} was overtaken {REPLANS_MAX} times by other exports"
        )

    async def _planned(self, log: PartitionLog, plan: PartitionPlan) -> bool:
        """Carry out a plan; False when the manifest moved on and the rest of the plan is void."""
        expected = plan.resume_at
        for group in plan.groups:
            entries = await self._write(group)
            if entries:
                if not self._publish(log.partition, expected, entries):
                    return False
                expected = entries[-1].last + 1
                self._files.extend(entries)
            self._groups_done += 1
            if self._progress is not None:
                self._progress(self._progress_of(group, entries))
        return True

    def _publish(self, partition: int, expected: int, entries: Sequence[FileEntry]) -> bool:
        published = False

        def decide(state: ManifestState) -> Change | None:
            nonlocal published
            published = state.next_offset(partition) == expected
            return Change(add=tuple(entries)) if published else None

        self._manifest.publish(decide)
        return published

    def _progress_of(self, group: Group, entries: Sequence[FileEntry]) -> ExportProgress:
        return ExportProgress(
            partition=group.partition,
            ledgers=tuple(segment.ledger_id for segment in group.segments),
            rows=sum(entry.rows for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            groups_done=self._groups_done,
            groups_total=max(self._groups_total, self._groups_done),
        )

    async def _write(self, group: Group) -> list[FileEntry]:
        """Write the files of one group; they have their final names but no reader knows them."""
        writer = LedgerExporter(
            self._tree,
            self._log.topic,
            group.partition,
            codec=self._codec,
            fmt=self._info.format,
            start=group.start,
            index=self._info.index,
        )
        try:
            for segment in group.segments:
                writer.begin_ledger(segment.ledger_id)
                await self._copy(segment, writer, group.start)
            return await in_thread(writer.finish)
        finally:
            await in_thread(writer.abort)

    async def _copy(self, segment: Segment, writer: LedgerExporter, start: int) -> None:
        chunk: list[StoredBatch] = []
        size = 0
        start, end = max(start, segment.base_offset), segment.end_offset
        if end is None:
            raise InvariantViolation("only closed ledgers are exported")
        async with aclosing(self._source.batches(segment, start, end)) as found:
            async for stored in found:
                chunk.append(stored)
                size += len(stored.batch)
                if size >= CHUNK_BYTES:
                    await in_thread(writer.add, chunk)
                    chunk, size = [], 0
        await in_thread(writer.add, chunk)
        # A compacted ledger was read to its last entry as well; its end may be a gap (K4).
        if writer.next_offset != end and not (segment.compacted and writer.next_offset < end):
            raise CorruptEntry(
                f"ledger {segment.ledger_id} ends at offset {writer.next_offset}, "
                f"its segment at {end}"
            )


async def in_thread(call: Callable[..., T], *args: object) -> T:
    """Run a blocking call in a thread and never leave it behind: cancellation waits for its end."""
    work = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # the cancellation is what the caller hears of
        raise


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first_error(cast("BaseExceptionGroup[BaseException]", first))
    return first
