"""The in-memory metadata store: a verified fake with injectable faults (spec/ledger.md §2.5).

`MemoryCluster` is the server side (keys, sessions, watches); `MemoryStore` is one client of it.
It passes the same contract suite as ZooKeeper, so what holds against it holds against the real
thing. Faults are injected per store: lost replies and lost requests (M-3), a lagging follower
(M-4), a cut connection and session expiry (O-5). The simulator uses it as its metadata server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from octavo.metadata.envelope import seal, unseal
from octavo.metadata.keys import SCAN_KEYS_MAX, check_key, check_keys, check_value
from octavo.metadata.memory_tree import MemoryTree
from octavo.metadata.scanning import read_each, scan_by_reading
from octavo.metadata.store import Found, Put, Scanned, SessionState, Unsubscribe, Versioned
from octavo.metadata.watches import SessionListeners, WatchTable
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.errors import (
    IllegalStateError,
    MetadataUnavailable,
    UnknownOutcome,
)

_R = TypeVar("_R")


class MemoryCluster:
    """The state that all stores of one name share: committed keys and live sessions."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.latency_s: Callable[[], float] | None = None
        """Time one way of an operation takes; None: one turn of the event loop."""
        self.tree = MemoryTree()
        """Committed keys; changed through stores only, except by `damage`."""
        self._next_session = 1
        self._stores: dict[int, MemoryStore] = {}  # live session -> its store

    def connect(self) -> MemoryStore:
        """A new client with its own session."""
        return MemoryStore(self)

    def expire(self, store: MemoryStore) -> None:
        """End the session of `store`: its keys go, it sees LOST and then a new session."""
        self.end_session(store.session_id)
        store.learn_of_expiry()

    def end_lease(self, store: MemoryStore) -> None:
        """The lease of a silent store runs out: its ephemeral keys go and it does not know yet."""
        self.end_session(store.session_id)

    def force_version(self, key: str, version: int) -> None:
        """Set the version of an existing key, to reach the 2^31 boundary in a test (ID-2)."""
        self.tree.damage(key, version=version)

    def corrupt(self, key: str, value: bytes) -> None:
        """Overwrite what is stored at a key as damage would: same version, no watch (M-7)."""
        self.tree.damage(key, value=value)

    def snapshot(self) -> dict[str, Versioned]:
        """All committed keys, for assertions and oracles."""
        return self.tree.snapshot()

    # --- called by MemoryStore --------------------------------------------------------------

    def open_session(self, store: MemoryStore) -> int:
        """A new session of `store`; ids are never reused."""
        session_id = self._next_session
        self._next_session += 1
        self._stores[session_id] = store
        return session_id

    def end_session(self, session_id: int) -> None:
        """Forget a session and delete its ephemeral keys."""
        self._stores.pop(session_id, None)
        self.notify(self.tree.end_session(session_id))

    def has_session(self, session_id: int) -> bool:
        """True while the session lives."""
        return session_id in self._stores

    def notify(self, changed: list[str]) -> None:
        """Fire the watches of all live sessions."""
        for store in list(self._stores.values()):
            for key in changed:
                store.on_change(key)


@dataclass
class StoreFaults:
    """Faults of one store; a test sets them, the store consumes them.

    `lost` holds (operation, executed): the next call of that operation (or "any") raises as if
    its reply was lost, after being executed or without.
    """

    lost: deque[tuple[str, bool]] = field(default_factory=deque[tuple[str, bool]])

    def lose_reply(self, operation: str = "any") -> None:
        """The next `operation` is executed and its reply lost."""
        self.lost.append((operation, True))

    def lose_request(self, operation: str = "any") -> None:
        """The next `operation` never reaches the server."""
        self.lost.append((operation, False))

    def take(self, operation: str) -> bool | None:
        """None: no fault; else whether the operation is to be executed before its reply is lost."""
        if self.lost and self.lost[0][0] in (operation, "any"):
            return self.lost.popleft()[1]
        return None


class MemoryStore:
    """One client of a MemoryCluster; implements `MetadataStore`."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.faults = StoreFaults()
        self._cluster = cluster
        self._watches = WatchTable()
        self._listeners = SessionListeners(SessionState.CONNECTED)
        self._stale: MemoryTree | None = None  # what a lagging follower answers reads from
        self._closed = False
        self._session_id = cluster.open_session(self)

    @property
    def session_state(self) -> SessionState:
        """The present state of the session."""
        return self._listeners.state

    @property
    def session_id(self) -> int:
        """Changes with every new session."""
        return self._session_id

    # --- fault switches ---------------------------------------------------------------------

    def lag(self) -> None:
        """From now on reads answer the present state, until `barrier()` or an own write (M-4)."""
        self._stale = self._cluster.tree.copy()

    def suspend(self) -> None:
        """Cut the connection: operations fail, watches are silent, the session lives on."""
        self._set_state(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Restore the connection; every watch fires, as after any reconnect.

        If the lease ran out meanwhile the store learns it now: LOST, then a new session.
        """
        if not self._cluster.has_session(self._session_id):
            self.learn_of_expiry()
        elif self.session_state is SessionState.SUSPENDED:
            self._set_state(SessionState.CONNECTED)
            self._watches.fire_all()

    def learn_of_expiry(self) -> None:
        """The server says that the session is gone: LOST now, a new session in the next turn."""
        self._stale = None
        self._set_state(SessionState.LOST)
        asyncio.get_running_loop().call_soon(self._new_session)

    def _new_session(self) -> None:
        if self._closed or self.session_state is not SessionState.LOST:
            return
        self._session_id = self._cluster.open_session(self)
        self._set_state(SessionState.CONNECTED)
        self._watches.fire_all()

    # --- operations -------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        """The value as this store's server sees it; raises MetadataCorrupt (M-7)."""
        check_key(key)
        found = await self._read("get", lambda: self._view().get(key))
        return found and Versioned(unseal(key, found.value), found.version)

    async def get_many(self, keys: Sequence[str]) -> list[Found]:
        """What is at `keys` as this store's server sees it."""
        return await read_each(self.get, check_keys(keys))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Create `key` and missing parents."""
        check_value(check_key(key), value)
        owner = self._session_id if ephemeral else 0
        return await self._write("create", lambda tree: tree.create(key, seal(value), owner))

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """Create `key` and replace another value, or neither."""
        check_value(check_key(key), value)
        check_value(check_key(put.key), put.value)
        sealed = put._replace(value=seal(put.value))
        return await self._write(
            "create_and_put", lambda tree: tree.create_and_put(key, seal(value), sealed)
        )

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """Replace the value if the version matches."""
        check_value(check_key(key), value)
        return await self._write("put", lambda tree: tree.put(key, seal(value), expected))

    async def delete(self, key: str, *, expected: int | None) -> None:
        """Delete a key without children."""
        check_key(key)
        await self._write("delete", lambda tree: (None, tree.delete(key, expected)))

    async def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        check_key(key)
        return await self._read("children", lambda: self._view().children(key))

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """Direct children, with their values."""
        check_keys(keys, SCAN_KEYS_MAX)
        return await scan_by_reading(
            keys, after, limit, children=self._children_of, read=self.get_many
        )

    async def _children_of(self, keys: Sequence[str]) -> list[list[str]]:
        return await asyncio.gather(*map(self.children, keys))

    async def fetch_add(self, key: str) -> int:
        """Add one and return the new value."""
        check_key(key)
        return await self._write("fetch_add", lambda tree: tree.fetch_add(key))

    async def barrier(self) -> None:
        """Catch up with everything committed."""

        def catch_up() -> None:
            self._stale = None

        await self._read("barrier", catch_up)

    def watch(self, key: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(key)` after changes of `key` or its child set."""
        self._watches.add(check_key(key), callback)

        def unsubscribe() -> None:
            self._watches.remove(key, callback)

        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` at every change of state."""
        return self._listeners.add(callback)

    async def close(self) -> None:
        """End the session; its ephemeral keys disappear at once."""
        if not self._closed:
            self._closed = True
            self._watches.clear()
            self._listeners.clear()
            self._cluster.end_session(self._session_id)

    # --- inside -----------------------------------------------------------------------------

    def _view(self) -> MemoryTree:
        return self._cluster.tree if self._stale is None else self._stale

    async def _read(self, operation: str, run: Callable[[], _R]) -> _R:
        return await self._call(operation, run, MetadataUnavailable)

    async def _write(
        self, operation: str, change: Callable[[MemoryTree], tuple[_R, list[str]]]
    ) -> _R:
        def run() -> _R:
            self._stale = None  # a follower answers a write only after it has caught up to it
            result, changed = change(self._cluster.tree)
            self._cluster.notify(changed)
            return result

        return await self._call(operation, run, UnknownOutcome)

    async def _call(
        self,
        operation: str,
        run: Callable[[], _R],
        lost: type[MetadataUnavailable] | type[UnknownOutcome],
    ) -> _R:
        """Request, execution, reply: each way may be cut; nothing runs for a session that ended."""
        if self._closed:
            raise IllegalStateError("the metadata store is closed")
        if self.session_state is not SessionState.CONNECTED:
            raise MetadataUnavailable("no connection to the metadata store")
        session = self._session_id
        await self._travel()
        executed = self.faults.take(operation)
        if executed is False or not self._reachable(session):
            raise lost(f"the request {operation} was lost")
        result = run()
        await self._travel()
        if executed or not self._reachable(session):
            raise lost(f"the reply to {operation} was lost")
        return result

    def _reachable(self, session: int) -> bool:
        return (
            session == self._session_id
            and self.session_state is SessionState.CONNECTED
            and not self._closed
        )

    async def _travel(self) -> None:
        latency = self._cluster.latency_s
        await self._cluster.clock.sleep(latency() if latency else 0)

    def _set_state(self, state: SessionState) -> None:
        if not self._closed:
            self._listeners.set(state)

    def on_change(self, key: str) -> None:
        """The server committed a change of `key` or its child set."""
        if self.session_state is SessionState.CONNECTED:
            self._watches.fire(key)
