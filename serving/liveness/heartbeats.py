"""Heartbeats from this broker to those it watches, and the replacement of one that is gone.

The decisions are `suspicion.Suspicion`'s. One request to each watched broker is always under way;
the other side holds it for a moment. Its end tells at once that the process died, its silence that
it stands still or cannot be reached.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import grpc

from octavo.metadata.brokers import BrokerDirectory, BrokerInfo, unregister
from octavo.metadata.bundles import BundleOwner, BundleRegistry
from octavo.metadata.paths import Paths
from octavo.metadata.store import MetadataStore
from octavo.proto import peers_pb2 as pb
from octavo.proto.endpoints import SocketNetwork, open_channel
from octavo.proto.peers_pb2_grpc import PeersStub
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.liveness.standing import LEASE_MARGIN_S, LEASE_S, Standing
from octavo.serving.liveness.suspicion import Peer, Replace, Suspicion

if TYPE_CHECKING:
    from octavo.proto.peers_pb2_grpc import PeersAsyncStub

HOLD_S = 0.25
"""How long the other side keeps a heartbeat: this many seconds between two answers."""
ANSWER_S = 5.0
"""A heartbeat without an answer for so long is given up and sent again."""
KNOCK_S = 0.5
"""How long a new connection may take that only tells whether anybody listens."""
PAUSE_S = 0.05
"""Between a heartbeat that failed and the next one."""
TICK_S = 0.1
STALL_S = 0.1
"""A tick that came later than this was a pause of this process (HB-6)."""
RETRY_S = 0.5
"""A replacement that failed is tried again after this."""

_log = get_logger("octavo.serving.heartbeats")


class Cluster(NamedTuple):
    """What the cluster's metadata say of brokers, and how to change it."""

    store: MetadataStore
    paths: Paths
    brokers: BrokerDirectory
    bundles: BundleRegistry


class Heartbeats:
    """One broker's watch over others."""

    def __init__(
        self,
        standing: Standing,
        cluster: Cluster,
        *,
        clock: Clock,
        silence_s: float,
        network: SocketNetwork | None = None,
    ) -> None:
        self._standing = standing
        self._cluster = cluster
        self._clock = clock
        self._network = network or SocketNetwork()
        self._core = Suspicion(standing.me.broker_id, silence_s=silence_s)
        self._tasks = TaskOwner("heartbeats")
        self._watching: dict[Peer, asyncio.Task[None]] = {}
        self._look = asyncio.Event()

    def start(self) -> None:
        """Begin to watch."""
        self._tasks.spawn(self._follow_members(), name="members")
        self._tasks.spawn(self._decide(), name="decide")

    async def close(self) -> None:
        """Watch nobody any more; a replacement that began is left to others."""
        await self._tasks.close()

    def suspected(self) -> frozenset[str]:
        """Ids of brokers that do not answer at this time."""
        return self._core.suspected(self._clock.monotonic())

    # --- whom -----------------------------------------------------------------------------------

    async def _follow_members(self) -> None:
        while True:
            changed = self._tasks.spawn(self._cluster.brokers.wait_changed(), name="changed")
            self._members(self._cluster.brokers.live())
            await asyncio.wait({changed})

    def _members(self, live: list[BrokerInfo]) -> None:
        peers = [Peer(one.broker_id, one.process_nonce, one.address) for one in live]
        self._core.members(peers, self._clock.monotonic())
        wanted = self._core.watched()
        for peer in [peer for peer in self._watching if peer not in wanted]:
            self._watching.pop(peer).cancel()
        for peer in wanted:
            if peer not in self._watching:
                task = self._tasks.spawn(self._watch(peer), name=f"watch {peer.broker_id}")
                self._watching[peer] = task

    # --- heartbeats -----------------------------------------------------------------------------

    async def _watch(self, peer: Peer) -> None:
        while True:
            channel = open_channel(peer.address)
            try:
                stub: PeersAsyncStub = PeersStub(channel)
                await self._beat(peer, stub)
            except grpc.aio.AioRpcError as error:
                _log.info("heartbeat-failed", peer=peer.broker_id, code=error.code().name)
            finally:
                await channel.close()
            if await self._is_refused(peer.address):
                self._core.refused(peer)
                self._look.set()
            await self._clock.sleep(PAUSE_S)

    async def _beat(self, peer: Peer, stub: PeersAsyncStub) -> None:
        request = pb.HeartbeatRequest(
            from_broker=self._standing.me.broker_id, hold_ms=round(HOLD_S * 1000)
        )
        while True:
            reply = await stub.Heartbeat(request, timeout=ANSWER_S)
            self._core.answered(peer, reply.process_nonce, self._clock.monotonic())

    async def _is_refused(self, address: str) -> bool:
        """Whether the machine that has `address` says that nobody listens there."""
        try:
            async with asyncio.timeout(KNOCK_S):
                await self._network.dial(address, _Knock, "broker address")
        except ConnectionRefusedError:
            return True
        except (OSError, OctavoError, TimeoutError):
            return False
        return False

    # --- decisions ------------------------------------------------------------------------------

    async def _decide(self) -> None:
        while True:
            before_s = self._clock.monotonic()
            deadline_s = self._core.next_deadline_s()
            wait_s = TICK_S
            if deadline_s is not None:
                wait_s = min(TICK_S, max(0.0, deadline_s - before_s))
            woken = await _set_within(self._look, wait_s)
            now_s = self._clock.monotonic()
            late_s = now_s - before_s - wait_s
            if not woken and late_s > STALL_S:
                self._core.stalled(late_s, now_s)
            for order in self._core.due(now_s):
                self._tasks.spawn(self._replace(order), name=f"replace {order.peer.broker_id}")
            if wait_s == 0.0:
                await self._clock.sleep(TICK_S)  # what is due waits for something else

    async def _replace(self, order: Replace) -> None:
        peer = order.peer
        try:
            if await self._standing.confirm():  # who is cut off from the store decides nothing
                _log.warning("broker-is-replaced", peer=peer.broker_id, why=order.why)
                await self._take_away(peer)
                return
        except OctavoError as error:
            _log.warning("broker-not-replaced", peer=peer.broker_id, cause=error.cause)
        await self._clock.sleep(RETRY_S)
        self._core.kept(peer)

    async def _take_away(self, peer: Peer) -> None:
        """First the registration, then nothing for as long as it may count, then the bundles."""
        cluster, gone = self._cluster, BrokerInfo(peer.broker_id, peer.address, peer.process_nonce)
        if await unregister(cluster.store, cluster.paths, gone, clock=self._clock):
            self._core.replaced(peer, self._clock.monotonic())
        await self._clock.sleep(LEASE_S + LEASE_MARGIN_S)
        owned = await cluster.bundles.owners()
        theirs = BundleOwner(peer.broker_id, peer.address, peer.process_nonce)
        await asyncio.gather(
            *(cluster.bundles.evict(n, theirs) for n, owner in owned.items() if owner == theirs)
        )


class _Knock(asyncio.BufferedProtocol):
    """A connection that was only wanted as such."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody listens: that is all."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


async def _set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Whether `event` was set within that time; it is clear afterwards."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
