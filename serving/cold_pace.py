"""How fast backlogs are read while records come in (F078). Pure.

Reading a backlog takes as much of the event loop and of the processors as it gets, and who writes
or reads at a tail waits behind it. So while a broker takes records, replies from storage are paced,
all of its readers together; what is read then is also read in smaller pieces, for a piece holds the
loop. While nothing comes in there is no pace.

A reader of the backlog always catches up: it may take more than what comes in. Where that is more
than the pace, pieces have their usual size again, and the time in which a reply was made counts;
else it does not, so that a reader of a crowded machine takes less of it.
"""

from __future__ import annotations

UNBOUNDED = 0
QUIET_S = 1.0
"""So long after the last record a broker has no tail to look after."""
CATCH_UP_RATIO = 2
"""Each reader may take so many times what comes in, whatever the pace."""
CREDIT_S = 0.1
"""Of the time that passed between two replies so much counts, while readers have to catch up."""
PAUSE_MAX_S = 5.0
"""A reader waits no longer at a time: its client must not take the broker for silent."""
PIECE_BYTES = 128 * 1024
"""Of a reply from storage, and of a read of a bookie, while records come in. Whoever writes or
reads at a tail waits behind a piece: its size, not the rate, is what the slowest of them feel."""


class ColdPace:
    """Of one broker. `now_s` never goes back.

    Args:
        bytes_per_s: of all readers together; UNBOUNDED: there is no pace.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._wrote_s: float | None = None
        self._since_s = 0.0
        """When the second began that is being counted."""
        self._counted = 0
        self._inflow = 0.0
        """Bytes that came in, a second, in the second before."""
        self._readers: dict[object, float] = {}
        """When each was given something last; at most the open streams."""
        self._free_s = 0.0
        """From this moment on what was read is within the pace."""

    def wrote(self, size_bytes: int, now_s: float) -> None:
        """A message of batches came in."""
        if not self._is_busy(now_s):
            self._inflow, self._since_s, self._counted = 0.0, now_s, 0
        self._wrote_s = now_s
        self._counted += size_bytes
        passed_s = now_s - self._since_s
        if passed_s >= QUIET_S:
            self._inflow = self._counted / passed_s
            self._since_s, self._counted = now_s, 0

    def applies(self, now_s: float) -> bool:
        """Whether there is a tail to look after."""
        return self._bytes_per_s != UNBOUNDED and self._is_busy(now_s)

    def _is_busy(self, now_s: float) -> bool:
        return self._wrote_s is not None and now_s - self._wrote_s < QUIET_S

    def piece_bytes(self, usual_bytes: int, now_s: float) -> int:
        """How much is read at a time where it would be `usual_bytes`."""
        is_small = self.applies(now_s) and self._least() <= self._bytes_per_s
        return min(usual_bytes, PIECE_BYTES) if is_small else usual_bytes

    def read(self, reader: object, size_bytes: int, now_s: float) -> float:
        """A reader was given so much from storage; seconds until it may have more."""
        if not size_bytes or not self.applies(now_s):
            return 0.0
        self._readers[reader] = now_s
        recent_s = now_s - PAUSE_MAX_S - QUIET_S
        self._readers = {one: at_s for one, at_s in self._readers.items() if at_s >= recent_s}
        least = self._least()
        credit_s = CREDIT_S if least > self._bytes_per_s else 0.0
        begins_s = max(self._free_s, now_s - credit_s)
        self._free_s = begins_s + size_bytes / max(self._bytes_per_s, least)
        return min(max(self._free_s - now_s, 0.0), PAUSE_MAX_S)

    def _least(self) -> float:
        """What all readers together must be given a second, so that each catches up."""
        return CATCH_UP_RATIO * self._inflow * len(self._readers)

    def left(self, reader: object) -> None:
        """A reader is gone."""
        self._readers.pop(reader, None)
