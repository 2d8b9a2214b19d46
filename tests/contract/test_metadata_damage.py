"""M-7 for every `MetadataStore`: damage is refused by name, whoever did it."""

from __future__ import annotations

import pytest

from octavo.metadata.store import MetadataStore, Versioned
from octavo.runtime.errors import KeyExists, MetadataCorrupt
from tests.contract.metadata_harness import MetadataHarness


async def test_m7_damaged_record_is_refused_by_name_and_its_neighbours_are_served(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"value of a")
    await store.create(f"{root}/b", b"value of b")
    stored = await harness.stored(f"{root}/a")
    for damaged in (
        b"",
        b"garbage",
        stored[:-1],
        stored + b"x",
        bytes([stored[0] ^ 1]) + stored[1:],
    ):
        await harness.damage(f"{root}/a", damaged)
        await store.barrier()
        with pytest.raises(MetadataCorrupt, match=f"{root}/a"):
            await store.get(f"{root}/a")
        assert await store.children(root) == ["a", "b"]  # it exists
        assert (await store.get(f"{root}/b") or Versioned(b"", 0)).value == b"value of b"
    with pytest.raises(KeyExists):
        await store.create(f"{root}/a", b"in its place")


async def test_m7_each_flipped_bit_of_a_stored_record_is_refused(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/a", b"v")
    stored = await harness.stored(f"{root}/a")
    for bit in range(0, 8 * len(stored), 5):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        await harness.damage(f"{root}/a", bytes(changed))
        await store.barrier()
        with pytest.raises(MetadataCorrupt):
            await store.get(f"{root}/a")
