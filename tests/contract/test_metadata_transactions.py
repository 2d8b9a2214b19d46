"""Create one key and replace another, or neither: the same promise of every `MetadataStore`."""

from __future__ import annotations

import asyncio

import pytest

from octavo.metadata.keys import MAX_VALUE_BYTES
from octavo.metadata.store import MetadataStore, Put, Versioned
from octavo.runtime.errors import (
    InvalidRequest,
    KeyExists,
    KeyMissing,
    UnknownOutcome,
    VersionConflict,
)
from tests.contract.metadata_harness import MetadataHarness


async def _listed(store: MetadataStore, root: str) -> Versioned:
    """The key that is to be replaced."""
    await store.create(f"{root}/list", b"old")
    found = await store.get(f"{root}/list")
    assert found is not None
    return found


async def test_ml9_both_happen(store: MetadataStore, other: MetadataStore, root: str) -> None:
    """Parents are made, and the version that is told is that of the other key, with its life."""
    found = await _listed(store, root)
    put = Put(f"{root}/list", b"new", found.version)
    version = await store.create_and_put(f"{root}/ledgers/0/1", b"record", put)
    assert version == 1
    await other.barrier()
    assert await other.get(f"{root}/ledgers/0/1") == Versioned(b"record", 0)
    assert await other.get(f"{root}/list") == Versioned(b"new", 1)
    await other.delete(f"{root}/list", expected=1)
    await other.create(f"{root}/list", b"another life")
    await other.put(f"{root}/list", b"at the same version", expected=0)
    with pytest.raises(VersionConflict):
        await store.put(f"{root}/list", b"late", expected=version)


async def test_ml9_a_list_that_moved_on_lets_nobody_create(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    found = await _listed(store, root)
    await other.put(f"{root}/list", b"theirs", expected=found.version)
    with pytest.raises(VersionConflict):
        await store.create_and_put(
            f"{root}/ledger", b"record", Put(f"{root}/list", b"late", found.version)
        )
    assert await store.get(f"{root}/ledger") is None
    await other.delete(f"{root}/list", expected=1)
    with pytest.raises(KeyMissing):
        await store.create_and_put(
            f"{root}/ledger", b"record", Put(f"{root}/list", b"late", found.version)
        )
    await other.create(f"{root}/list", b"another life")
    with pytest.raises(VersionConflict):  # of the version that was meant, and another key
        await store.create_and_put(
            f"{root}/ledger", b"record", Put(f"{root}/list", b"late", found.version)
        )
    assert await store.get(f"{root}/ledger") is None
    assert await store.get(f"{root}/list") == Versioned(b"another life", 0)


async def test_ml9_a_key_that_exists_leaves_the_other_as_it_is(
    store: MetadataStore, root: str
) -> None:
    found = await _listed(store, root)
    await store.create(f"{root}/ledger", b"first")
    with pytest.raises(KeyExists):
        await store.create_and_put(
            f"{root}/ledger", b"second", Put(f"{root}/list", b"new", found.version)
        )
    assert await store.get(f"{root}/ledger") == Versioned(b"first", 0)
    assert await store.get(f"{root}/list") == Versioned(b"old", 0)


async def test_ml9_what_no_store_takes_is_refused_in_either_half(
    store: MetadataStore, root: str
) -> None:
    found = await _listed(store, root)
    large = bytes(MAX_VALUE_BYTES + 1)
    for key, value, put in (
        (f"{root}/ledger", large, Put(f"{root}/list", b"new", found.version)),
        (f"{root}/ledger", b"record", Put(f"{root}/list", large, found.version)),
        ("ledger", b"record", Put(f"{root}/list", b"new", found.version)),
        (f"{root}/ledger", b"record", Put("list", b"new", found.version)),
    ):
        with pytest.raises(InvalidRequest):
            await store.create_and_put(key, value, put)
    assert await store.get(f"{root}/ledger") is None
    assert await store.get(f"{root}/list") == Versioned(b"old", 0)


async def test_ml9_of_two_who_list_at_once_one_creates(
    store: MetadataStore, other: MetadataStore, root: str
) -> None:
    """While neighbours of both keys are created all the time."""
    await _listed(store, root)

    async def neighbours() -> None:
        for number in range(20):
            await other.create(f"{root}/n{number}", b"")

    async def roll(through: MetadataStore, name: str, ledger: int) -> int:
        await through.barrier()
        found = await through.get(f"{root}/list")
        assert found is not None
        try:
            put = Put(f"{root}/list", name.encode(), found.version)
            await through.create_and_put(f"{root}/{name}{ledger}", b"", put)
        except VersionConflict:
            return 0
        return 1

    async def rolls(through: MetadataStore, name: str) -> int:
        return sum([await roll(through, name, ledger) for ledger in range(10)])

    won = await asyncio.gather(rolls(store, "a"), rolls(other, "b"), neighbours())
    await store.barrier()
    ledgers = [one for one in await store.children(root) if one[0] in "ab"]
    found = await store.get(f"{root}/list")
    assert found is not None
    assert len(ledgers) == found.version == sum(won[:2]) > 0


async def test_m3_a_lost_reply_is_settled_by_what_was_put(
    harness: MetadataHarness, store: MetadataStore, other: MetadataStore, root: str
) -> None:
    """Both halves happened, and reading one of them tells so."""
    await store.create(f"{root}/list", b"old")

    async def executed() -> bool:
        await other.barrier()
        return await other.get(f"{root}/ledger") is not None

    with pytest.raises(UnknownOutcome):
        await harness.lose_reply(
            store,
            lambda: store.create_and_put(
                f"{root}/ledger", b"record", Put(f"{root}/list", b"new", 0)
            ),
            executed,
        )
    await other.barrier()
    assert await other.get(f"{root}/list") == Versioned(b"new", 1)
