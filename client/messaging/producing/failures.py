"""Failed batches that nobody looked at yet, so that closing can tell (U2: no silent loss)."""

from __future__ import annotations

from octavo.client.messaging.producing.futures import Completion
from octavo.runtime.errors import DeliveryFailed

FAILURES_KEPT_MAX = 1_000
"""Failed batches remembered for close(); above it only their records are counted."""


class UnseenFailures:
    """The failures of one producer. Any thread: each change is a single step."""

    def __init__(self) -> None:
        self._failed: list[Completion] = []
        self._uncounted = 0

    def note(self, batch: Completion) -> None:
        """Remember a failed batch until somebody looked at it; repeatable."""
        if batch.observed or (self._failed and self._failed[-1] is batch):
            return  # looked at, or told again after an interruption
        if len(self._failed) >= FAILURES_KEPT_MAX:
            self._failed = [item for item in self._failed if not item.observed]
        if len(self._failed) < FAILURES_KEPT_MAX:
            self._failed.append(batch)
        else:
            self._uncounted += batch.records

    def records(self) -> int:
        """Records that failed and nobody looked at their futures."""
        return sum(batch.records for batch in self._failed if not batch.observed) + self._uncounted

    def raise_unseen(self) -> None:
        """Raise DeliveryFailed when there are such records, and forget them."""
        unseen = [batch for batch in self._failed if not batch.observed]
        count = sum(batch.records for batch in unseen) + self._uncounted
        self._failed, self._uncounted = [], 0
        if unseen:
            first = unseen[0].error
            raise DeliveryFailed(
                f"{count} records were not acknowledged and nobody looked at their futures; "
                f"first error: {first}",
                hint="look at the futures of send_nowait, or use send",
                records=count,
            ) from first
