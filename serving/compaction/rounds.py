"""Which partitions of a broker are compacted when: the dirtiest first (spec groups K3).

Looks at the partitions that are served here once in an interval. As many passes run at once as a
setting says, never two over one partition; who asks for one waits for its turn like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import InvalidRequest, OctavoError, Throttled
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.compaction.plan import (
    CompactionRule,
    Dirtiness,
    cleanable,
    dirtiness,
    files_end,
)
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.pace import Pace
from octavo.serving.partition.shell import PartitionShell

if TYPE_CHECKING:
    from octavo.serving.compaction.cleaner import PartitionCleaner, PassReport

REQUESTS_MAX = 100
"""Requests to compact that wait at one broker; beyond it THROTTLED."""
RETRY_MS = 1_000

_log = get_logger("octavo.serving.compaction")


class Compacted(NamedTuple):
    """What a request did to one partition."""

    cleaned_to: int
    records_removed: int
    bytes_before: int
    bytes_after: int
    """Of the closed segments."""


class CompactionRounds:
    """The cleaners of one broker.

    Args:
        shells: the partitions that are served here now.
    """

    def __init__(
        self,
        shells: Callable[[], Iterable[PartitionShell]],
        backend: LedgerBackend,
        *,
        config: BrokerConfig,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._shells = shells
        self._backend = backend
        self._config = config
        self._clock = clock
        self._entropy = entropy
        self._pace = Pace(config.compaction_bytes_per_s, clock)
        self._gate = asyncio.Semaphore(config.compaction_concurrency)
        self._locks: dict[PartitionShell, asyncio.Lock] = {}
        self._asked: dict[PartitionShell, asyncio.Task[Compacted | OctavoError]] = {}
        self._tasks = TaskOwner("compaction")
        self.passes = 0
        """That came to their end."""
        self.records_removed = 0

    async def run(self) -> None:
        """For ever."""
        interval_s = self._config.compaction_check_interval_ms / 1000
        await self._clock.sleep(interval_s * self._entropy.uniform(0.5, 1))
        while True:
            await self.round()
            await self._clock.sleep(interval_s)

    async def round(self) -> int:
        """Look once at each partition and clean those that are due; returns how many were."""
        due = [
            (found.ratio, found.dirty_bytes, shell)
            for shell in self._shells()
            if (found := self._dirtiness(shell)) is not None
        ]
        due.sort(key=lambda one: one[:2], reverse=True)
        done = await asyncio.gather(*(self._look_after(shell) for _, _, shell in due))
        return sum(done)

    def _dirtiness(self, shell: PartitionShell) -> Dirtiness | None:
        """Of a partition that is to be cleaned now; None: it is not."""
        if not shell.settings.compacts:
            return None
        try:
            listed = shell.rewrites.listed()
        except OctavoError:
            return None  # it is not served here any more
        rule, now_ms = CompactionRule.of(shell.settings), self._clock.wall_ms()
        found = dirtiness(cleanable(listed, rule, now_ms), listed.cleaned_to)
        return found if found.is_due(rule, now_ms) else None

    async def _look_after(self, shell: PartitionShell) -> bool:
        try:
            await self._clean(shell)
        except OctavoError as error:  # the others are cleaned all the same, this one later again
            _log.warning("partition-not-cleaned", partition=str(shell.name), cause=error.cause)
            return False
        return True

    async def compact(self, shell: PartitionShell) -> Compacted:
        """Close the open segment and clean everything (K3: on request).

        It goes on when the caller leaves; who asks again meanwhile waits for the same. Raises
        InvalidRequest unless the topic is compacted and no file holds a part of the log, Throttled
        when too many wait, and what a roll and a pass raise.
        """
        if not shell.settings.compacts:
            raise InvalidRequest(
                f"topic {shell.name.topic!r} is not compacted",
                hint=f"octavo topic set {shell.name.topic} cleanup.policy=compact",
            )
        _check_files(shell)
        task = self._asked.get(shell)
        if task is None:
            if len(self._asked) >= REQUESTS_MAX:
                raise Throttled(
                    f"{len(self._asked)} requests to compact wait at this broker",
                    throttle_ms=RETRY_MS,
                )
            task = self._tasks.spawn(self._compact(shell), name=f"compact {shell.name}")
            self._asked[shell] = task
            task.add_done_callback(lambda _: self._asked.pop(shell, None))
        outcome = await asyncio.shield(task)
        if isinstance(outcome, OctavoError):
            raise outcome
        return outcome

    async def _compact(self, shell: PartitionShell) -> Compacted | OctavoError:
        try:
            await shell.rewrites.close_open()
            _check_files(shell)  # a copy that was going on may have been listed
            before = sum(one.size_bytes for one in shell.rewrites.listed().closed)
            report = await self._clean(shell)
            after = sum(one.size_bytes for one in shell.rewrites.listed().closed)
        except OctavoError as error:
            return error
        return Compacted(report.cleaned_to, report.records_removed, before, after)

    async def close(self) -> None:
        """End what was asked for: what is listed stays, the rest is swept by the next owner."""
        await self._tasks.close()

    async def _clean(self, shell: PartitionShell) -> PassReport:
        """Passes until one had room for all keys; the last report with what all removed."""
        lock = self._locks.setdefault(shell, asyncio.Lock())
        removed = 0
        try:
            async with lock, self._gate:
                cleaner = await asyncio.to_thread(_cleaner_class)
                while True:
                    report = await self._begin(cleaner, shell).run()
                    removed += report.records_removed
                    self.passes += 1
                    self.records_removed += report.records_removed
                    if not report.is_short or not shell.settings.compacts:
                        return report._replace(records_removed=removed)
        finally:
            if not lock.locked():
                self._locks.pop(shell, None)

    def _begin(self, cleaner: type[PartitionCleaner], shell: PartitionShell) -> PartitionCleaner:
        return cleaner(
            shell.rewrites,
            CompactionRule.of(shell.settings),
            backend=self._backend,
            memory_bytes=self._config.compaction_memory_bytes,
            index_interval_bytes=self._config.index_interval_bytes,
            pace=self._pace,
            clock=self._clock,
            is_wanted=lambda: shell.settings.compacts,
        )


def _check_files(shell: PartitionShell) -> None:
    """Raise InvalidRequest when files hold a part of the log: it is not cleaned (ADR 70)."""
    name, end = shell.name, files_end(shell.rewrites.listed())
    if end is not None:
        raise InvalidRequest(
            f"records of {name} below offset {end} are in exported files, which compaction cannot "
            "change: nothing was compacted",
            hint=f"let go of them (octavo topic trim {name.topic} -p {name.partition} --before "
            f"{end}), or keep them: octavo topic set {name.topic} cleanup.policy=delete",
        )


def _cleaner_class() -> type[PartitionCleaner]:
    """Loads Arrow, which takes 0.3 s: not when a broker starts, and not on its loop."""
    module = import_module("octavo.serving.compaction.cleaner")
    found: type[PartitionCleaner] = module.PartitionCleaner
    return found
