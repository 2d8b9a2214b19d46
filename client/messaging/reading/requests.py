"""Which partitions are asked for next, from which broker, and how much may come. Pure.

One request per broker is out at a time. What is buffered and what the requests under way may bring
stays within the budget, but for single batches above every limit (F2). What nobody may drain gives
its buffer up when others need the room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo.client.messaging.reading.buffers import Buffers, Ends
from octavo.client.messaging.reading.readings import Ask, Plan, Reading, ReadingSettings
from octavo.runtime.errors import InvariantViolation

PARTIAL_WAIT_MS = 20
"""Long-poll time of a request that leaves out partitions whose buffers are full: they may drain
while it waits."""


@dataclass(eq=False, slots=True)
class Stream:
    """What is known of one broker's stream."""

    plan: Plan | None = None
    """The request under way."""
    failures: int = 0
    retry_at_s: float = 0.0
    """Nothing is asked there before."""


class Requests:
    """Plans requests for the readings of `buffers`."""

    def __init__(self, buffers: Buffers, settings: ReadingSettings) -> None:
        self._buffers = buffers
        self._settings = settings
        self.streams: dict[str, Stream] = {}
        """By address; one for every broker that was ever an owner."""
        self.starved: set[str] = set()
        """Brokers that nothing was asked of because what is under way elsewhere may fill the room;
        to be woken when it is there."""
        self.ends: Ends | None = None
        """Where the reading under way stops; nothing at or above is asked for meanwhile."""

    def wants(self, reading: Reading, now_s: float) -> bool:
        """Whether it is to be fetched now, wherever its owner is."""
        return self.fetchable(reading) and now_s >= reading.retry_at_s

    def fetchable(self, reading: Reading) -> bool:
        """Whether it waits for nothing but a point in time."""
        return (
            reading.position >= 0
            and not (reading.paused or reading.asked or reading.finding or reading.ranging)
            and reading.error is None
            and not self.complete(reading, reading.fetch_at)
        )

    def complete(self, reading: Reading, offset: int) -> bool:
        """Whether the reading under way wants nothing of it from `offset` on."""
        return self.ends is not None and offset >= self.ends.get(reading.where, 0)

    def plan(self, owner: str, now_s: float) -> Plan | None:
        """The next request to `owner`; None when nothing is to be asked now.

        It is under way until `ended`.
        """
        stream = self.streams.get(owner)
        if stream is None or stream.plan is not None or now_s < stream.retry_at_s:
            return None
        limits, readings = self._settings, self._buffers.readings
        mine: list[Reading] = []
        idle: set[str] = set()
        for where in self._buffers.turn:
            reading = readings[where]
            if reading.owner == owner and self.wants(reading, now_s) and not reading.out_of_range:
                mine.append(reading)
            elif reading.owner and not reading.asked:
                idle.add(reading.owner)
        if not mine:
            return None
        budget = self._budget()
        if budget <= 0:
            self._release_idle_buffers()
            budget = self._budget()
        full = limits.prefetch_partition_bytes
        asks = [
            Ask(reading, reading.fetch_at, reading.generation)
            for reading in mine
            if budget > 0 and reading.buffered_bytes < full
        ]
        if not asks:
            if budget <= 0:
                self.starved.add(owner)
            return None
        for ask in asks:
            ask.reading.asked = True
        self._buffers.turn.rotate(-1)  # F2: no partition is first for ever
        left_out = len(asks) < len(mine)
        wait_ms = min(limits.max_wait_ms, PARTIAL_WAIT_MS) if left_out else limits.max_wait_ms
        # Brokers answer side by side: each gets its share of what is left.
        share = max(budget // len(idle | {owner}), 1)
        stream.plan = Plan(owner, asks, min(limits.max_bytes, share), wait_ms)
        return stream.plan

    def ended(self, plan: Plan) -> Stream:
        """The request is over, however it ended: its partitions may be asked for again."""
        stream = self.streams.setdefault(plan.owner, Stream())
        if stream.plan is plan:
            stream.plan = None
        for reading, _, generation in plan.asks:
            if reading.generation == generation:
                reading.asked = False
        return stream

    def stream_ended(self, address: str) -> Stream:
        """Nothing is under way at this broker any more."""
        stream = self.streams.setdefault(address, Stream())
        if stream.plan is not None:
            self.ended(stream.plan)
        return stream

    def ready_at_s(self, reading: Reading) -> float:
        """When something may begin for it; infinite while it waits for an event."""
        if reading.position < 0:
            held = reading.error is not None and not reading.error.retriable
            return math.inf if reading.looking or held else reading.retry_at_s
        if not self.fetchable(reading):
            return math.inf
        stream = self.streams.get(reading.owner)
        return reading.retry_at_s if stream is None else max(reading.retry_at_s, stream.retry_at_s)

    def validate(self) -> None:
        """Raise InvariantViolation when what is asked for does not fit what is under way."""
        readings = self._buffers.readings.values()
        asked = {
            id(ask.reading)
            for stream in self.streams.values()
            for ask in (stream.plan.asks if stream.plan else ())
            if ask.generation == ask.reading.generation
        }
        for reading in readings:
            if reading.asked != (id(reading) in asked):
                raise InvariantViolation(f"asked for, or not: {reading}")
            if reading.asked + reading.ranging + reading.looking > 1:
                raise InvariantViolation(f"several things at a time: {reading}")

    def _budget(self) -> int:
        under_way = sum(s.plan.max_bytes for s in self.streams.values() if s.plan is not None)
        return self._settings.prefetch_bytes - self._buffers.buffered_bytes - under_way

    def _release_idle_buffers(self) -> None:
        """Nobody may drain what is paused or behind the ends: it must not starve the others.

        What is thrown away is fetched again when it is wanted.
        """
        for reading in self._buffers.readings.values():
            idle = reading.paused or self.complete(reading, reading.position)
            if idle and reading.buffered_bytes:
                self._buffers.refetch(reading)
