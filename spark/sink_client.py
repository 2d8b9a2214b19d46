"""A client of the cluster for sinks: decisions, and batches of records under a given identity.

The SDK's producer numbers its own batches and gives up by raising its epoch (ADR 16); what a sink
publishes has its numbers for good. So it is sent here: one batch of a partition at a time, until
it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import grpc

from octavo.client.messaging import AsyncClient
from octavo.client.messaging.api.replies import check_reply
from octavo.client.messaging.cluster.calls import Calls
from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.cluster.topic_lives import TopicView
from octavo.client.messaging.cluster.transport import ProduceCall
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error, from_wire
from octavo.proto.produce_wire import ProduceItem, encode_produce
from octavo.runtime.checksum import Buffer
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import (
    BrokerUnavailable,
    OctavoError,
    RequestTimedOut,
)
from octavo.spark.publication import Fate, SinkState, fate
from octavo.spark.staged import Target

DECISION_TIMEOUT_S = 60.0
ACKS_ALL = -1
BATCH_TIMEOUT_S = 120.0
"""How long one batch of records is tried, over owners that move; then the write fails and the
batch stays decided."""
ANSWER_TIMEOUT_S = 30.0
"""How long the answer to one attempt is waited for."""


class Numbered(NamedTuple):
    """A batch of records with its identity: always the same bytes for the same sequences."""

    base_sequence: int
    payload: Buffer


class StagedRange(NamedTuple):
    """Where a batch is staged."""

    generation: int
    """Of the sink's staging topic."""
    first_offset: int
    """No record of it lies before."""


class SinkClient(AsyncClient):
    """An `AsyncClient` that can also decide and publish."""

    async def describe_sink(self, sink_id: str) -> SinkState:
        """What is decided now; raises when no broker answers in time."""
        request = pb.DescribeSinkRequest(sink_id=sink_id)

        async def attempt() -> SinkState:
            reply = await self._calls.ask_any(
                lambda stub, limit: stub.DescribeSink(request, timeout=limit), DECISION_TIMEOUT_S
            )
            check_reply(reply)
            return _state(reply.state)

        return await self._calls.retrying(attempt, DECISION_TIMEOUT_S)

    async def open_sink(self, sink_id: str) -> SinkState:
        """Say that a sink is about to stage; as `describe_sink` besides. Asking again is safe."""
        request = pb.OpenSinkRequest(sink_id=sink_id)

        async def attempt() -> SinkState:
            reply = await self._calls.ask_any(
                lambda stub, limit: stub.OpenSink(request, timeout=limit), DECISION_TIMEOUT_S
            )
            check_reply(reply)
            return _state(reply.state)

        return await self._calls.retrying(attempt, DECISION_TIMEOUT_S)

    async def decide_sink(
        self, sink_id: str, batch_id: int, plan: bytes, staged: StagedRange | None
    ) -> SinkState:
        """Ask that `plan` be the batch; tells what is decided. Asking again is safe.

        `staged`: where the records lie that it names, None: it names none. Raises StagedDataGone
        when they were swept, SinkEnded.
        """
        request = pb.DecideSinkRequest(sink_id=sink_id, batch_id=batch_id, plan=plan)
        if staged is None:
            request.nothing_staged = True
        else:
            request.generation, request.first_offset = staged

        async def attempt() -> SinkState:
            reply = await self._calls.ask_any(
                lambda stub, limit: stub.DecideSink(request, timeout=limit), DECISION_TIMEOUT_S
            )
            check_reply(reply)
            return _state(reply.state)

        return await self._calls.retrying(attempt, DECISION_TIMEOUT_S)

    async def published_sink(self, sink_id: str, batch_id: int) -> None:
        """Note that all of a batch is in the log. Asking again is safe."""
        request = pb.PublishedSinkRequest(sink_id=sink_id, batch_id=batch_id)

        async def attempt() -> None:
            reply = await self._calls.ask_any(
                lambda stub, limit: stub.PublishedSink(request, timeout=limit), DECISION_TIMEOUT_S
            )
            check_reply(reply)

        await self._calls.retrying(attempt, DECISION_TIMEOUT_S)

    async def topic_view(self, topic: str) -> TopicView:
        """Partitions and limits of a topic now; raises UnknownTopic."""
        return await self._binding.cluster().topics.refresh(topic)

    @property
    def record_bytes_max(self) -> int:
        """The largest record of any topic, as far as a broker has told; see `topic_view`."""
        return self._binding.cluster().topics.max_record_bytes

    async def store(self, target: Target, batches: Sequence[Numbered]) -> None:
        """Have each stored once, in order. Raises InvalidProducerEpoch when later ones are there.

        Any other error leaves the rest to whoever tries again.
        """
        await _Storing(self._binding.cluster(), target).all(batches)

    @property
    def _calls(self) -> Calls:
        return self._binding.cluster().calls


class _Storing:
    """One partition's share of a publication."""

    def __init__(self, cluster: Cluster, target: Target) -> None:
        self._cluster = cluster
        self._target = target
        self._owner = ""
        self._call: ProduceCall | None = None

    async def all(self, batches: Sequence[Numbered]) -> None:
        try:
            for batch in batches:
                await self._one(batch)
        finally:
            self._hang_up()

    async def _one(self, batch: Numbered) -> None:
        cluster, backoff = self._cluster, self._cluster.calls.backoff()
        deadline = Deadline(cluster.clock, BATCH_TIMEOUT_S)
        while True:
            try:
                error = await self._answer(batch)
            except OctavoError as problem:
                error = problem
            match fate(error):
                case Fate.STORED:
                    return
                case Fate.AGAIN if error is not None and not deadline.passed:
                    avoid = self._hang_up()
                    await cluster.owners.pause_search(error, backoff)
                    await self._look_up(avoid, deadline)
                case _:
                    raise error if error is not None else AssertionError

    async def _look_up(self, avoid: str, deadline: Deadline) -> None:
        """Who owns the partition now; nobody yet is for the next attempt to find out."""
        try:
            self._owner = await self._cluster.owners.find(
                self._target.topic,
                self._target.partition,
                avoid=avoid,
                timeout_s=max(deadline.left_s(ANSWER_TIMEOUT_S), 0.1),
            )
        except OctavoError as error:
            if fate(error) is not Fate.AGAIN:
                raise

    async def _answer(self, batch: Numbered) -> OctavoError | None:
        """What the owner says of one attempt; raises what kept it from answering."""
        target, cluster = self._target, self._cluster
        if not self._owner:
            self._owner = await cluster.owners.of(target.topic, target.partition)
        if self._call is None:
            self._call = cluster.transport.produce_stream(self._owner)
        item = ProduceItem(
            batch.base_sequence,
            target.topic,
            target.partition,
            ACKS_ALL,
            batch.payload,
            target.topic_id,
        )
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._call.write(encode_produce([item]))
                while True:
                    reply = await self._call.read()
                    if not isinstance(reply, pb.ProduceReply):
                        return BrokerUnavailable(f"{self._owner}: closed the produce stream")
                    for ack in reply.acks:
                        if ack.correlation == batch.base_sequence:
                            return from_wire(ack.error) if ack.HasField("error") else None
        except TimeoutError:
            return RequestTimedOut(f"no answer from {self._owner} within {ANSWER_TIMEOUT_S:g} s")
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error, self._owner)
        except asyncio.InvalidStateError:
            return BrokerUnavailable(f"{self._owner}: the produce stream ended")

    def _hang_up(self) -> str:
        """End the stream; returns whose it was."""
        if self._call is not None:
            self._call.cancel()
        self._call = None
        owner, self._owner = self._owner, ""
        return owner


def _state(state: pb.SinkState) -> SinkState:
    return SinkState(
        state.batch_id,
        state.plan,
        state.published,
        state.producer_id,
        state.producer_epoch,
        state.generation,
        state.swept_to,
        state.ended,
    )
