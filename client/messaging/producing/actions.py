"""Values of the delivery core: what an unresolved batch and a partition's state are, and actions.

The rules that move them are in `octavo.client.messaging.producing.sender_core`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from octavo.runtime.errors import OctavoError

SEQUENCE_MASK = 0x7FFFFFFF
"""Sequences are int32 and wrap to 0 after 2147483647 (I1)."""


class Deliverable(Protocol):
    """What the core needs to know of a batch."""

    @property
    def count(self) -> int:
        """Records in it."""
        ...

    @property
    def created_s(self) -> float:
        """When its first record was appended; the delivery timeout counts from here."""
        ...


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Limits of the core, in seconds."""

    idempotent: bool = True
    acks: int = -1
    max_in_flight: int = 5
    delivery_timeout_s: float = 120.0
    request_timeout_s: float = 30.0
    backoff_initial_s: float = 0.1
    backoff_max_s: float = 1.0
    unknown_topic_s: float = 60.0
    """UNKNOWN_TOPIC is retried this long: the owner may not have seen the topic yet (F031)."""


class State(Enum):
    """Where an unresolved batch is."""

    WAITING = auto()
    """To be sent, for the first time or again."""
    SENT = auto()
    """Handed to a connection, no answer yet."""
    PARKED = auto()
    """Proved not stored, waits for new numbers."""


@dataclass(eq=False, slots=True)
class InFlight:
    """One batch under delivery."""

    batch: Deliverable
    partition: Partition
    state: State = State.WAITING
    base_sequence: int = -1
    """-1 until first sent; constant while SENT or WAITING again (I4)."""
    correlation: int = 0
    """Of the latest attempt; 0 before the first."""
    owner: str = ""
    sent_s: float = 0.0
    attempts: int = 0
    loose: bool = False
    """An attempt ended without a word on whether it is stored: its connection ended or fell silent,
    so that a copy may still arrive, or the answer left it open (A8)."""
    last_error: OctavoError | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence of its last record."""
        return (self.base_sequence + self.batch.count - 1) & SEQUENCE_MASK


@dataclass(slots=True)
class Hole:
    """Sequences of a batch that is no longer pursued."""

    base: int
    loose: bool
    """It may be stored, now or later."""
    refused: bool
    """The owner refused the batch for good."""


@dataclass(eq=False, slots=True)
class Partition:
    """Delivery state of one partition."""

    topic: str
    partition: int
    owner: str = ""
    last_owner: str = ""
    finding: bool = False
    epoch: int = -1
    """Producer epoch of this partition's batches. Owners keep producer state by partition, so each
    partition takes a new epoch on its own."""
    established: bool = False
    """A batch under the present identity was acknowledged, so the owner keeps state for it. Before
    that an owner accepts any sequence (I2, last row), so only one batch may be in flight: a second
    one could be stored in front of a first that failed."""
    acknowledged_s: float = 0.0
    next_sequence: int = 0
    in_flight: deque[InFlight] = field(default_factory=lambda: deque[InFlight]())
    """Oldest first; resolved ones are removed."""
    holes: list[Hole] = field(default_factory=lambda: list[Hole]())
    muted: bool = False
    """An attempt failed: nothing is sent until all others of this partition are answered."""
    retry_at_s: float = 0.0
    failures: int = 0
    topic_id: bytes = b""
    """Which life of the topic's name the batches are for."""
    ended: bool = False
    """That life is over: nothing is sent or looked for any more."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Send:
    """Encode (with these numbers) or re-send the batch on the connection to `owner`."""

    owner: str
    correlation: int
    batch: Deliverable
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Complete:
    """The batch is stored."""

    batch: Deliverable
    base_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The batch is given up; its error says whether it may be stored."""

    batch: Deliverable
    error: OctavoError


@dataclass(frozen=True, slots=True)
class FindOwner:
    """Learn the owner of a partition, then call `owner_found`."""

    partition: Partition
    avoid: str
    """The address that just failed; empty when none did."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Ask any broker for a producer id, then call `identity_granted`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The producer cannot go on; all batches have been failed."""

    error: OctavoError


Action = Send | Complete | Fail | FindOwner | RequestIdentity | Stop


def sequence_reached(last: int, wanted: int) -> bool:
    """Whether `last` is at or after `wanted`, across the wrap to 0 (I1)."""
    return (last - wanted) & SEQUENCE_MASK < 1 << 30
