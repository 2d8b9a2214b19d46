"""The async reader: a topic from a chosen start, without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal, Self

from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.api.opening import Opening
from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.limits import check_offset, epoch_ms, partitions_of
from octavo.client.messaging.reading.offsets import list_edges
from octavo.client.messaging.reading.reading_errors import beyond_the_end
from octavo.client.messaging.records import Record, TopicPartition
from octavo.proto.edges import EDGE_WORDS, LATEST
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import ConfigError

Start = Literal["earliest", "latest"] | int | datetime
"""earliest, latest, an offset (of every partition), or an aware datetime."""


class ReaderOpening(Opening):
    """Of one reader: all or chosen partitions of its topics, from its start.

    Raises ConfigError for a start that cannot be meant.
    """

    def __init__(
        self,
        binding: Binding,
        topics: list[str],
        config: ConsumerConfig,
        start: Start,
        partitions: list[int] | None,
    ) -> None:
        super().__init__(binding, topics, config)
        self._start = start
        self._partitions = partitions
        if isinstance(start, str) and start not in EDGE_WORDS:
            raise ConfigError(
                f"start={start!r} is not allowed",
                hint="start is 'earliest', 'latest', an offset or an aware datetime",
            )
        if isinstance(start, datetime):
            epoch_ms(start)
        elif not isinstance(start, str):
            check_offset(start, "start")

    async def begin(self, fetcher: Fetcher, deadline: Deadline) -> None:
        """Assign and fix the start; OffsetOutOfRange when it lies beyond the end of a partition."""
        if self.assigned:
            return
        wanted = await self._wanted(deadline)
        if isinstance(self._start, int):
            await self._check_not_beyond(wanted, self._start, deadline)
        if self.assigned:  # by assign(), meanwhile
            return
        self.assigned = True
        if isinstance(self._start, int):
            fetcher.assign(wanted, dict.fromkeys(wanted, self._start))
        else:
            followed = self.topics if self._partitions is None else ()
            fetcher.assign(wanted, _policy(self._start), followed=followed)
            await fetcher.resolved(wanted, deadline)

    async def _wanted(self, deadline: Deadline) -> list[TopicPartition]:
        if self._partitions is None:
            return await self.all_partitions(deadline)
        wanted = partitions_of(
            (topic, number) for topic in self.topics for number in self._partitions
        )
        await self.check_exist(wanted, deadline)
        return wanted

    async def _check_not_beyond(
        self, wanted: list[TopicPartition], start: int, deadline: Deadline
    ) -> None:
        """F6's policy is for positions that fell out later, not for a start that never was."""
        ends = await list_edges(self.binding.cluster(), wanted, LATEST, deadline)
        for where, end in ends.items():
            if start > end:
                raise beyond_the_end(where, start, end)


class AsyncReader(AsyncConsumer):
    """Reads all (or chosen) partitions of topics from `start`; made by `AsyncClient.reader()`.

    The start is fixed when reading begins: at `async with`, or at the first call.
    """

    async def start(self) -> None:
        """Fix the start positions; called by `async with` and by every reading call.

        Raises OffsetOutOfRange when a start offset lies beyond the end of a partition.
        """
        await self.opening.ready()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.start()
        return self

    async def begin_to_end(self) -> dict[TopicPartition, int]:
        """Prepare `read_to_end`: the end offsets it stops at."""
        deadline = self.opening.deadline()
        fetcher = await self.opening.ready(deadline)
        self.hand_over.give_back()
        ends = await self._offsets((), LATEST, deadline)
        fetcher.focus(ends)
        return ends

    async def read_to_end(self) -> AsyncIterator[Record]:
        """Every record up to the end offsets seen at the call, then stop.

        Paused partitions are left out.
        """
        ends = await self.begin_to_end()
        while self.handout.ready or await self.hand_over.refill_until(ends):
            record = self.handout.ready[0]
            if self.hand_over.finishing is not None:
                record = self.hand_over.finishing.one(record)
            del self.handout.ready[0]
            yield record


def _policy(start: str | datetime) -> str | int:
    return epoch_ms(start) if isinstance(start, datetime) else start
