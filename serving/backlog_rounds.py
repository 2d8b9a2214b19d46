"""How far groups are behind in the partitions of one broker, and what follows (F162).

Asks coordinators about topics that have a backlog quota, measures their open partitions by the
answers, and moves groups on where that is the policy. What is not known holds, refuses and evicts
nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict

from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.backlog import (
    EMPTY,
    Backlog,
    offset_of_newest,
    unread_bytes,
)
from octavo.serving.consumption import Consumption
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.read_path import batch_at, first_appended_since
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.registry import PartitionRegistry
from octavo.serving.retention import UNLIMITED

LOOK_S = 1.0
"""How often it is looked which partitions are due."""
CONCURRENT_TOPICS = 8
"""Topics that are asked about at a time."""

_log = get_logger("octavo.serving.backlogs")

_Topic = tuple[str, uuid.UUID]


class BacklogRounds:
    """Of one broker."""

    def __init__(self, registry: PartitionRegistry, consumption: Consumption, clock: Clock) -> None:
        self._registry = registry
        self._consumption = consumption
        self._clock = clock
        self._gate = asyncio.Semaphore(CONCURRENT_TOPICS)
        self.evicted = 0
        """Offsets by which groups were moved on, all together."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep(LOOK_S)
            await self.round()

    async def round(self) -> None:
        """Measure the topics of which a partition is due, once."""
        now_s = self._clock.monotonic()
        by_topic: dict[_Topic, list[PartitionShell]] = defaultdict(list)
        due: set[_Topic] = set()
        for shell in self._registry.shells():
            if shell.is_internal or shell.backlog.quota.is_off:
                continue
            topic = shell.name[:2]
            by_topic[topic].append(shell)
            if shell.backlog.is_due(now_s, shell.traffic.bytes_in):
                due.add(topic)
        await asyncio.gather(*(self._look_at(topic, by_topic[topic]) for topic in due))

    async def _look_at(self, topic: _Topic, shells: list[PartitionShell]) -> None:
        async with self._gate:
            found = await self._consumption.of(*topic)
            lowest: dict[int, int] = {}
            for shell in shells:
                number = shell.name.partition
                if found is None:
                    self._note(shell, None)
                    continue
                offset = found.slowest.get(number)
                try:
                    measured = await self._measure(shell, offset)
                    self._note(shell, measured)
                    if shell.backlog.evicts:
                        lowest[number] = await self._eviction(shell, offset or 0)
                except OctavoError as error:
                    _log.info("backlog-not-known", partition=str(shell.name), cause=error.cause)
                    self._note(shell, None)
            if lowest:
                evicted = await self._consumption.evict(*topic, lowest)
                self.evicted += evicted.offsets
                _log.warning(
                    "backlog-evicted",
                    topic=topic[0],
                    groups=evicted.groups,
                    offsets=evicted.offsets,
                )

    def _note(self, shell: PartitionShell, measured: Backlog | None) -> None:
        gate, was_shut = shell.backlog, shell.backlog.is_shut
        gate.measured(measured, self._clock.monotonic(), shell.traffic.bytes_in)
        if gate.is_shut != was_shut:
            event = "backlog-over-quota" if gate.is_shut else "backlog-within-quota"
            policy, excess = gate.quota.policy, gate.excess
            _log.warning(event, partition=str(shell.name), policy=policy, excess=excess)

    async def _measure(self, shell: PartitionShell, slowest: int | None) -> Backlog:
        """Raises what a read raises, and NotLeader."""
        view, gate = shell.view(), shell.backlog
        if slowest is None or slowest >= view.high_watermark:
            return EMPTY
        offset = max(slowest, view.log_start)
        size_bytes = unread_bytes(shell.described(), offset, view.high_watermark)
        if gate.quota.age_ms == UNLIMITED:
            return Backlog(size_bytes, 0)
        append_ms = gate.append_ms_at(offset)
        if append_ms is None:
            header = await batch_at(view, offset)
            if header is None:  # nothing but gaps
                return Backlog(size_bytes, 0)
            append_ms = header.append_time_ms
            gate.remember(offset, append_ms)
        return Backlog(size_bytes, max(0, self._clock.wall_ms() - append_ms))

    async def _eviction(self, shell: PartitionShell, slowest: int) -> int:
        """The offset at which no group may be behind; raises NotLeader unless this broker is the
        owner for certain, and what a read raises."""
        await shell.prove_end()
        view, leaves = shell.view(), shell.backlog.quota.eviction()
        offset = max(slowest, view.log_start)
        if leaves.size_bytes != UNLIMITED:
            newest = offset_of_newest(shell.described(), leaves.size_bytes, view.high_watermark)
            offset = max(offset, newest)
        if leaves.age_ms != UNLIMITED:
            since_ms = self._clock.wall_ms() - leaves.age_ms
            offset = await first_appended_since(view, offset, since_ms)
        return min(offset, view.high_watermark)

    def over(self) -> dict[str, int]:
        """How many partitions are over their quota, by policy."""
        found: dict[str, int] = defaultdict(int)
        for shell in self._registry.shells():
            if shell.backlog.excess is not None and shell.state is PartitionStateName.SERVING:
                found[shell.backlog.quota.policy] += 1
        return found
