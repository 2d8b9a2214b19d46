"""What a cluster tells of its topics, and a cluster as the exporter reads it.

A broker is asked once for the segments of a topic; batches then come from the bookies. Fills the
values of `octavo.client.exports.log_view` and serves its two protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager

from octavo.client.exports.log_view import FollowSource, PartitionLog, TopicLog
from octavo.client.messaging import AsyncClient
from octavo.client.messaging.api.admin import AsyncAdmin
from octavo.client.messaging.api.descriptions import LogDescription
from octavo.client.segments.reader import DescribedLedgers
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import InconsistentTopicId, UnknownTopic
from octavo.spark.ledger_reading import CLIENT_NAME, LedgerBatches
from octavo.spark.options import ReadOptions
from octavo.spark.tiered_batches import tiered_batches

CONNECT_TIMEOUT_S = 10.0
"""A query on an unreachable cluster fails after this, naming every address tried."""
DESCRIBE_PARALLEL = 16
"""Partitions asked for at once."""


class ClusterLog(LedgerBatches):
    """`FollowSource` over a connected client."""

    def __init__(self, admin: AsyncAdmin) -> None:
        super().__init__(DescribedLedgers({}, CLIENT_NAME))
        self._admin = admin
        self._log: TopicLog | None = None

    async def describe(self, topic: str) -> TopicLog:
        """See `LogSource.describe`."""
        found = await describe(self._admin, topic)
        self.ledgers.learn(found.addresses)
        self._log = found
        return found

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """See `BatchSource.batches`; of what is on no bookie from the files of the tier."""
        if segment.in_ledger or self._log is None:
            found = super().batches(segment, start_offset, visible_end)
        else:
            found = tiered_batches(self._log, segment, start_offset)
        async with aclosing(found):
            async for stored in found:
                yield stored

    async def roll(self, topic: str, partition: int) -> None:
        """See `FollowSource.roll`."""
        await self._admin.roll(topic, partition)

    async def topics(self) -> list[str]:
        """See `FollowSource.topics`."""
        return [one.name for one in await self._admin.list_topics()]


async def describe(admin: AsyncAdmin, topic: str) -> TopicLog:
    """The topic's segments now; raises UnknownTopic, InconsistentTopicId."""
    found = await admin.describe_topic(topic)
    gate = asyncio.Semaphore(DESCRIBE_PARALLEL)

    async def one(partition: int) -> LogDescription:
        async with gate:
            return await admin.describe_log(topic, partition)

    logs = await asyncio.gather(*(one(part.partition) for part in found.partitions))
    if any(log.topic_id != found.topic_id for log in logs):
        raise InconsistentTopicId(
            f"topic {topic!r} was created again while its segments were asked for",
            hint="ask again",
            topic=topic,
        )
    return TopicLog(
        topic=topic,
        topic_id=found.topic_id,
        partitions={log.partition: partition_log(log) for log in logs},
        addresses={b.bookie_id: b.wire_address for log in logs for b in log.bookies},
        tier_tree=max((log.tier_tree for log in logs), default=""),
    )


def partition_log(log: LogDescription) -> PartitionLog:
    """What was described; a high watermark beyond the last segment's end promises nothing."""
    end = log.high_watermark
    if log.segments:
        end = log.segments[-1].end_below(end)
    return PartitionLog(log.partition, log.log_start, end, log.segments)


@asynccontextmanager
async def cluster_log(bootstrap: str) -> AsyncGenerator[FollowSource, None]:
    """A cluster as the exporter sees it; raises BrokerUnavailable when nobody answers."""
    async with AsyncClient(bootstrap) as client:
        await client.connect(timeout=CONNECT_TIMEOUT_S)
        source = ClusterLog(client.admin)
        try:
            yield source
        finally:
            await source.ledgers.close()


async def describe_subscribed(
    admin: AsyncAdmin, options: ReadOptions
) -> tuple[dict[str, TopicLog], list[str]]:
    """The subscribed topics of the cluster now, and the named ones that it does not have."""
    names = [*options.topics, *options.assign]
    if options.pattern is not None:
        names = [one.name for one in await admin.list_topics() if options.wants(one.name)]
    found: dict[str, TopicLog] = {}
    missing: list[str] = []
    for name in names:
        try:
            found[name] = await describe(admin, name)
        except UnknownTopic:
            if options.pattern is None:  # else it was deleted since the list was made
                missing.append(name)
    return found, missing


def describe_topics(options: ReadOptions, also_known: Mapping[str, object]) -> dict[str, TopicLog]:
    """The subscribed topics of the cluster now.

    Raises UnknownTopic for one that neither the cluster nor `also_known` has.
    """

    async def run() -> dict[str, TopicLog]:
        async with AsyncClient(options.bootstrap or "") as client:
            await client.connect(timeout=CONNECT_TIMEOUT_S)
            found, missing = await describe_subscribed(client.admin, options)
            for name in missing:
                if name not in also_known:
                    raise UnknownTopic(f"topic {name!r} does not exist")
            return found

    return asyncio.run(run())
