"""A table that follows (F086): whatever fails under it, and wherever, who waits hears of it.

The reader under the table is a double that gives way at each call. Each await of the table is
struck at each of its occurrences: by an error of ours, by one that nobody expects, by a
cancellation. Afterwards no call hangs, no old value passes for the last one, and nothing runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

import pytest

from octavo import AsyncClient, TopicPartition
from octavo.client.messaging.api import table_view
from octavo.client.messaging.api.table_view import AsyncTableView
from octavo.client.messaging.records import Record
from octavo.runtime.errors import (
    DeserializationFailed,
    IllegalStateError,
    InvariantViolation,
    MetadataUnavailable,
    OctavoError,
    RequestTimedOut,
)
from tests.await_sites import Step, Watch, awaits_of, task_factory

HERE = TopicPartition("t", 0)
LIMIT_S = 30.0
FILES = frozenset({__file__, str(table_view.__file__)})
NEVER_SUSPEND = ("await leave_async(self.close, error)",)


class Log:
    """A topic of one partition, and the part of a reader that a table uses."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at = 0
        self.fails: BaseException | None = None
        """What the next poll raises."""
        self.freezes = False
        """Polls find nothing."""
        self.is_closed = False
        self.hand_over = self

    def write(self, key: object, value: object) -> None:
        self.records.append(Record("t", 0, len(self.records), key, value, 1, ()))  # type: ignore[arg-type]

    async def start(self) -> None:
        await asyncio.sleep(0)

    async def begin_to_end(self) -> dict[TopicPartition, int]:
        return await self.end_offsets()

    async def end_offsets(self) -> dict[TopicPartition, int]:
        await asyncio.sleep(0)
        return {HERE: len(self.records)}

    async def position(self, where: TopicPartition) -> int:
        assert where == HERE
        await asyncio.sleep(0)
        return self.at

    async def run_until(self, ends: Mapping[TopicPartition, int]) -> list[Record] | None:
        await asyncio.sleep(0)
        return None if self.at >= ends[HERE] else self._take(2)

    async def poll(self, timeout: float) -> list[Record]:
        await asyncio.sleep(timeout / 100)
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        return [] if self.freezes else self._take(2)

    def _take(self, count: int) -> list[Record]:
        taken = self.records[self.at : self.at + count]
        self.at += len(taken)
        return taken

    async def close(self, timeout: float | None = None) -> None:
        del timeout
        self.is_closed = True
        await asyncio.sleep(0)


def table_of(log: Log) -> AsyncTableView:
    client = AsyncClient("nowhere:1")
    view = client.table_view("t")
    view._reader = log  # type: ignore[assignment]  # pyright: ignore
    return view


async def in_time(call: Awaitable[object]) -> object:
    async with asyncio.timeout(LIMIT_S):
        return await call


@pytest.mark.parametrize("timeout", [None, LIMIT_S / 2])
async def test_who_waits_for_a_table_hears_of_a_failure_that_nobody_expected(
    timeout: float | None,
) -> None:
    """Not a timeout: the error itself, typed, with its cause."""
    log = Log()
    view = table_of(log)
    async with view:
        log.freezes = True
        log.write(b"a", b"1")
        waiting = asyncio.ensure_future(view.refresh(timeout))
        await asyncio.sleep(0.01)
        log.fails = ZeroDivisionError("never")
        with pytest.raises(InvariantViolation, match="ZeroDivisionError") as told:
            await in_time(waiting)
        assert isinstance(told.value.__cause__, ZeroDivisionError)
        with pytest.raises(InvariantViolation, match="ZeroDivisionError"):
            view.get(b"a")
    with pytest.raises(InvariantViolation):
        len(view)


async def test_a_key_that_no_dict_takes_is_told_with_its_place() -> None:
    log = Log()
    log.write([1], b"1")
    with pytest.raises(DeserializationFailed, match="offset 0"):
        await table_of(log).load()
    log.records.clear()
    log.at, log.is_closed = 0, False
    async with table_of(log) as view:
        log.write({"id": 1}, b"1")
        with pytest.raises(DeserializationFailed, match="offset 0"):
            await in_time(view.refresh(None))


@pytest.mark.parametrize("way", ["closed", "cancelled", "late"])
async def test_who_waits_hears_of_the_end(way: str) -> None:
    log = Log()
    view = table_of(log)
    async with view:
        log.freezes = True
        log.write(b"a", b"1")
        waiting = asyncio.ensure_future(view.refresh(0.05 if way == "late" else None))
        await asyncio.sleep(0.01)
        if way == "closed":
            await view.close()
            with pytest.raises(IllegalStateError, match="closed"):
                await in_time(waiting)
        elif way == "cancelled":
            (follower,) = view._tasks._tasks  # pyright: ignore[reportPrivateUsage]
            follower.cancel()
            with pytest.raises(IllegalStateError, match="not followed"):
                await in_time(waiting)
        else:
            with pytest.raises(RequestTimedOut, match="has not reached"):
                await in_time(waiting)
    assert log.is_closed


async def test_a_table_that_was_closed_while_it_loaded_does_not_follow() -> None:
    log = Log()
    for n in range(10):
        log.write(b"%d" % n, b"1")
    view = table_of(log)
    loading = asyncio.ensure_future(view.load())
    await asyncio.sleep(0)
    await view.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await in_time(loading)
    assert not view._tasks  # pyright: ignore[reportPrivateUsage]


async def life(log: Log, view: AsyncTableView, outcomes: list[object]) -> None:
    """Load, follow, refresh, close: what each call raised is noted, and it goes on."""

    async def attempt(call: Callable[[], Awaitable[object]]) -> None:
        try:
            await in_time(call())
        except (OctavoError, asyncio.CancelledError, ArithmeticError) as error:
            outcomes.append(error)
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                task.uncancel()

    await attempt(view.__aenter__)
    for n in range(4):
        log.write(b"%d" % n, b"2")
        await attempt(view.refresh)
        with suppress(OctavoError):
            assert outcomes or view.snapshot() == {
                b"%d" % key: b"2" if key <= n else b"1" for key in range(10)
            }
    await attempt(lambda: view.__aexit__(None, None, None))
    await attempt(view.close)


FAULTS: dict[str, Callable[[], BaseException | None]] = {
    "ours": lambda: MetadataUnavailable("struck"),
    "unexpected": lambda: ArithmeticError("struck"),
    "cancel": lambda: None,
}


@pytest.fixture
async def watched() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    yield
    loop.set_task_factory(None)


async def run(at: Step | None, fault: str) -> Watch:
    """One life, judged."""
    watch: Watch

    def act() -> BaseException | None:
        watch.cancels = fault == "cancel"
        return FAULTS[fault]()

    watch = Watch(FILES, at, act)
    log, outcomes = Log(), list[object]()
    for n in range(10):
        log.write(b"%d" % n, b"1")
    view = table_of(log)
    task = watch.start(life(log, view, outcomes))
    await asyncio.wait((task,))
    assert not task.cancelled(), (at, fault)
    assert task.exception() is None, (at, fault, task.exception())
    assert not any(isinstance(one, TimeoutError) for one in outcomes), (at, fault, outcomes)
    assert not any(isinstance(one, RequestTimedOut) for one in outcomes), (at, fault, outcomes)
    assert log.is_closed, (at, fault)
    assert all(one.done() for one in watch.tasks), (at, fault)
    with pytest.raises(OctavoError):  # it is closed, or says why it failed
        view.snapshot()
    return watch


@pytest.mark.parametrize("fault", FAULTS)
async def test_f086_whichever_await_fails_no_call_hangs_and_nothing_old_is_read(
    fault: str, watched: None
) -> None:
    del watched
    calm = await run(None, fault)
    struck: set[tuple[str, int]] = set()
    sites = [site for site in calm.seen if any(file != __file__ for file, _ in site)]
    for site in sites:
        for occurrence in {1, 2, calm.seen[site]}:
            watch = await run(Step(site, occurrence), fault)
            if watch.struck:
                struck.update(site)
    missed = [
        text
        for place, text in awaits_of(table_view).items()
        if place not in struck and text not in NEVER_SUSPEND
    ]
    assert missed == ["await self.close()"], "what is awaited after a failure only"
