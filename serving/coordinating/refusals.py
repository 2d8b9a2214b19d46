"""The error that a client gets for each reason why its request is not carried out."""

from __future__ import annotations

from octavo.runtime import errors as e
from octavo.runtime import errors_of_groups as g
from octavo.runtime.error_base import OctavoError
from octavo.serving.groups.values import Refusal

_ERRORS: dict[Refusal, tuple[type[OctavoError], str]] = {
    Refusal.COORDINATOR_LOAD_IN_PROGRESS: (
        g.CoordinatorLoadInProgress,
        "the coordinator of {group} still reads what is stored of it",
    ),
    Refusal.NOT_COORDINATOR: (g.NotCoordinator, "{group} is not coordinated here any more"),
    Refusal.THROTTLED: (e.Throttled, "too much waits for the coordinator of {group} to store it"),
    Refusal.INVALID_GROUP_ID: (g.InvalidGroupId, "{group} is empty or too long for a group id"),
    Refusal.INVALID_REQUEST: (
        e.InvalidRequest,
        "a member or instance id of {group} is empty or too long, or its subscription makes no "
        "sense: an assignor that does not exist, or a rebalance timeout that is not above 0",
    ),
    Refusal.GROUP_ID_NOT_FOUND: (g.GroupIdNotFound, "there is no {group}"),
    Refusal.GROUP_LIMIT_REACHED: (
        g.GroupLimitReached,
        "the coordinator of {group} keeps as many groups as it may",
    ),
    Refusal.GROUP_MAX_SIZE_REACHED: (
        g.GroupMaxSizeReached,
        "{group} has as many members as the setting group_max_size allows",
    ),
    Refusal.UNKNOWN_MEMBER_ID: (g.UnknownMemberId, "{group} does not know this member"),
    Refusal.FENCED_INSTANCE_ID: (
        g.FencedInstanceId,
        "another process is this instance of {group} by now",
    ),
    Refusal.FENCED_MEMBER_EPOCH: (
        g.FencedMemberEpoch,
        "{group} knows this member with another epoch, or heard a later heartbeat of it",
    ),
    Refusal.STALE_MEMBER_EPOCH: (
        g.StaleMemberEpoch,
        "this member's epoch in {group} is over, and the partitions are not surely its own",
    ),
    Refusal.NON_EMPTY_GROUP: (g.NonEmptyGroup, "{group} has members"),
    Refusal.GROUP_SUBSCRIBED_TO_TOPIC: (
        g.GroupSubscribedToTopic,
        "a member of {group} reads that topic",
    ),
    Refusal.INVALID_COMMIT_OFFSET: (g.InvalidCommitOffset, "an offset below 0 for {group}"),
    Refusal.OFFSET_METADATA_TOO_LARGE: (
        g.OffsetMetadataTooLarge,
        "the text beside an offset of {group} is longer than offset_metadata_max_bytes",
    ),
    Refusal.UNKNOWN_TOPIC_OR_PARTITION: (
        e.UnknownTopic,
        "the topic of that id, or its partition, does not exist: nothing of it is stored for "
        "{group}",
    ),
}


def error_of(refusal: Refusal, group_id: str) -> OctavoError:
    """The typed error of a refusal."""
    error_class, text = _ERRORS[refusal]
    return error_class(text.format(group=f"group {group_id[:200]!r}"))
