"""All connections of one process to bookies, and what they share (P-1, W-10, 3.9).

Owns one channel per (bookie address, purpose), the flush that runs once per turn of the event
loop, the 100 ms timeout wheel, the process-wide budget of bytes in flight, and what is remembered
of bookies that failed: the quarantine list, and the suspects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from octavo.client.ledger.config import LedgerClientConfig
from octavo.client.ledger.connection import BookieChannel
from octavo.client.ledger.suspects import Suspects
from octavo.proto.endpoints import SocketNetwork
from octavo.proto.transport import Network
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import BookieUnavailable
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.pool")

TICK_S = 0.1
"""3.9: granularity of every timeout."""
LATE_S = 1.0
"""3.9: a loop later than this reads its sockets before it expires anything."""
CHANNELS_MAX = 4096


class AddressBook(Protocol):
    """Where bookies are found; addresses are never stored in ledger metadata (§2.1)."""

    def address_of(self, bookie_id: str) -> str | None:
        """host:port of the framed protocol, or None when the bookie is not registered."""
        ...


class Ticking(Protocol):
    """A writer, as the pool sees it."""

    def flush_adds(self) -> None:
        """Hand the adds of this loop turn to the channels."""
        ...

    def tick(self, now: float) -> bool:
        """100 ms passed; False when nothing more is due, so that ticking may stop."""
        ...


class Throttled(Protocol):
    """Who waits for room in the process budget."""

    def capacity_changed(self) -> None:
        """The process budget may allow more now."""
        ...


class BookiePool:
    """Channels to bookies, shared by every writer, reader and recovery of one client."""

    def __init__(
        self,
        addresses: AddressBook,
        *,
        config: LedgerClientConfig,
        clock: Clock,
        entropy: Entropy,
        cluster_id: str = "",
        network: Network | None = None,
    ) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self.in_flight_bytes = 0
        """Bytes of all handles, every copy counted, not answered (W-10)."""
        self.now = clock.monotonic()
        """Monotonic seconds, renewed by every tick."""
        self.late_ticks = 0
        """How often the loop was late by more than a second (P-4)."""
        self._addresses = addresses
        self._network = network or SocketNetwork()
        self._clock = clock
        self._entropy = entropy
        self._channels: dict[tuple[str, str], BookieChannel] = {}
        self._tasks = TaskOwner("bookie-pool")
        self._dirty_writers: dict[Ticking, None] = {}
        self._dirty_channels: dict[BookieChannel, None] = {}
        self._flush_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticking: dict[Ticking, None] = {}
        self._throttled: dict[Throttled, None] = {}
        self._quarantined: dict[str, float] = {}  # bookie id -> until
        self.suspects = Suspects(
            initial_s=config.replacement_retry_s, max_s=config.replacement_retry_max_s
        )
        """Bookies that are not taken for spares just because they are registered (C-2)."""

    def start(self) -> None:
        """Start the timeout wheel; needs a running loop."""
        self.now = self._clock.monotonic()
        self._tasks.spawn(self._tick_for_ever(), name="tick")

    async def close(self) -> None:
        """Close every connection; what waits fails as disconnected."""
        await self._tasks.close()
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    # --- channels ---

    def channel(self, bookie_id: str, purpose: str) -> BookieChannel:
        """The channel to a bookie; raises BookieUnavailable when its address is not known."""
        address = self._addresses.address_of(bookie_id)
        if address is None:
            raise BookieUnavailable(f"bookie {bookie_id} is not registered")
        key = (f"{bookie_id} {address}", purpose)
        channel = self._channels.get(key)
        if channel is None:
            self._drop_idle(bookie_id, purpose)
            if len(self._channels) >= CHANNELS_MAX:
                raise BookieUnavailable(f"{CHANNELS_MAX} connections are open")
            channel = self._channels[key] = BookieChannel(
                address,
                bookie_id,
                purpose,
                config=self.config,
                cluster_id=self.cluster_id,
                network=self._network,
                clock=self._clock,
                entropy=self._entropy,
                now=self._coarse_now,
                on_dirty=self._channel_dirty,
            )
        return channel

    def _drop_idle(self, bookie_id: str, purpose: str) -> None:
        """The bookie moved to another address: forget its old channel once nothing waits on it."""
        for key, channel in list(self._channels.items()):
            same = channel.bookie_id == bookie_id and channel.purpose == purpose
            if same and channel.idle:
                del self._channels[key]
                self._tasks.spawn(channel.close(), name=f"close {key[0]}")

    def _coarse_now(self) -> float:
        return self.now

    # --- quarantine (3.4) ---

    def quarantine(self, bookie_ids: Iterable[str]) -> None:
        """Avoid these bookies for new ensembles for a while."""
        until = self._clock.monotonic() + self.config.quarantine_s
        for bookie_id in bookie_ids:
            self._quarantined[bookie_id] = until

    def lift_quarantine(self, bookie_ids: Iterable[str]) -> None:
        """These bookies may be used again at once."""
        chosen = list(bookie_ids)
        self.suspects.forgive(chosen)
        for bookie_id in chosen:
            self._quarantined.pop(bookie_id, None)

    def quarantined(self) -> set[str]:
        """Bookies to avoid at present."""
        now = self._clock.monotonic()
        self._quarantined = {b: t for b, t in self._quarantined.items() if t > now}
        return set(self._quarantined)

    # --- flushing: once per loop turn ---

    def writer_dirty(self, writer: Ticking) -> None:
        """`writer` has adds to hand over at the end of this turn."""
        self._dirty_writers[writer] = None
        self._ticking[writer] = None
        self._schedule_flush()

    def _channel_dirty(self, channel: BookieChannel) -> None:
        self._dirty_channels[channel] = None
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            if self._loop is None:  # asking for it each time is a system call
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        writers, self._dirty_writers = self._dirty_writers, {}
        for writer in writers:
            writer.flush_adds()
        channels, self._dirty_channels = self._dirty_channels, {}
        self._flush_scheduled = False
        for channel in channels:
            channel.flush()

    # --- budget (W-10) ---

    @property
    def has_capacity(self) -> bool:
        """True while the process may send more."""
        return self.in_flight_bytes < self.config.process_in_flight_bytes

    def wait_capacity(self, waiter: Throttled) -> None:
        """Tell `waiter` once when the process budget allows more."""
        self._throttled[waiter] = None

    def released(self, count: int) -> None:
        """`count` bytes were answered or given up."""
        self.in_flight_bytes -= count
        if self._throttled and self.has_capacity:
            throttled, self._throttled = self._throttled, {}
            for waiter in throttled:
                waiter.capacity_changed()

    # --- time ---

    def keep_ticking(self, writer: Ticking) -> None:
        """Call `writer.tick` every 100 ms until it returns False."""
        self._ticking[writer] = None

    def forget(self, writer: Ticking) -> None:
        """The writer ended."""
        self._ticking.pop(writer, None)

    async def _tick_for_ever(self) -> None:
        while True:
            await self._clock.sleep(TICK_S)
            self._tick()

    def _tick(self) -> None:
        before, self.now = self.now, self._clock.monotonic()
        if self.now - before > TICK_S + LATE_S:
            # 3.9: the loop was stalled; replies wait in the sockets. Expire at the next tick.
            self.late_ticks += 1
            _log.warning("event loop was late by %.1f s", self.now - before)
            return
        for channel in list(self._channels.values()):
            channel.expire(self.now)
        for writer in list(self._ticking):
            if not writer.tick(self.now):
                self._ticking.pop(writer, None)
