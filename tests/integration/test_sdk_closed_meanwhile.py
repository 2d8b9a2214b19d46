"""close() while other threads or tasks are in a call of the client: each ends and says why."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from octavo import AsyncClient, Client
from octavo.runtime.errors import OctavoError
from tests.bookie_rig import until
from tests.fake_broker import FakeCluster, FakeClusterThread

JOIN_S = 60.0
LONG_S = 120.0
"""Of each call's own limit: far beyond the test."""

SYNC: dict[str, Callable[[Client], object]] = {
    "connect": lambda client: client.connect(LONG_S),
    "poll": lambda client: client.consumer("t").poll(timeout=LONG_S),
    "position": lambda client: client.consumer("t").end_offsets(),
    "create_topic": lambda client: client.admin.create_topic("new", timeout=LONG_S),
    "describe_topic": lambda client: client.admin.describe_topic("t", timeout=LONG_S),
    "list_topics": lambda client: client.admin.list_topics(timeout=LONG_S),
    "list_offsets": lambda client: client.admin.list_offsets("t", timeout=LONG_S),
    "cluster_health": lambda client: client.admin.cluster_health(timeout=LONG_S),
    "send_nowait": lambda client: client.producer().send_nowait("t", b"x"),
    "send": lambda client: client.producer().send("t", b"x"),
}
ASYNC: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "connect": lambda client: client.connect(LONG_S),
    "poll": lambda client: client.consumer("t").poll(timeout=LONG_S),
    "position": lambda client: client.consumer("t").end_offsets(),
    "create_topic": lambda client: client.admin.create_topic("new", timeout=LONG_S),
    "describe_topic": lambda client: client.admin.describe_topic("t", timeout=LONG_S),
    "list_topics": lambda client: client.admin.list_topics(timeout=LONG_S),
    "list_offsets": lambda client: client.admin.list_offsets("t", timeout=LONG_S),
    "cluster_health": lambda client: client.admin.cluster_health(timeout=LONG_S),
    "send": lambda client: client.producer().send("t", b"x"),
}


@pytest.fixture(scope="module")
def silent() -> Iterator[FakeClusterThread]:
    """Takes requests and answers none."""
    made = FakeClusterThread()
    faults = made.cluster.brokers[0].faults
    made.call(lambda: made.cluster.create("t", 1))
    made.call(faults.release_metadata.clear)
    made.call(faults.release_changes.clear)
    yield made
    made.call(faults.release_metadata.set)
    made.call(faults.release_changes.set)
    made.stop()


@pytest.mark.parametrize("after_s", [0.05, 0.6])
@pytest.mark.parametrize("name", SYNC)
def test_b11_close_ends_the_calls_of_other_threads(
    silent: FakeClusterThread, name: str, after_s: float
) -> None:
    client = Client(silent.bootstrap)
    ends: list[BaseException | None] = []

    def run() -> None:
        try:
            SYNC[name](client)
            ends.append(None)
        except BaseException as error:  # noqa: BLE001  what it is is looked at below
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(after_s)
    client.close(1)
    thread.join(JOIN_S)
    assert not thread.is_alive()
    assert len(ends) == 1
    # a poll may end with what it has: nothing
    assert isinstance(ends[0], OctavoError) or (name == "poll" and ends[0] is None)


@pytest.mark.parametrize("after_s", [0.05, 0.6])
@pytest.mark.parametrize("name", ASYNC)
async def test_b11_close_ends_the_calls_of_other_tasks(
    silent: FakeClusterThread, name: str, after_s: float
) -> None:
    client = AsyncClient(silent.bootstrap)

    async def run() -> object:
        return await ASYNC[name](client)

    task = asyncio.create_task(run())
    await asyncio.wait((task,), timeout=after_s)
    await client.close(1)
    await asyncio.wait((task,), timeout=JOIN_S)
    assert task.done()
    assert not task.cancelled()
    error = task.exception()
    assert isinstance(error, OctavoError) or (name == "poll" and error is None)


async def test_b11_close_ends_a_refresh_of_metadata_that_is_under_way() -> None:
    """Its task is cancelled by closing, and must not take that for one more failure to retry."""
    cluster = FakeCluster()
    await cluster.start()
    cluster.create("t", 1)
    broker = cluster.brokers[0]
    client = AsyncClient(cluster.bootstrap, metadata_max_age_ms=100)
    await client.producer().send("t", b"x")
    asked = broker.metadata_requests
    broker.faults.release_metadata.clear()
    async with asyncio.timeout(JOIN_S):
        await until(lambda: broker.metadata_requests > asked)
        await client.close(1)
    broker.faults.release_metadata.set()
    await cluster.stop()
