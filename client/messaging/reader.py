"""The async reader: a topic from a chosen start, without a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Self

from octavo.client.messaging.binding import Binding
from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.consumer import AsyncConsumer, epoch_ms
from octavo.client.messaging.fetcher import Fetcher
from octavo.client.messaging.records import Record, TopicPartition
from octavo.runtime.errors import ConfigError

Start = str | int | datetime
"""earliest, latest, an offset (of every partition), or an aware datetime."""


class AsyncReader(AsyncConsumer):
    """Reads all (or chosen) partitions of topics from `start`; made by `AsyncClient.reader()`.

    The start is fixed when reading begins: at `async with`, or at the first call.
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
        if isinstance(start, str) and start not in ("earliest", "latest"):
            raise ConfigError(
                f"start={start!r} is not allowed",
                hint="start is 'earliest', 'latest', an offset or an aware datetime",
            )
        if isinstance(start, datetime):
            epoch_ms(start)
        elif not isinstance(start, str) and (isinstance(start, bool) or start < 0):
            raise ConfigError(f"start={start!r} is not allowed", hint="offsets start at 0")

    async def start(self) -> None:
        """Fix the start positions; called by `async with` and by every reading call."""
        fetcher = self._open()
        if self._assigned:
            return
        start = self._start
        if self._partitions is not None:
            await self.assign(
                TopicPartition(topic, number)
                for topic in self._topics
                for number in self._partitions
            )
            await self._go_to(fetcher, start)
        elif isinstance(start, int):
            await self._assign_all(fetcher, "earliest")
            await self._go_to(fetcher, start)
        else:
            await self._assign_all(fetcher, _policy(start))
        chosen = list(fetcher.core.readings)
        await fetcher.resolved(chosen, self._config.request_timeout_ms / 1000)

    async def _go_to(self, fetcher: Fetcher, start: Start) -> None:
        chosen = list(fetcher.core.readings)
        if isinstance(start, int):
            for where in chosen:
                fetcher.seek(where, start)
        else:
            fetcher.seek_by(chosen, _policy(start))

    async def _ready(self) -> Fetcher:
        await self.start()
        return self._open()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.start()
        return self

    async def begin_to_end(self) -> dict[TopicPartition, int]:
        """Prepare `read_to_end`: the end offsets it stops at."""
        await self.start()
        self._give_back()
        return await self.end_offsets()

    async def refill_until(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Fetch more of an iteration that stops at `ends`; False when it is complete."""
        while not self.chunk:
            records = await self._collect(self._config.max_poll_records, 60.0, ends)
            if records is None:
                return False
            self.chunk.extend(records)
        return True

    async def read_to_end(self) -> AsyncIterator[Record]:
        """Every record up to the end offsets seen at the call, then stop."""
        ends = await self.begin_to_end()
        while self.chunk or await self.refill_until(ends):
            yield self.chunk.popleft()


def _policy(start: str | datetime) -> str | int:
    return epoch_ms(start) if isinstance(start, datetime) else start
