"""Values of the reading core: the state of an assigned partition, what is asked for, and actions.

The rules that move them are in `reading_core`, `positions`, `requests` and `buffers` of this room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.client.messaging.records import TopicPartition
from octavo.proto.batch import BatchHeader, Rows
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import OctavoError


class Buffered:
    """One fetched batch, or an empty stretch whose only effect is a new position (F3)."""

    __slots__ = ("adopt", "batch", "cursor", "header", "rows")

    def __init__(self, batch: Buffer, header: BatchHeader | None, adopt: int) -> None:
        self.batch = batch
        self.header = header
        self.adopt = adopt
        """The position after it."""
        self.rows: Rows | None = None
        self.cursor = 0
        """Rows before it were handed out or lie before the position."""


@dataclass(eq=False, slots=True)
class Reading:
    """State of one assigned partition.

    Two offsets matter: `position` is the next one for the user, `fetch_at` the next one to ask a
    broker for; the buffer lies between them. Invariant: position <= fetch_at, or both are -1.
    """

    where: TopicPartition
    position: int = -1
    """-1: not known yet; nothing is fetched until it is."""
    fetch_at: int = -1
    policy: str | int = ""
    """How a position that is not known is found: earliest, latest, epoch ms, or none (F6)."""
    generation: int = 0
    """Raised by whatever moves the position: answers for an earlier one are dropped (F8)."""
    buffer: deque[Buffered] = field(default_factory=lambda: deque[Buffered]())
    buffered_bytes: int = 0
    paused: bool = False
    """Hand out nothing of it and ask for nothing more."""
    pause_wanted: bool = False
    """By the user; it is also paused while it is frozen."""
    frozen: bool = False
    """It goes, or its callback is not done yet: see `Buffers.freeze`."""
    owner: str = ""
    finding: bool = False
    """Its owner is being looked for."""
    searching: bool = False
    """The last look for its owner found none."""
    asked: bool = False
    """Part of a request whose reply has not come."""
    looking: bool = False
    """Its position is being looked up."""
    ranging: bool = False
    """Its owner is being asked for the range of the log (F5)."""
    out_of_range: bool = False
    """An owner refused the position: the range is to be asked for before the next fetch."""
    retry_at_s: float = 0.0
    failures: int = 0
    corrupt_at: int = -1
    """Where data was damaged and is being fetched once more; -1: nowhere."""
    above_end: int = 0
    """Consecutive answers that the position lies above the end (F5)."""
    chosen: bool = False
    """The position is one the user named, and no answer has shown yet that it exists: when it does
    not, that is the user's error and no case for the reset policy."""
    error: OctavoError | None = None
    """Raised by the next poll; no fetch meanwhile."""
    topic_id: bytes = b""
    """The topic that the position belongs to; empty: not told yet."""

    @property
    def resolved(self) -> bool:
        """Whether the position is known."""
        return self.position >= 0


class Mark(NamedTuple):
    """A reading and the generation that something is done for."""

    reading: Reading
    generation: int

    @property
    def current(self) -> bool:
        """Whether the position is still the one it was done for."""
        return self.reading.generation == self.generation


class Ask(NamedTuple):
    """One partition of a fetch request."""

    reading: Reading
    offset: int
    generation: int


class Plan(NamedTuple):
    """One fetch request to one broker."""

    owner: str
    asks: list[Ask]
    max_bytes: int
    max_wait_ms: int


class Answer(NamedTuple):
    """One partition of a fetch reply."""

    batches: Sequence[Buffer]
    next_offset: int
    error: OctavoError | None
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class ReadingSettings:
    """Sizes in bytes and times of one reader, from the consumer's settings."""

    max_bytes: int
    partition_bytes: int
    prefetch_bytes: int
    prefetch_partition_bytes: int
    max_wait_ms: int
    reset: str | int = "latest"
    """The reset policy, parsed: earliest, latest, none, or epoch ms (F6)."""
    backoff_initial_s: float = 0.1
    backoff_max_s: float = 1.0


# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookUp:
    """Find positions by policy (F6); `found` with `Offsets`."""

    marks: tuple[Mark, ...]
    policy: str | int

    def __str__(self) -> str:
        return "looking up positions"

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits for it."""
        return any(mark.current for mark in self.marks)


@dataclass(frozen=True, slots=True)
class FindOwner:
    """Learn a partition's owner; `found` with its address."""

    reading: Reading
    fresh: bool
    """What is remembered does not count: an owner failed or refused."""
    avoid: str
    """The address that just failed twice; empty when none did."""

    def __str__(self) -> str:
        return f"finding the owner of {self.reading.where}"

    @property
    def wanted(self) -> bool:
        """It does not depend on the position."""
        return True


@dataclass(frozen=True, slots=True)
class AskRange:
    """Ask the present owner for start and end of the log (F5); `found` with a `Range`."""

    mark: Mark

    def __str__(self) -> str:
        return f"finding the range of {self.mark.reading.where}"

    @property
    def wanted(self) -> bool:
        """Whether the position is still the one that was refused."""
        return self.mark.current


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A broker is to be asked for the first time: keep taking its plans until `stream_lost`."""

    address: str


@dataclass(frozen=True, slots=True)
class Wake:
    """There may be something to ask this broker for: take a plan."""

    address: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    """What this broker's request waits for is outdated: end it, then `request_interrupted`."""

    address: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Something changed for whoever waits in a reading call: records, positions or an error."""


@dataclass(frozen=True, slots=True)
class OwnerIs:
    """An owner was learnt (empty: forgotten) that others of the client may use."""

    where: TopicPartition
    address: str


@dataclass(frozen=True, slots=True)
class LifeIsOver:
    """An owner says that this id of the topic is gone: learn which one has its name."""

    topic: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class LearnTopic:
    """An owner and what is known of the topic contradict each other: ask for its metadata anew."""

    topic: str


@dataclass(frozen=True, slots=True)
class Say:
    """A position moved by itself: the user's log says so, as a warning."""

    text: str


Work = LookUp | FindOwner | AskRange
"""What is done in the background and must be answered by `found`, `failed` or `lost`, unless it is
not `wanted` any more."""
Action = Work | OpenStream | Wake | Interrupt | Tell | OwnerIs | LifeIsOver | LearnTopic | Say
