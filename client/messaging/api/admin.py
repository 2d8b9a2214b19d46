"""Administration: topics, logs, ledgers and health, as typed dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from octavo.client.messaging.api.changes import Change, ask_any
from octavo.client.messaging.api.descriptions import (
    ClusterHealth,
    CompactionResult,
    LedgerDescription,
    LogDescription,
    Told,
    TopicDescription,
    bookie_of,
    health_of,
    ledger_of,
    topic_of,
    topics_of,
)
from octavo.client.messaging.api.replies import check_reply
from octavo.client.messaging.api.sink_admin import AsyncSinkAdmin
from octavo.client.messaging.cluster.calls import Call
from octavo.client.messaging.reading.limits import (
    INT32_MAX,
    INT64_MAX,
    check_topic,
    check_whole,
    epoch_ms,
)
from octavo.client.messaging.reading.offsets import At, list_offsets
from octavo.client.messaging.records import TopicPartition
from octavo.proto import broker_pb2 as pb
from octavo.proto.edges import EDGE_WORDS, Edge
from octavo.proto.segment_codecs import from_info
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import (
    InconsistentTopicId,
    NotLeader,
    RetriableError,
    UnknownTopic,
)

if TYPE_CHECKING:
    pass

T = TypeVar("T")
OwnerReply = TypeVar(
    "OwnerReply", pb.DescribeLogReply, pb.RollReply, pb.DeleteRecordsReply, pb.CompactReply
)

DEFAULT_TIMEOUT_S = 30.0
TO_THE_END = -1
"""Instead of an offset: everything that can be read now."""
LIST_PAGE = 1_000
"""Topics asked for at a time."""


class AsyncAdmin(AsyncSinkAdmin):
    """Administration of the cluster a client is connected to: `client.admin`.

    Every call retries what is retriable until `timeout` seconds are over.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def create_topic(
        self,
        name: str,
        partitions: int = 6,
        config: Mapping[str, str] | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TopicDescription:
        """Create a topic; `config` has dotted names such as `segment.ms`.

        Raises UnknownOutcome when a broker that may have got the request did not answer in time.
        """
        check_whole("partitions", partitions, INT32_MAX)
        cluster = self._binding.cluster()
        request = pb.CreateTopicRequest(
            name=check_topic(name),
            partitions=partitions,
            config=config or {},
            creation_token=cluster.entropy.token(),  # an attempt that lost its reply is known by it
        )
        change = Change(cluster, f"creating topic {name!r}", timeout)

        async def attempt() -> TopicDescription:
            reply = await change.ask(lambda stub, limit: stub.CreateTopic(request, timeout=limit))
            check_reply(reply)
            return topic_of(reply.topic)

        made = await change.settle(attempt)
        await cluster.topics.refresh_quietly(name, change.deadline.left_s())
        return made

    async def delete_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a topic and its data. Raises UnknownTopic.

        Raises UnknownOutcome when a broker that may have got the request did not answer in time:
        the deletion may still go on. A topic that is created under the name meanwhile stays.
        """
        cluster = self._binding.cluster()
        change = Change(cluster, f"deleting topic {check_topic(name)!r}", timeout)
        topic_id = b""

        async def attempt() -> None:
            nonlocal topic_id
            if not topic_id:
                await cluster.topics.metadata([name], timeout_s=change.deadline.left_s())
                view = cluster.topics.views.get(name)
                if view is None:
                    raise UnknownTopic(f"topic {name!r} does not exist", topic=name)
                topic_id = view.topic_id
            request = pb.DeleteTopicRequest(name=name, topic_id=topic_id)
            try:
                reply = await change.ask(
                    lambda stub, limit: stub.DeleteTopic(request, timeout=limit)
                )
                check_reply(reply)
            except UnknownTopic:
                if not change.unsure:  # else an earlier attempt did it and lost its reply
                    raise
            except InconsistentTopicId as error:
                if change.unsure:
                    return
                cluster.topics.life_is_over(name, topic_id)
                topic_id = b""  # what told it was behind; the name's present topic is meant
                raise NotLeader(error.cause) from error

        await change.settle(attempt)
        cluster.topics.views.pop(name, None)

    async def alter_topic(
        self,
        name: str,
        config: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> TopicDescription:
        """Change settings of a topic while it is used; the brokers go by them without a restart.

        `config` has dotted names such as `retention.ms`, `unset` names of settings that are to have
        their default again. Another replication counts for what is written afterwards.

        Raises UnknownTopic, InvalidConfig, InvalidReplicationFactor. Asking again is safe.
        """
        request = pb.AlterTopicRequest(name=check_topic(name), config=config or {}, unset=unset)
        return await self._alter(request, timeout)

    async def create_partitions(
        self, name: str, partitions: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TopicDescription:
        """Let a topic have `partitions` partitions, which is never fewer than it has.

        Records with a key go to other partitions from then on: the order of one key holds among
        those sent before, and among those sent after. Producers and readers find the new partitions
        within their `metadata_max_age_ms`.

        Raises UnknownTopic, InvalidPartitions. Asking again is safe.
        """
        check_whole("partitions", partitions, INT32_MAX, 1)
        request = pb.AlterTopicRequest(name=check_topic(name), partitions=partitions)
        return await self._alter(request, timeout)

    async def decommission_partition(
        self, name: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TopicDescription:
        """Have a partition take no new records; what is in it is read until retention empties it.

        Producers send to the other partitions as soon as they hear of it: records with a key go to
        other partitions from then on, and the order of one key holds among those sent before, and
        among those sent after. Producers that have not heard of it may still write for
        `decommission_grace_ms`; after that, and at once where a partition is named, a record for it
        is refused with PARTITION_DECOMMISSIONED. Once it is empty, groups are not assigned to it
        any more. Its number is never given again, and it cannot be taken back.

        Raises UnknownTopic, InvalidPartition, InvalidPartitions when no other partition takes
        records. Asking again is safe.
        """
        check_whole("partition", partition, INT32_MAX)
        request = pb.AlterTopicRequest(name=check_topic(name), decommission=[partition])
        return await self._alter(request, timeout)

    async def _alter(self, request: pb.AlterTopicRequest, timeout_s: float) -> TopicDescription:
        cluster = self._binding.cluster()
        change = Change(cluster, f"altering topic {request.name!r}", timeout_s)

        async def attempt() -> TopicDescription:
            reply = await change.ask(lambda stub, limit: stub.AlterTopic(request, timeout=limit))
            check_reply(reply)
            return topic_of(reply.topic, reply.warning)

        made = await change.settle(attempt)
        await cluster.topics.refresh_quietly(request.name, change.deadline.left_s())
        return made

    async def list_topics(
        self, *, include_internal: bool = False, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[TopicDescription]:
        """Every topic, sorted by name."""
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        out: list[TopicDescription] = []
        told: Told = {}
        after = ""
        while True:
            request = pb.ListTopicsRequest(
                include_internal=include_internal, limit=LIST_PAGE, after=after, shares=True
            )
            call = _list_call(request)
            reply = await cluster.calls.retrying(
                partial(self._page, call, deadline), deadline.left_s()
            )
            out += topics_of(reply, told)
            if not reply.more or not reply.topics:
                return sorted(out, key=lambda topic: topic.name)
            after = reply.topics[-1].name

    async def _page(self, call: Call[pb.ListTopicsReply], deadline: Deadline) -> pb.ListTopicsReply:
        return await ask_any(self._binding.cluster(), call, deadline.left_s())

    async def describe_topic(
        self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TopicDescription:
        """Partitions, owners and settings. Raises UnknownTopic."""
        cluster = self._binding.cluster()
        check_topic(name)
        deadline = Deadline(cluster.clock, timeout)

        async def attempt() -> TopicDescription:
            reply = await cluster.topics.metadata(
                [name], with_effective=True, timeout_s=deadline.left_s()
            )
            for topic in reply.topics:
                if topic.name == name:
                    check_reply(topic)
                    return topic_of(topic)
            raise UnknownTopic(f"topic {name!r} does not exist")

        return await cluster.calls.retrying(attempt, timeout)

    async def describe_log(
        self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LogDescription:
        """Segments of a partition and the bookies that hold them."""
        check_whole("partition", partition, INT32_MAX)
        request = pb.DescribeLogRequest(topic=check_topic(topic), partition=partition)
        reply = await self._at_owner(
            topic,
            partition,
            lambda stub, limit: stub.DescribeLog(request, timeout=limit),
            timeout,
        )
        return LogDescription(
            topic=topic,
            partition=partition,
            log_start=reply.log_start,
            high_watermark=reply.high_watermark,
            owner_epoch=reply.owner_epoch,
            segments=tuple(map(from_info, reply.segments)),
            bookies=tuple(bookie_of(bookie) for bookie in reply.bookies),
            topic_id=reply.topic_id.hex(),
            tier_tree=reply.tier_tree,
        )

    async def roll(self, topic: str, partition: int, *, timeout: float = DEFAULT_TIMEOUT_S) -> int:
        """Close the open segment, so that exports see it; returns the high watermark."""
        check_whole("partition", partition, INT32_MAX)
        request = pb.RollRequest(topic=check_topic(topic), partition=partition)
        reply = await self._at_owner(
            topic, partition, lambda stub, limit: stub.Roll(request, timeout=limit), timeout
        )
        return reply.high_watermark

    async def delete_records(
        self, topic: str, partition: int, before: int = -1, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> int:
        """Delete the records below offset `before` of a partition; returns the log's start.

        -1: all records that can be read now. The end of the log does not move, and what producers
        were told stays known. Readers below the start get OFFSET_OUT_OF_RANGE, which their reset
        policy answers. Space is freed in whole segments, some minutes later.

        Raises OffsetOutOfRange when `before` lies above the high watermark, UnknownTopic. After an
        error that leaves the outcome open, asking again is safe.
        """
        check_whole("partition", partition, INT32_MAX)
        if before != TO_THE_END:
            check_whole("before", before, INT64_MAX)
        request = pb.DeleteRecordsRequest(
            topic=check_topic(topic), partition=partition, before=before
        )
        reply = await self._at_owner(
            topic,
            partition,
            lambda stub, limit: stub.DeleteRecords(request, timeout=limit),
            timeout,
        )
        return reply.log_start

    async def compact(
        self, topic: str, partition: int, *, timeout: float = 300.0
    ) -> CompactionResult:
        """Keep of each key of a partition only its last record, now (K3).

        The open segment is closed first, so all that is there is cleaned; what has been deleted for
        `delete.retention.ms` goes too. Offsets stay, those that went are gaps. Raises
        InvalidRequest unless the topic's `cleanup.policy` names compact, UnknownTopic. After a
        timeout it goes on; asking again waits for the same.
        """
        check_whole("partition", partition, INT32_MAX)
        request = pb.CompactRequest(topic=check_topic(topic), partition=partition)
        reply = await self._at_owner(
            topic, partition, lambda stub, limit: stub.Compact(request, timeout=limit), timeout
        )
        return CompactionResult(
            reply.cleaned_to, reply.records_removed, reply.bytes_before, reply.bytes_after
        )

    async def list_offsets(
        self,
        topic: str,
        at: Literal["earliest", "latest"] | int | datetime = "latest",
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> dict[int, int | None]:
        """Offset per partition: of its first record at or after a time, or of an end of the log.

        `at` is "earliest", "latest" (the offset behind the last record), epoch milliseconds or an
        aware datetime. None: the partition has no record that late.
        """
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        view = await cluster.topics.get(check_topic(topic), timeout)
        moment: At = Edge(at) if at in EDGE_WORDS else epoch_ms(at)
        wanted: dict[TopicPartition, At] = {
            TopicPartition(topic, number): moment for number in range(view.partitions)
        }
        found = await list_offsets(cluster, wanted, deadline)
        return {where.partition: offset for where, offset in sorted(found.items())}

    async def cluster_health(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> ClusterHealth:
        """Brokers, bookies and metadata as one broker sees them."""
        request = pb.ClusterHealthRequest()
        reply = await ask_any(
            self._binding.cluster(),
            lambda stub, limit: stub.ClusterHealth(request, timeout=limit),
            timeout,
        )
        return health_of(reply)

    async def show_ledger(
        self, ledger_id: int, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> LedgerDescription:
        """A ledger's state, ensembles, last entry, and what each bookie holds of it."""
        check_whole("ledger_id", ledger_id, INT64_MAX)
        request = pb.ShowLedgerRequest(ledger_id=ledger_id)
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)

        async def attempt() -> pb.ShowLedgerReply:
            reply = await ask_any(
                cluster,
                lambda stub, limit: stub.ShowLedger(request, timeout=limit),
                deadline.left_s(),
            )
            check_reply(reply)
            return reply

        return ledger_of(await cluster.calls.retrying(attempt, timeout))

    async def _at_owner(
        self,
        topic: str,
        partition: int,
        call: Call[OwnerReply],
        timeout_s: float,
    ) -> OwnerReply:
        """One RPC to the partition's owner, found again when it moved."""
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout_s)

        async def attempt() -> OwnerReply:
            owner = await cluster.owners.of(topic, partition, deadline.left_s())
            try:
                reply = await cluster.calls.ask(
                    owner, call, deadline.left_s(cluster.calls.request_timeout_s)
                )
                check_reply(reply)
            except RetriableError:
                cluster.topics.owner_is(topic, partition, "")
                raise
            return reply

        return await cluster.calls.retrying(attempt, timeout_s)


def _list_call(
    request: pb.ListTopicsRequest,
) -> Call[pb.ListTopicsReply]:
    return lambda stub, limit: stub.ListTopics(request, timeout=limit)
