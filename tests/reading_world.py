"""Brokers that can be cut off, and a program that reads from them and knows what comes next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeVar

from octavo import AsyncClient, Record, TopicPartition
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.proto import batch as batch_format
from octavo.runtime.errors import InvariantViolation, OctavoError
from tests.await_sites import Watch
from tests.fake_broker import FakeClusterThread
from tests.tcp_proxy import TcpProxy

T = TypeVar("T")
REQUEST_S = 0.6
CALL_S = 10.0
"""Any one call of the caller: the request timeout, with room for a busy machine."""
ATTEMPTS_MAX = 6
BATCHES, PER_BATCH = 8, 3


class World:
    """Two brokers on a thread of their own, behind links that can be cut or frozen."""

    def __init__(self) -> None:
        self.thread = FakeClusterThread(2)
        self.fake = self.thread.cluster
        self.proxies = [self.thread.run(self._proxied(n)) for n in range(2)]
        self.bootstrap = self.fake.bootstrap
        self.runs = 0

    async def _proxied(self, number: int) -> TcpProxy:
        broker = self.fake.brokers[number]
        host, _, port = broker.address.rpartition(":")
        proxy = await TcpProxy(host, int(port)).start()
        broker.address = proxy.address
        return proxy

    def topic(self) -> str:
        """A fresh one of two partitions with the same records in the same places."""
        self.runs += 1
        name = f"t{self.runs}"
        self.thread.call(lambda: self._fill(name))
        return name

    def _fill(self, name: str) -> None:
        self.fake.topics.clear()
        topic = self.fake.create(name, 2)
        for log in topic.partitions:
            for _ in range(BATCHES):
                values = [b"%d" % (log.end + n) for n in range(PER_BATCH)]
                log.append(batch_format.encode([1] * PER_BATCH, [b"k"] * PER_BATCH, values), 1)

    def cut(self) -> None:
        self.thread.call(self._cut)

    def freeze(self) -> None:
        self.thread.call(self._freeze)

    def _cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def _freeze(self) -> None:
        for proxy in self.proxies:
            proxy.fall_silent(frozen=False)

    def open(self) -> tuple[int, int]:
        """Fetch streams at the brokers, and ends of connections."""
        return (
            sum(broker.fetch_streams for broker in self.fake.brokers),
            sum(proxy.connections for proxy in self.proxies),
        )

    def stop(self) -> None:
        for proxy in self.proxies:
            self.thread.run(proxy.close())
        self.thread.stop()


class Caller:
    """A program that reads, catches what it is told, and goes on; it knows what comes next."""

    def __init__(self, world: World, watch: Watch) -> None:
        self.world, self.watch = world, watch
        self.topic = world.topic()
        self.places = [TopicPartition(self.topic, n) for n in range(2)]
        self.next = dict.fromkeys(self.places, 0)
        self.end = BATCHES * PER_BATCH
        self.errors: list[str] = []
        """What it was told; no exceptions, which keep frames and so streams."""

    def client(self) -> AsyncClient:
        return AsyncClient(
            self.world.bootstrap,
            retry_backoff_ms=10,
            retry_backoff_max_ms=50,
            request_timeout_ms=int(REQUEST_S * 1000),
            metadata_max_age_ms=100,
        )

    async def once(self, call: Callable[[], Awaitable[T]]) -> list[T]:
        """The result of one attempt; empty when it failed in a way that a caller must expect."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(CALL_S):
                return [await call()]
        except asyncio.CancelledError as error:
            assert self.mine_was_struck(), "a cancellation that nobody asked for"
            self.errors.append(repr(error))
            if task.cancelling():
                task.uncancel()
        except InvariantViolation:  # never: no fault of ours was planted
            raise
        except OctavoError as error:
            self.errors.append(repr(error))
        return []

    def mine_was_struck(self) -> bool:
        return self.watch.struck and "octavo-" not in self.watch.struck_task

    async def attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call that is repeated after a failure."""
        for _ in range(ATTEMPTS_MAX):
            if result := await self.once(call):
                return result[0]
        raise AssertionError(f"no success in {ATTEMPTS_MAX} attempts: {self.errors}")

    def got(self, partition: int, offset: int) -> None:
        where = self.places[partition]
        assert self.next[where] == offset, f"{where}: {offset} after {self.next[where] - 1}"
        self.next[where] += 1

    def take(self, records: list[Record]) -> int:
        for record in records:
            assert record.value == b"%d" % record.offset
            self.got(record.partition, record.offset)
        return len(records)

    async def reads(self, call: Callable[[], Awaitable[list[Record]]], count: int) -> None:
        """Until so many records came; empty answers are answers, but not for ever."""
        until_s = time.monotonic() + CALL_S
        while count > 0:
            assert time.monotonic() < until_s, f"{count} records did not come: {self.errors}"
            for records in await self.once(call):
                count -= self.take(records)

    async def iterates(self, reader: AsyncIterator[Record], count: int) -> None:
        for _ in range(count):
            self.take([await self.attempt(lambda: anext(reader))])

    async def reads_arrow(self, reader: AsyncConsumer) -> None:
        until_s = time.monotonic() + CALL_S
        while time.monotonic() < until_s:
            for batch in await self.once(lambda: reader.poll_arrow(1, 0.3)):
                if batch is not None:
                    for row in batch.to_pylist():
                        self.got(row["partition"], row["offset"])
                    return
        raise AssertionError(f"no Arrow batch came: {self.errors}")

    async def stands(self, reader: AsyncConsumer) -> None:
        """F8: the position is the next record that was not delivered."""
        for where in self.places:
            position = await self.attempt(partial(reader.position, where))
            assert position == self.next[where]

    async def returns(self, reader: AsyncConsumer) -> None:
        for where in self.places:
            await self.attempt(partial(reader.seek, where, self.next[where]))
