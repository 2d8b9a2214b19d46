"""Fail each await of a member of a group, and of whoever administers groups, in turn.

A first run of each scene finds its steps (`await_sites`). Then each is struck in a run of its own:
the task is cancelled while it waits there, or just as its wait ends; what it awaits raises what a
broken link raises, or what nobody expected, as a callback of the user's may. The caller catches
what it is told and goes on. Whatever is hit: no record is left out, none comes that is not its own,
callbacks come once and in order, a commit that succeeded is stored, close takes its time at most,
the group is left, and no task outlives the client. That every await was struck is itself asserted.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import linecache
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from functools import cache
from typing import TypeVar, Unpack

import pytest

from octavo import AsyncClient, OffsetAndMetadata, Record, TopicPartition
from octavo.client.messaging.api import (
    callbacks,
    group_admin,
    group_consumer,
    group_hand_over,
    group_opening,
)
from octavo.client.messaging.api.group_consumer import AsyncGroupConsumer
from octavo.client.messaging.api.options import GroupOptions
from octavo.client.messaging.cluster import coordinators
from octavo.client.messaging.group_admin import append_times, asking, lag, resets, surveys
from octavo.client.messaging.membership import beginnings, committing, session, wanted_topics
from octavo.runtime.errors import BrokerUnavailable, OctavoError
from tests.await_sites import Place, Step, Watch, awaits_of, task_factory
from tests.group_cluster import GroupCluster

T = TypeVar("T")
MEMBER = (
    beginnings, callbacks, committing, coordinators, group_consumer, group_hand_over,
    group_opening, session, wanted_topics,
)  # fmt: skip
ADMIN = (append_times, asking, group_admin, lag, resets, surveys)
FILES = frozenset({__file__, *(str(module.__file__) for module in (*MEMBER, *ADMIN))})
NEVER_AWAITED = ("run_apart",)
"""Of blocking consumers."""
NEVER_SUSPEND = (
    "await self.assign([])",  # nothing is to be found out
    "await self.callbacks.run_apart(duty)",  # of blocking consumers
    "await self._cluster.clock.sleep(backoff.next_s())",  # only after another fault
)
FAULTS = ("cancel waiting", "cancel resumed", "link", "unexpected")
TOPIC, PARTITIONS, RECORDS = "t", 2, 60
AT_ONCE = 8
CALL_S = 15.0
CLOSE_S = 1.0
SLACK_S = 10.0
"""For a busy machine."""
ATTEMPTS_MAX = 40
SWEEPS_MAX = 6
_groups = itertools.count()


class Planted(Exception):
    """What nobody expected."""


class Caller:
    """A program in a group: it catches what it is told, goes on, and knows what must be so."""

    def __init__(self, found: GroupCluster, watch: Watch) -> None:
        self.found, self.watch = found, watch
        self.group = f"g-{next(_groups)}"
        self.problems: list[str] = []
        self.errors: list[str] = []
        self.mine: set[int] = set()
        self.reached = dict.fromkeys(range(PARTITIONS), 0)
        """Behind the furthest record that came."""
        self.follows: dict[int, int] = {}
        """What must come next of what is its own; unknown after it was assigned."""
        self.stored = dict.fromkeys(range(PARTITIONS), 0)
        """What commits that succeeded said."""
        self.in_callback = False
        self.positions: dict[int, int] = {}
        """What an end that succeeds commits."""

    def client(self) -> AsyncClient:
        return AsyncClient(
            self.found.bootstrap,
            retry_backoff_ms=10,
            retry_backoff_max_ms=50,
            request_timeout_ms=3_000,
        )

    def consumer(
        self, client: AsyncClient, *topics: str, **options: Unpack[GroupOptions]
    ) -> AsyncGroupConsumer:
        options.setdefault("auto_commit_interval_ms", 20)
        options |= {"auto_offset_reset": "earliest", "max_poll_records": 5}
        made = client.consumer(
            topics,
            group=self.group,
            on_assign=self.on_assign,
            on_revoke=self.on_revoke,
            on_lost=self.on_lost,
            **options,
        )
        self.member = made
        return made

    # --- callbacks ------------------------------------------------------------------------------

    async def on_assign(self, slots: list[TopicPartition]) -> None:
        came = {one.partition for one in slots if one.topic == TOPIC}
        self.check(not came & self.mine, f"{came} are assigned twice")
        self.mine |= came
        await self._within(lambda: self.member.committed(*slots))

    async def on_revoke(self, slots: list[TopicPartition]) -> None:
        gone = {one.partition for one in slots if one.topic == TOPIC}
        self.check(gone <= self.mine, f"{gone} are revoked and were not assigned")
        self._forget(gone)
        await self._within(self.member.commit)

    def on_lost(self, slots: list[TopicPartition]) -> None:
        gone = {one.partition for one in slots if one.topic == TOPIC}
        self.check(gone == self.mine, f"{gone} of {self.mine} are lost")
        self.check(not self.in_callback, "a callback in a callback")
        self._forget(gone)

    async def _within(self, call: Callable[[], Awaitable[object]]) -> None:
        self.check(not self.in_callback, "a callback in a callback")
        self.in_callback = True
        try:
            await call()
        except OctavoError as error:
            self.errors.append(repr(error))
        finally:
            self.in_callback = False

    def _forget(self, gone: set[int]) -> None:
        self.mine -= gone
        for partition in gone:
            self.follows.pop(partition, None)

    def check(self, so: bool, otherwise: str) -> None:
        if not so:
            self.problems.append(f"{otherwise}, after {self.errors}")

    # --- calls ----------------------------------------------------------------------------------

    async def once(self, call: Callable[[], Awaitable[T]]) -> list[T]:
        """The result of one attempt; empty when it failed in a way that a caller must expect."""
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(CALL_S):
                return [await call()]
        except asyncio.CancelledError as error:
            assert self.watch.struck, "a cancellation that nobody asked for"
            self.errors.append(repr(error))
            if task.cancelling():
                task.uncancel()
        except (OctavoError, Planted) as error:
            self.errors.append(repr(error))
        except BaseExceptionGroup as group:
            expected = group.subgroup((OctavoError, Planted))
            self.check(expected is not None, f"met {group!r}")
            self.errors.append(repr(group))
        return []

    async def attempt(self, call: Callable[[], Awaitable[T]]) -> T:
        for _ in range(ATTEMPTS_MAX):
            if result := await self.once(call):
                return result[0]
        raise AssertionError(f"no success in {ATTEMPTS_MAX} attempts: {self.errors}")

    def take(self, records: list[Record]) -> int:
        for one in records:
            partition, offset = one.partition, one.offset
            self.check(partition in self.mine, f"{partition}@{offset} came and is not its own")
            follows = self.follows.get(partition)
            if follows is None:  # from a committed offset on (O11)
                fits = self.stored[partition] <= offset <= self.reached[partition]
            else:
                fits = offset == follows
            self.check(fits, f"{partition}@{offset} came, not {follows or self.reached}")
            self.follows[partition] = offset + 1
            self.reached[partition] = max(self.reached[partition], offset + 1)
        return len(records)

    async def until(
        self, condition: Callable[[], object], consumer: AsyncGroupConsumer, count: int = 1
    ) -> None:
        """Poll until it holds."""
        end_s = time.monotonic() + CALL_S
        while not condition():
            assert time.monotonic() < end_s, f"it did not come to it: {self.errors}"
            for records in await self.once(lambda: consumer.poll(count, timeout=0.1)):
                self.take(records)

    async def nothing_comes(self, consumer: AsyncGroupConsumer) -> bool:
        try:
            async with asyncio.timeout(0.05):
                self.take([await anext(consumer)])
        except TimeoutError:
            return True
        return False

    async def commits(self, consumer: AsyncGroupConsumer) -> None:
        """What a commit that succeeded said is stored (O2, O10)."""

        async def both() -> dict[int, int]:
            wanted = dict(self.follows)
            await consumer.commit({TopicPartition(TOPIC, p): at for p, at in wanted.items()})
            return wanted

        for _ in range(ATTEMPTS_MAX):
            for wanted in await self.once(both):
                self.stored.update(wanted)
                found = await self.attempt(
                    lambda: consumer.committed(
                        *(TopicPartition(TOPIC, p) for p in range(PARTITIONS))
                    )
                )
                for where, value in found.items():
                    if where.partition in wanted:
                        there = -1 if value is None else value.offset
                        self.check(
                            there >= wanted[where.partition], f"{where} is committed up to {there}"
                        )
                return
            for records in await self.once(lambda: consumer.poll(1, timeout=0)):
                self.take(records)  # a lost member is back by that
        raise AssertionError(f"no commit: {self.errors}")

    async def closes(self, consumer: AsyncGroupConsumer) -> None:
        began_s = time.monotonic()
        done = await self.once(consumer.close)
        took_s = time.monotonic() - began_s
        self.check(took_s < CLOSE_S + SLACK_S, f"close took {took_s:.1f} s")
        if not done:
            await self.attempt(consumer.close)
        elif self.positions:
            await self.is_stored(self.positions)

    async def is_stored(self, positions: dict[int, int]) -> None:
        groups = self.found.groups
        stored = await asyncio.wrap_future(self.found.submit(groups.committed(self.group)))
        for partition, position in positions.items():
            there = stored.get((TOPIC, partition), -1)
            self.check(there == position, f"{partition} ended at {position}, stored is {there}")

    def all_read(self) -> bool:
        return set(self.reached.values()) == {RECORDS}


async def alone(caller: Caller, client: AsyncClient) -> None:
    """One member: every call of a consumer in a group, in one life."""
    consumer = caller.consumer(client, TOPIC)
    try:
        await caller.until(lambda: sum(caller.reached.values()) >= 3, consumer)
        await caller.commits(consumer)
        told: list[object] = []
        await caller.attempt(
            lambda: consumer.commit_async(callback=lambda _, error: told.append(error))
        )
        await caller.until(
            lambda: told or caller.watch.struck or sum(caller.reached.values()) > 60, consumer
        )
        assert set(await caller.attempt(consumer.assignment)) >= {
            TopicPartition(TOPIC, one) for one in caller.mine
        }
        for _ in range(8):
            caller.take([await caller.attempt(lambda: anext(consumer))])
        await caller.attempt(
            lambda: consumer.subscribe(
                [TOPIC, f"{TOPIC}-2"],
                on_assign=caller.on_assign,
                on_revoke=caller.on_revoke,
                on_lost=caller.on_lost,
            )
        )
        await caller.until(caller.all_read, consumer, 20)
        await caller.commits(consumer)
        await caller.attempt(lambda: caller.nothing_comes(consumer))
        await caller.attempt(consumer.unsubscribe)
        caller.check(not caller.mine, f"{caller.mine} after unsubscribe")
        caller.mine = set(range(PARTITIONS))
        await caller.attempt(lambda: consumer.assign([(TOPIC, n) for n in range(PARTITIONS)]))
        assert await caller.once(lambda: consumer.poll(timeout=0.02)) in ([[]], [])
    finally:
        await caller.closes(consumer)


async def shared(caller: Caller, client: AsyncClient) -> None:
    """A second member takes its share and goes; the block ends what is left."""
    found = caller.found
    consumer = caller.consumer(client, TOPIC)
    try:
        await caller.attempt(consumer.__aenter__)
        await caller.until(lambda: len(caller.mine) == PARTITIONS, consumer)
        other = await asyncio.to_thread(found.join, f"m-{caller.group}", TOPIC, group=caller.group)
        try:
            await caller.until(lambda: len(caller.mine) == 1 and len(other.owned) == 1, consumer)
        finally:
            await asyncio.to_thread(found.leave, other)
        await caller.until(
            lambda: len(caller.mine) == PARTITIONS and caller.all_read(), consumer, 20
        )
        began_s = time.monotonic()
        await caller.once(lambda: consumer.__aexit__(None, None, None))
        caller.check(time.monotonic() - began_s < CLOSE_S + SLACK_S, "the block ended late")
    finally:
        await caller.closes(consumer)


async def simple(caller: Caller, client: AsyncClient) -> None:
    """Partitions by hand: every call as the first that concerns its topic; positions at the end."""
    consumer = caller.consumer(client, auto_commit_interval_ms=60_000)
    two, three = TopicPartition(f"{TOPIC}-2", 0), TopicPartition(f"{TOPIC}-3", 0)
    try:
        assert await caller.attempt(lambda: consumer.committed(two)) == {two: None}
        caller.mine = set(range(PARTITIONS))
        await caller.attempt(lambda: consumer.assign([(TOPIC, n) for n in range(PARTITIONS)]))
        await caller.attempt(lambda: consumer.commit({three: 7}))
        await caller.until(lambda: sum(caller.reached.values()) >= 9, consumer, 2)
        caller.positions = dict(caller.follows)
    finally:
        await caller.closes(consumer)


async def first_commits(caller: Caller, client: AsyncClient) -> None:
    """Each kind of commit as the first call that concerns its topic."""
    two, three = TopicPartition(f"{TOPIC}-2", 0), TopicPartition(f"{TOPIC}-3", 0)
    consumer = caller.consumer(client)
    try:
        caller.mine = set(range(PARTITIONS))
        await caller.attempt(lambda: consumer.assign([(TOPIC, 0)]))
        await caller.attempt(lambda: consumer.commit_async({two: 1}))
        await caller.attempt(lambda: consumer.commit({three: 7}))
        stored = await caller.attempt(lambda: consumer.committed(three))
        assert stored[three] == OffsetAndMetadata(7)
    finally:
        await caller.closes(consumer)


async def ends(caller: Caller, client: AsyncClient) -> None:
    """What was handed out last is committed by the end, or its caller hears otherwise."""
    consumer = caller.consumer(client, TOPIC, auto_commit_interval_ms=60_000)
    try:
        await caller.until(lambda: sum(caller.reached.values()) >= 9, consumer, 2)
        caller.positions = dict(caller.follows)
    finally:
        await caller.closes(consumer)


async def strict(caller: Caller, client: AsyncClient) -> None:
    """Topics that are missing, and a client that ends what nobody closed."""
    consumer = caller.consumer(client, "nowhere", allow_missing_topics=False)
    for _ in range(200):
        if any("UnknownTopic" in error for error in caller.errors):
            break
        await caller.once(lambda: consumer.poll(timeout=0.1))
    else:
        raise AssertionError("nobody says that the topic is missing")


SCENES: dict[str, Callable[[Caller, AsyncClient], Awaitable[None]]] = {
    "alone": alone,
    "shared": shared,
    "simple": simple,
    "first commits": first_commits,
    "ends": ends,
    "strict": strict,
}


async def program(
    caller: Caller, scene: Callable[[Caller, AsyncClient], Awaitable[None]], client: AsyncClient
) -> None:
    try:
        await scene(caller, client)
    finally:
        await caller.attempt(client.close)


class Run:
    """One run of a scene."""

    def __init__(self, found: GroupCluster, name: str, at: Step | None, fault: str) -> None:
        self.found, self.name, self.at, self.fault = found, name, at, fault
        self.watch = Watch(FILES, at, self.act, waiting=fault == "cancel waiting")
        self.problems: list[str] = []

    def __str__(self) -> str:
        where = "nowhere"
        if self.at is not None:
            chain = (f"{file.rpartition('/')[2]}:{line}" for file, line in self.at.site)
            where = f"{' > '.join(chain)} #{self.at.occurrence}"
        return f"{self.name}, {self.fault} at {where}"

    def act(self) -> BaseException | None:
        """The fault, at its step."""
        task = asyncio.current_task()
        assert task is not None
        if self.fault == "cancel waiting":
            asyncio.get_running_loop().call_soon(task.cancel)
        elif self.fault == "cancel resumed":
            self.watch.cancels = True
        elif self.fault == "link":
            return BrokerUnavailable("planted")
        elif self.fault == "unexpected":
            return Planted()
        return None

    async def run(self) -> Run:
        """The whole life of a client, judged."""
        caller = Caller(self.found, self.watch)
        task = self.watch.start(program(caller, SCENES[self.name], caller.client()))
        _, open_ = await asyncio.wait((task,), timeout=60)
        if open_:
            self.problems.append(f"hangs: {task.get_stack()}")
            task.cancel()
            await asyncio.wait((task,), timeout=SLACK_S)
        elif task.cancelled() or task.exception() is not None:
            met = "a cancellation" if task.cancelled() else repr(task.exception())
            self.problems.append(f"the caller met {met}")
        self.problems += caller.problems
        left = [one for one in self.watch.tasks if not one.done()]
        if left:
            left = list((await asyncio.wait(left, timeout=SLACK_S))[1])
        self.problems += [f"outlives the client: {one}" for one in left]
        self.group = caller.group
        return self


class Sweep:
    """Runs on one loop, several at a time."""

    def __init__(self, found: GroupCluster) -> None:
        self.found = found
        self.unseen: list[str] = []
        self.problems: list[str] = []
        self.struck: set[Step] = set()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.unseen.append(str(context)))
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def runs(self, planned: Collection[tuple[str, Step | None]], fault: str) -> list[Run]:
        """Carry them out and judge them."""
        waiting = iter(planned)
        done: list[Run] = []

        async def work() -> None:
            for name, at in waiting:
                done.append(await Run(self.found, name, at, fault).run())

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        gc.collect()  # tasks that died unseen say so now
        await asyncio.sleep(0)
        for run in done:
            self.problems += [f"{run}: {problem}" for problem in run.problems]
            if run.at is not None and run.watch.struck:
                self.struck.add(run.at)
        return done

    async def strike(self, fault: str) -> None:
        """Each site at its first occurrence; where no run came to it, again."""
        steps: dict[Step, list[str]] = {}
        for _ in range(SWEEPS_MAX):
            await self._find(steps, fault)
            planned = [
                (name, step)
                for step, names in steps.items()
                if step not in self.struck
                for name in names[:1]
            ]
            await self.runs(planned, fault)
            if not self.missed():
                return

    async def _find(self, steps: dict[Step, list[str]], fault: str) -> None:
        for run in await self.runs([(name, None) for name in SCENES], "none"):
            for site in run.watch.seen:
                begins = (
                    linecache.getline(*site[-1]).lstrip().startswith("async def") if site else 1
                )
                if not site or all(file == __file__ for file, _ in site):
                    continue
                if fault != "cancel resumed" and begins:
                    continue  # a task that begins has not waited
                names = steps.setdefault(Step(site, 1), [])
                if run.name not in names:
                    names.append(run.name)

    def missed(self) -> list[str]:
        """Awaits that the fault did not strike."""
        struck = {place for step in self.struck for place in step.site}
        return [
            f"{file.rpartition('/')[2]}:{line} {text}"
            for (file, line), text in _wanted().items()
            if (file, line) not in struck and text not in NEVER_SUSPEND
        ]


@cache
def _wanted() -> dict[Place, str]:
    wanted: dict[Place, str] = {}
    for module in MEMBER:
        wanted |= awaits_of(module, but=NEVER_AWAITED)
    return wanted


@pytest.fixture(scope="module")
def found() -> Iterator[GroupCluster]:
    made = GroupCluster()
    made.topic(TOPIC, PARTITIONS, records=RECORDS)
    made.topic(f"{TOPIC}-2", 1)
    made.topic(f"{TOPIC}-3", 1)
    yield made
    made.close()


@pytest.fixture
async def sweep(found: GroupCluster) -> AsyncIterator[Sweep]:
    logging.getLogger("octavo.client").setLevel(logging.CRITICAL)
    gc.freeze()
    made = Sweep(found)
    yield made
    asyncio.get_running_loop().set_task_factory(None)
    gc.unfreeze()
    logging.getLogger("octavo.client").setLevel(logging.NOTSET)


@pytest.mark.parametrize("fault", FAULTS)
async def test_rb11_rb13_rb14_o9_o10_o11_whichever_await_of_a_member_fails(
    sweep: Sweep, fault: str
) -> None:
    await sweep.strike(fault)
    assert not sweep.problems, "\n".join(sweep.problems)
    assert not sweep.unseen, sweep.unseen
    assert not sweep.missed(), "\n".join(sweep.missed())
