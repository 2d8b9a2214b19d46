"""When to tell the user that nothing is acknowledged any more, and why: pure, no clock of its own.

Deliveries are retried in silence for minutes (`delivery_timeout_ms`, I4). Whoever waits for them
wants to know after seconds what they are waiting for.
"""

from __future__ import annotations

from octavo.client.messaging.producing.in_flight import InFlight

STALLED_S = 10.0
"""A batch that waits longer for its acknowledgement is worth a warning; another after as long."""


class StallWatch:
    """Decides at every tick of one producer whether a warning is due."""

    def __init__(self, after_s: float = STALLED_S) -> None:
        self._after_s = after_s
        self._said_s: float | None = None

    def look(self, oldest: InFlight | None, waiting: int, now_s: float) -> str | None:
        """The warning that is due now, if any.

        `oldest` is the batch that has been under delivery longest, `waiting` how many are
        unacknowledged.
        """
        if oldest is None or now_s - oldest.batch.created_s < self._after_s:
            self._said_s = None
            return None
        if self._said_s is not None and now_s - self._said_s < self._after_s:
            return None
        self._said_s = now_s
        if oldest.last_error is not None:
            why = f"last error: {oldest.last_error}"
        elif oldest.attempts:
            why = f"{oldest.owner} has not answered"
        else:
            why = "not sent yet" if oldest.partition.owner else "no owner is known"
        return (
            f"a batch for {oldest.partition} has waited {now_s - oldest.batch.created_s:.0f} s for "
            f"its acknowledgement (batches waiting: {waiting}); {why}"
        )
