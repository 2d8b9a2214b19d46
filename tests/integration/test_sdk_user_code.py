"""A user's partitioner, serializer or callback that raises spoils its own record and nothing else.

Whatever it raises, and whether the topic is known yet: the other records are stored, flush and
close tell the truth, and the producer goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo import AsyncClient, Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.produce_link import ProduceLink
from octavo.runtime.errors import DeliveryFailed, InvalidPartition
from tests.fake_broker import FakeCluster, FakeClusterThread

VALUES = [b"1", b"bad", b"3", b"4", b"5"]
GOOD = [b"1", b"3", b"4", b"5"]


class Odd(BaseException):
    """Neither an Exception nor one of Python's own ways to leave."""


RAISED = [KeyError("no route"), SystemExit(3), asyncio.CancelledError(), GeneratorExit(), Odd()]
raised = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)


def raising(error: BaseException) -> Callable[..., int]:
    def choose(topic: str, key: object, value: bytes | None, headers: object, count: int) -> int:
        if value == b"bad":
            raise error
        return 0

    return choose


@pytest.fixture
def thread() -> Iterator[FakeClusterThread]:
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("one", 1))
    yield cluster
    cluster.stop()


@raised
async def test_u2_a_partitioner_that_raises_before_the_topic_is_known(
    client: AsyncClient, fake: FakeCluster, error: BaseException
) -> None:
    producer = client.producer(partitioner=raising(error))
    futures = [producer.send_nowait("one", value) for value in VALUES]
    await producer.flush(60)
    assert [future.done() for future in futures] == [True] * 5
    assert fake.log("one").values() == GOOD
    assert (await producer.send("one", b"later")).offset == 4
    with pytest.raises(DeliveryFailed, match="1 record"):  # nobody looked at its future
        await producer.close(60)
    failure = futures[1].exception()
    assert isinstance(failure, InvalidPartition)
    assert failure.__cause__ is error
    assert [future.exception() for future in futures[:1] + futures[2:]] == [None] * 4


def test_u2_ctrl_c_in_a_partitioner_leaves_the_other_records_alone(
    thread: FakeClusterThread,
) -> None:
    """On a thread of its own, for on the main one it also ends the test run."""

    async def program() -> list[object]:
        async with AsyncClient(thread.bootstrap) as client:
            producer = client.producer(partitioner=raising(KeyboardInterrupt()))
            futures = [producer.send_nowait("one", value) for value in VALUES]
            await producer.flush(60)
            return [type(future.exception()) for future in futures]

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(lambda: asyncio.run(program())).result(30)
    assert told == [type(None), InvalidPartition, *[type(None)] * 3]
    assert thread.call(lambda: thread.cluster.log("one").values()) == GOOD


@raised
async def test_u2_a_partitioner_that_raises_in_the_call_itself(
    client: AsyncClient, fake: FakeCluster, error: BaseException
) -> None:
    async with client.producer(partitioner=raising(error)) as producer:
        await producer.send("one", b"first")
        with pytest.raises(type(error)):
            producer.send_nowait("one", b"bad")
        with pytest.raises(type(error)):
            await producer.send("one", b"bad")
        with pytest.raises(type(error)):
            await producer.send_many("one", [b"x", b"bad", b"y"])
        await producer.send("one", b"later")
        await producer.flush(60)
    stored = fake.log("one").values()
    assert b"bad" not in stored
    assert (stored[0], stored[-1]) == (b"first", b"later")


@raised
def test_u2_the_sync_producer_hands_the_error_to_the_caller(
    thread: FakeClusterThread, error: BaseException
) -> None:
    def serializer(value: object) -> bytes:
        if value == "bad":
            raise error
        return str(value).encode()

    with (
        Client(thread.bootstrap) as client,
        client.producer(partitioner=raising(error)) as by_place,
        client.producer(serializer=serializer) as by_value,
    ):
        for producer, bad in ((by_place, b"bad"), (by_value, "bad")):
            with pytest.raises(type(error)):
                producer.send_nowait("one", bad)
            with pytest.raises(type(error)):
                producer.send("one", bad)
            with pytest.raises(type(error)):
                producer.send_many("one", [bad])
            producer.send("one", "good")
            producer.flush(60)
    assert thread.call(lambda: thread.cluster.log("one").values()) == [b"good", b"good"]


@raised
async def test_u2_a_serializer_that_raises(
    client: AsyncClient, fake: FakeCluster, error: BaseException
) -> None:
    def serializer(value: object) -> bytes:
        if value == "bad":
            raise error
        return str(value).encode()

    async with client.producer(serializer=serializer) as producer:
        futures: list[SendFuture] = []
        futures.append(producer.send_nowait("one", "1"))  # before the topic is known
        with pytest.raises(type(error)):
            producer.send_nowait("one", "bad")
        futures.append(producer.send_nowait("one", "3"))
        await producer.flush(60)
        with pytest.raises(type(error)):
            await producer.send_many("one", ["x", "bad"])
        await producer.send("one", "later")
    assert [future.exception() for future in futures] == [None, None]
    stored = fake.log("one").values()
    assert stored[:2] == [b"1", b"3"]
    assert stored[-1] == b"later"
    assert b"bad" not in stored


@pytest.mark.parametrize("error", RAISED[:1] + RAISED[2:], ids=lambda error: type(error).__name__)
async def test_u2_a_callback_that_raises_stops_no_other(
    client: AsyncClient, fake: FakeCluster, error: BaseException
) -> None:
    called: list[bytes] = []
    unwanted: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unwanted.append(context))

    def callback(_: SendFuture) -> None:
        called.append(b"raised")
        raise error

    async with client.producer() as producer:
        futures = [producer.send_nowait("one", value) for value in GOOD]
        futures[1].add_done_callback(callback)
        for future in futures:
            future.add_done_callback(lambda _: called.append(b"other"))
        await producer.flush(60)
        await producer.send("one", b"later")
    assert called.count(b"other") == len(GOOD)
    assert called.count(b"raised") == 1
    assert fake.log("one").values() == [*GOOD, b"later"]


@pytest.mark.parametrize("error", RAISED[:1] + RAISED[2:], ids=lambda error: type(error).__name__)
async def test_u2_a_log_handler_that_raises_costs_its_lines(
    client: AsyncClient, fake: FakeCluster, error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the client has to say while connections end, ids are refused, calls fail."""
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    lines: list[str] = []

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            raise error

    handler, logger = Raising(), logging.getLogger("octavo")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        for broker in fake.brokers:
            broker.faults.lose_replies = broker.faults.no_identity = 1
        async with client.producer() as producer:
            futures = [producer.send_nowait("one", value) for value in GOOD]
            futures[0].add_done_callback(lambda _: 1 // 0)
            await producer.flush(60)
            await producer.send("one", b"later")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert fake.log("one").values() == [*GOOD, b"later"]
    told = " ".join(lines)
    assert "no producer id yet" in told
    assert "unacknowledged batches are retried" in told
    assert "a send callback failed" in told
    assert ("KeyError" in capsys.readouterr().err) == isinstance(error, KeyError)


async def test_u2_a_producer_that_breaks_says_so_through_a_handler_that_raises(
    client: AsyncClient, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The futures come first: that the line cannot be said keeps nobody waiting."""

    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError(record.getMessage())

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    producer = client.producer()
    await producer.send("one", b"first")
    tasks, own = logging.getLogger("octavo.tasks"), logging.getLogger("octavo.client")
    tasks.addFilter(refuse)
    own.addFilter(refuse)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    monkeypatch.setattr(ProduceLink, "push", broken)
    try:
        future = producer.send_nowait("one", b"second")
        with pytest.raises(DeliveryFailed, match="fault of its own"):
            await asyncio.wait_for(future, 30)
    finally:
        tasks.removeFilter(refuse)
        own.removeFilter(refuse)
    await producer.close(60)
