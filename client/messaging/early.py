"""Records sent without waiting before their topic's metadata is known.

They wait here, in order and bounded, until the partition count is there; then they are appended
like any other. Only `AsyncProducer.send_nowait` needs it: every other call can wait by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from octavo.client.messaging.accumulator import Row
from octavo.client.messaging.futures import Completion, SendFuture
from octavo.runtime.errors import BufferFull, FlushTimeout, OctavoError

if TYPE_CHECKING:
    from octavo.client.messaging.engine import ProducerEngine

EARLY_RECORDS_MAX = 10_000
"""Records of one topic that may wait for metadata."""


class Early(Completion):
    """Outcome of one early record: its own until appended, then that of its batch."""

    __slots__ = ("count",)

    def __init__(self, topic: str) -> None:
        super().__init__(topic, -1)
        self.count = 1

    def copy(self, future: SendFuture) -> None:
        """Take over the outcome of the record's real future."""
        error = future.exception()
        if error is not None:
            self.fail(error)
            return
        meta = future.result()
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
        row = self._engine.convert(topic, value, key, headers, timestamp_ms)
        queue = self._queues.get(topic)
        if queue is None:
            queue = self._queues[topic] = deque()
            self._tasks[topic] = self._engine.spawn(self._run(topic, queue), f"early-{topic}")
        if len(queue) >= EARLY_RECORDS_MAX:
            raise BufferFull(f"{len(queue)} records wait for the metadata of topic {topic!r}")
        outcome = Early(topic)
        queue.append((row, partition, outcome))
        return SendFuture(outcome, 0)

    async def _run(self, topic: str, queue: deque[tuple[Row, int | None, Early]]) -> None:
        engine = self._engine
        try:
            await engine.ensure_topic(topic)
            while queue:
                row, partition, outcome = queue[0]
                try:
                    future = engine.append(engine.topics[topic], partition, row, False, 0.0)
                except BufferFull:
                    await engine.space(row[4])
                    continue
                except OctavoError as error:
                    self._refuse(outcome, error)
                else:
                    future.add_done_callback(partial(self._done, outcome))
                queue.popleft()
        except OctavoError as error:
            while queue:
                self._refuse(queue.popleft()[2], error)
        finally:
            del self._queues[topic], self._tasks[topic]

    def _done(self, outcome: Early, future: SendFuture) -> None:
        outcome.copy(future)
        if outcome.error is not None:
            self._engine.note_failure(outcome)

    def _refuse(self, outcome: Early, error: OctavoError) -> None:
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
        remaining = sum(map(len, self._queues.values()))
        if remaining:
            raise FlushTimeout(
                f"{remaining} records still wait for their topic's metadata", remaining=remaining
            )

    def abort(self, error: OctavoError) -> None:
        """Fail what waits; the producer ends."""
        for queue in self._queues.values():
            while queue:
                self._refuse(queue.popleft()[2], error)
