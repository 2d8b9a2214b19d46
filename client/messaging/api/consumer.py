"""The async consumer: assigned partitions, positions, records or Arrow out of them (F7, F8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from octavo.client.messaging.api.arrow_access import arrow_reading
from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.reading.limits import (
    INT32_MAX,
    INT64_MAX,
    When,
    check_offset,
    check_whole,
    epoch_ms,
    partitions_of,
)
from octavo.client.messaging.reading.offsets import list_edges
from octavo.client.messaging.records import Record, TopicPartition
from octavo.proto.edges import EARLIEST, LATEST, Edge
from octavo.runtime.deadline import Deadline, check_timeout
from octavo.runtime.errors import (
    BrokerUnavailable,
    IllegalStateError,
    InvalidPartition,
    OctavoError,
    RequestTimedOut,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.client.messaging.reading.arrow import StoredBatch

ARROW_POLL_BYTES = 4 << 20
"""poll_arrow() takes buffered batches until their uncompressed size reaches this."""
ARROW_POLL_BYTES_MAX = 1 << 30
"""The most it can be asked for: the offsets of an Arrow binary column end at 2 GiB."""
ITERATION_POLL_S = 60.0
"""How long one internal wait of an iteration lasts; it goes on afterwards."""


class AsyncConsumer:
    """Reads assigned partitions; made by `AsyncClient.consumer()`.

    Without `assign()`, all partitions of the topics given at creation are read.
    """

    def __init__(self, binding: Binding, topics: list[str], config: ConsumerConfig) -> None:
        self._binding = binding
        self._topics = topics
        self._config = config
        self.fetcher: Fetcher | None = None
        self._assigned = False
        self._closed = False
        self._opening: asyncio.Task[OctavoError | None] | None = None
        self.handout = Handout()
        """Records of an iteration's last poll that were not yielded yet."""

    def __repr__(self) -> str:
        named = ", ".join(self._topics)
        if self._assigned and self.fetcher is not None:
            named = f"{len(self.fetcher.core.readings)} partitions" + (named and f" of {named}")
        more = f", reads {named}" if named else ", nothing assigned"
        return self._binding.describe(type(self).__name__, closed=self._closed, more=more)

    # --- life -----------------------------------------------------------------------------------

    def _open(self) -> Fetcher:
        cluster = self._binding.cluster()
        if self._closed:
            raise IllegalStateError("the consumer is closed", hint="create a new one")
        if self.fetcher is None:
            self.fetcher = Fetcher(cluster, self._config)
        return self.fetcher

    def _deadline(self) -> Deadline:
        """Of a call without a timeout of its own: everything it does together."""
        cluster = self._binding.cluster()
        return Deadline(cluster.clock, self._config.request_timeout_ms / 1000)

    async def _ready(self, deadline: Deadline | None = None) -> Fetcher:
        """The fetcher with an assignment; RequestTimedOut when there is none in time."""
        fetcher = self._open()
        deadline = deadline or self._deadline()
        if not await self._opened(deadline):
            raise RequestTimedOut(f"not ready to read within {deadline.timeout_s:g} s")
        return fetcher

    async def _opened(self, deadline: Deadline) -> bool:
        """Whether the assignment stands, waiting for it until `deadline` at most.

        The work goes on in the background when nobody waits any more (`poll(timeout=0)` again and
        again gets there, too). Its error is raised once; the next call begins anew.
        """
        fetcher = self._open()
        if self._assigned and self._opening is None:
            return True
        if self._opening is None:
            self._opening = fetcher.spawn(self._try_begin(fetcher), "begin reading")
        task = self._opening
        done, _ = await asyncio.wait((task,), timeout=deadline.wait_s())
        self._check_open()
        if not done:
            return False
        if self._opening is task:
            self._opening = None
        if task.cancelled():  # by who cancels all tasks; the next call begins anew
            raise BrokerUnavailable("beginning to read was cancelled")
        if (error := task.result()) is not None:
            raise error
        return True

    async def _try_begin(self, fetcher: Fetcher) -> OctavoError | None:
        """The shared task behind `_opened`; its error is a value because many may wait for it."""
        try:
            await self._begin(fetcher, self._deadline())
        except OctavoError as error:
            return error
        return None

    async def _begin(self, fetcher: Fetcher, deadline: Deadline) -> None:
        """Assign what was asked for when the consumer was made, unless assign() was called."""
        wanted = await self._all_partitions(deadline)
        if not self._assigned:
            fetcher.assign(wanted, followed=self._topics)
            self._assigned = True

    async def _all_partitions(self, deadline: Deadline) -> list[TopicPartition]:
        if not self._topics:
            raise IllegalStateError("nothing is assigned", hint="call assign() first")
        cluster = self._binding.cluster()
        wanted: list[TopicPartition] = []
        for topic in self._topics:
            view = await cluster.topics.get(topic, deadline.left_s())
            wanted += [TopicPartition(topic, number) for number in range(view.partitions)]
        return wanted

    async def close(self, timeout: float | None = None) -> None:
        """Stop reading. Iterations and polls under way end. Closing twice is harmless.

        Nothing is waited for but our own tasks, which end at once; `timeout` changes nothing.
        """
        self._closed = True
        self._binding.forget(self)
        self.handout.drain()
        if self.fetcher is not None:
            await self.fetcher.close()

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
        return 0 if self.fetcher is None else self.fetcher.core.buffers.buffered_bytes

    # --- assignment and positions ---------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; kept ones keep their position."""
        wanted = partitions_of(partitions)
        fetcher = self._open()
        await self._check_exist(wanted, self._deadline())
        self._assigned = True
        self.handout.keep(wanted)
        fetcher.assign(wanted)

    async def _check_exist(self, wanted: list[TopicPartition], deadline: Deadline) -> None:
        cluster = self._binding.cluster()
        for topic in dict.fromkeys(where.topic for where in wanted):
            view = await cluster.topics.get(topic, deadline.left_s())
            for where in wanted:
                if where.topic == topic and where.partition >= view.partitions:
                    raise InvalidPartition(
                        f"partition {where} does not exist",
                        hint=f"the topic has partitions 0 to {view.partitions - 1}",
                    )

    async def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list((await self._ready()).core.readings)

    async def _chosen(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> list[TopicPartition]:
        chosen = partitions_of(partitions)
        fetcher = await self._ready(deadline)
        for where in chosen:
            fetcher.core.buffers.reading(where)
        return chosen or list(fetcher.core.readings)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`; buffered records of the partition are dropped (F8).

        An offset beyond the end is no position: the next poll raises OffsetOutOfRange.
        """
        check_offset(offset)
        (where,) = partitions_of([partition])
        fetcher = self._open() if not self._assigned and not self._topics else await self._ready()
        fetcher.seek(where, offset, chosen=True)
        self.handout.forget([where])

    async def _seek_by(self, partitions: tuple[TopicPartition, ...], policy: str | int) -> None:
        deadline = self._deadline()
        chosen = await self._chosen(partitions, deadline)
        fetcher = self._open()
        fetcher.seek_by(chosen, policy)
        self.handout.forget(chosen)
        await fetcher.resolved(chosen, deadline)

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
        return await self._position(partition, self._deadline())

    async def _position(self, partition: TopicPartition, deadline: Deadline) -> int:
        (where,) = await self._chosen([partition], deadline)
        fetcher = self._open()
        await fetcher.resolved([where], deadline)
        first = self.handout.first_offset(where)
        return fetcher.core.buffers.reading(where).position if first is None else first

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of the given (default: all) partitions until `resume`.

        An iteration under way yields nothing of them either, from its next record on.
        """
        chosen = await self._chosen(partitions)
        self._open().pause(chosen)
        self.handout.park(chosen)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        chosen = await self._chosen(partitions)
        self.handout.release(chosen)
        self._open().resume(chosen)

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """First retained offset of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Offset behind the last readable record of each partition."""
        return await self._offsets(partitions, LATEST)

    async def _offsets(
        self, partitions: tuple[TopicPartition, ...], edge: Edge, deadline: Deadline | None = None
    ) -> dict[TopicPartition, int]:
        deadline = deadline or self._deadline()
        chosen = await self._chosen(partitions, deadline)
        return await list_edges(self._binding.cluster(), chosen, edge, deadline)

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Records between position and end, never negative (M1)."""
        deadline = self._deadline()
        ends = await self._offsets(partitions, LATEST, deadline)
        return {
            where: max(end - await self._position(where, deadline), 0)
            for where, end in ends.items()
        }

    # --- reading --------------------------------------------------------------------------------

    async def poll(
        self, max_records: int | None = None, timeout: float | None = 1.0
    ) -> list[Record]:
        """Up to `max_records` records; empty when `timeout` seconds passed (F107).

        0 hands out buffered records only; None waits until there is one. Raises what needs the
        user: damaged data, no position with policy none, an offset that does not exist.
        """
        limit = self._config.max_poll_records if max_records is None else max_records
        check_whole("max_records", limit, INT32_MAX, 1)
        deadline = Deadline(self._binding.cluster().clock, check_timeout(timeout))
        self._check_open()
        if self.handout.ready:
            return self.handout.take(limit)
        return await self._collect(limit, deadline, None) or []

    async def _collect(
        self,
        max_records: int,
        deadline: Deadline,
        limits: Mapping[TopicPartition, int] | None,
    ) -> list[Record] | None:
        """Records; empty after `deadline`; None once every position reached its limit."""
        if not await self._opened(deadline):
            return []
        fetcher = self._open()
        take = partial(fetcher.core.buffers.take_records, max_records, limits)
        return await fetcher.taken(take, deadline, limits)

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateError("the consumer was closed")

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
            made = arrow_reading().to_record_batch(taken)
        except BaseException:
            self.untake_arrow(taken)
            raise
        return made

    async def take_arrow(self, max_bytes: int, timeout: float | None) -> list[StoredBatch] | None:
        """The buffered batches of one poll_arrow(), still encoded; None after `timeout`."""
        check_whole("max_bytes", max_bytes, INT64_MAX, 1)
        deadline = Deadline(self._binding.cluster().clock, check_timeout(timeout))
        if not await self._opened(deadline):
            return None
        fetcher = self._open()
        self._give_back()
        size = min(max_bytes, ARROW_POLL_BYTES_MAX)
        take = partial(fetcher.core.buffers.take_batches, size, arrow_reading().StoredBatch)
        return await fetcher.taken(take, deadline) or None

    def untake_arrow(self, taken: Sequence[StoredBatch] | None) -> None:
        """Batches that reached nobody: continue with the first of them; nothing is skipped (F9)."""
        first: dict[TopicPartition, int] = {}
        for item in taken or ():
            first.setdefault(item.where, item.first_offset)
        if self.fetcher is not None:
            self.fetcher.go_back(first)

    def _give_back(self) -> None:
        """Records of an iteration not yielded yet: read them again, now as Arrow."""
        self.rewind(self.handout.drain())

    def rewind(self, records: list[Record]) -> None:
        """Records that reached nobody (an interrupted poll): continue with the first of them."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(record.topic_partition, record.offset)
        if self.fetcher is not None:
            self.fetcher.go_back(first)

    async def refill(self) -> bool:
        """Wait for the next records of an iteration; False when the consumer was closed."""
        while not self.handout.ready:
            if self._closed:
                return False
            try:
                records = await self._collect(self._config.max_poll_records, self._turn(), None)
            except IllegalStateError:
                if self._closed:
                    return False
                raise
            self.handout.ready.extend(records or ())
        return True

    def _turn(self) -> Deadline:
        """Of one internal wait of an iteration, which goes on afterwards."""
        return Deadline(self._binding.cluster().clock, ITERATION_POLL_S)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self.handout.ready and not await self.refill():
            raise StopAsyncIteration
        record = self.handout.ready[0]
        del self.handout.ready[0]  # no call, so no Ctrl-C, between this and the caller
        return record
