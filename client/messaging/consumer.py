"""The async consumer: assigned partitions, positions, records or Arrow out of them (F7, F8)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from octavo.client.messaging.arrow_access import arrow_functions
from octavo.client.messaging.binding import Binding
from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.fetcher import Fetcher
from octavo.client.messaging.offsets import EARLIEST, LATEST, Edge, list_edges
from octavo.client.messaging.records import Record, TopicPartition
from octavo.runtime.errors import (
    ConfigError,
    IllegalStateError,
    InvalidPartition,
    OctavoError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.client.messaging.arrow import StoredBatch

ARROW_POLL_BYTES = 4 << 20
"""poll_arrow() takes buffered batches until their uncompressed size reaches this."""
ARROW_POLL_BYTES_MAX = 1 << 30
"""The most it can be asked for: the offsets of an Arrow binary column end at 2 GiB."""
ITERATION_POLL_S = 60.0
"""How long one internal wait of an iteration lasts; it goes on afterwards."""

When = datetime | int | float
"""A point in time: an aware datetime or epoch milliseconds."""


def epoch_ms(when: object) -> int:
    """Epoch milliseconds; a datetime without time zone is refused as ambiguous."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ConfigError(
                f"{when!r} has no time zone", hint="use datetime(..., tzinfo=timezone.utc)"
            )
        return int(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, (int, float)) or when < 0:
        raise ConfigError(f"{when!r} is no point in time")
    return int(when)


def check_offset(offset: object) -> None:
    """ConfigError unless `offset` is a whole number from 0 on."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ConfigError(f"offset {offset!r} is not allowed", hint="offsets start at 0")


class AsyncConsumer:
    """Reads assigned partitions; made by `AsyncClient.consumer()`.

    Without `assign()`, all partitions of the topics given at creation are read.
    """

    def __init__(self, binding: Binding, topics: list[str], config: ConsumerConfig) -> None:
        self._binding = binding
        self._topics = topics
        self._config = config
        self._fetcher: Fetcher | None = None
        self._assigned = False
        self._closed = False
        self.chunk: deque[Record] = deque()
        """Records of an iteration's last poll that were not yielded yet."""

    # --- life -----------------------------------------------------------------------------------

    def _open(self) -> Fetcher:
        cluster = self._binding.cluster()
        if self._closed:
            raise IllegalStateError("the consumer is closed", hint="create a new one")
        if self._fetcher is None:
            self._fetcher = Fetcher(cluster, self._config)
        return self._fetcher

    async def _ready(self) -> Fetcher:
        """The fetcher with an assignment."""
        fetcher = self._open()
        if not self._assigned:
            await self._assign_all(fetcher)
        return fetcher

    async def _assign_all(self, fetcher: Fetcher, start: str | int | None = None) -> None:
        if not self._topics:
            raise IllegalStateError("nothing is assigned", hint="call assign() first")
        cluster = self._binding.cluster()
        wanted: list[TopicPartition] = []
        for topic in self._topics:
            view = await cluster.topic(topic, cluster.request_timeout_s)
            wanted += [TopicPartition(topic, number) for number in range(view.partitions)]
        if not self._assigned:
            self._assigned = True
            fetcher.assign(wanted, start)

    async def close(self, timeout: float | None = None) -> None:
        """Stop reading. Iterations and polls under way end. Closing twice is harmless."""
        self._closed = True
        self._binding.forget(self)
        if self._fetcher is not None:
            self._fetcher.wake()
            await self._fetcher.close()

    async def __aenter__(self) -> Self:
        self._binding.cluster()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def buffered_bytes(self) -> int:
        """Bytes fetched and not handed out yet."""
        return 0 if self._fetcher is None else self._fetcher.core.buffered_bytes

    # --- assignment and positions ---------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; kept ones keep their position."""
        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        fetcher = self._open()
        cluster = self._binding.cluster()
        for topic in dict.fromkeys(where.topic for where in wanted):
            view = await cluster.topic(topic, cluster.request_timeout_s)
            for where in wanted:
                if where.topic == topic and not 0 <= where.partition < view.partitions:
                    raise InvalidPartition(
                        f"partition {where} does not exist",
                        hint=f"the topic has partitions 0 to {view.partitions - 1}",
                    )
        self._assigned = True
        self.chunk = deque(record for record in self.chunk if record[:2] in wanted)
        fetcher.assign(wanted)

    async def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list((await self._ready()).core.readings)

    async def _chosen(self, partitions: tuple[TopicPartition, ...]) -> list[TopicPartition]:
        fetcher = await self._ready()
        for where in partitions:
            fetcher.core.reading(where)
        return list(partitions) or list(fetcher.core.readings)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self.chunk = deque(r for r in self.chunk if TopicPartition(r[0], r[1]) not in gone)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`; buffered records of the partition are dropped (F8)."""
        check_offset(offset)
        fetcher = self._open() if not self._assigned and not self._topics else await self._ready()
        fetcher.seek(TopicPartition(*partition), offset)
        self._forget([partition])

    async def _seek_by(self, partitions: tuple[TopicPartition, ...], policy: str | int) -> None:
        chosen = await self._chosen(partitions)
        fetcher = self._open()
        fetcher.seek_by(chosen, policy)
        self._forget(chosen)
        await fetcher.resolved(chosen, self._config.request_timeout_ms / 1000)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first retained record of the given (default: all) partitions."""
        await self._seek_by(partitions, "earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue behind the last record; what is sent from now on will be read."""
        await self._seek_by(partitions, "latest")

    async def seek_to_time(self, when: When, *partitions: TopicPartition) -> None:
        """Continue at the first record with a timestamp at or after `when`, else at the end."""
        await self._seek_by(partitions, epoch_ms(when))

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record of `partition` to be handed out."""
        (where,) = await self._chosen((TopicPartition(*partition),))
        fetcher = self._open()
        await fetcher.resolved([where], self._config.request_timeout_ms / 1000)
        for record in self.chunk:
            if record[0] == where.topic and record[1] == where.partition:
                return record.offset
        return fetcher.core.reading(where).position

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of the given (default: all) partitions until `resume`."""
        chosen = await self._chosen(partitions)
        for where in chosen:
            self._open().core.reading(where).paused = True

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        self._open().resume(await self._chosen(partitions))

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """First retained offset of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Offset behind the last readable record of each partition."""
        return await self._offsets(partitions, LATEST)

    async def _offsets(
        self, partitions: tuple[TopicPartition, ...], edge: Edge
    ) -> dict[TopicPartition, int]:
        chosen = await self._chosen(partitions)
        cluster = self._binding.cluster()
        return await list_edges(cluster, chosen, edge, cluster.request_timeout_s)

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Records between position and end, never negative (M1)."""
        ends = await self.end_offsets(*partitions)
        return {where: max(end - await self.position(where), 0) for where, end in ends.items()}

    # --- reading --------------------------------------------------------------------------------

    async def poll(
        self, max_records: int | None = None, timeout: float | None = 1.0
    ) -> list[Record]:
        """Up to `max_records` records; empty when `timeout` seconds passed (F107).

        0 hands out buffered records only; None waits until there is one. Raises what needs the
        user: damaged data, no position with policy none, authorisation.
        """
        limit = self._config.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise ConfigError(f"max_records={limit} must be at least 1")
        if self.chunk:
            count = min(limit, len(self.chunk))
            return [self.chunk.popleft() for _ in range(count)]
        return await self._collect(limit, timeout, None) or []

    async def _collect(
        self,
        max_records: int,
        timeout: float | None,
        limits: Mapping[TopicPartition, int] | None,
    ) -> list[Record] | None:
        """Records; empty after `timeout`; None once every position reached its limit."""
        fetcher = await self._ready()
        core = fetcher.core
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            fetcher.about_to_wait()
            records = core.take_records(max_records, limits)
            if records:
                fetcher.drained()
                return records
            self._check_open()
            if limits is not None and self._reached(limits):
                return None
            error = core.take_error()
            if error is not None:
                fetcher.drained()
                raise error
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return []
            await fetcher.wait_data(left)

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateError("the consumer was closed")

    def _reached(self, limits: Mapping[TopicPartition, int]) -> bool:
        readings = self._open().core.readings
        return all(
            where not in readings or (readings[where].resolved and readings[where].position >= end)
            for where, end in limits.items()
        )

    async def poll_arrow(
        self, max_bytes: int = ARROW_POLL_BYTES, timeout: float | None = 1.0
    ) -> pa.RecordBatch | None:
        """Buffered batches as one RecordBatch with the Kafka-source columns; None after `timeout`.

        The columns are key, value, topic, partition, offset, timestamp, timestampType, headers.
        """
        taken = await self.take_arrow(max_bytes, timeout)
        if taken is None:
            return None
        try:
            return arrow_functions().to_record_batch(taken)
        except OctavoError:
            self.untake_arrow(taken)
            raise

    async def take_arrow(self, max_bytes: int, timeout: float | None) -> list[StoredBatch] | None:
        """The buffered batches of one poll_arrow(), still encoded; None after `timeout`."""
        fetcher = await self._ready()
        self._give_back()
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        max_bytes = min(max_bytes, ARROW_POLL_BYTES_MAX)
        make = arrow_functions().StoredBatch
        while True:
            fetcher.about_to_wait()
            taken = [make(*item) for item in fetcher.core.take_batches(max_bytes)]
            if taken:
                fetcher.drained()
                return taken
            self._check_open()
            error = fetcher.core.take_error()
            if error is not None:
                raise error
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return None
            await fetcher.wait_data(left)

    def untake_arrow(self, taken: Sequence[StoredBatch] | None) -> None:
        """Batches that reached nobody: continue with the first of them; nothing is skipped (F9)."""
        if self._fetcher is None:
            return
        first: dict[TopicPartition, int] = {}
        for item in taken or ():
            first.setdefault(item.where, item.first_offset)
        for where, offset in first.items():
            if where in self._fetcher.core.readings:
                self._fetcher.seek(where, offset)

    def _give_back(self) -> None:
        """Records of an iteration not yielded yet: read them again, now as Arrow."""
        self.rewind(list(self.chunk))
        self.chunk.clear()

    def rewind(self, records: list[Record]) -> None:
        """Records that reached nobody (an interrupted poll): continue with the first of them."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.topic_partition, record.offset)
        if self._fetcher is not None:
            for where, offset in first.items():
                if where in self._fetcher.core.readings:
                    self._fetcher.seek(where, offset)

    async def refill(self) -> bool:
        """Wait for the next records of an iteration; False when the consumer was closed."""
        while not self.chunk:
            if self._closed:
                return False
            try:
                records = await self._collect(self._config.max_poll_records, ITERATION_POLL_S, None)
            except IllegalStateError:
                if self._closed:
                    return False
                raise
            self.chunk.extend(records or ())
        return True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self.chunk and not await self.refill():
            raise StopAsyncIteration
        return self.chunk.popleft()
