"""A small in-memory bookie that speaks the real wire, with faults on demand.

Not a mock: it keeps the promises a ledger client relies on (fence before answer, honest negatives,
idempotent adds, recovery adds on fenced ledgers) and runs the same contract test as the real one.
Nothing is durable beyond the object: `stop()` and `start()` keep the data, like a process restart.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from dataclasses import dataclass, field

from octavo.metadata.bookies import BookieRegistrar, BookieRegistration, CookieCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto import bookie_pb2
from octavo.proto.bookie_wire import (
    MAX_ENTRIES_PER_FRAME,
    MAX_FRAME_BYTES,
    VERSION,
    Flags,
    Frame,
    FrameType,
    ReadRequest,
    Status,
    decode_add,
    decode_read,
    encode_add_reply,
    encode_frame,
    encode_read_reply,
)
from octavo.proto.entry import verify
from octavo.proto.framed import FramedConnection
from octavo.runtime.checksum import Buffer, crc32c
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.runtime.errors import CorruptEntry
from octavo.runtime.tasks import TaskOwner

ENTRY_BYTES_MAX = 6 << 20


@dataclass
class FakeLedger:
    entries: dict[int, bytes] = field(default_factory=dict[int, bytes])
    fenced: bool = False
    lac: int = -1
    explicit_lac: int = -1


class FakeBookie:
    """One bookie. Switches: `statuses` (forced replies), `silent`, `hold`, `refuse_hello`."""

    def __init__(self, bookie_id: str, *, domain: str = "") -> None:
        self.bookie_id = bookie_id
        self.domain = domain
        self.incarnation = uuid.uuid4()
        self.salvage: set[bytes] = set()
        self.ledgers: dict[int, FakeLedger] = {}
        self.statuses: dict[FrameType, list[Status]] = {}
        """Replies to give instead of the honest one, used up from the front."""
        self.silent: set[FrameType] = set()
        """Frames to swallow: no effect, no reply."""
        self.mute: set[FrameType] = set()
        """Frames to carry out without a reply."""
        self.hold: dict[FrameType, asyncio.Event] = {}
        """Frames to answer only once the event is set."""
        self.received: list[FrameType] = []
        self.port = 0
        self.cluster_id = ""
        """Said in the hello; registering sets it to the store's."""
        self._server: asyncio.Server | None = None
        self._connections: set[FramedConnection] = set()
        self._registrar: BookieRegistrar | None = None
        self._tasks = TaskOwner(bookie_id)
        self._lac_moved = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._tasks = TaskOwner(self.bookie_id)
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def register(self, store: MetadataStore, paths: Paths) -> None:
        cookies = CookieCatalog(store, paths, clock=SystemClock(), entropy=SystemEntropy())
        self.cluster_id = await cookies.cluster_id()
        self._registrar = BookieRegistrar(
            store,
            paths,
            BookieRegistration(
                self.bookie_id, self.incarnation, self.address, fault_domain=self.domain
            ),
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
        await self._registrar.register()

    async def unregister(self) -> None:
        if self._registrar is not None:
            await self._registrar.close()
            self._registrar = None

    async def stop(self) -> None:
        """The process ends; data stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for connection in list(self._connections):
            await connection.wait_closed()
        await self._tasks.close()

    def cut(self) -> None:
        """Reset every connection."""
        for connection in list(self._connections):
            connection.abort()

    def wipe(self) -> None:
        """Lose the disk: a new incarnation (B-25)."""
        self.salvage.add(self.incarnation.bytes)
        self.incarnation = uuid.uuid4()
        self.ledgers.clear()

    def lose(self, ledger_id: int, entry: int) -> None:
        self.ledger(ledger_id).entries.pop(entry, None)

    def ledger(self, ledger_id: int) -> FakeLedger:
        return self.ledgers.setdefault(ledger_id, FakeLedger())

    # --- wire ---

    def _accept(self) -> FramedConnection:
        return FramedConnection(
            self._on_frame,
            lambda connection, _: self._connections.discard(connection),
            self._connections.add,
        )

    def _on_frame(self, connection: FramedConnection, frame: Frame) -> None:
        kind = FrameType(frame.type)
        self.received.append(kind)
        if kind in self.silent:
            return
        hold = self.hold.get(kind)
        if hold is not None and not hold.is_set():
            self._tasks.spawn(self._later(connection, frame, hold), name="held")
        else:
            self._handle(connection, frame)

    async def _later(self, connection: FramedConnection, frame: Frame, hold: asyncio.Event) -> None:
        await hold.wait()
        self._handle(connection, frame)

    def _handle(self, connection: FramedConnection, frame: Frame) -> None:
        kind = FrameType(frame.type)
        forced = self.statuses.get(kind)
        status = forced.pop(0) if forced else None
        if kind is FrameType.READ_LAC and status is None:
            self._tasks.spawn(self._long_poll(connection, frame), name="long poll")
            return
        reply = self._reply(kind, frame, status)
        if reply and kind not in self.mute:
            connection.send(reply)

    def _reply(self, kind: FrameType, frame: Frame, status: Status | None) -> list[Buffer]:
        if kind is FrameType.HELLO:
            reply = bookie_pb2.HelloReply(
                protocol_version=VERSION,
                cluster_id=self.cluster_id,
                bookie_id=self.bookie_id,
                incarnation=str(self.incarnation),
                max_frame_bytes=MAX_FRAME_BYTES,
                max_entries_per_frame=MAX_ENTRIES_PER_FRAME,
                max_entry_bytes=ENTRY_BYTES_MAX,
            )
            return [_frame(FrameType.HELLO_REPLY, frame, reply.SerializeToString())]
        if kind is FrameType.ADD:
            return [self._add(frame, status)]
        if kind is FrameType.READ:
            return self._read(frame, status)
        if kind is FrameType.FENCE:
            return [self._fence(frame, status)]
        if kind is FrameType.LIST_ENTRIES:
            return [self._list(frame, status)]
        if kind is FrameType.WRITE_LAC:
            return [self._write_lac(frame)]
        error = bookie_pb2.ErrorReply(status=status or Status.BAD_REQUEST, cause="forced")
        return [_frame(FrameType.ERROR, frame, error.SerializeToString())]

    def _add(self, frame: Frame, status: Status | None) -> bytes:
        request = decode_add(frame.body, ENTRY_BYTES_MAX)
        recovery = bool(frame.flags & Flags.RECOVERY)
        statuses = [
            status or self._add_one(request.incarnation, bytes(entry), recovery)
            for entry in request.entries
        ]
        self._wake_pollers()
        return encode_add_reply(frame.request_id, statuses)

    def _add_one(self, incarnation: bytes, entry: bytes, recovery: bool) -> Status:
        if incarnation != self.incarnation.bytes:
            return Status.WRONG_INCARNATION
        try:
            header = verify(entry)
        except CorruptEntry:
            return Status.BAD_DIGEST
        ledger = self.ledger(header.ledger_id)
        if ledger.fenced and not recovery:
            return Status.FENCED
        known = ledger.entries.setdefault(header.entry_id, entry)
        if known != entry:
            return Status.CONFLICT
        ledger.lac = max(ledger.lac, header.lac)
        return Status.OK

    def _read(self, frame: Frame, status: Status | None) -> list[Buffer]:
        request = decode_read(frame.body)
        ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
        mine = request.incarnation == self.incarnation.bytes
        if frame.flags & Flags.FENCE and mine:
            ledger = self.ledger(request.ledger_id)
            ledger.fenced = True
            self._wake_pollers()
        entries = self._run_of(ledger, request)
        if status is None and not entries:
            known = request.ledger_id in self.ledgers
            absent = Status.NO_SUCH_ENTRY if known else Status.NO_SUCH_LEDGER
            status = absent if mine else Status.UNKNOWN
        if status is not None and status is not Status.OK:
            entries = []
        lac = max(ledger.lac, ledger.explicit_lac)
        return encode_read_reply(frame.request_id, status or Status.OK, lac, entries)

    @staticmethod
    def _run_of(ledger: FakeLedger, request: ReadRequest) -> list[Buffer]:
        out: list[Buffer] = []
        size = 0
        for entry in range(request.first_entry, request.first_entry + request.max_count):
            data = ledger.entries.get(entry)
            if data is None or (out and size + len(data) > request.max_bytes):
                break
            out.append(data)
            size += len(data)
        return out

    def _list(self, frame: Frame, status: Status | None) -> bytes:
        request = bookie_pb2.ListEntriesRequest.FromString(bytes(frame.body))
        if request.incarnation != str(self.incarnation):
            status = Status.UNKNOWN
        ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
        held = sorted(e for e in ledger.entries if request.first <= e <= request.last)
        reply = bookie_pb2.ListEntriesReply(status=status or Status.OK, through=request.last)
        if status is None:
            reply.run_firsts.extend(held)
            reply.run_lasts.extend(held)
        return _frame(FrameType.LIST_ENTRIES_REPLY, frame, reply.SerializeToString())

    def _fence(self, frame: Frame, status: Status | None) -> bytes:
        request = bookie_pb2.FenceRequest.FromString(bytes(frame.body))
        lac = -1
        if request.incarnation == str(self.incarnation) and status is None:
            ledger = self.ledger(request.ledger_id)
            ledger.fenced = True
            self._wake_pollers()
            lac = max(ledger.lac, ledger.explicit_lac)
        reply = bookie_pb2.FenceReply(status=status or Status.OK, last_add_confirmed=lac)
        return _frame(FrameType.FENCE_REPLY, frame, reply.SerializeToString())

    def _write_lac(self, frame: Frame) -> bytes:
        request = bookie_pb2.WriteLac.FromString(bytes(frame.body))
        packed = struct.pack(">qq", request.ledger_id, request.last_add_confirmed)
        status = Status.OK if crc32c(packed) == request.crc32c else Status.BAD_DIGEST
        if status is Status.OK:
            ledger = self.ledger(request.ledger_id)
            ledger.explicit_lac = max(ledger.explicit_lac, request.last_add_confirmed)
            self._wake_pollers()
        reply = bookie_pb2.WriteLacReply(status=status)
        return _frame(FrameType.WRITE_LAC_REPLY, frame, reply.SerializeToString())

    def _wake_pollers(self) -> None:
        moved, self._lac_moved = self._lac_moved, asyncio.Event()
        moved.set()

    async def _long_poll(self, connection: FramedConnection, frame: Frame) -> None:
        request = bookie_pb2.ReadLacRequest.FromString(bytes(frame.body))
        ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                while request.timeout_ms and not ledger.fenced:
                    ledger = self.ledgers.get(request.ledger_id) or FakeLedger()
                    if max(ledger.lac, ledger.explicit_lac) > request.previous:
                        break
                    await self._lac_moved.wait()
        except TimeoutError:
            pass
        known = request.ledger_id in self.ledgers
        reply = bookie_pb2.ReadLacReply(
            status=Status.OK if known else Status.NO_SUCH_LEDGER,
            last_add_confirmed=max(ledger.lac, ledger.explicit_lac),
            fenced=ledger.fenced,
        )
        connection.send([_frame(FrameType.READ_LAC_REPLY, frame, reply.SerializeToString())])


def _frame(kind: FrameType, request: Frame, body: bytes) -> bytes:
    return encode_frame(kind, request.request_id, body)
