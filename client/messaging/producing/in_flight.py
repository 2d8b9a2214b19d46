"""Values of the sender core: what an unresolved batch is, and the state of a partition.

The rules that move them are in `sender_core`. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from octavo.runtime.errors import (
    MIN_INSYNC_DETAIL,
    CorruptBatch,
    NotEnoughReplicas,
    OctavoError,
    RequestRejected,
    UnknownTopic,
)
from octavo.runtime.invariant import invariant

CORRUPT_ATTEMPTS = 3
"""A batch refused as corrupt is sent this often: the bytes may have changed on the way."""
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

    @property
    def acks(self) -> int:
        """Whose promise it waits for: -1 all, 1 the first bookie, 0 nobody's (A4)."""
        ...

    @property
    def is_numbered(self) -> bool:
        """Whether it gets a sequence. One that gets none goes alone: nothing else of its partition
        is under way meanwhile (X14)."""
        ...


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """Limits of the core, in seconds."""

    idempotent: bool = True
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

    def is_refused_by(self, error: OctavoError, settings: SenderSettings, now_s: float) -> bool:
        """Whether the owner refused the batch for good; its sequence was not consumed (§18)."""
        if isinstance(error, CorruptBatch):
            return self.attempts >= CORRUPT_ATTEMPTS
        if isinstance(error, UnknownTopic):
            return now_s - self.batch.created_s >= settings.unknown_topic_s
        if isinstance(error, NotEnoughReplicas):  # of what the topic asks for, not of bookies
            return MIN_INSYNC_DETAIL in error.details
        return isinstance(error, RequestRejected)

    def is_overdue(self, settings: SenderSettings, now_s: float) -> bool:
        """Whether an answer should be here by now; with acks=0 none is awaited."""
        waited_s = now_s - self.sent_s
        waits = self.state is State.SENT and self.batch.acks != 0
        return waits and waited_s >= settings.request_timeout_s

    def deadline_s(self, settings: SenderSettings) -> float:
        """When time alone does something to it, its partition's back-off left out."""
        at_s = self.batch.created_s + settings.delivery_timeout_s
        if self.state is State.SENT:
            at_s = min(at_s, self.sent_s + settings.request_timeout_s)
        return at_s


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
    refusal: OctavoError | None = None
    """Why its owner wrote nothing, since it last stored a batch: what others wait for, too."""
    topic_id: bytes = b""
    """Which life of the topic's name the batches are for."""
    writer_epoch: int = 0
    """Under which it was claimed; 0: it was not (X32)."""
    ended: bool = False
    """That life is over: nothing is sent or looked for any more."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def window(self, settings: SenderSettings) -> int:
        """How many batches may be in flight."""
        return settings.max_in_flight if self.established or not settings.idempotent else 1

    def leave_hole(self, item: InFlight, *, refused: bool) -> None:
        """`item` is given up: its sequences, if it had any, are a hole. Holes stay in order."""
        if item.base_sequence < 0:
            return
        self.holes.append(Hole(item.base_sequence, item.loose, refused))
        following = self.next_sequence
        self.holes.sort(key=lambda hole: (hole.base - following) & SEQUENCE_MASK)

    def forget_holes(self, stored: int) -> None:
        """The owner stored `stored`: holes in front of it are behind us."""
        self.holes = [hole for hole in self.holes if not sequence_reached(stored, hole.base)]

    def fill_holes(self, parked: Sequence[InFlight]) -> None:
        """Give the sequences of its holes, and of `parked`, out again from the first one on."""
        bases = [hole.base for hole in self.holes] + [item.base_sequence for item in parked]
        following = self.next_sequence
        self.next_sequence = min(bases, key=lambda base: (base - following) & SEQUENCE_MASK)
        self.holes.clear()
        for item in parked:
            item.state, item.base_sequence = State.WAITING, -1

    def start_epoch(self, epoch: int) -> None:
        """Number everything from 0 under `epoch`; nothing numbered may have unknown fate (I6)."""
        self.epoch = epoch
        self.next_sequence = 0
        self.established = False
        self.holes.clear()
        for item in self.in_flight:
            if not item.batch.is_numbered:  # it has no number to lose
                continue
            invariant(item.base_sequence < 0 or item.state is State.PARKED, "I6: unknown fate")
            item.state, item.base_sequence, item.loose = State.WAITING, -1, False


def sequence_reached(last: int, wanted: int) -> bool:
    """Whether `last` is at or after `wanted`, across the wrap to 0 (I1)."""
    return (last - wanted) & SEQUENCE_MASK < 1 << 30
