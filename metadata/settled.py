"""Conditional writes whose lost replies are settled by reading back (M-1, M-3, M-4).

The stores never repeat a write. `SettledWrites` is the one place that does: after an unknown
outcome it reads the key behind a barrier, on the same session, and only then decides. A write of
the same session that is still under way cannot arrive after that read: every store keeps the
order of one session's calls.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.metadata.store import MetadataStore, Versioned
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    KeyExists,
    KeyMissing,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)

ATTEMPTS_MAX = 8
"""How often a write or its settling read is tried before the outcome is reported as unknown."""

_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 2.0


class SettledWrites:
    """create, put and delete that end with a definite answer unless the store stays away."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def read(self, key: str) -> Versioned | None:
        """Linearizable read: absence is proven (M-4). Retries; raises MetadataUnavailable."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.barrier()
                return await self._store.get(key)
            except MetadataUnavailable:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
                await self._pause(attempt)
        raise MetadataUnavailable(f"no answer about {key}")

    async def children(self, key: str) -> list[str]:
        """Names of the children as of now; raises MetadataUnavailable."""
        await self._store.barrier()
        return await self._store.children(key)

    async def create(
        self,
        key: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        is_ours: Callable[[bytes], bool] | None = None,
    ) -> int:
        """Create; a record that is already there and `is_ours` (default: equal bytes) is success
        (M-3).

        `value` must carry something unique to the caller. Returns the version found or made. Raises
        KeyExists when it is somebody else's, UnknownOutcome when it could not be settled.
        """
        lost = False
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._store.create(key, value, ephemeral=ephemeral)
            except UnknownOutcome:
                lost = True
                found = await self._settle(key)
                if found is not None:
                    return self._own_or_raise(key, value, found, is_ours)
            except KeyExists:
                if not lost:
                    raise
                found = await self._settle(key)
                if found is not None:
                    return self._own_or_raise(key, value, found, is_ours)
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the creation of {key}")

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Compare and set; a lost reply is settled by version+1 and equal bytes (M-3).

        Raises VersionConflict, KeyMissing, or UnknownOutcome when it could not be settled.
        """
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._store.put(key, value, expected=expected)
            except UnknownOutcome:
                found = await self._settle(key)
                if found is None:
                    raise KeyMissing(f"{key} was deleted", key=key) from None
                if found.version == expected + 1 and found.value == value:
                    return found.version
                if found.version != expected:
                    raise VersionConflict(
                        f"{key} has version {found.version}, not {expected}", key=key
                    ) from None
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the update of {key}")

    async def delete(self, key: str, expected: int | None) -> None:
        """Delete; after a lost reply a key that is gone counts as deleted by us.

        Raises VersionConflict, KeyMissing, or UnknownOutcome when it could not be settled.
        """
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._store.delete(key, expected=expected)
                return
            except UnknownOutcome:
                found = await self._settle(key)
                if found is None:
                    return
                if expected is not None and found.version != expected:
                    raise VersionConflict(
                        f"{key} has version {found.version}, not {expected}", key=key
                    ) from None
            await self._pause(attempt)
        raise UnknownOutcome(f"could not settle the deletion of {key}")

    async def _settle(self, key: str) -> Versioned | None:
        try:
            return await self.read(key)
        except MetadataUnavailable as unavailable:
            raise UnknownOutcome(f"could not read back {key}: {unavailable.cause}") from unavailable

    def _own_or_raise(
        self,
        key: str,
        value: bytes,
        found: Versioned,
        is_ours: Callable[[bytes], bool] | None,
    ) -> int:
        if found.value == value if is_ours is None else is_ours(found.value):
            return found.version
        raise KeyExists(f"{key} exists", key=key)

    async def _pause(self, attempt: int) -> None:
        await self._clock.sleep(min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2**attempt))
