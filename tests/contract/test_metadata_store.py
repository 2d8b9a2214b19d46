"""One suite for every `MetadataStore`: memory, embedded and ZooKeeper keep the same promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from octavo.metadata.keys import MAX_VALUE_BYTES
from octavo.metadata.store import MetadataStore, SessionState, Versioned
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    KeyExists,
    KeyMissing,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)
from tests.contract.metadata_harness import (
    LEASE_S,
    MetadataHarness,
)

WAIT_S = 30.0


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until `check` holds; every turn is a round trip to the store."""
    async with asyncio.timeout(WAIT_S):
        while not await check():
            pass


class Events:
    """Collects callbacks and waits for the next one."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: object) -> None:
        self.seen.append(event)
        self._arrived.set()

    async def next(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._arrived.wait()
        self._arrived.clear()

    async def until(self, event: object) -> None:
        while event not in self.seen:
            await self.next()


# --- values and versions ---------------------------------------------------------------------


async def test_created_value_has_version_0_and_grows_by_one(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    assert await store.create(f"{root}/a", b"one") == 0
    assert await store.put(f"{root}/a", b"two", expected=0) == 1
    assert await store.put(f"{root}/a", b"three", expected=None) == 2
    await other.barrier()
    assert await other.get(f"{root}/a") == Versioned(b"three", 2)


async def test_a_write_meant_for_a_key_leaves_the_next_key_of_that_name_alone(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"first life")
    first = await store.get(f"{root}/a")
    assert first is not None
    await other.delete(f"{root}/a", expected=first.version)
    await other.create(f"{root}/a", b"second life")
    with pytest.raises(VersionConflict):
        await store.put(f"{root}/a", b"late", expected=first.version)
    with pytest.raises(VersionConflict):
        await store.delete(f"{root}/a", expected=first.version)
    await other.barrier()
    second = await other.get(f"{root}/a")
    assert second is not None
    assert second == Versioned(b"second life", 0)
    written = await other.put(f"{root}/a", b"written", expected=second.version)
    assert written == 1
    await other.delete(f"{root}/a", expected=written)  # a version from a write names its life too
    assert await other.get(f"{root}/a") is None


async def test_a_life_is_told_from_the_next_while_neighbours_come_and_go(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"0")

    async def neighbours() -> None:
        for i in range(20):
            await other.create(f"{root}/n{i}", b"", ephemeral=True)

    async def update() -> None:
        for i in range(1, 21):
            found = await store.get(f"{root}/a")
            assert found is not None
            await store.put(f"{root}/a", b"%d" % i, expected=found.version)

    await asyncio.gather(neighbours(), update())
    assert await store.get(f"{root}/a") == Versioned(b"20", 20)


async def test_a_key_with_children_is_not_deleted_whichever_life_is_named(
    store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a/b", b"x")
    found = await store.get(f"{root}/a")
    assert found is not None
    with pytest.raises(VersionConflict):
        await store.delete(f"{root}/a", expected=found.version)


async def test_absent_key_reads_none(store: MetadataStore, root: str) -> None:
    assert await store.get(f"{root}/nothing") is None
    assert await store.children(f"{root}/nothing") == []


async def test_empty_value_is_not_absence(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"")
    assert await store.get(f"{root}/a") == Versioned(b"", 0)


async def test_create_makes_parents_that_are_keys_themselves(
    store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a/b/c", b"x")
    assert await store.get(f"{root}/a/b") == Versioned(b"", 0)
    assert await store.put(f"{root}/a/b", b"now", expected=0) == 1
    with pytest.raises(KeyExists):
        await store.create(f"{root}/a", b"")


async def test_create_of_existing_key_is_refused(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"first")
    with pytest.raises(KeyExists):
        await other.create(f"{root}/a", b"second")
    assert await store.get(f"{root}/a") == Versioned(b"first", 0)


async def test_put_with_wrong_version_is_refused(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"one")
    await store.put(f"{root}/a", b"two", expected=0)
    with pytest.raises(VersionConflict):
        await store.put(f"{root}/a", b"late", expected=0)
    assert await store.get(f"{root}/a") == Versioned(b"two", 1)


async def test_put_of_absent_key_is_refused(store: MetadataStore, root: str) -> None:
    for expected in (0, None):
        with pytest.raises(KeyMissing):
            await store.put(f"{root}/a", b"x", expected=expected)


async def test_delete_is_conditional(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"one")
    await store.put(f"{root}/a", b"two", expected=0)
    with pytest.raises(VersionConflict):
        await store.delete(f"{root}/a", expected=0)
    await store.delete(f"{root}/a", expected=1)
    assert await store.get(f"{root}/a") is None
    with pytest.raises(KeyMissing):
        await store.delete(f"{root}/a", expected=None)


async def test_delete_of_key_with_children_is_refused(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a/b", b"")
    with pytest.raises(VersionConflict):
        await store.delete(f"{root}/a", expected=None)
    await store.delete(f"{root}/a/b", expected=None)
    await store.delete(f"{root}/a", expected=None)


async def test_recreated_key_starts_at_version_0(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/a", b"one")
    await store.put(f"{root}/a", b"two", expected=0)
    await store.delete(f"{root}/a", expected=1)
    assert await store.create(f"{root}/a", b"three") == 0
    assert await store.get(f"{root}/a") == Versioned(b"three", 0)


async def test_children_are_direct_and_sorted(store: MetadataStore, root: str) -> None:
    for name in ("b", "a/x", "c", "aa"):
        await store.create(f"{root}/d/{name}", b"")
    await store.create(f"{root}/d0", b"")
    assert await store.children(f"{root}/d") == ["a", "aa", "b", "c"]


async def test_large_value_round_trips_and_larger_is_refused(
    store: MetadataStore, root: str
) -> None:
    value = bytes(range(256)) * (MAX_VALUE_BYTES // 256)
    await store.create(f"{root}/a", value)
    assert await store.get(f"{root}/a") == Versioned(value, 0)
    with pytest.raises(InvalidRequest):
        await store.put(f"{root}/a", bytes(MAX_VALUE_BYTES + 1), expected=None)


async def test_deep_key(store: MetadataStore, root: str) -> None:
    key = root + "/level" * 30
    await store.create(key, b"deep")
    assert await store.get(key) == Versioned(b"deep", 0)
    assert await store.children(root) == ["level"]


@pytest.mark.parametrize("key", ["", "a", "/", "/a/", "/a//b", "/a/../b", "/a\x00"])
async def test_malformed_key_is_refused_before_it_is_sent(store: MetadataStore, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await store.get(key)


# --- races -----------------------------------------------------------------------------------


async def test_one_of_two_creators_wins(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    for i in range(10):
        results = await asyncio.gather(
            store.create(f"{root}/{i}", b"store"),
            other.create(f"{root}/{i}", b"other"),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["KeyExists", "int"]
        winner = b"store" if results[0] == 0 else b"other"
        assert await store.get(f"{root}/{i}") == Versioned(winner, 0)


async def test_m1_compare_and_set_loses_no_update(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    key = f"{root}/sum"
    await store.create(key, b"0")

    async def add(through: MetadataStore) -> None:
        for _ in range(20):
            while True:
                found = await through.get(key)
                assert found is not None
                try:
                    await through.put(key, b"%d" % (int(found.value) + 1), expected=found.version)
                except VersionConflict:
                    await through.barrier()
                else:
                    break

    await asyncio.gather(add(store), add(other))
    await store.barrier()
    assert await store.get(key) == Versioned(b"40", 40)


async def test_id1_fetch_add_is_unique_and_dense(harness: MetadataHarness, root: str) -> None:
    """With sessions that a busy machine does not lose: a lost reply may burn a number."""
    stores = (await harness.connect(), await harness.connect())
    drawn = await asyncio.gather(*(s.fetch_add(f"{root}/n") for s in stores * 40))
    assert sorted(drawn) == list(range(1, 81))


async def test_fetch_add_of_one_session_increases(store: MetadataStore, root: str) -> None:
    assert [await store.fetch_add(f"{root}/x/n") for _ in range(3)] == [1, 2, 3]


async def test_m4_read_after_barrier_sees_what_was_committed_before(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"0")
    for i in range(1, 11):
        await store.put(f"{root}/a", b"%d" % i, expected=None)
        await other.barrier()
        assert await other.get(f"{root}/a") == Versioned(b"%d" % i, i)


# --- ephemeral keys and sessions ---------------------------------------------------------------


async def test_ephemeral_key_vanishes_on_close(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    mortal = await harness.connect()
    await mortal.create(f"{root}/lasting", b"")
    await mortal.create(f"{root}/fleeting", b"", ephemeral=True)
    await mortal.close()
    await store.barrier()
    assert await store.children(root) == ["lasting"]


async def test_ephemeral_key_cannot_have_children(store: MetadataStore, root: str) -> None:
    await store.create(f"{root}/e", b"", ephemeral=True)
    with pytest.raises(IllegalStateError):
        await store.create(f"{root}/e/child", b"")


async def test_ephemeral_key_outlives_its_connection_until_the_lease_runs_out(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    harness.session_timeout_s = LEASE_S
    other = await harness.connect()
    states = Events()
    other.on_session(states)
    await other.create(f"{root}/e", b"", ephemeral=True)
    await harness.silence(other)
    await states.until(SessionState.SUSPENDED)
    assert await store.get(f"{root}/e") is not None
    await harness.end_lease(other)

    async def gone() -> bool:
        return await store.get(f"{root}/e") is None

    await eventually(gone)


async def test_o5_expired_session_is_lost_and_followed_by_a_new_one(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    states = Events()
    other.on_session(states)
    before = other.session_id
    await other.create(f"{root}/e", b"", ephemeral=True)
    await harness.expire(other)
    await states.until(SessionState.CONNECTED)
    lost = states.seen.index(SessionState.LOST)
    assert SessionState.CONNECTED in states.seen[lost:]
    assert other.session_id != before
    assert other.session_state is SessionState.CONNECTED
    await store.barrier()
    assert await store.get(f"{root}/e") is None
    assert await other.create(f"{root}/e", b"again", ephemeral=True) == 0


async def test_short_interruption_keeps_the_session(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    states = Events()
    store.on_session(states)
    before = store.session_id
    await store.create(f"{root}/e", b"", ephemeral=True)
    await harness.cut(store)
    await states.until(SessionState.CONNECTED)
    assert states.seen == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert store.session_id == before
    assert await store.get(f"{root}/e") == Versioned(b"", 0)


async def test_closed_store_refuses(harness: MetadataHarness, root: str) -> None:
    store = await harness.connect()
    await store.close()
    await store.close()
    with pytest.raises(IllegalStateError):
        await store.get(root)


# --- watches -----------------------------------------------------------------------------------


async def test_watch_tells_creation_change_deletion_and_creation_again(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    key = f"{root}/w"
    events = Events()
    store.watch(key, events)
    assert await store.get(key) is None

    async def reads(value: bytes | None) -> None:
        """The watch fires until a read shows the change: nothing is missed for good."""
        while True:
            await events.next()
            found = await store.get(key)
            if (found.value if found else None) == value:
                return

    await other.create(key, b"1")
    await reads(b"1")
    await other.put(key, b"2", expected=None)
    await reads(b"2")
    await other.delete(key, expected=None)
    await reads(None)
    await other.create(key, b"3")
    await reads(b"3")
    assert set(events.seen) == {key}


async def test_watch_tells_changes_of_the_child_set(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    folder = f"{root}/folder"
    events = Events()
    store.watch(folder, events)
    assert await store.children(folder) == []

    async def shows(names: list[str]) -> None:
        while True:
            await events.next()
            if await store.children(folder) == names:
                return

    await other.create(f"{folder}/a", b"")
    await shows(["a"])
    await other.create(f"{folder}/b", b"", ephemeral=True)
    await shows(["a", "b"])
    await other.close()
    await shows(["a"])


async def test_watch_never_misses_the_last_of_many_changes(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    key = f"{root}/w"
    await other.create(key, b"0")
    events = Events()
    store.watch(key, events)
    await store.get(key)

    async def change() -> None:
        for i in range(1, 51):
            await other.put(key, b"%d" % i, expected=None)

    async def follow() -> None:
        while True:
            found = await store.get(key)
            if found is not None and found.value == b"50":
                return
            await events.next()

    await asyncio.gather(change(), follow())


async def test_unsubscribed_watch_is_silent(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    silent, heard = Events(), Events()
    unsubscribe = store.watch(f"{root}/w", silent)
    store.watch(f"{root}/w", heard)
    unsubscribe()
    unsubscribe()
    await store.get(f"{root}/w")
    await other.create(f"{root}/w", b"")
    await heard.next()
    assert silent.seen == []


async def test_watch_fires_after_a_reconnect_and_goes_on(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    events, states = Events(), Events()
    store.watch(f"{root}/w", events)
    store.on_session(states)
    await store.get(f"{root}/w")
    await harness.cut(store)
    await states.until(SessionState.CONNECTED)
    await events.next()
    await other.create(f"{root}/w", b"new")
    while await store.get(f"{root}/w") is None:
        await events.next()


async def test_watch_survives_the_loss_of_the_session(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    events, states = Events(), Events()
    store.watch(f"{root}/w", events)
    store.on_session(states)
    await store.get(f"{root}/w")
    await harness.expire(store)
    await states.until(SessionState.LOST)
    await states.until(SessionState.CONNECTED)
    await other.create(f"{root}/w", b"new")
    while await store.get(f"{root}/w") is None:
        await events.next()


# --- lost replies (M-3) --------------------------------------------------------------------------


async def test_m3_create_with_lost_reply_is_unknown_and_did_happen(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await other.create(root, b"")

    async def executed() -> bool:
        return await other.get(f"{root}/a") is not None

    with pytest.raises(UnknownOutcome):
        await harness.lose_reply(store, lambda: store.create(f"{root}/a", b"x"), executed)
    await store.barrier()
    assert await store.get(f"{root}/a") == Versioned(b"x", 0)


async def test_m3_put_with_lost_reply_is_never_repeated(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await other.create(f"{root}/a", b"")

    async def executed() -> bool:
        return await other.get(f"{root}/a") == Versioned(b"x", 1)

    with pytest.raises(UnknownOutcome):
        await harness.lose_reply(
            store, lambda: store.put(f"{root}/a", b"x", expected=None), executed
        )
    await store.barrier()
    assert await store.get(f"{root}/a") == Versioned(b"x", 1)


async def test_m3_delete_with_lost_reply_is_unknown(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    await other.create(f"{root}/a", b"")

    async def executed() -> bool:
        return await other.get(f"{root}/a") is None

    with pytest.raises(UnknownOutcome):
        await harness.lose_reply(store, lambda: store.delete(f"{root}/a", expected=0), executed)


async def test_id3_fetch_add_with_lost_reply_burns_one_number(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    assert await other.fetch_add(f"{root}/n") == 1

    async def executed() -> bool:
        return await other.get(f"{root}/n") == Versioned(b"", 2)

    with pytest.raises(UnknownOutcome):
        await harness.lose_reply(store, lambda: store.fetch_add(f"{root}/n"), executed)
    assert await store.fetch_add(f"{root}/n") == 3


async def test_read_with_lost_reply_is_unavailable_not_unknown(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    async def executed() -> bool:
        return True

    with pytest.raises(MetadataUnavailable):
        await harness.lose_reply(store, lambda: store.get(f"{root}/a"), executed)
