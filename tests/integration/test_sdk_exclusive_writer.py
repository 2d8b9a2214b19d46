"""Producers that want to be the only writer of a topic, against the fake broker (X32)."""

from __future__ import annotations

import asyncio

import pytest

from octavo import AsyncClient
from octavo.client.messaging.cluster import calls
from octavo.client.messaging.producing import writers
from octavo.runtime.errors import ConfigError, FlushTimeout, IllegalStateError, ProducerClosed
from octavo.runtime.errors_of_writers import (
    ExclusiveWriterBusy,
    ExclusiveWriterRequired,
    ProducerFenced,
)
from tests.bookie_rig import until
from tests.fake_broker import FakeCluster


@pytest.fixture
def alone(fake: FakeCluster) -> str:
    """A topic with one writer at a time."""
    return fake.create("alone", 3, **{"exclusive.writer": "true"}).name


async def test_x32_only_one_is_the_writer(
    client: AsyncClient, fake: FakeCluster, alone: str
) -> None:
    async with client.producer() as anybody:
        with pytest.raises(ExclusiveWriterRequired, match="its exclusive writer only"):
            await anybody.send(alone, b"v")
        assert (await anybody.send("one", b"v")).offset == 0, "it goes on with other topics"
    async with client.producer(access_mode="exclusive") as first:
        for number in range(3):
            await first.send(alone, b"first", partition=number)
        async with client.producer(access_mode="exclusive") as second:
            with pytest.raises(ExclusiveWriterBusy, match="has a writer"):
                await second.send(alone, b"second")
            future = second.send_nowait(alone, b"second")
            with pytest.raises(ExclusiveWriterBusy):
                await future
            with pytest.raises(IllegalStateError, match="anybody may write"):
                await second.send("one", b"v")
    async with client.producer(access_mode="exclusive") as third:  # the first has left
        await third.send(alone, b"third", partition=0)
    assert fake.log(alone, 0).values() == [b"first", b"third"]


async def test_x32_whoever_waits_gets_it_when_the_holder_leaves(
    client: AsyncClient, fake: FakeCluster, alone: str
) -> None:
    first = client.producer(access_mode="exclusive")
    await first.send(alone, b"first", partition=0)
    async with client.producer(access_mode="wait_for_exclusive", max_block_ms=50) as second:
        waiting = asyncio.ensure_future(second.send(alone, b"second", partition=0))
        early = second.send_nowait(alone, b"early", partition=1)
        refused = fake.claims_refused
        await until(lambda: fake.claims_refused > refused + 1)
        with pytest.raises(FlushTimeout):
            await second.flush(0.05)
        assert not waiting.done()
        await first.send(alone, b"still", partition=0)
        await first.close()
        assert (await waiting).offset == 2
        assert (await early).offset == 0


async def test_x32_the_fenced_one_is_told_by_its_next_batch(
    client: AsyncClient, fake: FakeCluster, alone: str
) -> None:
    fake.writer_lease_s = 60.0  # so that no renewal comes first
    old = client.producer(access_mode="exclusive")
    await old.send(alone, b"old", partition=0)
    async with client.producer(access_mode="exclusive_with_fencing") as new:
        await new.send(alone, b"new", partition=0)
        with pytest.raises(ProducerFenced, match="another writer took it over") as caught:
            await old.send(alone, b"late", partition=0)
        assert "may or may not be stored" in caught.value.cause
        for _ in range(2):  # it has ended, and says why
            with pytest.raises(ProducerFenced):
                await old.send(alone, b"later", partition=1)
            with pytest.raises(ProducerFenced):
                old.send_nowait(alone, b"later")
        await old.close()
        await new.send(alone, b"on", partition=0)
    assert fake.log(alone, 0).values() == [b"old", b"new", b"on"]


async def test_x32_the_fenced_one_is_told_though_it_sends_nothing(
    client: AsyncClient, fake: FakeCluster, alone: str
) -> None:
    fake.writer_lease_s = 0.06
    old = client.producer(access_mode="exclusive")
    await old.send(alone, b"old", partition=0)
    renewed = fake.claims_renewed
    await until(lambda: fake.claims_renewed > renewed + 6)
    async with client.producer(access_mode="exclusive_with_fencing") as new:
        await new.send(alone, b"new", partition=0)
        await until(lambda: old.engine().intake.closed is not None)
        with pytest.raises(ProducerFenced):
            await old.send(alone, b"late", partition=0)
        await old.close()


async def test_x32_p7_partitions_that_are_added_are_claimed_first(
    fake: FakeCluster, alone: str
) -> None:
    async with (
        AsyncClient(fake.bootstrap, retry_backoff_ms=10, metadata_max_age_ms=100) as client,
        client.producer(access_mode="exclusive") as producer,
    ):
        await producer.send(alone, b"first", partition=0)
        fake.grow(fake.topics[alone], 5)
        await until(lambda: len(producer.engine().intake.topics[alone].slots) == 5)
        for number in range(5):
            await producer.send(alone, b"v", partition=number)


async def test_x32_whoever_is_not_the_writer_of_all_of_it_writes_to_none(
    fake: FakeCluster, alone: str
) -> None:
    async with (
        AsyncClient(fake.bootstrap, retry_backoff_ms=10, metadata_max_age_ms=100) as client,
        client.producer(access_mode="exclusive") as producer,
    ):
        await producer.send(alone, b"first", partition=0)
        topic = fake.topics[alone]
        fake.grow(topic, 4)
        seat, other = fake.brokers[0].seat_of(topic.partitions[3], alone), bytes(16)
        seat.begin_claim(other, fence=False, now_s=fake.clock.monotonic())
        seat.listed(1, other)
        seat.claimed(other, fake.clock.monotonic())
        await until(lambda: producer.engine().intake.closed is not None)
        with pytest.raises(ProducerClosed, match="cannot be claimed"):
            await producer.send(alone, b"second", partition=0)


async def test_x32_a_topic_that_was_created_again_is_claimed_again(
    fake: FakeCluster, alone: str
) -> None:
    async with (
        AsyncClient(fake.bootstrap, retry_backoff_ms=10, metadata_max_age_ms=100) as client,
        client.producer(access_mode="exclusive") as producer,
    ):
        await producer.send(alone, b"first", partition=0)
        before = producer.engine().intake.topics[alone]
        fake.create(alone, 2, **{"exclusive.writer": "true"})
        await until(lambda: producer.engine().intake.topics[alone] is not before)
        await producer.send(alone, b"second", partition=1)
    assert fake.log(alone, 1).values() == [b"second"]


async def test_x32_owners_that_move_know_the_writer(
    client: AsyncClient, fake: FakeCluster, alone: str
) -> None:
    fake.writer_lease_s = 0.06
    async with client.producer(access_mode="exclusive") as producer:
        await producer.send(alone, b"first", partition=0)
        for broker in (1, 0, 1):
            fake.move(alone, 0, broker)
            await producer.send(alone, b"moved", partition=0)
        renewed = fake.claims_renewed
        await until(lambda: fake.claims_renewed > renewed + 6)
        await producer.send(alone, b"last", partition=0)


async def test_x32_an_owner_that_is_silent_keeps_no_other_one_from_hearing_of_the_writer(
    client: AsyncClient, fake: FakeCluster, alone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SILENT_S", "PROBE_S"):
        monkeypatch.setattr(calls, name, 1e6)
    monkeypatch.setattr(writers, "LEAVE_S", 0.2)
    fake.writer_lease_s = 0.06
    fake.move(alone, 0, 1)
    for number in (1, 2):
        fake.move(alone, number, 0)
    producer = client.producer(access_mode="exclusive")
    await producer.send(alone, b"first", partition=0)
    fake.brokers[1].faults.release_claims.clear()
    renewed = fake.claims_renewed
    await until(lambda: fake.claims_renewed > renewed + 6)
    for seat in (
        seats := [fake.brokers[0].seat_of(one, alone) for one in fake.topics[alone].partitions]
    ):
        seat.renew(seat.holder, seat.epoch, fake.clock.monotonic() + 3600.0)
    await producer.close()
    for seat in seats[1:]:  # left, so nobody has to wait for their leases
        seat.begin_claim(bytes(16), fence=False, now_s=fake.clock.monotonic())


async def test_what_is_no_access_mode(client: AsyncClient) -> None:
    for wrong in ("fencing", "", None, True, "Exclusive"):
        with pytest.raises(ConfigError, match="access_mode"):
            client.producer(access_mode=wrong)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
