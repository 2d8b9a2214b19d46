"""The clients of one broker, by client id, and what their quotas say (X24, S19). Pure.

All streams and calls of one client id share its buckets. A quota is per broker, as in Kafka: a
client that uses three brokers may use three times as much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from octavo.metadata.quotas import QuotaLimits
from octavo.runtime.errors import Throttled, TooManyConnections
from octavo.serving.quotas.buckets import TokenBucket

PAUSE_MAX_S = 10.0
"""A stream is never left unread for longer: then what it sends is refused with THROTTLED, so that
nobody takes the broker for dead."""
REQUESTS_OWED_MAX_S = 2.0
"""Of requests a client may owe so much before they are refused or held: each is told how long to
pause, and none that pauses is kept away for ever by others of the same id which take what there
is."""
ANSWER_S = 0.5
"""An answer to a reader with a quota holds no more bytes than it may read in so long, or one batch:
a large one would be followed by a pause as long, and be far above the quota in its second."""
IDLE_CLIENTS_MAX = 10_000
"""Clients without a stream whose debts are remembered, the latest ones."""

BYTES_IN, BYTES_OUT, REQUESTS, CONNECTIONS = "bytes_in", "bytes_out", "requests", "connections"


class Excess(NamedTuple):
    """For how long a client should use nothing more, and which quota says so."""

    seconds: float
    quota: str

    @property
    def pause_s(self) -> float:
        """What of it is waited for at a time."""
        return min(self.seconds, PAUSE_MAX_S)

    @property
    def pause_ms(self) -> int:
        """The same as clients are told: 0 only where there is nothing to wait for."""
        return -int(-self.pause_s * 1000 // 1)


WITHIN = Excess(0.0, "")


class ClientUse:
    """What one client id uses of this broker; made and counted by `ClientQuotas`."""

    def __init__(self, client_id: str, throttled: dict[str, int]) -> None:
        self.client_id = client_id
        self.limits = QuotaLimits()
        self.connections: dict[str, int] = {}
        """Open streams, by the address of the connection that they are on."""
        self._throttled = throttled
        self._bytes_in: TokenBucket | None = None
        self._bytes_out: TokenBucket | None = None
        self._requests: TokenBucket | None = None

    def adopt(self, limits: QuotaLimits, now_s: float) -> None:
        """Other quotas from now on; connections that are open stay."""
        self.limits = limits
        self._bytes_in = _bucket(self._bytes_in, limits.bytes_in_per_s, now_s)
        self._bytes_out = _bucket(self._bytes_out, limits.bytes_out_per_s, now_s)
        self._requests = _bucket(self._requests, limits.requests_per_s, now_s)

    def received(self, size_bytes: int, now_s: float) -> Excess:
        """A message of batches came."""
        if self._bytes_in is None and self._requests is None:
            return WITHIN
        return self._noted(self._worse(self._bytes_in, BYTES_IN, size_bytes, now_s))

    def sends(self, size_bytes: int, now_s: float) -> Excess:
        """A request is answered with so many bytes of batches."""
        if self._bytes_out is None and self._requests is None:
            return WITHIN
        return self._noted(self._worse(self._bytes_out, BYTES_OUT, size_bytes, now_s))

    def asked(self, now_s: float) -> Excess:
        """A unary call came; raises Throttled, and counts nothing, if too much is owed already.

        Then the pause is until it would be carried out: shorter than the one of whoever was.
        """
        if self._requests is None:
            return WITHIN
        beyond = self._worse(None, REQUESTS, None, now_s)
        if beyond.seconds:
            raise self.refusal(beyond)
        return self._noted(self._worse(None, REQUESTS, 1, now_s))

    def owed_in(self, now_s: float) -> Excess:
        """What keeps the next message of batches from being read."""
        return self._worse(self._bytes_in, BYTES_IN, None, now_s)

    def owed_out(self, now_s: float) -> Excess:
        """What keeps the next request from being answered."""
        return self._worse(self._bytes_out, BYTES_OUT, None, now_s)

    def answer_bytes(self, most_bytes: int) -> int:
        """How much one answer may hold where it would be `most_bytes`."""
        rate = self.limits.bytes_out_per_s
        return min(most_bytes, max(1, int(rate * ANSWER_S))) if rate else most_bytes

    def refusal(self, excess: Excess) -> Throttled:
        """What is answered instead of holding a stream for longer than PAUSE_MAX_S."""
        self._throttled[excess.quota] += 1
        return Throttled(
            f"client {self.client_id!r} uses more than its quota of {excess.quota}",
            hint="send less, or raise the quota: `octavo quotas set`",
            throttle_ms=excess.pause_ms,
            quota=excess.quota,
        )

    def _worse(
        self, bucket: TokenBucket | None, quota: str, taken: int | None, now_s: float
    ) -> Excess:
        """Take from the bucket, and one request; or only look (None), how much is owed of the
        bucket, and of requests beyond what may be owed."""
        found = WITHIN
        if bucket is not None:
            owed_s = bucket.owed_s(now_s) if taken is None else bucket.take(taken, now_s)
            if owed_s > 0:
                found = Excess(owed_s, quota)
        if self._requests is not None:
            requests = self._requests
            if taken is None:
                owed_s = requests.owed_s(now_s) - REQUESTS_OWED_MAX_S
            else:
                owed_s = requests.take(1, now_s)
            if owed_s > found.seconds:
                found = Excess(owed_s, REQUESTS)
        return found

    def _noted(self, excess: Excess) -> Excess:
        if excess.seconds > 0:
            self._throttled[excess.quota] += 1
        return excess


class ClientQuotas:
    """Every client id that uses this broker.

    Args:
        default: for whoever has no quota of its own; 0: none.
    """

    def __init__(self, default: QuotaLimits) -> None:
        self.default = default
        self.throttled: dict[str, int] = dict.fromkeys(
            (BYTES_IN, BYTES_OUT, REQUESTS, CONNECTIONS), 0
        )
        """How often each quota slowed a client down or turned it away."""
        self._own: Mapping[str, QuotaLimits] = {}
        self._active: dict[str, ClientUse] = {}
        self._idle: OrderedDict[str, ClientUse] = OrderedDict()

    def adopt(self, own: Mapping[str, QuotaLimits], now_s: float) -> None:
        """The quotas of single clients as they are now."""
        self._own = own
        for uses in (self._active, self._idle):
            for client_id, use in uses.items():
                use.adopt(self.limits_of(client_id), now_s)

    def limits_of(self, client_id: str) -> QuotaLimits:
        """What counts for a client: its own values, and the default for the others."""
        own = self._own.get(client_id)
        if own is None:
            return self.default
        pairs = zip(own, self.default, strict=True)
        return QuotaLimits(*(usual if value is None else value for value, usual in pairs))

    def opened(self, client_id: str, connection: str, now_s: float) -> ClientUse:
        """A stream begins on a connection; raises TooManyConnections."""
        use = self._known(client_id) or self._new(client_id, now_s)
        most = use.limits.connections_max
        if most and connection not in use.connections and len(use.connections) >= most:
            self.throttled[CONNECTIONS] += 1
            raise TooManyConnections(
                f"client {client_id!r} has {len(use.connections)} connections to this broker, "
                f"its quota is {most}",
                connections_max=most,
            )
        self._idle.pop(client_id, None)
        self._active[client_id] = use
        use.connections[connection] = use.connections.get(connection, 0) + 1
        return use

    def asked(self, client_id: str, now_s: float) -> Excess:
        """A unary call of a client, which may have no stream; raises Throttled."""
        use = self._known(client_id)
        if use is None:
            if not self.limits_of(client_id).requests_per_s:
                return WITHIN
            use = self._new(client_id, now_s)
        if not use.connections:
            self._remember(use)
        return use.asked(now_s)

    def _known(self, client_id: str) -> ClientUse | None:
        return self._active.get(client_id) or self._idle.get(client_id)

    def _new(self, client_id: str, now_s: float) -> ClientUse:
        use = ClientUse(client_id, self.throttled)
        use.adopt(self.limits_of(client_id), now_s)
        return use

    def _remember(self, use: ClientUse) -> None:
        """What a client owes that has no stream, the latest IDLE_CLIENTS_MAX of them."""
        self._idle[use.client_id] = use
        self._idle.move_to_end(use.client_id)
        if len(self._idle) > IDLE_CLIENTS_MAX:
            self._idle.popitem(last=False)

    def closed(self, use: ClientUse, connection: str) -> None:
        """The stream ended."""
        left = use.connections[connection] - 1
        if left:
            use.connections[connection] = left
            return
        del use.connections[connection]
        if not use.connections:
            del self._active[use.client_id]
            self._remember(use)


def _bucket(found: TokenBucket | None, rate: int | None, now_s: float) -> TokenBucket | None:
    if not rate:  # unlimited, or nobody said
        return None
    if found is None:
        return TokenBucket(rate, now_s)
    if found.rate != rate:
        found.adopt(rate, now_s)
    return found
