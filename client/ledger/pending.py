"""What waits for one bookie's answer: runs of adds in a queue or a frame, and calls.

Values of `connection.py`; lanes of writers fulfil `AddLane`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from octavo.client.ledger.entry_run import EntryRun
from octavo.proto.bookie_wire import Frame, Status


class AddLane(Protocol):
    """Where the outcome of a run goes: one slot of one handle, in one generation."""

    @property
    def incarnation(self) -> bytes:
        """Of the bookie the run is addressed to."""
        ...

    def confirmed(self, run: EntryRun) -> None:
        """Every entry of the run is durable at the bookie."""
        ...

    def answered(self, run: EntryRun, statuses: Sequence[int]) -> None:
        """The bookie answered per entry, not all of them OK."""
        ...

    def failed(self, run: EntryRun, status: Status) -> None:
        """No answer: TIMEOUT, DISCONNECTED or WRONG_INCARNATION."""
        ...


class QueuedRun:
    """A run in a queue or in a frame."""

    __slots__ = ("lane", "run", "since")

    def __init__(self, lane: AddLane, run: EntryRun, since: float) -> None:
        self.lane = lane
        self.run = run
        self.since = since


class AddFrame:
    """An ADD frame that waits for its reply."""

    __slots__ = ("count", "items", "sent_at", "total_bytes")

    def __init__(
        self, items: list[QueuedRun], count: int, total_bytes: int, sent_at: float
    ) -> None:
        self.items = items
        self.count = count
        self.total_bytes = total_bytes
        self.sent_at = sent_at

    def answer(self, statuses: Sequence[int]) -> None:
        """Tell each lane the statuses of its entries; one per entry of the frame, in order."""
        position = 0
        for item in self.items:
            end = position + len(item.run.lengths)
            item.lane.answered(item.run, statuses[position:end])
            position = end


class PendingCall:
    """A request with a future, and the monotonic second at which it is given up."""

    __slots__ = ("deadline", "future")

    def __init__(self, future: asyncio.Future[Frame], deadline: float) -> None:
        self.future = future
        self.deadline = deadline


def fail_runs(items: Iterable[QueuedRun], status: Status) -> None:
    """Tell the lane of each run that no answer came, and why."""
    for item in items:
        item.lane.failed(item.run, status)
