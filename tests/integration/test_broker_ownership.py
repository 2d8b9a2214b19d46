"""Several brokers of one cluster: who serves what, and what happens when that changes (§8.4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from octavo.metadata.bundles import BundleOwner
from octavo.proto import batch as batches
from octavo.proto import broker_pb2 as pb
from octavo.runtime.errors import NotLeader
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.served import PartitionListener
from tests.serving_rig import make_batch, until
from tests.serving_server import (
    Client,
    Loopback,
    batch_of,
    create_topic,
    fetch_of,
    fetch_waits,
    find_owner,
    loopback,
)

PARTITIONS = 12


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[Loopback]:
    async with loopback() as made:
        yield made


def by_address(cluster: Loopback) -> dict[str, Client]:
    return {
        server.address: client
        for server, client in zip(cluster.servers, cluster.clients, strict=True)
    }


async def see_each_other(cluster: Loopback, count: int) -> None:
    async with asyncio.timeout(30):
        for client in cluster.clients:
            while True:
                reply = await client.stub.Metadata(pb.MetadataRequest())
                if len(reply.brokers) == count:
                    break
                await asyncio.sleep(0.01)


async def produce_somewhere(cluster: Loopback, partition: int, payload: bytes) -> int:
    """Produce as a client does: find the owner, retry on retriable errors; the offset."""
    clients = by_address(cluster)
    async with asyncio.timeout(30):
        while True:
            address = await find_owner(clients, "orders", partition)
            (ack,) = await clients[address].produce(batch_of(payload, partition=partition))
            if not ack.HasField("error"):
                return ack.base_offset
            assert ack.error.code in ("NOT_LEADER", "READ_UNKNOWN"), ack.error
            await asyncio.sleep(0.01)


async def read_values(cluster: Loopback, partition: int) -> list[bytes | None]:
    clients = by_address(cluster)
    values: list[bytes | None] = []
    offset = 0
    async with asyncio.timeout(30):
        while True:
            address = await find_owner(clients, "orders", partition)
            reply = await clients[address].fetch(fetch_of(offset, partitions=(partition,)))
            found = reply.partitions[0]
            if found.HasField("error"):
                assert found.error.code == "NOT_LEADER", found.error
                await asyncio.sleep(0.01)
                continue
            for payload in found.batches:
                values.extend(batches.decode_rows(payload).values)
            offset = found.next_offset
            if offset >= found.high_watermark:
                return values


async def test_lookup_redirects_to_the_preferred_broker_and_every_broker_agrees(
    cluster: Loopback,
) -> None:
    for i in range(3):
        await cluster.broker(f"broker-{i}")
    await see_each_other(cluster, 3)
    await create_topic(cluster.clients[0], partitions=PARTITIONS)
    clients = by_address(cluster)
    owners = [await find_owner(clients, "orders", p) for p in range(PARTITIONS)]
    assert len(set(owners)) > 1
    for client in cluster.clients:
        for partition, owner in enumerate(owners):
            reply = await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=partition))
            assert (reply.owner_address, reply.redirect) == (owner, False)


async def test_produce_to_a_broker_that_does_not_own_says_where_to_go(cluster: Loopback) -> None:
    first = await cluster.broker("broker-1", ownership_settle_s=1000)  # it keeps the bundle
    await create_topic(first, partitions=1)
    owner = await find_owner(by_address(cluster), "orders", 0)
    other = await cluster.broker("broker-2", ownership_settle_s=1000)
    (ack,) = await other.produce(batch_of(make_batch()))
    assert ack.error.code == "NOT_LEADER"
    assert ack.error.details["owner_address"] == owner
    fetched = await other.fetch(fetch_of(0))
    assert fetched.partitions[0].error.code == "NOT_LEADER"


async def test_new_broker_gets_its_share_without_loss(cluster: Loopback) -> None:
    """O-3, F145: bundles in excess are unloaded once the set of brokers is stable."""
    await cluster.broker("broker-1")
    await create_topic(cluster.clients[0], partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        assert await produce_somewhere(cluster, partition, make_batch([b"before"])) == 0
    await cluster.broker("broker-2")
    first, second = cluster.servers
    async with asyncio.timeout(30):
        while len(second.registry) == 0:
            for partition in range(PARTITIONS):
                await produce_somewhere(cluster, partition, make_batch([b"during"]))
    for partition in range(PARTITIONS):
        values = await read_values(cluster, partition)
        assert values[0] == b"before"
        assert set(values[1:]) <= {b"during"}
    async with asyncio.timeout(30):  # one that moves right now is loaded when it is asked for
        while len(first.registry) + len(second.registry) != PARTITIONS:
            for partition in range(PARTITIONS):
                await find_owner(by_address(cluster), "orders", partition)


async def test_stopped_broker_hands_over_in_good_order(cluster: Loopback) -> None:
    await cluster.broker("broker-1")
    await cluster.broker("broker-2")
    await see_each_other(cluster, 2)
    await create_topic(cluster.clients[0], partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        await produce_somewhere(cluster, partition, make_batch([b"a"]))
    await cluster.clients[0].channel.close()
    await cluster.servers[0].stop()
    await cluster.stores[0].close()
    for parts in (cluster.servers, cluster.stores, cluster.clients):
        parts.pop(0)
    for partition in range(PARTITIONS):
        assert await produce_somewhere(cluster, partition, make_batch([b"b"])) == 1
        assert await read_values(cluster, partition) == [b"a", b"b"]


async def test_g3_lost_session_answers_not_leader_at_once_and_comes_back(
    cluster: Loopback,
) -> None:
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    waiting = asyncio.ensure_future(client.fetch(fetch_of(1, max_wait_ms=20_000)))
    server, store = cluster.servers[0], cluster.stores[0]
    await fetch_waits(server)
    store.suspend()
    (ack,) = await client.produce(batch_of(make_batch([b"b"])))
    assert ack.base_offset == 1  # O-5: suspended is no reason to stop writing
    assert len((await waiting).partitions[0].batches) == 1
    waiting = asyncio.ensure_future(client.fetch(fetch_of(2, max_wait_ms=20_000)))
    await fetch_waits(server)
    store.resume()
    cluster.metadata.expire(store)
    reply = await asyncio.wait_for(waiting, 15)
    assert reply.partitions[0].error.code == "NOT_LEADER"
    assert await produce_somewhere(cluster, 0, make_batch([b"c"])) == 2
    (shell,) = server.registry.shells()
    assert shell.owner_epoch == 1  # nobody else was owner: nothing was loaded again


async def test_partition_that_had_another_owner_during_a_lost_session_is_dropped(
    cluster: Loopback,
) -> None:
    """O-5: taking the bundle back does not make a stale high watermark true again."""
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    (shell,) = cluster.servers[0].registry.shells()
    usurper = await cluster.broker("broker-2", ownership_settle_s=1000)
    topic = await cluster.servers[1]._topic_catalog.get("orders")  # pyright: ignore[reportPrivateUsage]
    cluster.metadata.expire(cluster.stores[0])
    task = cluster.servers[1].registry.loads.open(topic.topic, 0, 0)
    await task  # claims under a higher epoch, then finds that the bundle is not its own
    assert usurper is cluster.clients[1]
    assert await produce_somewhere(cluster, 0, make_batch([b"b"])) == 1
    assert await read_values(cluster, 0) == [b"a", b"b"]
    current = [s for server in cluster.servers for s in server.registry.shells()]
    assert all(s is not shell for s in current)


async def test_who_follows_partitions_hears_of_each_before_a_successor_can_serve_it(
    cluster: Loopback,
) -> None:
    """Also of those that are unloaded in good order, given up, or dropped with their topic."""
    client = await cluster.broker("broker-1")
    heard: list[str] = []

    def served(shell: PartitionShell) -> None:
        assert shell.gone is None
        heard.append(f"served {shell.name}")

    def left(shell: PartitionShell) -> None:
        is_open = shell.state is PartitionStateName.SERVING
        heard.append(f"left {shell.name} {'open' if is_open else 'closed'}")

    registry = cluster.servers[0].registry
    registry.listen(PartitionListener(served, left))
    await create_topic(client, partitions=16)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    shell = registry.find("orders", 0)
    assert shell is not None
    topic_id = shell.name.topic_id
    bundles = [registry.bundle(topic_id, partition) for partition in range(16)]
    other = next(partition for partition in range(16) if bundles[partition] != bundles[0])
    await produce_somewhere(cluster, other, make_batch([b"a"]))
    await until(lambda: len(heard) == 2)
    assert heard == ["served orders-0", f"served orders-{other}"]
    await registry.unload_bundle(bundles[0])
    assert "left orders-0 open" in heard  # told before its last segment was closed
    with pytest.raises(NotLeader):
        shell.append(make_batch([b"b"]), -1, lambda _: None)
    await produce_somewhere(cluster, 0, make_batch([b"b"]))
    assert heard[-1] == "served orders-0"
    await registry.drop_topic(topic_id)
    assert sorted(heard[-2:]) == ["left orders-0 open", f"left orders-{other} open"]
    assert len(heard) == 6


async def test_f148_paused_process_serves_nothing_until_its_session_is_confirmed(
    cluster: Loopback,
) -> None:
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    standing = cluster.servers[0].ownership._standing  # pyright: ignore[reportPrivateUsage]
    standing._pulse_s -= 60  # pyright: ignore[reportPrivateUsage]
    fetched = await client.fetch(fetch_of(0))
    assert fetched.partitions[0].error.code == "NOT_LEADER"
    assert await read_values(cluster, 0) == [b"a"]  # soon confirmed


async def test_partition_that_cannot_be_loaded_does_not_hold_up_its_stream(
    cluster: Loopback,
) -> None:
    """BP-4; A6: with too few bookies to fence, the new owner can only wait."""
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=2)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    (shell,) = cluster.servers[0].registry.shells()
    await cluster.servers[0].registry._drop(  # pyright: ignore[reportPrivateUsage]
        shell, NotLeader("as after a crash")
    )
    await produce_somewhere(cluster, 1, make_batch([b"b"]))
    cluster.bookies.live = 1
    sent = [batch_of(make_batch([b"x"]), correlation=i) for i in range(50)]
    async with asyncio.timeout(15):
        acks = await client.produce(*sent)
        assert {ack.error.code for ack in acks} <= {"READ_UNKNOWN", "NOT_LEADER"}
        fetched = await client.fetch(fetch_of(0, partitions=(1,)))
        assert len(fetched.partitions[0].batches) == 1  # reads of durable data go on
    cluster.bookies.live = 3
    assert await produce_somewhere(cluster, 0, make_batch([b"c"])) == 1


async def test_topic_deleted_on_one_broker_is_gone_on_all(cluster: Loopback) -> None:
    for i in range(2):
        await cluster.broker(f"broker-{i}")
    await see_each_other(cluster, 2)
    await create_topic(cluster.clients[0], partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        await produce_somewhere(cluster, partition, make_batch([b"a"]))
    reply = await cluster.clients[1].stub.DeleteTopic(pb.DeleteTopicRequest(name="orders"))
    assert not reply.HasField("error"), reply.error
    await until(lambda: not any(len(server.registry) for server in cluster.servers))
    for client in cluster.clients:
        (ack,) = await client.produce(batch_of(make_batch()))
        assert ack.error.code == "UNKNOWN_TOPIC"
    await create_topic(cluster.clients[0], partitions=1)
    assert await produce_somewhere(cluster, 0, make_batch([b"new"])) == 0


@pytest.mark.parametrize("thorough", [False, True])
async def test_interrupted_deletion_is_resumed(cluster: Loopback, thorough: bool) -> None:
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=2)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    server = cluster.servers[0]
    catalog = server._topic_catalog  # pyright: ignore[reportPrivateUsage]
    await catalog.mark_deleting(await catalog.get("orders"))
    await server._administration.admin.resume(thorough=thorough)  # pyright: ignore[reportPrivateUsage]
    assert await catalog.list() == []
    assert await catalog.unfinished() == []
    assert cluster.bookies.ledgers == {}


def ends(partition: int = 0) -> list[pb.ListOffset]:
    return [
        pb.ListOffset(topic="orders", partition=partition, latest=True),
        pb.ListOffset(topic="orders", partition=partition, timestamp_ms=1 << 60),
    ]


async def end_answers(client: Client, beyond: int) -> list[str]:
    """What a broker says of the end in every way it can be asked: "" or the error's code."""
    listed = await client.stub.ListOffsets(pb.ListOffsetsRequest(offsets=ends()))
    found = await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=0))
    fetched = [
        (await client.fetch(fetch_of(at, max_wait_ms=1))).partitions[0].error.code
        for at in (beyond - 1, beyond)
    ]
    codes = [item.error.code for item in listed.offsets]
    return [*codes, found.error.code, *fetched]


async def test_a_stale_owner_says_nothing_about_the_end(cluster: Loopback) -> None:
    """Its lease ran out unnoticed, a successor acknowledged more; what is below stays readable."""
    old = await cluster.broker("broker-1", session_timeout_s=1.5)
    await create_topic(old, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"old"], pid=7, epoch=0, sequence=0))
    store = cluster.stores[0]
    store.suspend()
    cluster.metadata.end_lease(store)
    new = await cluster.broker("broker-2")
    clients = {new.address: new}
    await find_owner(clients, "orders", 0)
    (ack,) = await new.produce(batch_of(make_batch([b"1", b"2"], pid=7, epoch=0, sequence=1)))
    assert ack.base_offset == 1
    ownership = cluster.servers[0].ownership
    await until(lambda: not ownership.certain())
    assert await end_answers(old, beyond=2) == ["NOT_LEADER"] * 5
    asked = pb.DescribeLogRequest(topic="orders", partition=0)
    assert (await old.stub.DescribeLog(asked)).error.code == "NOT_LEADER"
    info = await old.stub.Metadata(pb.MetadataRequest(topics=["orders"]))
    assert {part.owner_id for topic in info.topics for part in topic.partitions} <= {"", "broker-2"}
    (ack,) = await old.produce(batch_of(make_batch([b"3"], pid=7, epoch=0, sequence=3)))
    assert ack.error.code == "NOT_LEADER"  # not OUT_OF_ORDER_SEQUENCE: the successor has 1 and 2
    store.resume()


async def test_an_owner_in_doubt_proves_the_end_by_a_mark(cluster: Loopback) -> None:
    """A metadata outage alone changes nothing for readers at the end; the bookies vouch for it."""
    client = await cluster.broker("broker-1", session_timeout_s=1.5)
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"], pid=7, epoch=0, sequence=0))
    cluster.stores[0].suspend()
    await until(lambda: not cluster.servers[0].ownership.certain())
    assert await end_answers(client, beyond=2) == ["", "", "", "", "OFFSET_OUT_OF_RANGE"]
    (ack,) = await client.produce(batch_of(make_batch([b"b"])))
    assert ack.base_offset == 1
    assert await read_values(cluster, 0) == [b"a", b"b"]
    cluster.bookies.hold = True  # nobody vouches: what is there may still be read
    assert await end_answers(client, beyond=3) == ["NOT_LEADER"] * 5
    fetched = await client.fetch(fetch_of(0))
    assert len(fetched.partitions[0].batches) == 2
    cluster.bookies.release()
    cluster.stores[0].resume()
    await until(cluster.servers[0].ownership.certain)
    await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    assert await read_values(cluster, 0) == [b"a", b"b"]  # marks are no records
    assert (await client.fetch(fetch_of(2, max_wait_ms=1))).partitions[0].high_watermark == 2


async def test_without_an_open_ledger_nothing_proves_the_end(cluster: Loopback) -> None:
    client = await cluster.broker("broker-1", session_timeout_s=1.5)
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    await client.stub.Roll(pb.RollRequest(topic="orders", partition=0))
    cluster.stores[0].suspend()
    await until(lambda: not cluster.servers[0].ownership.certain())
    assert await end_answers(client, beyond=2) == ["NOT_LEADER"] * 5
    assert len((await client.fetch(fetch_of(0))).partitions[0].batches) == 1
    cluster.stores[0].resume()


async def test_a_broker_that_stops_under_load_answers_with_typed_errors(
    cluster: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that arrive while it closes are NOT_LEADER or UNAVAILABLE; nothing fails inside."""
    client = await cluster.broker("broker-1")
    await create_topic(client, partitions=PARTITIONS)
    codes: set[str] = set()
    answered = asyncio.Event()

    async def load(partition: int) -> None:
        while True:
            try:
                await client.stub.Lookup(pb.LookupRequest(topic="orders", partition=partition))
                sent = batch_of(make_batch([b"x"]), partition=partition)
                codes.update(ack.error.code for ack in await client.produce(sent))
                asked = [pb.ListOffset(topic="orders", partition=partition, latest=True)]
                found = await client.stub.ListOffsets(pb.ListOffsetsRequest(offsets=asked))
                codes.add(found.offsets[0].error.code)
                answered.set()
            except grpc.aio.AioRpcError as error:
                if error.details() == "Internal error from Core":
                    return  # grpc.aio's own words for a call that ended while it was being begun
                codes.add(error.code().name)
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    return

    caplog.set_level(logging.ERROR)
    tasks = [asyncio.ensure_future(load(number)) for number in range(PARTITIONS)]
    await answered.wait()
    await cluster.servers[0].stop()
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert codes <= {"", "NOT_LEADER", "UNAVAILABLE", "CANCELLED"}
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


async def test_a_bundle_given_away_late_does_not_hide_its_next_owner(cluster: Loopback) -> None:
    """A resumed broker unloads what another took long ago: its hint of that owner stays."""
    client = await cluster.broker("broker-1", ownership_settle_s=1000)
    await create_topic(client, partitions=1)
    await produce_somewhere(cluster, 0, make_batch([b"a"]))
    ownership = cluster.servers[0].ownership
    (bundle,) = ownership.held
    next_owner = BundleOwner("broker-2", "127.0.0.1:2", b"n")
    ownership.hints.seen(bundle, next_owner)
    await ownership._give_away(bundle)  # pyright: ignore[reportPrivateUsage]
    hint = ownership.hint(bundle)
    assert hint is not None
    assert hint.broker_id == "broker-2"
