"""An in-process cluster of brokers speaking proto/broker.proto from memory, with faults on demand.

A fast test double for the SDK: real gRPC, real batches, no storage. Brokers share one state; each
partition has an owner, and a broker that is not the owner answers NOT_LEADER with a hint (F045).
Everything runs on the loop that called `start()`; `FakeClusterThread` gives it a thread of its own
for the sync flavour.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from octavo.proto import broker_pb2 as pb
from octavo.proto import records_pb2
from octavo.proto.batch import MAX_RECORD_BYTES, RECORD_ENVELOPE_BYTES
from octavo.proto.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from octavo.proto.errors import to_wire
from octavo.runtime.clock import SystemClock
from octavo.runtime.errors import (
    MIN_INSYNC_DETAIL,
    InconsistentTopicId,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopic,
)
from octavo.serving.partition.writer_seat import WriterSeat
from tests.broker_model import Appended, PartitionModel
from tests.fake_faults import Faults
from tests.fake_quotas import FakeQuotas
from tests.fake_sinks import FakeSinks, sinks_in_memory
from tests.fake_writers import claimed, seat_in

T = TypeVar("T")
_OPTIONS = [
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]
_FETCH_LOOK_S = 0.5


@dataclass
class FakeTopic:
    name: str
    config: dict[str, str]
    partitions: list[PartitionModel]
    owners: list[int]
    topic_id: bytes = b""
    token: bytes = b""
    decommissioned: set[int] = field(default_factory=lambda: set[int]())
    loading: set[int] = field(default_factory=lambda: set[int]())
    """Partitions whose owner metadata does not name yet."""


class FakeCluster:
    """State shared by the brokers, and the switchboard of the tests."""

    def __init__(self, brokers: int = 1, *, auto_topics: bool = False) -> None:
        self.clock = SystemClock()
        self.topics: dict[str, FakeTopic] = {}
        self.topic_ids: list[bytes] = []
        """Of every topic that was ever created."""
        self.auto_topics = auto_topics
        self.lookups_load = False
        """Whether asking for the owner of a partition makes its owner known."""
        self.next_producer_id = 1000
        self.sinks = sinks_in_memory()
        self.brokers = [FakeBroker(self, index) for index in range(brokers)]
        self.max_record_bytes = MAX_RECORD_BYTES
        self.bundles = {0: pb.BundleView(bundle=0, owner_id="broker-1", usage=0.25)}
        self.unloads: list[pb.UnloadBundleRequest] = []
        self.writer_lease_s = 10.0
        self.claims_renewed = 0
        self.claims_refused = 0
        self.hands_over = True
        """Whether what is unloaded arrives."""

    async def start(self) -> None:
        for broker in self.brokers:
            await broker.start()

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers if broker.running)

    def create(self, name: str, partitions: int = 1, **config: str) -> FakeTopic:
        topic = FakeTopic(
            name,
            config,
            [PartitionModel() for _ in range(partitions)],
            [p % len(self.brokers) for p in range(partitions)],
            self.clock.wall_ms().to_bytes(8, "big") + len(self.topic_ids).to_bytes(8, "big"),
        )
        self.topic_ids.append(topic.topic_id)
        self.topics[name] = topic
        return topic

    def grow(self, topic: FakeTopic, partitions: int) -> None:
        for number in range(len(topic.partitions), partitions):
            topic.partitions.append(PartitionModel())
            topic.owners.append(number % len(self.brokers))

    def log(self, topic: str, partition: int = 0) -> PartitionModel:
        return self.topics[topic].partitions[partition]

    def move(self, topic: str, partition: int, broker: int) -> None:
        self.topics[topic].owners[partition] = broker
        self.topics[topic].partitions[partition].epoch += 1
        for item in self.brokers:
            item.changed()

    def appended(self) -> None:
        for broker in self.brokers:
            broker.changed()


class _Cut(Exception):
    """End the stream now."""


class FakeBroker(FakeQuotas, FakeSinks, BrokerServicer):
    """One broker."""

    def __init__(self, cluster: FakeCluster, index: int) -> None:
        self.cluster, self.sinks = cluster, cluster.sinks
        self.index = index
        self.address = ""
        self.running = False
        self.faults = Faults()
        self.produce_messages = 0
        self.produce_batches = 0
        self.fetch_requests = 0
        self.fetch_streams = 0
        """Open right now."""
        self.metadata_requests = 0
        self.lookups = 0
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()
        self._port = 0

    async def start(self) -> None:
        self._server = grpc.aio.server(options=_OPTIONS)
        add_BrokerServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.address = f"127.0.0.1:{self._port}"
        await self._server.start()
        self.running = True

    async def stop(self) -> None:
        """Stop at once; `start` serves the same port again."""
        if self._server is not None:
            self.running = False
            await self._server.stop(0)
            self._server = None

    def changed(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def _partition(self, topic: str, number: int, topic_id: bytes = b"") -> PartitionModel:
        found = self.cluster.topics.get(topic)
        if found is not None and topic_id not in (b"", found.topic_id):
            raise InconsistentTopicId(f"topic {topic!r} was created again")
        if found is None or number >= len(found.partitions):
            raise UnknownTopic(f"topic {topic!r} does not exist")
        owner = found.owners[number]
        if owner != self.index:
            address = self.cluster.brokers[owner].address
            raise NotLeader(f"{topic}-{number} is at {address}", owner_address=address)
        return found.partitions[number]

    # --- writers --------------------------------------------------------------------------------

    def seat_of(self, model: PartitionModel, topic: str) -> WriterSeat:
        cluster = self.cluster
        return seat_in(model, topic, cluster.topics[topic].config, cluster.writer_lease_s)

    async def ClaimWriter(self, request, context):  # type: ignore[no-untyped-def]
        return await claimed(self, self._partition, request)

    # --- produce --------------------------------------------------------------------------------

    async def Produce(
        self,
        request_iterator: AsyncIterator[pb.ProduceRequest],
        context: grpc.aio.ServicerContext[pb.ProduceRequest, pb.ProduceReply],
    ) -> AsyncIterator[pb.ProduceReply]:
        async for request in request_iterator:
            self.produce_messages += 1
            acks: list[pb.ProduceAck] = []
            for item in request.batches:
                await self.faults.hold.wait()
                self.produce_batches += 1
                try:
                    ack = self._produce(item)
                except _Cut:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                if ack is not None and (item.acks != 0 or self.faults.answers_acks_0):
                    acks.append(ack)
            if acks:
                yield pb.ProduceReply(acks=acks, throttle_ms=self.faults.throttled_ms())

    def _produce(self, item: pb.ProduceBatch) -> pb.ProduceAck | None:
        faults = self.faults
        if faults.cut_before_append:
            faults.cut_before_append -= 1
            raise _Cut
        try:
            if faults.refuse:
                raise faults.refuse.pop(0)
            if faults.not_leader:
                faults.not_leader -= 1
                raise NotLeader("not now")
            model = self._partition(item.topic, item.partition, item.topic_id)
            limit = int(
                self.cluster.topics[item.topic].config.get("max.message.bytes", MAX_RECORD_BYTES)
            )
            if len(item.batch) > limit + RECORD_ENVELOPE_BYTES:
                raise MessageTooLarge(f"a batch of {len(item.batch)} bytes, {limit} are taken")
            self.seat_of(model, item.topic).check(item.writer_epoch)
            asks_for = int(self.cluster.topics[item.topic].config.get("min.insync.replicas", 2))
            if item.min_insync_replicas > asks_for:
                error = NotEnoughReplicas(f"the topic's min.insync.replicas is {asks_for}")
                error.details[MIN_INSYNC_DETAIL] = asks_for
                raise error
            done: Appended = model.produce(item.batch, self.cluster.clock.wall_ms())
        except OctavoError as error:
            return pb.ProduceAck(correlation=item.correlation, error=to_wire(error))
        self.cluster.appended()
        if faults.lose_replies:
            faults.lose_replies -= 1
            raise _Cut
        if faults.swallow_replies:
            faults.swallow_replies -= 1
            return None
        return pb.ProduceAck(
            correlation=item.correlation,
            base_offset=done.base_offset,
            append_time_ms=self.cluster.clock.wall_ms(),
            duplicate=done.duplicate,
        )

    # --- fetch ----------------------------------------------------------------------------------

    async def Fetch(
        self,
        request_iterator: AsyncIterator[pb.FetchRequest],
        context: grpc.aio.ServicerContext[pb.FetchRequest, pb.FetchReply],
    ) -> AsyncIterator[pb.FetchReply]:
        self.fetch_streams += 1
        try:
            async for request in request_iterator:
                yield await self._fetched(request)
        finally:
            self.fetch_streams -= 1

    async def _fetched(self, request: pb.FetchRequest) -> pb.FetchReply:
        self.fetch_requests += 1
        deadline = self.cluster.clock.monotonic() + request.max_wait_ms / 1000
        while True:
            changed = self._changed
            parts = [self._fetch(part) for part in request.partitions]
            size = sum(len(batch) for part in parts for batch in part.batches)
            moved = any(
                part.next_offset > asked.offset
                for part, asked in zip(parts, request.partitions, strict=True)
            )
            error = any(part.HasField("error") for part in parts)
            left = deadline - self.cluster.clock.monotonic()
            if size >= request.min_bytes or moved or error or left <= 0:
                break
            try:
                await asyncio.wait_for(changed.wait(), left)
            except TimeoutError:
                continue
        if size and self.faults.corrupt_fetches:
            self.faults.corrupt_fetches -= 1
            part = next(part for part in parts if part.batches)
            damaged = bytearray(part.batches[0])
            damaged[-1] ^= 0x55
            part.batches[0] = bytes(damaged)
        return pb.FetchReply(
            correlation=request.correlation,
            partitions=parts,
            throttle_ms=self.faults.throttled_ms(),
        )

    def _fetch(self, part: pb.FetchPartition) -> pb.FetchedPartition:
        out = pb.FetchedPartition(topic=part.topic, partition=part.partition)
        try:
            model = self._partition(part.topic, part.partition, part.topic_id)
            out.topic_id = self.cluster.topics[part.topic].topic_id
            out.log_start, out.high_watermark = model.log_start, model.end
            if not model.log_start <= part.offset <= model.end:
                raise OffsetOutOfRange(f"offset {part.offset} is not in the log")
            batches, position = model.read(part.offset, part.max_bytes)
        except OctavoError as error:
            out.error.CopyFrom(to_wire(error))
            return out
        out.batches.extend(batches)
        out.last_stable_offset = model.end
        out.next_offset = position
        out.owner_epoch = model.epoch
        return out

    # --- unary ----------------------------------------------------------------------------------

    def _topic_info(self, topic: FakeTopic) -> pb.TopicInfo:
        brokers = self.cluster.brokers
        return pb.TopicInfo(
            name=topic.name,
            topic_id=topic.topic_id,
            config=topic.config,
            created_ms=1,
            partitions=[
                pb.PartitionInfo(
                    partition=number,
                    owner_id="" if number in topic.loading else f"broker-{owner}",
                    owner_address="" if number in topic.loading else brokers[owner].address,
                    decommissioned=number in topic.decommissioned,
                )
                for number, owner in enumerate(topic.owners)
            ],
        )

    async def Metadata(self, request, context):  # type: ignore[no-untyped-def]
        self.metadata_requests += 1
        context.set_trailing_metadata(self.faults.call_metadata())
        await self.faults.release_metadata.wait()
        topics: list[pb.TopicInfo] = []
        for name in request.topics:
            if self.cluster.auto_topics and name not in self.cluster.topics:
                self.cluster.create(name)
            found = self.cluster.topics.get(name)
            if found is None:
                missing = UnknownTopic(f"topic {name!r} does not exist")
                topics.append(pb.TopicInfo(name=name, error=to_wire(missing)))
            else:
                topics.append(self._topic_info(found))
        return pb.MetadataReply(
            cluster_id="fake",
            answering_broker=f"broker-{self.index}",
            brokers=[
                pb.BrokerInfo(broker_id=f"broker-{broker.index}", address=broker.address)
                for broker in self.cluster.brokers
                if broker.running
            ],
            topics=topics,
            max_record_bytes=self.cluster.max_record_bytes,
            max_batch_bytes=4 << 20,
        )

    async def Lookup(self, request, context):  # type: ignore[no-untyped-def]
        self.lookups += 1
        await self.faults.release_lookups.wait()
        if self.cluster.lookups_load and request.topic in self.cluster.topics:
            self.cluster.topics[request.topic].loading.discard(request.partition)
        try:
            self._partition(request.topic, request.partition)
        except NotLeader as error:
            return pb.LookupReply(owner_address=str(error.details["owner_address"]), redirect=True)
        except OctavoError as error:
            return pb.LookupReply(error=to_wire(error))
        return pb.LookupReply(owner_id=f"broker-{self.index}", owner_address=self.address)

    async def InitProducerId(self, request, context):  # type: ignore[no-untyped-def]
        if self.faults.no_identity:
            self.faults.no_identity -= 1
            return pb.InitProducerIdReply(error=to_wire(NotLeader("no id now")))
        self.cluster.next_producer_id += 1
        return pb.InitProducerIdReply(producer_id=self.cluster.next_producer_id, producer_epoch=0)

    async def ListOffsets(self, request, context):  # type: ignore[no-untyped-def]
        out: list[pb.ListedOffset] = []
        for item in request.offsets:
            listed = pb.ListedOffset(topic=item.topic, partition=item.partition)
            try:
                model = self._partition(item.topic, item.partition, item.topic_id)
                listed.topic_id = self.cluster.topics[item.topic].topic_id
                kind = item.WhichOneof("at")
                edges = {"earliest": model.log_start, "latest": model.end}
                found = edges[kind] if kind in edges else model.offset_at(item.timestamp_ms)
                if found is not None:
                    listed.offset = found
            except OctavoError as error:
                listed.error.CopyFrom(to_wire(error))
            out.append(listed)
        return pb.ListOffsetsReply(offsets=out)

    async def CreateTopic(self, request, context):  # type: ignore[no-untyped-def]
        await self.faults.release_changes.wait()
        found = self.cluster.topics.get(request.name)
        if found is not None and found.token == request.creation_token != b"":
            return pb.CreateTopicReply(topic=self._topic_info(found))
        if found is not None:
            return pb.CreateTopicReply(error=to_wire(TopicAlreadyExists(f"{request.name} exists")))
        topic = self.cluster.create(request.name, request.partitions, **dict(request.config))
        topic.token = request.creation_token
        return pb.CreateTopicReply(topic=self._topic_info(topic))

    async def DeleteTopic(self, request, context):  # type: ignore[no-untyped-def]
        found = self.cluster.topics.get(request.name)
        if found is not None and request.topic_id not in (b"", found.topic_id):
            other = InconsistentTopicId(f"topic {request.name!r} was created again")
            return pb.DeleteTopicReply(error=to_wire(other))
        await self.faults.release_changes.wait()
        if self.cluster.topics.pop(request.name, None) is None:
            error = UnknownTopic(f"topic {request.name!r} does not exist")
            return pb.DeleteTopicReply(error=to_wire(error))
        return pb.DeleteTopicReply()

    async def AlterTopic(self, request, context):  # type: ignore[no-untyped-def]
        found = self.cluster.topics.get(request.name)
        if found is None:
            error = UnknownTopic(f"topic {request.name!r} does not exist")
            return pb.AlterTopicReply(error=to_wire(error))
        found.config.update(request.config)
        for name in request.unset:
            found.config.pop(name, None)
        self.cluster.grow(found, request.partitions)
        found.decommissioned.update(request.decommission)
        return pb.AlterTopicReply(topic=self._topic_info(found))

    async def ListTopics(self, request, context):  # type: ignore[no-untyped-def]
        await self.faults.release_metadata.wait()
        names = sorted(name for name in self.cluster.topics if name > request.after)
        page = names[: request.limit or len(names)]
        return pb.ListTopicsReply(
            topics=[self._topic_info(self.cluster.topics[name]) for name in page],
            more=len(page) < len(names),
        )

    async def DescribeLog(self, request, context):  # type: ignore[no-untyped-def]
        try:
            model = self._partition(request.topic, request.partition)
        except OctavoError as error:
            return pb.DescribeLogReply(error=to_wire(error))
        segment = pb.SegmentInfo(ledger_id=7, end_offset=model.end, state="OPEN", last_entry=-1)
        return pb.DescribeLogReply(
            log_start=model.log_start,
            high_watermark=model.end,
            segments=[segment],
            bookies=[pb.BookieInfo(bookie_id="bookie-1", state="rw")],
            owner_epoch=model.epoch,
            topic_id=self._topic_info(self.cluster.topics[request.topic]).topic_id,
        )

    async def Roll(self, request, context):  # type: ignore[no-untyped-def]
        try:
            model = self._partition(request.topic, request.partition)
        except OctavoError as error:
            return pb.RollReply(error=to_wire(error))
        return pb.RollReply(high_watermark=model.end)

    async def DeleteRecords(self, request, context):  # type: ignore[no-untyped-def]
        try:
            model = self._partition(request.topic, request.partition)
        except OctavoError as error:
            return pb.DeleteRecordsReply(error=to_wire(error))
        before = model.end if request.before < 0 else request.before
        if before > model.end:
            beyond = OffsetOutOfRange(f"{before} is above {model.end}")
            return pb.DeleteRecordsReply(error=to_wire(beyond))
        model.log_start = max(model.log_start, before)
        return pb.DeleteRecordsReply(log_start=model.log_start)

    async def Compact(self, request, context):  # type: ignore[no-untyped-def]
        try:
            model = self._partition(request.topic, request.partition)
        except OctavoError as error:
            return pb.CompactReply(error=to_wire(error))
        return pb.CompactReply(cleaned_to=model.end)

    async def ClusterHealth(self, request, context):  # type: ignore[no-untyped-def]
        await self.faults.release_metadata.wait()
        return pb.ClusterHealthReply(
            cluster_id="fake",
            brokers=[pb.BrokerInfo(broker_id="broker-0", address=self.address)],
            bookies=[pb.BookieInfo(bookie_id=f"bookie-{n}", state="rw") for n in range(3)],
            metadata_connected=True,
            write_quorum=3,
            ack_quorum=2,
            degraded_ledgers=0,
            short_segments=0,
            segments=0,
            census_complete=True,
        )

    async def ListBrokers(self, request, context):  # type: ignore[no-untyped-def]
        return pb.ListBrokersReply(
            brokers=[
                pb.FleetBroker(broker_id=f"broker-{b.index}", address=b.address, bundles=1)
                for b in self.cluster.brokers
            ],
            bundles=len(self.cluster.brokers),
        )

    async def DrainBroker(self, request, context):  # type: ignore[no-untyped-def]
        return pb.DrainBrokerReply()

    async def ListBundles(self, request, context):  # type: ignore[no-untyped-def]
        bundles = self.cluster.bundles
        if not request.HasField("bundle"):
            return pb.ListBundlesReply(bundles=bundles.values())
        found = bundles[request.bundle]
        reply = pb.ListBundlesReply(bundles=[found])
        if found.placed_on and self.cluster.hands_over:
            found.owner_id = found.placed_on  # seen at the look after this one
        return reply

    async def UnloadBundle(self, request, context):  # type: ignore[no-untyped-def]
        self.cluster.unloads.append(request)
        found = self.cluster.bundles[request.bundle]
        found.placed_on = request.to_broker or "broker-0"
        if self.faults.lose_replies:
            self.faults.lose_replies -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")  # pyright: ignore
        return pb.UnloadBundleReply(bundle=found)

    async def ShowLedger(self, request, context):  # type: ignore[no-untyped-def]
        record = records_pb2.LedgerRecord(
            ledger_id=request.ledger_id,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            state=records_pb2.CLOSED,
            fragments=[records_pb2.Fragment(first_entry=0, members=["bookie-1@x"])],
            last_entry=41,
            length=4242,
        )
        return pb.ShowLedgerReply(
            ledger_record=record.SerializeToString(),
            holders=[pb.HeldBy(bookie_id="bookie-1", reachable=True, last_add_confirmed=41)],
        )


async def _drained() -> None:
    """Connections that were aborted in the last turns of a loop are closed by its next ones."""
    me = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not me]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)


class FakeClusterThread:
    """A FakeCluster on its own loop thread; `call` runs test code there."""

    def __init__(self, brokers: int = 1) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = self.call(lambda: FakeCluster(brokers))
        self.run(self.cluster.start())
        self.bootstrap = self.cluster.bootstrap

    def run(self, coro: Coroutine[object, object, T]) -> T:
        """Run a coroutine there and wait for it."""
        return self.submit(coro).result(30)

    def submit(self, coro: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine there."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop)

    def call(self, function: Callable[[], T]) -> T:
        async def body() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(body(), self._loop).result(30)

    def restart(self, index: int = 0) -> None:
        broker = self.cluster.brokers[index]
        self.run(broker.stop())
        self.run(broker.start())

    def stop(self) -> None:
        self.run(self.cluster.stop())
        self.run(_drained())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
