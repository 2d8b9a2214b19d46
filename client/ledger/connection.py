"""One connection to one bookie for one purpose: requests, replies, timeouts (P-1, 3.9, W-10).

Owns the mapping from request ids to what waits for them, dialling with back-off, the hello, and
the queue of adds. Adds are *runs* handed over by lanes of writers; a frame carries runs of many
ledgers up to about 256 KiB, and its reply costs one dictionary pop. Everything else is a call
with a future.

It never decides what a failure means: lanes and callers get a `Status`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.entry_run import EntryRun
from octavo.client.ledger.greeting import Greeting, error_of
from octavo.client.ledger.pending import AddFrame, AddLane, PendingCall, QueuedRun, fail_runs
from octavo.proto import bookie_pb2
from octavo.proto.bookie_messages import parse_body
from octavo.proto.bookie_wire import (
    HELLO_FRAME_BYTES_MAX,
    MAX_ENTRIES_PER_FRAME,
    MAX_FRAME_BYTES,
    TARGET_FRAME_BYTES,
    Flags,
    Frame,
    FrameType,
    Status,
    decode_add_reply,
    encode_add_runs,
    encode_frame,
)
from octavo.proto.framed import FramedConnection
from octavo.proto.transport import Network
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    BookieUnavailable,
    InvalidRequest,
    OctavoError,
    RequestTimedOut,
)
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.connection")

_ADD_REPLY = int(FrameType.ADD_REPLY)

CALLS_MAX = 4096
"""Calls waiting for a reply on one connection."""
READ_REPLY_EAGER_BYTES = 2 * 1024 * 1024
"""A reply up to this size is received without copies; we chose the bookie and know its limit."""
_REPLY_TO = {
    FrameType.READ: FrameType.READ_REPLY,
    FrameType.FENCE: FrameType.FENCE_REPLY,
    FrameType.READ_LAC: FrameType.READ_LAC_REPLY,
    FrameType.WRITE_LAC: FrameType.WRITE_LAC_REPLY,
    FrameType.ADD: FrameType.ADD_REPLY,
    FrameType.LIST_ENTRIES: FrameType.LIST_ENTRIES_REPLY,
}


class BookieChannel:
    """Connection to `address`, dialled when first needed and after every loss.

    Args:
        address: host:port of the bookie's framed protocol.
        bookie_id: whom we expect there.
        purpose: add, read or recovery; they never share a connection (P-1).
        network: dials.
        now: coarse monotonic time, kept by the pool's ticker.
        on_dirty: called when adds were queued, so that the pool flushes once per loop turn.
    """

    def __init__(
        self,
        address: str,
        bookie_id: str,
        purpose: str,
        *,
        config: LedgerClientConfig,
        cluster_id: str,
        network: Network,
        clock: Clock,
        entropy: Entropy,
        now: Callable[[], float],
        on_dirty: Callable[[BookieChannel], None],
    ) -> None:
        self.address = address
        self.bookie_id = bookie_id
        self.purpose = purpose
        self.in_flight_bytes = 0
        self._config = config
        self._greeting = Greeting(config.client_name, cluster_id, bookie_id)
        self._network = network
        self._clock = clock
        self._now = now
        self._on_dirty = on_dirty
        self._tasks = TaskOwner(f"bookie {bookie_id} {purpose}")
        self._backoff = Backoff(
            entropy, initial_s=config.reconnect_initial_s, max_s=config.reconnect_max_s
        )
        self._dialling: asyncio.Task[object] | None = None
        self._not_before = 0.0  # no dialling earlier, after a failed attempt
        self._connection: FramedConnection | None = None  # after its hello
        self._incarnation = b""
        self._next_id = 1
        self._frames: dict[int, AddFrame] = {}
        self._calls: dict[int, PendingCall] = {}
        self._queue: deque[QueuedRun] = deque()
        self._waiting: dict[Callable[[], None], None] = {}  # called once when ready
        self._retired: list[tuple[FramedConnection, float]] = []  # and when to close them
        self._closed = False

    @property
    def ready(self) -> bool:
        """True while connected and past the hello."""
        return self._connection is not None and not self._connection.closed

    @property
    def idle(self) -> bool:
        """True when nothing is queued, in flight or waited for."""
        return not (self._frames or self._calls or self._queue or self._waiting)

    # --- adds ---

    def enqueue(self, lane: AddLane, run: EntryRun) -> None:
        """Queue a run; the pool flushes at the end of this loop turn."""
        self._queue.append(QueuedRun(lane, run, self._now()))
        self._on_dirty(self)

    def flush(self) -> None:
        """Send what is queued, in frames of about 256 KiB, as far as budgets allow."""
        if not self._queue:
            return
        connection = self._connection
        if connection is None or connection.closed:
            self._ensure_dialling()
            return
        limit = self._config.connection_in_flight_bytes
        while self._queue and self.in_flight_bytes < limit and not connection.write_paused:
            items, count, total = self._take_frame()
            if not items:
                continue
            request_id = self._next_id
            self._next_id += 1
            self._frames[request_id] = AddFrame(items, count, total, items[0].since)
            self.in_flight_bytes += total
            connection.send(
                encode_add_runs(
                    request_id,
                    self._incarnation,
                    [(item.run.lengths, item.run.parts) for item in items],
                    total,
                )
            )

    def _take_frame(self) -> tuple[list[QueuedRun], int, int]:
        queue = self._queue
        items: list[QueuedRun] = []
        count = total = 0
        while queue:
            item = queue[0]
            entries = len(item.run.lengths)
            full = total + item.run.total_bytes > TARGET_FRAME_BYTES
            if items and (full or count + entries > MAX_ENTRIES_PER_FRAME):
                break
            queue.popleft()
            if item.lane.incarnation != self._incarnation:
                item.lane.failed(item.run, Status.WRONG_INCARNATION)
                continue
            items.append(item)
            count += entries
            total += item.run.total_bytes
        return items, count, total

    # --- calls ---

    async def call(
        self, frame_type: FrameType, body: bytes, *, timeout_s: float, flags: int = 0
    ) -> Frame:
        """Send one request and wait for its reply.

        Raises RequestTimedOut, BookieUnavailable, or what the bookie's ERROR frame says.
        """
        return await self._call(
            lambda request_id: [encode_frame(frame_type, request_id, body, flags)],
            timeout_s,
            _REPLY_TO[frame_type],
        )

    async def call_add(
        self, incarnation: bytes, entry: bytes, *, flags: int, timeout_s: float
    ) -> int:
        """A single add outside the pipeline (recovery); returns its status."""
        frame = await self._call(
            lambda request_id: encode_add_runs(
                request_id, incarnation, [([len(entry)], [entry])], len(entry), flags
            ),
            timeout_s,
            FrameType.ADD_REPLY,
        )
        return decode_add_reply(frame, 1)[0]

    async def _call(
        self, build: Callable[[int], list[bytes]], timeout_s: float, wanted: FrameType
    ) -> Frame:
        deadline = self._clock.monotonic() + timeout_s
        connection = await self._connected(timeout_s)
        if len(self._calls) >= CALLS_MAX:
            raise BookieUnavailable(f"{CALLS_MAX} calls wait for {self.bookie_id}")
        request_id = self._next_id
        self._next_id += 1
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = PendingCall(future, deadline)
        try:
            connection.send(build(request_id))
            frame = await future
        finally:
            self._calls.pop(request_id, None)
        if frame.type == FrameType.ERROR:
            raise error_of(frame, self.bookie_id)
        if frame.type != wanted:
            raise InvalidRequest(
                f"{self.bookie_id} sent type {frame.type} where a {wanted.name} was asked for"
            )
        return frame

    def post(self, frame_type: FrameType, body: bytes) -> None:
        """Send a request whose reply nobody needs (explicit LAC); dropped when not connected."""
        if self._connection is not None:
            self._connection.send([encode_frame(frame_type, self._next_id, body)])
            self._next_id += 1

    # --- connecting ---

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, after the next successful hello; keeps dialling until then."""
        self._waiting[callback] = None
        self._ensure_dialling()

    def forget_waiter(self, callback: Callable[[], None]) -> None:
        """The one behind `callback` no longer cares."""
        self._waiting.pop(callback, None)

    def retire(self) -> None:
        """Use a new connection from now on (3.4, BAD_DIGEST); the old one only brings replies."""
        if self._connection is not None:
            close_at = self._clock.monotonic() + self._config.limits.add_timeout_s
            self._retired.append((self._connection, close_at))
            self._connection = None

    async def close(self) -> None:
        """Close the connection and fail what waits."""
        self._closed = True
        await self._tasks.close()
        connections = [connection for connection, _ in self._retired]
        if self._connection is not None:
            connections.append(self._connection)
        for connection in connections:
            connection.close()
            await connection.wait_closed()
        self._fail_all(Status.DISCONNECTED, BookieUnavailable(f"{self.bookie_id}: client closed"))

    async def _connected(self, timeout_s: float) -> FramedConnection:
        if self._connection is None or self._connection.closed:
            task = self._ensure_dialling()
            if task is None:
                raise BookieUnavailable(f"{self.bookie_id} at {self.address} is not reachable")
            await asyncio.wait([task], timeout=timeout_s)
        connection = self._connection
        if connection is None or connection.closed:
            raise BookieUnavailable(f"{self.bookie_id} at {self.address} is not reachable")
        return connection

    def _ensure_dialling(self) -> asyncio.Task[object] | None:
        """The dialling task; None when the last attempt failed a moment ago."""
        if self._dialling is not None:
            return self._dialling
        if self._closed:
            self._fail_all(Status.DISCONNECTED, BookieUnavailable("client closed"))
            return None
        if self._clock.monotonic() < self._not_before and not self._waiting:
            self._fail_queue(Status.DISCONNECTED)
            return None
        self._dialling = self._tasks.spawn(self._dial(), name="dial")
        return self._dialling

    async def _dial(self) -> None:
        try:
            while True:
                try:
                    await self._dial_once()
                    break
                except (OSError, TimeoutError, OctavoError) as error:
                    pause_s = self._backoff.next_s()
                    self._not_before = self._clock.monotonic() + pause_s
                    self._fail_queue(Status.DISCONNECTED)
                    _log.info("bookie %s at %s: %s", self.bookie_id, self.address, error)
                    if not self._waiting:
                        return
                await self._clock.sleep(pause_s)
        finally:
            self._dialling = None
        self._backoff.reset()
        self._not_before = 0.0
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()
        self.flush()

    async def _dial_once(self) -> None:
        hello: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

        def first(connection: FramedConnection, frame: Frame) -> None:
            if hello.done():
                return  # given up in this very turn of the loop: it is about to be aborted
            connection.deliver_to(self._on_frame)  # whatever follows, in this turn too
            hello.set_result(frame)

        def ended(connection: FramedConnection, error: OctavoError | None) -> None:
            if not hello.done():
                hello.set_exception(error or BookieUnavailable(f"{self.address} hung up"))
                hello.exception()
            self._on_closed(connection, error)

        async with asyncio.timeout(self._config.connect_timeout_s):
            connection = await self._network.dial(
                self.address,
                lambda: FramedConnection(first, ended, max_frame_bytes=HELLO_FRAME_BYTES_MAX),
                "address of a bookie",
            )
            try:
                connection.send([self._greeting.frame(self.purpose)])
                reply = await hello
            except BaseException:
                connection.abort()
                raise
        try:
            self._incarnation = self._greeting.check(reply, self.address)
        except OctavoError:
            connection.abort()
            raise
        connection.allow_frames(MAX_FRAME_BYTES, eager_bytes=READ_REPLY_EAGER_BYTES)
        connection.start_keepalive()
        self._connection = connection

    # --- replies ---

    def _on_frame(self, _connection: FramedConnection, frame: Frame) -> None:
        sent = self._frames.pop(frame.request_id, None)
        if sent is None:
            call = self._calls.pop(frame.request_id, None)
            if call is not None and not call.future.done():
                call.future.set_result(frame)
            elif call is None and frame.type == FrameType.ERROR:
                _log.warning("connection to %s: %s", self.bookie_id, error_of(frame, "bookie"))
            return
        self.in_flight_bytes -= sent.total_bytes
        if frame.type == _ADD_REPLY and frame.flags & Flags.ALL_OK:
            for item in sent.items:
                item.lane.confirmed(item.run)
        else:
            sent.answer(self._statuses(frame, sent.count))
        if self._queue:
            self._on_dirty(self)

    def _statuses(self, frame: Frame, count: int) -> list[int]:
        if frame.type == FrameType.ERROR:
            try:
                status = parse_body(bookie_pb2.ErrorReply, frame.body).status
            except InvalidRequest:
                status = Status.INTERNAL
            return [Status.INTERNAL if status == Status.OK else status] * count
        try:
            return decode_add_reply(frame, count)
        except OctavoError as error:
            _log.error("bookie %s: %s", self.bookie_id, error)
            return [Status.INTERNAL] * count

    def _on_closed(self, connection: FramedConnection, error: OctavoError | None) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._fail_all(
            Status.DISCONNECTED,
            BookieUnavailable(f"connection to {self.bookie_id} ended: {error or 'closed'}"),
        )
        if self._waiting and not self._closed:
            self._ensure_dialling()

    # --- failures ---

    def expire(self, now: float) -> None:
        """Give up requests whose time is over (3.9); the pool calls it every 100 ms."""
        limit = now - self._config.limits.add_timeout_s
        while self._frames:
            request_id = next(iter(self._frames))
            sent = self._frames[request_id]
            if sent.sent_at > limit:
                break
            del self._frames[request_id]
            self.in_flight_bytes -= sent.total_bytes
            fail_runs(sent.items, Status.TIMEOUT)
        while self._queue and self._queue[0].since <= limit:  # W-10: the budget stayed used up
            item = self._queue.popleft()
            item.lane.failed(item.run, Status.TIMEOUT)
        while self._retired and self._retired[0][1] <= now:
            self._retired.pop(0)[0].close()
        late = [call for call in self._calls.values() if call.deadline <= now]
        for call in late:
            if not call.future.done():
                call.future.set_exception(RequestTimedOut(f"{self.bookie_id} did not answer"))
        if self._queue:
            self._on_dirty(self)

    def _fail_all(self, status: Status, error: OctavoError) -> None:
        frames, self._frames = self._frames, {}
        calls, self._calls = self._calls, {}
        self.in_flight_bytes = 0
        for call in calls.values():
            if not call.future.done():
                call.future.set_exception(error)
        for sent in frames.values():
            fail_runs(sent.items, status)
        self._fail_queue(status)

    def _fail_queue(self, status: Status) -> None:
        items, self._queue = self._queue, deque()
        fail_runs(items, status)
