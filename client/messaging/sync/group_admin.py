"""The blocking admin of groups.

Written by `tools/gen_sync.py` from `api/group_admin.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.client.messaging.api.group_admin import DEFAULT_TIMEOUT_S
from octavo.client.messaging.group_admin.resets import Named, ResetTo
from octavo.client.messaging.group_admin.values import (
    CommittedOffset,
    GroupDescription,
    GroupLag,
    GroupListing,
    OffsetChange,
)
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.sync.by_hand import AdminByHand
from octavo.proto.lag import ResetTarget


class GroupAdmin(AdminByHand):
    """The part of `client.admin` that knows of consumer groups."""

    def list_groups(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[GroupListing]:
        """Every group, sorted by id; empty where no consumer ever named one.

        It is whole or an error: each part of it comes from its coordinator.
        """
        return self._thread.run(self._async.list_groups(timeout=timeout))

    def describe_group(self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> GroupDescription:
        """State, epochs and members of a group. Raises GroupIdNotFound."""
        return self._thread.run(self._async.describe_group(group, timeout=timeout))

    def describe_groups(
        self, groups: Iterable[str], *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[GroupDescription]:
        """Several groups, in the order of their names. Raises GroupIdNotFound."""
        return self._thread.run(self._async.describe_groups(list(groups), timeout=timeout))

    def group_lag(
        self,
        group: str,
        *,
        uncommitted_from: ResetTarget = "earliest",
        time_lag: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> GroupLag:
        """How far a group is behind, in records and seconds (M1 to M3). Raises GroupIdNotFound.

        Of each partition that it committed or that a member reads. Where nothing was committed,
        `uncommitted_from` says where its consumers would begin: only they know their
        `auto_offset_reset`. Seconds cost the reading of a batch for each partition that lags;
        `time_lag=False` leaves them out. `LagHistory` makes rates of several answers.
        """
        return self._thread.run(
            self._async.group_lag(
                group, uncommitted_from=uncommitted_from, time_lag=time_lag, timeout=timeout
            )
        )

    def list_group_offsets(
        self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[CommittedOffset]:
        """Everything that a group committed, by topic and partition; empty for an unknown group."""
        return self._thread.run(self._async.list_group_offsets(group, timeout=timeout))

    def reset_offsets(
        self,
        group: str,
        to: ResetTo,
        *,
        topics: str | Iterable[Named] | None = None,
        dry_run: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[OffsetChange]:
        """Let a group without members go on elsewhere; returns before and after.

        `to` is "earliest", "latest", an offset, an aware datetime (the first record at or after
        it), a timedelta (so long ago), `ShiftBy(n)` from where the group is, or `LastRecords(n)`
        before the end; each result is moved to what is stored. `topics` are names of whole topics
        or single partitions, else all that the group committed. With `dry_run` nothing changes.

        Raises NonEmptyGroup while the group has members, also for one that joins meanwhile, and
        GroupIdNotFound for an unknown group when no topics are named; with topics it is made.
        """
        return self._thread.run(
            self._async.reset_offsets(
                group,
                to,
                topics=topics if topics is None or isinstance(topics, str) else list(topics),
                dry_run=dry_run,
                timeout=timeout,
            )
        )

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Store offsets of a group without members, for who reads by other means and shows it.

        They are stored as they are, within the log or not. `topic_ids` by name say which topics
        they are of, for one created again under its name is another (O1); else those that exist.
        The group is made if need be. Raises NonEmptyGroup while it has members, UnknownTopic.
        """
        self._thread.run(
            self._async.commit_offsets(group, offsets, topic_ids=topic_ids, timeout=timeout)
        )

    def delete_group(self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a group without members and all it committed.

        Raises NonEmptyGroup, GroupIdNotFound.
        """
        self._thread.run(self._async.delete_group(group, timeout=timeout))

    def delete_group_offsets(
        self,
        group: str,
        topics: str | Iterable[Named],
        *,
        dry_run: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> list[CommittedOffset]:
        """Forget what a group committed for whole topics or single partitions; returns that.

        Raises GroupSubscribedToTopic while a member reads one of the topics, GroupIdNotFound. With
        `dry_run` nothing changes.
        """
        return self._thread.run(
            self._async.delete_group_offsets(
                group,
                topics if isinstance(topics, str) else list(topics),
                dry_run=dry_run,
                timeout=timeout,
            )
        )

    def remove_members(
        self,
        group: str,
        *,
        members: Iterable[str] = (),
        instances: Iterable[str] = (),
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Put members out of a group, by member id or by instance id; their partitions move on.

        A consumer that still runs joins again by itself. Raises UnknownMemberId naming those that
        are no members, after the others were removed, and GroupIdNotFound.
        """
        self._thread.run(
            self._async.remove_members(
                group, members=list(members), instances=list(instances), timeout=timeout
            )
        )
