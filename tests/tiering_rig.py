"""A partition with tiering whose every step, those of the tree too, can fail or be the last (F088).

Steps are those of `tests.compaction_rig`, and each system call below the tree's root. A broker that
died there does nothing any more: its tree refuses, its lists hang.
"""

from __future__ import annotations

import errno
import pathlib
from collections.abc import Callable
from typing import cast

from octavo.client.exports.manifest import FOLDER
from octavo.client.exports.tree import LocalTree
from octavo.metadata.tier import TierCatalog
from octavo.runtime.errors import OctavoError
from octavo.serving.compaction.rounds import CompactionRounds
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering.rounds import TierRounds
from tests.compaction_rig import Steps, StruckBroker, write
from tests.serving_rig import NAME, Rig


class StruckTree(LocalTree):
    """Every system call that changes something is a step."""

    steps: Steps

    def _step(self, name: str, call: Callable[[], None]) -> None:
        steps = self.steps
        if steps.killed.is_set():
            raise OSError("its broker is dead")
        if not steps.is_armed:
            return call()
        strike = steps._reached(name)  # pyright: ignore[reportPrivateUsage]
        if strike is None:
            return call()
        if strike.has_effect:
            call()
        if strike.kills:
            steps.killed.set()
        raise OSError(f"{name} failed")

    def _mkdir(self, path: pathlib.Path) -> None:
        self._step("mkdir", lambda: super(StruckTree, self)._mkdir(path))

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        self._step("write", lambda: super(StruckTree, self)._write(path, data))

    def _fsync(self, path: pathlib.Path) -> None:
        self._step("fsync", lambda: super(StruckTree, self)._fsync(path))

    def _fsync_folder(self, path: pathlib.Path) -> None:
        self._step("fsync folder", lambda: super(StruckTree, self)._fsync_folder(path))

    def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._step("link", lambda: super(StruckTree, self)._link(source, target))

    def _rename(self, source: pathlib.Path, target: pathlib.Path) -> None:
        self._step("rename", lambda: super(StruckTree, self)._rename(source, target))


class UnsyncedTree(LocalTree):
    """Knows which manifest versions a loss of power would take; the first sync behind one fails."""

    unsynced: set[str]
    fails: bool

    def _link(self, source: pathlib.Path, target: pathlib.Path) -> None:
        super()._link(source, target)
        self.unsynced.add(target.name)

    def _fsync_folder(self, path: pathlib.Path) -> None:
        if path.name == FOLDER:
            if self.unsynced and self.fails:
                self.fails = False
                raise OSError(errno.EIO, "the sync failed")
            self.unsynced.clear()
        super()._fsync_folder(path)


class TieredBroker(StruckBroker):
    """A broker that copies below `tier_root`; its tail cache keeps nothing."""

    def __init__(self, rig: Rig, tier_root: pathlib.Path, **changes: object) -> None:
        super().__init__(rig, tier_root=str(tier_root), tail_cache_bytes=0, **changes)

    def rounds(self, *shells: PartitionShell) -> TierRounds:
        """Of partitions that it serves."""
        return TierRounds(
            lambda: shells,
            self.deps.backend,
            self.tiered,
            config=self.config,
            clock=self.rig.clock,
            entropy=self.rig.entropy,
        )

    def compaction(self, *shells: PartitionShell) -> CompactionRounds:
        """Of partitions that it serves."""
        return CompactionRounds(
            lambda: shells,
            self.deps.backend,
            config=self.config,
            clock=self.rig.clock,
            entropy=self.rig.entropy,
        )

    async def strike_tree(self, shell: PartitionShell) -> None:
        """What it does below the tree's root are steps."""
        tree = (await self.tiered.files()).tree(shell.name).tree
        tree.__class__ = StruckTree
        tree.steps = self.steps  # type: ignore[attr-defined]

    async def fail_a_sync(self, shell: PartitionShell) -> UnsyncedTree:
        """The first sync behind a manifest version fails; the version is there all the same."""
        tree = (await self.tiered.files()).tree(shell.name).tree
        tree.__class__ = UnsyncedTree
        unsynced = cast("UnsyncedTree", tree)
        unsynced.unsynced, unsynced.fails = set(), True
        return unsynced

    async def begin_tier(self, cluster_id: str = "cluster-1") -> None:
        """As a broker does when it starts; raises ConfigError for the folder of another cluster."""
        catalog = TierCatalog(self.store, self.rig.paths, self.rig.clock)
        await self.tiered.root.begin(cluster_id, catalog, self.rig.entropy)

    async def filled(self, segments: int, **config: str) -> PartitionShell:
        """A partition with so many closed segments and an open one."""
        shell = await self.opened(**config)
        await fill(shell, segments)
        return shell

    async def opened(self, **config: str) -> PartitionShell:
        """The partition, served here."""
        await self.begin_tier()
        return await self.open(NAME, tiering="true", **config)


async def fill(shell: PartitionShell, segments: int) -> None:
    """So many closed segments, and an open one with a record."""
    for number in range(segments):
        for part in range(2):
            value = f"{number}-{part}".encode()
            await write(shell, (b"k", value), (None, value * 20), (value, None))
        await shell.roll()
    await write(shell, (b"k", b"open"))


async def settle(rounds: TierRounds, shell: PartitionShell) -> None:
    """Look until nothing changes; errors are met again, at most as often as steps can fail."""
    for _ in range(8):
        before = shell.tiers.state()
        try:
            await rounds.look_at(shell)
        except OctavoError:
            continue
        if shell.tiers.state().segments == before.segments:
            return
    raise AssertionError("a partition with tiering comes to no rest")
