"""Reading while things go wrong: deadlines, seeks at awkward moments, budgets, our own faults.

Against the fake broker. Each bound is one that a caller relies on: the times are generous, they
tell a call that keeps its limit from one that starts it anew with every retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pkgutil
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from octavo import AsyncClient, Record, TopicPartition
from octavo.runtime.errors import (
    BrokerUnavailable,
    ConfigError,
    InvariantViolation,
    LedgerConflict,
    OctavoError,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownOutcome,
)
from tests.fake_broker import FakeCluster
from tests.fix_zookeeper import free_port

ONE = TopicPartition("one", 0)
LIMIT_S = 18.0


async def fill(client: AsyncClient, topic: str, count: int, partition: int | None = None) -> None:
    async with client.producer(batch_size=100) as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(count)], partition=partition)


def dead_address() -> str:
    return f"127.0.0.1:{free_port()}"


# --- iteration ----------------------------------------------------------------------------------


async def test_f8_an_iteration_follows_seek_pause_resume_and_assign(client: AsyncClient) -> None:
    await fill(client, "orders", 20, 0)
    await fill(client, "orders", 20, 1)
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
        await consumer.assign([zero, one])
        await consumer.pause(one)
        seen: list[tuple[int, int]] = []
        async with asyncio.timeout(LIMIT_S):
            async for record in consumer:
                seen.append((record.partition, record.offset))
                match len(seen):
                    case 3:
                        await consumer.seek(zero, 10)
                    case 5:
                        await consumer.pause(zero)
                        assert await consumer.position(zero) == 12
                        await consumer.resume(one)
                    case 7:
                        await consumer.resume(zero)
                        await consumer.assign([zero])
                    case 9:
                        break
                    case _:
                        pass
        assert seen[:5] == [(0, 0), (0, 1), (0, 2), (0, 10), (0, 11)]
        assert seen[5:7] == [(1, 0), (1, 1)]
        assert seen[7:] == [(0, 12), (0, 13)]


async def test_read_to_end_leaves_paused_partitions_out(client: AsyncClient) -> None:
    await fill(client, "orders", 5, 0)
    await fill(client, "orders", 5, 1)
    async with client.reader("orders") as reader, asyncio.timeout(LIMIT_S):
        await reader.pause(TopicPartition("orders", 1))
        assert {record.partition async for record in reader.read_to_end()} == {0}


async def test_polls_after_close_are_refused_and_hand_nothing_out(client: AsyncClient) -> None:
    await fill(client, "one", 5)
    reader = client.reader("one")
    async for _ in reader:
        break
    await reader.close()
    with pytest.raises(OctavoError):
        await reader.poll(timeout=0)
    assert [record async for record in reader] == []


# --- values the wire cannot carry ---------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, 1 << 63, 1.5, True, "3"])
async def test_offsets_out_of_range_are_refused_where_the_caller_stands(
    client: AsyncClient, offset: object
) -> None:
    await fill(client, "one", 3)
    async with client.consumer("one", auto_offset_reset="earliest") as consumer:
        with pytest.raises(ConfigError):
            await consumer.seek(ONE, offset)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            client.reader("one", start=offset)  # type: ignore[arg-type]
        assert len(await consumer.poll(timeout=LIMIT_S)) == 3  # nothing was harmed


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "when",
    [1 << 63, 10**19, -1, -2, float("nan"), float("inf"), datetime(2026, 1, 1), True, "noon"]
    + [_EPOCH - timedelta(milliseconds=ms) for ms in (1, 2, 3)]
    + [_EPOCH - timedelta(microseconds=1)],
)  # fmt: skip
async def test_moments_out_of_range_are_refused(client: AsyncClient, when: object) -> None:
    await fill(client, "one", 3)
    async with client.consumer("one", auto_offset_reset="earliest") as consumer:
        with pytest.raises(ConfigError):
            await consumer.seek_to_time(when)  # type: ignore[arg-type]
        if not isinstance(when, str):
            with pytest.raises(ConfigError):
                await client.admin.list_offsets("one", when)  # type: ignore[arg-type]
        assert len(await consumer.poll(timeout=LIMIT_S)) == 3


async def test_names_counts_and_timeouts_that_cannot_be_sent_are_refused(
    client: AsyncClient,
) -> None:
    async with client.consumer("one") as consumer:
        for timeout in (float("nan"), "1", True):
            with pytest.raises(ConfigError):
                await consumer.poll(timeout=timeout)  # type: ignore[arg-type]
        assert await consumer.poll(timeout=-5) == []
        for wanted in ([("one", 1 << 31)], [("one", -1)], [("\ud800", 0)], [("", 0)], [3]):
            with pytest.raises(ConfigError):
                await consumer.assign(wanted)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        client.reader("\ud800")
    with pytest.raises(ConfigError):
        await client.admin.create_topic("t", partitions=1 << 31)
    with pytest.raises(ConfigError):
        await client.admin.describe_log("one", 1 << 31)
    with pytest.raises(ConfigError):
        await client.admin.show_ledger(1 << 63)


# --- starts that do not exist -------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_f6_an_offset_that_never_was_raises_and_is_not_reset(
    client: AsyncClient, policy: str
) -> None:
    await fill(client, "one", 10)
    with pytest.raises(OffsetOutOfRange, match="1000"):
        async with client.reader("one", start=1000, auto_offset_reset=policy):
            pass
    async with client.reader("one", start=10) as reader:  # the end itself is a position
        assert await reader.poll(timeout=0) == []
    async with client.consumer("one", auto_offset_reset=policy) as consumer:
        await consumer.seek(ONE, 500)
        with pytest.raises(OffsetOutOfRange, match="500"):
            await consumer.poll(timeout=LIMIT_S)
        await consumer.seek(ONE, 8)
        assert [r.offset for r in await consumer.poll(timeout=LIMIT_S)] == [8, 9]


# --- seeks at awkward moments -------------------------------------------------------------------


async def test_a_seek_on_an_idle_stream_is_quick_and_says_nothing(
    client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(client, "one", 10)
    async with client.reader("one", fetch_max_wait_ms=20_000) as reader:
        assert len(await reader.poll(timeout=LIMIT_S)) == 10
        with caplog.at_level(logging.WARNING, "octavo.client"):
            start = time.monotonic()
            for offset in range(10):  # the stream waits for new data each time
                await reader.seek(ONE, offset)
                assert (await reader.poll(timeout=LIMIT_S))[0].offset == offset
            assert time.monotonic() - start < LIMIT_S
        assert caplog.records == []


async def test_a_seek_while_the_stream_opens_does_not_wait_for_it(
    client: AsyncClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC never wakes a write on a stream that was cancelled before it was open."""
    await fill(client, "one", 10)
    for turns in range(12):  # a seek after 0, 1, 2 ... turns of the loop since assign()
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            await consumer.assign([ONE])
            for _ in range(turns):
                await asyncio.sleep(0)
            await consumer.seek(ONE, 3)
            records = await consumer.poll(timeout=LIMIT_S)
            assert [record.offset for record in records] == list(range(3, 10)), turns


# --- budgets ------------------------------------------------------------------------------------


async def test_buffers_that_nobody_may_drain_do_not_starve_the_others(
    client: AsyncClient, fake: FakeCluster
) -> None:
    fake.create("wide", 9)
    async with client.producer(compression_type="none", batch_size=1 << 20) as producer:
        for number in range(8):
            await producer.send_many("wide", [bytes(1 << 18)] * 6, partition=number)
        consumer = client.consumer("wide", auto_offset_reset="earliest", prefetch_max_bytes=4 << 20)
        await consumer.poll(1, timeout=LIMIT_S)
        for _ in range(1000):
            if consumer.buffered_bytes >= 4 << 20:
                break
            await asyncio.sleep(0.01)
        await consumer.pause(*(TopicPartition("wide", number) for number in range(8)))
        await producer.send("wide", b"x", partition=8)
        assert [r.partition for r in await consumer.poll(timeout=LIMIT_S)] == [8]
        await consumer.resume()
        seen = 0
        async with asyncio.timeout(30):
            while seen < 8 * 6 - 1:
                seen += len(await consumer.poll(timeout=1))
        await consumer.close()


async def test_read_to_end_does_not_fetch_beyond_the_ends(
    client: AsyncClient, fake: FakeCluster
) -> None:
    await fill(client, "orders", 10, 0)
    await fill(client, "orders", 10, 1)
    async with client.reader("orders") as reader:
        count = 0
        async for _ in reader.read_to_end():
            count += 1
            if count == 1:
                await fill(client, "orders", 50, 1)
        assert count == 20
        assert await reader.position(TopicPartition("orders", 1)) == 10
        seen = [r.offset for _ in range(50) for r in await reader.poll(1, timeout=LIMIT_S)]
        assert seen == list(range(10, 60))  # a poll goes on behind them


# --- deadlines ----------------------------------------------------------------------------------


async def test_f107_a_poll_keeps_its_timeout_when_nobody_answers() -> None:
    async with AsyncClient(dead_address(), request_timeout_ms=30_000) as client:
        consumer = client.consumer("t")
        for timeout in (0.0, 0.2):  # and not 30 s
            start = time.monotonic()
            assert await consumer.poll(timeout=timeout) == []
            assert await consumer.poll_arrow(timeout=timeout) is None
            assert time.monotonic() - start < 2 * timeout + 10.0


async def test_polls_without_waiting_get_there_all_the_same(client: AsyncClient) -> None:
    await fill(client, "one", 3)
    async with client.consumer("one", auto_offset_reset="earliest") as consumer:
        records: list[Record] = []
        for _ in range(1000):
            records += await consumer.poll(timeout=0)
            if records:
                break
            await asyncio.sleep(0.01)
        assert len(records) == 3


async def quickest(call: Callable[[], Awaitable[object]], limit_s: float) -> float:
    """What a call takes that nobody answers: of three where a busy machine makes one late."""
    took_s: list[float] = []
    while not took_s or (took_s[-1] >= limit_s and len(took_s) < 3):
        start = time.monotonic()
        with contextlib.suppress(BrokerUnavailable, RequestTimedOut):
            await call()
        took_s.append(time.monotonic() - start)
    return min(took_s)


async def test_every_call_keeps_one_deadline_over_all_its_steps_and_retries(
    client: AsyncClient, fake: FakeCluster
) -> None:
    await fill(client, "one", 3)
    for broker in fake.brokers:  # takes requests and answers none
        broker.faults.release_metadata.clear()
    fresh = AsyncClient(fake.bootstrap)
    consumer = fresh.consumer("one", request_timeout_ms=600)
    reader = fresh.reader("one", request_timeout_ms=600)
    admin = fresh.admin
    names = (f"fresh-{number}" for number in itertools.count())
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: consumer.position(ONE),
        lambda: consumer.seek_to_end(ONE),
        consumer.end_offsets,
        consumer.lag,
        reader.start,
        lambda: admin.list_offsets("one", timeout=0.6),
        lambda: admin.describe_topic("one", timeout=0.6),
        lambda: admin.describe_log("one", 0, timeout=0.6),
        lambda: admin.create_topic(next(names), timeout=0.6),  # made; its metadata do not come
        lambda: fresh.connect(timeout=0.6),
    )
    for number, call in enumerate(calls):
        assert await quickest(call, 2.0) < 2.0, number
    for broker in fake.brokers:
        broker.faults.release_metadata.set()
    await fresh.close()


async def test_a_change_without_an_answer_is_of_unknown_outcome(
    client: AsyncClient, fake: FakeCluster
) -> None:  # M-3
    for broker in fake.brokers:
        broker.faults.release_changes.clear()
    with pytest.raises(UnknownOutcome, match="may still go on"):
        await client.admin.delete_topic("one", timeout=0.5)
    with pytest.raises(UnknownOutcome, match="may still go on"):
        await client.admin.create_topic("new", timeout=0.5)
    async with AsyncClient(dead_address()) as nobody:
        with pytest.raises(BrokerUnavailable):  # it surely reached nobody
            await nobody.admin.delete_topic("one", timeout=0.5)


async def test_waiting_for_a_cluster_is_said_at_once(
    caplog: pytest.LogCaptureFixture, client: AsyncClient
) -> None:
    with caplog.at_level(logging.WARNING, "octavo.client"):
        async with AsyncClient(dead_address()) as nobody:
            await nobody.consumer("t").poll(timeout=0.5)
        assert "no broker answers yet" in caplog.text
        await client.consumer("nowhere").poll(timeout=0.5)
        assert "topic 'nowhere' does not exist" in caplog.text


# --- errors -------------------------------------------------------------------------------------


async def test_an_error_nobody_read_yet_costs_no_requests(
    client: AsyncClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client, "one", 1)
    plans = 0
    async with client.reader("one") as reader:
        fetcher = reader.opening.fetcher
        assert fetcher is not None
        plain = fetcher.core.requests.plan

        def counted(owner: str, now_s: float) -> object:
            nonlocal plans
            plans += 1
            return plain(owner, now_s)

        monkeypatch.setattr(fetcher.core.requests, "plan", counted)
        fetcher.core.buffers.reading(ONE).error = LedgerConflict("damaged")
        fetcher.core.buffers.reading(ONE).retry_at_s = 0.001
        await asyncio.sleep(0.5)
        assert plans < 10


async def test_an_error_is_raised_although_other_partitions_have_records(
    client: AsyncClient,
) -> None:
    await fill(client, "orders", 500, 0)
    async with client.reader("orders") as reader:
        assert await reader.poll(1, timeout=LIMIT_S)
        assert reader.opening.fetcher is not None
        reader.opening.fetcher.core.buffers.reading(
            TopicPartition("orders", 1)
        ).error = LedgerConflict("damaged")
        with pytest.raises(LedgerConflict):
            await reader.poll(1, timeout=LIMIT_S)
        assert await reader.poll(1, timeout=LIMIT_S)


PLACES = {
    "looking up positions": "reading.outcomes.list_edges",
    "finding the range": "reading.outcomes.list_edges",
    "finding the owner": "cluster.owners.Owners.of",
    "decoding a reply": "reading.fetch_streams.decode_reply",
    "taking an answer": "reading.reading_core.ReadingCore.answered",
    "planning a request": "reading.requests.Requests.plan",
}
"""What tasks in the background do, and what of it is made to fail."""


@pytest.mark.parametrize("place", PLACES)
async def test_a_fault_of_our_own_is_raised_by_poll_and_ends_no_task(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, place: str, fake: FakeCluster
) -> None:
    """Whatever a task in the background meets: it is seen, and reading goes on behind it."""
    await fill(client, "one", 5)
    async with client.consumer("one", auto_offset_reset="earliest") as consumer:
        await consumer.assignment()
        if place == "finding the range":
            await consumer.position(ONE)
            fake.log("one").trim(2)
        with monkeypatch.context() as patch:
            reached = plant(patch, f"octavo.client.messaging.{PLACES[place]}")
            if place == "finding the range":
                await consumer.seek(ONE, 1)
            elif place == "looking up positions":
                assert consumer.opening.fetcher is not None
                consumer.opening.fetcher.seek_by([ONE], "earliest")
            elif place == "finding the owner":
                await consumer.assign([])
                await consumer.assign([ONE])
                await consumer.seek(ONE, 0)
            else:
                await consumer.seek(ONE, 0)
            async with asyncio.timeout(LIMIT_S):
                await reached.wait()
        with pytest.raises(InvariantViolation, match="planted"):
            await consumer.poll(timeout=LIMIT_S)
        assert (await consumer.poll(timeout=LIMIT_S))[-1].offset == 4


def plant(patch: pytest.MonkeyPatch, target: str) -> asyncio.Event:
    """Let `target` raise once; set when it did."""
    reached = asyncio.Event()
    plain = pkgutil.resolve_name(target)

    def broken(*args: object, **options: object) -> object:
        if reached.is_set():
            return plain(*args, **options)
        reached.set()
        raise IndexError("planted")

    patch.setattr(target, broken)
    return reached
