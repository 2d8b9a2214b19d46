"""What the admin tells of groups, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.client.messaging.records import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in one line."""

    group_id: str
    state: str
    """EMPTY, ASSIGNING (a new target is being computed), RECONCILING (partitions are on their way
    from member to member) or STABLE."""
    type: str
    """consumer; simple: it never had a member, somebody only commits offsets under its name."""
    members: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group; `epoch` is the target that it has reached."""

    member_id: str
    instance_id: str | None
    """Of a static member."""
    client_id: str
    host: str
    epoch: int
    state: str
    """STABLE, REVOKING (it has to give something up) or WAITING (for partitions of others)."""
    topics: tuple[str, ...]
    """Subscribed by name."""
    pattern: str | None
    rack: str | None
    left: bool
    """Static, gone, and its partitions are kept for it until its session ends."""
    owned: tuple[TopicPartition, ...]
    pending: tuple[TopicPartition, ...]
    """To be given up."""
    target: tuple[TopicPartition, ...]
    """What it shall own."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members."""

    group_id: str
    state: str
    """As in `GroupListing`."""
    type: str
    epoch: int
    """Rises with each change of its members or of the topics they read."""
    target_epoch: int
    """That of the newest target; the same as `epoch` unless one is being computed."""
    assignor: str
    coordinator_id: str
    """Of the broker that told it."""
    empty_since_ms: int | None
    members: tuple[MemberDescription, ...]
    """In the order of their ids."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that a group committed: the next one it wants to read."""

    topic: str
    """Empty: a topic that is gone and whose name the coordinator does not know."""
    topic_id: str
    """Of the topic's life: one created again under its name is another topic (O1)."""
    partition: int
    offset: int
    owner_epoch: int | None
    metadata: str
    """Text that the consumer stored with it."""
    committed_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Of what."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind the end of one partition (M1 to M3)."""

    topic: str
    topic_id: str
    partition: int
    committed: int | None
    """None: nothing was committed; then the reset target counts, and `uncommitted` is set."""
    position: int
    """Where it goes on: what it committed, or the reset target, at least `log_start`."""
    log_start: int
    end: int
    lag: int
    """Records from `position` to `end`; never negative, and nothing that retention removed."""
    time_lag_s: float | None
    """How long the record at `position` has been there; 0 without lag, None: not known."""
    uncommitted: bool
    ahead: bool
    """What was committed lies behind the end; `lag` is 0 then."""
    member_id: str | None = None
    """Of the member that owns it."""
    client_id: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Of what."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group over all that it committed or that its members read."""

    group_id: str
    state: str
    members: int
    taken_s: float
    """When, on the monotonic clock of whoever asked."""
    partitions: tuple[PartitionLag, ...]
    """By topic and partition."""

    @property
    def lag(self) -> int:
        """Records, of all partitions."""
        return sum(part.lag for part in self.partitions)

    @property
    def time_lag_s(self) -> float | None:
        """Of the partition that is behind for longest; None when that is not known."""
        known = [part.time_lag_s for part in self.partitions]
        return None if None in known else max((one for one in known if one is not None), default=0)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Where a group goes on in one partition, before and after a reset."""

    topic: str
    topic_id: str
    partition: int
    before: int | None
    """None: nothing was committed."""
    after: int
    log_start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Of what."""
        return TopicPartition(self.topic, self.partition)
