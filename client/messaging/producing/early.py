"""Records that could not go into a batch when they were sent, and go in as soon as they can.

Two kinds: those sent without waiting before their topic's metadata is known (`early_sends`), and
those of a signal handler or finaliser that interrupted a section of its own thread (set aside by
`intake`).

An exception out of a signal handler (Ctrl-C) may end what puts them in, at any call. So a record
stays registered until its outcome is somebody's, and `step`, which changes without a call, says
what is known of it:

    WAITING --> HELD --> GOING_IN --> (its batch's outcome is its own; no longer registered)
       ^          |          |
       +-- struck +          +-- struck --> STRUCK: it fails, its fate is unknown

A record that was struck while HELD is not in, so it waits again; one that was GOING_IN may be in:
putting it in once more could store it twice.
"""

from __future__ import annotations

from octavo.client.messaging.producing.batches import Row
from octavo.client.messaging.producing.futures import Completion, SendFuture
from octavo.client.messaging.producing.routing import TopicState
from octavo.client.messaging.producing.terms import Terms
from octavo.runtime.errors import DeliveryFailed

WAITING = 0
"""Anybody may put it in."""
HELD = 1
"""One caller has it; it is not in."""
GOING_IN = 2
"""The same caller appends it: it may be in."""
STRUCK = 3
"""That caller was ended by an exception: nobody will know."""


class Early(Completion):
    """One such record. Its outcome is its own until appended, then that of its batch."""

    __slots__ = ("reserved_bytes", "row", "state", "step", "terms", "wanted")

    def __init__(
        self,
        topic: str,
        wanted: int | None,
        row: Row,
        resolver: int,
        state: TopicState | None,
        *,
        terms: Terms,
    ) -> None:
        super().__init__(topic, -1, resolver)
        self.wanted = wanted
        """The partition it was sent to; None: by its key, or any."""
        self.row = row
        self.terms = terms
        self.state = state
        """Where it goes in; None as long as the topic is not known."""
        self.step = WAITING
        self.reserved_bytes = 0
        """What it holds of the producer's memory while it is not in."""

    @property
    def records(self) -> int:
        """It is one record's."""
        return 1

    def copy(self, future: SendFuture) -> None:
        """Take over the outcome of the record's real future."""
        if self.done:
            return
        error = future.completion.error
        if error is not None:
            self.fail(error)
            return
        meta = future.result(0)
        self.partition = meta.partition
        self.timestamps_ms = [meta.timestamp_ms]
        self.succeed(meta.offset, duplicate=meta.duplicate)


def interrupted_append() -> DeliveryFailed:
    """The error of a record whose append was ended by an exception of a signal handler."""
    return DeliveryFailed(
        "an exception out of a signal handler interrupted the append of this record; it may or "
        "may not be stored",
        hint="read the topic to see what is stored before sending it again",
    )
