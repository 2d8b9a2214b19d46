"""A measured metadata store: counts every operation, changes none."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import inspect

import pytest

from octavo.metadata.measured import OPERATIONS, MeasuredStore
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.store import MetadataStore, Put, Scanned, SessionState, Versioned
from octavo.runtime.clock import ManualClock, SystemClock
from octavo.runtime.errors import KeyExists, MetadataUnavailable, UnknownOutcome, VersionConflict


def measured() -> tuple[MemoryStore, MeasuredStore]:
    store = MemoryCluster().connect()
    return store, MeasuredStore(store, SystemClock())


def counts(store: MeasuredStore) -> dict[str, int]:
    return {name: sum(histogram.counts) for name, histogram in store.seconds.items()}


async def test_each_operation_is_handed_on_and_counted() -> None:
    _, store = measured()
    assert await store.create("/a", b"1") == 0
    assert await store.put("/a", b"2", expected=0) == 1
    found = await store.get("/a")
    assert found is not None
    assert (found.value, found.version) == (b"2", 1)
    assert await store.children("/a") == []
    assert await store.scan(["/a"], "", 10) == [Scanned([], "")]
    assert await store.get_many(["/a", "/c"]) == [Versioned(b"2", 1), None]
    assert await store.fetch_add("/n") == 1
    await store.barrier()
    assert await store.create_and_put("/b", b"1", Put("/a", b"3", 1)) == 2
    await store.delete("/a", expected=2)
    assert await store.get("/a") is None
    assert counts(store) == {**dict.fromkeys(OPERATIONS, 1), "get": 2}
    assert set(store.failures.values()) == {0}


async def test_a_refusal_is_an_answer_and_a_lost_reply_is_none() -> None:
    inner, store = measured()
    await store.create("/a", b"1")
    with pytest.raises(KeyExists):
        await store.create("/a", b"1")
    with pytest.raises(VersionConflict):
        await store.put("/a", b"2", expected=7)
    assert set(store.failures.values()) == {0}
    inner.faults.lose_reply("put")
    with pytest.raises(UnknownOutcome):
        await store.put("/a", b"2", expected=0)
    inner.faults.lose_request("get")
    with pytest.raises(MetadataUnavailable):
        await store.get("/a")
    failed = {name: count for name, count in store.failures.items() if count}
    assert failed == {"put": 1, "get": 1}
    assert counts(store)["put"] == 2  # those that failed took their time as well


async def test_ephemeral_keys_and_watches_are_those_of_the_store() -> None:
    inner, store = measured()
    seen: list[str] = []
    unsubscribe = store.watch("/e", seen.append)
    await store.create("/e", b"", ephemeral=True)
    assert seen
    assert set(seen) == {"/e"}
    unsubscribe()
    before = len(seen)
    await store.put("/e", b"x", expected=None)
    assert len(seen) == before
    assert store.session_id == inner.session_id
    await store.close()
    assert await inner._cluster.connect().get("/e") is None


async def test_sessions_that_are_lost_are_counted_and_only_those() -> None:
    cluster = MemoryCluster()
    inner = cluster.connect()
    store = MeasuredStore(inner, SystemClock())
    told: list[SessionState] = []
    store.on_session(told.append)
    inner.suspend()
    assert store.session_state is SessionState.SUSPENDED
    inner.resume()
    assert store.session_losses == 0
    cluster.expire(inner)
    await asyncio.sleep(0)  # its new session begins
    assert store.session_losses == 1
    assert told == [SessionState.SUSPENDED, SessionState.CONNECTED, SessionState.LOST]


def test_nothing_of_the_protocol_is_left_out() -> None:
    """An operation that is added to the stores is one more here, too."""
    wanted = {name for name in vars(MetadataStore) if not name.startswith("_")}
    assert wanted <= set(dir(MeasuredStore))
    calls = {n for n in wanted if inspect.iscoroutinefunction(getattr(MetadataStore, n))}
    assert calls - {"close"} == set(OPERATIONS)


async def test_the_time_of_an_operation_is_that_of_its_clock() -> None:
    clock = ManualClock()

    class Slow(MemoryStore):
        async def barrier(self) -> None:
            clock.advance(0.3)

    store = MeasuredStore(Slow(MemoryCluster()), clock)
    await store.barrier()
    assert store.seconds["barrier"].total == pytest.approx(0.3)
