"""What one ledger client did since it started; plain numbers that whoever owns it may show."""

from __future__ import annotations

from collections import Counter

from octavo.runtime.histogram import WORK_SECONDS, Histogram


class LedgerCounters:
    """Written on the client's loop."""

    def __init__(self) -> None:
        self.ensemble_changes = 0
        """Committed for open ledgers."""
        self.degraded_ledgers = 0
        """Opened with fewer copies than wanted (A6)."""
        self.recoveries: Counter[str] = Counter(dict.fromkeys(RECOVERY_OUTCOMES, 0))
        self.recovery_seconds = Histogram(WORK_SECONDS)
        """Of those that ended well."""


RECOVERY_OUTCOMES = ("closed", "undecided", "conflict", "gone")
"""How a recovery ends: with a CLOSED record; not within its time; refused for good; of a ledger
that does not exist any more."""
