"""What sinks staged and nobody decided on goes (spec spark §8.3, ADR 74).

The owner of a staging topic looks at it in each round of retention. What is decided and not
published stays for ever; an operator sees it (`octavo sink list`) and may end it. Before anything
goes, the record of the sink says so, by compare-and-set: a writer that comes back after that,
however late, is refused its decision instead of publishing a hole. A crash after that is finished
by the next round.

`next_sweep` decides, purely; `SinkSweeper` looks and carries it out.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from octavo.metadata.sinks import Sink, SinkCatalog
from octavo.metadata.topics import Topic
from octavo.proto.sink_staging import parse_staging_topic
from octavo.runtime.clock import Clock
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.read_path import first_appended_since
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry
from octavo.serving.topic_admin import TopicAdmin

_log = get_logger("octavo.serving.sinks")


class Staged(NamedTuple):
    """A staging topic as its owner sees it."""

    log_start: int
    end: int
    idle_from: int
    """Offset of the first record that is younger than `sink_idle_ms`; `end`: none is."""
    aged_to: int
    """Offset of the first record that is younger than `sink_staging_max_age_ms`."""


class Sweep(Enum):
    """What is to be done with a staging topic."""

    KEEP = "keep"
    TRIM = "trim"
    """Cut off what lies before an offset."""
    RETIRE = "retire"
    """Give the topic up and remove it."""


def may_sweep(sink: Sink, generation: int) -> bool:
    """Whether anything of this generation may go; no look at the topic is needed to tell."""
    return is_given_up(sink, generation) or (sink.is_published and sink.generation == generation)


def is_given_up(sink: Sink, generation: int) -> bool:
    """Whether no decision can rest on this generation any more: its topic is only in the way."""
    return sink.is_ended or generation < sink.generation


def next_sweep(sink: Sink, staged: Staged, *, now_ms: int, topic_idle_ms: int) -> tuple[Sweep, int]:
    """What comes next for the topic of the sink's generation, where `may_sweep`.

    All goes that is older than the bound of an idle sink, if the sink is idle; else what is older
    than any may be. A topic with nothing in it goes when the sink was not heard of for so long.
    """
    is_idle = staged.idle_from >= staged.end
    before = max(staged.end if is_idle else staged.aged_to, min(sink.swept_to, staged.end))
    if before > staged.log_start:
        return Sweep.TRIM, before
    is_empty = staged.log_start >= staged.end
    if is_empty and sink.touched_ms + topic_idle_ms < now_ms:
        return Sweep.RETIRE, 0
    return Sweep.KEEP, 0


class SinkSweeper:
    """Sweeps the staging topics that this broker owns, one at a time."""

    def __init__(
        self,
        sinks: SinkCatalog,
        registry: PartitionRegistry,
        topics: TopicAdmin,
        *,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._sinks = sinks
        self._registry = registry
        self._topics = topics
        self._config = config
        self._clock = clock

    async def look_at(self, topic: Topic) -> Sweep:
        """Sweep one topic of which this broker holds the partition, if it is a staging topic.

        Returns what was done. Raises OctavoError: the next round looks again.
        """
        name = parse_staging_topic(topic.name)
        sink = None if name is None else await self._sinks.of_staging(name)
        if name is None or sink is None or not may_sweep(sink, name.generation):
            return Sweep.KEEP
        if is_given_up(sink, name.generation):
            return await self._remove(topic, sink)
        shell = await self._registry.resolve_life(
            topic.name, 0, topic.topic_id.bytes, self._config.load_wait_s
        )
        staged = await self._staged(shell)
        what, before = next_sweep(
            sink,
            staged,
            now_ms=self._clock.wall_ms(),
            topic_idle_ms=self._config.sink_staging_max_age_ms,
        )
        if what is Sweep.TRIM and await self._sinks.sweep(sink, before):
            await shell.trim(before)
            _log.info("staged-records-swept", topic=topic.name, sink=sink.sink_id, before=before)
            return what
        if what is Sweep.RETIRE and await self._sinks.retire(sink):
            return await self._remove(topic, sink)
        return Sweep.KEEP

    async def _remove(self, topic: Topic, sink: Sink) -> Sweep:
        await self._topics.delete(topic.name, topic.topic_id.bytes)
        _log.info("staging-topic-removed", topic=topic.name, sink=sink.sink_id)
        return Sweep.RETIRE

    async def _staged(self, shell: PartitionShell) -> Staged:
        """The end is that of the record of one moment: what comes later is not swept by it."""
        await shell.prove_end()
        view, now_ms, config = shell.view(), self._clock.wall_ms(), self._config
        low, end = view.log_start, view.high_watermark
        idle_from = await first_appended_since(view, low, now_ms - config.sink_idle_ms)
        aged_to = low
        if idle_from < end:
            oldest_ms = now_ms - config.sink_staging_max_age_ms
            aged_to = await first_appended_since(view, low, oldest_ms)
        return Staged(low, end, idle_from, min(aged_to, idle_from))
