"""A broker that falls silent (frozen, or a half-open link) is left for the one that took over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from octavo import AsyncClient
from octavo.client.messaging.cluster import calls, progress
from octavo.proto import endpoints
from octavo.proto.endpoints import channel_options, server_options
from octavo.runtime.errors import RequestTimedOut
from tests.bookie_rig import until
from tests.fake_broker import FakeCluster
from tests.tcp_proxy import TcpProxy

GIVE_UP_S = 25.0
"""Below request_timeout_ms (30 s) and gRPC's own ping timeout (60 s)."""


@pytest.fixture
async def half_open(fake: FakeCluster) -> AsyncIterator[TcpProxy]:
    """The first broker behind a link that can lose one direction."""
    host, _, port = fake.brokers[0].address.rpartition(":")
    proxy = await TcpProxy(host, int(port)).start()
    fake.brokers[0].address = proxy.address
    yield proxy
    await proxy.close()


async def test_open_streams_follow_the_partition_away_from_a_silent_owner(
    fake: FakeCluster, half_open: TcpProxy
) -> None:
    async with (
        AsyncClient(fake.bootstrap) as client,
        client.producer(linger_ms=0) as producer,
        client.reader("one", start="earliest") as reader,
    ):
        await producer.send("one", b"before")
        assert (await anext(reader)).value == b"before"
        half_open.hold_replies()
        async with asyncio.timeout(GIVE_UP_S):
            late = asyncio.ensure_future(producer.send("one", b"after"))
            await asyncio.sleep(0)
            fake.move("one", 0, 1)
            assert (await late).offset >= 1
            assert (await anext(reader)).value == b"after"
        half_open.cut()


async def test_a_slow_broker_is_not_left(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers the question on the side: batches stay where they are and are sent once."""
    monkeypatch.setattr(progress, "SILENT_S", 0.05)
    broker = fake.brokers[0]
    async with AsyncClient(fake.bootstrap) as client, client.producer(linger_ms=0) as producer:
        await producer.send("one", b"first")
        asked = broker.metadata_requests
        broker.faults.hold.clear()
        slow = asyncio.ensure_future(producer.send("one", b"slow"))
        async with asyncio.timeout(GIVE_UP_S):
            await until(lambda: broker.metadata_requests >= asked + 3)
        assert not slow.done()
        broker.faults.hold.set()
        assert (await slow).offset == 1
        assert broker.produce_messages == 2


BEFORE_THE_PING_S = 30.0
"""What must come before the end of a silent connection, which `slow_pings` puts off."""


@pytest.fixture
def slow_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end after minutes of silence instead of 4 s: a busy machine is quicker."""
    late = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
    liveness = {
        **dict(endpoints._LIVENESS),  # pyright: ignore[reportPrivateUsage]
        **{f"grpc.{name}": 300_000 for name in late},
    }
    monkeypatch.setattr(endpoints, "_LIVENESS", tuple(liveness.items()))


@pytest.mark.usefixtures("slow_pings")
async def test_a_request_is_asked_elsewhere_once_its_broker_fell_silent(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the connection's end, 4 s, and with it everybody who wanted the same."""
    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    monkeypatch.setattr(calls, "PROBE_S", 0.1)
    async with AsyncClient(fake.bootstrap) as client:
        assert await client.admin.list_topics()
        frozen = fake.brokers[0]
        frozen.faults.release_metadata.clear()
        asked = frozen.metadata_requests
        async with asyncio.timeout(BEFORE_THE_PING_S):
            described = await client.admin.describe_topic("one")
        assert described.name == "one"
        assert frozen.metadata_requests > asked, "it was asked first, and looked at"
        frozen.faults.release_metadata.set()


@pytest.mark.usefixtures("slow_pings")
async def test_f045_a_lookup_that_is_sent_on_to_a_silent_broker_ends(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    monkeypatch.setattr(calls, "PROBE_S", 0.1)
    fake.topics["one"].loading.add(0)  # metadata name nobody
    fake.move("one", 0, 1)
    frozen = fake.brokers[1]
    async with AsyncClient(fake.bootstrap) as client:
        owners = client._binding.cluster().owners  # pyright: ignore[reportPrivateUsage]
        frozen.faults.release_metadata.clear()
        frozen.faults.release_lookups.clear()
        async with asyncio.timeout(BEFORE_THE_PING_S):
            with pytest.raises(RequestTimedOut, match="fell silent"):
                await owners.find("one", 0)
            assert frozen.lookups == 1
            fake.move("one", 0, 0)
            assert await owners.find("one", 0) == fake.brokers[0].address
        frozen.faults.release_metadata.set()
        frozen.faults.release_lookups.set()


async def test_m3_a_change_at_a_slow_broker_is_waited_for_and_asked_for_once(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SILENT_S", 0.05)
    slow = fake.brokers[0]
    async with AsyncClient(fake.bootstrap) as client:
        slow.faults.release_changes.clear()
        asked = slow.metadata_requests
        made = asyncio.ensure_future(client.admin.create_topic("two", partitions=1))
        async with asyncio.timeout(GIVE_UP_S):
            await until(lambda: slow.metadata_requests >= asked + 3)
        assert not made.done()
        slow.faults.release_changes.set()
        await made


def test_liveness_and_proxy_options_are_on_every_channel_and_server() -> None:
    for options in (dict(channel_options()), dict(server_options())):
        for name in ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms"):
            assert 0 < options[f"grpc.{name}"] <= 2_000
    assert dict(channel_options())["grpc.enable_http_proxy"] == 0
    assert dict(channel_options(use_http_proxy=True))["grpc.enable_http_proxy"] == 1
