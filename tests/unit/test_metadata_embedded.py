"""What only the embedded store promises: durability, leases, silenced streams."""

from __future__ import annotations

import asyncio
import pathlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from octavo.metadata import embedded_server
from octavo.metadata.connect import connect_store
from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.embedded_tree import SqliteTree
from octavo.metadata.envelope import SEALED_EMPTY, seal
from octavo.metadata.store import MetadataStore, SessionState, Versioned
from octavo.metadata.topics import TopicCatalog
from octavo.proto import metastore_pb2 as wire
from octavo.proto import metastore_pb2_grpc
from octavo.runtime.clock import ManualClock, SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import IllegalStateError, MetadataUnavailable
from tests.fix_ledger import until
from tests.fix_zookeeper import free_port
from tests.unit.metadata_stores import PATHS

WAIT_S = 30.0
LEASE_S = 15.0


@asynccontextmanager
async def server_on(
    folder: pathlib.Path, clock: ManualClock | None = None, port: int = 0
) -> AsyncGenerator[tuple[EmbeddedMetadataServer, int], None]:
    server = EmbeddedMetadataServer(folder, clock or SystemClock())
    bound = await server.start(port)
    try:
        yield server, bound
    finally:
        await server.stop()


@asynccontextmanager
async def store_on(port: int, lease_s: float = LEASE_S) -> AsyncGenerator[MetadataStore, None]:
    store = await connect_store(
        f"embedded://127.0.0.1:{port}/octavo",
        client_name="test",
        session_timeout_s=lease_s,
        clock=SystemClock(),
        entropy=SystemEntropy(),
    )
    try:
        yield store
    finally:
        await store.close()


async def wait_state(store: MetadataStore, state: SessionState) -> None:
    changed = asyncio.Event()
    unsubscribe = store.on_session(lambda _state: changed.set())
    async with asyncio.timeout(WAIT_S):
        while store.session_state is not state:
            await changed.wait()
            changed.clear()
    unsubscribe()


class RawStream:
    """A stream spoken by hand, to misbehave on."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._outbox: asyncio.Queue[wire.ClientMessage] = asyncio.Queue()
        self._call = metastore_pb2_grpc.MetaStoreStub(channel).Session(self._requests())

    async def _requests(self) -> AsyncIterator[wire.ClientMessage]:
        while True:
            yield await self._outbox.get()

    def send(self, message: wire.ClientMessage) -> None:
        self._outbox.put_nowait(message)

    async def receive(self) -> wire.ServerMessage | None:
        """The next message, None at the end of the stream."""
        async with asyncio.timeout(WAIT_S):
            async for message in self._call:
                return message
        return None

    async def open(self, session_id: int = 0, secret: bytes = b"") -> wire.ServerMessage | None:
        opening = wire.OpenSession(
            client_name="raw", timeout_ms=3000, session_id=session_id, secret=secret
        )
        self.send(wire.ClientMessage(request_id=1, open=opening))
        return await self.receive()

    def cancel(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def raw_streams(port: int, count: int) -> AsyncGenerator[list[RawStream], None]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        streams = [RawStream(channel) for _ in range(count)]
        try:
            yield streams
        finally:
            for stream in streams:
                stream.cancel()


def put(key: str, value: bytes) -> wire.ClientMessage:
    return wire.ClientMessage(request_id=9, put=wire.Put(key=key, value=seal(value)))


# --- durability --------------------------------------------------------------------------------


async def test_keys_counters_and_sessions_survive_a_restart(tmp_path: pathlib.Path) -> None:
    port = free_port()
    server = EmbeddedMetadataServer(tmp_path, SystemClock())
    await server.start(port)
    async with store_on(port) as store:
        await store.create("/octavo/a", b"one")
        await store.put("/octavo/a", b"two", expected=0)
        assert await store.fetch_add("/octavo/n") == 1
        await store.create("/octavo/e", b"", ephemeral=True)
        session = store.session_id
        states: list[SessionState] = []
        store.on_session(states.append)
        await server.stop()
        await wait_state(store, SessionState.SUSPENDED)
        async with server_on(tmp_path, port=port):
            assert await store.get("/octavo/a") == Versioned(b"two", 1)
            assert await store.fetch_add("/octavo/n") == 2
            assert await store.get("/octavo/e") == Versioned(b"", 0)
            assert store.session_id == session
            assert SessionState.LOST not in states
            await store.close()


async def test_second_server_on_one_folder_is_refused(tmp_path: pathlib.Path) -> None:
    async with server_on(tmp_path):
        with pytest.raises(IllegalStateError, match="cannot be opened"):
            await EmbeddedMetadataServer(tmp_path, SystemClock()).start()


async def test_connecting_to_nobody_is_unavailable() -> None:
    store = EmbeddedStore(
        f"127.0.0.1:{free_port()}",
        client_name="test",
        session_timeout_s=LEASE_S,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        operation_timeout_s=0.2,
    )
    with pytest.raises(MetadataUnavailable):
        await store.start()
    await store.close()


async def test_operation_waits_a_bounded_time_for_a_server(tmp_path: pathlib.Path) -> None:
    async with server_on(tmp_path) as (server, port):
        store = EmbeddedStore(
            f"127.0.0.1:{port}",
            client_name="test",
            session_timeout_s=LEASE_S,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            operation_timeout_s=0.2,
        )
        await store.start()
        await server.stop()
        await wait_state(store, SessionState.SUSPENDED)
        with pytest.raises(MetadataUnavailable):  # not UnknownOutcome: it was never sent
            await store.create("/octavo/a", b"")
        await store.close()


# --- watches -----------------------------------------------------------------------------------


async def test_watch_fires_for_a_commit_whose_writer_is_gone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends while its write is in the worker thread: it is committed all the same."""
    async with (
        server_on(tmp_path) as (server, port),
        store_on(port) as watcher,
        raw_streams(port, 1) as (stream,),
    ):
        await watcher.create("/octavo/x", b"0")
        changed = asyncio.Event()
        watcher.watch("/octavo/x", lambda _key: changed.set())
        await watcher.barrier()
        await stream.open()
        entered, gone = threading.Event(), threading.Event()
        plain = SqliteTree.put

        def slow(
            tree: SqliteTree, key: str, value: bytes, expected: int | None
        ) -> tuple[int, list[str]]:
            entered.set()
            assert gone.wait(WAIT_S)
            return plain(tree, key, value, expected)

        monkeypatch.setattr(SqliteTree, "put", slow)
        changed.clear()
        stream.send(put("/octavo/x", b"1"))
        await asyncio.to_thread(entered.wait, WAIT_S)
        stream.cancel()
        session = server._sessions[2]  # pyright: ignore[reportPrivateUsage]
        await until(lambda: session.stream is None, WAIT_S)
        gone.set()
        async with asyncio.timeout(WAIT_S):
            await changed.wait()
        assert await watcher.get("/octavo/x") == Versioned(b"1", 1)


# --- leases ------------------------------------------------------------------------------------


async def test_lease_runs_out_by_the_servers_clock(tmp_path: pathlib.Path) -> None:
    clock = ManualClock()
    async with (
        server_on(tmp_path, clock) as (_, port),
        store_on(port) as watcher,
        raw_streams(port, 1) as (stream,),
    ):
        opened = await stream.open()
        assert opened is not None
        assert opened.opened.timeout_ms == 3000
        create = wire.Create(key="/octavo/e", value=SEALED_EMPTY, ephemeral=True)
        stream.send(wire.ClientMessage(request_id=2, create=create))
        await stream.receive()
        gone = asyncio.Event()
        watcher.watch("/octavo/e", lambda _key: gone.set())
        assert await watcher.get("/octavo/e") is not None
        for _ in range(32):  # 3.2 s in steps that are no stall
            clock.advance(embedded_server.SWEEP_S)
            await watcher.barrier()
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
        assert await watcher.get("/octavo/e") is None
        told = await stream.receive()
        assert told is not None
        assert told.WhichOneof("result") == "expired"
        assert await stream.receive() is None


async def test_server_that_stood_still_expires_nobody(tmp_path: pathlib.Path) -> None:
    clock = ManualClock()
    async with server_on(tmp_path, clock) as (_, port), raw_streams(port, 1) as (stream,):
        await stream.open()
        create = wire.Create(key="/octavo/e", value=SEALED_EMPTY, ephemeral=True)
        stream.send(wire.ClientMessage(request_id=2, create=create))
        await stream.receive()
        async with store_on(port) as watcher:
            clock.advance(1000.0)
            for _ in range(5):
                await watcher.barrier()
            assert await watcher.get("/octavo/e") is not None


async def test_silent_server_is_noticed_by_unanswered_pings(tmp_path: pathlib.Path) -> None:
    """The stream stays open but nothing answers: the client cuts it and says so."""
    release = asyncio.Event()

    class Mute(metastore_pb2_grpc.MetaStoreServicer):
        async def Session(
            self,
            request_iterator: AsyncIterator[wire.ClientMessage],
            context: grpc.aio.ServicerContext[wire.ClientMessage, wire.ServerMessage],
        ) -> AsyncIterator[wire.ServerMessage]:
            opened = wire.Opened(session_id=1, secret=b"s", timeout_ms=300)
            yield wire.ServerMessage(request_id=1, opened=opened)
            await release.wait()

    server = grpc.aio.server()
    metastore_pb2_grpc.add_MetaStoreServicer_to_server(Mute(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with store_on(port, lease_s=0.3) as store:
        await wait_state(store, SessionState.SUSPENDED)
        await wait_state(store, SessionState.CONNECTED)
        release.set()
        await server.stop(None)


# --- streams -----------------------------------------------------------------------------------


async def test_m3_old_stream_is_never_executed_from_once_a_new_one_attached(
    tmp_path: pathlib.Path,
) -> None:
    async with server_on(tmp_path) as (_, port), store_on(port) as witness:
        await witness.create("/octavo/a", b"before")
        async with raw_streams(port, 2) as (old, new):
            opened = await old.open()
            assert opened is not None
            session_id, secret = opened.opened.session_id, opened.opened.secret
            old.send(put("/octavo/a", b"in order"))
            assert await old.receive() is not None
            again = await new.open(session_id, secret)
            assert again is not None
            assert again.opened.session_id == session_id
            old.send(put("/octavo/a", b"too late"))
            assert await old.receive() is None
            new.send(put("/octavo/a", b"new stream"))
            assert await new.receive() is not None
            assert await witness.get("/octavo/a") == Versioned(b"new stream", 2)


async def test_session_cannot_be_taken_without_its_secret(tmp_path: pathlib.Path) -> None:
    async with server_on(tmp_path) as (_, port), raw_streams(port, 2) as (owner, thief):
        opened = await owner.open()
        assert opened is not None
        refused = await thief.open(opened.opened.session_id, b"guess")
        assert refused is not None
        assert refused.WhichOneof("result") == "expired"
        owner.send(wire.ClientMessage(request_id=2, ping=wire.Ping()))
        assert await owner.receive() is not None


async def test_stream_that_does_not_begin_with_open_ends(tmp_path: pathlib.Path) -> None:
    async with server_on(tmp_path) as (_, port), raw_streams(port, 1) as (stream,):
        stream.send(put("/octavo/a", b"x"))
        assert await stream.receive() is None


async def test_unknown_operation_and_bad_key_are_refused_not_fatal(tmp_path: pathlib.Path) -> None:
    async with server_on(tmp_path) as (_, port), raw_streams(port, 1) as (stream,):
        await stream.open()
        for message in (wire.ClientMessage(request_id=2), put("no/slash", b"")):
            stream.send(message)
            refused = await stream.receive()
            assert refused is not None
            assert refused.refused.reason == wire.Refused.INVALID
        stream.send(wire.ClientMessage(request_id=3, barrier=wire.Barrier()))
        assert await stream.receive() is not None


async def test_client_that_does_not_read_stops_being_served_not_the_server(
    tmp_path: pathlib.Path,
) -> None:
    async with server_on(tmp_path) as (_, port), store_on(port) as other:
        await other.create("/octavo/big", bytes(200_000))
        async with raw_streams(port, 1) as (stream,):
            await stream.open()
            for i in range(3 * embedded_server.OUTBOX_MAX):
                stream.send(wire.ClientMessage(request_id=i, get=wire.Get(key="/octavo/big")))
            assert await other.fetch_add("/octavo/n") == 1


class BeforeManyKeys(EmbeddedMetadataServer):
    """A server that knows no requests for many keys, and scans of one directory."""

    many = 0

    def _run(
        self, session: Any, message: wire.ClientMessage
    ) -> tuple[wire.ServerMessage, list[str]]:
        if message.WhichOneof("operation") == "get_many":
            self.many += 1
            message = wire.ClientMessage(request_id=message.request_id)  # as it would parse it
        elif message.scan.others:
            self.many += 1
            message.scan.ClearField("others")
        return super()._run(session, message)


async def test_f028_a_server_before_requests_for_many_keys_is_asked_for_each(
    tmp_path: pathlib.Path,
) -> None:
    server = BeforeManyKeys(tmp_path, SystemClock())
    port = await server.start()
    try:
        async with store_on(port) as store:
            await store.create("/a", b"one")
            found = await store.get_many(["/absent", "/a"])
            assert (found, server.many) == ([None, Versioned(b"one", 0)], 1)
            catalog = TopicCatalog(store, PATHS, clock=SystemClock(), entropy=SystemEntropy())
            names = [f"t{number}" for number in range(20)]
            for name in names:
                await catalog.create(name, 1)
            assert sorted(names) == [found.topic.name for found in await catalog.list()]
            assert server.many > 1
    finally:
        await server.stop()
