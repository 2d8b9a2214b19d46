"""A network in memory that a simulator drives: it delays, freezes and cuts on command.

Everything happens on the loop, in calls of its own, so a loop with a clock of its own decides when.
A connection is a `Link` of two `MemoryTransport`s:

    write ─► outbox of this end ─► (delay) ─► get_buffer, buffer_updated of the other end's protocol

The first WINDOW_BYTES of an outbox count as taken by the network, as a kernel's buffers take what
is small; behind them stands what `get_write_buffer_size` says. The end of a direction follows its
last byte.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from octavo.proto.transport import AnyProtocol, MakeProtocol
from octavo.runtime.address import bare_host, join_address, split_address
from octavo.runtime.checksum import Buffer

WINDOW_BYTES = 256 * 1024
"""Bytes of one direction that are under way."""
HIGH_WATER_BYTES = 64 * 1024
"""Default of `set_write_buffer_limits`, as asyncio's."""
CHUNK_BYTES = 256 * 1024
"""At most so much is handed over in one call."""
FIRST_FREE_PORT = 40_000


class MemoryTransport:
    """One end of a Link."""

    def __init__(
        self,
        link: Link,
        protocol: asyncio.BufferedProtocol,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        self.peer: MemoryTransport = self  # until the link has both
        self._link = link
        self._protocol = protocol
        self._names = {"sockname": local, "peername": remote}
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[memoryview] = deque()
        self._outbox_bytes = 0
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._paused_writing = False
        self._reading = True
        self._closing = False
        self._ending = False  # nothing comes behind the outbox
        self._end_told = False  # the other end knows
        self._lost = False  # connection_lost is called or on its way
        self._moving: asyncio.TimerHandle | None = None  # the next delivery to the peer

    # --- for the protocol -------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send bytes after those sent before; dropped when the transport is closing."""
        self.writelines((data,))

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        """Send buffers in order."""
        if self._closing:
            return
        for data in list_of_data:
            view = memoryview(data).cast("B")
            if view.nbytes:
                self._outbox.append(view)
                self._outbox_bytes += view.nbytes
        if not self._paused_writing and self.get_write_buffer_size() > self._high:
            self._paused_writing = True
            self._protocol.pause_writing()
        self.move()

    def get_write_buffer_size(self) -> int:
        """Bytes that were sent and that the network has not taken yet."""
        return max(0, self._outbox_bytes - WINDOW_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Above `high` bytes the protocol is asked to pause, at `low` or less to go on."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        """True if what arrives is handed to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Leave what arrives where it is, the end included."""
        self._reading = False

    def resume_reading(self) -> None:
        """Hand over again."""
        self._reading = True
        self.peer.move()

    def is_closing(self) -> bool:
        """True from `close()`, `abort()` or the end of the connection on."""
        return self._closing

    def close(self) -> None:
        """Receive nothing more; end when everything sent was taken by the network."""
        if self._closing:
            return
        self._closing = self._ending = True
        self._settle()
        self.move()
        self.peer.move()  # what it sends goes nowhere from now on

    def abort(self) -> None:
        """End at once; what the network has not taken is dropped."""
        self._end_at_once(None)

    def _end_at_once(self, error: Exception | None) -> None:
        self._closing = self._ending = True
        while self.get_write_buffer_size():
            last = self._outbox.pop()
            kept = max(0, last.nbytes - self.get_write_buffer_size())
            self._outbox_bytes -= last.nbytes - kept
            if kept:
                self._outbox.append(last[:kept])
        self._lose(error)
        self.move()
        self.peer.move()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername`: (host, port) of the other end; `sockname`: of this one."""
        return self._names.get(name, default)

    # --- for the link -----------------------------------------------------------------------

    def begin(self) -> None:
        """Let the protocol meet its transport."""
        itself = cast(asyncio.BaseTransport, self)
        self._guarded(lambda: self._protocol.connection_made(itself))

    def break_off(self, error: Exception) -> None:
        """The connection is gone; nothing under way arrives."""
        self._closing = self._ending = self._end_told = True
        self._outbox.clear()
        self._outbox_bytes = 0
        self._lose(error)

    def move(self) -> None:
        """See to it that what can be delivered to the peer will be."""
        if self._moving is None and not self._link.frozen and self._has_news():
            self._moving = self._loop.call_later(self._link.delay_s(), self._deliver)

    def _has_news(self) -> bool:
        peer = self.peer
        if peer._closing:  # whatever arrives is thrown away
            return bool(self._outbox)
        return peer._reading and (bool(self._outbox) or (self._ending and not self._end_told))

    def _deliver(self) -> None:
        self._moving = None
        if self._link.frozen or not self._has_news():
            return
        peer = self.peer
        if peer._closing:
            self._outbox.clear()
            self._outbox_bytes = 0
        elif self._outbox:
            peer._guarded(lambda: self._hand_over(peer._protocol))
        else:
            self._end_told = True
            peer._guarded(peer._on_end)
        self._settle()
        self.move()

    def _hand_over(self, protocol: asyncio.BufferedProtocol) -> None:
        room = memoryview(protocol.get_buffer(min(self._outbox_bytes, CHUNK_BYTES))).cast("B")
        filled = 0
        while self._outbox and filled < min(room.nbytes, CHUNK_BYTES):
            data = self._outbox.popleft()
            taken = min(data.nbytes, room.nbytes - filled)
            room[filled : filled + taken] = data[:taken]
            filled += taken
            if taken < data.nbytes:
                self._outbox.appendleft(data[taken:])
        self._outbox_bytes -= filled
        protocol.buffer_updated(filled)

    def _on_end(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def _settle(self) -> None:
        """The network took something of what was sent."""
        left = self.get_write_buffer_size()
        if self._paused_writing and left <= self._low:
            self._paused_writing = False
            self._guarded(self._protocol.resume_writing)
        if self._closing and not left:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        self._paused_writing = False  # connection_lost says more than resume_writing
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)
            self._link.ended()

    def _guarded(self, call: Callable[[], object]) -> None:
        """An error of the protocol ends its connection, as with sockets."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - reported to the loop and to the protocol
            self._loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self}
            )
            self._end_at_once(error)


class Link:
    """An open connection, in the hands of whoever tests what happens to it."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        """Whom it was dialled to."""
        self.frozen = False
        """Nothing arrives in either direction, and nobody is told: a half-open link."""
        self.delay_s = network.delay_s
        self._network = network
        self._ends: list[MemoryTransport] = []
        self._alive = 2

    def join(self, one: MemoryTransport, other: MemoryTransport) -> None:
        """Make these two the ends, and let their protocols meet them, the dialled one first."""
        one.peer, other.peer = other, one
        self._ends = [one, other]
        other.begin()
        one.begin()

    def freeze(self) -> None:
        """Hold everything back, until `thaw`."""
        self.frozen = True

    def thaw(self) -> None:
        """Deliver again, what was held back first."""
        self.frozen = False
        for end in self._ends:
            end.move()

    def cut(self) -> None:
        """Both ends learn that the connection was reset; what was under way is gone."""
        for end in self._ends:
            end.break_off(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def ended(self) -> None:
        """One end is gone."""
        self._alive -= 1
        if not self._alive:
            self._network.links.remove(self)


class MemoryListener:
    """Takes connections, until `close`."""

    def __init__(self, network: MemoryNetwork, where: str, port: int) -> None:
        self._network = network
        self._where = where
        self.port = port

    async def close(self) -> None:
        """Take no more connections; those that were accepted go on."""
        self._network.listeners.pop(self._where, None)


class MemoryNetwork:
    """A Network of one loop, on which nothing leaves the process.

    Hosts are names that are compared and not resolved.

    Args:
        delay_s: asked for each delivery; what was sent first arrives first whatever it says.
    """

    def __init__(self, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self.delay_s = delay_s
        self.listeners: dict[str, MakeProtocol] = {}
        """By address."""
        self.links: list[Link] = []
        """Connections that are open, the oldest first."""
        self._ports = itertools.count(FIRST_FREE_PORT)

    async def listen(self, protocol: MakeProtocol, host: str, port: int) -> MemoryListener:
        """Make a protocol for each connection to `host`:`port`, 0 for a free one."""
        number = port or next(self._ports)
        where = join_address(host, number)
        if where in self.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), where)
        self.listeners[where] = protocol
        return MemoryListener(self, where, number)

    async def dial(
        self, address: str, protocol: Callable[[], AnyProtocol], what: str
    ) -> AnyProtocol:
        """Connect to `address`; the protocol made for it, which has met its transport."""
        host, port = split_address(address, what=what)
        where = join_address(host, port)
        await asyncio.sleep(self.delay_s())
        accept = self.listeners.get(where)
        if accept is None:
            refused = errno.ECONNREFUSED
            raise ConnectionRefusedError(refused, os.strerror(refused), where)
        here, there = ("memory", next(self._ports)), (bare_host(host), port)
        link, mine = Link(self, where), protocol()
        self.links.append(link)
        link.join(
            MemoryTransport(link, mine, here, there),
            MemoryTransport(link, accept(), there, here),
        )
        return mine
