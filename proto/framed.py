"""The shell around the bookie wire codec, used by both ends (design.md §4).

Owns one connection over any `Transport`: frames in, buffers out, write-buffer high-water marks, a
ping every 2 s, and death after 5 s of silence (half-open links). It does not know what frames mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from octavo.proto.bookie_wire import (
    EAGER_BYTES,
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    FrameType,
    encode_frame,
)
from octavo.proto.transport import Transport
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import BookieUnavailable, OctavoError

WRITE_HIGH_WATER_BYTES = 8 * 1024 * 1024
"""Above this the transport asks writers to pause."""
_PING = int(FrameType.PING)
_PONG = int(FrameType.PONG)
PING_INTERVAL_S = 2.0
SILENCE_LIMIT_S = 5.0


class FramedConnection(asyncio.BufferedProtocol):
    """One end of a framed connection.

    Args:
        on_frame: called on the loop for every frame but PING and PONG.
        on_closed: called once when the connection is gone, with the reason or None after `close()`.
        on_open: called when the connection is established.
        on_malformed: called before a malformed stream is closed; may send a last frame that says
            why. Without it nothing is said.
        max_frame_bytes: limit of received frames; `allow_frames()` raises it after the hello.
    """

    def __init__(
        self,
        on_frame: Callable[[FramedConnection, Frame], None],
        on_closed: Callable[[FramedConnection, OctavoError | None], None],
        on_open: Callable[[FramedConnection], None] | None = None,
        *,
        on_malformed: Callable[[FramedConnection, OctavoError], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_open = on_open
        self._on_malformed = on_malformed
        self._decoder = FrameDecoder(max_frame_bytes)
        self._transport: Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.Event()
        self._reason: OctavoError | None = None
        self._last_received_s = self._loop.time()
        self._keepalive: asyncio.TimerHandle | None = None
        self._next_tick_s = 0.0
        self.peer = "?"

    # --- asyncio callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport and set its write limits."""
        # Nor uvloop's transports nor those in memory derive from asyncio's: a cast, not a check.
        self._transport = cast(Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name)
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end once."""
        if self._keepalive is not None:
            self._keepalive.cancel()
        self._closed.set()
        self._writable.set()
        reason = self._reason
        if reason is None and exc is not None:
            reason = BookieUnavailable(f"connection to {self.peer} broke: {exc}")
        self._on_closed(self, reason)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport writes received bytes."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Decode and deliver; a malformed stream closes this connection only (P11)."""
        self._last_received_s = self._loop.time()
        try:
            frames = self._decoder.received(nbytes)
        except OctavoError as error:
            if self._on_malformed is not None and not self.outstanding_bytes():
                self._on_malformed(self, error)
                self._reason = self._reason or error
                self.close()
            else:
                self.abort(error)
            return
        for frame in frames:
            if self._closed.is_set():
                return
            if frame.type == _PING:
                self.send([encode_frame(FrameType.PONG, frame.request_id)])
            elif frame.type != _PONG:
                self._on_frame(self, frame)

    def eof_received(self) -> bool:
        """The peer closed its side: close ours."""
        return False

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The transport's buffer drained."""
        self._writable.set()

    # --- for the owner ---

    @property
    def closed(self) -> bool:
        """True once the connection is gone or being closed."""
        return self._closed.is_set() or self._transport is None or self._transport.is_closing()

    @property
    def write_paused(self) -> bool:
        """True while the transport's buffer is above its high-water mark."""
        return not self._writable.is_set()

    def deliver_to(self, on_frame: Callable[[FramedConnection, Frame], None]) -> None:
        """Hand every frame from the next one on to `on_frame`."""
        self._on_frame = on_frame

    def allow_frames(self, max_frame_bytes: int, *, eager_bytes: int = EAGER_BYTES) -> None:
        """Receive frames up to this size from now on: the peer has said who it is."""
        self._decoder.allow(max_frame_bytes, eager_bytes=eager_bytes)

    def outstanding_bytes(self) -> int:
        """Bytes handed over but not yet accepted by the kernel."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue buffers in order; dropped when the connection is closed (on_closed tells)."""
        if self._transport is not None and not self._transport.is_closing():
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)

    async def wait_writable(self) -> None:
        """Return when the transport accepts more, or the connection ended."""
        await self._writable.wait()

    async def wait_closed(self) -> None:
        """Return when the connection is gone."""
        await self._closed.wait()

    def pause_reading(self) -> None:
        """Stop receiving (back-pressure of the owner)."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        if self._transport is not None and not self._transport.is_closing():
            self._last_received_s = self._loop.time()
            self._transport.resume_reading()

    def start_keepalive(self) -> None:
        """Ping every 2 s; abort after 5 s without a byte from the peer."""
        self._last_received_s = self._loop.time()
        self._arm()

    def _arm(self) -> None:
        self._next_tick_s = self._loop.time() + PING_INTERVAL_S
        self._keepalive = self._loop.call_at(self._next_tick_s, self._tick)

    def _tick(self) -> None:
        if self.closed or self._transport is None:
            return
        now = self._loop.time()
        if now - self._next_tick_s > 1.0:
            # Our own loop was stalled: received bytes may still wait to be read (spec ledger §3.9).
            self._last_received_s = now
        silent_s = now - self._last_received_s
        if silent_s > SILENCE_LIMIT_S and self._transport.is_reading():
            self.abort(BookieUnavailable(f"{self.peer} was silent for {silent_s:.1f} s"))
            return
        self.send([encode_frame(FrameType.PING, 0)])
        self._arm()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: OctavoError | None = None) -> None:
        """Close at once, dropping what is queued."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()
