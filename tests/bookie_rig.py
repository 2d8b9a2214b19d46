"""What bookie tests share: entries, a bookie with a disk that misbehaves on command, a raw wire
client."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pathlib
import shutil
import struct
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from google.protobuf.message import Message

from octavo.bookie.config import BookieConfig
from octavo.bookie.server import BookieServer
from octavo.bookie.storage.index import IndexEngine
from octavo.bookie.storage.rocks_index import RocksEngine
from octavo.metadata.ledgers import LedgerCatalog, Quorum
from octavo.metadata.memory import MemoryCluster, MemoryStore
from octavo.metadata.paths import Paths
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import (
    PREFIX,
    VERSION,
    Frame,
    FrameDecoder,
    FrameType,
    ReadReply,
    ReadRequest,
    Status,
    decode_add_reply,
    decode_read_reply,
    encode_add,
    encode_frame,
    encode_read,
)
from octavo.proto.entry import encode_header
from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.clock import SystemClock
from octavo.runtime.disk import Appender, RealDisk
from octavo.runtime.entropy import SeededEntropy
from octavo.runtime.ids import LedgerId, Member

ROOT = "/octavo"
MAX_ENTRY = 6 << 20
DEADLINE_S = 60.0
COPIES_MAX = 100


def entry(ledger_id: int, entry_id: int, payload: bytes = b"", lac: int | None = None) -> bytes:
    """The bytes of one entry; payloads differ by id unless given."""
    payload = payload or b"payload of %d/%d" % (ledger_id, entry_id)
    known = entry_id - 1 if lac is None else lac
    return encode_header(ledger_id, entry_id, known, (entry_id + 1) * 10, payload) + payload


def announcing(length: int, *, version: int = VERSION) -> bytes:
    """The intact prefix of an ADD frame whose length field says `length`; its body never comes."""
    fields = PREFIX.pack(length, version, FrameType.ADD, 0, 1, 20, 0, 0)[:20]
    return fields + struct.pack(">II", crc32c(fields), 0)


class FaultyAppender:
    """An appender whose syncs can be held back or fail."""

    def __init__(self, inner: Appender, disk: FaultyDisk) -> None:
        self._inner = inner
        self._disk = disk

    @property
    def position(self) -> int:
        return self._inner.position

    def write(self, buffers: Sequence[Buffer]) -> None:
        if self._disk.fail_write:
            raise OSError(errno.EIO, "injected write error")
        self._inner.write(buffers)

    def sync(self) -> None:
        self._disk.gate.wait(DEADLINE_S)
        if self._disk.fail_sync:
            raise OSError(errno.EIO, "injected sync error")
        self._inner.sync()
        self._disk.syncs += 1

    def drop_cached(self, keep_bytes: int) -> None:
        self._inner.drop_cached(keep_bytes)

    def trim(self) -> None:
        self._inner.trim()

    def close(self) -> None:
        self._inner.close()


class FaultyDisk(RealDisk):
    """The real disk with switches: `gate` holds syncs back while cleared."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.fail_sync = False
        self.fail_write = False
        self.no_space = False
        self.space: tuple[int, int] | None = None
        self.syncs = 0

    def create(self, path: pathlib.Path, preallocate_bytes: int) -> Appender:
        if self.no_space:
            raise OSError(errno.ENOSPC, "injected: no space")
        return FaultyAppender(super().create(path, preallocate_bytes), self)

    def free_bytes(self, path: pathlib.Path) -> tuple[int, int]:
        return self.space or (1 << 40, 1 << 41)


class BookieRig:
    """One bookie over an in-memory metadata store; `settings` override small defaults."""

    def __init__(
        self, data_dir: pathlib.Path, indexes: IndexEngine | None = None, **settings: object
    ) -> None:
        self.data_dir = data_dir
        self.indexes = indexes or RocksEngine()
        self.cluster = MemoryCluster()
        self.clock = SystemClock()
        self.entropy = SeededEntropy(7)
        self.disk = FaultyDisk()
        self.settings: dict[str, object] = {
            "segment_bytes": 1 << 20,
            "memtable_bytes": 1 << 20,
            "idle_mark_s": 0.05,
            "evidence_interval_s": 0.05,
            "disk_check_s": 0.05,
            "registration_wait_s": 2.0,
            **settings,
        }
        self._server: BookieServer | None = None
        self._metadata: MemoryStore | None = None
        self._clients: list[WireClient] = []

    async def __aenter__(self) -> BookieRig:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def server(self) -> BookieServer:
        assert self._server is not None
        return self._server

    @property
    def metadata(self) -> MemoryStore:
        assert self._metadata is not None
        return self._metadata

    @property
    def catalog(self) -> LedgerCatalog:
        return LedgerCatalog(self.metadata, Paths(ROOT), clock=self.clock, entropy=self.entropy)

    async def start(self, **settings: object) -> BookieServer:
        """Boot; a failed start leaves nothing behind and raises."""
        self.disk.gate.set()
        if self._metadata is None:
            self._metadata = self.cluster.connect()
        config = BookieConfig.load(
            bookie_id="bookie-1",
            data_dir=self.data_dir,
            metadata_url=f"memory://rig{ROOT}",
            **{**self.settings, **settings},
        )
        server = BookieServer(
            config,
            store=self._metadata,
            clock=self.clock,
            entropy=self.entropy,
            disk=self.disk,
            indexes=self.indexes,
        )
        try:
            await server.start()
        except BaseException:
            await server.stop()
            raise
        self._server = server
        return server

    async def stop(self) -> None:
        """Clean stop."""
        self.disk.gate.set()
        for client in self._clients:
            await client.close()
        self._clients = []
        if self._server is not None:
            await self._server.stop()
            self._server = None
        if self._metadata is not None:
            await self._metadata.close()
            self._metadata = None

    async def crash(self, image: pathlib.Path | None = None, **settings: object) -> BookieServer:
        """Go on from what the disk holds at this instant, as after kill -9, or from an older image:
        what the stop below tells the metadata store was never told."""
        if image is None:
            image = self.data_dir.with_name(self.data_dir.name + "'")
            snapshot(self.data_dir, image)
        cookie = Paths(ROOT).cookie("bookie-1")
        told = self.cluster.snapshot()[cookie].value
        await self.stop()
        self.data_dir = image
        self._metadata = self.cluster.connect()
        found = await self._metadata.get(cookie)
        assert found is not None
        await self._metadata.put(cookie, told, expected=found.version)
        return await self.start(**settings)

    async def ledger(self, *members: Member) -> LedgerId:
        """A new open ledger on this bookie, or on `members`."""
        chosen = members or (self.server.member,)
        quorum = Quorum(len(chosen), len(chosen), 1)
        return (await self.catalog.create(quorum, chosen)).metadata.ledger_id

    async def add(self, *entries: bytes, recovery: bool = False) -> list[Status]:
        """Add through the store and wait for the reply."""
        done: asyncio.Future[list[Status] | None] = asyncio.get_running_loop().create_future()
        self.server.store.add(
            list(entries), sum(map(len, entries)), recovery=recovery, reply=done.set_result
        )
        statuses = await asyncio.wait_for(done, DEADLINE_S)
        return [Status.OK] * len(entries) if statuses is None else statuses

    async def read(
        self, ledger_id: int, first: int, count: int = 1, *, fence: bool = False
    ) -> tuple[Status, list[bytes]]:
        """Read through the store."""
        answer = await self.server.store.read(
            ledger_id, first, count, 1 << 20, fence=fence, salvage=False
        )
        return answer.status, list(map(bytes, answer.entries))

    async def client(self, *, hello: bool = True) -> WireClient:
        """A raw connection to the wire port."""
        host, _, port = self.server.wire_address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        client = WireClient(reader, writer, self.server.incarnation.bytes)
        self._clients.append(client)
        if hello:
            await client.hello()
        return client

    def segments(self) -> list[pathlib.Path]:
        """Segment files, oldest first."""
        return sorted((self.data_dir / "journal").glob("*.seg"))


class WireClient:
    """Speaks frames over a plain stream."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, incarnation: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._next_id = 100
        self.incarnation = incarnation

    def send(self, *buffers: bytes) -> None:
        self._writer.writelines(buffers)

    async def receive(self) -> Frame:
        """The next frame that is not a ping."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                while self._frames:
                    frame = self._frames.pop(0)
                    if frame.type != FrameType.PING:
                        return frame
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError("closed by the bookie")
                self._frames += self._decoder.feed(data)

    async def closed(self) -> bool:
        """True once the bookie closed the connection."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while await self._reader.read(1 << 16):
                    continue
        except ConnectionError:
            return True
        return True

    async def call(self, frame_type: FrameType, message: Message, flags: int = 0) -> Frame:
        self._next_id += 1
        self.send(encode_frame(frame_type, self._next_id, message.SerializeToString(), flags))
        reply = await self.receive()
        assert reply.request_id == self._next_id
        return reply

    async def hello(self, cluster_id: str = "") -> bookie_pb2.HelloReply:
        hello = bookie_pb2.Hello(
            protocol_version=VERSION, cluster_id=cluster_id, client_name="test", purpose="add"
        )
        reply = await self.call(FrameType.HELLO, hello)
        assert reply.type == FrameType.HELLO_REPLY
        parsed = bookie_pb2.HelloReply()
        parsed.ParseFromString(bytes(reply.body))
        return parsed

    def send_add(self, request_id: int, *entries: bytes, flags: int = 0) -> None:
        self.send(*encode_add(request_id, self.incarnation, [[e] for e in entries], flags))

    async def add(self, *entries: bytes, flags: int = 0) -> list[int]:
        self._next_id += 1
        self.send_add(self._next_id, *entries, flags=flags)
        reply = await self.receive()
        assert (reply.type, reply.request_id) == (FrameType.ADD_REPLY, self._next_id)
        return decode_add_reply(reply, len(entries))

    async def read(
        self, ledger_id: int, first: int, count: int = 1, max_bytes: int = 1 << 20, flags: int = 0
    ) -> ReadReply:
        self._next_id += 1
        request = ReadRequest(self.incarnation, ledger_id, first, count, max_bytes)
        self.send(encode_read(self._next_id, request, flags))
        reply = await self.receive()
        assert reply.type == FrameType.READ_REPLY
        return decode_read_reply(reply.body, MAX_ENTRY)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


def copy_live(folder: pathlib.Path, image: pathlib.Path) -> None:
    """Copy a folder while RocksDB may tidy up in it: once more when files came or went."""
    for _ in range(COPIES_MAX):
        before = sorted(folder.rglob("*"))
        with contextlib.suppress(shutil.Error):
            shutil.copytree(folder, image)
            if sorted(folder.rglob("*")) == before:
                return
        shutil.rmtree(image, ignore_errors=True)
    raise AssertionError(f"{folder} did not stand still for one of {COPIES_MAX} copies")


def snapshot(data_dir: pathlib.Path, image: pathlib.Path) -> None:
    """Copy a live data directory in the order in which each part may lag the next (B-5, B-27): once
    more when a segment went meanwhile, of which the older index may still tell."""
    journal = data_dir / "journal"
    for _ in range(COPIES_MAX):
        before = set(journal.iterdir())
        image.mkdir()
        if (data_dir / "index").exists():  # else it is kept in memory
            copy_live(data_dir / "index", image / "index")
        for name in ("cookie.first", "cookie", "durable"):
            if (data_dir / name).exists():
                shutil.copy(data_dir / name, image / name)
        with contextlib.suppress(shutil.Error):
            shutil.copytree(journal, image / "journal")
            if before <= set(journal.iterdir()):
                return
        shutil.rmtree(image)
    raise AssertionError(f"{journal} did not stand still for one of {COPIES_MAX} copies")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds; its parts have no event of their own to wait
    for."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def flip(path: pathlib.Path, offset: int, mask: int = 0x40) -> None:
    """Change one byte of a file in place."""
    fd = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, offset)
        os.pwrite(fd, bytes([byte ^ mask]), offset)
    finally:
        os.close(fd)
