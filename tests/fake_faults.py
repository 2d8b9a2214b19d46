"""What a fake broker does wrong on demand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from octavo.proto.client_ids import THROTTLE_MS_KEY
from octavo.runtime.errors import OctavoError


@dataclass
class Faults:
    """What a broker does wrong next; counters go down as they are used up."""

    lose_replies: int = 0
    """Append, then cut the stream instead of answering."""
    swallow_replies: int = 0
    """Append, but answer nothing; the stream stays."""
    cut_before_append: int = 0
    """Cut the stream without appending."""
    refuse: list[OctavoError] = field(default_factory=lambda: list[OctavoError]())
    """Errors for the next batches, one each; nothing is appended."""
    answers_acks_0: bool = False
    """Answer batches of acks=0, too, as brokers may."""
    not_leader: int = 0
    """Answer NOT_LEADER without a hint although being the owner."""
    no_identity: int = 0
    """Refuse to give a producer id, retriably."""
    lose_decisions: int = 0
    """Decide about a sink's batch, then cut the connection of the call instead of answering."""
    corrupt_fetches: int = 0
    """Flip a byte in the first batch of the next fetches that return data."""
    throttle_ms: int = 0
    """The next reply on a stream asks for a pause of so long (X24)."""
    call_throttle_ms: int = 0
    """The next answer about metadata asks for a pause of so long (X24)."""
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Produce requests wait while it is clear."""
    release_metadata: asyncio.Event = field(default_factory=asyncio.Event)
    """Metadata, lists and health are answered only while it is set."""
    release_lookups: asyncio.Event = field(default_factory=asyncio.Event)
    """Lookups are answered only while it is set."""
    release_changes: asyncio.Event = field(default_factory=asyncio.Event)
    """Topics are created and deleted only while it is set."""

    release_claims: asyncio.Event = field(default_factory=asyncio.Event)
    """Exclusive writers are answered only while it is set."""

    def __post_init__(self) -> None:
        gates = (self.release_metadata, self.release_lookups, self.release_changes)
        for event in (self.hold, *gates, self.release_claims):
            event.set()

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """What comes behind an answer about metadata."""
        told, self.call_throttle_ms = self.call_throttle_ms, 0
        return ((THROTTLE_MS_KEY, str(told)),) if told else ()

    def throttled_ms(self) -> int:
        """The pause of this reply."""
        told, self.throttle_ms = self.throttle_ms, 0
        return told
