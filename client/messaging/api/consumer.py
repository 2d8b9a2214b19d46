"""The async consumer: assigned partitions, positions, records or Arrow out of them (F7, F8)."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from octavo.client.messaging.api.arrow_access import arrow_reading
from octavo.client.messaging.api.hand_over import HandOver
from octavo.client.messaging.api.opening import Opening
from octavo.client.messaging.reading.limits import (
    When,
    check_offset,
    epoch_ms,
    partitions_of,
)
from octavo.client.messaging.reading.offsets import list_edges
from octavo.client.messaging.records import Record, TopicPartition
from octavo.proto.edges import EARLIEST, LATEST, Edge
from octavo.runtime.deadline import Deadline

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_POLL_BYTES = 4 << 20
"""poll_arrow() takes buffered batches until their uncompressed size reaches this."""


class AsyncConsumer:
    """Reads assigned partitions; made by `AsyncClient.consumer()`.

    Without `assign()`, all partitions of the topics given at creation are read.
    """

    def __init__(self, opening: Opening, hand_over: HandOver | None = None) -> None:
        self.opening = opening
        self._ready = opening.ready
        self.hand_over = hand_over or HandOver(opening)
        self.handout = self.hand_over.handout

    def __repr__(self) -> str:
        opening = self.opening
        named = ", ".join(opening.topics)
        if opening.assigned and opening.fetcher is not None:
            named = f"{len(opening.fetcher.core.readings)} partitions" + (named and f" of {named}")
        more = f", reads {named}" if named else ", nothing assigned"
        kind = type(self).__name__
        return opening.binding.describe(kind, closed=opening.closed, more=more)

    # --- life -----------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Stop reading. Iterations and polls under way end. Closing twice is harmless.

        Nothing is waited for but our own tasks, which end at once; `timeout` changes nothing.
        """
        self.opening.closed = True
        self.opening.binding.forget(self)
        self.handout.drain()
        await self.opening.close()

    async def __aenter__(self) -> Self:
        self.opening.binding.cluster()
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
        fetcher = self.opening.fetcher
        return 0 if fetcher is None else fetcher.core.buffers.buffered_bytes

    # --- assignment and positions ---------------------------------------------------------------

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; kept ones keep their position."""
        wanted = partitions_of(partitions)
        fetcher = self.opening.started()
        await self.opening.check_exist(wanted, self.opening.deadline())
        self.opening.assigned = True
        self.handout.keep(wanted)
        fetcher.assign(wanted)

    async def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list((await self._ready()).core.readings)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`; buffered records of the partition are dropped (F8).

        An offset beyond the end is no position: the next poll raises OffsetOutOfRange.
        """
        check_offset(offset)
        (where,) = partitions_of([partition])
        opening = self.opening
        nothing = not opening.assigned and not opening.topics
        fetcher = opening.started() if nothing else await self._ready()
        fetcher.seek(where, offset, chosen=True)
        self.handout.forget([where])

    async def _seek_by(self, partitions: tuple[TopicPartition, ...], policy: str | int) -> None:
        deadline = self.opening.deadline()
        chosen = await self.opening.chosen(partitions, deadline)
        fetcher = self.opening.started()
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
        return await self._position(partition, self.opening.deadline())

    async def _position(self, partition: TopicPartition, deadline: Deadline) -> int:
        (where,) = await self.opening.chosen([partition], deadline)
        fetcher = self.opening.started()
        await fetcher.resolved([where], deadline)
        first = self.handout.first_offset(where)
        return fetcher.core.buffers.reading(where).position if first is None else first

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of the given (default: all) partitions until `resume`.

        An iteration under way yields nothing of them either, from its next record on.
        """
        chosen = await self.opening.chosen(partitions)
        self.opening.started().pause(chosen)
        self.handout.park(chosen)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        chosen = await self.opening.chosen(partitions)
        self.handout.release(chosen)
        self.opening.started().resume(chosen)

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """First retained offset of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Offset behind the last readable record of each partition."""
        return await self._offsets(partitions, LATEST)

    async def _offsets(
        self, partitions: tuple[TopicPartition, ...], edge: Edge, deadline: Deadline | None = None
    ) -> dict[TopicPartition, int]:
        deadline = deadline or self.opening.deadline()
        chosen = await self.opening.chosen(partitions, deadline)
        return await list_edges(self.opening.binding.cluster(), chosen, edge, deadline)

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Records between position and end, never negative (M1)."""
        deadline = self.opening.deadline()
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
        records = await self.hand_over.poll_within(max_records, timeout)
        if self.hand_over.finishing is None:
            return records
        return self.hand_over.finishing.many(records, self.hand_over.rewind)

    async def poll_arrow(
        self, max_bytes: int = ARROW_POLL_BYTES, timeout: float | None = 1.0
    ) -> pa.RecordBatch | None:
        """Buffered batches as one RecordBatch with the Kafka-source columns; None after `timeout`.

        The columns are key, value, topic, partition, offset, timestamp, timestampType, headers.
        """
        taken = await self.hand_over.batches(max_bytes, timeout)
        if taken is None:
            return None
        try:
            made = arrow_reading().to_record_batch(taken)
        except BaseException:
            self.hand_over.untake(taken)
            raise
        return made

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        handout = self.handout
        at_hand = handout.ready and monotonic() < handout.good_until_s
        if not at_hand and not await self.hand_over.refill():
            raise StopAsyncIteration
        record = handout.ready[0]
        if self.hand_over.finishing is not None:
            record = self.hand_over.finishing.one(record)
        del handout.ready[0]  # no call, so no Ctrl-C, between this and the caller
        return record
