"""What brokers said of quotas: until when a stream, or no call, should go there (X24, BP-4)."""

from __future__ import annotations

from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.clock import Clock

THROTTLE_MAX_MS = 60_000
"""A broker that asks for a longer pause is asked again after this one."""
SAY_EVERY_S = 60.0
"""A client that is slowed down again and again says so once in this time for each stream, and once
for its calls."""

_log = ClientLog("octavo.client")


class Throttle:
    """Of one stream to one broker, or of all unary calls to it."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.throttled_ms = 0
        """All pauses that were asked for, in the life of the stream's owner."""
        self._address = address
        self._clock = clock
        self._until_s = 0.0
        self._said_s = -SAY_EVERY_S

    def told(self, throttle_ms: int, client_id: str) -> None:
        """A reply asks for a pause; 0: it does not."""
        if throttle_ms <= 0:
            return
        pause_ms = min(throttle_ms, THROTTLE_MAX_MS)
        now_s = self._clock.monotonic()
        self.throttled_ms += pause_ms
        self._until_s = max(self._until_s, now_s + pause_ms / 1000)
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            _log.warning(
                "broker %s slows client %r down by its quota: %d ms now, %d ms so far "
                "(hint: send less, or raise it with `octavo quotas set`)",
                self._address,
                client_id,
                pause_ms,
                self.throttled_ms,
            )

    @property
    def left_s(self) -> float:
        """What is left of the pause."""
        return max(self._until_s - self._clock.monotonic(), 0.0)

    async def over(self) -> None:
        """Return when the stream may carry the next message."""
        while (left_s := self.left_s) > 0:
            await self._clock.sleep(left_s)
