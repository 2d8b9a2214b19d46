"""When a batch that is not full should wait for an answer: natural batching. Pure.

With linger 0 every record would travel alone, and at a thousand a second the cost of a message, not
the disk, would decide the latency of all of them. So a batch that is not full waits while the same
broker owes an answer; what arrives meanwhile joins it. A broker that answers fast hardly makes
anyone wait, a busy one gets fewer and larger batches. The same rule as Nagle's (RFC 896), with an
end: a send older than HOLD_S does not count, so a partition that is stuck or a broker far away
costs the others HOLD_S at most.

Measured at 1,000 records of 1 KiB a second, everything on two cores: with one unanswered p50 3.9
and p99 6.7 to 8 ms, with two 4.8 and 9 to 12 ms, without the rule 5.3 and 10 to 18 ms.
"""

from __future__ import annotations

HOLD_S = 0.005
"""The longest that a batch waits for answers to others."""


class RecentSends:
    """Batches sent to one broker within the last HOLD_S and not answered, oldest first."""

    def __init__(self) -> None:
        self._sent_s: dict[int, float] = {}

    def sent(self, correlation: int, now_s: float) -> None:
        """A batch was handed to the stream."""
        self._forget_old(now_s)
        self._sent_s[correlation] = now_s

    def answered(self, correlation: int) -> None:
        """The broker answered it."""
        self._sent_s.pop(correlation, None)

    def clear(self) -> None:
        """The stream ended: there will be no answers."""
        self._sent_s.clear()

    def held_until(self, now_s: float) -> float | None:
        """When the next batch may go although nothing is answered; None: now."""
        self._forget_old(now_s)
        if not self._sent_s:
            return None
        return next(reversed(self._sent_s.values())) + HOLD_S

    def _forget_old(self, now_s: float) -> None:
        while self._sent_s:
            oldest = next(iter(self._sent_s))
            if now_s < self._sent_s[oldest] + HOLD_S:
                return
            del self._sent_s[oldest]
