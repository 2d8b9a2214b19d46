"""What serving tests share: a metadata store, an in-memory storage layer, partitions over both."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.paths import Paths
from octavo.metadata.topics import PartitionCatalog
from octavo.proto import batch as batches
from octavo.proto.compression import Codec
from octavo.proto.segment_entries import (
    ProducerSnapshot,
    SegmentFigures,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.errors import OctavoError
from octavo.serving.cache import TailCache
from octavo.serving.cold import ColdReader
from octavo.serving.config import BrokerConfig
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.log import ACKS_ALL, Answer, Appended
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.tiering.reads import TierReads
from octavo.serving.topic_config import TopicSettings, parse_topic_config
from tests.memory_ledgers import MemoryBackend, MemoryBookies

TOPIC_ID = uuid.UUID(int=7)
NAME = PartitionName("orders", TOPIC_ID, 0)
NOW_MS = 1_700_000_000_000


def handed_over(packed: Sequence[bytes]) -> tuple[ProducerSnapshot, ...]:
    """What a next owner reads of producers packed for a snapshot, through the stored bytes."""
    state = Snapshot(uuid.UUID(int=1), 0, 0, 0, 0, SegmentFigures())
    return decode_snapshot(encode_snapshot(state, packed)).producers


def make_batch(
    values: Sequence[bytes] = (b"v",),
    *,
    timestamp_ms: int = NOW_MS,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """An uncompressed batch of `values`."""
    count = len(values)
    encoded = batches.encode(
        [timestamp_ms] * count,
        [None] * count,
        list(values),
        codec=Codec.NONE,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return bytes(encoded)


def make_config(**changes: object) -> BrokerConfig:
    """A broker configuration with small limits."""
    values: dict[str, object] = {
        "broker_id": "broker-1",
        "min_segment_bytes": 64 * 1024,
        "trash_delay_ms": 0,
        "housekeeping_interval_s": 0.05,
        "ownership_settle_s": 0.05,
        "stop_deadline_s": 5.0,
    }
    values.update(changes)
    return BrokerConfig.load(**values)


class Broker:
    """One broker's share of the rig: its own metadata session and ledger client."""

    def __init__(self, rig: Rig, config: BrokerConfig) -> None:
        self.rig = rig
        self.config = config
        self.store: MemoryStore = rig.metadata.connect()
        self.catalog = PartitionCatalog(self.store, rig.paths, clock=rig.clock, entropy=rig.entropy)
        ledgers = LedgerCatalog(self.store, rig.paths, clock=rig.clock, entropy=rig.entropy)
        self.backend = MemoryBackend(rig.bookies, ledgers)
        self.cold = ColdReader(self.backend, config, rig.clock)
        self.tiered = TierReads(config)
        self.tail_cache = TailCache(config.tail_cache_bytes)
        self.deps = PartitionDeps(
            backend=self.backend,
            catalog=self.catalog,
            config=config,
            clock=rig.clock,
            entropy=rig.entropy,
            tail_cache=self.tail_cache,
            cold=self.cold,
            tiered=self.tiered,
            live_bookies=lambda: rig.bookies.live,
            metadata_connected=lambda: True,
            certain=lambda: self.certain,
            confirm=self._confirm,
        )
        self.gone: list[OctavoError] = []
        self.certain = True
        """Whether the session surely lives."""

    async def _confirm(self) -> bool:
        return self.certain

    def settings(self, **config: str) -> TopicSettings:
        """Topic settings from dotted names given with underscores."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        return parse_topic_config(named, self.config)

    def shell(self, name: PartitionName = NAME, **config: str) -> PartitionShell:
        """A shell that is not open yet."""
        return PartitionShell(
            name,
            self.settings(**config),
            self.deps,
            on_gone=lambda _shell, reason: self.gone.append(reason),
        )

    async def open(self, name: PartitionName = NAME, **config: str) -> PartitionShell:
        """An open shell."""
        shell = self.shell(name, **config)
        await shell.open()
        self.rig.shells.append(shell)
        return shell


class Rig:
    """A cluster inside one event loop."""

    def __init__(self, bookies: int = 3) -> None:
        self.clock = SystemClock()
        self.entropy = SeededEntropy(5)
        self.metadata = MemoryCluster()
        self.paths = Paths("/octavo")
        self.bookies = MemoryBookies(bookies)
        self.shells: list[PartitionShell] = []
        self.brokers: list[Broker] = []

    def broker(self, **changes: object) -> Broker:
        """One more broker."""
        made = Broker(self, make_config(**changes))
        self.brokers.append(made)
        return made

    async def close(self) -> None:
        """End everything."""
        self.bookies.release()
        for shell in self.shells:
            await shell.close(1.0)
        for broker in self.brokers:
            await broker.cold.close()
            await broker.tiered.close()
            await broker.store.close()


class Answers:
    """Collects the replies of one producer."""

    def __init__(self) -> None:
        self.all: list[Answer] = []
        self._changed = asyncio.Event()

    def reply(self, answer: Answer) -> None:
        """Given to `append`."""
        self.all.append(answer)
        self._changed.set()

    async def wait(self, count: int) -> list[Answer]:
        """All answers once there are `count`."""
        async with asyncio.timeout(30):
            while len(self.all) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.all


async def produce(shell: PartitionShell, batch: bytes, acks: int = ACKS_ALL) -> Appended:
    """Append and wait; raises the answer when it is an error."""
    answers = Answers()
    shell.append(batch, acks, answers.reply)
    (answer,) = await answers.wait(1)
    if isinstance(answer, OctavoError):
        raise answer
    return answer


async def until(condition: object, what: str = "condition") -> None:
    """Let the loop run until `condition()` holds."""
    assert callable(condition)
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(50):
        await asyncio.sleep(0)
