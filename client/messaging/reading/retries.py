"""How long a partition waits before it is tried again. Pure."""

from __future__ import annotations

from octavo.client.messaging.reading.readings import ReadingSettings
from octavo.runtime.entropy import Entropy


class Retries:
    """Doubling delays with a fifth of jitter."""

    def __init__(self, settings: ReadingSettings, entropy: Entropy) -> None:
        self._initial_s = settings.backoff_initial_s
        self._max_s = settings.backoff_max_s
        self._entropy = entropy

    def delay_s(self, failures: int) -> float:
        """Before the next attempt after so many failures in a row."""
        base_s = min(self._initial_s * float(1 << min(max(failures - 1, 0), 20)), self._max_s)
        return base_s * self._entropy.uniform(0.8, 1.2)
