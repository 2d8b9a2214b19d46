"""A token bucket with debts: who takes more than there is waits afterwards (BP-4). Pure.

What has arrived cannot be taken back, so an amount is always granted and the bucket goes below
zero; the answer is how long nothing more should be taken. That makes a rate exact for amounts of
any size, as long as the debt is not forgotten: it is bounded by DEBT_MAX_S.
"""

from __future__ import annotations

BURST_S = 1.0
"""What is not used is saved up for so long."""
DEBT_MAX_S = 60.0
"""A debt is never longer: what lies beyond is forgiven, so that a rate lowered to a trickle, or one
large message, shuts nobody out for ever."""

OWED_MIN_S = 0.001
"""Less than this is owed by nobody yet; it counts with what is taken next."""


class TokenBucket:
    """Amounts at a rate, on average. `now_s` never goes back.

    Args:
        rate: per second, above 0.
    """

    def __init__(self, rate: int, now_s: float) -> None:
        self.rate = rate
        self._left = rate * BURST_S
        self._at_s = now_s

    def adopt(self, rate: int, now_s: float) -> None:
        """Another rate from now on; a debt stays as long as it was, in seconds."""
        self._refill(now_s)
        self._left = self._left / self.rate * rate
        self.rate = rate

    def take(self, amount: int, now_s: float) -> float:
        """Take `amount`; seconds until nothing is owed."""
        self._refill(now_s)
        self._left = max(self._left - amount, -DEBT_MAX_S * self.rate)
        return self._owed_s()

    def owed_s(self, now_s: float) -> float:
        """Seconds until nothing is owed."""
        self._refill(now_s)
        return self._owed_s()

    def _refill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = max(self._at_s, now_s)
        self._left = min(self._left + passed_s * self.rate, self.rate * BURST_S)

    def _owed_s(self) -> float:
        owed_s = -self._left / self.rate
        return owed_s if owed_s > OWED_MIN_S else 0.0
