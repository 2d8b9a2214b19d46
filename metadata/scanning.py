"""Children with their values: all of them, and `MetadataStore.scan` for stores without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from octavo.metadata.keys import GET_MANY_MAX
from octavo.metadata.store import Child, Found, MetadataStore, Scanned, Versioned
from octavo.runtime.errors import MetadataCorrupt

SCAN_BYTES_MAX = 1 << 20
"""A scan ends with the value that reaches so many bytes."""
SCAN_LIMIT = 1_000
"""Records that are asked for with one request."""


async def scan_by_reading(
    key: str,
    after: str,
    limit: int,
    *,
    children: Callable[[str], Awaitable[list[str]]],
    read: Callable[[Sequence[str]], Awaitable[Sequence[Found]]],
) -> Scanned:
    """See `MetadataStore.scan`; a child that vanishes meanwhile is left out.

    `read` is as `MetadataStore.get_many`. Raises what it and `children` raise.
    """
    names = [name for name in await children(key) if name > after]
    found: list[Child] = []
    size_bytes = at = 0
    while at < min(len(names), limit) and size_bytes < SCAN_BYTES_MAX:
        some = names[at : min(at + GET_MANY_MAX, limit)]
        at += len(some)
        values = await read([f"{key}/{name}" for name in some])
        for name, value in zip(some, values, strict=True):
            if value is not None:
                found.append(Child(name, value))
                size_bytes += 0 if isinstance(value, Exception) else len(value.value)
    return Scanned(found, names[at - 1] if 0 < at < len(names) else "")


async def scan_all(store: MetadataStore, key: str) -> AsyncIterator[Child]:
    """Every direct child of `key` with its value, `SCAN_LIMIT` with one request; not a snapshot.

    Raises MetadataUnavailable.
    """
    after = ""
    while True:
        part = await store.scan(key, after, SCAN_LIMIT)
        for child in part.children:
            yield child
        after = part.more_after
        if not after:
            return


async def read_each(
    get: Callable[[str], Awaitable[Versioned | None]], keys: Sequence[str]
) -> list[Found]:
    """What is at `keys`, a `get` for each of them, all at once."""

    async def read(key: str) -> Found:
        try:
            return await get(key)
        except MetadataCorrupt as error:
            return error

    return await asyncio.gather(*map(read, keys))
