"""When the segments of a broker's partitions are copied, and when they leave the bookies (F088).

Looks at the partitions that are served here once in an interval, one after the other: one copy at a
time, at a bounded rate. The steps for a partition, each of which may be the last:

    copy what is closed -> list that files hold it -> read the files back, then put ledgers that
    local retention does not keep into the trash -> remove files below the log's start

The list alone says what is where, and only its owner changes it; a file is removed by the start of
a log, which never goes back. So a broker that lost a partition removes nothing that is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from octavo.metadata.partition_record import PartitionState
from octavo.metadata.topics import Topic
from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import OctavoError, StorageFailed, UnknownOutcome, UnknownTopic
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import DetachedPool
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.pace import Pace
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering.lists import due_objects
from octavo.serving.tiering.plan import TieredSizes, is_rewritten, sizes, to_copy, to_free
from octavo.serving.tiering.reads import TierReads
from octavo.serving.topic_config import TIERING

if TYPE_CHECKING:
    from octavo.client.exports.manifest import FileEntry
    from octavo.serving.tiering.copying import OwnedLog, PartitionCopier
    from octavo.serving.tiering.trees import TopicTree

THREADS = 2
SWEEP_INTERVAL_S = 900.0
"""How often one broker looks for files of a topic's tree that nobody needs any more."""
UNSOUND_INTERVAL_S = 600.0
"""Between two readings of files that are damaged and could not be written anew."""
DELETE_TIMEOUT_S = 60.0
"""A tree that takes longer is deleted behind whoever asked: one that hangs holds nobody up."""
IDLE_FILE_S = 120.0
"""A file that nobody read for so long is closed: one that is deleted meanwhile keeps its space."""

_log = get_logger("octavo.serving.tiering")


class TierRounds:
    """The copies of one broker.

    Args:
        shells: the partitions that are served here now.
    """

    def __init__(
        self,
        shells: Callable[[], Iterable[PartitionShell]],
        backend: LedgerBackend,
        reads: TierReads,
        *,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._shells = shells
        self._backend = backend
        self.reads = reads
        """Of what was copied."""
        self._config = config
        self._clock = clock
        self._entropy = entropy
        self._threads = DetachedPool("tier-work", THREADS, THREADS)
        """Of its own: a file system that hangs holds nobody else's threads, and no end."""
        self._pace = Pace(config.tier_bytes_per_s, clock)
        self._cleared: dict[PartitionName, int] = {}
        """The log start below which no file is named; of partitions that are served."""
        self._swept_s: dict[str, float] = {}
        """When a tree was looked through; of those of partitions that are served."""
        self._free_again_s: dict[PartitionName, float] = {}
        """Of partitions whose files were found damaged: when they are read again."""
        self.copied_bytes = 0
        """Of batches that were copied."""
        self.freed_ledgers = 0
        self.removed_files = 0
        self.failures = 0
        """Looks at a partition that ended with an error."""

    async def run(self) -> None:
        """For ever."""
        interval_s = self._config.tier_check_interval_ms / 1000
        await self._clock.sleep(interval_s * self._entropy.uniform(0.5, 1))
        while True:
            await self.round()
            await self._clock.sleep(interval_s)

    async def round(self) -> None:
        """Look once at each partition; at none while `tier_root` is not to be used."""
        if self.reads.root.problem is not None:  # told in the log once, by itself
            self.failures += 1
            return
        shells = [shell for shell in self._shells() if not shell.is_internal]
        for shell in shells:
            try:
                await self.look_at(shell)
            except OctavoError as error:  # the others are looked at all the same, this one again
                self.failures += 1
                _log.warning("partition-not-tiered", partition=str(shell.name), cause=error.cause)
        names = {shell.name for shell in shells}
        self._cleared = {one: at for one, at in self._cleared.items() if one in names}
        self._free_again_s = {one: at for one, at in self._free_again_s.items() if one in names}
        await self.reads.close_idle(self._clock.monotonic(), IDLE_FILE_S)

    async def close(self) -> None:
        """End; what hangs is not waited for."""
        await self._threads.close(0.0)

    def sizes(self) -> TieredSizes:
        """Of all partitions with tiering that are served here."""
        found = [one for shell in self._shells() if (one := sizes_of(shell)) is not None]
        return TieredSizes(
            sum(one.local_bytes for one in found),
            sum(one.tiered_bytes for one in found),
            sum(one.waiting_bytes for one in found),
        )

    async def look_at(self, shell: PartitionShell) -> None:
        """Do what is due for one partition.

        Raises NotLeader or UnknownTopic once it is not served here, StorageFailed when the tree
        cannot be used, and what reading ledgers and listing raise: then some of it may be done.
        """
        state = shell.tiers.state()
        has_files = any(one.object_version is not None for one in state.segments)
        if not (shell.settings.is_tiered or has_files or _has_removable(state)):
            return
        self.reads.root.require()
        tree = (await self.reads.files()).tree(shell.name)
        try:
            if shell.settings.is_tiered and not is_rewritten(state):
                await self._copy(shell, tree)
                await self._free(shell, tree)
            await self._remove(shell, tree)
        except UnknownTopic:  # what was copied behind its deletion goes too
            await self._threads.run(tree.delete)
            raise
        await self._sweep(tree)

    async def _copy(self, shell: PartitionShell, tree: TopicTree) -> None:
        waiting = to_copy(shell.tiers.state())
        if waiting:
            copier = await self._export(shell, tree)
            version, there = await copier.held(waiting)
            await self._threads.run(self.reads.root.check)  # it was there while it was copied to
            if there and shell.settings.is_tiered:  # else a cleaner may come, who needs ledgers
                await shell.tiers.copied(there, version)

    async def _export(
        self, shell: PartitionShell, tree: TopicTree, *, verify: bool = False
    ) -> PartitionCopier:
        log_class, copier_class = await asyncio.to_thread(_classes)
        tiers = shell.tiers
        log = log_class(shell.name, tiers.state, backend=self._backend, pace=self._pace)
        copier = copier_class(log, tree)
        version = max((one.object_version or 0 for one in tiers.state().segments), default=0)
        try:
            await copier.copy(version, verify=verify)
        finally:
            self.copied_bytes += log.size_bytes
        return copier

    async def _free(self, shell: PartitionShell, tree: TopicTree) -> None:
        opened = shell.tiers.open_part()
        due = to_free(
            shell.tiers.state(),
            shell.settings.local_retention,
            open_bytes=opened.size_bytes,
            open_snapshot=opened.snapshot,
            now_ms=self._clock.wall_ms(),
        )
        name, now_s = shell.name, self._clock.monotonic()
        if not due or now_s < self._free_again_s.get(name, 0.0):
            return
        sound = await self._sound(shell, due, tree)
        if sound:
            await self._threads.run(self.reads.root.check)
            self.freed_ledgers += await shell.tiers.free(sound)
        if len(sound) == len(due):
            self._free_again_s.pop(name, None)
            return
        _log.error("tiered-files-damaged", partition=str(name), root=tree.root)
        # What is written anew is read by the next look; what cannot be is not read all the time.
        wait_s = UNSOUND_INTERVAL_S if name in self._free_again_s else 0.0
        self._free_again_s[name] = now_s + wait_s
        await self._export(shell, tree, verify=True)  # the ledgers are there: written anew

    async def _sound(
        self, shell: PartitionShell, due: Sequence[Segment], tree: TopicTree
    ) -> list[LedgerId]:
        """Those of which each byte of each file was read back just now: no copy is left then."""
        checked: dict[FileEntry, bool] = {}
        sound: list[LedgerId] = []
        for segment in due:
            first = max(segment.base_offset, shell.log_start)
            try:
                files = await self._threads.run(tree.whole, shell.name.partition, segment, first)
            except StorageFailed as error:  # of this one: the others may go
                _log.error("tiered-segment-incomplete", cause=error.cause)
                continue
            for entry in files:
                if entry not in checked:
                    await self._pace.spend(entry.bytes)
                    checked[entry] = await self._is_sound(tree, entry)
            if files and all(checked[entry] for entry in files):
                sound.append(segment.ledger_id)
            elif segment.end_offset == segment.base_offset:
                sound.append(segment.ledger_id)  # it holds no record
        return sound

    async def _is_sound(self, tree: TopicTree, entry: FileEntry) -> bool:
        try:
            await self._threads.run(tree.check, entry)
        except StorageFailed as error:
            _log.error("tiered-file-damaged", file=entry.file, cause=error.cause)
            return False
        return True

    async def _remove(self, shell: PartitionShell, tree: TopicTree) -> None:
        state = shell.tiers.state()
        due = due_objects(state, self._clock.wall_ms(), self._config.trash_delay_ms)
        if not due and (
            _has_removable(state) or state.log_start_offset <= self._cleared.get(shell.name, 0)
        ):
            return
        start = state.log_start_offset
        listed = bool(due) or any(one.object_version is not None for one in state.segments)
        self.removed_files += await self._threads.run(
            tree.remove_below, shell.name.partition, start, listed
        )
        if due:
            await shell.tiers.objects_removed([one.ledger_id for one in due])
        self._cleared[shell.name] = start

    async def _sweep(self, tree: TopicTree) -> None:
        now_s = self._clock.monotonic()
        self._swept_s = {
            root: at for root, at in self._swept_s.items() if now_s - at < SWEEP_INTERVAL_S
        }
        if tree.root not in self._swept_s:
            self._swept_s[tree.root] = now_s
            await self._threads.run(tree.sweep)

    async def delete_tree(self, topic: Topic) -> None:
        """The files of a topic that is being deleted; again after a crash.

        Raises UnknownOutcome when they cannot be deleted now.
        """
        if TIERING not in topic.config:  # it never had any: what is set once stays set
            return
        root = self.reads.root
        if not root.path:
            _log.error("tiered-files-stay", topic=topic.name, topic_id=topic.topic_id.hex)
            return
        await root.look()
        try:
            root.require()
            files = await self.reads.files()
            tree = files.tree(PartitionName(topic.name, topic.topic_id, 0))
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._threads.run(tree.delete)
        except TimeoutError as error:
            raise UnknownOutcome(
                f"the exported files of topic {topic.name!r} are not deleted after "
                f"{DELETE_TIMEOUT_S:g} s, and may be later",
                hint="look at the file system of tier_root; a broker goes on by itself",
            ) from error
        except OctavoError as error:
            raise UnknownOutcome(
                f"the exported files of topic {topic.name!r} cannot be deleted now: {error.cause}",
                hint="look at the file system of tier_root",
            ) from error


def sizes_of(shell: PartitionShell) -> TieredSizes | None:
    """Where the bytes of a partition are; None: it has no tiering, or is not served any more."""
    try:
        state = shell.tiers.state()
    except OctavoError:
        return None
    has_files = any(one.object_version is not None for one in state.segments)
    if not has_files and not shell.settings.is_tiered:
        return None
    return sizes(state.segments, state.log_start_offset)


def _has_removable(state: PartitionState) -> bool:
    return any(one.has_objects for one in state.trash)


def _classes() -> tuple[type[OwnedLog], type[PartitionCopier]]:
    """Loads Arrow, which takes 0.3 s: not when a broker starts, and not on its loop."""
    module = import_module("octavo.serving.tiering.copying")
    log: type[OwnedLog] = module.OwnedLog
    copier: type[PartitionCopier] = module.PartitionCopier
    return log, copier
