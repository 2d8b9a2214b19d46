"""Many keys at once, of every `MetadataStore`: scans of directories, and reads of several keys."""

from __future__ import annotations

import pytest

from octavo.metadata.keys import GET_MANY_MAX
from octavo.metadata.scanning import SCAN_BYTES_MAX
from octavo.metadata.store import Child, MetadataStore, Scanned, Versioned
from octavo.runtime.errors import InvalidRequest, MetadataCorrupt, VersionConflict
from tests.contract.metadata_harness import MetadataHarness


async def test_f028_a_scan_gives_direct_children_with_their_values_part_by_part(
    store: MetadataStore, root: str
) -> None:
    for name in ("b", "a/x", "c", "aa"):
        await store.create(f"{root}/d/{name}", name.encode())
    await store.put(f"{root}/d/c", b"two", expected=0)
    first = await store.scan(f"{root}/d", "", 3)
    assert first == Scanned(
        [
            Child("a", Versioned(b"", 0)),
            Child("aa", Versioned(b"aa", 0)),
            Child("b", Versioned(b"b", 0)),
        ],
        more_after="b",
    )
    assert await store.scan(f"{root}/d", first.more_after, 3) == Scanned(
        [Child("c", Versioned(b"two", 1))], more_after=""
    )
    assert await store.scan(f"{root}/absent", "", 3) == Scanned([], more_after="")


async def test_f028_a_scanned_version_is_one_that_a_conditional_write_may_name(
    store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/d/a", b"one")
    [child] = (await store.scan(f"{root}/d", "", 10)).children
    assert isinstance(child.found, Versioned)
    await store.delete(f"{root}/d/a", expected=child.found.version)
    await store.create(f"{root}/d/a", b"another life")
    with pytest.raises(VersionConflict):
        await store.put(f"{root}/d/a", b"two", expected=child.found.version)


async def test_f028_large_values_end_a_part_of_a_scan_early(
    store: MetadataStore, root: str
) -> None:
    names = [f"{number:03}" for number in range(100)]
    for name in names:
        await store.create(f"{root}/d/{name}", bytes(SCAN_BYTES_MAX // 20))
    found: list[str] = []
    after, parts = "", 0
    while True:
        part = await store.scan(f"{root}/d", after, len(names))
        found += [child.name for child in part.children]
        parts += 1
        after = part.more_after
        if not after:
            break
    assert found == names
    assert parts > 1


async def test_f028_many_keys_are_read_as_each_alone_and_in_their_order(
    harness: MetadataHarness, store: MetadataStore, root: str
) -> None:
    for name in ("a", "b", "c"):
        await store.create(f"{root}/{name}", name.encode())
    await store.put(f"{root}/b", b"two", expected=0)
    await harness.damage(f"{root}/c", b"not sealed")
    asked = [f"{root}/{name}" for name in ("b", "absent", "c", "a", "b", "a/below")]
    b, absent, damaged, a, again, below = await store.get_many(asked)
    assert (b, absent, a, below) == (Versioned(b"two", 1), None, Versioned(b"a", 0), None)
    assert again == b == await store.get(f"{root}/b")
    assert isinstance(damaged, MetadataCorrupt)
    assert isinstance(b, Versioned)
    await store.put(f"{root}/b", b"three", expected=b.version)
    assert await store.get_many([]) == []
    with pytest.raises(InvalidRequest, match="65 metadata keys"):
        await store.get_many([f"{root}/a"] * (GET_MANY_MAX + 1))


async def test_f028_large_values_are_read_together_all_the_same(
    store: MetadataStore, root: str
) -> None:
    names = [f"{root}/d/{number:02}" for number in range(GET_MANY_MAX)]
    for name in names:
        await store.create(name, name.encode() + bytes(SCAN_BYTES_MAX // 10))
    found = await store.get_many(names)
    values = [one.value for one in found if isinstance(one, Versioned)]
    assert [value.rstrip(b"\0").decode() for value in values] == names
