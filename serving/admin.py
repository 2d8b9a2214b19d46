"""The unary calls: metadata, lookup, offsets, topics, log descriptions, health (spec groups G4).

Errors of one topic, partition or ledger travel in the reply's `Error`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.store import MetadataStore, SessionState
from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from octavo.proto.errors import to_wire
from octavo.proto.segment_codecs import to_info
from octavo.proto.segments import Segment
from octavo.runtime.errors import (
    InvalidRequest,
    MetadataUnavailable,
    OctavoError,
    RequestTimedOut,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.copy_census import take_census
from octavo.serving.ownership import Located, Ownership
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.read_path import offset_for_time
from octavo.serving.registry import PartitionRegistry
from octavo.serving.storage import Storage
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_admin import TopicAdmin
from octavo.serving.topic_directory import TopicDirectory

METADATA_TOPICS_MAX = 10_000
LIST_OFFSETS_MAX = 10_000
CONCURRENT_READS = 32

_OnePartition = pb.LookupRequest | pb.ListOffset | pb.DescribeLogRequest | pb.RollRequest
"""Requests that name one partition, perhaps of one life of its topic."""

_log = get_logger("octavo.serving.admin")


class AdminService:
    """Answers every unary call of one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        cluster_id: str,
        store: MetadataStore,
        storage: Storage,
        brokers: BrokerDirectory,
        topics: TopicDirectory,
        topic_catalog: TopicCatalog,
        partitions: PartitionCatalog,
        producer_ids: ProducerIdAllocator,
        registry: PartitionRegistry,
        ownership: Ownership,
        topic_admin: TopicAdmin,
        store_answers: StoreAnswers,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._store = store
        self._storage = storage
        self._brokers = brokers
        self._topics = topics
        self._topic_catalog = topic_catalog
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._registry = registry
        self._ownership = ownership
        self._topic_admin = topic_admin
        self._during = store_answers.during
        self._store_answers = store_answers

    # --- finding ------------------------------------------------------------------------------

    async def metadata(self, request: pb.MetadataRequest) -> pb.MetadataReply:
        """Brokers, and topics with their owners as last seen."""
        if len(request.topics) > METADATA_TOPICS_MAX:
            raise InvalidRequest(f"metadata names more than {METADATA_TOPICS_MAX} topics")
        if not self._ownership.certain():
            await self._ownership.confirm()
        reply = pb.MetadataReply(
            cluster_id=self._cluster_id,
            answering_broker=self._config.broker_id,
            brokers=self._broker_infos(),
            max_record_bytes=MAX_RECORD_BYTES,
            max_batch_bytes=MAX_BATCH_BYTES,
        )
        if request.all_topics:
            for topic, _ in await self._during(self._topic_catalog.list()):
                if not topic.deleting:
                    reply.topics.append(self._topic_info(topic))
            return reply
        silent: MetadataUnavailable | None = None  # once it is, no other name waits for the store
        for name in request.topics:
            try:
                known = self._topics.cached(name)
                if known is None and silent is not None:
                    raise silent
                if known is None:
                    known = await self._during(self._topics.get(name))
            except OctavoError as error:
                silent = error if isinstance(error, MetadataUnavailable) else silent
                reply.topics.append(pb.TopicInfo(name=name, error=to_wire(error)))
                continue
            for partition in range(known.partitions):
                self._registry.start_loading(known, partition)
            reply.topics.append(self._topic_info(known))
        return reply

    def _broker_infos(self) -> list[pb.BrokerInfo]:
        return [
            pb.BrokerInfo(broker_id=broker.broker_id, address=broker.address)
            for broker in self._brokers.live()
        ]

    def _topic_info(self, topic: Topic) -> pb.TopicInfo:
        info = pb.TopicInfo(
            name=topic.name,
            topic_id=topic.topic_id.bytes,
            config=dict(topic.config),
            created_ms=topic.created_ms,
        )
        for partition in range(topic.partitions):
            owner = self._ownership.hint(self._registry.bundle(topic.topic_id, partition))
            info.partitions.add(
                partition=partition,
                owner_id=owner.broker_id if owner else "",
                owner_address=owner.address if owner else "",
            )
        return info

    async def lookup(self, request: pb.LookupRequest) -> pb.LookupReply:
        """O-2: the owner; takes and loads the partition when it is for this broker."""
        try:
            located = await self._during(self._locate(request))
        except OctavoError as error:
            return pb.LookupReply(error=to_wire(error))
        return pb.LookupReply(
            owner_id=located.broker_id, owner_address=located.address, redirect=located.redirect
        )

    async def _locate(self, request: pb.LookupRequest) -> Located:
        if request.topic_id:
            await self._topics.confirm(request.topic, request.topic_id)
        topic = await self._topics.get_partition(request.topic, request.partition)
        bundle = self._registry.bundle(topic.topic_id, request.partition)
        located = await self._ownership.locate(bundle)
        if self._ownership.owns(bundle):
            shell = await self._resolve(request)
            await shell.prove_end()  # to name oneself as the owner is an answer about the end
        return located

    async def init_producer_id(self, _request: pb.InitProducerIdRequest) -> pb.InitProducerIdReply:
        """I1: an id nobody else has or had."""
        try:
            # A reply that comes too late burns a block of ids, as one that is lost.
            producer_id = await self._during(self._producer_ids.allocate())
        except OctavoError as error:
            return pb.InitProducerIdReply(producer_id=-1, producer_epoch=-1, error=to_wire(error))
        return pb.InitProducerIdReply(producer_id=producer_id, producer_epoch=0)

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsReply:
        """Earliest, latest, or the first record at or after a time (F6)."""
        if len(request.offsets) > LIST_OFFSETS_MAX:
            raise InvalidRequest(f"more than {LIST_OFFSETS_MAX} offsets asked for")
        gate = asyncio.Semaphore(CONCURRENT_READS)
        silent: MetadataUnavailable | None = None  # once it is, none waits for the store any more

        async def one(asked: pb.ListOffset) -> pb.ListedOffset:
            nonlocal silent
            listed = pb.ListedOffset(topic=asked.topic, partition=asked.partition)
            try:
                async with gate:
                    if silent and self._registry.find(asked.topic, asked.partition) is None:
                        raise silent
                    shell = await self._resolve(asked)
                    listed.topic_id = shell.name.topic_id.bytes
                    await self._during(self._find(shell, asked, listed))
            except OctavoError as error:
                silent = error if isinstance(error, MetadataUnavailable) else silent
                listed.error.CopyFrom(to_wire(error))
            return listed

        found = await asyncio.gather(*(one(asked) for asked in request.offsets))
        return pb.ListOffsetsReply(offsets=found)

    @staticmethod
    async def _find(shell: PartitionShell, asked: pb.ListOffset, listed: pb.ListedOffset) -> None:
        match asked.WhichOneof("at"):
            case "earliest":
                listed.offset = shell.log_start
            case "latest":
                await shell.prove_end()
                listed.offset = shell.high_watermark
            case "timestamp_ms":
                found = await offset_for_time(shell.view(), asked.timestamp_ms)
                if found is None:  # "none is that late" speaks of the end
                    await shell.prove_end()
                    found = await offset_for_time(shell.view(), asked.timestamp_ms)
                if found is not None:
                    listed.offset, listed.timestamp_ms = found
            case _:
                raise InvalidRequest("an offset is asked for by time, as earliest or as latest")

    async def _resolve(self, asked: _OnePartition) -> PartitionShell:
        return await self._registry.resolve_life(
            asked.topic, asked.partition, asked.topic_id, self._config.load_wait_s
        )

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicReply:
        """F133."""
        try:
            topic = await self._topic_admin.create(
                request.name, request.partitions, dict(request.config), request.creation_token
            )
        except OctavoError as error:
            return pb.CreateTopicReply(error=to_wire(error))
        return pb.CreateTopicReply(topic=self._topic_info(topic))

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicReply:
        """F134."""
        try:
            await self._topic_admin.delete(request.name, request.topic_id)
        except OctavoError as error:
            return pb.DeleteTopicReply(error=to_wire(error))
        return pb.DeleteTopicReply()

    async def list_topics(self, request: pb.ListTopicsRequest) -> pb.ListTopicsReply:
        """F135."""
        found, more = await self._during(
            self._topic_admin.list(
                include_internal=request.include_internal, after=request.after, limit=request.limit
            )
        )
        return pb.ListTopicsReply(topics=[self._topic_info(topic) for topic in found], more=more)

    # --- the log ------------------------------------------------------------------------------

    async def describe_log(self, request: pb.DescribeLogRequest) -> pb.DescribeLogReply:
        """F076: segments with their ledger records, as a reader of bookies needs them."""
        try:
            shell = await self._resolve(request)
            await shell.prove_end()
            # Both of one moment: what is rolled meanwhile is not told.
            segments, high_watermark = shell.described(), shell.high_watermark
            infos = await self._during(self._segment_infos(segments, high_watermark))
        except OctavoError as error:
            return pb.DescribeLogReply(error=to_wire(error))
        return pb.DescribeLogReply(
            log_start=shell.log_start,
            high_watermark=high_watermark,
            segments=infos,
            bookies=_bookie_infos(self._storage.bookies()),
            owner_epoch=shell.owner_epoch,
            topic_id=shell.name.topic_id.bytes,
        )

    async def _segment_infos(
        self, segments: Iterable[Segment], high_watermark: int
    ) -> list[pb.SegmentInfo]:
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def one(segment: Segment) -> pb.SegmentInfo:
            async with gate:
                record = await self._storage.read_record(segment.ledger_id)
            described = replace(segment, ledger_record=record.to_bytes())
            return to_info(described, high_watermark)

        return list(await asyncio.gather(*(one(segment) for segment in segments)))

    async def roll(self, request: pb.RollRequest) -> pb.RollReply:
        """Close the open segment so that exports see it."""
        try:
            shell = await self._resolve(request)
            async with asyncio.timeout(self._config.unload_deadline_s):
                high_watermark = await shell.roll()
                await shell.prove_end()
                return pb.RollReply(high_watermark=high_watermark)
        except TimeoutError:
            slow = RequestTimedOut(  # it goes on and may well succeed: worth asking again
                f"the open segment of {request.topic}-{request.partition} is still being closed "
                f"after {self._config.unload_deadline_s:g} s"
            )
            return pb.RollReply(error=to_wire(slow))
        except OctavoError as refused:
            return pb.RollReply(error=to_wire(refused))

    # --- health -------------------------------------------------------------------------------

    async def cluster_health(self, _request: pb.ClusterHealthRequest) -> pb.ClusterHealthReply:
        """Who is there, and what is known of copies."""
        connected = self._store.session_state is SessionState.CONNECTED
        reply = pb.ClusterHealthReply(
            cluster_id=self._cluster_id,
            brokers=self._broker_infos(),
            bookies=_bookie_infos(self._storage.bookies()),
            metadata_connected=connected,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
        )
        if not connected:
            reply.metadata_error = self._store_answers.silent().cause
        try:
            census = await self._during(
                take_census(self._topic_catalog, self._partitions, self._storage)
            )
        except OctavoError as error:  # not known is not none
            _log.info("copies-not-counted", cause=error.cause)
            if isinstance(error, MetadataUnavailable):
                reply.metadata_connected = False
                reply.metadata_error = error.cause
            return reply
        reply.degraded_ledgers = census.degraded_ledgers
        reply.short_segments = census.short_segments
        reply.segments = census.segments
        reply.census_complete = census.complete
        return reply

    async def show_ledger(self, request: pb.ShowLedgerRequest) -> pb.ShowLedgerReply:
        """A ledger's record, and what each of its bookies says."""
        try:
            if request.ledger_id < 0:
                raise InvalidRequest(f"{request.ledger_id} is not a ledger id")
            record = await self._during(self._storage.read_record(LedgerId(request.ledger_id)))
            holders = await self._storage.holders(record)
        except OctavoError as error:
            return pb.ShowLedgerReply(error=to_wire(error))
        return pb.ShowLedgerReply(
            ledger_record=record.to_bytes(),
            holders=[
                pb.HeldBy(
                    bookie_id=held.member.bookie_id,
                    incarnation=str(held.member.incarnation),
                    reachable=held.reachable,
                    last_add_confirmed=held.last_add_confirmed,
                    fenced=held.fenced,
                    error=held.error,
                )
                for held in holders
            ],
        )


def _bookie_infos(bookies: Iterable[BookieRegistration]) -> list[pb.BookieInfo]:
    return [
        pb.BookieInfo(
            bookie_id=bookie.bookie_id,
            incarnation=str(bookie.incarnation),
            wire_address=bookie.wire_address,
            control_address=bookie.control_address,
            state=bookie.state,
        )
        for bookie in bookies
    ]
