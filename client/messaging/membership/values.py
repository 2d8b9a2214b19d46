"""Values of a member: what it says and is told, what its user has to do, and actions of its core.

Epochs, numbers and sequences: `proto/groups.proto` and RB1. A slot is a partition of one life of a
topic: a topic that is created again under its name is another one (O1).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.client.messaging.records import TopicPartition
from octavo.proto.group_records import Subscription

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class Slot(NamedTuple):
    """One partition of one life of a topic."""

    topic: str
    partition: int
    topic_id: bytes

    @property
    def where(self) -> TopicPartition:
        """As the user knows it."""
        return TopicPartition(self.topic, self.partition)


def places(slots: Sequence[Slot]) -> list[TopicPartition]:
    """The same as the user knows them."""
    return [slot.where for slot in slots]


class MemberState(enum.StrEnum):
    """Where a member is (group-protocol, Member)."""

    UNSUBSCRIBED = "unsubscribed"
    JOINING = "joining"
    STABLE = "stable"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    FENCED = "fenced"
    LEAVING = "leaving"
    FATAL = "fatal"


class Task(enum.StrEnum):
    """What the user's next reading call does before it hands out records."""

    COMMIT = "commit"
    """Begin to commit the positions of what goes (RB11 step 2); nobody waits for it."""
    REVOKED = "on_revoke"
    ASSIGNED = "on_assign"
    LOST = "on_lost"


class Duty(NamedTuple):
    """One such task; answered by `done` with the same value."""

    number: int
    task: Task
    slots: tuple[Slot, ...]


class Refused(enum.Enum):
    """What a final answer to a heartbeat means to its member."""

    FENCED = enum.auto()
    """It is no member any more, or not where it thinks (RB12)."""
    REJECTED = enum.auto()
    """What it asks for is not possible: the user hears of it and may poll again."""
    FATAL = enum.auto()
    """Somebody else has its instance id (RB6)."""


class Told(NamedTuple):
    """A reply to a heartbeat."""

    epoch: int
    number: int = 0
    assigned: frozenset[Slot] | None = None
    """None: as the member has seen it."""
    heartbeat_interval_s: float = 3.0
    session_timeout_s: float = 45.0
    later: Mapping[bytes, int] = {}
    """Of what is assigned, by topic id: the first partition that came behind the group's
    subscription (F6)."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Of one member; times in seconds."""

    instance_id: str | None = None
    auto_commit: bool = True
    max_poll_interval_s: float = 300.0
    backoff_initial_s: float = 0.1
    backoff_max_s: float = 1.0
    first_sequence: int = 0
    """Below every sequence of this life and above those of earlier ones."""


# --- actions ------------------------------------------------------------------------------------


class Beat(NamedTuple):
    """Send this heartbeat; `answered`, `refused` or `unanswered` with its sequence."""

    sequence: int
    epoch: int
    seen: int
    applied: int
    subscription: Subscription | None
    owned: frozenset[Slot] | None


class GiveUp(NamedTuple):
    """Nobody waits for the answer to this heartbeat any more: end it."""

    sequence: int


class Stop(NamedTuple):
    """Hand out nothing of these any more; their positions stand (RB11 step 1)."""

    slots: tuple[Slot, ...]


class Drop(NamedTuple):
    """These are not this member's any more: forget their positions (O11)."""

    slots: tuple[Slot, ...]


class Begin(NamedTuple):
    """Find where these begin (O5, F6); then `positions_known` (RB11 step 5)."""

    number: int
    slots: tuple[Slot, ...]


class Start(NamedTuple):
    """Their callback is done: hand them out."""

    slots: tuple[Slot, ...]


class Tell(NamedTuple):
    """There is something for the user's reading call to do."""


Action = Beat | GiveUp | Stop | Drop | Begin | Start | Tell
