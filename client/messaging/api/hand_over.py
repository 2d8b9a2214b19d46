"""Records and batches on their way from the buffers to the caller, and back if they reach nobody.

Nothing is skipped and nothing comes twice (F8, F9): what an interrupted call took is handed out
again, and so is what an iteration had left when the program goes on in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from octavo.client.messaging.api.arrow_access import arrow_reading
from octavo.client.messaging.api.finishing import Finishing
from octavo.client.messaging.api.opening import Opening
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.reading.limits import INT32_MAX, INT64_MAX, check_whole
from octavo.client.messaging.records import Record, TopicPartition
from octavo.runtime.deadline import Deadline, check_timeout
from octavo.runtime.errors import IllegalStateError

if TYPE_CHECKING:
    from octavo.client.messaging.reading.arrow import StoredBatch

ARROW_POLL_BYTES_MAX = 1 << 30
"""The most poll_arrow() can be asked for: the offsets of an Arrow binary column end at 2 GiB."""
T = TypeVar("T")
ITERATION_POLL_S = 60.0
"""How long one internal wait of an iteration lasts; it goes on afterwards."""


class HandOver:
    """Of one consumer."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self.handout = Handout()
        """Records of an iteration's last poll that were not yielded yet."""
        self._tracing = opening.binding.tracing
        self.group_id: str | None = None
        """Of a consumer with a group."""
        finishing = Finishing(opening.config)
        self.finishing = finishing if finishing.needed else None
        """What is done to records where the user is; None: nothing."""

    async def poll_within(self, max_records: int | None, timeout: float | None) -> list[Record]:
        """Records of one poll(), as they are stored."""
        limit = self._limit if max_records is None else max_records
        check_whole("max_records", limit, INT32_MAX, 1)
        deadline = Deadline(self._opening.binding.cluster().clock, check_timeout(timeout))
        self._opening.check_open()
        return await self.poll(limit, deadline)

    async def poll(self, limit: int, deadline: Deadline) -> list[Record]:
        """Records of one poll(); an iteration's rest comes first."""
        if self.handout.ready:
            return self.handout.take(limit)
        return await self.records(limit, deadline) or []

    async def taken(
        self,
        fetcher: Fetcher,
        take: Callable[[], list[T]],
        deadline: Deadline,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> list[T] | None:
        """As `Fetcher.taken`."""
        return await fetcher.taken(take, deadline, ends)

    async def records(
        self,
        max_records: int,
        deadline: Deadline,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> list[Record] | None:
        """Records; empty after `deadline`; None once every position reached its end."""
        fetcher = await self._opening.begun(deadline)
        if fetcher is None:
            return []
        take = partial(fetcher.core.buffers.take_records, max_records, ends)
        began_ns = 0 if self._tracing is None else self._tracing.now_ns()
        records = await self.taken(fetcher, take, deadline, ends)
        if self._tracing is not None and records:
            self._tracing.received(records, began_ns, self.group_id)
        return records

    async def batches(self, max_bytes: int, timeout: float | None) -> list[StoredBatch] | None:
        """The buffered batches of one poll_arrow(), still encoded; None after `timeout` seconds."""
        check_whole("max_bytes", max_bytes, INT64_MAX, 1)
        clock = self._opening.binding.cluster().clock
        deadline = Deadline(clock, check_timeout(timeout))
        fetcher = await self._opening.begun(deadline)
        if fetcher is None:
            return None
        self.give_back()
        size = min(max_bytes, ARROW_POLL_BYTES_MAX)
        take = partial(fetcher.core.buffers.take_batches, size, arrow_reading().StoredBatch)
        began_ns = 0 if self._tracing is None else self._tracing.now_ns()
        batches = await self.taken(fetcher, take, deadline)
        if self._tracing is not None and batches:
            places = {(item.where.topic, item.where.partition) for item in batches}
            rows = sum(item.rows for item in batches)
            self._tracing.received_columns(places, rows, began_ns, self.group_id)
        return batches or None

    async def refill(self) -> bool:
        """Wait for the next records of an iteration; False when the consumer was closed."""
        while not self.handout.ready:
            if self._opening.closed:
                return False
            try:
                records = await self.records(self._limit, self._turn())
            except IllegalStateError:
                if self._opening.closed:
                    return False
                raise
            self.handout.ready.extend(records or ())
        return True

    async def refill_until(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Fetch more of an iteration that stops at `ends`; False when it is complete."""
        while not self.handout.ready:
            records = await self.records(self._limit, self._turn(), ends)
            if records is None:
                return False
            self.handout.ready.extend(records)
        return True

    async def run_until(self, ends: Mapping[TopicPartition, int]) -> list[Record] | None:
        """The next records of a read that stops at `ends`, as they are handed out, perhaps none;
        None when it is complete."""
        records = await self.records(self._limit, self._turn(), ends)
        if records is None or self.finishing is None:
            return records
        return self.finishing.many(records, self.rewind)

    @property
    def _limit(self) -> int:
        return self._opening.config.max_poll_records

    def _turn(self) -> Deadline:
        """Of one internal wait of an iteration, which goes on afterwards."""
        return Deadline(self._opening.binding.cluster().clock, ITERATION_POLL_S)

    # --- back -----------------------------------------------------------------------------------

    def rewind(self, records: Iterable[Record]) -> None:
        """Records that reached nobody (an interrupted poll): continue with the first of them."""
        self._go_back((record.topic_partition, record.offset) for record in records)

    def untake(self, taken: Sequence[StoredBatch] | None) -> None:
        """Batches that reached nobody: continue with the first of them."""
        self._go_back((item.where, item.first_offset) for item in taken or ())

    def give_back(self) -> None:
        """Records of an iteration not yielded yet: they are read again, in another way."""
        self.rewind(self.handout.drain())

    def _go_back(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        first: dict[TopicPartition, int] = {}
        for where, offset in offsets:
            first.setdefault(where, offset)
        if first and self._opening.fetcher is not None:
            self._opening.fetcher.go_back(first)
