"""What the metadata contract suite needs from each implementation, faults included."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from kazoo.client import KazooClient

from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.embedded_server import EmbeddedMetadataServer
from octavo.metadata.keys import name_of, parent_of
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.store import MetadataStore
from octavo.metadata.zookeeper import ZookeeperStore
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from tests.tcp_proxy import TcpProxy

T = TypeVar("T")

SESSION_TIMEOUT_S = 30.0
"""A busy machine loses none that is not taken from it."""
LEASE_S = 3.0
"""Of a store whose lease is to run out."""


class MetadataHarness(Protocol):
    """One implementation with its server and its faults."""

    session_timeout_s: float
    """Of stores that connect from now on."""

    async def connect(self) -> MetadataStore:
        """A store with its own session."""
        ...

    async def expire(self, store: MetadataStore) -> None:
        """End the session of `store` now, while it is connected."""
        ...

    async def silence(self, store: MetadataStore) -> None:
        """Cut the connection of `store` for good, without closing its session."""
        ...

    async def end_lease(self, store: MetadataStore) -> None:
        """Make the lease of a silenced store run out, if it does not do so by itself."""
        ...

    async def cut(self, store: MetadataStore) -> None:
        """Interrupt the connection once; the store may come back at once."""
        ...

    async def lose_reply(
        self,
        store: MetadataStore,
        call: Callable[[], Awaitable[T]],
        executed: Callable[[], Awaitable[bool]],
    ) -> T:
        """Run `call` so that it is executed (as `executed` tells) and its reply is lost."""
        ...

    async def damage(self, key: str, stored: bytes) -> None:
        """Put other bytes where the value of `key` is stored, as a foreign hand would."""
        ...

    async def stored(self, key: str) -> bytes:
        """The bytes as they are stored, checksum included."""
        ...

    async def close(self) -> None: ...


class MemoryHarness:
    """The in-memory model, by its own fault switches."""

    def __init__(self) -> None:
        self.session_timeout_s = SESSION_TIMEOUT_S  # no session of the model ends by itself
        self._cluster = MemoryCluster()
        self._stores: list[MemoryStore] = []

    async def connect(self) -> MetadataStore:
        store = self._cluster.connect()
        self._stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        self._cluster.expire(self._mine(store))

    async def silence(self, store: MetadataStore) -> None:
        self._mine(store).suspend()

    async def end_lease(self, store: MetadataStore) -> None:
        self._cluster.end_lease(self._mine(store))

    async def cut(self, store: MetadataStore) -> None:
        self._mine(store).suspend()
        self._mine(store).resume()

    async def lose_reply(
        self,
        store: MetadataStore,
        call: Callable[[], Awaitable[T]],
        executed: Callable[[], Awaitable[bool]],
    ) -> T:
        self._mine(store).faults.lose_reply()
        try:
            return await call()
        finally:
            if not await executed():
                raise AssertionError("the store did not carry it out")

    async def damage(self, key: str, stored: bytes) -> None:
        self._cluster.corrupt(key, stored)

    async def stored(self, key: str) -> bytes:
        found = self._cluster.tree.get(key)
        assert found is not None
        return found.value

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    @staticmethod
    def _mine(store: MetadataStore) -> MemoryStore:
        assert isinstance(store, MemoryStore)
        return store


class _NetworkHarness:
    """A real server; every store reaches it through its own proxy."""

    def __init__(self) -> None:
        self._proxies: dict[int, TcpProxy] = {}  # id(store) -> its proxy
        self._stores: list[MetadataStore] = []
        self.session_timeout_s = SESSION_TIMEOUT_S

    async def connect(self) -> MetadataStore:
        proxy = await TcpProxy("127.0.0.1", self._port()).start()
        store = await self._connect_to(proxy.address)
        self._proxies[id(store)] = proxy
        self._stores.append(store)
        return store

    def _port(self) -> int:
        raise AssertionError

    async def _connect_to(self, address: str) -> MetadataStore:
        raise AssertionError(address)

    async def silence(self, store: MetadataStore) -> None:
        self._proxies[id(store)].cut(refuse=True)

    async def end_lease(self, store: MetadataStore) -> None:
        """The lease runs out by itself."""

    async def cut(self, store: MetadataStore) -> None:
        self._proxies[id(store)].cut()

    async def lose_reply(
        self,
        store: MetadataStore,
        call: Callable[[], Awaitable[T]],
        executed: Callable[[], Awaitable[bool]],
    ) -> T:
        proxy = self._proxies[id(store)]
        proxy.hold_replies()

        async def run() -> T:
            return await call()

        task = asyncio.ensure_future(run())
        while not await executed():
            assert not task.done()
        proxy.cut()
        return await task

    async def close(self) -> None:
        for proxy in self._proxies.values():
            proxy.restore()
        for store in self._stores:
            await store.close()
        for proxy in self._proxies.values():
            await proxy.close()


class EmbeddedHarness(_NetworkHarness):
    """The embedded server over loopback gRPC."""

    def __init__(self, data_dir: pathlib.Path) -> None:
        super().__init__()
        self._server = EmbeddedMetadataServer(data_dir, SystemClock())
        self._server_port = 0

    async def start(self) -> EmbeddedHarness:
        self._server_port = await self._server.start()
        return self

    def _port(self) -> int:
        return self._server_port

    async def _connect_to(self, address: str) -> MetadataStore:
        store = EmbeddedStore(
            address,
            client_name="contract",
            session_timeout_s=self.session_timeout_s,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
        await store.start()
        return store

    async def expire(self, store: MetadataStore) -> None:
        await self._server.expire_session(store.session_id)

    async def damage(self, key: str, stored: bytes) -> None:
        words = (stored, parent_of(key), name_of(key))
        await self._sql("UPDATE nodes SET value = ? WHERE parent = ? AND name = ?", words)

    async def stored(self, key: str) -> bytes:
        words = (parent_of(key), name_of(key))
        query = "SELECT value FROM nodes WHERE parent = ? AND name = ?"
        ((value,),) = await self._sql(query, words)
        assert isinstance(value, bytes)
        return value

    async def _sql(self, query: str, words: tuple[object, ...]) -> list[tuple[object, ...]]:
        """Behind the back of the tree, in its thread."""
        server = self._server
        tree = server._open_tree  # pyright: ignore[reportPrivateUsage]
        db = tree._db  # pyright: ignore[reportPrivateUsage]
        return await server._in_thread(  # pyright: ignore[reportPrivateUsage]
            lambda: db.execute(query, words).fetchall()
        )

    async def close(self) -> None:
        await super().close()
        await self._server.stop()


class ZookeeperHarness(_NetworkHarness):
    """A real ZooKeeper; every test works below its own root."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._server_port = port

    def _port(self) -> int:
        return self._server_port

    async def _connect_to(self, address: str) -> MetadataStore:
        store = ZookeeperStore(address, session_timeout_s=self.session_timeout_s)
        await store.start()
        return store

    async def expire(self, store: MetadataStore) -> None:
        """A second client takes the session over and closes it."""
        assert isinstance(store, ZookeeperStore)
        credentials = store.credentials

        def take_over_and_close() -> None:
            thief = KazooClient(f"127.0.0.1:{self._server_port}", client_id=credentials)
            thief.start(timeout=10)
            thief.stop()
            thief.close()

        await asyncio.to_thread(take_over_and_close)

    async def damage(self, key: str, stored: bytes) -> None:
        await asyncio.to_thread(self._foreign, lambda client: client.set_async(key, stored).get())

    async def stored(self, key: str) -> bytes:
        found = await asyncio.to_thread(self._foreign, lambda c: c.get_async(key).get())
        return bytes(found[0])

    def _foreign(self, work: Callable[[KazooClient], T]) -> T:
        client = KazooClient(f"127.0.0.1:{self._server_port}")
        client.start(timeout=10)
        try:
            return work(client)
        finally:
            client.stop()
            client.close()
