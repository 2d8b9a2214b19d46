"""The client's progress clock: slow is waited for, silent is given up."""

from __future__ import annotations

import asyncio

from octavo.client.messaging.cluster.progress import (
    SILENT_BROKERS_MAX,
    SILENT_S,
    ProgressClock,
    SilentBrokers,
    until_silent,
)
from octavo.runtime.clock import ManualClock
from octavo.runtime.errors import BrokerUnavailable


class _Peer:
    def __init__(self, *, lives: bool) -> None:
        self.lives = lives
        self.probes = 0

    async def responds(self, _address: str) -> bool:
        self.probes += 1
        return self.lives


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_only_what_is_owed_can_be_late() -> None:
    clock = ProgressClock()
    assert clock.silent_in(100.0) is None
    clock.asked(100.0)
    clock.asked(101.0)
    assert clock.silent_in(101.0) == SILENT_S - 1.0  # of the oldest request
    clock.heard(101.0, 1)
    assert clock.silent_in(101.0) == SILENT_S
    clock.heard(101.5, 1)
    assert clock.silent_in(200.0) is None


def test_a_long_poll_may_take_as_long_as_it_asked_for() -> None:
    clock = ProgressClock()
    clock.asked(10.0, long_poll_s=30.0)
    assert clock.silent_in(10.0) == SILENT_S + 30.0
    clock.heard(20.0, 1)
    clock.asked(20.0)
    assert clock.silent_in(20.0) == SILENT_S


async def test_a_slow_broker_is_waited_for_and_a_silent_one_given_up() -> None:
    time, progress, peer = ManualClock(), ProgressClock(), _Peer(lives=True)
    task = asyncio.ensure_future(until_silent("b:1", progress, time, peer.responds))
    await settle()
    progress.asked(time.monotonic())
    for asked in range(1, 4):
        await settle()
        time.advance(SILENT_S)
        await settle()
        assert (peer.probes, task.done()) == (asked, False)
    peer.lives = False
    time.advance(SILENT_S)
    await settle()
    assert isinstance(task.result(), BrokerUnavailable)
    assert "nothing was heard" in task.result().cause


async def test_an_answer_during_the_question_counts() -> None:
    time, progress = ManualClock(), ProgressClock()

    async def responds(_address: str) -> bool:
        progress.heard(time.monotonic(), 1)
        progress.asked(time.monotonic())
        return False

    task = asyncio.ensure_future(until_silent("b:1", progress, time, responds))
    progress.asked(time.monotonic())
    await settle()
    time.advance(SILENT_S)
    await settle()
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


def test_silent_brokers_are_asked_last_and_remembered_in_bounds() -> None:
    silent = SilentBrokers()
    silent.fell_silent("a")
    assert silent.last(["a", "b", "c"]) == ["b", "c", "a"]
    silent.answered("a")
    assert silent.last(["a", "b"]) == ["a", "b"]
    for number in range(SILENT_BROKERS_MAX + 5):
        silent.fell_silent(str(number))
    assert "4" not in silent
    assert "5" in silent
