"""Client of the embedded metadata server: `MetadataStore` over one gRPC stream (design.md §5).

Keeps its session alive on its own cadence, reconnects with back-off, and takes a new session
after the old one expired. A reply lost with its stream is reported, never repeated (M-3). While
there is no connection an operation waits a bounded time for it and then raises
MetadataUnavailable: it was not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc

from octavo.metadata.envelope import seal, unseal
from octavo.metadata.keys import SCAN_KEYS_MAX, check_key, check_keys, check_value
from octavo.metadata.scanning import read_each
from octavo.metadata.store import (
    Child,
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
from octavo.proto import metastore_pb2 as wire
from octavo.proto import metastore_pb2_grpc
from octavo.proto.endpoints import open_channel
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    MetadataUnavailable,
    OctavoError,
    Overloaded,
    UnknownOutcome,
    VersionConflict,
)
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.metadata.embedded")

IN_FLIGHT_MAX = 512
"""Operations of one store that may wait for a reply; further callers wait for a slot."""
WATCHES_MAX = 100_000
"""Keys one store may watch."""
OUTBOX_MAX = IN_FLIGHT_MAX + WATCHES_MAX
"""Messages that may wait for the stream: all operations, and all watches after a reconnect."""
OPERATION_TIMEOUT_S = 10.0
"""Longest wait for a connection, and then for a reply."""
CLOSE_TIMEOUT_S = 1.0
UNANSWERED_PINGS_MAX = 2
"""Pings, a third of a lease apart, after which a silent stream is cut."""
RECONNECT_FIRST_S = 0.05
RECONNECT_MAX_S = 1.0

_WRITES = frozenset({"create", "create_and_put", "put", "delete", "fetch_add"})
_ERRORS: dict[int, type[OctavoError]] = {
    wire.Refused.KEY_EXISTS: KeyExists,
    wire.Refused.KEY_MISSING: KeyMissing,
    wire.Refused.VERSION_CONFLICT: VersionConflict,
    wire.Refused.EPHEMERAL_PARENT: IllegalStateError,
    wire.Refused.INVALID: InvalidRequest,
    wire.Refused.CORRUPT: MetadataCorrupt,
}

_Call = grpc.aio.StreamStreamCall[wire.ClientMessage, wire.ServerMessage]


@dataclass
class _Pending:
    operation: str
    future: asyncio.Future[wire.ServerMessage]


class _Expired(Exception):
    """The server has ended our session."""


class _Connection:
    """One stream: an outbox for requests, and whether anything was received since the last ping."""

    def __init__(self) -> None:
        self._outbox: asyncio.Queue[wire.ClientMessage] = asyncio.Queue(OUTBOX_MAX)
        self.heard = False
        self.call: _Call | None = None

    def send(self, message: wire.ClientMessage) -> bool:
        """Queue `message`; False when the stream has not taken anything for too long."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.cut()
            return False
        return True

    def cut(self) -> None:
        """Give the stream up; a new one follows."""
        if self.call is not None:
            self.call.cancel()

    async def requests(self) -> AsyncIterator[wire.ClientMessage]:
        while True:
            yield await self._outbox.get()


class EmbeddedStore:
    """One session with the embedded metadata server; implements `MetadataStore`."""

    def __init__(
        self,
        address: str,
        *,
        client_name: str,
        session_timeout_s: float,
        clock: Clock,
        entropy: Entropy,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self._address = address
        self._client_name = client_name
        self._lease_s = session_timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._clock = clock
        self._backoff = Backoff(entropy, initial_s=RECONNECT_FIRST_S, max_s=RECONNECT_MAX_S)
        self._tasks = TaskOwner("embedded-store")
        self._watches = WatchTable()
        self._listeners = SessionListeners(SessionState.SUSPENDED)
        self._pending: dict[int, _Pending] = {}  # in order of sending
        self._next_request = 1
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._connected = asyncio.Event()
        self._connection: _Connection | None = None  # set exactly while _connected is set
        self._session_id = 0
        self._secret = b""
        self._closed = False

    async def start(self) -> None:
        """Connect and open a session; raises MetadataUnavailable when nobody answers in time."""
        self._tasks.spawn(self._run(), name="session")
        try:
            async with asyncio.timeout(self._operation_timeout_s):
                await self._connected.wait()
        except TimeoutError:
            await self._tasks.close()
            raise MetadataUnavailable(
                f"no metadata server at {self._address}",
                hint="is `octavo up` running?",
                address=self._address,
            ) from None

    @property
    def session_state(self) -> SessionState:
        """The present state of the session."""
        return self._listeners.state

    @property
    def session_id(self) -> int:
        """Changes with every new session."""
        return self._session_id

    # --- operations -------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        """The committed value; raises MetadataCorrupt (M-7)."""
        reply = await self._ask(wire.ClientMessage(get=wire.Get(key=check_key(key))))
        return _versioned(key, reply.value) if reply.value.found else None

    async def get_many(self, keys: Sequence[str]) -> list[Found]:
        """The committed values; large ones take several requests."""
        left = list(check_keys(keys))
        found: list[Found] = []
        while left:
            message = wire.ClientMessage(get_many=wire.GetMany(keys=left))
            try:
                children = (await self._ask(message)).scanned.children
            except InvalidRequest:  # a server before there were such requests
                return found + await read_each(self.get, left)
            if not children:
                raise self._lost("get_many", "it tells of no key")
            found += map(_found, children)
            del left[: len(children)]
        return found

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """Create `key` and missing parents."""
        check_value(check_key(key), value)
        create = wire.Create(key=key, value=seal(value), ephemeral=ephemeral)
        return (await self._ask(wire.ClientMessage(create=create))).version.version

    async def create_and_put(self, key: str, value: bytes, put: Put) -> int:
        """Create `key` and replace another value, or neither."""
        check_value(check_key(key), value)
        both = wire.CreateAndPut(
            create=wire.Create(key=key, value=seal(value)),
            put=_put(put.key, put.value, put.expected),
        )
        return _version(await self._ask(wire.ClientMessage(create_and_put=both)))

    async def put(self, key: str, value: bytes, *, expected: int | None) -> int:
        """Replace the value if the version matches."""
        return _version(await self._ask(wire.ClientMessage(put=_put(key, value, expected))))

    async def delete(self, key: str, *, expected: int | None) -> None:
        """Delete a key without children."""
        delete = wire.Delete(
            key=check_key(key), expected_version=expected, expected_life=life_of(expected)
        )
        await self._ask(wire.ClientMessage(delete=delete))

    async def children(self, key: str) -> list[str]:
        """Sorted names of direct children."""
        reply = await self._ask(wire.ClientMessage(children=wire.Children(key=check_key(key))))
        return list(reply.names.names)

    async def scan(self, keys: Sequence[str], after: str, limit: int) -> list[Scanned]:
        """Direct children, with their values."""
        if not check_keys(keys, SCAN_KEYS_MAX):
            return []
        scan = wire.Scan(key=keys[0], after=after, limit=limit, others=keys[1:])
        found = (await self._ask(wire.ClientMessage(scan=scan))).scanned
        return [_scanned(*one) for one in zip(keys, (found, *found.others), strict=False)]

    async def fetch_add(self, key: str) -> int:
        """Add one and return the new value."""
        message = wire.ClientMessage(fetch_add=wire.FetchAdd(key=check_key(key)))
        return (await self._ask(message)).version.version

    async def barrier(self) -> None:
        """The one server is never behind itself; the round trip orders us after its commits."""
        await self._ask(wire.ClientMessage(barrier=wire.Barrier()))

    def watch(self, key: str, callback: Callable[[str], None]) -> Unsubscribe:
        """Call `callback(key)` after changes of `key` or its child set."""
        if len(self._watches) >= WATCHES_MAX:
            raise Overloaded(f"more than {WATCHES_MAX} metadata keys watched")
        if self._watches.add(check_key(key), callback):
            self._tell(wire.ClientMessage(watch=wire.Watch(key=key)))

        def unsubscribe() -> None:
            if self._watches.remove(key, callback):
                self._tell(wire.ClientMessage(unwatch=wire.Unwatch(key=key)))

        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        """Call `callback(state)` at every change of state."""
        return self._listeners.add(callback)

    async def close(self) -> None:
        """End the session; its ephemeral keys disappear at once."""
        if self._closed:
            return
        self._watches.clear()
        self._listeners.clear()
        if self._connection is not None:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._ask(wire.ClientMessage(close=wire.CloseSession()))
            except (TimeoutError, MetadataUnavailable):
                _log.info("close-left-to-lease", session_id=self._session_id)
        self._closed = True
        await self._tasks.close()
        self._fail_pending()

    # --- one operation ----------------------------------------------------------------------

    async def _ask(self, message: wire.ClientMessage) -> wire.ServerMessage:
        operation = message.WhichOneof("operation") or ""
        async with self._slots:
            connection = await self._wait_connection()
            future: asyncio.Future[wire.ServerMessage] = asyncio.get_running_loop().create_future()
            request_id = self._next_request
            self._next_request += 1
            message.request_id = request_id
            self._pending[request_id] = _Pending(operation, future)
            if not connection.send(message):
                del self._pending[request_id]
                raise MetadataUnavailable(
                    f"the metadata store at {self._address} does not take requests",
                    address=self._address,
                )
            try:
                async with asyncio.timeout(self._operation_timeout_s):
                    reply = await future
            except TimeoutError:
                raise self._lost(operation, "no answer in time") from None
            finally:
                self._pending.pop(request_id, None)
        if reply.WhichOneof("result") == "refused":
            raise self._refusal(operation, reply.refused)
        return reply

    def _refusal(self, operation: str, refused: wire.Refused) -> OctavoError:
        error = _ERRORS.get(refused.reason)
        return error(refused.text) if error is not None else self._lost(operation, refused.text)

    def _lost(self, operation: str, why: str = "") -> UnknownOutcome | MetadataUnavailable:
        cause = f"the reply of the metadata store at {self._address} to {operation} was lost"
        kind = UnknownOutcome if operation in _WRITES else MetadataUnavailable
        return kind(cause + (f": {why}" if why else ""), address=self._address)

    async def _wait_connection(self) -> _Connection:
        if self._closed:
            raise IllegalStateError("the metadata store is closed")
        if self._connection is None:
            try:
                async with asyncio.timeout(self._operation_timeout_s):
                    while self._connection is None:
                        await self._connected.wait()
            except TimeoutError:
                raise MetadataUnavailable(
                    f"no connection to the metadata store at {self._address}",
                    address=self._address,
                ) from None
        return self._connection

    def _tell(self, message: wire.ClientMessage) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            if not entry.future.done():
                entry.future.set_exception(self._lost(entry.operation))

    # --- the session ------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._serve_one_stream()
            except _Expired:
                self._disconnected()
                if self._session_id:
                    _log.warning("session-lost", session_id=self._session_id)
                    self._listeners.set(SessionState.LOST)
                self._session_id, self._secret = 0, b""
                continue
            except (grpc.RpcError, asyncio.CancelledError, EOFError) as error:
                if isinstance(error, asyncio.CancelledError) and self._being_cancelled():
                    raise
            self._disconnected()
            await self._clock.sleep(self._backoff.next_s())

    @staticmethod
    def _being_cancelled() -> bool:
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0

    async def _serve_one_stream(self) -> None:
        async with open_channel(self._address) as channel:
            connection = _Connection()
            opening = wire.OpenSession(
                client_name=self._client_name,
                timeout_ms=round(self._lease_s * 1000),
                session_id=self._session_id,
                secret=self._secret,
            )
            connection.send(wire.ClientMessage(open=opening))
            call = metastore_pb2_grpc.MetaStoreStub(channel).Session(connection.requests())
            connection.call = call
            keeper = self._tasks.spawn(self._keep_alive(connection), name="keep-alive")
            try:
                async for message in call:
                    connection.heard = True
                    self._on_message(connection, message)
                raise EOFError("the server ended the stream")
            finally:
                self._disconnected()
                call.cancel()
                keeper.cancel()
                await asyncio.wait([keeper])

    def _on_message(self, connection: _Connection, message: wire.ServerMessage) -> None:
        kind = message.WhichOneof("result")
        if kind == "expired":
            raise _Expired
        if kind == "opened":
            self._on_opened(connection, message.opened)
        elif kind == "changed":
            for key in message.changed.keys:
                self._watches.fire(key)
        else:
            entry = self._pending.get(message.request_id)
            if entry is not None and not entry.future.done():
                entry.future.set_result(message)

    def _on_opened(self, connection: _Connection, opened: wire.Opened) -> None:
        self._session_id, self._secret = opened.session_id, opened.secret
        self._lease_s = opened.timeout_ms / 1000
        self._backoff.reset()
        for key in self._watches.watched():
            connection.send(wire.ClientMessage(watch=wire.Watch(key=key)))
        self._connection = connection
        self._connected.set()
        self._listeners.set(SessionState.CONNECTED)
        self._watches.fire_all()

    def _disconnected(self) -> None:
        if self._connection is None:
            return
        self._connection = None
        self._connected.clear()
        self._fail_pending()
        if not self._closed:
            self._listeners.set(SessionState.SUSPENDED)

    async def _keep_alive(self, connection: _Connection) -> None:
        """Ping three times per lease; cut the stream after two pings in silence.

        Counting pings, not seconds, keeps a process that itself stood still from cutting a stream
        whose answers it has not read yet.
        """
        unanswered = 0
        while True:
            connection.heard = False
            connection.send(wire.ClientMessage(ping=wire.Ping()))
            await self._clock.sleep(self._lease_s / 3)
            unanswered = 0 if connection.heard else unanswered + 1
            if unanswered == UNANSWERED_PINGS_MAX:
                connection.cut()
                return


def _versioned(key: str, value: wire.Value) -> Versioned:
    return Versioned(unseal(key, value.value), Version(value.version, value.life))


def _scanned(key: str, told: wire.Scanned) -> Scanned:
    return Scanned([_child(key, child) for child in told.children], told.more_after)


def _child(directory: str, child: wire.Child) -> Child:
    return Child(child.name, _opened(f"{directory}/{child.name}", child))


def _found(told: wire.Child) -> Found:
    """What is at a key that is told as a child's name is."""
    return _opened(told.name, told) if told.damage or told.value.found else None


def _opened(key: str, told: wire.Child) -> Versioned | MetadataCorrupt:
    if told.damage:
        return MetadataCorrupt(told.damage)
    try:
        return _versioned(key, told.value)
    except MetadataCorrupt as error:
        return error


def _version(reply: wire.ServerMessage) -> Version:
    return Version(reply.version.version, reply.version.life)


def _put(key: str, value: bytes, expected: int | None) -> wire.Put:
    check_value(check_key(key), value)
    return wire.Put(
        key=key, value=seal(value), expected_version=expected, expected_life=life_of(expected)
    )
