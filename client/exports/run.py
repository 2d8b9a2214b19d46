"""Export runs over closed ledgers, from any source of batches (spec/spark.md §5, P13).

A run describes the topic, compares it with the manifest, and copies what is missing: per
partition in offset order, partitions in parallel. Each group of ledgers is written, verified and
renamed before one manifest version names its files. Stopping anywhere loses at most the work on
unfinished groups; a run with nothing new changes nothing. Files that are gone or damaged are
written again from their ledgers first (`octavo.client.exports.repair`); small ones are joined
last (`octavo.client.exports.joining`). A table on top is told of each version
(`octavo.client.exports.delta_table`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

from octavo.client.exports.arrow_files import LedgerExporter, check_codec
from octavo.client.exports.columns import EXPORTED, arrow_schema
from octavo.client.exports.delta_table import DeltaLog, check_table, has_table
from octavo.client.exports.joining import Join, join_files, next_join
from octavo.client.exports.layout import folder_of
from octavo.client.exports.log_view import LogSource, PartitionLog, TopicLog
from octavo.client.exports.manifest import (
    Change,
    ExportInfo,
    FileEntry,
    Manifest,
    ManifestState,
)
from octavo.client.exports.places import check_outside, tree_at
from octavo.client.exports.plan import Group, PartitionPlan, plan_partition
from octavo.client.exports.repair import OnChecked, damaged_files, repair_group, sharing
from octavo.client.exports.reports import (
    ExportProgress,
    ExportReport,
    JoinProgress,
    OnProgress,
    RunOptions,
)
from octavo.client.exports.sweep import sweep
from octavo.client.exports.tree import LocalTree, Tree
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import CorruptEntry, InvariantViolation, VersionConflict

PARALLEL_PARTITIONS = 2
CHUNK_BYTES = 4 << 20
"""Stored bytes handed to the writing thread at once."""
REPLANS_MAX = 100
"""How often another exporter may overtake one partition in one run."""

T = TypeVar("T")


async def export_log(
    source: LogSource,
    topic: str,
    to: str | os.PathLike[str],
    *,
    codec: str = "zstd",
    fmt: str = "arrow",
    table: bool = False,
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
    export = TopicExport(
        source,
        topic,
        tree_at(to) if tree is None else tree,
        codec=codec,
        fmt=fmt,
        table=table,
        index=index,
    )
    return await export.run(RunOptions(progress=progress, verify=verify, checked=checked))


class TopicExport:
    """Runs over one topic and one tree, one after the other.

    A later run reads only what was published since. Nothing else is remembered between runs: each
    goes by the manifest.

    Args:
        table: keep a Delta table over the files. One that is there is kept in any case: it must
            not name files that joins removed.
        index: see `export_log`.
    """

    def __init__(
        self,
        source: LogSource,
        topic: str,
        tree: Tree,
        *,
        codec: str = "zstd",
        fmt: str = "arrow",
        table: bool = False,
        index: bool = False,
    ) -> None:
        check_codec(codec, fmt)
        if table:
            check_table(tree, topic, fmt)
        self.source = source
        self.topic = topic
        self.tree = tree
        self.codec = codec
        self.format = fmt
        self._manifest = Manifest(tree, topic)
        self._wants_index = index
        self._wants_table = table
        self._info: ExportInfo | None = None  # of the tree, once it was compared with the topic
        self._table: DeltaLog | None = None
        self._table_turn = asyncio.Lock()
        self._manifest_turn = asyncio.Lock()
        self.unfinished: ExportReport | None = None
        """What the last run did before it failed, if it did; it is published all the same."""

    async def run(self, options: RunOptions, log: TopicLog | None = None) -> ExportReport:
        """Copy what is new; `log`: the topic as it was described just now.

        Raises as `export_log`.
        """
        if log is None:
            log = await self.source.describe(self.topic)
        if self._info is None or self._info.topic_id != log.topic_id:
            async with self._manifest_turn:
                self._info = await in_thread(self._compare, log)
        run = _Run(self, self._info, log, options)
        self.unfinished = None
        try:
            await self.tell_table(look=options.upkeep)
            if options.upkeep:
                await run.mend()
            return await run.all_partitions()
        except BaseException:
            self.unfinished = run.so_far()
            raise

    def _compare(self, log: TopicLog) -> ExportInfo:
        """Raise ConfigError when the tree is one of another topic; make it when there is none."""
        if self._manifest.info() is None:
            check_outside(self.tree)
        info = self._manifest.create(
            ExportInfo(
                topic=self.topic,
                topic_id=log.topic_id,
                format=self.format,
                codec=self.codec,
                partitions=len(log.partitions),
                schema=str(arrow_schema(EXPORTED)),
                index=self._wants_index,
            )
        )
        if isinstance(self.tree, LocalTree) and (
            self._wants_table or has_table(self.tree, self.topic)
        ):
            self._table = DeltaLog(self.tree, self.topic, info.topic_id)
        return info

    async def loaded(self) -> ManifestState:
        """The newest state of the manifest. Of a large one it takes seconds: not on the loop."""
        async with self._manifest_turn:
            return await in_thread(self._manifest.load)

    async def publish(self, decide: Callable[[ManifestState], Change | None]) -> ManifestState:
        """See `Manifest.publish`; `decide` is called in a thread. The table is told next."""
        async with self._manifest_turn:
            state = await in_thread(self._manifest.publish, decide)
        await self.tell_table()
        return state

    async def sweep(self) -> None:
        """Delete what belongs to nobody any more."""
        async with self._manifest_turn:
            await in_thread(sweep, self.tree, self._manifest, self.topic)

    async def tell_table(self, *, look: bool = False) -> None:
        """Bring the table to the newest version; `look`: though nothing is new, compare them."""
        if self._table is not None:
            async with self._table_turn:
                await in_thread(self._table.catch_up, look)


class _Run:
    """One export run over all partitions."""

    def __init__(
        self, export: TopicExport, info: ExportInfo, log: TopicLog, options: RunOptions
    ) -> None:
        self._export = export
        self._info = info
        self._log = log
        self._tree = export.tree
        self._options = options
        self._slots = asyncio.Semaphore(PARALLEL_PARTITIONS)
        self._groups_done = 0
        self._groups_total = 0
        self._files: list[FileEntry] = []
        self._lost: list[tuple[int, int, int]] = []
        self._open_ledgers = 0
        self._joined = 0
        self._damaged: list[str] = []
        self._unrepaired: list[str] = []

    async def mend(self) -> None:
        """Write damaged files again from their ledgers, as far as these exist."""
        state = await self._export.loaded()
        deep, tell = self._options.verify, self._options.checked

        def look() -> list[FileEntry]:
            known = self._log.partitions.keys()
            return damaged_files(self._tree, self._log.topic, state, known, deep=deep, tell=tell)

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
                await self._replace(together, await self._write(group))

    async def _replace(self, old: Sequence[FileEntry], new: Sequence[FileEntry]) -> bool:
        """Publish the rewritten files; the same rows mostly have the same names, then none is.

        Whether it was this run that replaced them.
        """
        if [entry.file for entry in old] == [entry.file for entry in new]:
            return False
        names = {entry.file for entry in old}
        replaced = False

        def decide(state: ManifestState) -> Change | None:
            nonlocal replaced
            replaced = names <= state.files.keys()
            if not replaced:
                return None  # somebody else replaced them meanwhile
            return Change(add=tuple(new), remove=tuple(sorted(names)))

        await self._export.publish(decide)
        return replaced

    async def all_partitions(self) -> ExportReport:
        state = await self._export.loaded()
        busy: list[PartitionLog] = []
        for log in self._log.partitions.values():
            plan = plan_partition(log, state)
            if plan.groups or self._options.upkeep:
                busy.append(log)
            self._groups_total += len(plan.groups)
            self._open_ledgers += plan.open_ledgers
            if plan.lost is not None:
                self._lost.append((log.partition, *plan.lost))
        try:
            async with asyncio.TaskGroup() as tasks:
                for log in busy:
                    tasks.create_task(self._partition(log))
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        if self._options.upkeep:
            await self._export.sweep()
        return self.so_far((await self._export.loaded()).version)

    def so_far(self, version: int = 0) -> ExportReport:
        """What was done until now; `version` of the manifest, 0: it was not asked."""
        entries = sorted(self._files, key=lambda entry: (entry.partition, entry.first))
        return ExportReport(
            topic=self._log.topic,
            root=self._tree.where(folder_of(self._log.topic)),
            files=tuple(entry.file for entry in entries),
            file_count=len(entries),
            rows=sum(entry.rows for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            ledgers=len({ledger for entry in entries for ledger in entry.ledgers}),
            open_ledgers=self._open_ledgers,
            lost=tuple(sorted(self._lost)),
            damaged=tuple(self._damaged),
            unrepaired=tuple(self._unrepaired),
            joined=self._joined,
            manifest_version=version,
        )

    async def _partition(self, log: PartitionLog) -> None:
        """Export one partition to its end; plans again whenever another exporter was faster."""
        async with self._slots:
            for _ in range(REPLANS_MAX):
                if await self._planned(log, plan_partition(log, await self._export.loaded())):
                    return await self._join(log.partition)
        raise VersionConflict(
            f"{self._log.topic}-{log.partition} was overtaken {REPLANS_MAX} times by other exports"
        )

    async def _planned(self, log: PartitionLog, plan: PartitionPlan) -> bool:
        """Carry out a plan; False when the manifest moved on and the rest of the plan is void."""
        expected = plan.resume_at
        for group in plan.groups:
            if self._options.stopping():
                return True
            entries = await self._write(group)
            if entries:
                if not await self._publish(log.partition, expected, entries):
                    return False
                expected = entries[-1].last + 1
                self._files.extend(entries)
            self._groups_done += 1
            if self._options.progress is not None:
                self._options.progress(self._progress_of(group, entries))
        return True

    async def _join(self, partition: int) -> None:
        """Replace runs of small files by one file each, until no run is left."""
        target = self._options.join_bytes
        while target and not self._options.stopping():
            files = (await self._export.loaded()).of_partition(partition)
            join = next_join(files, target)
            if join is None:
                return
            made = await in_thread(join_files, self._tree, self._log.topic, join)
            if len(made) >= len(join.files):
                return  # nothing was won; they stay as they are
            if await self._replace(join.files, made):
                self._joined += len(join.files)
                self._tell_joined(join, made)

    def _tell_joined(self, join: Join, made: Sequence[FileEntry]) -> None:
        if self._options.joined is not None:
            self._options.joined(
                JoinProgress(
                    topic=self._log.topic,
                    partition=join.files[0].partition,
                    files=len(join.files),
                    rows=sum(entry.rows for entry in made),
                    bytes=sum(entry.bytes for entry in made),
                )
            )

    async def _publish(self, partition: int, expected: int, entries: Sequence[FileEntry]) -> bool:
        published = False

        def decide(state: ManifestState) -> Change | None:
            nonlocal published
            published = state.next_offset(partition) == expected
            return Change(add=tuple(entries)) if published else None

        await self._export.publish(decide)
        return published

    def _progress_of(self, group: Group, entries: Sequence[FileEntry]) -> ExportProgress:
        return ExportProgress(
            partition=group.partition,
            ledgers=tuple(segment.ledger_id for segment in group.segments),
            rows=sum(entry.rows for entry in entries),
            bytes=sum(entry.bytes for entry in entries),
            groups_done=self._groups_done,
            groups_total=max(self._groups_total, self._groups_done),
            topic=self._log.topic,
        )

    async def _write(self, group: Group) -> list[FileEntry]:
        """Write the files of one group; they have their final names but no reader knows them."""
        writer = LedgerExporter(
            self._tree,
            self._log.topic,
            group.partition,
            codec=self._export.codec,
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
        async with aclosing(self._export.source.batches(segment, start, end)) as found:
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


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of several, which says what went wrong; others mostly follow from it."""
    first = group.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return first_error(cast("BaseExceptionGroup[BaseException]", first))
    return first
