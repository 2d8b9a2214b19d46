"""Fail each await and each callback of the reading half in turn: no record is skipped or doubled.

A first run of each scene finds its steps (`await_sites`). Then each site is struck at its first,
second and last occurrence, in a run of its own: the task is cancelled while it waits there, or just
as its wait ends; the connections are cut, or fall silent while they stay open, as the wait begins;
the same with a log handler that raises. The caller catches what it is told and goes on reading.
Whatever is hit, it gets every record once and in order, each of its calls keeps its limit, closing
ends every task, frees the buffers and the streams, and nothing goes unseen. That every await of the
reading half was struck is itself asserted.
"""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from functools import cache, partial

import pytest

from octavo import AsyncClient, TopicPartition
from octavo.client.messaging.api import binding, consumer, hand_over, leaving, opening, reader
from octavo.client.messaging.api import client as async_client
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.cluster import calls, cluster, owners, progress, topics, transport
from octavo.client.messaging.reading import fetch_link, fetch_streams, fetcher, offsets, outcomes
from octavo.proto import batch as batch_format
from octavo.proto import endpoints
from tests import reading_world
from tests.await_sites import Place, Step, Watch, awaits_of, task_factory
from tests.fake_broker import FakeClusterThread, FakeTopic
from tests.reading_world import CALL_S, PER_BATCH, Caller, World

AT_ONCE = 8
"""Runs under way together: most of a run is waiting."""
GONE_S = 5.0
MODULES = (
    async_client, binding, calls, cluster, consumer, fetch_link, fetch_streams, fetcher, hand_over,
    leaving, offsets, opening, outcomes, owners, progress, reader, topics, transport,
)  # fmt: skip
NOT_READING = ("connect", "pause_search", "run_until")
"""What no reading call awaits; the last is a table's (test_table_view)."""
NEVER_SUSPEND = (
    "await channel.close()",  # its calls are cancelled by then
    "await self.transport.close()",
    "await super().__aenter__()",
    "await self._position(where, deadline)",  # the positions are known when the ends are
)
SITES_MIN = 85
SWEEPS_MAX = 15
"""How often a place is tried that no run came to, on a busy machine."""
"""Chains of awaits that are struck; 94 or more when written."""
FILES = frozenset(
    {__file__, str(reading_world.__file__), *(str(module.__file__) for module in MODULES)}
)


async def calm(caller: Caller, client: AsyncClient, made: list[AsyncConsumer]) -> None:
    """A reader on healthy brokers: every call of the reading half."""
    reader = client.reader(
        caller.topic,
        max_poll_records=4,
        fetch_max_wait_ms=40,
        max_partition_fetch_bytes=120,
    )
    made.append(reader)
    zero, one = caller.places
    await caller.attempt(reader.__aenter__)
    await caller.reads(lambda: reader.poll(2, timeout=0.3), 5)
    await caller.stands(reader)
    await caller.reads(lambda: asyncio.wait_for(reader.poll(2, timeout=None), CALL_S), 1)
    await caller.iterates(reader, 3)
    await caller.stands(reader)
    await caller.reads_arrow(reader)
    await caller.attempt(lambda: reader.pause(zero))
    before = caller.next[zero]
    await caller.reads(lambda: reader.poll(1, timeout=0.3), 1)
    assert caller.next[zero] == before
    await caller.attempt(lambda: reader.resume(zero))
    assert await caller.attempt(reader.assignment) == caller.places
    assert set((await caller.attempt(reader.end_offsets)).values()) == {caller.end}
    assert set((await caller.attempt(reader.beginning_offsets)).values()) == {0}
    assert (await caller.attempt(reader.lag))[one] == caller.end - caller.next[one]
    await caller.attempt(reader.seek_to_end)
    assert await caller.attempt(lambda: reader.position(zero)) == caller.end
    assert await caller.once(lambda: reader.poll(timeout=0.05)) in ([[]], [])
    await caller.attempt(lambda: reader.seek_to_time(5))
    await caller.attempt(reader.seek_to_beginning)
    await caller.returns(reader)
    await caller.attempt(lambda: reader.assign([one]))
    await caller.reads(lambda: reader.poll(1, timeout=0.3), 1)
    await caller.attempt(lambda: reader.assign(caller.places))
    await caller.returns(reader)
    rest = reader.read_to_end()
    while caller.next != dict.fromkeys(caller.places, caller.end):
        try:
            await caller.iterates(rest, 1)
        except StopAsyncIteration:  # a failed generator is over; the next one goes on
            rest = reader.read_to_end()
    await caller.stands(reader)


async def stormy(caller: Caller, client: AsyncClient, made: list[AsyncConsumer]) -> None:
    """A consumer whose partitions move, are trimmed and damaged, and whose topic begins anew."""
    fake, call = caller.world.fake, caller.world.thread.call
    zero = caller.places[0]
    call(lambda: fake.topics[caller.topic].loading.add(1))
    consumer = client.consumer(
        caller.topic,
        auto_offset_reset="earliest",
        max_poll_records=4,
        fetch_max_wait_ms=40,
        max_partition_fetch_bytes=120,
    )
    made.append(consumer)
    opened = asyncio.ensure_future(caller.once(lambda: consumer.poll(1, timeout=0.2)))
    for records in await caller.once(lambda: consumer.poll(2, timeout=0)):
        caller.take(records)
    while not opened.done():
        await caller.once(lambda: asyncio.wait((opened,)))
    for records in [] if opened.cancelled() else opened.result():  # struck before it began
        caller.take(records)
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 4)
    call(lambda: fake.topics[caller.topic].loading.clear())
    call(lambda: fake.move(caller.topic, 0, 1))
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 4)
    for broker in fake.brokers:
        broker.faults.corrupt_fetches = 1
        broker.faults.throttle_ms = 100
    await caller.returns(consumer)
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 4)
    await caller.attempt(lambda: consumer.seek(zero, caller.end + 5))
    await caller.once(lambda: consumer.poll(timeout=0.1))
    await caller.returns(consumer)
    trimmed = caller.end - 2 * PER_BATCH
    for log in fake.topics[caller.topic].partitions:
        call(partial(log.trim, trimmed))
    await caller.returns(consumer)
    caller.next = {where: max(at, trimmed) for where, at in caller.next.items()}
    left = sum(caller.end - at for at in caller.next.values())
    await caller.reads(lambda: consumer.poll(timeout=0.3), left)
    await caller.stands(consumer)


async def openings(caller: Caller, client: AsyncClient, made: list[AsyncConsumer]) -> None:
    """Each call as the first of its consumer, which begins to read by it."""
    zero, one = caller.places

    def fresh() -> AsyncConsumer:
        made.append(client.consumer(caller.topic, auto_offset_reset="earliest"))
        return made[-1]

    consumer = fresh()
    await caller.attempt(lambda: consumer.assign(caller.places))
    for call in (
        AsyncConsumer.seek_to_beginning,
        AsyncConsumer.assignment,
        AsyncConsumer.pause,
        AsyncConsumer.resume,
        AsyncConsumer.end_offsets,
        AsyncConsumer.lag,
    ):
        other = fresh()
        await caller.attempt(partial(call, other))
    position, seek, iterated, arrow = fresh(), fresh(), fresh(), fresh()
    assert await caller.attempt(lambda: position.position(zero)) == 0
    await caller.attempt(lambda: seek.seek(one, 4))
    assert await caller.attempt(lambda: seek.position(one)) == 4
    assert (await caller.attempt(lambda: anext(iterated))).offset == 0
    await caller.reads_arrow(arrow)
    whole = client.reader(caller.topic)
    made.append(whole)
    assert (await caller.attempt(lambda: anext(whole.read_to_end()))).offset == 0


async def blocks(caller: Caller, client: AsyncClient, made: list[AsyncConsumer]) -> None:
    """Blocks end what they began, a client what nobody closed; a start that is an offset."""

    async def block() -> int:
        async with caller.client() as own:
            async with own.reader(caller.topic, start=3, partitions=[0]) as inner:
                records = await inner.poll(3, timeout=CALL_S)
            made.append(own.reader(caller.topic))
            await made[-1].poll(1, timeout=CALL_S)
            return records[0].offset

    assert await caller.attempt(block) == 3
    loop, fake = caller.world.thread, caller.world.fake
    late = f"{caller.topic}-late"
    loop.call(lambda: asyncio.get_running_loop().call_later(0.3, fake.create, late))
    made.append(client.consumer())
    await caller.attempt(lambda: made[-1].assign([(late, 0)]))


async def away(caller: Caller, client: AsyncClient, made: list[AsyncConsumer]) -> None:
    """Positions that nobody may choose, an idle stream, brokers that are gone for a while, one that
    falls silent."""
    proxies, call = caller.world.proxies, caller.world.thread.call
    zero, one = caller.places

    def gone() -> None:
        for proxy in proxies:
            proxy.cut(refuse=True)
            asyncio.get_running_loop().call_later(0.15, proxy.restore)

    call(gone)
    consumer = client.consumer(
        caller.topic,
        auto_offset_reset="none",
        max_poll_records=2,
        max_partition_fetch_bytes=120,
        fetch_max_wait_ms=20,
    )
    made.append(consumer)
    for _ in range(2):
        assert await caller.once(lambda: consumer.poll(timeout=0.3)) in ([], [[]])
    await caller.returns(consumer)
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 2)
    await caller.attempt(lambda: consumer.pause(zero, one))
    await asyncio.sleep(0.3)  # nothing is owed, and nobody watches for it
    await caller.attempt(lambda: consumer.resume(zero, one))
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 4)
    call(gone)
    await caller.once(consumer.end_offsets)
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 12)
    await caller.once(consumer.seek_to_end)
    caller.world.freeze()
    await caller.returns(consumer)
    await caller.reads(lambda: consumer.poll(2, timeout=0.3), 12)
    await caller.stands(consumer)


Scene = Callable[[Caller, AsyncClient, list[AsyncConsumer]], Awaitable[None]]
SCENES: dict[str, Scene] = {
    "calm": calm,
    "stormy": stormy,
    "openings": openings,
    "blocks": blocks,
    "away": away,
}
FAULTS = ("cancel waiting", "cancel resumed", "cut, rude log", "half-open")


async def program(
    caller: Caller, scene: Scene, client: AsyncClient, made: list[AsyncConsumer]
) -> None:
    """The caller's coroutine: it closes once, whatever comes of that."""
    try:
        await scene(caller, client, made)
    finally:
        for consumer in made:
            await caller.once(consumer.close)
        await caller.once(client.close)


COLLECTIONS = 5
"""A cycle that is collected may have held another one's last call back."""


async def comes_true(condition: Callable[[], bool], limit_s: float = GONE_S) -> bool:
    """Whether it does in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110  # what it looks at is on other threads
                await asyncio.sleep(0.005)
    return condition()


@cache
def _wanted() -> dict[Place, str]:
    wanted: dict[Place, str] = {}
    for module in MODULES:
        wanted |= awaits_of(module, but=NOT_READING)
    return wanted


def run_waits(fault: str) -> bool:
    """Whether the fault acts as a wait begins, not as it ends."""
    return fault != "cancel resumed"


class Run:
    """One run of a scene."""

    def __init__(self, world: World, name: str, at: Step | None, fault: str) -> None:
        self.world, self.name, self.at, self.fault = world, name, at, fault
        self.watch = Watch(FILES, at, self.act, waiting=run_waits(fault))
        self.problems: list[str] = []

    def __str__(self) -> str:
        where = "nowhere"
        if self.at is not None:
            chain = (f"{file.rpartition('/')[2]}:{line}" for file, line in self.at.site)
            where = f"{' > '.join(chain)} #{self.at.occurrence}"
        return f"{self.name}, {self.fault} at {where}"

    def act(self) -> None:
        """The fault, at its step."""
        task = asyncio.current_task()
        assert task is not None
        if self.fault == "cancel resumed":
            self.watch.cancels = True
        elif self.fault == "cancel waiting":
            asyncio.get_running_loop().call_soon(task.cancel)
        elif self.fault == "half-open":
            self.world.freeze()
        else:
            self.world.cut()

    async def run(self) -> Run:
        """The whole life of a client, judged."""
        for broker in self.world.fake.brokers:
            broker.faults.corrupt_fetches = broker.faults.throttle_ms = 0
        for proxy in self.world.proxies:
            proxy.restore()
        caller = Caller(self.world, self.watch)
        made: list[AsyncConsumer] = []
        client = caller.client()
        Rude.wanted = "rude" in self.fault
        task = self.watch.start(program(caller, SCENES[self.name], client, made))
        await asyncio.wait((task,))
        if task.cancelled() or task.exception() is not None:
            self.problems.append(f"the caller met {'' if task.cancelled() else task.exception()!r}")
        if any(consumer.buffered_bytes for consumer in made):
            self.problems.append("buffers outlive close")
        if not await comes_true(lambda: all(one.done() for one in self.watch.tasks)):
            left = [one for one in self.watch.tasks if not one.done()]
            self.problems.append(f"tasks outlive close: {left}")
        self.watch.tasks.clear()  # one that was cancelled keeps its frames, and so its stream
        del task
        if self.fault == "half-open" or self.name == "away":
            self.world.cut()  # nobody hears of the end of what is frozen
        if not await comes_true(lambda: self.world.open()[0] == 0):
            self.problems.append(f"streams outlive close: {self.world.open()}")
        for _ in range(COLLECTIONS):
            if await comes_true(lambda: self.world.open() == (0, 0), 0.2):
                break
            gc.collect()  # a connection lasts as long as its calls, which a cycle may hold
        if not await comes_true(lambda: self.world.open() == (0, 0)):
            self.problems.append(f"streams or connections outlive close: {self.world.open()}")
            self.world.cut()  # the next run has its own
        return self


class Rude(logging.Handler):
    """A user's log handler that fails at every record while it is wanted."""

    wanted = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.wanted:
            raise RuntimeError("a log handler of the user's")


class Sweep:
    """Runs on one loop, several at a time, each in a world of its own."""

    def __init__(self) -> None:
        self.worlds = [World() for _ in range(AT_ONCE)]
        self.unseen: list[str] = []
        self.problems: list[str] = []
        self.struck: set[Step] = set()
        self.planned: list[tuple[str, Step]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.unseen.append(str(context)))
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def runs(self, planned: Collection[tuple[str, Step | None]], fault: str) -> list[Run]:
        """Carry them out and judge them."""
        waiting = iter(planned)
        done: list[Run] = []

        async def work(world: World) -> None:
            for name, at in waiting:
                done.append(await Run(world, name, at, fault).run())

        await asyncio.gather(*(work(world) for world in self.worlds))
        gc.collect()  # tasks that died unseen say so now
        await asyncio.sleep(0)
        for run in done:
            self.problems += [f"{run}: {problem}" for problem in run.problems]
            if run.at is not None and run.watch.struck:
                self.struck.add(run.at)
        return done

    async def strike(self, fault: str) -> None:
        """Each site at its first occurrence, where results may be lost its second and last, too.

        One that no run came to, for answers came in another order, is tried again in every scene
        that was seen to come to it: on a busy machine the first may have done so by chance. So is
        the look for sites, since there a scene may end before one of them.
        """
        await self.runs([(name, None) for name in SCENES], "none")  # warm
        steps: dict[Step, list[str]] = {}
        await self._find(steps, fault, looks=2)
        for attempt in range(SWEEPS_MAX):
            self.planned = [
                (name, step)
                for step, names in steps.items()
                if step not in self.struck and (not attempt or step.occurrence == 1)
                for name in (names if attempt else names[:1])
            ]
            await self.runs(self.planned, fault)
            if not self.missed():
                return
            await self._find(steps, fault, looks=1)

    async def _find(self, steps: dict[Step, list[str]], fault: str, *, looks: int) -> None:
        """Add the sites that scenes without a fault come to, and the scenes of each."""
        found = await self.runs([(name, None) for name in SCENES for _ in range(looks)], "none")
        for run in found:
            for site, count in run.watch.seen.items():
                if all(file == __file__ for file, _ in site):
                    continue  # nothing of the client's waits there
                if run_waits(fault) and linecache.getline(*site[-1]).lstrip().startswith(
                    "async def"
                ):
                    continue  # a task that begins has not waited
                dear = run_waits(fault) or run.name not in ("calm", "stormy")
                times = {1} if dear else {1, min(2, count), count}
                for occurrence in times:
                    names = steps.setdefault(Step(site, occurrence), [])
                    if run.name not in names:
                        names.append(run.name)

    def missed(self) -> list[str]:
        """Awaits of the reading half that the fault did not strike."""
        struck = {place for step in self.struck for place in step.site}
        return [
            f"{file.rpartition('/')[2]}:{line} {text}"
            for (file, line), text in _wanted().items()
            if (file, line) not in struck and text not in NEVER_SUSPEND
        ]

    def stop(self) -> None:
        asyncio.get_running_loop().set_task_factory(None)
        for world in self.worlds:
            world.stop()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is seconds elsewhere takes tenths here; a collection looks at what is new only."""
    monkeypatch.setattr(progress, "SILENT_S", 0.1)
    monkeypatch.setattr(calls, "SILENT_S", 0.1)
    monkeypatch.setattr(calls, "PROBE_S", 0.15)
    quick = {"keepalive_time_ms": 150, "keepalive_timeout_ms": 150, "http2.ping_timeout_ms": 150}
    liveness = {
        **dict(endpoints._LIVENESS),  # pyright: ignore[reportPrivateUsage]
        **{f"grpc.{name}": ms for name, ms in quick.items()},
    }
    monkeypatch.setattr(endpoints, "_LIVENESS", tuple(liveness.items()))
    handler = Rude()
    logger = logging.getLogger("octavo")
    logger.addHandler(handler)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    logger.removeHandler(handler)


@pytest.mark.parametrize("fault", FAULTS)
async def test_f8_no_record_is_skipped_or_doubled_whichever_await_fails(
    impatient: None, fault: str
) -> None:
    sweep = Sweep()
    try:
        await sweep.strike(fault)
    finally:
        sweep.stop()
    assert not sweep.problems, "\n".join(sweep.problems)
    assert not sweep.unseen, sweep.unseen
    assert not sweep.missed()
    assert len({step.site for step in sweep.struck}) >= SITES_MIN


async def test_a_caller_s_iterable_or_clock_that_raises_changes_nothing() -> None:
    """What else of the user's a reading call runs: it raises before anything is done."""

    def broken() -> Iterator[TopicPartition]:
        yield TopicPartition("one", 0)
        raise KeyError("the caller's own")

    class NoZone(tzinfo):
        def utcoffset(self, _: datetime | None) -> timedelta:
            raise KeyError("the caller's own")

        def dst(self, _: datetime | None) -> None:
            return None

        def tzname(self, _: datetime | None) -> None:
            return None

    thread = FakeClusterThread()
    try:
        thread.call(lambda: _some_records(thread.cluster.create("one", 1)))
        async with AsyncClient(thread.bootstrap) as client, client.reader("one") as own:
            assert len(await own.poll(2, timeout=CALL_S)) == 2
            with pytest.raises(KeyError):
                await own.assign(broken())
            with pytest.raises(KeyError):
                await own.seek_to_time(datetime(2026, 1, 1, tzinfo=NoZone()))
            assert await own.assignment() == [TopicPartition("one", 0)]
            assert [r.offset for r in await own.poll(1, timeout=CALL_S)] == [2]
    finally:
        thread.stop()


def _some_records(topic: FakeTopic) -> None:
    values: list[bytes | None] = [b"0", b"1", b"2"]
    topic.partitions[0].append(batch_format.encode([1] * 3, [None] * 3, values), 1)
