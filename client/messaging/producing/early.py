"""Records that could not go into a batch when they were sent, and go in as soon as they can.

Two kinds: those sent without waiting before their topic's metadata is known (`EarlySends`; only
`AsyncProducer.send_nowait` needs it, every other call can wait by itself), and those of a signal
handler or finaliser that interrupted a section of its own thread (set aside by `intake`).

An exception out of a signal handler (Ctrl-C) may end what puts them in, at any call. So a record
stays registered until its outcome is somebody's, and `step`, which changes without a call, says
what is known of it:

    WAITING --> HELD --> GOING_IN --> (its batch's outcome is its own; no longer registered)
       ^          |          |
       +-- struck +          +-- struck --> STRUCK: it fails, its fate is unknown

A record that was struck while HELD is not in, so it waits again; one that was GOING_IN may be in:
putting it in once more could store it twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from octavo.client.messaging.partitioner import check_partition
from octavo.client.messaging.producing.accumulator import Row
from octavo.client.messaging.producing.futures import Completion, SendFuture
from octavo.client.messaging.producing.routing import TopicState
from octavo.client.messaging.user_code import leave_later
from octavo.runtime.errors import (
    BufferFull,
    DeliveryFailed,
    FlushTimeout,
    InvalidPartition,
    OctavoError,
    ProducerClosed,
)

if TYPE_CHECKING:
    from octavo.client.messaging.producing.engine import ProducerEngine

WAITING = 0
"""Anybody may put it in."""
HELD = 1
"""One caller has it; it is not in."""
GOING_IN = 2
"""The same caller appends it: it may be in."""
STRUCK = 3
"""That caller was ended by an exception: nobody will know."""


class Early(Completion):
    """One such record. Its outcome is its own until appended, then that of its batch."""

    __slots__ = ("reserved_bytes", "row", "state", "step", "wanted")

    def __init__(
        self, topic: str, wanted: int | None, row: Row, resolver: int, state: TopicState | None
    ) -> None:
        super().__init__(topic, -1, resolver)
        self.wanted = wanted
        """The partition it was sent to; None: by its key, or any."""
        self.row = row
        self.state = state
        """Where it goes in; None as long as the topic is not known."""
        self.step = WAITING
        self.reserved_bytes = 0
        """What it holds of the producer's memory while it is not in."""

    @property
    def records(self) -> int:
        """It is one record's."""
        return 1

    def copy(self, future: SendFuture) -> None:
        """Take over the outcome of the record's real future."""
        if self.done:
            return
        error = future.completion.error
        if error is not None:
            self.fail(error)
            return
        meta = future.result(0)
        self.partition = meta.partition
        self.timestamps_ms = [meta.timestamp_ms]
        self.succeed(meta.offset)


def interrupted_append() -> DeliveryFailed:
    """The error of a record whose append was ended by an exception of a signal handler."""
    return DeliveryFailed(
        "an exception out of a signal handler interrupted the append of this record; it may or "
        "may not be stored",
        hint="read the topic to see what is stored before sending it again",
    )


class EarlySends:
    """The records of one producer that wait for their topic, in order and within `buffer_memory`.

    Loop only.
    """

    def __init__(self, engine: ProducerEngine) -> None:
        self._engine = engine
        self._queues: dict[str, deque[Early]] = {}
        self._tasks: dict[str, asyncio.Task[object]] = {}

    def waiting(self, topic: str) -> bool:
        """Whether records of `topic` still wait, so that later ones must queue behind them."""
        return topic in self._queues

    def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        headers: object,
        timestamp_ms: int | None,
    ) -> SendFuture:
        """Queue one record; raises what `engine.send` raises for a bad one."""
        engine = self._engine
        row = engine.convert(topic, value, key, headers, timestamp_ms)
        if engine.closed is not None:
            raise engine.refusal()
        record = Early(topic, partition, row, engine.accumulator.resolver, None)
        try:
            self._reserve(record, row[4])
            queue = self._queues.get(topic)
            if queue is None:
                queue = deque[Early]()
                task = engine.spawn(self._run(topic, queue), f"early-{topic}")
                self._queues[topic], self._tasks[topic] = queue, task
            queue.append(record)
        except BaseException:
            self._release(record)
            raise
        return SendFuture(record, 0)

    def _reserve(self, record: Early, size_bytes: int) -> None:
        """Take `size_bytes` of the producer's memory, or raise BufferFull."""
        accumulator = self._engine.accumulator
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
        accumulator = self._engine.accumulator
        with accumulator.lock:
            accumulator.free_bytes += record.reserved_bytes
            record.reserved_bytes = 0

    def waiting_records(self) -> int:
        """Records that wait here."""
        return sum(len(queue) for queue in list(self._queues.values()))

    async def _run(self, topic: str, queue: deque[Early]) -> None:
        engine = self._engine
        why: OctavoError = ProducerClosed("the producer ended before the topic was known")
        try:
            await engine.ensure_topic(topic)
            while queue:
                record = queue[0]
                record.state = engine.topics[topic]
                error = self._chosen(record, record.state)
                if error is None:
                    record.step = HELD
                    error = engine.place(record, expedite=False)  # its memory is reserved
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
        router = self._engine.router
        try:
            if record.wanted is not None:
                check_partition(record.topic, record.wanted, len(state.slots))
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
        self._engine.refuse(record, error)

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
