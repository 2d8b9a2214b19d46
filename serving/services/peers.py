"""What other brokers ask this one."""

from __future__ import annotations

from octavo.proto import peers_pb2 as pb
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvalidRequest
from octavo.serving.liveness.standing import Standing
from octavo.serving.services.caller import Caller
from octavo.serving.services.rpc import Handlers, unary

HOLD_MAX_S = 10.0
"""Longest that a heartbeat may be asked to be held."""


class PeerService:
    """The methods of `octavo.peers.Peers`."""

    def __init__(self, standing: Standing, clock: Clock) -> None:
        self._standing = standing
        self._clock = clock

    def handlers(self) -> Handlers:
        """See `Service`."""
        return {"Heartbeat": unary(pb.HeartbeatRequest, self.heartbeat)}

    async def heartbeat(self, request: pb.HeartbeatRequest, _caller: Caller) -> pb.HeartbeatReply:
        """Who this process is, after a moment."""
        hold_s = request.hold_ms / 1000
        if not 0 <= hold_s <= HOLD_MAX_S:
            raise InvalidRequest(f"a heartbeat cannot be held for {request.hold_ms} ms")
        await self._clock.sleep(hold_s)
        return pb.HeartbeatReply(process_nonce=self._standing.me.process_nonce)
