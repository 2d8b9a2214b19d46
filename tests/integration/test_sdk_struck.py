"""An exception out of a signal handler strikes the client at every place in turn: nothing is lost.

Every future resolves, what is called acknowledged is stored where it says, nothing is stored twice,
and the producer's memory comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType

import pytest

from octavo import AsyncClient, Client, Producer
from octavo.client.messaging.api import leaving, producer
from octavo.client.messaging.api.options import Plain
from octavo.client.messaging.producing import (
    accumulator,
    batches,
    delivery,
    early,
    early_sends,
    engine,
    failures,
    futures,
    intake,
    produce_link,
    routing,
    searches,
    sections,
    sender_core,
)
from octavo.client.messaging.producing.accumulator import Accumulator, Slot
from octavo.client.messaging.producing.batches import Row
from octavo.client.messaging.producing.futures import SendFuture
from octavo.client.messaging.producing.intake import Intake
from octavo.client.messaging.producing.terms import Terms
from octavo.runtime import tasks
from octavo.runtime.errors import BufferFull, OctavoError
from tests.fake_broker import FakeClusterThread
from tests.strikes import Strikes

LIMIT_S = 10.0
PLACING = [
    str(module.__file__)
    for module in (accumulator, batches, early, failures, futures, intake, routing, sections)
]

DELIVERING = [
    *(
        str(item.__file__)
        for item in (
            accumulator,
            batches,
            delivery,
            early,
            early_sends,
            engine,
            failures,
            futures,
            intake,
            leaving,
            produce_link,
            producer,
            routing,
            searches,
            sender_core,
            tasks,
        )
    ),
]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C of this test; a real one still ends the run."""


def judge(fake: FakeClusterThread, topic: str, told: dict[bytes, SendFuture], where: str) -> None:
    """What each future says is true of what is stored."""

    def read() -> dict[bytes | None, list[tuple[int, int]]]:
        out: dict[bytes | None, list[tuple[int, int]]] = {}
        for number in range(2):
            for offset, value in enumerate(fake.cluster.log(topic, number).values()):
                out.setdefault(value, []).append((number, offset))
        return out

    stored = fake.call(read)
    for value, future in told.items():
        assert future.done(), f"{future} is open after {where}"
        error, places = future.exception(0), stored.get(value, [])
        assert len(places) <= 1, f"{value!r} is stored {len(places)} times after {where}"
        if error is None:
            meta = future.result(0)
            assert places == [(meta.partition, meta.offset)], where
        else:
            assert "may or may not be stored" in str(error) or not places, f"{error} after {where}"


class Rig:
    """A sync producer whose loop can be held, so that the caller's thread places what waits."""

    def __init__(self, fake: FakeClusterThread) -> None:
        self.fake = fake
        fake.call(lambda: fake.cluster.create("t", 2))
        self.client = Client(fake.bootstrap, retry_backoff_ms=10)
        self.producer: Producer[Plain] = self.client.producer(linger_ms=0)
        self.producer.send("t", b"first")
        # Of sends that find the memory full, not of this first one:
        self.producer._block_s = 0.001  # pyright: ignore[reportPrivateUsage]
        made = self.producer._engine  # pyright: ignore[reportPrivateUsage]
        assert made is not None
        self.intake: Intake = made.intake
        self.told: dict[bytes, SendFuture] = {}
        self.full = False
        """Whether the caller's thread finds the producer's memory full."""

    def hold_loop(self) -> Callable[[], None]:
        held, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go_on.wait(LIMIT_S)

        self.intake.loop.call_soon_threadsafe(hold)
        assert held.wait(LIMIT_S)
        return go_on.set

    def set_aside(self, value: bytes) -> None:
        """As a signal handler that interrupts a section of this thread."""
        with self.intake.accumulator.lock:
            self.told[value] = self.producer.send_nowait("t", value)

    def strike(self, at: int) -> str:
        """Two records are set aside, then a send is struck while it places them."""
        go_on, taken = self.hold_loop(), 0
        try:
            self.set_aside(b"aside-%d-1" % at)
            self.set_aside(b"aside-%d-2" % at)
            with self.intake.accumulator.lock:
                taken = self.intake.accumulator.free_bytes if self.full else 0
                self.intake.accumulator.free_bytes -= taken
            ends = contextlib.suppress(Interrupted, BufferFull)
            with ends, Strikes(PLACING, Interrupted(), at=at) as strikes:
                self.told[b"own-%d" % at] = self.producer.send_nowait("t", b"own-%d" % at)
        finally:
            with self.intake.accumulator.lock:
                self.intake.accumulator.free_bytes += taken
            go_on()
        return strikes.struck

    def sweep(self) -> list[str]:
        """Strike at each place; returns where."""
        struck: list[str] = []
        while where := self.strike(len(struck) + 1):
            struck.append(where)
            for value in (b"aside-%d-1", b"aside-%d-2"):
                future = self.told[value % len(struck)]
                assert future.completion.wait(LIMIT_S), f"{future} is open after {where}"
        self.producer.flush(LIMIT_S)
        judge(self.fake, "t", self.told, "any place")
        assert self.intake.accumulator.free_bytes == self.intake.accumulator.buffer_memory
        assert not self.intake.waiting_records()
        return struck


@pytest.fixture
def rig() -> Iterator[Rig]:
    fake = FakeClusterThread()
    made = Rig(fake)
    yield made
    made.client.close(LIMIT_S)
    fake.stop()


def test_i4_ctrl_c_at_every_place_of_placing_a_record_that_was_set_aside(rig: Rig) -> None:
    struck = rig.sweep()
    names = {where.split()[-1] for where in struck}
    assert names >= {"place_aside", "place", "append", "choose", "when_done", "wake"}
    assert len(struck) >= 50
    failed = [value for value, future in rig.told.items() if future.exception(0) is not None]
    assert failed  # struck while it went in: nobody can know
    # At most one of the three is struck; what was not going in is not given up.
    assert all(value.startswith(b"aside-") for value in failed)
    assert len(failed) <= len(struck) / 2


def test_i4_ctrl_c_at_every_place_while_there_is_no_memory_for_it(rig: Rig) -> None:
    rig.full = True
    struck = rig.sweep()
    names = {where.split()[-1] for where in struck}
    assert names >= {"place_aside", "place", "wait_space", "buffer_full"}
    waited = [value for value in rig.told if value.startswith(b"aside-")]
    assert [rig.told[value].exception(0) for value in waited] == [None] * len(waited)


def test_i4_a_second_strike_while_the_first_one_is_handled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Accumulator.append

    def struck_behind(
        self: Accumulator, slot: Slot, row: Row, terms: Terms | None = None
    ) -> SendFuture:
        future = append(self, slot, row, terms)
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and bytes(row[2] or b"").endswith(b"-1"):
            raise Interrupted
        return future

    monkeypatch.setattr(Accumulator, "append", struck_behind)
    assert len(rig.sweep()) >= 25
    monkeypatch.undo()


async def program(bootstrap: str, topic: str, told: dict[bytes, SendFuture]) -> None:
    """Sends before the topic is known and after, waits, flushes and closes."""
    async with (
        AsyncClient(bootstrap, retry_backoff_ms=10, request_timeout_ms=500) as client,
        client.producer(linger_ms=0, delivery_timeout_ms=3_000) as producer,
    ):
        for number in range(3):
            value = b"early-%d" % number
            told[value] = producer.send_nowait(topic, value)
        await producer.send(topic, b"waits")
        for number in range(3):
            value = b"later-%d" % number
            told[value] = producer.send_nowait(topic, value)
        await producer.flush(LIMIT_S)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:an octavo client was dropped:ResourceWarning")
def test_i4_ctrl_c_at_every_place_of_the_loop_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop runs on the main thread, so the handler strikes sending, delivering and closing.

    It ends the loop; `asyncio.run` then cancels what is left, and by then all have an outcome.
    """
    monkeypatch.setattr(delivery, "TICK_S", 0.001)  # answers come quicker than a tick is due
    fake = FakeClusterThread()
    known: set[tuple[CodeType, int]] = set()
    struck: list[str] = []
    told: dict[bytes, SendFuture] = {}
    for run in itertools.count():
        topic = f"t{run}"
        fake.call(partial(fake.cluster.create, topic, 2))
        told.clear()
        strikes = Strikes(DELIVERING, Interrupted(), places=known)
        with contextlib.suppress(Interrupted, OctavoError), strikes:
            asyncio.run(program(fake.bootstrap, topic, told))
        judge(fake, topic, told, strikes.struck)
        if not strikes.struck:
            break
        struck.append(strikes.struck)
    fake.stop()
    assert told
    assert all(future.exception(0) is None for future in told.values())
    names = {where.split()[-1] for where in struck}
    assert names >= {"_drain", "_tick", "_act", "_tell", "_on_acks", "_run_callbacks", "_placed"}
    assert names >= {
        "run",
        "_session",
        "_read",
        "_write",
        "flush",
        "close",
        "release",
        "_release",
        "_end",
    }
    assert len(struck) >= 400
