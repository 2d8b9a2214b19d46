"""Errors of consumer groups and their coordinators (spec group-protocol RB6, RB7; groups §18).

Part of the tree that `octavo.runtime.errors` draws, with the same promises:

    RetriableError
    └── NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress, UnstableOffsetCommit
    RequestRejected
    ├── InvalidGroupId, GroupIdNotFound, GroupMaxSizeReached, GroupLimitReached, NonEmptyGroup
    ├── GroupSubscribedToTopic, InvalidCommitOffset, OffsetMetadataTooLarge
    └── CommitFailed
        └── UnknownMemberId, FencedMemberEpoch, StaleMemberEpoch, CommitReplaced
    Fatal
    └── FencedInstanceId
"""

from __future__ import annotations

from octavo.runtime.error_base import Retry
from octavo.runtime.errors import Fatal, RequestRejected, RetriableError


class NotCoordinator(RetriableError):
    """This broker does not coordinate the group, or not any more."""

    code = "NOT_COORDINATOR"
    retry = Retry.AFTER_REFRESH
    default_hint = "find the coordinator again"


class CoordinatorNotAvailable(RetriableError):
    """Nobody coordinates the group at this moment."""

    code = "COORDINATOR_NOT_AVAILABLE"
    retry = Retry.AFTER_REFRESH


class CoordinatorLoadInProgress(RetriableError):
    """The coordinator still reads what it must know of its groups."""

    code = "COORDINATOR_LOAD_IN_PROGRESS"


class UnstableOffsetCommit(RetriableError):
    """A transaction that commits this offset has not ended."""

    code = "UNSTABLE_OFFSET_COMMIT"


class InvalidGroupId(RequestRejected):
    """The name is no group id."""

    code = "INVALID_GROUP_ID"


class GroupIdNotFound(RequestRejected):
    """There is no such group."""

    code = "GROUP_ID_NOT_FOUND"


class GroupMaxSizeReached(RequestRejected):
    """The group has as many members as it may have."""

    code = "GROUP_MAX_SIZE_REACHED"


class GroupLimitReached(RequestRejected):
    """The coordinator keeps as many groups as it may keep."""

    code = "GROUP_LIMIT_REACHED"


class NonEmptyGroup(RequestRejected):
    """The group has members."""

    code = "NON_EMPTY_GROUP"
    default_hint = "close its consumers first, or wait for their session timeout"


class GroupSubscribedToTopic(RequestRejected):
    """A member of the group reads the topic."""

    code = "GROUP_SUBSCRIBED_TO_TOPIC"
    default_hint = "close its consumers first"


class InvalidCommitOffset(RequestRejected):
    """An offset below 0 cannot be committed."""

    code = "INVALID_COMMIT_OFFSET"


class OffsetMetadataTooLarge(RequestRejected):
    """The text of a commit is too long."""

    code = "OFFSET_METADATA_TOO_LARGE"


class CommitFailed(RequestRejected):
    """The partitions belong to somebody else now; of those nothing was stored."""

    code = "COMMIT_FAILED"
    default_hint = "poll() gets the member back into its group"


class CommitReplaced(CommitFailed):
    """A later commit of the same partitions was asked for before this one was sent."""

    code = "COMMIT_REPLACED"
    default_hint = "the later commit says what became of it"


class UnknownMemberId(CommitFailed):
    """The group does not know this member: it was away for too long, or left."""

    code = "UNKNOWN_MEMBER_ID"


class FencedMemberEpoch(CommitFailed):
    """The member is not where the coordinator saw it last."""

    code = "FENCED_MEMBER_EPOCH"


class StaleMemberEpoch(CommitFailed):
    """The member's epoch is over, and the partition may have been somebody else's since."""

    code = "STALE_MEMBER_EPOCH"


class FencedInstanceId(Fatal):
    """Another process joined with the same group_instance_id."""

    code = "FENCED_INSTANCE_ID"
    default_hint = "give each process its own group_instance_id"
