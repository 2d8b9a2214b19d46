"""A RabbitMQ stream through rstream, the stream protocol's Python client, on uvloop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import TypeVar

import rstream
import uvloop

from bench import pacing
from bench.drivers import (
    NEVER,
    POLL_TIMEOUT_S,
    MissedRecords,
    Visit,
    WriteSettings,
    complete,
)

FRAME_BYTES = 8 << 20
WINDOW_RECORDS = 10_000
WINDOW_BYTES = 16 << 20
BATCH_RECORDS = 500
BATCH_BYTES = 1 << 20
CREDIT = 50
VISIT_RECORDS = 1_000

T = TypeVar("T")


def _raw(body: bytes) -> bytes:
    return body


class RabbitStreamDriver:
    """A producer and a consumer on a loop of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._producer: rstream.Producer | None = None

    def _run(self, work: Awaitable[T]) -> T:
        async def body() -> T:
            return await work

        return self._runner.run(body())

    async def _sender(self) -> rstream.Producer:
        if self._producer is None:
            self._producer = rstream.Producer(
                "127.0.0.1",
                self._port,
                username="guest",
                password="guest",
                frame_max=FRAME_BYTES,
            )
            await self._producer.start()
        return self._producer

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        return self._run(self._write(topic, values))

    async def _write(self, topic: str, values: Iterable[bytes]) -> int:
        producer = await self._sender()
        sent = acked = 0
        failed = 0
        moved = asyncio.Event()

        async def confirmed(status: rstream.ConfirmationStatus) -> None:
            nonlocal acked, failed
            if status.is_confirmed:
                acked += 1
            else:
                failed += 1
            moved.set()

        source = iter(values)
        window = batch = 1
        while part := list(islice(source, batch)):
            size = len(part[0])
            window = max(min(WINDOW_RECORDS, WINDOW_BYTES // size), 2)
            batch = max(min(BATCH_RECORDS, BATCH_BYTES // size), 1)
            while sent - acked >= window and not failed:
                moved.clear()
                await asyncio.wait_for(moved.wait(), POLL_TIMEOUT_S)
            sent += len(part)
            await producer.send_batch(topic, part, on_publish_confirm=confirmed)
            if failed:
                break
        while sent > acked + failed:
            moved.clear()
            await asyncio.wait_for(moved.wait(), POLL_TIMEOUT_S)
        return acked

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        return self._run(self._paced(topic, per_s, count, make))

    async def _paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        producer = await self._sender()
        clock, samples, number = time.monotonic, [NEVER] * count, 0
        which: dict[int, tuple[int, float]] = {}
        early: dict[int, float] = {}
        left, done = count, asyncio.Event()

        def settle(place: int, due: float, at: float) -> None:
            nonlocal left
            samples[place] = at - due
            left -= 1
            if not left:
                done.set()

        async def confirmed(status: rstream.ConfirmationStatus) -> None:
            if not status.is_confirmed:
                return
            known = which.pop(status.message_id, None)
            if known is None:
                early[status.message_id] = clock()
            else:
                settle(*known, clock())

        schedule = pacing.soon(clock, per_s, count)
        async for due in pacing.paced_async(schedule, clock, asyncio.sleep):
            (message_id,) = await producer.send_batch(
                topic, [make(due)], on_publish_confirm=confirmed
            )
            at = early.pop(message_id, None)
            if at is None:
                which[message_id] = (number, due)
            else:
                settle(number, due, at)
            number += 1
        await asyncio.wait_for(done.wait(), POLL_TIMEOUT_S)
        return complete(samples)

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        self._run(self._consume(topic, count, seen, ready))

    async def _consume(
        self,
        topic: str,
        count: int,
        seen: Callable[[bytes], None],
        ready: Callable[[], None] | None = None,
    ) -> None:
        got, arrived = 0, asyncio.Event()

        def take(message: object, _: rstream.MessageContext) -> Coroutine[None, None, None] | None:
            nonlocal got
            if got < count:
                assert isinstance(message, bytes)
                got += 1
                seen(message)
                arrived.set()
            return None

        consumer = rstream.Consumer(
            "127.0.0.1", self._port, username="guest", password="guest", frame_max=FRAME_BYTES
        )
        await consumer.start()
        await consumer.subscribe(
            topic,
            take,
            decoder=_raw,
            initial_credit=CREDIT,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
        )
        if ready is not None:
            ready()
        while got < count:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), POLL_TIMEOUT_S)
            except TimeoutError:
                raise MissedRecords(f"{got} of {count} records came") from None
        await consumer.close()

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        payload, kept = 0, list[bytes | None]()

        def seen(body: bytes) -> None:
            nonlocal payload
            payload += len(body)
            if visit is not None:
                kept.append(body)
                if len(kept) == VISIT_RECORDS:
                    visit(kept)
                    kept.clear()

        self._run(self._consume(topic, count, seen))
        if visit is not None and kept:
            visit(kept)
        return count, payload

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        raise MissedRecords("this client has no Arrow")

    def close(self) -> None:
        if self._producer is not None:
            self._run(self._producer.close())
        self._runner.close()


def connect(endpoint: Mapping[str, str]) -> RabbitStreamDriver:
    """From the endpoint of `bench.systems.rabbit`."""
    return RabbitStreamDriver(int(endpoint["stream"]))
