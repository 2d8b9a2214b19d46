"""Errors that nobody caught: seen, and the end of a server whose state may be broken."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest
import uvloop

from octavo.runtime.clock import ManualClock
from octavo.runtime.errors import InvariantViolation, NotReady
from octavo.runtime.invariant import invariant
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.unexpected import EXIT_BROKEN, report_broken, watch_loop

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


def seen_by_watcher(new_loop: NewLoop, happen: Callable[[], None]) -> list[BaseException]:
    """What the watcher of a fresh loop calls broken after `happen()` ran on it."""
    broken: list[BaseException] = []

    async def body() -> None:
        watch_loop(broken.append)
        happen()
        await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        gc.collect()
        await asyncio.sleep(0)

    gc.freeze()  # of a whole suite: only what happens now is looked through
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(body())
    gc.unfreeze()
    return broken


def soon(callback: Callable[[], object]) -> Callable[[], None]:
    def happen() -> None:
        asyncio.get_running_loop().call_soon(callback)

    return happen


@LOOPS
def test_a_callback_of_ours_that_raised_is_fail_stop(new_loop: NewLoop) -> None:
    clock = ManualClock()  # any code of ours on the stack
    (error,) = seen_by_watcher(new_loop, soon(lambda: clock.advance("x")))  # type: ignore[arg-type]
    assert isinstance(error, TypeError)


@LOOPS
def test_a_broken_promise_is_fail_stop_wherever_it_surfaces(new_loop: NewLoop) -> None:
    async def broken() -> None:
        invariant(False, "a promise")

    owner_less: list[TaskOwner] = []

    def spawn() -> None:
        owner_less.append(TaskOwner("part"))
        owner_less[0].spawn(broken(), name="broken")

    (error,) = seen_by_watcher(new_loop, spawn)
    assert isinstance(error, InvariantViolation)
    (error,) = seen_by_watcher(new_loop, soon(lambda: invariant(False, "in a callback")))
    assert isinstance(error, InvariantViolation)


@LOOPS
def test_an_essential_task_that_failed_is_fail_stop(new_loop: NewLoop) -> None:
    async def fails() -> None:
        raise OSError("no such device")

    def spawn() -> None:
        TaskOwner("broker", report_broken).spawn(fails(), name="housekeeping")

    (error,) = seen_by_watcher(new_loop, spawn)
    assert isinstance(error, OSError)


@LOOPS
def test_what_breaks_nothing_is_only_seen(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def foreign() -> None:
        raise ValueError("a library's callback")

    async def unfetched() -> None:
        raise NotReady("nobody asked")

    def forget() -> None:
        asyncio.get_running_loop().create_task(unfetched())

    with caplog.at_level(logging.ERROR):
        assert seen_by_watcher(new_loop, soon(foreign)) == []
        assert seen_by_watcher(new_loop, forget) == []
    assert "a library's callback" in caplog.text
    assert "nobody asked" in caplog.text


def test_a_server_process_ends_with_its_code() -> None:
    program = """
import asyncio
from octavo.runtime.invariant import invariant
from octavo.runtime.process import run_server

async def main(stop):
    asyncio.get_running_loop().call_soon(invariant, False, "a promise of our own")
    await stop.wait()
    return 0

raise SystemExit(run_server(main))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == EXIT_BROKEN
    assert "a promise of our own" in done.stderr
