"""What sinks publish: decisions about their batches (ADR 67), and the ends of sinks (ADR 74)."""

from __future__ import annotations

from octavo.metadata.sinks import Sink, SinkCatalog, StagedAt
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import to_wire
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
            "OpenSink": unary(pb.OpenSinkRequest, self.open),
            "ListSinks": unary(pb.ListSinksRequest, self.list_sinks),
            "EndSink": unary(pb.EndSinkRequest, self.end),
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
        staged = StagedAt(request.generation, request.first_offset)
        try:
            sink = await self._during(
                self._catalog.decide(
                    request.sink_id,
                    request.batch_id,
                    request.plan,
                    None if request.nothing_staged else staged,
                )
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

    async def open(self, request: pb.OpenSinkRequest, _caller: Caller) -> pb.OpenSinkReply:
        """A sink is about to stage: from now on it is listed."""
        try:
            sink = await self._during(self._catalog.open(request.sink_id))
        except OctavoError as error:
            return pb.OpenSinkReply(error=to_wire(error))
        return pb.OpenSinkReply(state=_state(sink))

    async def list_sinks(self, request: pb.ListSinksRequest, _caller: Caller) -> pb.ListSinksReply:
        """A page of all sinks."""
        try:
            sinks, following = await self._during(self._catalog.page(request.after, request.limit))
        except OctavoError as error:
            return pb.ListSinksReply(error=to_wire(error))
        return pb.ListSinksReply(sinks=map(_state, sinks), next=following)

    async def end(self, request: pb.EndSinkRequest, _caller: Caller) -> pb.EndSinkReply:
        """For ever: an operator knows that its query never runs again, or must not."""
        try:
            sink = await self._during(self._catalog.end(request.sink_id))
        except OctavoError as error:
            return pb.EndSinkReply(error=to_wire(error))
        return pb.EndSinkReply(state=_state(sink))


def _state(sink: Sink) -> pb.SinkState:
    return pb.SinkState(
        sink_id=sink.sink_id,
        batch_id=sink.batch_id,
        plan=sink.plan,
        published=sink.is_published,
        producer_id=sink.producer_id,
        producer_epoch=sink.producer_epoch,
        generation=sink.generation,
        swept_to=sink.swept_to,
        ended=sink.is_ended,
        decided_ms=sink.decided_ms,
        touched_ms=sink.touched_ms,
        known=sink.touched_ms >= 0,
    )
