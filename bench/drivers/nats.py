"""NATS JetStream through nats-py on uvloop, acknowledgements asynchronous."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import PubAck

from bench import pacing
from bench.drivers import (
    NEVER,
    POLL_TIMEOUT_S,
    MissedRecords,
    Visit,
    WriteSettings,
    complete,
)

WINDOW_RECORDS = 4_000
WINDOW_BYTES = 16 << 20
"""Published and not acknowledged; JetStream drops what exceeds its own buffers."""
PENDING_BYTES = 512 << 20
VISIT_RECORDS = 1_000

T = TypeVar("T")


class NatsDriver:
    """One connection on a loop of its own."""

    def __init__(self, servers: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._servers = servers.split(",")
        self._client = self._run(self._connect())

    def _run(self, work: Awaitable[T]) -> T:
        async def body() -> T:
            return await work

        return self._runner.run(body())

    async def _connect(self) -> Client:
        return await nats.connect(self._servers, pending_size=64 << 20)

    def _jetstream(self, record_bytes: int) -> JetStreamContext:
        window = max(min(WINDOW_RECORDS, WINDOW_BYTES // max(record_bytes, 1)), 8)
        return self._client.jetstream(timeout=30, publish_async_max_pending=window)

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        return self._run(self._write(topic, values))

    async def _write(self, topic: str, values: Iterable[bytes]) -> int:
        acked, failed = 0, list[BaseException]()
        stream: JetStreamContext | None = None

        def done(future: asyncio.Future[PubAck]) -> None:
            nonlocal acked
            error = future.exception()
            if error is None:
                acked += 1
            else:
                failed.append(error)

        for value in values:
            if stream is None:
                stream = self._jetstream(len(value))
            future = await stream.publish_async(topic, value)
            future.add_done_callback(done)
            if failed:
                raise MissedRecords(f"a record failed: {failed[0]!r}")
        if stream is not None:
            await asyncio.wait_for(stream.publish_async_completed(), 120)
        return acked

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        return self._run(self._paced(topic, per_s, count, make))

    async def _paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        clock, number, samples = time.monotonic, 0, [NEVER] * count
        stream = self._jetstream(1024)
        await stream.publish(topic, make(clock()))
        schedule = pacing.soon(clock, per_s, count)
        async for due in pacing.paced_async(schedule, clock, asyncio.sleep):
            future = await stream.publish_async(topic, make(due))

            def done(
                future: asyncio.Future[PubAck], number: int = number, due: float = due
            ) -> None:
                if future.exception() is None:
                    samples[number] = clock() - due

            future.add_done_callback(done)
            number += 1
        await asyncio.wait_for(stream.publish_async_completed(), 60)
        return complete(samples)

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        self._run(self._follow(topic, count, ready, seen))

    async def _follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        arrived, got = asyncio.Event(), 0

        async def take(message: Msg) -> None:
            nonlocal got
            seen(message.data)
            got += 1
            arrived.set()

        await self._subscribe(topic, take)
        ready()
        while got < count:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), POLL_TIMEOUT_S)
            except TimeoutError:
                raise MissedRecords(f"{got} of {count} records came") from None

    async def _subscribe(self, topic: str, take: Callable[[Msg], Awaitable[None]]) -> None:
        await self._client.jetstream(timeout=30).subscribe(
            topic,
            ordered_consumer=True,
            cb=take,
            pending_msgs_limit=1_000_000,
            pending_bytes_limit=PENDING_BYTES,
        )

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        return self._run(self._read(topic, count, visit))

    async def _read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        arrived, rows, payload = asyncio.Event(), 0, 0
        kept: list[bytes | None] = []

        async def take(message: Msg) -> None:
            nonlocal rows, payload
            if rows == count:
                return
            rows += 1
            payload += len(message.data)
            if visit is not None:
                kept.append(message.data)
                if len(kept) == VISIT_RECORDS or rows == count:
                    visit(kept)
                    kept.clear()
            arrived.set()

        await self._subscribe(topic, take)
        while rows < count:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), POLL_TIMEOUT_S)
            except TimeoutError:
                raise MissedRecords(f"{rows} of {count} records came") from None
        return rows, payload

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        raise MissedRecords("this client has no Arrow")

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()


def connect(endpoint: Mapping[str, str]) -> NatsDriver:
    """From the endpoint of `bench.systems.nats`."""
    return NatsDriver(endpoint["servers"])
