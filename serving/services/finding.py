"""Finding topics, owners and producer ids (spec groups G4)."""

from __future__ import annotations

from octavo.metadata.brokers import BrokerDirectory
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.proto import broker_pb2 as pb
from octavo.proto.batch import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from octavo.proto.errors import to_wire
from octavo.runtime.errors import InvalidRequest, MetadataUnavailable, OctavoError
from octavo.serving.config import BrokerConfig
from octavo.serving.ownership import Located, Ownership
from octavo.serving.registry import PartitionRegistry
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.services.views import TopicViews, broker_infos
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_directory import TopicDirectory

METADATA_TOPICS_MAX = 10_000


class FindingService:
    """Whom a client asks for what. Errors of one topic travel in the reply's `Error`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        cluster_id: str,
        brokers: BrokerDirectory,
        topics: TopicDirectory,
        producer_ids: ProducerIdAllocator,
        registry: PartitionRegistry,
        ownership: Ownership,
        store_answers: StoreAnswers,
    ) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._brokers = brokers
        self._topics = topics
        self._producer_ids = producer_ids
        self._registry = registry
        self._ownership = ownership
        self._views = TopicViews(ownership, config)
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "Metadata": unary(pb.MetadataRequest, self.metadata),
            "Lookup": unary(pb.LookupRequest, self.lookup),
            "InitProducerId": unary(pb.InitProducerIdRequest, self.init_producer_id),
        }

    async def metadata(self, request: pb.MetadataRequest, _caller: Caller) -> pb.MetadataReply:
        """Brokers, and topics with their owners as last seen."""
        if len(request.topics) > METADATA_TOPICS_MAX:
            raise InvalidRequest(f"metadata names more than {METADATA_TOPICS_MAX} topics")
        if not self._ownership.certain():
            await self._ownership.confirm()
        reply = pb.MetadataReply(
            cluster_id=self._cluster_id,
            answering_broker=self._config.broker_id,
            brokers=broker_infos(self._brokers),
            max_record_bytes=MAX_RECORD_BYTES,
            max_batch_bytes=MAX_BATCH_BYTES,
        )
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
            reply.topics.append(self._views.of(known, with_effective=request.with_effective))
        return reply

    async def lookup(self, request: pb.LookupRequest, _caller: Caller) -> pb.LookupReply:
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
            shell = await self._registry.resolve_life(
                request.topic, request.partition, request.topic_id, self._config.load_wait_s
            )
            await shell.prove_end()  # to name oneself as the owner is an answer about the end
        return located

    async def init_producer_id(
        self, _request: pb.InitProducerIdRequest, _caller: Caller
    ) -> pb.InitProducerIdReply:
        """I1: an id nobody else has or had."""
        try:
            # A reply that comes too late burns a block of ids, as one that is lost.
            producer_id = await self._during(self._producer_ids.allocate())
        except OctavoError as error:
            return pb.InitProducerIdReply(producer_id=-1, producer_epoch=-1, error=to_wire(error))
        return pb.InitProducerIdReply(producer_id=producer_id, producer_epoch=0)
