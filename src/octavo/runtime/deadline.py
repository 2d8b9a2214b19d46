"""One point in time by which a call must be over, handed down instead of fresh timeouts.

A call that retries, or asks one thing after another, gives each step what is left of the caller's
time: never the whole time again. Monotonic (G5).
"""

from __future__ import annotations

import math

from octavo.runtime.clock import Clock
from octavo.runtime.errors import ConfigError

TIMEOUT_S_MAX = 1e9
"""Thirty years; event loops and locks cannot count much further."""


class Deadline:
    """`timeout_s` from now on `clock`; None never passes.

    Attributes:
        timeout_s: the whole time the caller gave, for messages.
    """

    __slots__ = ("_at_s", "_clock", "timeout_s")

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        self._clock = clock
        self.timeout_s = timeout_s
        self._at_s = math.inf if timeout_s is None else clock.monotonic() + timeout_s

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self._clock.monotonic() >= self._at_s

    def left_s(self, at_most_s: float = math.inf) -> float:
        """Seconds that are left, from 0 up to `at_most_s`; infinite when there is no limit."""
        return max(min(self._at_s - self._clock.monotonic(), at_most_s), 0.0)

    def wait_s(self) -> float | None:
        """The same for asyncio: None when there is no limit."""
        return None if math.isinf(self._at_s) else self.left_s()


def check_timeout(timeout_s: object, name: str = "timeout") -> float | None:
    """A caller's timeout in seconds; None waits for ever, 0 and below not at all.

    Raises ConfigError for what is no number.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ConfigError(f"{name}={timeout_s!r} is no number of seconds")
    if math.isnan(timeout_s):
        raise ConfigError(f"{name}={timeout_s!r} is no number of seconds")
    if timeout_s > TIMEOUT_S_MAX:
        return None
    return max(float(timeout_s), 0.0)
