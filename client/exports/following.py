"""Exports that go on: whatever ledgers close, and whatever topics appear, until somebody stops it.

Each topic is looked at again and again, every few seconds with some jitter. A look describes the
topic, has the open ledgers closed whose records have waited as long as they may (`roll_watch`), and
runs an export (`run.TopicExport`). What fails is tried again after a growing pause, and said once,
not each time; what cannot get better by waiting ends its topic. Nothing is remembered but the
manifest, so it may be killed at any moment, and several may follow one topic into one tree: each
manifest version has one author (ADR 13).

A stop ends each topic behind the group of ledgers at hand, or without it after `stop_grace_s`.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from octavo.client.exports.log_view import FollowSource
from octavo.client.exports.reports import (
    ExportReport,
    OnJoined,
    OnProgress,
    RunOptions,
)
from octavo.client.exports.roll_watch import RollWatch
from octavo.client.exports.run import TopicExport, first_error
from octavo.client.exports.tree import Tree
from octavo.runtime.entropy import Entropy, SystemEntropy
from octavo.runtime.errors import (
    ConfigError,
    InvariantViolation,
    MetadataCorrupt,
    OctavoError,
    UnknownTopic,
    UnsupportedVersion,
)
from octavo.runtime.retry import Backoff

TOPICS_AT_ONCE = 4
"""Topics that are described or copied at the same time; others wait for their turn."""
POLL_S = 5.0
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 30.0
UPKEEP_S = 3600.0
"""How often all exported files are looked at, and old ones removed."""
FINAL = (ConfigError, InvariantViolation, MetadataCorrupt, UnknownTopic, UnsupportedVersion)
"""Errors that waiting does not help against."""


def _nothing(*_told: object) -> None:
    """What is told to nobody."""


@dataclass(frozen=True, kw_only=True)
class FollowSettings:
    """How eagerly topics are followed, and what becomes of their files."""

    poll_s: float | None = None
    """Seconds between two looks at a topic, about; None: a quarter of the lag target, 5 at most."""
    lag_target_s: float = 300.0
    """A record is in a file about so many seconds after it was written, at the latest; open ledgers
    are closed for that. 0: only what the brokers close is exported."""
    flush_bytes: int = 128 << 20
    """Open ledgers of this size are closed at once; 0: whatever their size."""
    file_bytes: int = 128 << 20
    """Small files are joined up to this size; 0: they are left as they are."""
    stop_grace_s: float = 3.0
    """How long a stop waits for the groups of ledgers that are being written."""
    codec: str = "zstd"
    fmt: str = "arrow"
    table: bool = False
    """Keep a Delta table over the files (Parquet only)."""

    @property
    def look_every_s(self) -> float:
        """Seconds between two looks at a topic."""
        if self.poll_s is not None:
            return self.poll_s
        return min(POLL_S, self.lag_target_s / 4) if self.lag_target_s else POLL_S

    def validate(self) -> None:
        """Raise ConfigError for numbers that mean nothing."""
        if self.poll_s is not None and self.poll_s <= 0:
            raise ConfigError(f"poll_s={self.poll_s} is not allowed", hint="seconds, above 0")
        for name in ("lag_target_s", "flush_bytes", "file_bytes", "stop_grace_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is not allowed", hint="0 or more")
        if 0 < self.lag_target_s < 2 * self.look_every_s:
            raise ConfigError(
                f"lag_target_s={self.lag_target_s} cannot be held with poll_s={self.poll_s}",
                hint="a lag target is two looks at least: poll more often",
            )


@dataclass(frozen=True, kw_only=True)
class FollowEvents:
    """Who is told of what; on the loop, by calls that must not block."""

    published: OnProgress = _nothing
    joined: OnJoined = _nothing
    looked: Callable[[ExportReport], None] = _nothing
    """After each run, also one that had nothing to do."""
    trouble: Callable[[str, Exception], None] = _nothing
    """A topic fails and is tried again; once until `recovered`, or until it is another error."""
    recovered: Callable[[], None] = _nothing
    """All topics that had failed go on."""
    left: Callable[[str, Exception], None] = _nothing
    """A topic is followed no more."""


@dataclass
class FollowReport:
    """What was done for each topic until the end."""

    topics: dict[str, ExportReport] = field(default_factory=dict[str, ExportReport])
    """Sums over all runs; `open_ledgers`, `lost` and the like are those of the last one."""
    left: dict[str, Exception] = field(default_factory=dict[str, Exception])
    """Topics that were given up before the end, and why."""

    def add(self, run: ExportReport) -> None:
        """Count one more run of a topic."""
        self.topics[run.topic] = run.after(self.topics.get(run.topic))

    def add_unfinished(self, run: ExportReport | None) -> None:
        """Count what a run published before it failed."""
        if run is not None and (run.file_count or run.joined):
            self.add(run)


def topic_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern for whole names of topics; raises ConfigError."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"pattern {pattern!r} is no regular expression: {error}", hint="see Python's re"
        ) from error


class ExportFollower:
    """Follows named topics, or all whose whole names match a pattern.

    Args:
        pattern: topics that appear later are followed too, those that are deleted are left.
    """

    def __init__(
        self,
        source: FollowSource,
        tree: Tree,
        topics: Sequence[str],
        settings: FollowSettings,
        *,
        pattern: re.Pattern[str] | None = None,
        events: FollowEvents | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        settings.validate()
        self._source = source
        self._tree = tree
        self._names = list(dict.fromkeys(topics))
        self._pattern = pattern
        self._settings = settings
        self._events = events or FollowEvents()
        self._entropy = entropy or SystemEntropy()
        self._slots = asyncio.Semaphore(TOPICS_AT_ONCE)
        self._report = FollowReport()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing: set[str] = set()
        """Topics whose last look failed."""
        self._told: set[str] = set()
        """Kinds of errors that were told since the last time that all went well."""
        self._succeeded = False

    async def run(self, stop: asyncio.Event) -> FollowReport:
        """Until `stop` is set, or no topic is left.

        Raises what listing topics raises at the start. Cancelling it keeps what was published.
        """
        try:
            async with asyncio.TaskGroup() as group:
                ended = group.create_task(stop.wait(), name="export-follow:stop")
                await self._until(stop, ended, group)
                await self._end_topics()
                ended.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        return self._report

    async def _until(
        self, stop: asyncio.Event, ended: asyncio.Task[bool], group: asyncio.TaskGroup
    ) -> None:
        """Start what is to be followed, until the end or until nothing is left."""
        while not stop.is_set():
            for name in await self._wanted():
                task = self._tasks.get(name)
                if task is None or (self._pattern is not None and task.done()):
                    followed = self._follow(name, stop)
                    self._tasks[name] = group.create_task(followed, name=f"export-follow:{name}")
            if self._pattern is not None:  # topics may come
                await asyncio.wait({ended}, timeout=self._settings.look_every_s)
                continue
            running = {task for task in self._tasks.values() if not task.done()}
            if not running:
                return
            await asyncio.wait({ended, *running}, return_when=asyncio.FIRST_COMPLETED)

    async def _wanted(self) -> list[str]:
        """The topics to follow; what a cluster that does not answer has is what it had."""
        if self._pattern is None:
            return self._names
        try:
            found = await self._source.topics()
        except (OctavoError, OSError) as error:
            if not self._succeeded and not self._tasks:
                raise
            self._fails("", error)
            return []
        self._goes_on("")
        return [
            name
            for name in found
            if self._pattern.fullmatch(name) and name not in self._report.left
        ]

    async def _end_topics(self) -> None:
        """Let what is being written be finished for a while, then drop it."""
        running = {task for task in self._tasks.values() if not task.done()}
        if running:
            _, late = await asyncio.wait(running, timeout=self._settings.stop_grace_s)
            for task in late:
                task.cancel()

    async def _follow(self, name: str, stop: asyncio.Event) -> None:
        """One topic, until the end or until it is given up."""
        topic = _Topic(self._source, self._tree, name, self._settings, self._events)
        backoff = Backoff(self._entropy, initial_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        while not stop.is_set():
            try:
                async with self._slots:
                    if stop.is_set():
                        return
                    try:
                        report = await topic.look(stop)
                    finally:
                        self._report.add_unfinished(topic.unfinished())
            except (OctavoError, OSError) as error:
                if isinstance(error, FINAL) or self._is_hopeless(name):
                    self._leave(name, error)
                    return
                self._fails(name, error)
                pause_s = backoff.next_s()
            else:
                self._succeeded = True
                backoff.reset()
                self._goes_on(name)
                self._report.add(report)
                self._events.looked(report)
                pause_s = self._settings.look_every_s * self._entropy.uniform(0.8, 1.2)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s)

    def _is_hopeless(self, name: str) -> bool:
        """Whether nothing ever worked, and each topic has failed now: whoever started it is there
        to read why. One that fails while others are on their way is tried again."""
        tried = {*self._failing, *self._report.left, name}
        return not self._succeeded and tried.issuperset(self._tasks)

    def _leave(self, name: str, error: Exception) -> None:
        if self._pattern is not None and isinstance(error, UnknownTopic):
            return  # deleted since it was listed: one of this name may come again
        self._report.left[name] = error
        several = self._pattern is not None or len(self._names) > 1
        if self._succeeded or several or self._report.topics:
            self._events.left(name, error)  # else it is the error of the whole
        self._goes_on(name)

    def _fails(self, name: str, error: OctavoError | OSError) -> None:
        kind = error.code if isinstance(error, OctavoError) else os.strerror(error.errno or 0)
        self._failing.add(name)
        if kind not in self._told:
            self._told.add(kind)
            self._events.trouble(name, error)

    def _goes_on(self, name: str) -> None:
        if name in self._failing:
            self._failing.discard(name)
            if not self._failing:
                self._told.clear()
                if self._succeeded:
                    self._events.recovered()


class _Topic:
    """One topic that is followed: its export, and its open ledgers."""

    def __init__(
        self,
        source: FollowSource,
        tree: Tree,
        name: str,
        settings: FollowSettings,
        events: FollowEvents,
    ) -> None:
        self._source = source
        self._name = name
        self._settings = settings
        self._events = events
        self._export = TopicExport(
            source, name, tree, codec=settings.codec, fmt=settings.fmt, table=settings.table
        )
        self._watch = RollWatch(
            settings.lag_target_s - 2 * settings.look_every_s if settings.lag_target_s else None,
            settings.flush_bytes or None,
        )
        self._upkeep_at_s = float("-inf")

    def unfinished(self) -> ExportReport | None:
        """What the look published that failed just now; told once."""
        found, self._export.unfinished = self._export.unfinished, None
        return found

    async def look(self, stop: asyncio.Event) -> ExportReport:
        """Close what is due, copy what is closed."""
        log = await self._source.describe(self._name)
        now_s = time.monotonic()
        due = self._watch.due(log, now_s)
        for partition in due:
            if not stop.is_set():
                await self._source.roll(self._name, partition)
        if due:
            log = await self._source.describe(self._name)
        upkeep = now_s >= self._upkeep_at_s
        report = await self._export.run(
            RunOptions(
                progress=self._events.published,
                joined=self._events.joined,
                join_bytes=self._settings.file_bytes,
                upkeep=upkeep,
                stopping=stop.is_set,
            ),
            log,
        )
        if upkeep:
            self._upkeep_at_s = now_s + UPKEEP_S
        return report
