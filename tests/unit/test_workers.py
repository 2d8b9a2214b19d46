"""Threads of servers: one name, one end, and somebody who hears of their failure."""

from __future__ import annotations

import asyncio
import threading

import pytest

from octavo.runtime.doorbell import Doorbell
from octavo.runtime.errors import IllegalStateError
from octavo.runtime.workers import DetachedPool, Worker, WorkerPool
from tests.bookie_rig import DEADLINE_S, until


def never(error: BaseException) -> None:
    raise AssertionError(f"reported: {error!r}")


async def test_a_worker_tells_its_loop_what_it_did_and_ends_when_told() -> None:
    told: list[str] = []
    bell = Doorbell()

    def body() -> None:
        worker.tell(told.append, threading.current_thread().name)
        bell.wait(DEADLINE_S)

    worker = Worker("sealer", body, never)
    worker.start(asyncio.get_running_loop())
    await until(lambda: told == ["sealer"])
    bell.ring()
    await asyncio.to_thread(worker.join)


@pytest.mark.parametrize("error", [OSError(5, "disk"), KeyError("unforeseen")])
async def test_a_failure_is_told_on_the_loop_once(error: Exception) -> None:
    heard: list[tuple[BaseException, int]] = []

    def body() -> None:
        raise error

    worker = Worker("fails", body, lambda e: heard.append((e, threading.get_ident())))
    worker.start(asyncio.get_running_loop())
    await until(lambda: bool(heard))
    await asyncio.to_thread(worker.join)
    assert heard == [(error, threading.get_ident())]


def test_without_a_loop_a_failure_is_told_on_the_workers_thread() -> None:
    heard: list[str] = []

    def body() -> None:
        raise OSError(5, "disk")

    worker = Worker("alone", body, lambda _: heard.append(threading.current_thread().name))
    worker.start()
    worker.join()
    assert heard == ["alone"]


def test_what_a_loop_would_be_told_after_its_end_is_dropped() -> None:
    begun, closed = threading.Event(), threading.Event()

    def body() -> None:
        begun.set()
        closed.wait(DEADLINE_S)
        worker.tell(never)

    worker = Worker("late", body, never)

    async def start() -> None:
        worker.start(asyncio.get_running_loop())
        await asyncio.to_thread(begun.wait, DEADLINE_S)

    asyncio.run(start())
    closed.set()
    worker.join()


def test_a_worker_is_started_once_and_joined_any_time() -> None:
    worker = Worker("once", lambda: None, never)
    worker.join()
    worker.start()
    worker.join()
    worker.join()
    with pytest.raises(IllegalStateError, match="started before"):
        worker.start()
    with pytest.raises(IllegalStateError, match="without a loop"):
        worker.tell(print)


async def test_a_pool_runs_calls_and_hands_their_errors_on() -> None:
    pool = WorkerPool("pool", 2, 4)

    def fails(text: str) -> int:
        raise KeyError(text)

    assert await pool.run(lambda: threading.current_thread().name.startswith("pool"))
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError, match="missing"):
        await pool.run(fails, "missing")
    await pool.close()
    await pool.close()
    with pytest.raises(RuntimeError):
        await pool.run(print)


async def test_one_thread_runs_calls_one_after_the_other_in_order() -> None:
    pool = WorkerPool("single", 1, 100)
    order: list[int] = []
    await asyncio.gather(*(pool.run(order.append, number) for number in range(50)))
    assert order == list(range(50))
    await pool.close()


async def test_callers_beyond_the_bound_wait_outside() -> None:
    pool = WorkerPool("bounded", 2, 3)
    gate = threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        gate.wait(DEADLINE_S)

    tasks = [asyncio.ensure_future(pool.run(work, number)) for number in range(20)]
    await until(lambda: len(begun) == 2)
    waiting = pool._executor._work_queue.qsize()  # pyright: ignore
    assert waiting == 3, "the others are not even queued"
    tasks[10].cancel()
    gate.set()
    await asyncio.wait(tasks)
    assert sorted(begun) == [number for number in range(20) if number != 10]
    await pool.close()


async def test_a_closing_pool_waits_for_the_call_under_way() -> None:
    pool = WorkerPool("closing", 1, 1)
    gate, ended = threading.Event(), threading.Event()

    def work() -> None:
        gate.wait(DEADLINE_S)
        ended.set()

    running = asyncio.ensure_future(pool.run(work))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(pool.close())
    gate.set()
    await asyncio.wait_for(closing, DEADLINE_S)
    assert ended.is_set()
    await running


async def test_a_detached_pool_hands_back_what_calls_give_and_raise() -> None:
    pool = DetachedPool("detached", 2, 3)

    def fails() -> int:
        raise OSError(5, "disk")

    found = await asyncio.gather(*(pool.run(pow, n, 2) for n in range(20)))
    assert found == [n * n for n in range(20)]
    with pytest.raises(OSError, match="disk"):
        await pool.run(fails)
    assert await pool.run(lambda: threading.current_thread().daemon)
    assert await pool.close(DEADLINE_S)
    with pytest.raises(IllegalStateError):
        await pool.run(fails)


async def test_calls_that_hang_do_not_pile_up_and_hold_nobody_up() -> None:
    pool = DetachedPool("hangs", 1, 2)
    gate = threading.Event()
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        gate.wait(DEADLINE_S)

    tasks = [asyncio.ensure_future(pool.run(work, number)) for number in range(9)]
    await until(lambda: begun == [0])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert pool._calls.qsize() == 2, "what was taken back keeps its place until it has ended"  # pyright: ignore
    assert not await pool.close(0.01)
    gate.set()
    assert await pool.close(DEADLINE_S)
    assert begun == [0]
