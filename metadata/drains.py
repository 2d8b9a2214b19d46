"""Brokers that take nothing and give everything away: drained by an operator, or about to stop.

`drained/<id>` is persistent: it outlives restarts of the broker until it is taken back.
`leaving/<id>` is ephemeral: the broker itself sets it when it is told to stop.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from octavo.metadata.directory import Directory
from octavo.metadata.paths import Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.errors import KeyExists, KeyMissing, MetadataCorrupt


class _Mark(NamedTuple):
    broker_id: str
    is_leaving: bool


class Drains:
    """The marks of all brokers, cached and followed by watch."""

    def __init__(self, store: MetadataStore, paths: Paths, *, clock: Clock) -> None:
        self._paths = paths
        self._writes = SettledWrites(store, clock)
        folders = (paths.drained_root, paths.leaving_root)
        self._directory: Directory[_Mark] = Directory(store, folders, self._parse, clock=clock)

    def _parse(self, folder: str, data: bytes) -> _Mark:
        try:
            return _Mark(data.decode(), folder == self._paths.leaving_root)
        except UnicodeDecodeError as error:
            raise MetadataCorrupt(f"mark of a drained broker: {error}") from error

    async def start(self) -> None:
        """Load and follow; raises MetadataUnavailable."""
        await self._directory.start()

    async def close(self) -> None:
        """Stop following."""
        await self._directory.close()

    async def wait_changed(self) -> None:
        """Return after the next change."""
        await self._directory.wait_changed()

    def drained(self) -> frozenset[str]:
        """Ids of brokers that were drained by an operator."""
        return frozenset(m.broker_id for m in self._directory.live() if not m.is_leaving)

    def leaving(self) -> frozenset[str]:
        """Ids of brokers that are about to stop."""
        return frozenset(m.broker_id for m in self._directory.live() if m.is_leaving)

    async def drain(self, broker_id: str) -> None:
        """Set the lasting mark; one that is there stays."""
        with contextlib.suppress(KeyExists):
            await self._writes.create(self._paths.drained(broker_id), broker_id.encode())
        await self._directory.refresh()

    async def undrain(self, broker_id: str) -> None:
        """Take the lasting mark back, if there is one."""
        await self._remove(self._paths.drained(broker_id))

    async def begin_leaving(self, broker_id: str) -> None:
        """Set the mark that goes with our session."""
        key = self._paths.leaving(broker_id)
        with contextlib.suppress(KeyExists):
            await self._writes.create(key, broker_id.encode(), ephemeral=True)
        await self._directory.refresh()

    async def came_back(self, broker_id: str) -> None:
        """An earlier process of this broker may have been killed while it left."""
        await self._remove(self._paths.leaving(broker_id))

    async def _remove(self, key: str) -> None:
        try:
            await self._writes.delete(key, None)
        except KeyMissing:
            return
        await self._directory.refresh()
