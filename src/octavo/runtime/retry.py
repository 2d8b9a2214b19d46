"""Back-off for cores and shells, from randomness that is passed in (interface §5).

There are no retry decorators: who tries again says how often and until when.
"""

from __future__ import annotations

from octavo.runtime.entropy import Entropy


class Backoff:
    """Doubling delays with jitter: first `initial_s`, never above `max_s`.

    Args:
        jitter: fraction by which each delay may be longer or shorter, 0..1.
    """

    def __init__(
        self, entropy: Entropy, *, initial_s: float = 0.1, max_s: float = 1.0, jitter: float = 0.2
    ) -> None:
        self._entropy = entropy
        self._initial_s = initial_s
        self._max_s = max_s
        self._jitter = jitter
        self.attempts = 0

    def next_s(self) -> float:
        """The delay before the next attempt, in seconds."""
        base = min(self._max_s, self._initial_s * float(1 << min(self.attempts, 30)))
        self.attempts += 1
        return base * self._entropy.uniform(1 - self._jitter, 1 + self._jitter)

    def reset(self) -> None:
        """Start again from `initial_s`, after a success."""
        self.attempts = 0
