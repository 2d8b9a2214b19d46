"""Fail each await and each callback of produce, flush and close in turn: every future resolves.

The first run of a scenario counts the steps that its tasks take on the loop (each resumption of an
await is a step); then it is run once for each step, with a failure in that very step: the task
that is resumed is cancelled, or a connection is cut or falls silent at that moment. Whatever is
hit, every record comes to an outcome within its bound, no task dies unseen, and what is called
acknowledged is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pathlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest

from octavo import AsyncClient
from octavo.client.messaging import cluster
from octavo.client.messaging.futures import SendFuture
from octavo.runtime.errors import OctavoError
from tests.fake_broker import FakeCluster, FakeClusterThread

BOUND_S = 12.0
"""The delivery timeout below and the closing after it, with room for a busy machine."""
STEPS_MAX = 40
"""Steps looked at one by one; later ones repeat what the first records did."""

OURS = str(pathlib.Path(cluster.__file__).parent)
"""Only awaits of the client itself are counted and hit."""

Fault = Callable[[FakeCluster, "asyncio.Task[object]"], None]


def cancel(_: FakeCluster, task: asyncio.Task[object]) -> None:
    task.cancel()


def cut(fake: FakeCluster, _: asyncio.Task[object]) -> None:
    fake.brokers[0].faults.lose_replies += 1


def silence(fake: FakeCluster, _: asyncio.Task[object]) -> None:
    fake.brokers[0].faults.swallow_replies += 3


class Steps:
    """Counts the awaits of the client's tasks that end, and strikes at one of them."""

    def __init__(self, fake: FakeCluster, at: int, fault: Fault) -> None:
        self.fake, self.at, self.fault = fake, at, fault
        self.count = 0

    def factory(
        self, loop: asyncio.AbstractEventLoop, coro: Awaitable[object], **options: object
    ) -> asyncio.Task[object]:
        code = getattr(coro, "cr_code", None)
        if code is None or OURS not in code.co_filename:
            return asyncio.Task(coro, loop=loop, **options)  # type: ignore[arg-type]
        task: asyncio.Task[object] = asyncio.Task(
            self._stepped(coro),
            loop=loop,
            **options,  # type: ignore[arg-type]
        )
        return task

    async def _stepped(self, coro: Awaitable[object]) -> object:
        return await _Watched(coro, self)

    def step(self) -> None:
        self.count += 1
        task = asyncio.current_task()
        if self.count == self.at and task is not None:
            self.fault(self.fake, task)


class _Watched:
    """Tells `Steps` whenever the awaited coroutine is resumed."""

    def __init__(self, coro: Awaitable[object], steps: Steps) -> None:
        self._coro, self._steps = coro, steps

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._coro.__await__()
        value: Any = None
        while True:
            self._steps.step()
            try:
                waited = inner.send(value)
            except StopIteration as done:
                return done.value
            try:
                value = yield waited
            except BaseException as error:  # noqa: BLE001  handed on to the watched coroutine
                try:
                    waited = inner.throw(error)
                except StopIteration as done:
                    return done.value
                value = yield waited


TOPICS = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeClusterThread]:
    """On a thread of its own, so that the loop of the test has the client's tasks only."""
    made = FakeClusterThread()
    yield made
    made.stop()


async def scenario(broker: FakeClusterThread, at: int, fault: Fault) -> int:
    """Send, flush, send, close; returns the number of steps."""
    fake = broker.cluster
    topic = f"t{next(TOPICS)}"
    broker.call(lambda: fake.create(topic, 2))
    faults = fake.brokers[0].faults
    faults.lose_replies = faults.swallow_replies = 0
    loop = asyncio.get_running_loop()
    futures: list[SendFuture] = []
    unseen: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: unseen.append(context))
    steps = Steps(fake, at, fault)

    async def work() -> None:
        client = AsyncClient(broker.bootstrap, retry_backoff_ms=10, request_timeout_ms=300)
        producer = client.producer(delivery_timeout_ms=2_000, linger_ms=1, max_block_ms=2_000)
        try:
            futures.extend(producer.send_nowait(topic, b"early-%d" % n) for n in range(3))
            await producer.send(topic, b"waits")
            futures.extend(producer.send_nowait(topic, b"later-%d" % n) for n in range(3))
            await producer.flush(3.0)
        finally:
            await client.close(3.0)

    loop.set_task_factory(steps.factory)  # type: ignore[arg-type]
    try:
        with contextlib.suppress(OctavoError, asyncio.CancelledError):
            await asyncio.wait_for(loop.create_task(work()), BOUND_S)
    finally:
        loop.set_task_factory(None)
    assert all(future.done() for future in futures), f"open after step {at}"
    stored = broker.call(lambda: [v for p in range(2) for v in fake.log(topic, p).values()])
    acked = sum(future.exception() is None for future in futures)
    assert acked <= len(stored)
    assert len(stored) == len(set(stored))
    left = [task for task in asyncio.all_tasks() if "octavo-" in task.get_name()]
    assert not left, f"tasks outlive the client after step {at}: {left}"
    assert not unseen, f"unseen after step {at}: {unseen}"
    return steps.count


@pytest.mark.parametrize("fault", [cancel, cut, silence], ids=["cancel", "cut", "silence"])
async def test_every_future_resolves_whichever_await_fails(
    broker: FakeClusterThread, fault: Fault
) -> None:
    total = await scenario(broker, 0, fault)
    assert total > 10
    for at in range(1, min(total, STEPS_MAX) + 1):
        await scenario(broker, at, fault)
