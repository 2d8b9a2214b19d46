"""One client connection of the framed wire at the server's end (design.md §4, spec/ledger.md §6).

Owns the handshake, the dispatch of frames to the store, the batching of replies, and the
back-pressure of this connection: bytes of adds not yet answered are bounded by pausing the socket.
Before the hello only small frames are accepted, and for `hello_timeout_s` only. A malformed body is
answered with an ERROR frame; a malformed stream (a damaged frame too) gets one if possible and
closes this connection only.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from octavo.bookie.config import BookieConfig
from octavo.bookie.connection_memory import UnsentReplies
from octavo.bookie.store import BookieStore, LacAnswer, ListAnswer
from octavo.proto import bookie_pb2
from octavo.proto.bookie_messages import parse_body
from octavo.proto.bookie_wire import (
    HELLO_FRAME_BYTES_MAX,
    MAX_ENTRIES_PER_FRAME,
    MAX_FRAME_BYTES,
    VERSION,
    Flags,
    Frame,
    FrameType,
    Status,
    decode_add,
    decode_read,
    encode_add_ok,
    encode_add_reply,
    encode_frame,
    encode_read_reply,
)
from octavo.proto.entry import MAX_ENTRY_BYTES, lac_digest
from octavo.proto.framed import FramedConnection
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import (
    InvalidRequest,
    InvariantViolation,
    MessageTooLarge,
    OctavoError,
    UnsupportedVersion,
    WrongCluster,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

READS_AT_ONCE = 16
"""Reads of one connection that are executed at the same time; others wait their turn."""

_ADD = int(FrameType.ADD)

REQUESTS_PER_CONNECTION_MAX = 4096
"""Requests other than adds that one connection may have open; beyond it OVERLOADED."""

_MALFORMED: dict[type[OctavoError], Status] = {
    MessageTooLarge: Status.TOO_LARGE,
    UnsupportedVersion: Status.BAD_VERSION,
}
"""What a peer is told about a stream that cannot be read on."""

_log = get_logger("octavo.bookie.connection")


class Host(Protocol):
    """What a connection needs of its server."""

    config: BookieConfig

    @property
    def store(self) -> BookieStore:
        """The store requests go to."""
        ...

    @property
    def cluster_id(self) -> str:
        """The cluster this bookie belongs to."""
        ...

    @property
    def incarnation(self) -> uuid.UUID:
        """The incarnation requests must be addressed to."""
        ...

    @property
    def salvage(self) -> frozenset[bytes]:
        """Older incarnations, which get salvage answers (B-25)."""
        ...

    @property
    def ready(self) -> bool:
        """False while starting or stopping: NOT_READY."""
        ...

    @property
    def crowded(self) -> bool:
        """True while the journal's queue is so full that adds should wait in their sockets."""
        ...

    @property
    def unsent(self) -> UnsentReplies:
        """The budget of replies that clients do not take (BP-2)."""
        ...

    @property
    def eager_bytes(self) -> int:
        """Up to this size a frame of a greeted client gets its memory at once."""
        ...

    def wait_uncrowded(self, session: Session) -> None:
        """Call `session.resume()` when the queue has drained."""
        ...


class Session:
    """The server's side of one connection."""

    def __init__(self, host: Host, tasks: TaskOwner, on_end: Callable[[Session], None]) -> None:
        self._host = host
        self._tasks = tasks
        self._on_end = on_end
        self._incarnation = host.incarnation.bytes
        self._greeted = False
        self._in_flight_bytes = 0
        self._open: set[asyncio.Task[Any]] = set()  # requests other than adds
        self._read_slots = asyncio.Semaphore(READS_AT_ONCE)
        self._paused = False
        self._refused = ""
        self._hello_timer: asyncio.TimerHandle | None = None
        self.connection = FramedConnection(
            self._on_frame,
            self._on_closed,
            self._on_open,
            on_malformed=self._on_malformed,
            max_frame_bytes=HELLO_FRAME_BYTES_MAX,
        )

    # --- connection events ------------------------------------------------------------------

    def _on_open(self, connection: FramedConnection) -> None:
        if self._refused:
            self._error(0, Status.OVERLOADED, self._refused)
            connection.close()
            return
        connection.start_keepalive()
        limit_s = self._host.config.hello_timeout_s
        self._hello_timer = asyncio.get_running_loop().call_later(limit_s, self._no_hello, limit_s)

    def refuse(self, cause: str) -> None:
        """Tell the peer why, and end the connection, as soon as it is made."""
        self._refused = cause

    def _no_hello(self, limit_s: float) -> None:
        self._error(0, Status.BAD_REQUEST, f"no hello within {limit_s:g} s")
        self.connection.close()

    def _on_malformed(self, connection: FramedConnection, error: OctavoError) -> None:
        self._error(0, _MALFORMED.get(type(error), Status.BAD_REQUEST), error.cause, error.hint)

    def _on_closed(self, connection: FramedConnection, reason: OctavoError | None) -> None:
        if reason is not None:
            _log.warning("connection-ended", peer=connection.peer, cause=str(reason))
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._host.unsent.forget(connection)
        for task in self._open:  # RD-7: long polls end with their connection, and so does the rest
            task.cancel()
        self._on_end(self)

    def _on_frame(self, connection: FramedConnection, frame: Frame) -> None:
        try:
            self._dispatch(frame)
        except MessageTooLarge as error:
            self._error(frame.request_id, Status.TOO_LARGE, error.cause)
        except InvalidRequest as error:
            self._error(frame.request_id, Status.BAD_REQUEST, error.cause)
        except ValueError as error:
            self._error(frame.request_id, Status.BAD_REQUEST, str(error))

    def _dispatch(self, frame: Frame) -> None:
        if frame.type == _ADD and self._greeted:
            self._on_add(frame)
        elif frame.type == FrameType.HELLO:
            self._on_hello(frame)
        elif not self._greeted:
            self._error(frame.request_id, Status.BAD_REQUEST, "say hello first")
            self.connection.close()
        elif frame.type == FrameType.READ:
            self._on_read(frame)
        elif frame.type == FrameType.FENCE:
            self._on_fence(frame)
        elif frame.type == FrameType.LIST_ENTRIES:
            self._on_list(frame)
        elif frame.type == FrameType.READ_LAC:
            self._on_read_lac(frame)
        elif frame.type == FrameType.WRITE_LAC:
            self._on_write_lac(frame)
        else:
            self._error(frame.request_id, Status.BAD_REQUEST, f"unknown frame type {frame.type}")

    # --- replies ----------------------------------------------------------------------------

    def _send(self, buffers: Sequence[Buffer]) -> None:
        """Hand buffers to the transport; uvloop gathers what one turn of the loop wrote."""
        self.connection.send(buffers)

    def _error(self, request_id: int, status: Status, cause: str, hint: str = "") -> None:
        body = bookie_pb2.ErrorReply(status=status, cause=cause, hint=hint).SerializeToString()
        self.connection.send([encode_frame(FrameType.ERROR, request_id, body)])

    def _reply(self, frame_type: FrameType, request_id: int, message: Message) -> None:
        self._send([encode_frame(frame_type, request_id, message.SerializeToString())])

    # --- hello ------------------------------------------------------------------------------

    def _on_hello(self, frame: Frame) -> None:
        hello = parse_body(bookie_pb2.Hello, frame.body)
        host = self._host
        if hello.protocol_version != VERSION:
            self._error(
                frame.request_id,
                Status.BAD_VERSION,
                f"protocol version {hello.protocol_version}, this bookie speaks {VERSION}",
            )
            self.connection.close()
            return
        if hello.cluster_id and hello.cluster_id != host.cluster_id:
            error = WrongCluster(f"this bookie belongs to cluster {host.cluster_id}")
            self._error(frame.request_id, Status.BAD_REQUEST, str(error))
            self.connection.close()
            return
        self._greeted = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self.connection.allow_frames(MAX_FRAME_BYTES, eager_bytes=self._host.eager_bytes)
        self._reply(
            FrameType.HELLO_REPLY,
            frame.request_id,
            bookie_pb2.HelloReply(
                protocol_version=VERSION,
                cluster_id=host.cluster_id,
                bookie_id=host.config.bookie_id,
                incarnation=str(host.incarnation),
                max_frame_bytes=MAX_FRAME_BYTES,
                max_entries_per_frame=MAX_ENTRIES_PER_FRAME,
                max_entry_bytes=MAX_ENTRY_BYTES,
            ),
        )

    # --- adds -------------------------------------------------------------------------------

    def _on_add(self, frame: Frame) -> None:
        request_id = frame.request_id
        request = decode_add(frame.body, MAX_ENTRY_BYTES)
        count = len(request.entries)
        if not self._host.ready:
            self._send([encode_add_reply(request_id, [Status.NOT_READY] * count)])
            return
        if request.incarnation != self._incarnation:
            self._send([encode_add_reply(request_id, [Status.WRONG_INCARNATION] * count)])
            return
        nbytes, store = len(frame.body), self._host.store
        self._in_flight_bytes += nbytes

        def reply(statuses: list[Status] | None) -> None:
            self._in_flight_bytes -= nbytes
            if statuses is None:
                self._send([encode_add_ok(request_id)])
            else:
                store.stats.note_refused(statuses)
                self._send([encode_add_reply(request_id, statuses)])
            if self._paused:
                self.resume()

        recovery = bool(frame.flags & Flags.RECOVERY)
        store.add(request.entries, nbytes, recovery=recovery, reply=reply, run=request.run)
        if self._in_flight_bytes > self._host.config.connection_in_flight_max_bytes:
            self._pause()
        elif self._host.crowded and self._in_flight_bytes:
            self._pause()
            self._host.wait_uncrowded(self)

    def _pause(self) -> None:
        self._paused = True
        self.connection.pause_reading()

    def resume(self) -> None:
        """Read the socket again if this connection's own budget and the journal allow it."""
        limit = self._host.config.connection_in_flight_max_bytes
        if self._paused and self._in_flight_bytes <= limit // 2 and not self._host.crowded:
            self._paused = False
            self.connection.resume_reading()

    # --- other requests ---------------------------------------------------------------------

    def _serve(
        self, name: str, request_id: int, work: Coroutine[Any, Any, None], busy: Sequence[Buffer]
    ) -> None:
        """Run one request as a task of the server; `busy` is the answer when too many are open.

        It is cancelled when the connection ends: nobody would hear its answer.
        """
        if len(self._open) >= REQUESTS_PER_CONNECTION_MAX:
            work.close()
            self._send(busy)
            return

        async def run() -> None:
            try:
                await work
            except InvariantViolation:
                raise  # the server stops: its state may be broken
            except OctavoError as error:
                _log.error("request-failed", request=name, cause=str(error))
                self._error(request_id, Status.EIO, error.cause)

        def ended(task: asyncio.Task[Any]) -> None:
            self._open.discard(task)
            work.close()  # cancelled before its first step, it would never have been awaited

        task = self._tasks.spawn(run(), name=name)
        self._open.add(task)
        task.add_done_callback(ended)

    def _address(self, incarnation: bytes) -> Status:
        """OK for the present incarnation, UNKNOWN for salvage (B-25), else why not."""
        if not self._host.ready:
            return Status.NOT_READY
        if incarnation == self._incarnation:
            return Status.OK
        return Status.UNKNOWN if incarnation in self._host.salvage else Status.WRONG_INCARNATION

    def _on_read(self, frame: Frame) -> None:
        request = decode_read(frame.body)
        addressed = self._address(request.incarnation)
        if addressed not in (Status.OK, Status.UNKNOWN):
            self._send(encode_read_reply(frame.request_id, addressed, -1, []))
            return

        busy = encode_read_reply(frame.request_id, Status.OVERLOADED, -1, [])

        async def read() -> None:
            async with self._read_slots:
                # BP-2: a client that does not take its replies gets no more of them.
                await self.connection.wait_writable()
                if self._host.unsent.full and not frame.flags & Flags.RECOVERY:
                    # Recovery reads one entry at a time, and waits for nobody's slow reader.
                    self._send(busy)
                    return
                answer = await self._host.store.read(
                    request.ledger_id,
                    request.first_entry,
                    request.max_count,
                    request.max_bytes,
                    fence=bool(frame.flags & Flags.FENCE),
                    salvage=addressed is Status.UNKNOWN,
                )
                self._send(encode_read_reply(frame.request_id, *answer))
                self._host.unsent.sent(self.connection)

        self._serve("read", frame.request_id, read(), busy)

    def _on_fence(self, frame: Frame) -> None:
        request = parse_body(bookie_pb2.FenceRequest, frame.body)
        addressed = self._address(_incarnation_bytes(request.incarnation))
        ledger_id = _ledger_id(request.ledger_id)
        if addressed not in (Status.OK, Status.UNKNOWN):
            message = bookie_pb2.FenceReply(status=addressed, last_add_confirmed=-1)
            self._reply(FrameType.FENCE_REPLY, frame.request_id, message)
            return

        async def fence() -> None:
            store = self._host.store
            if addressed is Status.OK:
                answer = await store.fence(ledger_id)
            else:
                # B-25: the address itself is the fence; nothing addressed to it is ever added
                # again.
                known = await store.read_lac(ledger_id, -1, 0)
                answer = known._replace(status=Status.OK)
            self._reply(
                FrameType.FENCE_REPLY,
                frame.request_id,
                bookie_pb2.FenceReply(status=answer.status, last_add_confirmed=answer.lac),
            )

        busy = bookie_pb2.FenceReply(status=Status.OVERLOADED, last_add_confirmed=-1)
        self._serve(
            "fence",
            frame.request_id,
            fence(),
            [encode_frame(FrameType.FENCE_REPLY, frame.request_id, busy.SerializeToString())],
        )

    def _on_list(self, frame: Frame) -> None:
        request = parse_body(bookie_pb2.ListEntriesRequest, frame.body)
        addressed = self._address(_incarnation_bytes(request.incarnation))
        ledger_id = _ledger_id(request.ledger_id)
        if not 0 <= request.first <= request.last:
            raise InvalidRequest(f"entries {request.first} to {request.last} are no range")

        def send(answer: ListAnswer) -> None:
            message = bookie_pb2.ListEntriesReply(status=answer.status, through=answer.through)
            message.run_firsts.extend(first for first, _ in answer.runs)
            message.run_lasts.extend(last for _, last in answer.runs)
            self._reply(FrameType.LIST_ENTRIES_REPLY, frame.request_id, message)

        if addressed is not Status.OK:  # B-25: salvage cannot say what it does not have
            send(ListAnswer(addressed, -1, []))
            return

        async def list_entries() -> None:
            async with self._read_slots:
                send(await self._host.store.list_entries(ledger_id, request.first, request.last))

        busy = bookie_pb2.ListEntriesReply(status=Status.OVERLOADED, through=-1)
        self._serve(
            "list-entries",
            frame.request_id,
            list_entries(),
            [
                encode_frame(
                    FrameType.LIST_ENTRIES_REPLY, frame.request_id, busy.SerializeToString()
                )
            ],
        )

    def _on_read_lac(self, frame: Frame) -> None:
        request = parse_body(bookie_pb2.ReadLacRequest, frame.body)
        addressed = self._address(_incarnation_bytes(request.incarnation))
        ledger_id = _ledger_id(request.ledger_id)
        if addressed not in (Status.OK, Status.UNKNOWN):
            self._send([_lac_reply(frame.request_id, LacAnswer(addressed, -1, False, -1))])
            return

        async def read_lac() -> None:
            timeout_s = request.timeout_ms / 1000
            answer = await self._host.store.read_lac(ledger_id, request.previous, timeout_s)
            if addressed is Status.UNKNOWN and answer.status is not Status.OK:
                answer = answer._replace(status=Status.UNKNOWN)
            self._send([_lac_reply(frame.request_id, answer)])

        busy = _lac_reply(frame.request_id, LacAnswer(Status.OVERLOADED, -1, False, -1))
        self._serve("read-lac", frame.request_id, read_lac(), [busy])

    def _on_write_lac(self, frame: Frame) -> None:
        request = parse_body(bookie_pb2.WriteLac, frame.body)
        addressed = self._address(_incarnation_bytes(request.incarnation))
        ledger_id = _ledger_id(request.ledger_id)
        lac = request.last_add_confirmed
        if addressed is Status.UNKNOWN:
            addressed = Status.WRONG_INCARNATION
        elif addressed is Status.OK and (lac < -1 or lac_digest(ledger_id, lac) != request.crc32c):
            addressed = Status.BAD_DIGEST
        if addressed is not Status.OK:
            message = bookie_pb2.WriteLacReply(status=addressed)
            self._reply(FrameType.WRITE_LAC_REPLY, frame.request_id, message)
            return

        async def write_lac() -> None:
            status = await self._host.store.write_lac(ledger_id, lac)
            message = bookie_pb2.WriteLacReply(status=status)
            self._reply(FrameType.WRITE_LAC_REPLY, frame.request_id, message)

        busy = bookie_pb2.WriteLacReply(status=Status.OVERLOADED).SerializeToString()
        self._serve(
            "write-lac",
            frame.request_id,
            write_lac(),
            [encode_frame(FrameType.WRITE_LAC_REPLY, frame.request_id, busy)],
        )


def _incarnation_bytes(text: str) -> bytes:
    return uuid.UUID(text).bytes


def _ledger_id(value: int) -> int:
    if value < 0:
        raise InvalidRequest(f"ledger id {value} is negative")
    return value


def _lac_reply(request_id: int, answer: LacAnswer) -> bytes:
    message = bookie_pb2.ReadLacReply(
        status=answer.status,
        last_add_confirmed=answer.lac,
        fenced=answer.fenced,
        last_entry_stored=answer.last_entry,
    )
    return encode_frame(FrameType.READ_LAC_REPLY, request_id, message.SerializeToString())
