"""The embedded metadata server: leased sessions and watches over gRPC, keys in SQLite.

Runs inside the supervisor of a one-command cluster. Guarantees the contract of `MetadataStore`:

- One worker thread executes all operations one after the other; each is durable before it is
  answered.
- A stream's messages are executed in order. When a new stream attaches to a session, the old
  stream is never executed from again, so a read after a lost reply settles what happened (M-3).
- A session lives while messages arrive within its lease. When its connection dies the lease runs
  on, and its ephemeral keys stay until it has run out, unless whoever started the client knows
  that it is dead and says so (`end_sessions_of`).
- A server that was itself stopped for a while extends all leases by as long as it stood still, so
  that its own pause expires nobody.
"""

from __future__ import annotations

import asyncio
import pathlib
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc

from octavo.metadata.embedded_tree import SqliteTree
from octavo.metadata.envelope import OVERHEAD_BYTES
from octavo.metadata.keys import MAX_VALUE_BYTES, SCAN_KEYS_MAX, check_key, check_keys, check_value
from octavo.metadata.store import Found, Put, Scanned, Version, Versioned, life_of
from octavo.proto import metastore_pb2 as wire
from octavo.proto import metastore_pb2_grpc
from octavo.proto.endpoints import bind, grpc_server
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy, SystemEntropy
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    OctavoError,
    StorageFailed,
    VersionConflict,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.unexpected import report_broken
from octavo.runtime.workers import WorkerPool

T = TypeVar("T")
_log = get_logger("octavo.metadata.embedded")

LEASE_MIN_S = 0.2
LEASE_MAX_S = 60.0
SWEEP_S = 0.1
"""How often leases are looked at; a session expires at most this much late."""
STALL_S = 0.5
"""A sweep that comes later than this means the server itself stood still."""
OUTBOX_MAX = 1_024
"""Replies of one stream that may wait for its client; then its next message is not read."""
WATCHES_MAX = 100_000
"""Watched keys of one session."""
STOP_GRACE_S = 0.2
SEALED_BYTES_MAX = MAX_VALUE_BYTES + OVERHEAD_BYTES
CALLS_WAITING_MAX = 1_024
"""Operations that wait for the worker thread; streams beyond it wait before they hand theirs over.
"""
CHECK_PERIOD_S = 600.0
"""How often all records are read back and compared with their checksums."""
CHECK_PAUSE_S = 0.02
"""Between two directories of a check, so that it takes a small share of the worker thread."""

_REASONS: dict[type[OctavoError], wire.Refused.Reason.ValueType] = {
    KeyExists: wire.Refused.KEY_EXISTS,
    KeyMissing: wire.Refused.KEY_MISSING,
    VersionConflict: wire.Refused.VERSION_CONFLICT,
    IllegalStateError: wire.Refused.EPHEMERAL_PARENT,
    InvalidRequest: wire.Refused.INVALID,
    MetadataCorrupt: wire.Refused.CORRUPT,
}


class _Stream:
    """One connection: an outbox of messages and coalesced watch events, drained by its handler."""

    def __init__(self) -> None:
        self._outbox: deque[wire.ServerMessage] = deque()
        self._ready = asyncio.Event()
        self._space = asyncio.Event()
        self._ended = False

    def send(self, message: wire.ServerMessage) -> None:
        if not self._ended:
            self._outbox.append(message)
            self._ready.set()

    def send_changed(self, keys: set[str]) -> None:
        last = self._outbox[-1] if self._outbox else None
        if last is not None and last.WhichOneof("result") == "changed":
            keys = keys | set(last.changed.keys)
            self._outbox.pop()
        self.send(wire.ServerMessage(changed=wire.Changed(keys=sorted(keys))))

    def end(self) -> None:
        self._ended = True
        self._ready.set()
        self._space.set()

    async def wait_space(self) -> None:
        while len(self._outbox) >= OUTBOX_MAX and not self._ended:
            self._space.clear()
            await self._space.wait()

    async def messages(self) -> AsyncIterator[wire.ServerMessage]:
        while True:
            while self._outbox:
                yield self._outbox.popleft()
                self._space.set()
            if self._ended:
                return
            self._ready.clear()
            await self._ready.wait()


@dataclass
class _Session:
    session_id: int
    secret: bytes
    lease_s: float
    deadline_s: float
    client_name: str = ""
    stream: _Stream | None = None
    watches: set[str] = field(default_factory=set[str])


class EmbeddedMetadataServer(metastore_pb2_grpc.MetaStoreServicer):
    """Serves one cluster's metadata from `data_dir` on the loopback interface."""

    def __init__(
        self, data_dir: pathlib.Path, clock: Clock, *, entropy: Entropy | None = None
    ) -> None:
        self._data_dir = data_dir
        self._clock = clock
        self._entropy = entropy or SystemEntropy()
        self._sessions: dict[int, _Session] = {}
        self._tasks = TaskOwner("embedded-metadata")
        self._keeper = TaskOwner("embedded-metadata leases", report_broken)
        self._thread = WorkerPool("embedded-metadata", 1, CALLS_WAITING_MAX)
        self._tree: SqliteTree | None = None
        self._server: grpc.aio.Server | None = None

    async def start(
        self, port: int = 0, host: str = "127.0.0.1", *, clients_are_dead: bool = False
    ) -> int:
        """Open the data and serve; returns the port.

        Old sessions get a fresh lease, or end at once when all their processes are known to be
        gone.
        """
        self._tree = await self._in_thread(lambda: SqliteTree(self._data_dir))
        now = self._clock.monotonic()
        for row in await self._in_thread(self._open_tree.sessions):
            lease_s = row.timeout_ms / 1000
            self._sessions[row.session_id] = _Session(
                row.session_id, row.secret, lease_s, now + lease_s
            )
        if clients_are_dead:
            for session in list(self._sessions.values()):
                await self._end(session, expired=True)
        server = self._server = grpc_server()
        metastore_pb2_grpc.add_MetaStoreServicer_to_server(self, server)
        bound = bind(server, host, port)
        await server.start()
        self._keeper.spawn(self._sweep(), name="sweep")
        self._keeper.spawn(self._check_records(), name="check")
        return bound

    async def stop(self) -> None:
        """End all streams and close the data.

        Sessions stay and get a fresh lease at the next start.
        """
        for session in self._sessions.values():
            if session.stream is not None:
                session.stream.end()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None
        await self._keeper.close()
        await self._tasks.close()
        if self._tree is not None:
            await self._in_thread(self._tree.close)
            self._tree = None
        await self._thread.close()

    async def expire_session(self, session_id: int) -> None:
        """End a session now, as if its lease had run out (operators and tests)."""
        session = self._sessions.get(session_id)
        if session is not None:
            await self._end(session, expired=True)

    async def end_sessions_of(self, client_name: str) -> None:
        """End the sessions of a client whose process is known to be dead: no lease to wait for."""
        dead = [s for s in self._sessions.values() if s.client_name == client_name]
        for session in dead:
            await self._end_or_later(session)

    # --- streams ----------------------------------------------------------------------------

    async def Session(
        self,
        request_iterator: AsyncIterator[wire.ClientMessage],
        context: grpc.aio.ServicerContext[wire.ClientMessage, wire.ServerMessage],
    ) -> AsyncIterator[wire.ServerMessage]:
        """Serve one stream until the client, the session or the server ends it."""
        stream = _Stream()
        reader = self._tasks.spawn(self._read(stream, request_iterator), name="stream")
        try:
            async for message in stream.messages():
                yield message
        finally:
            stream.end()
            reader.cancel()

    async def _read(self, stream: _Stream, requests: AsyncIterator[wire.ClientMessage]) -> None:
        session: _Session | None = None
        try:
            async for message in requests:
                if session is None:
                    session = await self._to_the_end(self._attach(stream, message), "attach")
                    if session is None:
                        return
                    continue
                if session.stream is not stream:
                    return
                session.deadline_s = self._clock.monotonic() + session.lease_s
                if message.WhichOneof("operation") == "close":
                    await self._to_the_end(self._end(session, expired=False), "close")
                    stream.send(wire.ServerMessage(request_id=message.request_id, done=wire.Done()))
                    return
                await self._execute(session, stream, message)
                await stream.wait_space()
        except (grpc.RpcError, grpc.aio.BaseError):
            return  # the connection died; the lease runs on
        finally:
            if session is not None and session.stream is stream:
                session.stream = None
                session.watches.clear()
            stream.end()

    async def _attach(self, stream: _Stream, first: wire.ClientMessage) -> _Session | None:
        if first.WhichOneof("operation") != "open":
            return None
        opening = first.open
        session: _Session | None
        if opening.session_id:
            session = self._sessions.get(opening.session_id)
            if session is None or session.secret != opening.secret:
                stream.send(wire.ServerMessage(request_id=first.request_id, expired=wire.Expired()))
                return None
            if session.stream is not None:
                session.stream.end()
        else:
            lease_s = min(LEASE_MAX_S, max(LEASE_MIN_S, opening.timeout_ms / 1000))
            secret = self._entropy.token()
            session_id = await self._in_thread(
                lambda: self._open_tree.open_session(secret, round(lease_s * 1000))
            )
            session = _Session(session_id, secret, lease_s, 0.0)
            self._sessions[session_id] = session
            _log.info("session-opened", session_id=session_id, client=opening.client_name)
        session.deadline_s = self._clock.monotonic() + session.lease_s
        session.client_name = opening.client_name
        session.stream = stream
        session.watches.clear()
        opened = wire.Opened(
            session_id=session.session_id,
            secret=session.secret,
            timeout_ms=round(session.lease_s * 1000),
        )
        stream.send(wire.ServerMessage(request_id=first.request_id, opened=opened))
        return session

    # --- operations -------------------------------------------------------------------------

    async def _execute(
        self, session: _Session, stream: _Stream, message: wire.ClientMessage
    ) -> None:
        operation = message.WhichOneof("operation")
        if operation == "watch":
            if len(session.watches) < WATCHES_MAX:
                session.watches.add(message.watch.key)
            return
        if operation == "unwatch":
            session.watches.discard(message.unwatch.key)
            return
        reply = await self._to_the_end(self._answer(session, message), operation or "")
        reply.request_id = message.request_id
        stream.send(reply)

    async def _answer(self, session: _Session, message: wire.ClientMessage) -> wire.ServerMessage:
        """Execute one operation and tell the watchers of what it changed."""
        try:
            reply, changed = await self._in_thread(lambda: self._run(session, message))
        except (OctavoError, sqlite3.Error) as error:
            return wire.ServerMessage(refused=_refused(message.WhichOneof("operation"), error))
        self._notify(changed)
        return reply

    async def _to_the_end(self, work: Coroutine[None, None, T], name: str) -> T:
        """Run `work` to its end although its stream may end meanwhile.

        What is committed is told to all who watch it, and a session that was opened can end.
        """
        return await asyncio.shield(self._tasks.spawn(work, name=name))

    def _run(
        self, session: _Session, message: wire.ClientMessage
    ) -> tuple[wire.ServerMessage, list[str]]:
        """Execute one operation in the worker thread; returns the reply and the changed keys."""
        tree = self._open_tree
        operation = message.WhichOneof("operation")
        if operation == "get":
            found = tree.get(check_key(message.get.key))
            return wire.ServerMessage(value=_value(found)), []
        if operation == "scan":
            scan = message.scan
            keys = check_keys([scan.key, *scan.others], SCAN_KEYS_MAX)
            first, *others = map(_scanned, tree.scan(keys, scan.after, scan.limit))
            first.others.extend(others)
            return wire.ServerMessage(scanned=first), []
        if operation == "get_many":
            keys = check_keys(message.get_many.keys)
            told = [_told(*one) for one in zip(keys, tree.get_many(keys), strict=False)]
            return wire.ServerMessage(scanned=wire.Scanned(children=told)), []
        if operation == "children":
            names = tree.children(check_key(message.children.key))
            return wire.ServerMessage(names=wire.Names(names=names)), []
        if operation in ("ping", "barrier"):
            return wire.ServerMessage(done=wire.Done()), []
        return self._run_write(session, message)

    def _run_write(
        self, session: _Session, message: wire.ClientMessage
    ) -> tuple[wire.ServerMessage, list[str]]:
        tree = self._open_tree
        operation = message.WhichOneof("operation")
        if operation == "create":
            create = message.create
            check_value(check_key(create.key), create.value, SEALED_BYTES_MAX)
            owner = session.session_id if create.ephemeral else 0
            version, changed = tree.create(create.key, create.value, owner)
        elif operation == "create_and_put":
            create, put = message.create_and_put.create, message.create_and_put.put
            check_value(check_key(create.key), create.value, SEALED_BYTES_MAX)
            check_value(check_key(put.key), put.value, SEALED_BYTES_MAX)
            both = Put(put.key, put.value, Version(put.expected_version, put.expected_life))
            version, changed = tree.create_and_put(create.key, create.value, both)
        elif operation == "put":
            put = message.put
            check_value(check_key(put.key), put.value, SEALED_BYTES_MAX)
            expected = _expected(put)
            version, changed = tree.put(put.key, put.value, expected)
        elif operation == "fetch_add":
            version, changed = tree.fetch_add(check_key(message.fetch_add.key))
        elif operation == "delete":
            delete = message.delete
            expected = _expected(delete)
            changed = tree.delete(check_key(delete.key), expected)
            return wire.ServerMessage(done=wire.Done()), changed
        else:
            raise InvalidRequest(f"unknown metadata operation {operation}")
        answer = wire.Version(version=version, life=life_of(version))
        return wire.ServerMessage(version=answer), changed

    def _notify(self, changed: list[str]) -> None:
        if not changed:
            return
        keys = set(changed)
        for session in self._sessions.values():
            hit = keys & session.watches
            if hit and session.stream is not None:
                session.stream.send_changed(hit)

    # --- leases -----------------------------------------------------------------------------

    async def _sweep(self) -> None:
        last = self._clock.monotonic()
        while True:
            await self._clock.sleep(SWEEP_S)
            now = self._clock.monotonic()
            stalled_s = now - last - SWEEP_S
            last = now
            if stalled_s > STALL_S:
                _log.warning("metadata-server-stood-still", seconds=round(stalled_s, 3))
                for session in self._sessions.values():
                    session.deadline_s += stalled_s
            for session in [s for s in self._sessions.values() if s.deadline_s <= now]:
                _log.warning("session-expired", session_id=session.session_id)
                await self._end_or_later(session)

    async def _end_or_later(self, session: _Session) -> None:
        """End a session; when the disk refuses (full), the next sweep tries again."""
        try:
            await self._end(session, expired=True)
        except sqlite3.Error as error:
            session.deadline_s = self._clock.monotonic()
            _log.error("session-not-ended", session_id=session.session_id, cause=str(error))

    async def _end(self, session: _Session, *, expired: bool) -> None:
        self._sessions.pop(session.session_id, None)
        stream, session.stream = session.stream, None
        try:
            changed = await self._in_thread(lambda: self._open_tree.end_session(session.session_id))
        except sqlite3.Error:
            self._sessions[session.session_id] = session  # its ephemeral keys are still there
            raise
        self._notify(changed)
        if expired and stream is not None:
            stream.send(wire.ServerMessage(expired=wire.Expired()))
            stream.end()

    # --- check ------------------------------------------------------------------------------

    async def check(self) -> list[str]:
        """Read every record back; returns the damaged keys, each of which is also logged (M-7)."""
        damaged: list[str] = []
        for directory in await self._in_thread(self._open_tree.directories):
            found = await self._in_thread(partial(self._open_tree.damaged_children, directory))
            for key in found:
                _log.error("metadata-record-damaged", key=key)
            damaged.extend(found)
            await self._clock.sleep(CHECK_PAUSE_S)
        return damaged

    async def _check_records(self) -> None:
        while True:
            await self._clock.sleep(CHECK_PERIOD_S)
            await self.check()

    # --- the worker thread ------------------------------------------------------------------

    @property
    def _open_tree(self) -> SqliteTree:
        if self._tree is None:
            raise IllegalStateError("the embedded metadata server is not running")
        return self._tree

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._thread.run(call)


def _value(found: Versioned | None) -> wire.Value:
    if found is None:
        return wire.Value()
    version = found.version
    return wire.Value(found=True, value=found.value, version=version, life=life_of(version))


def _scanned(part: Scanned) -> wire.Scanned:
    children = [_told(*child) for child in part.children]
    return wire.Scanned(children=children, more_after=part.more_after)


def _told(name: str, found: Found) -> wire.Child:
    if isinstance(found, MetadataCorrupt):
        return wire.Child(name=name, damage=found.cause)
    return wire.Child(name=name, value=_value(found))


def _expected(write: wire.Put | wire.Delete) -> Version | None:
    """What a conditional write names; None: unconditional."""
    if not write.HasField("expected_version"):
        return None
    return Version(write.expected_version, write.expected_life)


def _refused(operation: str | None, error: OctavoError | sqlite3.Error) -> wire.Refused:
    if isinstance(error, OctavoError) and not isinstance(error, StorageFailed):
        reason = _REASONS.get(type(error), wire.Refused.INVALID)
        return wire.Refused(reason=reason, text=error.cause)
    _log.error("metadata-storage-failed", operation=operation, cause=str(error))
    return wire.Refused(reason=wire.Refused.STORAGE, text=str(error))
