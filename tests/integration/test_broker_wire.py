"""A broker on a loopback port, spoken to with raw messages."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.memory import MemoryStore
from octavo.metadata.paths import Paths
from octavo.metadata.repairs import AuditReport, RepairCatalog
from octavo.proto import batch as batches
from octavo.proto import broker_pb2 as pb
from octavo.proto.errors import from_rpc_error, from_wire
from octavo.proto.produce_wire import MESSAGE_BATCHES_MAX
from octavo.runtime.clock import SystemClock
from octavo.runtime.ids import LedgerId
from octavo.serving import topic_admin
from octavo.serving.config import BrokerConfig
from octavo.serving.storage import Storage
from octavo.serving.streams import ProduceStream
from octavo.supervisor.health import is_serving
from tests.memory_ledgers import MemoryBookies
from tests.serving_rig import NOW_MS, make_batch, until
from tests.serving_server import (
    Client,
    Loopback,
    MemoryStorage,
    batch_of,
    create_topic,
    fetch_of,
    fetch_waits,
    loopback,
)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


@pytest_asyncio.fixture
async def client(cluster: Loopback) -> Client:
    made = await cluster.broker()
    await create_topic(made, partitions=3)
    for partition in range(3):
        reply = await made.stub.Lookup(pb.LookupRequest(topic="orders", partition=partition))
        assert reply.owner_id == "broker-1"
        assert not reply.redirect
    return made


async def raw_stream(client: Client, method: str, *messages: bytes) -> list[bytes]:
    stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    stream = client.channel.stream_stream(f"/octavo.broker.Broker/{method}")
    call = stream()
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [reply async for reply in call]


async def test_produce_and_fetch_give_the_same_body(client: Client) -> None:
    sent = make_batch([b"one", b"two"])
    (ack,) = await client.produce(batch_of(sent, correlation=77))
    assert (ack.correlation, ack.base_offset, ack.duplicate) == (77, 0, False)
    assert ack.append_time_ms > 0
    reply = await client.fetch(fetch_of(0))
    (partition,) = reply.partitions
    assert partition.batches[0][80:] == sent[80:]
    assert (partition.next_offset, partition.high_watermark, partition.log_start) == (2, 2, 0)
    assert partition.owner_epoch == 1
    assert batches.decode_rows(partition.batches[0]).values == [b"one", b"two"]


async def test_many_batches_of_one_message_are_answered_in_order(client: Client) -> None:
    sent = [batch_of(make_batch([b"%d" % i]), correlation=i) for i in range(200)]
    acks = await client.produce(*sent)
    assert [ack.correlation for ack in acks] == list(range(200))
    assert [ack.base_offset for ack in acks] == list(range(200))


async def test_acknowledgements_are_coalesced(client: Client) -> None:
    call = client.stub.Produce()
    await call.write(
        pb.ProduceRequest(batches=[batch_of(make_batch(), correlation=i) for i in range(500)])
    )
    await call.done_writing()
    replies = [reply async for reply in call]
    assert sum(len(reply.acks) for reply in replies) == 500
    assert len(replies) < 50


@pytest.mark.parametrize(
    ("payload", "topic", "partition", "code"),
    [
        (b"", "orders", 0, "CORRUPT_BATCH"),
        (b"\xb7 garbage", "orders", 0, "CORRUPT_BATCH"),
        (bytes(500), "orders", 0, "UNSUPPORTED_VERSION"),
        (make_batch([b"v"])[:-8], "orders", 0, "CORRUPT_BATCH"),
        (make_batch([b"v"])[:-1] + b"!", "orders", 0, "CORRUPT_BATCH"),
        (make_batch([b"v"], timestamp_ms=NOW_MS * 2), "orders", 0, "INVALID_TIMESTAMP"),
        (make_batch([b"v"]) + bytes(5 << 20), "orders", 0, "MESSAGE_TOO_LARGE"),
        (make_batch([b"v"]), "nowhere", 0, "UNKNOWN_TOPIC"),
        (make_batch([b"v"]), "orders", 3, "INVALID_PARTITION"),
        (make_batch([b"v"], pid=1, epoch=-1, sequence=0), "orders", 0, "INVALID_REQUEST"),
    ],
)
async def test_refused_batches_are_errors_in_the_reply(
    client: Client, payload: bytes, topic: str, partition: int, code: str
) -> None:
    good = batch_of(make_batch([b"good"]), correlation=2)
    bad = batch_of(payload, correlation=1, topic=topic, partition=partition)
    acks = {ack.correlation: ack for ack in await client.produce(bad, good)}
    assert acks[1].error.code == code
    assert acks[1].error.cause
    assert acks[2].base_offset == 0
    assert not acks[2].HasField("error")


@pytest.mark.parametrize("method", ["Produce", "Fetch", "Metadata"])
async def test_garbage_is_invalid_argument(client: Client, method: str) -> None:
    async def send_garbage() -> None:
        if method == "Metadata":
            unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            unary = client.channel.unary_unary(f"/octavo.broker.Broker/{method}")
            await unary(b"\xff\xff\xff")
        else:
            await raw_stream(client, method, b"\xff\xff\xff")

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send_garbage()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value, "broker").code == "INVALID_REQUEST"
    assert (await client.produce(batch_of(make_batch())))[0].base_offset == 0  # still serving


@pytest.mark.parametrize(
    "bad",
    [
        batch_of(make_batch(), acks=2),
        batch_of(make_batch(), topic=""),
        batch_of(make_batch(), partition=-1),
    ],
)
async def test_malformed_produce_message_ends_the_stream(
    client: Client, bad: pb.ProduceBatch
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.produce(bad)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_oversized_message_is_resource_exhausted(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await raw_stream(client, "Produce", bytes(40 << 20))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_full_batch_of_4_mib_fits_the_message_limits(client: Client) -> None:
    """G7: the library's default of 4 MiB would refuse it."""
    big = make_batch([bytes(1 << 20)] * 3 + [bytes((1 << 20) - 4096)])
    (ack,) = await client.produce(batch_of(big))
    assert ack.base_offset == 0
    reply = await client.fetch(fetch_of(0, partition_bytes=100, max_bytes=100))
    assert len(reply.partitions[0].batches[0]) == len(big)  # F2: progress beats every limit


async def test_replies_end_at_the_brokers_limit_and_partitions_take_turns(client: Client) -> None:
    """F2: whoever filled one reply is the last to be looked at for the next."""
    for partition in range(3):
        await client.produce(batch_of(make_batch([bytes(1 << 20)] * 3), partition=partition))
    call = client.stub.Fetch()
    request = fetch_of(0, partitions=(0, 1, 2), partition_bytes=8 << 20, max_bytes=50 << 20)
    filled: list[int] = []
    for _ in range(6):
        await call.write(request)
        reply = await call.read()
        assert isinstance(reply, pb.FetchReply)
        assert reply.ByteSize() < BrokerConfig(broker_id="b").fetch_reply_bytes + (4 << 20)
        filled += [part.partition for part in reply.partitions if part.batches]
    call.cancel()
    assert filled == [0, 1, 2, 0, 1, 2]


async def test_long_poll_wakes_on_append(client: Client, cluster: Loopback) -> None:
    waiting = asyncio.ensure_future(client.fetch(fetch_of(0, max_wait_ms=20_000)))
    await fetch_waits(cluster.servers[0])
    assert not waiting.done()
    await client.produce(batch_of(make_batch([b"a"])))
    reply = await asyncio.wait_for(waiting, 15)
    assert len(reply.partitions[0].batches) == 1


async def test_long_poll_waits_for_min_bytes_over_all_partitions(
    client: Client, cluster: Loopback
) -> None:
    request = fetch_of(0, partitions=(0, 1), max_wait_ms=20_000, min_bytes=1500)
    waiting = asyncio.ensure_future(client.fetch(request))
    await fetch_waits(cluster.servers[0])
    await client.produce(batch_of(make_batch([bytes(800)])))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await client.produce(batch_of(make_batch([bytes(800)]), partition=1))
    reply = await asyncio.wait_for(waiting, 15)
    assert [len(p.batches) for p in reply.partitions] == [1, 1]


async def test_long_poll_ends_empty_at_max_wait(client: Client) -> None:
    started = asyncio.get_running_loop().time()
    reply = await client.fetch(fetch_of(0, max_wait_ms=100))
    assert asyncio.get_running_loop().time() - started >= 0.1
    assert (reply.partitions[0].next_offset, len(reply.partitions[0].batches)) == (0, 0)


async def test_next_request_cuts_a_long_poll_short(client: Client, cluster: Loopback) -> None:
    call = client.stub.Fetch()
    await call.write(fetch_of(0, max_wait_ms=20_000, correlation=1))
    await fetch_waits(cluster.servers[0])
    await call.write(fetch_of(0, max_wait_ms=0, correlation=2))
    async with asyncio.timeout(15):
        first, second = await call.read(), await call.read()
    assert isinstance(first, pb.FetchReply)
    assert isinstance(second, pb.FetchReply)
    assert (first.correlation, second.correlation) == (1, 2)
    call.cancel()


async def test_out_of_range_offset_tells_the_range(client: Client) -> None:
    await client.produce(batch_of(make_batch([b"a"])))
    reply = await client.fetch(fetch_of(5, max_wait_ms=10_000))  # an error answers at once
    error = reply.partitions[0].error
    assert error.code == "OFFSET_OUT_OF_RANGE"
    assert error.details["high_watermark"] == "1"
    assert reply.partitions[0].high_watermark == 1


async def test_fetch_of_unknown_topic_and_partition(client: Client) -> None:
    reply = await client.fetch(fetch_of(0, topic="nowhere"))
    assert reply.partitions[0].error.code == "UNKNOWN_TOPIC"
    reply = await client.fetch(fetch_of(0, partitions=(9,)))
    assert reply.partitions[0].error.code == "INVALID_PARTITION"


async def test_next_offset_passes_control_entries_of_rolled_segments(client: Client) -> None:
    """F3: snapshots and footers take no offset and stop no reader."""
    for i in range(4):
        await client.produce(batch_of(make_batch([b"%d" % i])))
        rolled = await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
        assert rolled.high_watermark == i + 1
    offset = 0
    values: list[bytes | None] = []
    while offset < 4:
        reply = await client.fetch(fetch_of(offset, max_bytes=1))
        for payload in reply.partitions[0].batches:
            values.extend(batches.decode_rows(payload).values)
        assert reply.partitions[0].next_offset > offset
        offset = reply.partitions[0].next_offset
    assert values == [b"0", b"1", b"2", b"3"]


async def test_metadata_names_owner_and_limits(client: Client) -> None:
    reply = await client.stub.Metadata(pb.MetadataRequest(topics=["orders", "nowhere"]))
    assert [b.broker_id for b in reply.brokers] == ["broker-1"]
    orders, nowhere = reply.topics
    assert [p.owner_id for p in orders.partitions] == ["broker-1"] * 3
    assert nowhere.error.code == "UNKNOWN_TOPIC"
    assert reply.max_batch_bytes == batches.MAX_BATCH_BYTES
    assert len(reply.cluster_id) == 36


async def test_topic_administration(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        reply = await client.stub.CreateTopic(
            pb.CreateTopicRequest(name=name, partitions=partitions, config=config)
        )
        return reply.error.code

    assert await create("orders") == "TOPIC_ALREADY_EXISTS"
    assert await create("a.b") == ""
    assert await create("a_b") == "TOPIC_ALREADY_EXISTS"  # F015
    assert await create("none", partitions=0) == "INVALID_PARTITIONS"
    assert await create("bad name") == "INVALID_TOPIC"
    assert await create("x", config={"retention.mss": "1"}) == "INVALID_CONFIG"
    assert await create("x", config={"replication.factor": "5"}) == "INVALID_REPLICATION_FACTOR"
    listed = await client.stub.ListTopics(pb.ListTopicsRequest(limit=1))
    first = [t.name for t in listed.topics]
    assert (len(first), listed.more) == (1, True)
    listed = await client.stub.ListTopics(pb.ListTopicsRequest(after=first[0]))
    assert (sorted(first + [t.name for t in listed.topics]), listed.more) == (
        ["a.b", "orders"],
        False,
    )
    monkeypatch.setattr(topic_admin, "LIST_PARTITIONS_MAX", 1)  # F028: a page is bounded
    listed = await client.stub.ListTopics(pb.ListTopicsRequest())
    assert ([t.name for t in listed.topics], listed.more) == (first, True)
    monkeypatch.undo()
    assert (await client.stub.DeleteTopic(pb.DeleteTopicRequest(name="zz"))).error.code == (
        "UNKNOWN_TOPIC"
    )


async def test_deleted_topic_is_unknown_and_a_new_one_starts_at_0(
    client: Client, cluster: Loopback
) -> None:
    """F134."""
    await client.produce(batch_of(make_batch([b"old"], pid=1, epoch=0, sequence=0)))
    waiting = asyncio.ensure_future(client.fetch(fetch_of(1, max_wait_ms=20_000)))
    await fetch_waits(cluster.servers[0])
    reply = await client.stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
    assert not reply.HasField("error")
    assert (await waiting).partitions[0].error.code == "UNKNOWN_TOPIC"
    assert cluster.bookies.ledgers == {}
    (ack,) = await client.produce(batch_of(make_batch([b"x"])))
    assert ack.error.code == "UNKNOWN_TOPIC"
    await create_topic(client, partitions=1)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    (ack,) = await client.produce(batch_of(make_batch([b"new"], pid=1, epoch=0, sequence=0)))
    assert (ack.base_offset, ack.duplicate) == (0, False)


async def test_list_offsets(client: Client) -> None:
    for i in range(3):
        await client.produce(batch_of(make_batch([b"v"], timestamp_ms=NOW_MS + i * 10)))

    async def ask(asked: pb.ListOffset) -> pb.ListedOffset:
        asked.topic = "orders"
        return (await client.stub.ListOffsets(pb.ListOffsetsRequest(offsets=[asked]))).offsets[0]

    assert (await ask(pb.ListOffset(earliest=True))).offset == 0
    assert (await ask(pb.ListOffset(latest=True))).offset == 3
    found = await ask(pb.ListOffset(timestamp_ms=NOW_MS + 5))
    assert (found.offset, found.timestamp_ms) == (1, NOW_MS + 10)
    none = await ask(pb.ListOffset(timestamp_ms=NOW_MS + 50))
    assert not none.HasField("error")
    assert not none.HasField("offset")  # F6: no record is that late; the end is asked for as such
    for before_1970 in (-1, -2, -(1 << 62)):  # a time like any other: every record is later
        assert (await ask(pb.ListOffset(timestamp_ms=before_1970))).offset == 0
    assert (await ask(pb.ListOffset())).error.code == "INVALID_REQUEST"
    beyond = await ask(pb.ListOffset(latest=True, partition=8))
    assert beyond.error.code == "INVALID_PARTITION"


async def test_producer_ids_are_unique(client: Client) -> None:
    replies = [await client.stub.InitProducerId(pb.InitProducerIdRequest()) for _ in range(5)]
    assert len({reply.producer_id for reply in replies}) == 5
    assert {reply.producer_epoch for reply in replies} == {0}


class SlowRecords(MemoryStorage):
    """Ledger records are read once somebody allows it."""

    def __init__(self, bookies: MemoryBookies, store: MemoryStore, paths: Paths) -> None:
        super().__init__(bookies, store, paths)
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()

    async def read_record(self, ledger_id: LedgerId) -> LedgerMetadata:
        self.asked.set()
        await self.allowed.wait()
        return await super().read_record(ledger_id)


class SlowLoopback(Loopback):
    """Its broker reads ledger records slowly."""

    slow: SlowRecords

    def storage(self, config: BrokerConfig, store: MemoryStore) -> Storage:
        self.slow = SlowRecords(self.bookies, store, Paths("/octavo"))
        return self.slow


async def test_segments_and_high_watermark_of_a_description_are_of_one_moment() -> None:
    """What is appended and rolled while it is made is not told: no segment would hold it."""
    cluster = SlowLoopback()
    try:
        client = await cluster.broker()
        await create_topic(client)
        await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
        await client.produce(batch_of(make_batch([b"a", b"b"])))
        asked = client.stub.DescribeLog(pb.DescribeLogRequest(topic="orders", partition=0))
        waiting = asyncio.ensure_future(asked)
        await cluster.slow.asked.wait()
        await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
        await client.produce(batch_of(make_batch([b"c"])))
        cluster.slow.allowed.set()
        log = await waiting
        assert [(s.base_offset, s.end_offset, s.state) for s in log.segments] == [(0, 2, "OPEN")]
        assert log.high_watermark == 2
    finally:
        cluster.slow.allowed.set()
        await cluster.close()


async def test_describe_log_and_show_ledger(client: Client) -> None:
    await client.produce(batch_of(make_batch([b"a", b"b"])))
    await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    await client.produce(batch_of(make_batch([b"c"])))
    log = await client.stub.DescribeLog(pb.DescribeLogRequest(topic="orders", partition=0))
    assert [(s.base_offset, s.end_offset, s.state) for s in log.segments] == [
        (0, 2, "CLOSED"),
        (2, 3, "OPEN"),
    ]
    assert len(log.bookies) == 3
    assert log.segments[0].last_entry == 2
    shown = await client.stub.ShowLedger(pb.ShowLedgerRequest(ledger_id=log.segments[0].ledger_id))
    assert shown.ledger_record == log.segments[0].ledger_record
    assert len(shown.holders) == 3
    missing = await client.stub.ShowLedger(pb.ShowLedgerRequest(ledger_id=1 << 40))
    assert missing.error.code == "NO_SUCH_LEDGER"


async def test_cluster_health_counts_degraded_ledgers(client: Client, cluster: Loopback) -> None:
    cluster.bookies.live = 2
    await client.produce(batch_of(make_batch()))
    health = await client.stub.ClusterHealth(pb.ClusterHealthRequest())
    assert (health.degraded_ledgers, len(health.bookies)) == (1, 2)
    assert (health.write_quorum, health.ack_quorum) == (3, 2)
    assert health.metadata_connected
    assert (health.short_segments, health.segments, health.census_complete) == (1, 1, True)


async def test_cluster_health_knows_no_copies_when_the_catalog_cannot_be_read(
    client: Client, cluster: Loopback
) -> None:
    await client.produce(batch_of(make_batch()))
    cluster.stores[0].suspend()
    health = await client.stub.ClusterHealth(pb.ClusterHealthRequest())
    assert not health.metadata_connected
    for field in ("degraded_ledgers", "short_segments", "segments"):
        assert not health.HasField(field), "unknown is not 0"
    cluster.stores[0].resume()


async def test_a_bookie_that_is_away_makes_its_segments_short(
    client: Client, cluster: Loopback
) -> None:
    await client.produce(batch_of(make_batch()))
    await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    health = await client.stub.ClusterHealth(pb.ClusterHealthRequest())
    assert (health.degraded_ledgers, health.short_segments) == (0, 0)
    cluster.bookies.live = 2
    health = await client.stub.ClusterHealth(pb.ClusterHealthRequest())
    assert (health.degraded_ledgers, health.short_segments, health.segments) == (0, 1, 1)


async def test_73_a_bookie_that_came_back_is_not_known_to_be_whole_before_a_look(
    client: Client, cluster: Loopback
) -> None:
    await client.produce(batch_of(make_batch()))

    async def returned() -> list[str]:
        return list((await client.stub.ClusterHealth(pb.ClusterHealthRequest())).returned_bookies)

    assert await returned() == [], "every ledger is younger than its bookies"
    back = cluster.bookies.members[1].bookie_id
    cluster.bookies.processes[back] = b"second"
    cluster.bookies.ledgers_before[back] = 1 << 40
    assert await returned() == [back]
    repairs = RepairCatalog(cluster.metadata.connect(), Paths("/octavo"), clock=SystemClock())
    await repairs.set_report(AuditReport(1, 1, processes=frozenset({b"first"})))
    assert await returned() == [back], "that look began before it came"
    await repairs.set_report(AuditReport(2, 1, processes=frozenset({b"first", b"second"})))
    assert await returned() == []


async def test_a_slow_roll_is_worth_asking_again(cluster: Loopback) -> None:
    client = await cluster.broker(unload_deadline_s=0.1)
    await create_topic(client)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    await client.produce(batch_of(make_batch()))
    cluster.bookies.hold = True
    reply = await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    assert reply.error.code == "REQUEST_TIMED_OUT"
    assert from_wire(reply.error).retriable
    cluster.bookies.release()
    async with asyncio.timeout(30):
        while reply.HasField("error"):  # a busy machine may take a tenth of a second again
            assert reply.error.code == "REQUEST_TIMED_OUT"
            reply = await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    assert reply.high_watermark == 1


async def test_health_service(client: Client) -> None:
    assert await is_serving(client.address, 5.0)


async def test_answers_that_nobody_takes_stop_the_reading_of_their_connection(
    cluster: Loopback,
) -> None:
    """BP-3: an answered batch still costs memory until its answer is taken."""
    client = await cluster.broker(connection_pending_batches=100)
    await create_topic(client)
    message = pb.ProduceRequest(
        batches=[batch_of(b"x" * 10, topic="orders", correlation=i) for i in range(100)]
    )
    call = client.stub.Produce()

    async def flood() -> None:
        for _ in range(5_000):
            async with asyncio.timeout(1):
                await call.write(message)

    with pytest.raises(TimeoutError):
        await flood()
    streams = [found for found in gc.get_objects() if isinstance(found, ProduceStream)]
    assert max(stream.owed for stream in streams) <= 200
    call.cancel()


async def test_one_message_of_very_many_batches_is_refused_before_any_work(
    client: Client,
) -> None:
    for count, refused in ((MESSAGE_BATCHES_MAX, False), (MESSAGE_BATCHES_MAX + 1, True)):
        message = [batch_of(b"", topic="nope", correlation=i) for i in range(count)]
        if refused:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.produce(*message)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            continue
        acks = await client.produce(*message)
        assert {ack.error.code for ack in acks} == {"UNKNOWN_TOPIC"}
        assert len(acks) == count


async def test_pending_batches_of_a_connection_are_bounded(cluster: Loopback) -> None:
    """BP-3: the stream is not read while too much is pending; nothing is lost."""
    client = await cluster.broker(connection_pending_batches=10)
    await create_topic(client)
    await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    await client.produce(batch_of(make_batch()))
    cluster.bookies.hold = True
    call = client.stub.Produce()
    for i in range(40):
        await call.write(pb.ProduceRequest(batches=[batch_of(make_batch(), correlation=i)]))
    (shell,) = cluster.servers[0].registry.shells()
    await until(lambda: shell.pending >= 10)
    await asyncio.sleep(0.05)
    assert shell.pending == 10
    cluster.bookies.release()
    await call.done_writing()
    acks = [ack async for reply in call for ack in reply.acks]
    assert [ack.base_offset for ack in acks] == list(range(1, 41))
