"""Many keys at once, of every `MetadataStore`: scans of directories, and reads of several keys."""

from __future__ import annotations

import pytest

from octavo.metadata.keys import GET_MANY_MAX, SCAN_KEYS_MAX
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
    [first] = await store.scan([f"{root}/d"], "", 3)
    assert first == Scanned(
        [
            Child("a", Versioned(b"", 0)),
            Child("aa", Versioned(b"aa", 0)),
            Child("b", Versioned(b"b", 0)),
        ],
        more_after="b",
    )
    assert await store.scan([f"{root}/d"], first.more_after, 3) == [
        Scanned([Child("c", Versioned(b"two", 1))], more_after="")
    ]
    assert await store.scan([f"{root}/absent"], "", 3) == [Scanned([], more_after="")]
    assert await store.scan([], "", 3) == []


async def test_f028_a_scanned_version_is_one_that_a_conditional_write_may_name(
    store: MetadataStore, root: str
) -> None:
    await store.create(f"{root}/d/a", b"one")
    [child] = (await store.scan([f"{root}/d"], "", 10))[0].children
    assert isinstance(child.found, Versioned)
    await store.delete(f"{root}/d/a", expected=child.found.version)
    await store.create(f"{root}/d/a", b"another life")
    with pytest.raises(VersionConflict):
        await store.put(f"{root}/d/a", b"two", expected=child.found.version)


async def test_f028_several_directories_are_scanned_with_one_request(
    store: MetadataStore, root: str
) -> None:
    for name in ("a/1", "a/2", "a/3", "c/1", "c/2", "d/1"):
        await store.create(f"{root}/{name}", name.encode())

    def part(directory: str, *names: str, more_after: str = "") -> Scanned:
        children = [Child(name, Versioned(f"{directory}/{name}".encode(), 0)) for name in names]
        return Scanned(children, more_after)

    keys = [f"{root}/{name}" for name in "abcd"]
    assert await store.scan(keys, "2", 2) == [
        part("a", "3"), part("b"), part("c", "1", "2"), part("d", "1"),
    ]  # fmt: skip
    assert await store.scan(keys, "", 1) == [
        part("a", "1", more_after="1"), part("b"), part("c", "1", more_after="1"), part("d", "1"),
    ]  # fmt: skip
    with pytest.raises(InvalidRequest, match="17 metadata keys"):
        await store.scan(keys[:1] * (SCAN_KEYS_MAX + 1), "", 1)


async def test_f028_large_values_leave_directories_for_the_next_request(
    store: MetadataStore, root: str
) -> None:
    keys = [f"{root}/{directory}" for directory in "abc"]
    for key in keys:
        for number in range(3):
            await store.create(f"{key}/{number}", bytes(SCAN_BYTES_MAX // 4))
    found: list[str] = []
    after, requests = "", 0
    while keys:
        parts = await store.scan(keys, after, 10)
        requests += 1
        for key, part in zip(keys, parts, strict=False):
            found += [f"{key[-1]}{child.name}" for child in part.children]
        after = parts[-1].more_after
        assert not any(part.more_after for part in parts[:-1])
        del keys[: len(parts) - bool(after)]
    assert found == [f"{key}{number}" for key in "abc" for number in range(3)]
    assert requests <= 3


async def test_f028_large_values_end_a_part_of_a_scan_early(
    store: MetadataStore, root: str
) -> None:
    names = [f"{number:03}" for number in range(100)]
    for name in names:
        await store.create(f"{root}/d/{name}", bytes(SCAN_BYTES_MAX // 20))
    found: list[str] = []
    after, parts = "", 0
    while True:
        [part] = await store.scan([f"{root}/d"], after, len(names))
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
