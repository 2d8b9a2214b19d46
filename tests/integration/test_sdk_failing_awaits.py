"""Fail each await of produce, flush and close in turn: every future resolves, every bound holds.

A first run of each scene finds its steps (`await_sites`: each resumption of an await, of the
client's tasks and of the caller's own calls). Then each site is struck, at its first, second and
last occurrence, in a run of its own: the task is cancelled there, what it awaits raises, the
connections are cut, or brokers fall silent at that very step. Whatever is hit, every record comes
to an outcome that is true of what is stored, flush and close keep their limits, no task is left or
dies unseen. That every await of the sending half was struck is itself asserted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo import AsyncClient, AsyncProducer
from octavo.client.messaging.api import binding, leaving, producer
from octavo.client.messaging.api import client as async_client
from octavo.client.messaging.api.options import Plain, ProducerOptions
from octavo.client.messaging.cluster import (
    calls,
    cluster,
    owners,
    paced_calls,
    progress,
    throttles,
    topics,
    transport,
)
from octavo.client.messaging.producing import (
    delivery,
    early_sends,
    engine,
    futures,
    produce_link,
    searches,
    writers,
)
from octavo.client.messaging.producing.futures import SendFuture
from octavo.proto.batch import MAX_BATCH_BYTES
from octavo.runtime.errors import ConfigError, OctavoError
from tests.await_sites import Place, Step, Watch, awaits_of, task_factory
from tests.fake_broker import FakeCluster, FakeClusterThread
from tests.tcp_proxy import TcpProxy

DELIVERY_S = 30.0
"""Far beyond the limits below: what ends in time ends by them."""
LIMIT_S = 0.5
"""Of each send, flush and close of a run whose brokers fall silent; others get PATIENT_S."""
PATIENT_S = 5.0
SLACK_S = 8.0
"""For a busy machine."""
AT_ONCE = 16
"""Runs under way together."""
MODULES = (
    async_client, binding, calls, cluster, owners, paced_calls, topics, transport,
    delivery, early_sends, engine, futures, leaving, produce_link,
    producer, progress, searches, throttles, writers,
)  # fmt: skip
NOT_SENDING = ("send_many", "send_arrow", "_finish", "connect", "of")
"""Bulk sends and what only readers await."""
NEVER_SUSPEND = (
    "await channel.close()",  # its calls are cancelled by then
    "await self.transport.close()",
    "await attempt.trailing_metadata()",  # they came with the answer
)
ATTEMPTS_MAX = 15
"""How often a site is tried that no run came to."""
SITES_MIN = 75
"""Chains of awaits that are struck; 87 when written."""
FILES = frozenset({__file__, *(str(module.__file__) for module in MODULES)})


class Planted(Exception):
    """What a struck await raises."""


@dataclass
class Scene:
    """One way to use a producer."""

    name: str
    body: Callable[[Run, AsyncClient, AsyncProducer[Plain]], Awaitable[None]]
    options: ProducerOptions = field(default_factory=ProducerOptions)
    setup: Callable[[Run, FakeCluster, list[TcpProxy]], None] | None = None
    """On the brokers' loop, before the client starts."""
    brokers: int = 1
    acknowledged: bool = True
    """False: acks=0, a success says nothing."""


class Run:
    """One run of a scene against brokers of its own, behind links that can fail."""

    def __init__(
        self, thread: FakeClusterThread, scene: Scene, at: Step | None, fault: str
    ) -> None:
        self.thread = thread
        self.scene = scene
        self.at = at
        self.fault = fault
        self.watch = Watch(FILES, at, self.act)
        self.limit_s = LIMIT_S if fault in ("frozen", "half-open") else PATIENT_S
        self.told: dict[bytes, SendFuture] = {}
        self.fates: dict[bytes, BaseException | tuple[int, int]] = {}
        """What awaited sends raised, or where they say their record is."""
        self.problems: list[str] = []
        self.log: dict[bytes | None, list[tuple[int, int]]] = {}

    def __str__(self) -> str:
        where = "nowhere"
        if self.at is not None:
            chain = (f"{file.rpartition('/')[2]}:{line}" for file, line in self.at.site)
            where = f"{' > '.join(chain)} #{self.at.occurrence}"
        return f"{self.scene.name}, {self.fault} at {where}"

    def act(self) -> BaseException | None:
        """The fault, at its step."""
        if self.fault == "cancel":
            self.watch.cancels = True
            return None
        if self.fault == "error":
            return Planted()
        self.thread.call(self._break_links)
        return None

    def _break_links(self) -> None:
        for proxy in self.proxies:
            if self.fault == "cut":
                proxy.cut()
            else:
                proxy.fall_silent(frozen=self.fault == "frozen")

    # --- the scene ------------------------------------------------------------------------------

    async def run(self) -> Run:
        """The whole life of client and brokers."""
        await asyncio.wrap_future(self.thread.submit(self._start()))
        task = self.watch.start(self._work())
        _, open_ = await asyncio.wait((task,), timeout=3 * self.limit_s + SLACK_S)
        if open_:
            self.problems.append(f"hangs: {task.get_stack()}")
            task.cancel()
            await asyncio.wait((task,), timeout=SLACK_S)
        self._look_at(task)
        self.problems += [f"{future} is open" for future in self.told.values() if not future.done()]
        left = [one for one in self.watch.tasks if not one.done()]
        if left:  # cancelled, and about to end
            left = list((await asyncio.wait(left, timeout=SLACK_S))[1])
        self.problems += [f"outlives the client: {one}" for one in left]
        await asyncio.wrap_future(self.thread.submit(self._stop()))
        return self

    def _look_at(self, task: asyncio.Task[object]) -> None:
        error = None if not task.done() or task.cancelled() else task.exception()
        expected = error is None or isinstance(error, OctavoError | Planted)
        if not expected or isinstance(error, ConfigError):
            self.problems.append(f"the caller met {error!r}")

    async def _start(self) -> None:
        self.fake = FakeCluster(self.scene.brokers)
        await self.fake.start()
        self.proxies: list[TcpProxy] = []
        for broker in self.fake.brokers:
            host, _, port = broker.address.rpartition(":")
            self.proxies.append(await TcpProxy(host, int(port)).start())
            broker.address = self.proxies[-1].address
        if self.scene.setup is None:
            self.fake.create("t", 2)
        else:
            self.scene.setup(self, self.fake, self.proxies)

    async def _stop(self) -> None:
        topic = self.fake.topics.get("t")
        for number, log in enumerate(topic.partitions if topic is not None else ()):
            for offset, value in enumerate(log.values()):
                self.log.setdefault(value, []).append((number, offset))
        for broker in self.fake.brokers:
            broker.faults.hold.set()
        for proxy in self.proxies:
            await proxy.close()
        await self.fake.stop()

    async def _work(self) -> None:
        client = AsyncClient(
            ",".join(proxy.address for proxy in self.proxies),
            retry_backoff_ms=10,
            retry_backoff_max_ms=50,
            request_timeout_ms=300,
            metadata_max_age_ms=100,
        )
        options: ProducerOptions = {"delivery_timeout_ms": int(DELIVERY_S * 1000), "linger_ms": 1}
        options.update(self.scene.options)
        producer = client.producer(**options)
        try:
            await self.scene.body(self, client, producer)
        finally:
            await self.bounded("close", client.close(self.limit_s))

    async def bounded(self, what: str, call: Awaitable[None]) -> None:
        """Await a call with a limit; only OctavoError, or what was planted, may come out."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await call
        except OctavoError:
            pass
        finally:
            if loop.time() - began_s > self.limit_s + SLACK_S:
                self.problems.append(f"{what} took {loop.time() - began_s:.1f} s")

    def send_nowait(self, producer: AsyncProducer[Plain], value: bytes, **options: Any) -> None:
        """Send, and keep the future to be judged."""
        with contextlib.suppress(OctavoError):
            self.told[value] = producer.send_nowait("t", value, **options)

    async def send(self, producer: AsyncProducer[Plain], value: bytes) -> None:
        """Send and wait, within the limit."""
        try:
            async with asyncio.timeout(self.limit_s):
                meta = await producer.send("t", value)
            self.fates[value] = (meta.partition, meta.offset)
        except (OctavoError, TimeoutError) as error:
            self.fates[value] = error

    async def together(self, calls: Collection[Coroutine[Any, Any, None]]) -> None:
        """Await all, each in a task of its own."""
        for error in await asyncio.gather(*calls, return_exceptions=True):
            cancelled = isinstance(error, asyncio.CancelledError) and self.fault == "cancel"
            if error is not None and not cancelled and not isinstance(error, OctavoError | Planted):
                self.problems.append(f"a caller met {error!r}")

    def hold_for(self, seconds: float) -> None:
        """The brokers take no batch for so long."""
        for broker in self.fake.brokers:
            self.thread.call(broker.faults.hold.clear)
            self.later(seconds, broker.faults.hold.set)

    def throttle_for(self, seconds: float) -> None:
        """The brokers' next answers ask for a pause of so long (X24)."""
        for broker in self.fake.brokers:
            broker.faults.throttle_ms = round(seconds * 1000)

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call `function` on the brokers' loop."""
        self.thread.call(lambda: asyncio.get_running_loop().call_later(seconds, function))

    # --- the judgement --------------------------------------------------------------------------

    def failed(self) -> str:
        """Which records failed, and why; empty: none."""
        fates: dict[bytes, BaseException | None]
        fates = {value: future.exception(0) for value, future in self.told.items()}
        fates |= {value: fate for value, fate in self.fates.items() if not isinstance(fate, tuple)}
        errors = [f"{value[:20]!r}: {error}" for value, error in fates.items() if error is not None]
        return "; ".join((self.scene.name, *errors)) if errors else ""

    def judge(self) -> list[str]:
        """What is wrong with this run."""
        fates = dict(self.fates)
        for value, future in self.told.items():
            if future.done():
                error = future.exception(0)
                if error is not None:
                    fates[value] = error
                    continue
                meta = future.result(0)
                fates[value] = (meta.partition, meta.offset)
        for value, fate in fates.items():
            self._judge(value, fate, self.log.get(value, []))
        return [f"{self}: {problem}" for problem in self.problems]

    def _judge(
        self, value: bytes, fate: BaseException | tuple[int, int], places: list[tuple[int, int]]
    ) -> None:
        if not self.scene.acknowledged:
            return
        if len(places) > 1:
            self.problems.append(f"{value!r} is stored twice: {places}")
        if isinstance(fate, tuple):
            if places != [fate] and not (fate[1] == -1 and len(places) == 1):
                self.problems.append(f"{value!r} is said to be at {fate}, is at {places}")
        elif isinstance(fate, OctavoError):
            unknown = "may or may not be stored" in str(fate)
            if places and not unknown:
                self.problems.append(f"{value!r} is stored, its sender was told {fate}")


# --- scenes --------------------------------------------------------------------------------------


async def plain(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """Before the topic is known and after; flush, blocks, two closes at a time."""
    async with producer:
        for number in range(3):
            run.send_nowait(producer, b"early-%d" % number)
        await run.send(producer, b"waits")
        for number in range(3):
            run.send_nowait(producer, b"later-%d" % number, key=b"%d" % number)
        await run.bounded("flush", producer.flush(run.limit_s))
        run.send_nowait(producer, b"unflushed")
        await run.together([producer.close(run.limit_s) for _ in range(2)])


async def early_flush(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """Flush while records still wait for their topic, then leave by the ends of the blocks."""
    async with client, producer:
        for number in range(3):
            run.send_nowait(producer, b"early-%d" % number)
        await run.bounded("flush", producer.flush(run.limit_s))
        for number in range(3):
            run.send_nowait(producer, b"later-%d" % number)


async def full(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """More than the producer's memory holds, while the broker holds its answers back."""
    await run.send(producer, b"first")
    run.hold_for(0.03)
    await run.together([run.send(producer, b"%d" % number * 900_000) for number in range(5)])
    await run.bounded("flush", producer.flush(run.limit_s))


async def no_replies(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """acks=0, but for one: closing waits until the broker read what was sent."""
    run.send_nowait(producer, b"early", acks="all")
    await run.send(producer, b"waits")
    run.hold_for(0.2)
    for number in range(12):
        run.send_nowait(producer, b"%d" % (number % 10) * 900_000, partition=number % 2)
    await run.bounded("close", producer.close(0.02))


async def slow(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """A broker that asks for a pause, is idle, then takes its time: it is asked on the side whether
    it lives."""
    run.throttle_for(0.1)
    for broker in run.fake.brokers:
        broker.faults.call_throttle_ms = 40  # of the topic: a producer id is asked for at once
    await run.send(producer, b"first")
    await run.send(producer, b"second")
    await asyncio.sleep(0.15)
    run.hold_for(0.25)
    await run.send(producer, b"slow")


async def away(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """A broker that is gone for a while, first while nothing is sent, then with records open."""
    await run.send(producer, b"first")
    run.thread.call(run.proxies[0].cut)
    await asyncio.sleep(0.03)
    await run.send(producer, b"second")
    run.thread.call(lambda: run.proxies[0].cut(refuse=True))
    run.later(0.4, run.proxies[0].restore)
    run.send_nowait(producer, b"third")
    await run.bounded("flush", producer.flush(run.limit_s))


def nobody_at_first(run: Run, fake: FakeCluster, proxies: list[TcpProxy]) -> None:
    """No broker at first, then silent ones, no topic, owners that move and are not known."""
    for proxy in proxies:
        proxy.cut(refuse=True)
    loop = asyncio.get_running_loop()
    for broker in fake.brokers:
        broker.faults.release_metadata.clear()
        loop.call_later(0.4, broker.faults.release_metadata.set)
    fake.lookups_load = True

    def create() -> None:
        topic = fake.create("t", 3)
        topic.loading.update((0, 2))
        fake.brokers[0].faults.not_leader = 1

    fake.create("other", 1)
    for proxy in proxies:
        loop.call_later(0.05, proxy.restore)
    loop.call_later(0.3, create)


def one_moves(run: Run, fake: FakeCluster, proxies: list[TcpProxy]) -> None:
    """Known topic, but what one is told of its owners is out of date."""
    fake.lookups_load = True
    fake.create("t", 3).loading.update((0, 1, 2))
    fake.brokers[0].faults.no_identity = fake.brokers[1].faults.no_identity = 1
    fake.brokers[0].faults.not_leader = fake.brokers[1].faults.not_leader = 2


async def searching(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """To two partitions, which have to be found; of a third only its owner."""
    for number in range(4):
        run.send_nowait(producer, b"early-%d" % number, partition=number % 2)
    await run.send(producer, b"waits")
    run.send_nowait(producer, b"later-0", partition=0)
    await run.bounded("flush", producer.flush(run.limit_s))
    await run.send(producer, b"last")


def taken_at_first(run: Run, fake: FakeCluster, proxies: list[TcpProxy]) -> None:
    """A topic that has a writer which is not heard of again; leases are short, one owner has to be
    found."""
    fake.writer_lease_s = 0.15
    fake.lookups_load = True
    topic = fake.create("t", 2, **{"exclusive.writer": "true"})
    topic.loading.add(0)
    now_s, other = fake.clock.monotonic(), bytes(16)
    for model in topic.partitions:
        seat = fake.brokers[0].seat_of(model, "t")
        seat.begin_claim(other, fence=False, now_s=now_s)
        seat.listed(1, other)
        seat.claimed(other, now_s)


async def alone(run: Run, client: AsyncClient, producer: AsyncProducer[Plain]) -> None:
    """Waits to be the only writer, stays it, and claims what is added."""
    run.send_nowait(producer, b"early")
    await run.send(producer, b"first")
    await asyncio.sleep(0.1)  # it says that it lives
    run.thread.call(lambda: run.fake.grow(run.fake.topics["t"], 3))
    await asyncio.sleep(0.25)  # metadata get old
    await run.send(producer, b"last")


SCENES = [
    Scene("plain", plain),
    Scene("early flush", early_flush, {"delivery_timeout_ms": 3_000, "max_block_ms": 3_000}),
    Scene(
        "full",
        full,
        {"buffer_memory": MAX_BATCH_BYTES, "max_request_size": 1_000_000},
    ),
    Scene("no replies", no_replies, {"acks": 0, "compression_type": "none"}, acknowledged=False),
    Scene("slow", slow),
    Scene("away", away),
    Scene("nobody at first", searching, setup=nobody_at_first, brokers=2),
    Scene("one moves", searching, setup=one_moves, brokers=2),
    Scene("alone", alone, {"access_mode": "wait_for_exclusive"}, setup=taken_at_first),
]
FAULTS = ("cancel", "error", "cut", "half-open", "frozen")


@pytest.fixture(scope="module")
def thread() -> Iterator[FakeClusterThread]:
    """Brokers and links, on a thread of their own."""
    made = FakeClusterThread()
    yield made
    made.stop()


class Sweep:
    """Runs on one loop, several at a time."""

    def __init__(self, thread: FakeClusterThread) -> None:
        self.thread = thread
        self.unseen: list[str] = []
        self.problems: list[str] = []
        self.struck: dict[str, set[Step]] = {fault: set() for fault in FAULTS}
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.unseen.append(str(context)))
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    async def runs(self, planned: Collection[tuple[Scene, Step | None, str]]) -> list[Run]:
        """Carry them out and judge them."""
        waiting = iter(planned)
        done: list[Run] = []

        async def work() -> None:
            for scene, at, fault in waiting:
                done.append(await Run(self.thread, scene, at, fault).run())

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        gc.collect()  # tasks that died unseen say so now
        await asyncio.sleep(0)
        for run in done:
            self.problems += run.judge()
            if run.at is not None and run.watch.struck:
                self.struck[run.fault].add(run.at)
        return done

    def plan(self, found: Collection[Run], fault: str) -> dict[Step, list[Scene]]:
        """Each site at its first occurrence, and where a strike costs little, its second and last;
        with the scenes that came to it, the surest first."""
        few = fault in ("half-open", "frozen")
        times: dict[Step, Counter[str]] = {}
        for run in found:
            for site, count in run.watch.seen.items():
                for occurrence in {1} if few else {1, min(2, count), count}:
                    times.setdefault(Step(site, occurrence), Counter())[run.scene.name] += 1
        scenes = {scene.name: scene for scene in SCENES}
        return {
            step: [scenes[name] for name, _ in counter.most_common()]
            for step, counter in times.items()
        }

    async def strike(self, found: Collection[Run], fault: str) -> None:
        """Strike each step; one that a run did not come to, for answers came in another order, is
        tried again, in another scene if there is one. Sites that no run came to are looked for."""
        found = list(found)
        for attempt in range(ATTEMPTS_MAX):
            planned = self.plan(found, fault)
            await self.runs(
                [
                    (scenes[attempt % len(scenes)], step, fault)
                    for step, scenes in planned.items()
                    if step not in self.struck[fault] and not (attempt and step.occurrence > 1)
                ]
            )
            if not self.missed(fault):
                return
            found += await self.runs([(scene, None, "none") for scene in SCENES])

    def missed(self, fault: str) -> list[str]:
        """Awaits of the sending half that the fault did not strike."""
        struck = {place for step in self.struck[fault] for place in step.site}
        wanted: dict[Place, str] = {}
        for module in MODULES:
            wanted |= awaits_of(module, but=NOT_SENDING)
        return [
            f"{file.rpartition('/')[2]}:{line} {text}"
            for (file, line), text in wanted.items()
            if (file, line) not in struck and text not in NEVER_SUSPEND
        ]


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_future_resolves_whichever_await_fails(
    thread: FakeClusterThread, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(progress, "SILENT_S", 0.1)
    monkeypatch.setattr(calls, "SILENT_S", 0.1)
    monkeypatch.setattr(calls, "PROBE_S", 0.15)
    monkeypatch.setattr(delivery, "ACKS_0_CLOSE_S", LIMIT_S)
    sweep = Sweep(thread)
    gc.freeze()
    try:
        # Twice, for what a run awaits depends a little on the order in which answers come.
        found = await sweep.runs([(scene, None, "none") for scene in SCENES * 2])
        assert not sweep.problems
        assert not [run.failed() for run in found if run.scene.acknowledged and run.failed()]
        await sweep.strike(found, fault)
    finally:
        gc.unfreeze()
    assert not sweep.problems, "\n".join(sweep.problems)
    assert not sweep.unseen, sweep.unseen
    assert not sweep.missed(fault)
    assert len({step.site for step in sweep.struck[fault]}) >= SITES_MIN
