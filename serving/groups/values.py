"""What clients say to the coordinator of their group, and what it answers. Values only.

Epochs: RB1. What is stored of it, and what a *slot* is: `proto.group_records`.

An *assignment number* counts the changes of what one member is told to own. A heartbeat says which
number the member has seen and which it has carried out: a revocation is over only when the number
that asked for it, or a later one, was carried out. An owned list alone does not prove that: it may
have been sent while an assignment that gives the slot was still on its way in.

Heartbeats of a member are numbered too (`sequence`): one that was overtaken by a later one, say a
join that was sent again, is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from octavo.proto.group_records import OffsetKey, OffsetRecord, Slot, Subscription

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
NO_MEMBER_EPOCH = -1
"""Of a commit by nobody's membership (O3)."""

Token = object
"""Whatever the shell knows a waiting request by."""


class Refusal(enum.StrEnum):
    """Why a request, or its part about one partition, is not carried out (C1, RB6, RB7, O2)."""

    COORDINATOR_LOAD_IN_PROGRESS = "COORDINATOR_LOAD_IN_PROGRESS"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    """Also when the fate of what was asked is unknown: to ask again is safe."""
    THROTTLED = "THROTTLED"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    INVALID_REQUEST = "INVALID_REQUEST"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    GROUP_LIMIT_REACHED = "GROUP_LIMIT_REACHED"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"
    STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    INVALID_COMMIT_OFFSET = "INVALID_COMMIT_OFFSET"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"


class Heartbeat(NamedTuple):
    """One request of a member."""

    member_id: str
    epoch: int
    """That it has reached; JOIN_EPOCH, LEAVE_EPOCH or STATIC_LEAVE_EPOCH."""
    instance_id: str | None = None
    subscription: Subscription | None = None
    """None: as before."""
    owned: frozenset[Slot] | None = None
    """What it owns now; None: nothing changed and no outcome is unknown."""
    sequence: int = 0
    """Rises with each request of the member; begins at its wall clock, so that it also rises when a
    process that keeps its member id starts again."""
    seen: int = 0
    """Number of the newest assignment that reached it."""
    applied: int = 0
    """Number of the newest assignment that it carried out, callbacks included (RB11 step 4)."""


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat, after everything it tells is durable (RB8)."""

    refusal: Refusal | None
    epoch: int = JOIN_EPOCH
    number: int = 0
    assigned: tuple[Slot, ...] | None = None
    """All that it may own from now on; None: as it has seen it."""
    later: Mapping[str, int] = {}
    """By topic id the first partition that came to be behind the group's subscription (F6)."""


class Committer(NamedTuple):
    """Who commits or fetches offsets (O3, RB7)."""

    member_id: str | None = None
    """None: nobody's membership, with NO_MEMBER_EPOCH."""
    epoch: int = NO_MEMBER_EPOCH
    instance_id: str | None = None


class OffsetToCommit(NamedTuple):
    """The next offset to read of one partition (O2)."""

    key: OffsetKey
    offset: int
    owner_epoch: int | None = None
    metadata: str = ""


class CommitReply(NamedTuple):
    """`refusal`: nothing is stored. Else all is stored but what `errors` names."""

    refusal: Refusal | None
    errors: Mapping[Slot, Refusal] = {}


class FetchReply(NamedTuple):
    """Committed offsets; of slots that were asked for by name also those without one: None (O5)."""

    refusal: Refusal | None
    offsets: Mapping[Slot, OffsetRecord | None] = {}
    names: Mapping[str, str] = {}
    """Of all topics with committed offsets, by id; only when no slots were named."""


class DeleteReply(NamedTuple):
    """Of a group, or of offsets of it (O7)."""

    refusal: Refusal | None


class MemberName(NamedTuple):
    """Which member an operator means: by either id."""

    member_id: str = ""
    instance_id: str | None = None


class RemoveReply(NamedTuple):
    """`unknown` were no members; the others are none any more."""

    refusal: Refusal | None
    unknown: frozenset[MemberName] = frozenset()


class MemberDescription(NamedTuple):
    """A member as its coordinator knows it."""

    member_id: str
    instance_id: str | None
    epoch: int
    state: str
    left: bool
    """Static, and said that it will be back."""
    subscription: Subscription
    owned: tuple[Slot, ...]
    pending: tuple[Slot, ...]
    target: tuple[Slot, ...]


class ListedGroup(NamedTuple):
    """A group in one line."""

    group_id: str
    state: str
    """EMPTY, ASSIGNING (a target is being computed), RECONCILING or STABLE."""
    type: str
    """consumer; simple: it has offsets and never had a member."""
    members: int


class GroupDescription(NamedTuple):
    """A group and its members."""

    listed: ListedGroup
    epoch: int
    target_epoch: int
    assignor: str
    empty_since_ms: int | None
    members: tuple[MemberDescription, ...]


class DescribeReply(NamedTuple):
    """Of one group."""

    refusal: Refusal | None
    group: GroupDescription | None = None


class ListReply(NamedTuple):
    """All groups of the partition."""

    refusal: Refusal | None
    groups: tuple[ListedGroup, ...] = ()


class ConsumedReply(NamedTuple):
    """How far the groups of a topic have come (R5)."""

    refusal: Refusal | None
    groups: int = 0
    """Those that committed an offset of the topic, or have a member that reads it."""
    lowest: Mapping[int, tuple[int, int]] = {}
    """By partition of the topic the lowest committed offset, and how many groups have one."""


class EvictReply(NamedTuple):
    """Groups were moved on (F162)."""

    refusal: Refusal | None
    groups: int = 0
    offsets: int = 0
    """By how many, all groups and partitions together."""


class TopicPositions(NamedTuple):
    """Where a group goes on in a topic."""

    topic: str
    topic_id: str
    committed: Mapping[int, int | None]
    """By partition that it committed or that a member reads; None: nothing was committed."""


class GroupPositions(NamedTuple):
    """Where a group goes on, and by how many it is read."""

    group_id: str
    members: int
    topics: tuple[TopicPositions, ...]


class LeftOut(NamedTuple):
    """How much was not told, because there is a bound."""

    topics: int = 0
    """One counts for each group that reads it."""
    partitions: int = 0
    """The same of partitions; those of the topics included."""


class PositionsReply(NamedTuple):
    """Every group of the partition (M4), in the order of their ids."""

    refusal: Refusal | None
    groups: tuple[GroupPositions, ...] = ()
    left_out: LeftOut = LeftOut()


class CompactReply(NamedTuple):
    """A piece of the state was written anew."""

    refusal: Refusal | None
    is_last: bool = False
    """The log is enough from the beginning of the compaction on."""


Reply = (
    HeartbeatReply
    | CommitReply
    | FetchReply
    | DeleteReply
    | RemoveReply
    | DescribeReply
    | ListReply
    | ConsumedReply
    | EvictReply
    | PositionsReply
    | CompactReply
)
