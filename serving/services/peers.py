"""What other brokers ask this one."""

from __future__ import annotations

from octavo.proto import peers_pb2 as pb
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest, NotLeader
from octavo.serving.group_lag.ends import LogEnds
from octavo.serving.liveness.standing import Standing
from octavo.serving.load_ahead import LoadAhead
from octavo.serving.ownership import Ownership
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary

PARTITIONS_MAX = 100_000
"""Most that one bundle may name; what is not named is loaded when it is asked for."""
HOLD_MAX_S = 10.0
"""Longest that a heartbeat may be asked to be held."""


class PeerService:
    """The methods of `octavo.peers.Peers`."""

    def __init__(
        self,
        standing: Standing,
        ownership: Ownership,
        ahead: LoadAhead,
        ends: LogEnds,
        clock: Clock,
    ) -> None:
        self._standing = standing
        self._ownership = ownership
        self._ahead = ahead
        self._ends = ends
        self._clock = clock

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {
            "Heartbeat": unary(pb.HeartbeatRequest, self.heartbeat),
            "Take": unary(pb.TakeRequest, self.take),
            "Ends": unary(pb.EndsRequest, self.ends),
        }

    async def heartbeat(self, request: pb.HeartbeatRequest, _caller: Caller) -> pb.HeartbeatReply:
        """Who this process is, after a moment."""
        hold_s = request.hold_ms / 1000
        if not 0 <= hold_s <= HOLD_MAX_S:
            raise InvalidRequest(f"a heartbeat cannot be held for {request.hold_ms} ms")
        await self._clock.sleep(hold_s)
        return pb.HeartbeatReply(process_nonce=self._standing.me.process_nonce)

    async def take(self, request: pb.TakeRequest, _caller: Caller) -> pb.TakeReply:
        """O-3: the bundle of a broker that gives it away."""
        if len(request.partitions) > PARTITIONS_MAX:
            raise InvalidRequest(f"more than {PARTITIONS_MAX} partitions are handed over at once")
        partitions = [(one.topic, one.partition) for one in request.partitions]
        if request.prepare:
            if not self._ownership.takes:
                raise NotLeader(f"bundle {request.bundle} cannot come: this broker stops")
            await self._ahead.read_up(partitions)
            return pb.TakeReply()
        if not await self._ownership.acquire(request.bundle):
            return pb.TakeReply()
        await self._ahead.load(partitions)
        me = self._standing.me
        return pb.TakeReply(
            owner_id=me.broker_id, owner_address=me.address, process_nonce=me.process_nonce
        )

    async def ends(self, request: pb.EndsRequest, _caller: Caller) -> pb.EndsReply:
        """M4: where logs that this broker owns begin and end."""
        return await self._ends.tell(request)
