"""How `with` blocks end while nobody acknowledges: Ctrl-C and cancelling leave soon, and say so."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo import AsyncClient, Client
from octavo.client.messaging.api import leaving
from octavo.client.messaging.producing.futures import SendFuture
from octavo.runtime.errors import DeliveryFailed, FlushTimeout
from tests.fake_broker import FakeCluster, FakeClusterThread

DAY_MS = 86_400_000
"""A delivery timeout that no test outlives: only the short limit can end the wait."""


@pytest.fixture
def silent() -> Iterator[FakeClusterThread]:
    """A cluster on a thread of its own, with a topic `one`, that answers until told to hold."""
    cluster = FakeClusterThread()
    cluster.call(lambda: cluster.cluster.create("one", 1))
    yield cluster
    cluster.call(cluster.cluster.brokers[0].faults.hold.set)
    cluster.stop()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "INTERRUPTED_CLOSE_S", 0.2)


def check_said(caplog: pytest.LogCaptureFixture, kind: str, future: SendFuture) -> None:
    assert "waiting up to 0.2 s for 3 records without acknowledgement" in caplog.text
    assert f"closing after {kind}" in caplog.text
    assert "3 records were not acknowledged within 0.2 s" in caplog.text
    assert "the producer is closed" in caplog.text  # and not: they are still being sent
    with pytest.raises(DeliveryFailed, match="may or may not be stored"):
        future.result(timeout=0)


def test_u2_ctrl_c_leaves_a_producer_soon_and_says_what_is_open(
    silent: FakeClusterThread, soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[SendFuture] = []

    def work() -> None:
        with (
            Client(silent.bootstrap) as client,  # closing it has nothing left to wait for
            client.producer(delivery_timeout_ms=DAY_MS, linger_ms=0) as producer,
        ):
            producer.send("one", b"warm")
            silent.call(silent.cluster.brokers[0].faults.hold.clear)
            sent.extend(producer.send_nowait("one", b"x") for _ in range(3))
            raise KeyboardInterrupt

    with caplog.at_level(logging.WARNING, "octavo.client"), pytest.raises(KeyboardInterrupt):
        work()
    check_said(caplog, "KeyboardInterrupt", sent[0])


def test_ctrl_c_with_everything_acknowledged_says_nothing(
    silent: FakeClusterThread, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with Client(silent.bootstrap) as client, client.producer() as producer:
            producer.send("one", b"x")
            raise KeyboardInterrupt

    with caplog.at_level(logging.WARNING, "octavo.client"), pytest.raises(KeyboardInterrupt):
        work()
    assert caplog.text == ""


def test_u2_what_can_be_acknowledged_is_waited_for_after_ctrl_c(silent: FakeClusterThread) -> None:
    sent: list[SendFuture] = []

    def work() -> None:
        with Client(silent.bootstrap) as client, client.producer(linger_ms=0) as producer:
            sent.extend(producer.send_nowait("one", b"%d" % number) for number in range(100))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert [future.result(timeout=0).offset for future in sent] == list(range(100))


FORK = """
import os, sys
from octavo import Client
client = Client(sys.argv[1])
producer = client.producer()
producer.send("one", b"parent")
with producer._engine.intake.accumulator.lock:  # as if another thread were just sending
    pid = os.fork()
    if pid == 0:
        producer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        os._exit(7)
_, status = os.waitpid(pid, 0)
client.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_leaves_without_a_lock_that_nobody_gives_back(
    silent: FakeClusterThread,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, silent.bootstrap],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.strip() == "7", done.stderr


async def test_u2_cancelling_leaves_a_producer_soon_and_says_what_is_open(
    soon: None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()
    await cluster.start()
    cluster.create("one", 1)
    sent: list[SendFuture] = []
    waiting = asyncio.Event()

    async def work() -> None:
        async with (
            AsyncClient(cluster.bootstrap) as client,
            client.producer(delivery_timeout_ms=DAY_MS, linger_ms=0) as producer,
        ):
            await producer.send("one", b"warm")
            cluster.brokers[0].faults.hold.clear()
            sent.extend(producer.send_nowait("one", b"x") for _ in range(3))
            waiting.set()
            await sent[0]

    with caplog.at_level(logging.WARNING, "octavo.client"):
        task = asyncio.create_task(work())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    check_said(caplog, "CancelledError", sent[0])
    cluster.brokers[0].faults.hold.set()
    await cluster.stop()


def test_an_ordinary_error_still_waits_until_the_delivery_timeout() -> None:
    assert leaving.close_limit_s(ValueError()) is None
    assert leaving.close_limit_s(None) is None
    assert leaving.close_limit_s(SystemExit(0)) is None
    assert leaving.close_limit_s(KeyboardInterrupt()) == leaving.INTERRUPTED_CLOSE_S


def test_u2_a_block_that_ended_well_raises_what_closing_says() -> None:
    def close(limit_s: float | None) -> None:
        raise FlushTimeout("late")

    with pytest.raises(FlushTimeout):
        leaving.leave(close, None)
    leaving.leave(close, ValueError())  # which is the one to see
