"""Administration of consumer groups: who is in them, how far behind, and where they go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from octavo.client.messaging.api.binding import Binding
from octavo.client.messaging.api.changes import Change
from octavo.client.messaging.cluster.calls import GroupCall
from octavo.client.messaging.cluster.coordinators import R
from octavo.client.messaging.group_admin.asking import (
    GroupList,
    check_group,
    describe,
    describe_all,
    partitions_of_groups,
)
from octavo.client.messaging.group_admin.resets import (
    Named,
    ResetTo,
    changes_of,
    target_of,
    wanted_of,
)
from octavo.client.messaging.group_admin.surveys import (
    NOBODY,
    committed_offsets,
    lag_of,
    lives_of,
    places_of,
)
from octavo.client.messaging.group_admin.values import (
    CommittedOffset,
    GroupDescription,
    GroupLag,
    GroupListing,
    OffsetChange,
)
from octavo.client.messaging.group_admin.wire import group_of, slots_of
from octavo.client.messaging.reading.limits import check_offset
from octavo.client.messaging.records import TopicPartition
from octavo.proto import groups_pb2 as pb
from octavo.proto.errors import from_wire
from octavo.proto.lag import ResetTarget
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import ConfigError, OctavoError, UnknownTopic
from octavo.runtime.errors_of_groups import GroupIdNotFound, NonEmptyGroup, UnknownMemberId

DEFAULT_TIMEOUT_S = 30.0
SLOTS_MAX = 10_000
"""Offsets committed by one request."""


class AsyncGroupAdmin:
    """The part of `client.admin` that knows of consumer groups."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    async def list_groups(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[GroupListing]:
        """Every group, sorted by id; empty where no consumer ever named one.

        It is whole or an error: each part of it comes from its coordinator.
        """
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        partitions = await partitions_of_groups(cluster, timeout)
        return await GroupList(cluster, partitions).gather(deadline.left_s())

    async def describe_group(
        self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> GroupDescription:
        """State, epochs and members of a group. Raises GroupIdNotFound."""
        check_group(group)
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        if not await partitions_of_groups(cluster, timeout):
            raise _no_such(group)
        return group_of(await describe(cluster, group, deadline.left_s()))

    async def describe_groups(
        self, groups: Iterable[str], *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[GroupDescription]:
        """Several groups, in the order of their names. Raises GroupIdNotFound."""
        names = [check_group(group) for group in groups]
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        if names and not await partitions_of_groups(cluster, timeout):
            raise _no_such(names[0])
        return [group_of(one) for one in await describe_all(cluster, names, deadline.left_s())]

    async def group_lag(
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
        if uncommitted_from not in ("earliest", "latest"):
            raise ConfigError(f"uncommitted_from={uncommitted_from!r}", hint="earliest or latest")
        deadline = Deadline(self._binding.cluster().clock, timeout)
        found = await self.describe_group(group, timeout=timeout)
        return await lag_of(
            self._binding.cluster(), found, deadline, reset=uncommitted_from, time_lag=time_lag
        )

    async def list_group_offsets(
        self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> list[CommittedOffset]:
        """Everything that a group committed, by topic and partition; empty for an unknown group."""
        check_group(group)
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        if not await partitions_of_groups(cluster, timeout):
            return []
        return await committed_offsets(cluster, group, deadline.left_s())

    async def reset_offsets(
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
        check_group(group)
        cluster = self._binding.cluster()
        target = target_of(to, cluster.clock.wall_ms())
        wanted = None if topics is None else wanted_of(topics)
        deadline = Deadline(cluster.clock, timeout)
        try:
            members = (await self.describe_group(group, timeout=timeout)).members
        except GroupIdNotFound:
            if wanted is None:
                raise
            members = ()
        if members:
            count = "a member" if len(members) == 1 else f"{len(members)} members"
            raise NonEmptyGroup(f"group {group!r} has {count}")
        places = await places_of(cluster, group, wanted, target, deadline)
        changes = changes_of(target, places)
        if not dry_run:
            slots = [
                _commit_of(one.topic, one.topic_id, one.partition, one.after) for one in changes
            ]
            await self._commit(group, slots, deadline)
        return changes

    async def commit_offsets(
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
        check_group(group)
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout)
        ids = topic_ids
        if ids is None:
            lives = await lives_of(cluster, (where.topic for where in offsets), deadline)
            ids = {topic: life.topic_id for topic, life in lives.items()}
        for where in offsets:
            if where.topic not in ids:
                raise UnknownTopic(f"topic {where.topic!r} does not exist")
        slots = [
            _commit_of(where.topic, ids[where.topic], where.partition, check_offset(offset))
            for where, offset in offsets.items()
        ]
        await self._commit(group, slots, deadline)

    async def _commit(self, group: str, slots: list[pb.OffsetCommit], deadline: Deadline) -> None:
        for start in range(0, len(slots), SLOTS_MAX):
            part = slots[start : start + SLOTS_MAX]
            try:
                errors = await self._commit_part(group, part, deadline)
            except UnknownMemberId as error:  # O3: nobody commits while there are members
                raise NonEmptyGroup(f"a member joined group {group!r} meanwhile") from error
            if errors:
                raise type(errors[0])(
                    f"{len(errors)} of {len(slots)} offsets were not stored: {errors[0].cause}",
                    hint=errors[0].hint or "those before it were: look with `octavo group lag`",
                )

    async def _commit_part(
        self, group: str, slots: list[pb.OffsetCommit], deadline: Deadline
    ) -> list[OctavoError]:
        request = pb.CommitOffsetsRequest(group_id=group, who=NOBODY, offsets=slots)
        change = Change(self._binding.cluster(), f"storing offsets of {group!r}", deadline.left_s())
        reply = await self._settle(
            change, group, lambda stub, limit: stub.CommitOffsets(request, timeout=limit), deadline
        )
        return [from_wire(one.error) for one in reply.errors]

    async def delete_group(self, group: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Delete a group without members and all it committed.

        Raises NonEmptyGroup, GroupIdNotFound.
        """
        deadline = await self._existing(group, timeout)
        request = pb.DeleteGroupRequest(group_id=group)
        await self._remove(
            group,
            f"deleting group {group!r}",
            lambda stub, limit: stub.DeleteGroup(request, timeout=limit),
            deadline,
        )

    async def delete_group_offsets(
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
        wanted = wanted_of(topics)
        deadline = await self._existing(group, timeout)
        cluster = self._binding.cluster()
        committed = await committed_offsets(cluster, group, deadline.left_s())
        gone = [
            one
            for one in committed
            if one.topic in wanted
            and ((chosen := wanted[one.topic]) is None or one.partition in chosen)
        ]
        if gone and not dry_run:
            slots = slots_of((one.topic_id, one.partition) for one in gone)
            request = pb.DeleteOffsetsRequest(group_id=group, slots=slots)
            await self._remove(
                group,
                f"deleting offsets of group {group!r}",
                lambda stub, limit: stub.DeleteOffsets(request, timeout=limit),
                deadline,
            )
        return gone

    async def remove_members(
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
        named = [
            *(pb.RemovedMember(member_id=check_group(one)) for one in members),
            *(pb.RemovedMember(instance_id=check_group(one)) for one in instances),
        ]
        if not named:
            raise ConfigError("no member was named", hint="members=[...] or instances=[...]")
        deadline = await self._existing(group, timeout)
        request = pb.RemoveMembersRequest(group_id=group, members=named)
        change = Change(self._binding.cluster(), f"removing members of {group!r}", timeout)
        reply = await self._settle(
            change, group, lambda stub, limit: stub.RemoveMembers(request, timeout=limit), deadline
        )
        unknown = [
            one.instance_id if one.HasField("instance_id") else one.member_id
            for one in reply.members
            if one.HasField("error")
        ]
        if unknown and not change.unsure:  # else an earlier attempt removed them
            raise UnknownMemberId(
                f"group {group!r} has no member {', '.join(unknown)}",
                hint="`octavo group describe` names its members",
            )

    async def _existing(self, group: str, timeout_s: float) -> Deadline:
        """Asking for a coordinator would make the topic of groups: not for a group that is none."""
        check_group(group)
        cluster = self._binding.cluster()
        deadline = Deadline(cluster.clock, timeout_s)
        if not await partitions_of_groups(cluster, timeout_s):
            raise _no_such(group)
        return deadline

    async def _remove(self, group: str, what: str, call: GroupCall[R], deadline: Deadline) -> None:
        """Ask until it is done: "no such group" says so, too, after an attempt without answer."""
        change = Change(self._binding.cluster(), what, deadline.left_s())
        try:
            await self._settle(change, group, call, deadline)
        except GroupIdNotFound:
            if not change.unsure:
                raise

    async def _settle(
        self, change: Change, group: str, call: GroupCall[R], deadline: Deadline
    ) -> R:
        cluster = self._binding.cluster()

        async def attempt() -> R:
            limit_s = deadline.left_s(cluster.calls.request_timeout_s)
            with change.noting():
                return await cluster.coordinators.ask(group, call, limit_s)

        return await change.settle(attempt)


def _commit_of(topic: str, topic_id: str, partition: int, offset: int) -> pb.OffsetCommit:
    return pb.OffsetCommit(
        topic_id=bytes.fromhex(topic_id), topic=topic, partition=partition, offset=offset
    )


def _no_such(group: str) -> GroupIdNotFound:
    return GroupIdNotFound(
        f"there is no group {group!r}: no consumer of this cluster ever had a group"
    )
