"""Records sent without waiting before their topic's metadata is known.

They wait here, in order and within `buffer_memory`, until the partition count is there; then they
are appended like any other. Only `AsyncProducer.send_nowait` needs it: every other call can wait by
itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from octavo.client.messaging.accumulator import Row
from octavo.client.messaging.futures import Completion, SendFuture, leave_later
from octavo.runtime.errors import (
    BufferFull,
    FlushTimeout,
    InvalidPartition,
    OctavoError,
    ProducerClosed,
)

if TYPE_CHECKING:
    from octavo.client.messaging.engine import ProducerEngine


class Early(Completion):
    """Outcome of one early record: its own until appended, then that of its batch."""

    __slots__ = ()

    def __init__(self, topic: str, resolver: int = 0) -> None:
        super().__init__(topic, -1, resolver)

    @property
    def records(self) -> int:
        """It is one record's."""
        return 1

    def copy(self, future: SendFuture) -> None:
        """Take over the outcome of the record's real future."""
        error = future.completion.error
        if error is not None:
            self.fail(error)
            return
        meta = future.result(0)
        self.partition = meta.partition
        self.timestamps_ms = [meta.timestamp_ms]
        self.succeed(meta.offset)


class EarlySends:
    """The waiting records of one producer, by topic. Loop only."""

    def __init__(self, engine: ProducerEngine) -> None:
        self._engine = engine
        self._queues: dict[str, deque[tuple[Row, int | None, Early]]] = {}
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
        if not self._reserve(row[4]):
            raise BufferFull(
                f"{self.waiting_records()} records wait for metadata, which fills buffer_memory of "
                f"{engine.accumulator.buffer_memory} bytes"
            )
        queue = self._queues.get(topic)
        if queue is None:
            queue = self._queues[topic] = deque()
            self._tasks[topic] = self._engine.spawn(self._run(topic, queue), f"early-{topic}")
        outcome = Early(topic, engine.accumulator.resolver)
        queue.append((row, partition, outcome))
        return SendFuture(outcome, 0)

    def _reserve(self, size_bytes: int) -> bool:
        """Take `size_bytes` of the producer's memory; negative to give it back."""
        accumulator = self._engine.accumulator
        with accumulator.lock:
            if accumulator.free_bytes < size_bytes:
                return False
            accumulator.free_bytes -= size_bytes
        return True

    def waiting_records(self) -> int:
        """Records that wait here."""
        return sum(len(queue) for queue in list(self._queues.values()))

    async def _run(self, topic: str, queue: deque[tuple[Row, int | None, Early]]) -> None:
        engine = self._engine
        why: OctavoError = ProducerClosed("the producer was closed before the topic was known")
        try:
            await engine.ensure_topic(topic)
            while queue:
                row, partition, outcome = queue[0]
                self._reserve(-row[4])
                try:
                    future = engine.append(engine.topics[topic], partition, row, False, 0.0)
                except BufferFull:
                    self._reserve(row[4])
                    await engine.space(row[4])
                    continue
                except OctavoError as error:
                    outcome.fail(error)
                    engine.note_failure(outcome)
                except BaseException as error:  # noqa: BLE001  a user's partitioner: its record's fault
                    outcome.fail(_partitioner_failed(error))
                    engine.note_failure(outcome)
                    if isinstance(error, KeyboardInterrupt):  # not of this record: it goes on
                        leave_later(error)
                else:
                    future.completion.when_done(partial(self._done, outcome, future))
                queue.popleft()
        except OctavoError as error:
            why = error
        finally:
            while queue:
                self._refuse(*queue.popleft(), why)
            del self._queues[topic], self._tasks[topic]

    def _done(self, outcome: Early, future: SendFuture) -> None:
        outcome.copy(future)
        if outcome.error is not None:
            self._engine.note_failure(outcome)

    def _refuse(self, row: Row, _: int | None, outcome: Early, error: OctavoError) -> None:
        self._reserve(-row[4])
        outcome.fail(error)
        self._engine.note_failure(outcome)

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
        for queue in self._queues.values():
            while queue:
                self._refuse(*queue.popleft(), error)


def _partitioner_failed(error: BaseException) -> InvalidPartition:
    failure = InvalidPartition(
        f"the partitioner raised {error!r}", hint="it must return a number from 0 to partitions - 1"
    )
    failure.__cause__ = error
    return failure
