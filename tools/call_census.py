"""Calls and files of one send and of one poll, client, broker and three bookies in one process.

Counts Python calls of our own code while a hundred records are sent one by one, divided by their
number, by room. What it counts is the same on every machine; it says nothing of time.
Usage: python -m tools.call_census
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
import tempfile
import threading
from collections import Counter
from types import FrameType

from octavo import AsyncClient, AsyncProducer, AsyncReader
from tests.integration.test_broker_storage import RealStorage
from tests.serving_server import create_topic

TOPIC = "orders"
WARM = 100
COUNTED = 100
VALUE = b"v" * 100
PACKAGE = "/octavo/"


class Census:
    """Counts calls while it is on, on every thread that was started after it was installed."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._on = False

    def install(self) -> None:
        """From now on, on this thread and on those it starts."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if self._on and event == "call":
            name = frame.f_code.co_filename
            if PACKAGE in name and "_pb2" not in name:
                self._calls[name.rpartition(PACKAGE)[2]] += 1

    def begin(self) -> None:
        """Count."""
        self._calls.clear()
        self._on = True

    def end(self, what: str) -> None:
        """Stop counting and say what was seen."""
        self._on = False
        rooms: Counter[str] = Counter()
        for name, count in self._calls.items():
            depth = 2 if name.startswith("client/") else 1
            rooms["/".join(name.split("/")[:depth])] += count
        files = sum(count >= COUNTED / 2 for count in self._calls.values())
        shares = ", ".join(f"{room} {count / COUNTED:.0f}" for room, count in rooms.most_common())
        print(f"{what}: {self._calls.total() / COUNTED:.0f} calls in {files} files ({shares})")


async def _polled(reader: AsyncReader) -> None:
    while not await reader.poll(timeout=5):
        pass


async def _sent_and_polled(producer: AsyncProducer[bytes], reader: AsyncReader) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_polled(reader))
        await producer.send(TOPIC, VALUE)


async def _count(census: Census, client: AsyncClient) -> None:
    async with client.producer() as producer:
        for _ in range(WARM):
            await producer.send(TOPIC, VALUE)
        census.begin()
        for _ in range(COUNTED):
            await producer.send(TOPIC, VALUE)
        census.end("one send")
        async with client.reader(TOPIC, start="latest") as reader:
            for _ in range(WARM):
                await _sent_and_polled(producer, reader)
            census.begin()
            for _ in range(COUNTED):
                await _sent_and_polled(producer, reader)
            census.end("one send and the poll that waits for it")


async def main() -> None:
    """Everything in this process, on one loop."""
    census = Census()
    census.install()
    with tempfile.TemporaryDirectory() as folder:
        cluster = RealStorage(pathlib.Path(folder))
        try:
            for number in range(1, 4):
                await cluster.bookie(f"bookie-{number}")
            await create_topic(await cluster.broker(), TOPIC)
            async with AsyncClient(cluster.servers[0].address) as client:
                await _count(census, client)
        finally:
            await cluster.close()


if __name__ == "__main__":
    asyncio.run(main())
