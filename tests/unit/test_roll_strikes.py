"""The life of a partition whose every step fails, is its owner's last, or meets somebody else.

Whatever happens, each ledger that exists is named by the list or its trash (ML-9, ADR 61), so that
whoever owns the partition next, or deletes it, finds all of them; and no acknowledged record is
lost (INV-13).
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import TypeVar

import pytest

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.topics import (
    PartitionCatalog,
    PartitionState,
    TopicCatalog,
    VersionedPartition,
)
from octavo.runtime.errors import (
    NotLeader,
    OctavoError,
    UnknownOutcome,
    UnknownTopic,
)
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_admin import TopicAdmin
from tests.compaction_rig import (
    Strike,
    StruckBroker,
    clean,
    named_now,
    no_orphan,
    nobody_left,
    read_all,
    write,
)
from tests.serving_rig import NAME, Rig
from tests.virtual_loop import VirtualLoop

T = TypeVar("T")
ATTEMPTS_MAX = 5
"""One fault of a story is met at most so often."""
NEEDED = {"fetch_add", "create_and_put", "put", "delete", "add", "append", "close"}
"""Kinds of steps that a story must have, or it proves nothing."""


class Story:
    """One owner's part in the life of a partition."""

    def __init__(
        self,
        broker: StruckBroker,
        name: PartitionName = NAME,
        catalog: type[PartitionCatalog] = PartitionCatalog,
    ) -> None:
        self.broker = broker.strike_writes(catalog)
        self.name = name
        self.shell: PartitionShell | None = None
        self.told: dict[int, bytes] = {}
        """What was acknowledged, by offset."""

    async def run(self) -> None:
        """First ledger, roll, a ledger that ends by recovery, compaction, trim, unload."""
        await self._again(self._open)
        await self._write(2)
        await self._again(lambda: self._opened.roll())
        await self._write(1)
        writer = self.broker.rig.bookies.writers[-1]
        writer.stop(UnknownOutcome("its bookies are gone"))
        await self._write(1)
        await self._again(self._opened.rewrites.close_open)
        await self._again(lambda: clean(self.broker, self._opened))
        await self._again(lambda: self._opened.trim(1))
        await no_orphan(self.broker.rig, self.broker, self._opened)
        await self._write(1)
        await self._opened.close(5.0)

    @property
    def _opened(self) -> PartitionShell:
        assert self.shell is not None
        return self.shell

    async def _open(self) -> None:
        self.shell = self.broker.shell(self.name, cleanup_policy="compact,delete")
        await self.shell.open()

    async def _write(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.told)
            offset = await write(self._opened, (b"key" + value, value))
            self.told[offset] = value

    async def _again(self, call: Callable[[], Awaitable[object]]) -> None:
        for attempt in range(ATTEMPTS_MAX):
            try:
                await call()
            except UnknownTopic:
                raise
            except OctavoError:
                is_gone = self.shell is not None and self.shell.gone is not None
                if is_gone or attempt + 1 == ATTEMPTS_MAX:
                    raise
            else:
                return

    async def end(self) -> None:
        """Nothing that it does arrives any more."""
        self.broker.steps.killed.set()
        if self.shell is not None:
            await self.shell.abandon(NotLeader("its broker died"))


@cache
def _steps() -> list[str]:
    async def learn() -> list[str]:
        rig = Rig()
        broker = StruckBroker(rig)
        broker.steps.arm(None)
        await Story(broker).run()
        await rig.close()
        return broker.steps.names

    names = _play(learn())
    assert set(names) >= NEEDED
    assert names.count("create_and_put") >= 4, "the first, rolls, and a cleaner's"
    return names


def _play(story: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


async def _owned_next(rig: Rig, told: dict[int, bytes], where: str) -> None:
    """What the owner that comes next finds."""
    await nobody_left(rig)
    broker = StruckBroker(rig)
    shell = await broker.open(cleanup_policy="compact,delete")
    found = {offset: value for offset, _, value in await read_all(shell, shell.log_start)}
    kept = {offset: value for offset, value in told.items() if offset >= shell.log_start}
    assert kept.items() <= found.items(), where
    assert shell.log_start <= 1, where
    assert len(set(found.values())) == len(found), where
    await write(shell, (b"next", b"next"))
    await no_orphan(rig, broker, shell)
    await rig.close()


@pytest.mark.parametrize(("kills", "has_effect"), [(False, False), (False, True), (True, True)])
def test_ml9_every_step_may_fail_or_be_the_owners_last(kills: bool, has_effect: bool) -> None:
    """To die before a step is to die after the one before it."""
    for at, name in enumerate(_steps()):
        _play(_struck(Strike(at, kills, has_effect), f"step {at}: {name}"))


async def _struck(
    strike: Strike, where: str, catalog: type[PartitionCatalog] = PartitionCatalog
) -> None:
    rig = Rig()
    story = Story(StruckBroker(rig), catalog=catalog)
    steps = story.broker.steps
    steps.arm(strike)
    running = asyncio.ensure_future(story.run())
    dying = asyncio.ensure_future(steps.killed.wait())
    await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
    reached = steps.count > strike.at  # sweeps of the trash take some steps more or less
    assert steps.killed.is_set() == (strike.kills and reached), where
    if not steps.killed.is_set():
        await running
    for task in (running, dying):
        task.cancel()
    await asyncio.gather(running, dying, return_exceptions=True)
    await story.end()
    await _owned_next(rig, story.told, where)


class CreatesFirst(PartitionCatalog):
    """A planted fault: a ledger is created, and listed by another write."""

    async def cas(
        self,
        old: VersionedPartition,
        new: PartitionState,
        *,
        creates: LedgerMetadata | None = None,
    ) -> VersionedPartition:
        if creates is not None:
            key = self._paths.ledger(creates.ledger_id)
            await self._writes.create(key, creates.to_bytes(), lasting=True)
        return await super().cas(old, new)


def test_a_ledger_that_is_created_before_it_is_listed_is_found_out() -> None:
    created = 4
    """The first roll's; its owner dies before it lists it."""
    strike = Strike(created, kills=True, has_effect=True)
    with pytest.raises(AssertionError, match="a ledger that nobody lists"):
        _play(_struck(strike, "the creation", CreatesFirst))


def test_ml9_another_owner_may_come_before_every_step() -> None:
    """The first one goes on, sure that it is the owner, and creates nothing that is not listed."""
    names = _steps()

    async def overtaken(at: int) -> None:
        where = f"step {at}: {names[at]}"
        rig = Rig()
        story = Story(StruckBroker(rig))
        steps = story.broker.steps
        steps.arm(None)
        steps.pause_at = at
        running = asyncio.ensure_future(story.run())
        paused = asyncio.ensure_future(steps.paused.wait())
        await asyncio.wait({running, paused}, return_when=asyncio.FIRST_COMPLETED)
        other = StruckBroker(rig)
        theirs = await other.open(cleanup_policy="compact,delete")
        await write(theirs, (b"other", b"other"))
        steps.may_go_on.set()
        outcome = (await asyncio.gather(running, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, OctavoError), where
        paused.cancel()
        await asyncio.gather(paused, return_exceptions=True)
        await story.end()
        if outcome is not None:  # fenced, and gave up
            await no_orphan(rig, other, theirs)
        await _owned_next(rig, story.told, where)

    for at in range(len(names)):
        _play(overtaken(at))


def test_ml9_a_topic_deleted_before_any_step_leaves_no_ledger_and_no_list() -> None:
    """But the first, which makes the list: `PartitionLoads` takes away what was made too late."""
    names = _steps()

    async def deleted(at: int) -> None:
        where = f"step {at}: {names[at]}"
        rig = Rig()
        store = rig.metadata.connect()
        topics = TopicCatalog(store, rig.paths, clock=rig.clock, entropy=rig.entropy)
        topic = (await topics.create("orders", 1)).topic
        name = PartitionName(topic.name, topic.topic_id, 0)
        story = Story(StruckBroker(rig), name)
        steps = story.broker.steps
        steps.arm(None)
        steps.pause_at = at
        running = asyncio.ensure_future(story.run())
        paused = asyncio.ensure_future(steps.paused.wait())
        await asyncio.wait({running, paused}, return_when=asyncio.FIRST_COMPLETED)
        await _admin(rig, topics).delete("orders")
        steps.may_go_on.set()
        outcome = (await asyncio.gather(running, return_exceptions=True))[0]
        assert outcome is None or isinstance(outcome, OctavoError), where
        paused.cancel()
        await asyncio.gather(paused, return_exceptions=True)
        await story.end()
        await nobody_left(rig, name)
        left = await named_now(rig, name)
        assert left is None, where
        await rig.close()

    for at in range(1, len(names)):
        _play(deleted(at))


def _admin(rig: Rig, topics: TopicCatalog) -> TopicAdmin:
    broker = rig.broker()

    async def drop(_topic: object) -> None:
        return

    return TopicAdmin(
        topics,
        broker.catalog,
        broker.backend,
        config=broker.config,
        clock=rig.clock,
        live_bookies=lambda: 3,
        drop_topic=drop,
        delete_files=drop,
        store_answers=StoreAnswers(broker.store, "memory://test/octavo", rig.clock),
    )
