"""`MetadataStore.scan` out of `children` and `get`, for stores that have nothing better."""

from __future__ import annotations

import asyncio
from typing import Protocol

from octavo.metadata.store import Child, Scanned, Versioned
from octavo.runtime.errors import MetadataCorrupt

SCAN_BYTES_MAX = 1 << 20
"""A scan ends with the value that reaches so many bytes."""
READS_AT_ONCE = 64


class _Readable(Protocol):
    """What a scan needs of a store."""

    async def get(self, key: str) -> Versioned | None: ...

    async def children(self, key: str) -> list[str]: ...


async def scan_by_reading(store: _Readable, key: str, after: str, limit: int) -> Scanned:
    """See `MetadataStore.scan`; some values are read at a time, a child that vanishes is left out.

    Raises MetadataUnavailable.
    """
    names = [name for name in await store.children(key) if name > after]
    found: list[Child] = []
    size_bytes = at = 0
    while at < min(len(names), limit) and size_bytes < SCAN_BYTES_MAX:
        some = names[at : min(at + READS_AT_ONCE, limit)]
        at += len(some)
        for child in await asyncio.gather(*(_read(store, key, name) for name in some)):
            if child is not None:
                found.append(child)
                size_bytes += 0 if isinstance(child.found, Exception) else len(child.found.value)
    return Scanned(found, names[at - 1] if 0 < at < len(names) else "")


async def _read(store: _Readable, key: str, name: str) -> Child | None:
    try:
        entry = await store.get(f"{key}/{name}")
    except MetadataCorrupt as error:
        return Child(name, error)
    return None if entry is None else Child(name, entry)
