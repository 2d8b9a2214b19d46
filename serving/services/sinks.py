"""What sinks publish: decisions about their batches (ADR 67)."""

from __future__ import annotations

from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import ProducerIdAllocator
from octavo.metadata.sinks import Sink, SinkCatalog
from octavo.metadata.store import MetadataStore
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import OctavoError
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary
from octavo.serving.store_answers import StoreAnswers


class SinkService:
    """The requests of sinks; any broker answers them. Errors travel in the reply's `Error`."""

    def __init__(self, catalog: SinkCatalog, store_answers: StoreAnswers) -> None:
        self._catalog = catalog
        self._during = store_answers.during

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "DescribeSink": unary(pb.DescribeSinkRequest, self.describe),
            "DecideSink": unary(pb.DecideSinkRequest, self.decide),
            "PublishedSink": unary(pb.PublishedSinkRequest, self.published),
        }

    async def describe(
        self, request: pb.DescribeSinkRequest, _caller: Caller
    ) -> pb.DescribeSinkReply:
        """What is decided now; of a sink that never asked, that nothing is."""
        try:
            sink = await self._during(self._catalog.read(request.sink_id))
        except OctavoError as error:
            return pb.DescribeSinkReply(error=to_wire(error))
        return pb.DescribeSinkReply(state=_state(sink))

    async def decide(self, request: pb.DecideSinkRequest, _caller: Caller) -> pb.DecideSinkReply:
        """Decide a batch, or say what was decided."""
        try:
            sink = await self._during(
                self._catalog.decide(request.sink_id, request.batch_id, request.plan)
            )
        except OctavoError as error:
            return pb.DecideSinkReply(error=to_wire(error))
        return pb.DecideSinkReply(state=_state(sink))

    async def published(
        self, request: pb.PublishedSinkRequest, _caller: Caller
    ) -> pb.PublishedSinkReply:
        """Note that all of a batch is in the log."""
        try:
            await self._during(self._catalog.published(request.sink_id, request.batch_id))
        except OctavoError as error:
            return pb.PublishedSinkReply(error=to_wire(error))
        return pb.PublishedSinkReply()


def sink_service(
    store: MetadataStore,
    paths: Paths,
    producer_ids: ProducerIdAllocator,
    clock: Clock,
    store_answers: StoreAnswers,
) -> SinkService:
    """The service over a broker's metadata store."""
    catalog = SinkCatalog(store, paths, producer_ids, clock=clock, entropy=SystemEntropy())
    return SinkService(catalog, store_answers)


def _state(sink: Sink) -> pb.SinkState:
    return pb.SinkState(
        sink_id=sink.sink_id,
        batch_id=sink.batch_id,
        plan=sink.plan,
        published=sink.is_published,
        producer_id=sink.producer_id,
        producer_epoch=sink.producer_epoch,
    )
