"""What an operator decided about this bookie: it takes no new records while it is held (7.4).

Owns the watch of the decision in the metadata store. A store that is away changes nothing: the last
decision counts until another is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.metadata.paths import Paths
from octavo.metadata.repairs import RepairCatalog
from octavo.metadata.store import MetadataStore
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataCorrupt, OctavoError, UnsupportedVersion
from octavo.runtime.ids import Member
from octavo.runtime.telemetry import get_logger

RETRY_S = 1.0
"""Pause before a decision that could not be read is read again."""

_log = get_logger("octavo.bookie.held")


class HoldWatch:
    """Follows the decision about one incarnation; `on_change` is called when it has changed."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        member: Member,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._store = store
        self._key = paths.bookie_hold(member.bookie_id)
        self._repairs = RepairCatalog(store, paths, clock=clock)
        self._member = member
        self._clock = clock
        self._on_change = on_change
        self.held = False
        """The bookie shall be read-only."""

    async def look(self) -> None:
        """Read the decision; raises MetadataUnavailable.

        One that cannot be read holds the bookie: nobody knows that it may take records.
        """
        try:
            found = await self._repairs.hold_of(self._member.bookie_id)
            held = found is not None and found.member == self._member
            kind = found.kind.value if found is not None and held else "none"
        except (MetadataCorrupt, UnsupportedVersion) as error:
            held, kind = True, f"unreadable: {error.cause}"
        if held != self.held:
            self.held = held
            _log.warning("bookie-held", kind=kind)
            self._on_change()

    async def follow(self) -> None:
        """Look at each change, until cancelled."""
        changed = asyncio.Event()
        changed.set()
        unsubscribe = self._store.watch(self._key, lambda _key: changed.set())
        try:
            while True:
                await changed.wait()
                changed.clear()
                try:
                    await self.look()
                except OctavoError as error:
                    _log.warning("hold-not-read", cause=str(error))
                    await self._clock.sleep(RETRY_S)
                    changed.set()
        finally:
            unsubscribe()
