"""ZooKeeper behind `MetadataStore`: what knows kazoo (with `kazoo_*`), one thread boundary.

kazoo runs its own threads. Its callbacks only hand what they got to the event loop and never
block; no kazoo type leaves this module. kazoo repeats nothing but connection attempts: its
asynchronous calls have no retry, and a lost reply is reported (M-3). One session's calls keep
their order, also across reconnects (ZooKeeper refuses a write that arrives over a connection its
session has left), so that reading back after a lost reply is conclusive.

ZooKeeper watches fire once. `WatchArms` sets them again before anyone is told, so that a reader
who reads after the callback misses nothing.

A znode's version starts at 0 whenever it is created, and no request can name its `czxid`. So each
creation also changes a guard (`guard_of`) in the same transaction, and a write that must meet one
life of a key checks, in its transaction, that the guard stands where it stood before the key was
read (design.md §12, "Identity, not name").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar, cast

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    KazooException,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
    UnimplementedError,
    ZookeeperError,
)
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import KazooState, ZnodeStat

from octavo.metadata.envelope import SEALED_EMPTY, seal, unseal
from octavo.metadata.kazoo_errors import lost, said, translated
from octavo.metadata.kazoo_polling import PollHandler
from octavo.metadata.kazoo_reads import ReadMany, ReadValue, ask_async, read_children, read_values
from octavo.metadata.kazoo_watches import WatchArms
from octavo.metadata.keys import (
    SCAN_KEYS_MAX,
    check_key,
    check_keys,
    check_value,
    parent_of,
    parents_of,
)
from octavo.metadata.scanning import read_each, scan_by_reading
from octavo.metadata.store import (
    Found,
    Put,
    Scanned,
    SessionState,
    Unsubscribe,
    Version,
    Versioned,
    life_of,
)
from octavo.metadata.watches import SessionListeners, WatchTable
from octavo.runtime.checksum import crc32c
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    MetadataUnavailable,
    OctavoError,
    UnknownOutcome,
    VersionConflict,
)

T = TypeVar("T")

OPERATION_TIMEOUT_S = 10.0
"""Longest wait for a connection, and then for a reply."""
IN_FLIGHT_MAX = 512
"""Operations of one store that may wait for a reply; further callers wait for a slot."""
CREATE_ROUNDS_MAX = 10
"""How often parents are made again while someone else prunes them (L-3)."""
CUT_ROUNDS_MAX = 3
"""Requests that may lose their reply when an old server closes the connection."""
RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": 2.0, "max_jitter": 0.4}
"""kazoo's connection attempts: for ever, with back-off and jitter."""
NO_RETRY = {"max_tries": 0}

GUARDS = "/octavo-guards"
"""Where creations are counted: one key for all that share a hash of their parent's path."""
GUARD_COUNT = 64
GUARD_ROUNDS_MAX = 64
"""A guarded write is tried this often while other keys of its guard are being created."""

_ANY_VERSION = -1
_log = logging.getLogger("octavo.metadata.zookeeper")
_kazoo_log = logging.getLogger("octavo.metadata.kazoo")


class ZookeeperStore:
    """One ZooKeeper session; implements `MetadataStore`."""

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_s: float,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self._hosts = hosts
        self._operation_timeout_s = operation_timeout_s
        self._loop = asyncio.get_running_loop()
        self._client = KazooClient(
            hosts,
            timeout=session_timeout_s,
            handler=PollHandler(),
            connection_retry=RECONNECT,
            command_retry=NO_RETRY,
            logger=_kazoo_log,
        )
        self._client.add_listener(self._on_state_in_kazoo_thread)
        self._listeners = SessionListeners(SessionState.SUSPENDED)
        self._watches = WatchTable()
        self._arms = WatchArms(self._client, self._loop, self._on_watch_event)
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._connected = asyncio.Event()
        self._credentials: tuple[int, bytes] = (0, b"")
        self._has_multi_read = True
        self._closed = False

    async def start(self) -> None:
        """Connect; raises MetadataUnavailable when no server answers in time."""
        self._client.start_async()
        try:
            async with asyncio.timeout(self._operation_timeout_s):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise MetadataUnavailable(
                f"no ZooKeeper server answers at {self._hosts}",
                hint="check the addresses and that ZooKeeper runs",
            ) from None
        await self._make_guards()
        # learned now, while nobody's request is under way: what an old server knows
        await self._ask_many("get_many", read_values([GUARDS]))

    async def _make_guards(self) -> None:
        """Before anything else, so that creations need one round trip; made once per cluster."""
        guards = [f"{GUARDS}/{number:02x}" for number in range(GUARD_COUNT)]
        if await self._call("get", partial(self._client.exists_async, guards[-1])) is None:
            for key in (GUARDS, *guards):  # in order: the last one means that all are there
                with suppress(KeyExists):
                    await self._call("create", partial(self._client.create_async, key, b""))

    @property
    def session_state(self) -> SessionState:
        """The present state of the session."""
        return self._listeners.state

    @property
    def session_id(self) -> int:
        """Changes with every new session."""
        return self._credentials[0]

    @property
    def credentials(self) -> tuple[int, bytes]:
        """Session id and password: who has them can take over, or end, this session."""
        return self._credentials

    # --- operations -------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        """The value as the connected server sees it; raises MetadataCorrupt (M-7)."""
        check_key(key)
        try:
            value, stat = await self._call("get", lambda: self._client.get_async(key))
        except KeyMissing:
            return None
        return Versioned(unseal(key, value), Version(stat.version, stat.czxid))

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Create `key` and missing parents."""
        check_value(check_key(key), value)
        guard = guard_of(key)
        for _ in range(CREATE_ROUNDS_MAX):
            transaction = self._client.transaction()
            transaction.set_data(guard, b"")
            transaction.create(key, seal(value), ephemeral=ephemeral)
            try:
                await self._commit("create", transaction)
                return 0
            except KeyMissing:  # a definite answer: a parent is missing and nothing was created
                await self._create_parents(key)
        raise MetadataUnavailable(f"the parents of {key} keep disappearing")

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """Create `key` and missing parents, and replace another value, or neither."""
        check_value(check_key(key), value)
        check_value(check_key(put.key), put.value)
        for _ in range(GUARD_ROUNDS_MAX):
            transaction = await self._meeting("create_and_put", put.key, put.expected)
            transaction.set_data(guard_of(key), b"")
            transaction.create(key, seal(value))
            transaction.set_data(put.key, seal(put.value), int(put.expected))
            try:
                stat = (await self._commit("create_and_put", transaction))[-1]
            except KeyMissing:  # the other key, or a parent of the one
                if await self._call("get", partial(self._client.exists_async, put.key)) is None:
                    raise
                await self._create_parents(key)
            except VersionConflict:
                if not life_of(put.expected):
                    raise
                # Looked at again: the key changed, or a neighbour was created.
            else:
                return Version(cast("ZnodeStat", stat).version, life_of(put.expected))
        raise MetadataUnavailable(f"keys beside {put.key} are created without a pause")

    async def _create_parents(self, key: str) -> None:
        for parent in parents_of(key):
            try:
                # a lost reply does not matter here: the caller's create decides
                with suppress(KeyExists, UnknownOutcome):
                    await self._call(
                        "create", partial(self._client.create_async, parent, SEALED_EMPTY)
                    )
            except KeyMissing:
                return  # pruned again meanwhile (L-3); the caller starts over

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """Replace the value if the version matches."""
        check_value(check_key(key), value)
        if life_of(expected):
            result = await self._guarded("put", key, expected, value)
            return Version(cast("ZnodeStat", result).version, life_of(expected))
        version = _ANY_VERSION if expected is None else expected
        stat = await self._call("put", lambda: self._client.set_async(key, seal(value), version))
        return stat.version

    async def delete(self, key: str, *, expected: int | None) -> None:
        """Delete a key without children."""
        check_key(key)
        if life_of(expected):
            await self._guarded("delete", key, expected, None)
            return
        version = _ANY_VERSION if expected is None else expected
        await self._call("delete", lambda: self._client.delete_async(key, version))

    async def _guarded(
        self, operation: str, key: str, expected: int | None, value: bytes | None
    ) -> object:
        """A write that must meet one life of `key`, which ZooKeeper's versions do not tell."""
        for _ in range(GUARD_ROUNDS_MAX):
            transaction = await self._meeting(operation, key, expected)
            if value is None:
                transaction.delete(key, int(expected or 0))
            else:
                transaction.set_data(key, seal(value), int(expected or 0))
            try:
                return (await self._commit(operation, transaction))[-1]
            except VersionConflict as error:
                if isinstance(error.__cause__, NotEmptyError):
                    raise
                # Looked at again: the key changed, or a neighbour was created.
        raise MetadataUnavailable(f"{operation}: keys beside {key} are created without a pause")

    async def _meeting(self, operation: str, key: str, expected: int | None) -> TransactionRequest:
        """A transaction that is refused unless it meets the life of `key` that is meant, if any.

        Every creation changes a guard in the same transaction; so while the guard stands where it
        stood before the key was looked at, the key is the one that was looked at. Raises KeyMissing
        or VersionConflict when another one is there now.
        """
        transaction = self._client.transaction()
        if not life_of(expected):
            return transaction
        guard = guard_of(key)
        standing = await self._call("get", lambda: self._client.exists_async(guard))
        found = await self._call("get", lambda: self._client.exists_async(key))
        if found is None:
            raise KeyMissing(f"{operation}: the key does not exist")
        if (found.version, found.czxid) != (expected, life_of(expected)):
            raise VersionConflict(f"{operation}: the key has another version or life")
        if standing is not None:
            transaction.check(guard, standing.version)
        return transaction

    async def _commit(self, operation: str, transaction: TransactionRequest) -> list[object]:
        """Commit; the result of each part, or the error of the first one that was refused."""
        results = await self._call(operation, transaction.commit_async)
        for result in results:
            if isinstance(result, KazooException) and not isinstance(
                result, RolledBackError | RuntimeInconsistency
            ):
                raise translated(operation, result, self._hosts) from result
        return results

    async def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        check_key(key)
        try:
            return sorted(
                await self._call("children", lambda: self._client.get_children_async(key))
            )
        except KeyMissing:
            return []

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """Direct children, with their values."""
        check_keys(keys, SCAN_KEYS_MAX)
        return await scan_by_reading(
            keys, after, limit, children=self._children_of, read=self.get_many
        )

    async def _children_of(self, keys: Sequence[str]) -> list[list[str]]:
        """Names below each, in one round trip, or in one for each where the server is old."""
        answers = await self._ask_many("children", read_children(keys))
        if answers is None:
            return await asyncio.gather(*map(self.children, keys))
        return [sorted(said("children", answer, self._hosts) or ()) for answer in answers]

    async def get_many(self, keys: Sequence[str]) -> list[Found]:
        """What is at `keys`, in one round trip, or in one for each where the server is old."""
        answers = await self._ask_many("get_many", read_values(check_keys(keys))) if keys else []
        if answers is None:
            return await read_each(self.get, keys)
        return [self._found(*pair) for pair in zip(keys, answers, strict=True)]

    async def _ask_many(
        self, operation: str, request: ReadMany[T]
    ) -> list[T | ZookeeperError] | None:
        """What the server says of each key; None when it does not know such requests."""
        if not self._has_multi_read:
            return None
        try:
            return await self._call(operation, partial(ask_async, self._client, request))
        except OctavoError as error:
            if not isinstance(error.__cause__, UnimplementedError):
                raise
        self._has_multi_read = False
        _log.warning("ZooKeeper at %s is older than 3.6: each value is a request", self._hosts)
        await self._over_the_cut()
        return None

    async def _over_the_cut(self) -> None:
        """Until a request is answered again: with that answer the server closes the connection."""
        for attempt in range(CUT_ROUNDS_MAX):
            try:
                await self.barrier()
            except MetadataUnavailable:
                if attempt + 1 == CUT_ROUNDS_MAX:
                    raise
            else:
                return

    def _found(self, key: str, answer: ReadValue | ZookeeperError) -> Found:
        found = said("get_many", answer, self._hosts)
        if found is None:
            return None
        try:
            return Versioned(unseal(key, found.value), Version(found.version, found.czxid))
        except MetadataCorrupt as error:
            return error

    async def fetch_add(self, key: str) -> int:
        """An unconditional set, whose new znode version is the counter's new value (ID-1)."""
        check_key(key)
        for _ in range(CREATE_ROUNDS_MAX):
            try:
                stat = await self._call(
                    "fetch_add", lambda: self._client.set_async(key, SEALED_EMPTY)
                )
                return stat.version
            except KeyMissing:
                # a lost reply here burns nothing: the next set answers for itself
                with suppress(KeyExists, UnknownOutcome):
                    await self.create(key, b"")
        raise MetadataUnavailable(f"{key} keeps disappearing")

    async def barrier(self) -> None:
        """ZooKeeper's sync: the connected server catches up with its leader."""
        await self._call("barrier", lambda: self._client.sync_async("/"))

    def watch(self, key: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(key)` after changes of `key` or its child set."""
        if self._watches.add(check_key(key), callback) and self._connected.is_set():
            self._arms.arm(key)

        def unsubscribe() -> None:
            if self._watches.remove(key, callback):
                self._arms.forget(key)

        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` at every change of state."""
        return self._listeners.add(callback)

    async def close(self) -> None:
        """End the session; its ephemeral keys disappear at once."""
        if self._closed:
            return
        self._closed = True
        self._watches.clear()
        self._listeners.clear()
        self._client.remove_listener(self._on_state_in_kazoo_thread)
        await asyncio.to_thread(self._stop_client)  # kazoo joins its threads here

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()

    # --- one operation ----------------------------------------------------------------------

    async def _call(self, operation: str, submit: Callable[[], AsyncResult[T]]) -> T:
        async with self._slots:
            await self._wait_connection()
            future: asyncio.Future[T] = self._loop.create_future()
            submit().rawlink(partial(self._settle_in_kazoo_thread, future))
            try:
                async with asyncio.timeout(self._operation_timeout_s):
                    return await future
            except TimeoutError:
                raise lost(operation, "no answer in time", self._hosts) from None
            except KazooException as error:
                raise translated(operation, error, self._hosts) from error

    async def _wait_connection(self) -> None:
        if not self._connected.is_set() and not self._closed:
            try:
                async with asyncio.timeout(self._operation_timeout_s):
                    await self._connected.wait()
            except TimeoutError:
                raise MetadataUnavailable(
                    f"no connection to ZooKeeper at {self._hosts}", address=self._hosts
                ) from None
        if self._closed:
            raise IllegalStateError("the metadata store is closed")

    def _settle_in_kazoo_thread(self, future: asyncio.Future[T], result: AsyncResult[T]) -> None:
        try:
            value = result.get(block=False)
        except KazooException as error:
            self._to_loop(_set_exception, future, error)
        else:
            self._to_loop(_set_result, future, value)

    def _to_loop(self, call: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(call, *args)

    # --- session and watches ----------------------------------------------------------------

    def _on_state_in_kazoo_thread(self, state: str) -> None:
        self._to_loop(self._on_state, state, self._client.client_id)

    def _on_state(self, state: str, credentials: tuple[int, bytes] | None) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED:
            if credentials is not None:
                self._credentials = credentials
            self._connected.set()
            self._arms.clear()  # kazoo dropped them all with the old connection
            for key in self._watches.watched():
                self._arms.arm(key)
            self._listeners.set(SessionState.CONNECTED)
            self._watches.fire_all()
        else:
            self._connected.clear()
            lost = state == KazooState.LOST
            self._listeners.set(SessionState.LOST if lost else SessionState.SUSPENDED)

    def _on_watch_event(self, key: str) -> None:
        if not self._closed:
            self._watches.fire(key)


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def guard_of(key: str) -> str:
    """The key that every creation beside `key` changes."""
    return f"{GUARDS}/{crc32c(parent_of(key).encode()) % GUARD_COUNT:02x}"
