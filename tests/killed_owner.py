"""Owners of partitions that are killed with -9 at a write of metadata that a test names.

A process of its own: it has loaded everything, and forks a child for each order that it reads from
its input, a few at a time; an empty line waits for all of them. A child owns one partition over
the cluster's bookies and metadata store, and lives through a first ledger, rolls, a compaction and
a trim. It dies behind its n-th write of metadata, or while that is on its way, when it may arrive
or not. What it is told to be durable it tells at once; the child that comes after all of them owns
every partition once more, and tells what each holds.

Usage: python -m tests.killed_owner METADATA_URL
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.paths import Paths
from octavo.metadata.store import Put
from octavo.metadata.topics import PartitionCatalog
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.serving.cache import TailCache
from octavo.serving.cold import ColdReader
from octavo.serving.compaction.cleaner import PartitionCleaner
from octavo.serving.compaction.plan import CompactionRule
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_storage import LedgerStorage
from octavo.serving.pace import Pace
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering.reads import TierReads
from octavo.serving.topic_config import parse_topic_config
from tests.compaction_rig import read_all, write

TOPIC = "killed-owners"
TOPIC_ID = uuid.UUID(int=0x61)
AT_ONCE = 3
"""Children that live at the same time."""
TURNS = 20
"""Of the loop, in which a write gets on its way."""
T = TypeVar("T")


class Order(NamedTuple):
    """One child."""

    partition: int
    """The number of the last partition plus one: look at all of them instead."""
    at: int = 0
    """Dies at the write of this number, counted from 1; 0: at none."""
    on_its_way: bool = False
    """Does not wait for the answer to that write."""
    looks: bool = False
    """Owns all partitions below `partition`, and tells what they hold."""


def tell(**what: object) -> None:
    """One line to the test, in one write."""
    os.write(1, (json.dumps(what) + "\n").encode())


class DyingStore(EmbeddedStore):
    """Counts writes; the process is dead at one of them."""

    order: Order
    writes: list[str]

    async def _at(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.writes.append(name)
        if len(self.writes) != self.order.at:
            return await call()
        if self.order.on_its_way:
            asking = asyncio.ensure_future(call())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            del asking
        else:
            await call()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process is dead")

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        writing = super().create
        return await self._at("create", lambda: writing(key, value, ephemeral=ephemeral))

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        writing = super().create_and_put
        return await self._at("create_and_put", lambda: writing(key, value, put))

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        writing = super().put
        return await self._at("put", lambda: writing(key, value, expected=expected))

    async def delete(self, key: str, *, expected: int | None) -> None:
        writing = super().delete
        if expected is None:  # a directory that may be empty
            await writing(key, expected=expected)
            return
        await self._at("delete", lambda: writing(key, expected=expected))

    async def fetch_add(self, key: str) -> int:
        writing = super().fetch_add
        return await self._at("fetch_add", lambda: writing(key))


class Owner:
    """What a broker has of partitions, over real bookies and a real store."""

    def __init__(self, store: EmbeddedStore, url: str) -> None:
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        self.config = BrokerConfig.load(
            broker_id=f"owner-{os.getpid()}", trash_delay_ms=0, min_segment_bytes=65_536
        )
        paths = Paths(root_of(url))
        self.storage = LedgerStorage(
            store, paths, self.config, clock=self._clock, entropy=self._entropy
        )
        backend = self.storage.backend
        self.deps = PartitionDeps(
            backend=backend,
            catalog=PartitionCatalog(store, paths, clock=self._clock, entropy=self._entropy),
            config=self.config,
            tail_cache=TailCache(self.config.tail_cache_bytes),
            cold=ColdReader(backend, self.config, self._clock),
            tiered=TierReads(self.config),
            live_bookies=lambda: len(self.storage.bookies()),
            metadata_connected=lambda: True,
            certain=lambda: True,
            confirm=_yes,
            clock=self._clock,
            entropy=self._entropy,
        )

    async def open(self, partition: int) -> PartitionShell:
        """Own it."""
        policy = {"cleanup.policy": "compact,delete", "delete.retention.ms": "0"}
        settings = parse_topic_config(policy, self.config)
        shell = PartitionShell(PartitionName(TOPIC, TOPIC_ID, partition), settings, self.deps)
        await shell.open()
        return shell

    async def clean(self, shell: PartitionShell) -> None:
        """One pass of a cleaner."""
        await PartitionCleaner(
            shell.rewrites,
            CompactionRule.of(shell.settings),
            backend=self.deps.backend,
            memory_bytes=1 << 20,
            index_interval_bytes=self.config.index_interval_bytes,
            pace=Pace(0, self._clock),
            clock=self._clock,
            is_wanted=lambda: shell.settings.compacts,
        ).run()

    async def sweep(self, shell: PartitionShell) -> None:
        """Until its trash is empty."""
        while shell._chain.state.trash:  # pyright: ignore[reportPrivateUsage]
            shell.tick()
            await self._clock.sleep(0.01)

    async def close(self) -> None:
        """Free everything."""
        await self.deps.cold.close()
        await self.storage.close()


async def _yes() -> bool:
    return True


async def _live(owner: Owner, order: Order) -> None:
    """Rolls, a compaction, a trim, and the trash."""
    shell = await owner.open(order.partition)

    async def append(key: bytes, value: bytes) -> None:
        offset = await write(shell, (key, value))
        tell(partition=order.partition, offset=offset, value=value.decode())

    await append(b"a", b"a0")
    await append(b"b", b"b1")
    await shell.rewrites.close_open()
    await append(b"a", b"a2")
    await shell.rewrites.close_open()
    await owner.clean(shell)
    await shell.trim(2)
    await owner.sweep(shell)
    await append(b"c", b"c3")
    await shell.close(5.0)


async def _look(owner: Owner, partition: int) -> None:
    shell = await owner.open(partition)
    start = shell.log_start
    rows = await read_all(shell, start)
    await owner.sweep(shell)
    after = await read_all(shell, start)
    assert after == rows, "the sweep of the trash took what is listed"
    told = {str(offset): (value or b"").decode() for offset, _, value in rows}
    tell(partition=partition, log_start=start, holds=told)
    await shell.close(5.0)


async def _child(url: str, order: Order) -> None:
    store = await connect_store(
        url, client_name="killed-owner", clock=SystemClock(), entropy=SystemEntropy()
    )
    assert isinstance(store, EmbeddedStore)
    store.__class__ = DyingStore
    assert isinstance(store, DyingStore)
    store.order, store.writes = order, []
    owner = Owner(store, url)
    await owner.storage.start()
    if order.looks:
        await asyncio.gather(*(_look(owner, partition) for partition in range(order.partition)))
    else:
        await _live(owner, order)
    tell(partition=order.partition, writes=store.writes)
    await owner.close()
    await store.close()


def _forked(url: str, order: Order) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        asyncio.run(_child(url, order))
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    """Carry orders out until the input ends; the status of each child is told."""
    url = sys.argv[1]
    importlib.import_module("pyarrow.acero")  # a cleaner loads it; here once for all children
    living: dict[int, Order] = {}

    def reap(most: int) -> None:
        while len(living) > most:
            pid, status = os.wait()
            order = living.pop(pid)
            tell(partition=order.partition, ended=os.waitstatus_to_exitcode(status))

    for line in sys.stdin:
        if not line.strip():
            reap(0)
            continue
        order = Order(**json.loads(line))
        reap(0 if order.looks else AT_ONCE - 1)
        living[_forked(url, order)] = order
    reap(0)


if __name__ == "__main__":
    main()
