"""The in-memory metadata store: a verified fake with injectable faults (spec/ledger.md §2.5).

`MemoryCluster` is the server side (keys, sessions, watches); `MemoryStore` is one client of it.
It passes the same contract suite as ZooKeeper, so what holds against it holds against the real
thing. Faults are injected per store: lost replies and lost requests (M-3), a lagging follower
(M-4), a cut connection and session expiry (O-5). The simulator uses it as its metadata server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from octavo.metadata.keys import (
    VERSION_WRAP,
    check_key,
    check_value,
    parent_of,
    parents_of,
)
from octavo.metadata.store import SessionState, Unsubscribe, Versioned
from octavo.metadata.watches import SessionListeners, WatchTable
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataUnavailable,
    UnknownOutcome,
    VersionConflict,
)

_R = TypeVar("_R")
_WRITES = frozenset({"create", "put", "delete", "fetch_add"})


class _Node(NamedTuple):
    value: bytes
    version: int
    session_id: int  # 0: not ephemeral


_Tree = dict[str, _Node]


def _child_names(tree: _Tree, key: str) -> list[str]:
    prefix = "/" if key == "/" else key + "/"
    start = len(prefix)
    return sorted(k[start:] for k in tree if k.startswith(prefix) and "/" not in k[start:])


def next_version(version: int) -> int:
    """The version after `version`, wrapping to negative as ZooKeeper's 32-bit counter does
    (ID-2).
    """
    return -VERSION_WRAP if version == VERSION_WRAP - 1 else version + 1


class MemoryCluster:
    """The state that all stores of one name share: committed keys and live sessions."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.latency_s: Callable[[], float] | None = None
        """Time one way of an operation takes; None: one turn of the event loop."""
        self._tree: _Tree = {}
        self._next_session = 1
        self._stores: dict[int, MemoryStore] = {}  # live session -> its store

    def connect(self) -> MemoryStore:
        """A new client with its own session."""
        return MemoryStore(self)

    def expire(self, store: MemoryStore) -> None:
        """End the session of `store`: its ephemeral keys go, it sees LOST and then a new
        session.
        """
        self._end_session(store.session_id)
        store._lose_session()

    def end_lease(self, store: MemoryStore) -> None:
        """The lease of a silent store runs out: its ephemeral keys go and it does not know yet."""
        self._end_session(store.session_id)

    def force_version(self, key: str, version: int) -> None:
        """Set the version of an existing key, to reach the 2^31 boundary in a test (ID-2)."""
        self._tree[key] = self._tree[key]._replace(version=version)

    def corrupt(self, key: str, value: bytes) -> None:
        """Overwrite the bytes of a key as damage would: same version, no watch (M-7)."""
        self._tree[key] = self._tree[key]._replace(value=value)

    def snapshot(self) -> dict[str, Versioned]:
        """All committed keys, for assertions and oracles."""
        return {k: Versioned(n.value, n.version) for k, n in self._tree.items()}

    # --- what MemoryStore calls -------------------------------------------------------------

    def _open_session(self, store: MemoryStore) -> int:
        session_id = self._next_session
        self._next_session += 1
        self._stores[session_id] = store
        return session_id

    def _end_session(self, session_id: int) -> None:
        self._stores.pop(session_id, None)
        for key in [k for k, n in self._tree.items() if n.session_id == session_id]:
            self._remove(key)

    def _create(self, key: str, value: bytes, session_id: int) -> int:
        if key in self._tree:
            raise KeyExists(f"{key} exists", key=key)
        for parent in parents_of(key):
            node = self._tree.get(parent)
            if node is None:
                self._insert(parent, _Node(b"", 0, 0))
            elif node.session_id:
                raise IllegalStateError(f"{parent} is ephemeral and cannot have children")
        self._insert(key, _Node(value, 0, session_id))
        return 0

    def _put(self, key: str, value: bytes, expected: int | None) -> int:
        node = self._require(key, expected)
        version = next_version(node.version)
        self._tree[key] = node._replace(value=value, version=version)
        self._notify(key)
        return version

    def _delete(self, key: str, expected: int | None) -> None:
        self._require(key, expected)
        if _child_names(self._tree, key):
            raise VersionConflict(f"{key} has children", key=key)
        self._remove(key)

    def _fetch_add(self, key: str) -> int:
        if key not in self._tree:
            self._create(key, b"", 0)
        return self._put(key, b"", None)

    def _require(self, key: str, expected: int | None) -> _Node:
        node = self._tree.get(key)
        if node is None:
            raise KeyMissing(f"{key} does not exist", key=key)
        if expected is not None and node.version != expected:
            raise VersionConflict(
                f"{key} has version {node.version}, not {expected}", key=key, found=node.version
            )
        return node

    def _insert(self, key: str, node: _Node) -> None:
        self._tree[key] = node
        self._notify(key, parent_of(key))

    def _remove(self, key: str) -> None:
        del self._tree[key]
        self._notify(key, parent_of(key))

    def _notify(self, *keys: str) -> None:
        for store in list(self._stores.values()):
            for key in keys:
                store._fire(key)


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
        self._stale: _Tree | None = None  # what a lagging follower answers reads from
        self._closed = False
        self._session_id = cluster._open_session(self)

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
        self._stale = dict(self._cluster._tree)

    def suspend(self) -> None:
        """Cut the connection: operations fail, watches are silent, the session lives on."""
        self._set_state(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Restore the connection; every watch fires, as after any reconnect.

        If the lease ran out meanwhile the store learns it now: LOST, then a new session.
        """
        if self._session_id not in self._cluster._stores:
            self._lose_session()
        elif self.session_state is SessionState.SUSPENDED:
            self._set_state(SessionState.CONNECTED)
            self._watches.fire_all()

    def _lose_session(self) -> None:
        self._stale = None
        self._set_state(SessionState.LOST)
        asyncio.get_running_loop().call_soon(self._new_session)

    def _new_session(self) -> None:
        if self._closed or self.session_state is not SessionState.LOST:
            return
        self._session_id = self._cluster._open_session(self)
        self._set_state(SessionState.CONNECTED)
        self._watches.fire_all()

    # --- operations -------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        """The value as this store's server sees it."""
        check_key(key)

        def run() -> Versioned | None:
            node = self._view().get(key)
            return None if node is None else Versioned(node.value, node.version)

        return await self._call("get", run)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Create `key` and missing parents."""
        check_value(check_key(key), value)
        owner = self._session_id if ephemeral else 0
        return await self._call("create", lambda: self._cluster._create(key, value, owner))

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """Replace the value if the version matches."""
        check_value(check_key(key), value)
        return await self._call("put", lambda: self._cluster._put(key, value, expected))

    async def delete(self, key: str, *, expected: int | None) -> None:
        """Delete a key without children."""
        check_key(key)
        await self._call("delete", lambda: self._cluster._delete(key, expected))

    async def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        check_key(key)
        return await self._call("children", lambda: _child_names(self._view(), key))

    async def fetch_add(self, key: str) -> int:
        """Add one and return the new value."""
        check_key(key)
        return await self._call("fetch_add", lambda: self._cluster._fetch_add(key))

    async def barrier(self) -> None:
        """Catch up with everything committed."""

        def run() -> None:
            self._stale = None

        await self._call("barrier", run)

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
            self._cluster._end_session(self._session_id)

    # --- inside -----------------------------------------------------------------------------

    def _view(self) -> _Tree:
        return self._cluster._tree if self._stale is None else self._stale

    async def _call(self, operation: str, run: Callable[[], _R]) -> _R:
        self._check_connected()
        await self._travel()
        self._check_connected()
        session = self._session_id
        executed = self.faults.take(operation)
        if executed is False:
            raise self._lost(operation)
        if operation in _WRITES:
            self._stale = None  # a follower answers a write only after it has caught up to it
        result = run()
        await self._travel()
        if (
            executed
            or session != self._session_id
            or self.session_state is not SessionState.CONNECTED
        ):
            raise self._lost(operation)
        return result

    async def _travel(self) -> None:
        latency = self._cluster.latency_s
        await self._cluster.clock.sleep(latency() if latency else 0)

    def _check_connected(self) -> None:
        if self._closed:
            raise IllegalStateError("the metadata store is closed")
        if self.session_state is not SessionState.CONNECTED:
            raise MetadataUnavailable("no connection to the metadata store")

    def _lost(self, operation: str) -> UnknownOutcome | MetadataUnavailable:
        if operation in _WRITES:
            return UnknownOutcome(f"the reply to {operation} was lost")
        return MetadataUnavailable(f"the reply to {operation} was lost")

    def _set_state(self, state: SessionState) -> None:
        if not self._closed:
            self._listeners.set(state)

    def _fire(self, key: str) -> None:
        if self.session_state is SessionState.CONNECTED:
            self._watches.fire(key)
