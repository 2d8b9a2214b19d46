"""How a consumer begins to read, and how it ends.

Owns its fetcher, made by the first call, and the assignment that the first reading call makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.config import ConsumerConfig
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.limits import partitions_of
from octavo.client.messaging.records import TopicPartition
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import (
    BrokerUnavailable,
    IllegalStateError,
    InvalidPartition,
    OctavoError,
    RequestTimedOut,
)


class Opening:
    """Of one consumer: without `assign()` it reads all partitions of `topics`, from its policy."""

    def __init__(self, binding: Binding, topics: list[str], config: ConsumerConfig) -> None:
        self.binding = binding
        self.topics = topics
        self.config = config
        self.fetcher: Fetcher | None = None
        self.assigned = False
        self.closed = False
        self._task: asyncio.Task[OctavoError | None] | None = None

    def started(self) -> Fetcher:
        """The fetcher, with or without an assignment; IllegalStateError after `close`."""
        cluster = self.binding.cluster()
        if self.closed:
            raise IllegalStateError("the consumer is closed", hint="create a new one")
        if self.fetcher is None:
            self.fetcher = Fetcher(cluster, self.config)
        return self.fetcher

    def check_open(self) -> None:
        """IllegalStateError when it was closed, also while the call was waiting."""
        if self.closed:
            raise IllegalStateError("the consumer was closed")

    async def close(self) -> None:
        """End what runs in the background; harmless when repeated."""
        self.closed = True
        if self.fetcher is not None:
            await self.fetcher.close()

    def deadline(self) -> Deadline:
        """Of a call without a timeout of its own: everything it does together."""
        cluster = self.binding.cluster()
        return Deadline(cluster.clock, self.config.request_timeout_ms / 1000)

    # --- the assignment -------------------------------------------------------------------------

    async def ready(self, deadline: Deadline | None = None) -> Fetcher:
        """The fetcher with an assignment; RequestTimedOut when there is none in time."""
        deadline = deadline or self.deadline()
        fetcher = await self.begun(deadline)
        if fetcher is None:
            raise RequestTimedOut(f"not ready to read within {deadline.timeout_s:g} s")
        return fetcher

    async def begun(self, deadline: Deadline) -> Fetcher | None:
        """The fetcher once the assignment stands; None when it does not by `deadline`.

        The work goes on in the background when nobody waits any more (`poll(timeout=0)` again and
        again gets there, too). Its error is raised once; the next call begins anew.
        """
        fetcher = self.started()
        if self.assigned and self._task is None:
            return fetcher
        if self._task is None:
            self._task = fetcher.spawn(self._try_begin(fetcher), "begin reading")
        task = self._task
        done, _ = await asyncio.wait((task,), timeout=deadline.wait_s())
        self.check_open()
        if not done:
            return None
        if self._task is task:
            self._task = None
        if task.cancelled():  # by who cancels all tasks; the next call begins anew
            raise BrokerUnavailable("beginning to read was cancelled")
        if (error := task.result()) is not None:
            raise error
        return fetcher

    async def _try_begin(self, fetcher: Fetcher) -> OctavoError | None:
        """The shared task behind `begun`; its error is a value because many may wait for it."""
        try:
            await self.begin(fetcher, self.deadline())
        except OctavoError as error:
            return error
        return None

    async def begin(self, fetcher: Fetcher, deadline: Deadline) -> None:
        """Assign what was asked for when the consumer was made, unless `assign` was called."""
        wanted = await self.all_partitions(deadline)
        if not self.assigned:
            fetcher.assign(wanted, followed=self.topics)
            self.assigned = True

    async def all_partitions(self, deadline: Deadline) -> list[TopicPartition]:
        """Those of `topics`; IllegalStateError when there is no topic."""
        if not self.topics:
            raise IllegalStateError("nothing is assigned", hint="call assign() first")
        cluster = self.binding.cluster()
        wanted: list[TopicPartition] = []
        for topic in self.topics:
            view = await cluster.topics.get(topic, deadline.left_s())
            wanted += [TopicPartition(topic, number) for number in range(view.partitions)]
        return wanted

    async def check_exist(self, wanted: list[TopicPartition], deadline: Deadline) -> None:
        """InvalidPartition for one that its topic does not have."""
        cluster = self.binding.cluster()
        for topic in dict.fromkeys(where.topic for where in wanted):
            view = await cluster.topics.get(topic, deadline.left_s())
            for where in wanted:
                if where.topic == topic and where.partition >= view.partitions:
                    raise InvalidPartition(
                        f"partition {where} does not exist",
                        hint=f"the topic has partitions 0 to {view.partitions - 1}",
                    )

    async def chosen(
        self, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> list[TopicPartition]:
        """What a call is about, all of which is assigned: `partitions`, or everything if none."""
        chosen = partitions_of(partitions)
        fetcher = await self.ready(deadline)
        for where in chosen:
            fetcher.core.buffers.reading(where)
        return chosen or list(fetcher.core.readings)
