"""A metadata store that notes how long each operation takes and how its session fares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from octavo.metadata.store import (
    Found,
    MetadataStore,
    Put,
    Scanned,
    SessionState,
    Unsubscribe,
    Versioned,
)
from octavo.runtime.clock import Clock
from octavo.runtime.errors import MetadataUnavailable, UnknownOutcome
from octavo.runtime.histogram import REQUEST_SECONDS, Histogram

OPERATIONS: tuple[str, ...] = (
    "get", "get_many", "create", "create_and_put", "put", "delete", "children", "scan", "fetch_add",
    "barrier",
)  # fmt: skip

_R = TypeVar("_R")


class MeasuredStore:
    """Hands everything to `store`, whose owner closes it; implements `MetadataStore`."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.seconds = {operation: Histogram(REQUEST_SECONDS) for operation in OPERATIONS}
        """Of each operation, whatever came of it."""
        self.failures = dict.fromkeys(OPERATIONS, 0)
        """Without an answer, or with an unknown outcome; a refusal is an answer."""
        self.session_losses = 0
        self._unsubscribe = store.on_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.session_losses += 1

    async def _measured(self, operation: str, call: Awaitable[_R]) -> _R:
        began_s = self._clock.monotonic()
        try:
            return await call
        except (MetadataUnavailable, UnknownOutcome):
            self.failures[operation] += 1
            raise
        finally:
            self.seconds[operation].observe(self._clock.monotonic() - began_s)

    @property
    def session_state(self) -> SessionState:
        """The present state of the session."""
        return self._store.session_state

    @property
    def session_id(self) -> int:
        """Changes with every new session."""
        return self._store.session_id

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore`."""
        return await self._measured("get", self._store.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[Found]:
        """See `MetadataStore`."""
        return await self._measured("get_many", self._store.get_many(keys))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See `MetadataStore`."""
        return await self._measured("create", self._store.create(key, value, ephemeral=ephemeral))

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """See `MetadataStore`."""
        call = self._store.create_and_put(key, value, put)
        return await self._measured("create_and_put", call)

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """See `MetadataStore`."""
        return await self._measured("put", self._store.put(key, value, expected=expected))

    async def delete(self, key: str, *, expected: int | None) -> None:
        """See `MetadataStore`."""
        await self._measured("delete", self._store.delete(key, expected=expected))

    async def children(self, key: str) -> list[str]:
        """See `MetadataStore`."""
        return await self._measured("children", self._store.children(key))

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """See `MetadataStore`."""
        return await self._measured("scan", self._store.scan(keys, after, limit))

    async def fetch_add(self, key: str) -> int:
        """See `MetadataStore`."""
        return await self._measured("fetch_add", self._store.fetch_add(key))

    async def barrier(self) -> None:
        """See `MetadataStore`."""
        await self._measured("barrier", self._store.barrier())

    def watch(self, key: str, callback: Callable[[str], None]) -> Unsubscribe:
        """See `MetadataStore`."""
        return self._store.watch(key, callback)

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """See `MetadataStore`."""
        return self._store.on_session(callback)

    async def close(self) -> None:
        """End the session."""
        self._unsubscribe()
        await self._store.close()
