"""Octavo through its public SDK: the sync client for throughput, the async one for latency.

Both on uvloop, as the other asyncio clients here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

import pyarrow.compute as pc
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
from octavo import AsyncClient, Client
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.sync.producer import Producer

POLL_RECORDS = 10_000


class OctavoDriver:
    """One client of each kind, made when first needed."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._client = Client(servers)
        self._producers: dict[WriteSettings, Producer] = {}

    def write(self, topic: str, values: Iterable[bytes], settings: WriteSettings) -> int:
        producer = self._producers.get(settings)
        if producer is None:
            producer = self._producers[settings] = self._client.producer(
                batch_size=settings.batch_bytes,
                linger_ms=settings.linger_ms,
                compression_type=settings.compression,
                buffer_memory=settings.buffer_bytes,
                partitioner="round_robin" if settings.spread else "murmur2",
            )
        return producer.send_many(topic, values).count

    def paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        return uvloop.run(self._paced(topic, per_s, count, make))

    async def _paced(
        self, topic: str, per_s: float, count: int, make: Callable[[float], bytes]
    ) -> list[float]:
        samples: list[float] = [NEVER] * count
        clock = time.monotonic
        async with (
            AsyncClient(self._servers) as client,
            client.producer(linger_ms=0) as producer,
        ):
            number = 0
            schedule = pacing.soon(clock, per_s, count)
            async for due in pacing.paced_async(schedule, clock, asyncio.sleep):

                def acknowledged(
                    future: SendFuture, number: int = number, due: float = due
                ) -> None:
                    if future.exception() is None:
                        samples[number] = clock() - due

                producer.send_nowait(topic, make(due)).add_done_callback(acknowledged)
                number += 1
            await producer.flush()
        return complete(samples)

    def follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        uvloop.run(self._follow(topic, count, ready, seen))

    async def _follow(
        self, topic: str, count: int, ready: Callable[[], None], seen: Callable[[bytes], None]
    ) -> None:
        got = 0
        async with AsyncClient(self._servers) as client, client.reader(topic) as reader:
            await reader.poll(1, 0.5)
            ready()
            while got < count:
                records = await reader.poll(POLL_RECORDS, POLL_TIMEOUT_S)
                if not records:
                    raise MissedRecords(f"{got} of {count} records came")
                for record in records:
                    seen(record.value or b"")
                got += len(records)

    def read(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        rows = payload = 0
        value = attrgetter("value")
        with self._client.reader(topic, start="earliest") as reader:
            while rows < count:
                records = reader.poll(POLL_RECORDS, POLL_TIMEOUT_S)
                if not records:
                    raise MissedRecords(f"{rows} of {count} records came")
                values = list(map(value, records))
                rows += len(values)
                payload += sum(map(len, values))
                if visit is not None:
                    visit(values)
        return rows, payload

    def read_arrow(self, topic: str, count: int, visit: Visit | None) -> tuple[int, int]:
        rows = payload = 0
        with self._client.reader(topic, start="earliest") as reader:
            while rows < count:
                batch = reader.poll_arrow(timeout=POLL_TIMEOUT_S)
                if batch is None:
                    raise MissedRecords(f"{rows} of {count} records came")
                rows += batch.num_rows
                payload += pc.sum(pc.binary_length(batch.column("value"))).as_py()
                if visit is not None:
                    visit(batch.column("value").to_pylist())
        return rows, payload

    def close(self) -> None:
        self._client.close()


def connect(endpoint: Mapping[str, str]) -> OctavoDriver:
    """From the endpoint of `bench.systems.octavo`."""
    return OctavoDriver(endpoint["servers"])
