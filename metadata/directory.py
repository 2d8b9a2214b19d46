"""A cached view of directories of registrations, refreshed by watches.

Generic over what a registration parses to; `bookies` and `brokers` build their directories on
it. The cache is a hint: it may trail the store, and keeps its last contents while the store is
away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from octavo.metadata.store import MetadataStore, Unsubscribe
from octavo.runtime.clock import Clock
from octavo.runtime.errors import IllegalStateError, MetadataCorrupt, MetadataUnavailable
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

T = TypeVar("T")
_log = get_logger("octavo.metadata.directory")

RETRY_S = 0.5
"""Pause before a refresh that failed is tried again."""


class Directory(Generic[T]):
    """Live registrations below `folders`, in folder order, then by name."""

    def __init__(
        self,
        store: MetadataStore,
        folders: Sequence[str],
        parse: Callable[[str, bytes], T],
        *,
        clock: Clock,
    ) -> None:
        self._store = store
        self._folders = tuple(folders)
        self._parse = parse
        self._clock = clock
        self._tasks = TaskOwner("directory")
        self._dirty = asyncio.Event()
        self._changed = (
            asyncio.Event()
        )  # replaced at every change, so that each waiter sees the next one
        # held across the reads of one refresh, so that an older one never overwrites a newer one
        self._refreshing = asyncio.Lock()
        self._unsubscribe: list[Unsubscribe] = []
        self._live: list[T] = []

    async def start(self) -> None:
        """Load once and follow changes; raises MetadataUnavailable when the first load fails."""
        self._unsubscribe = [self._store.watch(folder, self._on_event) for folder in self._folders]
        await self.refresh()
        self._tasks.spawn(self._follow(), name="follow")

    async def close(self) -> None:
        """Stop following; the cached contents stay readable."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        await self._tasks.close()

    def live(self) -> list[T]:
        """What was registered at the last refresh."""
        return list(self._live)

    async def wait_changed(self) -> None:
        """Return after the next change of the contents."""
        await self._changed.wait()

    async def refresh(self) -> None:
        """Read everything anew."""
        async with self._refreshing:
            found = await self._read()
            if found != self._live:
                self._live = found
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()

    async def _read(self) -> list[T]:
        found: list[T] = []
        for folder in self._folders:
            for name in await self._store.children(folder):
                try:
                    entry = await self._store.get(f"{folder}/{name}")
                    if entry is None:
                        continue
                    found.append(self._parse(folder, entry.value))
                except MetadataCorrupt as error:  # M-7: alarm, skip, go on
                    _log.error("registration-unreadable", key=f"{folder}/{name}", cause=error.cause)
        return found

    def _on_event(self, _key: str) -> None:
        self._dirty.set()

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self.refresh()
            except IllegalStateError:
                return  # the store was closed under us
            except MetadataUnavailable:
                await self._clock.sleep(RETRY_S)
                self._dirty.set()
