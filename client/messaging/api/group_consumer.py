"""The async consumer of a group: partitions that the group assigns, offsets that it commits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import cast

from octavo.client.messaging.api.callbacks import Callbacks, OnChange
from octavo.client.messaging.api.consumer import AsyncConsumer
from octavo.client.messaging.api.group_hand_over import GroupHandOver
from octavo.client.messaging.api.group_opening import GroupOpening, Topics, topics_and_pattern
from octavo.client.messaging.membership.tickets import CommitCallback, ToUser
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.reading.limits import INT64_MAX, partitions_of
from octavo.client.messaging.records import GroupMetadata, OffsetAndMetadata, TopicPartition
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.deadline import Deadline, check_timeout
from octavo.runtime.errors import ConfigError, IllegalStateError

CLOSE_S = 1.0
"""How long close() takes at most, whatever callbacks do (RB13)."""

UserOffset = int | OffsetAndMetadata | tuple[int, str]
"""The next offset to read, alone or with a text that is kept with it."""

_log = ClientLog("octavo.client")


class AsyncGroupConsumer(AsyncConsumer):
    """A member of a consumer group; made by `AsyncClient.consumer()` with a group.

    It joins with the first call that asks for records, and reads what the group assigns. Callbacks
    run in such calls, so whoever asks for none for `max_poll_interval_ms` leaves the group.
    """

    def __init__(self, opening: GroupOpening, callbacks: Callbacks) -> None:
        self.group_hand_over = GroupHandOver(opening, callbacks)
        self.group_opening = opening
        super().__init__(opening, self.group_hand_over)

    # --- membership -----------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Topics = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: OnChange | None = None,
        on_revoke: OnChange | None = None,
        on_lost: OnChange | None = None,
    ) -> None:
        """Read these topics, or those whose whole names match `pattern`, instead of earlier ones.

        Topics need not exist yet. Each callback gets a list of partitions: `on_revoke` before they
        go, `on_assign` when more came (perhaps none), `on_lost` when they are somebody else's
        already; without it `on_revoke` is called then, too.
        """
        names, text = topics_and_pattern(topics, pattern)
        if not names and text is None:
            raise ConfigError("nothing to subscribe to", hint="unsubscribe() ends a subscription")
        self.group_opening.subscribe(names, text)
        self.group_hand_over.callbacks = Callbacks(on_assign, on_revoke, on_lost)

    async def unsubscribe(self) -> None:
        """Commit (with auto-commit), call `on_revoke` and leave the group; nothing is read then."""
        opening = self.group_opening
        session = opening.member()
        if session.core.in_callback:
            raise IllegalStateError("a callback ends the subscription", hint="do it outside of it")
        opening.topics, opening.pattern = [], None
        if session.simple:
            await self.assign([])
        elif session.core.subscription:
            limit_s = self.opening.config.request_timeout_ms / 1000
            stays = self._stays(leave_group=False)
            await session.part(self.group_hand_over.last_call, stays=stays, timeout_s=limit_s)

    async def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions without being a member; offsets are committed all the same.

        Positions begin at what the group committed. IllegalStateError with a subscription; commits
        are refused while the group has members (O3).
        """
        wanted = partitions_of(partitions)
        await self.group_opening.assign(wanted, self.opening.deadline())

    async def assignment(self) -> list[TopicPartition]:
        """The partitions that are its own at this moment, those about to go included."""
        return sorted(self.group_opening.member().readings.slots)

    def group_metadata(self) -> GroupMetadata:
        """Group, member id, epoch and instance id at this moment; epoch 0: no member."""
        session = self.group_opening.session
        if session is None:
            config = self.group_opening.group_config
            return GroupMetadata(self.group_opening.group_id, "", 0, config.group_instance_id)
        return session.metadata

    # --- offsets --------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, UserOffset] | None = None) -> None:
        """Commit the positions of everything assigned, or these next offsets to read, durably.

        Raises CommitFailed when the partitions are somebody else's now: nothing is stored. What is
        wrong with one partition alone is raised, too, and the others are stored.
        """
        deadline = self.opening.deadline()
        wanted = await self._offsets_of(offsets, deadline)
        await self.group_opening.member().commits.commit(wanted, deadline.left_s())

    async def commit_async(
        self,
        offsets: Mapping[TopicPartition, UserOffset] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """The same without waiting for the outcome.

        The next call that asks for records tells it to `callback(offsets, error)`. A later commit
        of the same partitions takes the place of one that is not under way yet: CommitReplaced.
        """
        deadline = self.opening.deadline()
        wanted = await self._offsets_of(offsets, deadline)
        commits = self.group_opening.member().commits
        ticket = ToUser(callback, commits.tell)
        commits.begin(ticket, wanted, waits=False, timeout_s=deadline.left_s())

    async def committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group committed of the given (default: all assigned) partitions."""
        deadline = self.opening.deadline()
        session = self.group_opening.member()
        chosen = partitions_of(partitions) or sorted(session.readings.slots)
        slots = await self.group_opening.slots(chosen, deadline)
        found = await session.commits.committed(slots, deadline.left_s()) if slots else {}
        return {slot.where: found.get(slot) for slot in slots}

    async def _offsets_of(
        self, offsets: Mapping[TopicPartition, UserOffset] | None, deadline: Deadline
    ) -> dict[Slot, OffsetAndMetadata]:
        session = self.group_opening.member()
        if offsets is None:
            return session.commits.offsets(session.readings.slots.values())
        if not isinstance(cast("object", offsets), Mapping):
            raise ConfigError(
                f"{offsets!r} are no offsets", hint="a dict: {TopicPartition: next offset to read}"
            )
        places = partitions_of(offsets)
        values = [_value(offset) for offset in offsets.values()]
        slots = await self.group_opening.slots(places, deadline)
        return dict(zip(slots, values, strict=True))

    # --- the end --------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None, *, leave_group: bool = False) -> None:
        """Commit (with auto-commit), call `on_revoke`, leave the group, end. Twice is harmless.

        Takes `timeout` seconds at most, one without it, whatever callbacks do. A static member only
        says that it will be back, but for `leave_group`. A block that ends with an exception does
        not commit: what was handed out last comes again.
        """
        await self.end(timeout, leave_group=leave_group, commits=True)

    async def end(self, timeout: float | None, *, leave_group: bool, commits: bool) -> None:
        """As `close`; without `commits` what was handed out last counts as not processed."""
        limit_s = CLOSE_S if timeout is None else check_timeout(timeout)
        opening = self.group_opening
        if opening.ending and not opening.closed:
            return  # it is under way
        parts, opening.ending = not (opening.ending or opening.closed), True
        try:
            if parts and opening.session is not None:
                opening.session.readings.wake()
                await opening.session.part(
                    self.group_hand_over.last_call,
                    stays=self._stays(leave_group=leave_group),
                    timeout_s=CLOSE_S if limit_s is None else limit_s,
                    commits=commits,
                )
        finally:
            await super().close()

    def _stays(self, *, leave_group: bool) -> bool:
        return self.group_opening.group_config.group_instance_id is not None and not leave_group

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:  # an error may have come before what was handed out last was processed (F123)
            await self.end(None, leave_group=False, commits=error is None)
        except Exception:
            if error is None:
                raise
            _log.exception("closing after %s", type(error).__name__)


def _value(given: object) -> OffsetAndMetadata:
    """What a user commits for a partition; a negative offset is refused by the coordinator (O2)."""
    offset, metadata = given, ""
    if isinstance(given, tuple) and len(pair := cast("tuple[object, ...]", given)) == 2:
        offset, text = pair
        if not isinstance(text, str):
            raise ConfigError(f"{text!r} beside an offset is no text")
        metadata = text
    if (
        isinstance(offset, bool)
        or not isinstance(offset, int)
        or not -1 << 63 <= offset <= INT64_MAX
    ):
        raise ConfigError(
            f"{given!r} is no offset", hint="commit the next offset to read, a whole number"
        )
    return OffsetAndMetadata(offset, metadata)
