"""Streams that read a cluster: one client for the life of the query, on a loop of its own.

Spark asks for the latest offset a hundred times a second when nothing comes. So a trigger first
asks only for the ends of the partitions, and for segments and bookies when one of them has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from octavo.client.messaging import AsyncClient, TopicPartition
from octavo.client.messaging.api.descriptions import TopicDescription
from octavo.client.messaging.sync.loop_thread import LoopThread
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import RetriableError, UnknownTopic
from octavo.spark.exported import ExportedTopics
from octavo.spark.live import CONNECT_TIMEOUT_S, describe_subscribed
from octavo.spark.live_reading import read_split
from octavo.spark.options import ReadOptions, StreamOptions
from octavo.spark.plan import PartitionView, TimeLookup
from octavo.spark.positions import Positions
from octavo.spark.reading import assigned, time_lookup, views
from octavo.spark.stream_core import Head
from octavo.spark.streaming import StreamPlanner, heads_of

TOPICS_AGE_S = 1.0
"""How old the list of topics and partitions may be that a trigger goes by. Records are never late
for it: a new partition is found this much later."""
TOPICS_PARALLEL = 16
"""Topics whose ends are asked for at once."""
ENDS_TIMEOUT_S = 30.0
"""For the ends of one topic; a query ends with an error when brokers are away for longer."""
ENDS_ATTEMPT_S = 5.0
"""After which it is asked whether the topic still exists."""

PUBLISH_TIMEOUT_S = 5.0
"""For telling a group where the query is: a trigger waits for it no longer."""


class ClusterWorld:
    """`StreamWorld` over a cluster, with exported files where there are some.

    Raises BrokerUnavailable when no broker answers in time.
    """

    def __init__(self, options: ReadOptions, *, clock: Clock | None = None) -> None:
        self._options = options
        self._exported = ExportedTopics(options)
        self._clock = clock or SystemClock()
        self._thread = LoopThread("octavo-stream", lambda _thread: None)
        self._client: AsyncClient | None = None
        self._topics: dict[str, tuple[str, list[int]]] = {}
        self._topics_s: float | None = None
        self._find: TimeLookup = time_lookup(read_split)

    def heads(self) -> Mapping[str, Head]:
        """See `StreamWorld`."""
        if self._options.path is not None:
            return heads_of(self.views())
        return self._thread.run(self._heads())

    def views(self) -> Sequence[PartitionView]:
        """See `StreamWorld`."""
        exported = self._exported.load()

        async def describe() -> list[PartitionView]:
            client = await self._connected()
            logs, _missing = await describe_subscribed(client.admin, self._options)
            return views(self._options, exported, logs)

        return self._thread.run(describe())

    def find(self, view: PartitionView, time_ms: int) -> int | None:
        """See `StreamWorld`."""
        return self._find(view, time_ms)

    def publish(self, group: str, positions: Positions) -> None:
        """Store positions as what a group has committed."""
        offsets = {
            TopicPartition(topic, partition): offset
            for topic, inner in positions.next_offsets.items()
            for partition, offset in inner.items()
        }

        async def store() -> None:
            client = await self._connected()
            await client.admin.commit_offsets(
                group, offsets, topic_ids=positions.topic_ids, timeout=PUBLISH_TIMEOUT_S
            )

        self._thread.run(store())

    def close(self) -> None:
        """See `StreamWorld`."""
        if self._client is not None and not self._thread.closed:
            self._thread.run(self._client.close())
        self._thread.stop()

    async def _connected(self) -> AsyncClient:
        if self._client is None:
            client = AsyncClient(self._options.bootstrap or "")
            await client.connect(timeout=CONNECT_TIMEOUT_S)
            self._client = client
        return self._client

    async def _heads(self) -> Mapping[str, Head]:
        client = await self._connected()
        now_s = self._clock.monotonic()
        if self._topics_s is None or now_s - self._topics_s >= TOPICS_AGE_S:
            self._topics = await self._subscribed(client)
            self._topics_s = now_s
        gate = asyncio.Semaphore(TOPICS_PARALLEL)

        async def ends_of(topic: str) -> dict[int, int | None]:
            async with gate:
                return await self._ends(client, topic)

        names = list(self._topics)
        found: dict[str, Head] = {}
        for topic, ends in zip(names, await asyncio.gather(*map(ends_of, names)), strict=True):
            if topic in self._topics:
                topic_id, partitions = self._topics[topic]
                known = {one: end for one in partitions if (end := ends.get(one)) is not None}
                found[topic] = Head(topic_id, known)
        return found

    async def _ends(self, client: AsyncClient, topic: str) -> dict[int, int | None]:
        """The ends of a topic; nothing, and it is forgotten, once it does not exist any more."""
        deadline = Deadline(self._clock, ENDS_TIMEOUT_S)
        while True:
            try:
                limit_s = deadline.left_s(ENDS_ATTEMPT_S)
                return await client.admin.list_offsets(topic, "latest", timeout=limit_s)
            except UnknownTopic:  # an owner may only not have heard of it yet
                self._topics = await self._subscribed(client)
                if topic not in self._topics:
                    return {}
                if deadline.left_s() <= 0:
                    raise
            except RetriableError:
                if deadline.left_s() <= 0:
                    raise

    async def _subscribed(self, client: AsyncClient) -> dict[str, tuple[str, list[int]]]:
        """Ids and subscribed partitions of the topics that exist."""
        options = self._options
        if options.pattern is not None:
            told = [one for one in await client.admin.list_topics() if options.wants(one.name)]
        else:
            told = list[TopicDescription]()
            for name in (*options.topics, *options.assign):
                try:
                    told.append(await client.admin.describe_topic(name))
                except UnknownTopic:
                    continue  # what that means the core knows: the stream may have read it
        return {
            one.name: (
                one.topic_id,
                assigned(options, one.name, {part.partition for part in one.partitions}),
            )
            for one in told
        }


def plan_stream(options: StreamOptions) -> StreamPlanner:
    """A stream over a cluster; connects when it is first asked."""
    world = ClusterWorld(options.read)
    return StreamPlanner(options, world, publish=world.publish)
