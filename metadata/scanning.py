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
    keys: Sequence[str],
    after: str,
    limit: int,
    *,
    children: Callable[[Sequence[str]], Awaitable[Sequence[Sequence[str]]]],
    read: Callable[[Sequence[str]], Awaitable[Sequence[Found]]],
) -> list[Scanned]:
    """See `MetadataStore.scan`; a child that vanishes meanwhile is left out.

    `children` gives the sorted names below each of some keys, `read` is as
    `MetadataStore.get_many`. Raises what they raise.
    """
    if not keys:
        return []
    names = list(await children(keys))
    names[0] = [name for name in names[0] if name > after]
    wanted = [(at, name) for at, some in enumerate(names) for name in some[:limit]]
    parts: list[list[Child]] = [[] for _ in keys]
    size_bytes = done = 0
    while done < len(wanted) and size_bytes < SCAN_BYTES_MAX:
        some = wanted[done : done + GET_MANY_MAX]
        values = await read([f"{keys[at]}/{name}" for at, name in some])
        for (at, name), value in zip(some, values, strict=True):
            if value is not None:
                parts[at].append(Child(name, value))
                size_bytes += 0 if isinstance(value, Exception) else len(value.value)
        done += len(some)
    reached = len(keys) - 1 if done == len(wanted) else wanted[done - 1][0]
    last = {at: name for at, name in wanted[:done]}
    return [
        Scanned(parts[at], last[at] if at in last and last[at] != names[at][-1] else "")
        for at in range(reached + 1)
    ]


async def scan_all(store: MetadataStore, key: str) -> AsyncIterator[Child]:
    """Every direct child of `key` with its value, `SCAN_LIMIT` with one request; not a snapshot.

    Raises MetadataUnavailable.
    """
    after = ""
    while True:
        part = (await store.scan([key], after, SCAN_LIMIT))[0]
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
