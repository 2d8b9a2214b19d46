"""Records sent without waiting before their topic's metadata is known; they go in once it is.

Only `AsyncProducer.send_nowait` needs this: every other call can wait by itself. Loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine

from octavo.client.messaging.producing.batches import Row
from octavo.client.messaging.producing.early import (
    GOING_IN,
    HELD,
    STRUCK,
    Early,
    interrupted_append,
)
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.routing import TopicState
from octavo.client.messaging.producing.terms import Terms
from octavo.client.messaging.user_code import leave_later
from octavo.runtime.errors import (
    BufferFull,
    FlushTimeout,
    InvalidPartition,
    OctavoError,
    ProducerClosed,
)


class EarlySends:
    """The records of one producer that wait for their topic, in order and within `buffer_memory`.

    Loop only. `spawn` starts a task that ends with the producer; `ensure_topic` waits until the
    intake knows a topic.
    """

    def __init__(
        self,
        intake: Intake,
        spawn: Callable[[Coroutine[object, object, None], str], asyncio.Task[object]],
        ensure_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        self._intake = intake
        self._spawn = spawn
        self._ensure_topic = ensure_topic
        self._queues: dict[str, deque[Early]] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}

    def waiting(self, topic: str) -> bool:
        """Whether records of `topic` still wait, so that later ones must queue behind them."""
        return topic in self._queues

    def send(self, topic: str, partition: int | None, row: Row, terms: Terms) -> SendFuture:
        """Queue one converted record; raises BufferFull when the producer's memory is full."""
        intake = self._intake
        if intake.closed is not None:
            raise intake.refusal()
        record = Early(topic, partition, row, intake.accumulator.resolver, None, terms=terms)
        try:
            self._reserve(record, row[4])
            queue = self._queues.get(topic)
            if queue is None:
                queue = deque[Early]()
                task = self._spawn(self._run(topic, queue), f"early-{topic}")
                self._queues[topic], self._tasks[topic] = queue, task
            queue.append(record)
        except BaseException:
            self._release(record)
            raise
        return SendFuture(record, 0)

    def _reserve(self, record: Early, size_bytes: int) -> None:
        """Take `size_bytes` of the producer's memory, or raise BufferFull."""
        accumulator = self._intake.accumulator
        with accumulator.lock:
            if accumulator.free_bytes >= size_bytes:
                accumulator.free_bytes -= size_bytes
                record.reserved_bytes = size_bytes
                return
        raise BufferFull(
            f"{self.waiting_records()} records wait for metadata, which fills buffer_memory of "
            f"{accumulator.buffer_memory} bytes"
        )

    def _release(self, record: Early) -> None:
        """Give its memory back, if it still holds any."""
        accumulator = self._intake.accumulator
        with accumulator.lock:
            accumulator.free_bytes += record.reserved_bytes
            record.reserved_bytes = 0

    def waiting_records(self) -> int:
        """Records that wait here."""
        return sum(len(queue) for queue in list(self._queues.values()))

    async def _run(self, topic: str, queue: deque[Early]) -> None:
        intake = self._intake
        why: OctavoError = ProducerClosed("the producer ended before the topic was known")
        try:
            await self._ensure_topic(topic)
            while queue:
                record = queue[0]
                record.state = intake.topics[topic]
                error = self._chosen(record, record.state)
                if error is None:
                    record.step = HELD
                    error = intake.place(record, expedite=False)  # its memory is reserved
                if error is not None:
                    self._refuse(record, error)
                queue.popleft()
        except OctavoError as error:
            why = error
        finally:
            self._refuse_all(queue, why)
            self._queues.pop(topic, None)
            self._tasks.pop(topic, None)

    def _chosen(self, record: Early, state: TopicState) -> OctavoError | None:
        """Let a user's partitioner choose; why there is no such partition, else None."""
        router = self._intake.router
        try:
            if record.wanted is not None:
                state.check_named(record.wanted)
            elif router.custom is not None:
                _, key, value, headers, _ = record.row
                record.wanted = router.custom_choice(state, key, value, headers)
        except OctavoError as error:
            return error
        except BaseException as error:  # noqa: BLE001  a user's partitioner: its record's fault
            if isinstance(error, KeyboardInterrupt):  # not of this record: it goes on
                leave_later(error)
            return _partitioner_failed(error)
        return None

    def _refuse(self, record: Early, error: OctavoError) -> None:
        self._release(record)
        self._intake.refuse(record, error)

    def _refuse_all(self, queue: deque[Early], why: OctavoError) -> None:
        """Fail what waits. A record leaves its queue last: whoever is ended here is followed."""
        for record in list(queue):
            going_in = record.step in (GOING_IN, STRUCK)
            self._refuse(record, interrupted_append() if going_in else why)
        queue.clear()

    async def drained(self, topic: str) -> None:
        """Until no record of `topic` waits here."""
        task = self._tasks.get(topic)
        if task is not None:
            await asyncio.wait((task,))

    async def all_drained(self, timeout_s: float | None) -> None:
        """Until none waits; FlushTimeout when `timeout_s` passes first."""
        if not self._tasks:
            return
        await asyncio.wait(tuple(self._tasks.values()), timeout=timeout_s)
        remaining = self.waiting_records()
        if remaining:
            raise FlushTimeout(
                f"{remaining} records still wait for their topic's metadata", remaining=remaining
            )

    def abort(self, error: OctavoError) -> None:
        """Fail what waits; the producer ends."""
        for queue in list(self._queues.values()):
            self._refuse_all(queue, error)


def _partitioner_failed(error: BaseException) -> InvalidPartition:
    failure = InvalidPartition(
        f"the partitioner raised {error!r}", hint="it must return a number from 0 to partitions - 1"
    )
    failure.__cause__ = error
    return failure
