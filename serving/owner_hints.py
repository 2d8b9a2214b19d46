"""Who owns each bundle as last seen, followed by watch; what lost its owner is told.

A hint may be old: the broker that is named verifies (O-2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

REFRESH_PAUSE_S = 0.1
"""Watch events within this time are answered by one refresh (F143)."""

_log = get_logger("octavo.serving.owner_hints")


class OwnerHints:
    """The owners of bundles as this broker knows them.

    Args:
        changed: called after each refresh; look at `orphans` then.
    """

    def __init__(self, registry: BundleRegistry, clock: Clock, changed: Callable[[], None]) -> None:
        self.orphans: set[int] = set()
        """Bundles that had an owner and have none now, as far as is known."""
        self._registry = registry
        self._clock = clock
        self._changed = changed
        self._owners: dict[int, BundleOwner] = {}
        self._dirty = asyncio.Event()
        self._tasks = TaskOwner("owner hints")
        self._unsubscribe: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Load once and follow; raises MetadataUnavailable."""
        self._unsubscribe = self._registry.watch(self._dirty.set)
        self._owners = await self._registry.owners()
        self._tasks.spawn(self._follow(), name="follow")

    async def close(self) -> None:
        """Follow no more."""
        self._unsubscribe()
        await self._tasks.close()

    def get(self, bundle: int) -> BundleOwner | None:
        """Its owner; None when nobody is known."""
        return self._owners.get(bundle)

    def ids(self) -> dict[int, str]:
        """The ids of the owners of all bundles that have one."""
        return {bundle: owner.broker_id for bundle, owner in self._owners.items()}

    def seen(self, bundle: int, owner: BundleOwner) -> None:
        """The store named its owner just now."""
        self._owners[bundle] = owner
        self.orphans.discard(bundle)

    def gone(self, bundle: int, owner: BundleOwner) -> None:
        """That owner gave it up; the next one may have been seen meanwhile."""
        if self._owners.get(bundle) == owner:
            del self._owners[bundle]

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                owners = await self._registry.owners()
            except OctavoError as error:
                _log.info("owner-hints-not-refreshed", cause=error.cause)
                self._dirty.set()
            else:
                before, self._owners = self._owners, owners
                self.orphans |= before.keys() - owners.keys()
                self.orphans -= owners.keys()
                self._changed()
            await self._clock.sleep(REFRESH_PAUSE_S)
