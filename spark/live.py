"""The only module of this folder that knows brokers and bookies.

A broker is asked once for the segments of a topic; batches then come from the bookies. Fills the
values of `octavo.spark.log_view` and serves its two protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager

from octavo.client.messaging import AsyncClient
from octavo.client.messaging.api.admin import AsyncAdmin
from octavo.client.messaging.api.descriptions import LogDescription
from octavo.client.segments.reader import open_described
from octavo.client.segments.scan import scan
from octavo.proto.segments import Segment, StoredBatch
from octavo.runtime.errors import InconsistentTopicId, UnknownTopic
from octavo.spark.log_view import BatchSource, LogSource, PartitionLog, TopicLog
from octavo.spark.options import ReadOptions

CLIENT_NAME = "octavo-scan"
CONNECT_TIMEOUT_S = 10.0
"""A query on an unreachable cluster fails after this, naming every address tried."""
DESCRIBE_PARALLEL = 16
"""Partitions asked for at once."""


class LedgerBatches:
    """`BatchSource` over the bookies of some addresses."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        """bookie id -> host:port of the framed protocol; may grow while in use."""

    async def batches(
        self, segment: Segment, start_offset: int, visible_end: int
    ) -> AsyncGenerator[StoredBatch, None]:
        """See `BatchSource.batches`."""
        reader = open_described(segment, self.addresses, CLIENT_NAME)
        try:
            async with aclosing(scan(reader, segment, start_offset, visible_end)) as found:
                async for stored in found:
                    yield stored
        finally:
            await reader.close()


class ClusterLog(LedgerBatches):
    """`LogSource` over a connected client."""

    def __init__(self, admin: AsyncAdmin) -> None:
        super().__init__({})
        self._admin = admin

    async def names(self) -> list[str]:
        """All topics of users."""
        return [topic.name for topic in await self._admin.list_topics()]

    async def describe(self, topic: str) -> TopicLog:
        """See `LogSource.describe`."""
        found = await self._admin.describe_topic(topic)
        gate = asyncio.Semaphore(DESCRIBE_PARALLEL)

        async def one(partition: int) -> LogDescription:
            async with gate:
                return await self._admin.describe_log(topic, partition)

        logs = await asyncio.gather(*(one(part.partition) for part in found.partitions))
        if any(log.topic_id != found.topic_id for log in logs):
            raise InconsistentTopicId(
                f"topic {topic!r} was created again while its segments were asked for",
                hint="ask again",
                topic=topic,
            )
        addresses = {b.bookie_id: b.wire_address for log in logs for b in log.bookies}
        self.addresses.update(addresses)
        return TopicLog(
            topic=topic,
            topic_id=found.topic_id,
            partitions={log.partition: partition_log(log) for log in logs},
            addresses=addresses,
        )


def partition_log(log: LogDescription) -> PartitionLog:
    """What was described; a high watermark beyond the last segment's end promises nothing."""
    end = log.high_watermark
    if log.segments:
        end = log.segments[-1].end_below(end)
    return PartitionLog(log.partition, log.log_start, end, log.segments)


@asynccontextmanager
async def ledger_batches(addresses: Mapping[str, str]) -> AsyncGenerator[BatchSource, None]:
    """Batches straight from the bookies, for a worker that knows no broker."""
    yield LedgerBatches(addresses)


@asynccontextmanager
async def cluster_log(bootstrap: str) -> AsyncGenerator[LogSource, None]:
    """A cluster as the exporter sees it; raises BrokerUnavailable when nobody answers."""
    async with AsyncClient(bootstrap) as client:
        await client.connect(timeout=CONNECT_TIMEOUT_S)
        yield ClusterLog(client.admin)


async def describe_subscribed(
    admin: AsyncAdmin, options: ReadOptions
) -> tuple[dict[str, TopicLog], list[str]]:
    """The subscribed topics of the cluster now, and the named ones that it does not have."""
    source = ClusterLog(admin)
    names = [*options.topics, *options.assign]
    if options.pattern is not None:
        names = [name for name in await source.names() if options.wants(name)]
    found: dict[str, TopicLog] = {}
    missing: list[str] = []
    for name in names:
        try:
            found[name] = await source.describe(name)
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
