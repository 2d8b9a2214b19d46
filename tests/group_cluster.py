"""Real brokers with groups on a thread of their own, ledgers in memory, for blocking callers.

A cluster of processes costs seconds of CPU; this costs a tenth of one. Members are raw ones, so
that what tools see of a group does not depend on a consumer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

from octavo import Client
from tests.group_client import GroupsClient, RawMember
from tests.serving_server import Loopback

T = TypeVar("T")
QUICK = {
    "group_min_session_timeout_ms": 100,
    "group_session_timeout_ms": 10_000,
    "group_heartbeat_interval_ms": 200,
}
PATIENCE_S = 60.0


class GroupCluster:
    """Brokers, members that come and go, and a client that is closed at the end."""

    def __init__(self, brokers: int = 1, **settings: object) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.loopback = Loopback()
        for number in range(brokers):
            self.run(self.loopback.broker(f"broker-{number}", **(QUICK | settings)))
        self.run(self.loopback.acquainted())
        self.bootstrap = ",".join(server.address for server in self.loopback.servers)
        self.groups = self._call(lambda: GroupsClient(self.bootstrap.split(",")))
        self.members: list[RawMember] = []
        self.client = Client(self.bootstrap)

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """For who does not block."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, function: Callable[[], T]) -> T:
        async def body() -> T:
            return function()

        return self.run(body())

    def topic(self, name: str, partitions: int = 2, records: int = 0) -> None:
        """With so many records in each partition."""
        self.client.admin.create_topic(name, partitions=partitions)
        for number in range(partitions if records else 0):
            self.send(name, number, records)

    def send(self, topic: str, partition: int, records: int) -> None:
        with self.client.producer() as producer:
            producer.send_many(topic, [b"x"] * records, partition=partition)

    def join(self, member_id: str, *topics: str, group: str = "g") -> RawMember:
        """A member that heartbeats until it is stopped."""
        member = RawMember(self.groups, group, member_id, topics)
        self.members.append(member)
        self._call(member.start)
        return member

    def leave(self, member: RawMember) -> None:
        self.members.remove(member)
        self.run(member.leave())

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, "it did not come to it"
            threading.Event().wait(0.02)

    def close(self) -> None:
        try:
            self.client.close()
            for member in self.members:
                self.run(member.stop())
            self.run(self.groups.close())
            self.run(self.loopback.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)
            self._loop.close()
