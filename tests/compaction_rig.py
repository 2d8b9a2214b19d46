"""A partition over storage in memory whose every step can fail or be the broker's last (K7).

A step is one call of the storage layer or the metadata store. `Strike` picks one: it fails before
or after it had its effect, or the broker dies there, before or after.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import NamedTuple, ParamSpec, TypeVar

from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.memory import MemoryStore
from octavo.metadata.store import Put
from octavo.metadata.topics import PartitionCatalog, PartitionState, VersionedPartition
from octavo.proto import batch as batches
from octavo.proto.batch import decode_rows
from octavo.runtime.errors import (
    Fenced,
    MetadataUnavailable,
    NotLeader,
    OctavoError,
    UnknownOutcome,
)
from octavo.runtime.ids import EntryId, LedgerId
from octavo.serving.compaction.cleaner import PartitionCleaner, PassReport
from octavo.serving.compaction.plan import CompactionRule
from octavo.serving.config import BrokerConfig
from octavo.serving.pace import Pace
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.read_path import read_at
from octavo.serving.partition.shell import PartitionShell
from tests.memory_ledgers import MemoryBackend, MemoryReader, MemoryWriter
from tests.serving_rig import NAME, NOW_MS, Broker, Rig, make_config, produce, until

P = ParamSpec("P")
T = TypeVar("T")
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


def _nobody_hears(_entry_id: EntryId, _error: OctavoError | None) -> None:
    """Of an entry whose writer is dead."""


class Strike(NamedTuple):
    """What happens at step `at`, counted from 0."""

    at: int
    kills: bool
    has_effect: bool
    """The step is done, and nobody is told."""


class Steps:
    """Counts the steps of one broker from the moment it is armed."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []
        self.strike: Strike | None = None
        self.is_armed = False
        self.killed = asyncio.Event()
        self.may_go_on = asyncio.Event()
        """While it is not set every step waits before it begins."""
        self.may_go_on.set()
        self.pause_at = -1
        self.paused = asyncio.Event()

    def arm(self, strike: Strike | None) -> None:
        """From now on."""
        self.count, self.names, self.strike, self.is_armed = 0, [], strike, True

    async def step(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do it, unless it is struck."""
        if self.killed.is_set():
            await asyncio.Event().wait()
        if not self.is_armed:
            return await call()
        if 0 <= self.pause_at <= self.count:  # adds are counted and do not wait
            self.pause_at = -1
            self.may_go_on.clear()
            self.paused.set()
        await self.may_go_on.wait()
        strike = self._reached(name)
        if strike is None:
            return await call()
        if strike.has_effect:
            try:
                await call()
            except OctavoError:
                if not strike.kills:
                    raise
        if strike.kills:
            self.killed.set()
            await asyncio.Event().wait()
        if strike.has_effect:
            raise UnknownOutcome(f"the reply to {name} was lost")
        raise MetadataUnavailable(f"{name} failed")

    def _reached(self, name: str) -> Strike | None:
        self.names.append(name)
        strike, at = self.strike, self.count
        self.count += 1
        return strike if strike is not None and strike.at == at else None

    def strike_adds(self, writer: MemoryWriter) -> None:
        """Each entry handed to `writer` is a step; a struck one is never acknowledged."""
        adding = writer.add

        def add(
            payload: bytes,
            on_done: Callable[[EntryId, OctavoError | None], None],
            on_first_copy: Callable[[EntryId], None] | None = None,
        ) -> EntryId:
            strike = self._reached("add") if self.is_armed and not self.killed.is_set() else None
            if strike is None:
                return adding(payload, on_done, on_first_copy)
            if strike.kills:
                self.killed.set()
                return adding(payload, _nobody_hears) if strike.has_effect else EntryId(0)
            if not strike.has_effect:
                writer.stop(Fenced("the ledger's bookies are gone"))
            entry_id = adding(payload, on_done, on_first_copy)
            writer.stop(UnknownOutcome("the answer to an entry was lost"))
            return entry_id

        setattr(writer, "add", add)  # noqa: B010

    def wrap(self, name: str, method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        """`method` as a step."""

        async def stepped(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.step(name, lambda: method(*args, **kwargs))

        return stepped


class StruckBookies(MemoryBackend):
    """What its writers do is a step."""

    steps: Steps

    def writer_of(self, created: LedgerMetadata, wanted: Quorum) -> MemoryWriter:
        made = super().writer_of(created, wanted)
        for name in ("append", "close", "wait_capacity"):
            setattr(made, name, self.steps.wrap(name, getattr(made, name)))
        self.steps.strike_adds(made)
        return made


class StruckBackend(StruckBookies):
    """Every call of it, of its readers and of its writers is a step."""

    async def draft_ledger(
        self,
        quorum: Quorum,
        custom: Mapping[str, str],
        *,
        allow_degraded: bool = True,
        above: int = -1,
    ) -> LedgerMetadata:
        drafting = partial(super().draft_ledger, allow_degraded=allow_degraded, above=above)
        return await self.steps.step("draft", lambda: drafting(quorum, custom))

    async def recover_ledger(self, ledger_id: LedgerId) -> LedgerMetadata:
        recovering = super().recover_ledger
        return await self.steps.step("recover", lambda: recovering(ledger_id))

    async def open_reader(self, ledger_id: LedgerId) -> MemoryReader:
        opening = super().open_reader
        made = await self.steps.step("open", lambda: opening(ledger_id))
        setattr(made, "read", self.steps.wrap("read", made.read))  # noqa: B010
        return made

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        deleting = super().delete_ledger
        await self.steps.step("delete", lambda: deleting(ledger_id))


class StruckCatalog(PartitionCatalog):
    """The partition's list; reading and writing it are steps."""

    steps: Steps

    async def read(self, topic_id: uuid.UUID, partition: int) -> VersionedPartition | None:
        reading = super().read
        return await self.steps.step("read list", lambda: reading(topic_id, partition))

    async def cas(
        self,
        old: VersionedPartition,
        new: PartitionState,
        *,
        creates: LedgerMetadata | None = None,
    ) -> VersionedPartition:
        writing = super().cas
        name = "list" if creates is None else "list and create"
        return await self.steps.step(name, lambda: writing(old, new, creates=creates))


class StruckStore(MemoryStore):
    """Every write of metadata is a step."""

    steps: Steps

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        writing = super().create
        return await self.steps.step("create", lambda: writing(key, value, ephemeral=ephemeral))

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        writing = super().create_and_put
        return await self.steps.step("create_and_put", lambda: writing(key, value, put))

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        writing = super().put
        return await self.steps.step("put", lambda: writing(key, value, expected=expected))

    async def delete(self, key: str, *, expected: int | None) -> None:
        writing = super().delete
        await self.steps.step("delete", lambda: writing(key, expected=expected))

    async def fetch_add(self, key: str) -> int:
        writing = super().fetch_add
        return await self.steps.step("fetch_add", lambda: writing(key))


@cache
def _plain_config() -> BrokerConfig:
    """Made once: sweeps take hundreds of brokers."""
    return make_config()


class StruckBroker(Broker):
    """A broker whose steps are counted."""

    def __init__(self, rig: Rig, **changes: object) -> None:
        super().__init__(rig, make_config(**changes) if changes else _plain_config())
        self.steps = Steps()
        self.backend.__class__ = StruckBackend
        self.catalog.__class__ = StruckCatalog
        self.backend.steps = self.catalog.steps = self.steps  # type: ignore[attr-defined]
        rig.brokers.append(self)

    def strike_writes(self, catalog: type[PartitionCatalog] = PartitionCatalog) -> StruckBroker:
        """Steps are the writes of metadata one by one, and what bookies do; reads are none."""
        self.backend.__class__ = StruckBookies
        self.catalog.__class__ = catalog
        self.store.__class__ = StruckStore
        self.store.steps = self.steps  # type: ignore[attr-defined]
        return self


def keyed_batch(rows: list[tuple[bytes | None, bytes | None]]) -> bytes:
    """A batch of keys and values."""
    made = batches.encode([NOW_MS] * len(rows), [k for k, _ in rows], [v for _, v in rows])
    return bytes(made)


async def write(shell: PartitionShell, *rows: tuple[bytes | None, bytes | None]) -> int:
    """One batch; its base offset."""
    return (await produce(shell, keyed_batch(list(rows)))).base_offset


async def read_all(shell: PartitionShell, start: int = 0) -> list[Row]:
    """Every record from `start` to the end, as a reader gets them; raises when it gets nowhere."""
    offset, found = start, list[Row]()
    while offset < shell.high_watermark:
        got = await read_at(shell.view(), offset, 1 << 20, at_least_one=True)
        for batch in got.batches:
            rows = decode_rows(batch)
            columns = zip(rows.offsets, rows.keys, rows.values, strict=True)
            found += [row for row in columns if row[0] >= offset]
        assert got.next_offset > offset, f"a reader stands still at {offset}"
        offset = got.next_offset
    assert offset == shell.high_watermark
    return found


def cleaner(broker: Broker, shell: PartitionShell, memory_bytes: int = 1 << 20) -> PartitionCleaner:
    """Of one pass."""
    return PartitionCleaner(
        shell.rewrites,
        CompactionRule.of(shell.settings),
        backend=broker.deps.backend,
        memory_bytes=memory_bytes,
        index_interval_bytes=broker.config.index_interval_bytes,
        pace=Pace(0, broker.rig.clock),
        clock=broker.rig.clock,
        is_wanted=lambda: shell.settings.compacts,
    )


async def clean(broker: Broker, shell: PartitionShell, memory_bytes: int = 1 << 20) -> PassReport:
    """Passes until one reached the end."""
    while True:
        report = await cleaner(broker, shell, memory_bytes).run()
        if not report.is_short:
            return report


async def no_orphan(rig: Rig, broker: Broker, shell: PartitionShell) -> None:
    """Wait until the trash is swept; then what exists is what is listed."""

    def is_swept() -> bool:
        shell.tick()
        return not shell._chain.state.trash  # pyright: ignore[reportPrivateUsage]

    await until(is_swept, "an empty trash")
    await nobody_left(rig, shell.name)


async def named_now(rig: Rig, name: PartitionName = NAME) -> set[int] | None:
    """Ledgers that the list or its trash names; None: there is no list."""
    store = rig.metadata.connect()
    catalog = PartitionCatalog(store, rig.paths, clock=rig.clock, entropy=rig.entropy)
    found = await catalog.read(name.topic_id, name.partition)
    if found is None:
        return None
    listed = set[int](one.ledger_id for one in found.state.segments)
    return listed.union(one.ledger_id for one in found.state.trash)


async def nobody_left(rig: Rig, name: PartitionName = NAME) -> None:
    """The ledgers that exist are named, however the owner ended (ML-9)."""
    store = rig.metadata.connect()
    catalog = LedgerCatalog(store, rig.paths, clock=rig.clock, entropy=rig.entropy)
    there = {ledger_id async for ledger_id in catalog.walk()}
    named = await named_now(rig, name)
    if not there <= (named or set()):  # no `assert`: under -O there is none in this module
        raise AssertionError("a ledger that nobody lists")


async def fall(broker: StruckBroker, shell: PartitionShell) -> None:
    """The broker is dead: nothing it does arrives any more."""
    broker.steps.killed.set()
    await shell.abandon(NotLeader("its broker died"))
    broker.rig.shells.remove(shell)
