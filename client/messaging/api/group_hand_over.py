"""What a reading call of a consumer with a group does besides: callbacks, commits, errors.

One order for all of them (RB11, O9): what earlier calls returned is committed, what is due for the
user's code is called, then records are handed out. While a call waits for records it is interrupted
by whatever is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from octavo.client.messaging.api.callbacks import CallbackDue, Callbacks
from octavo.client.messaging.api.group_opening import GroupOpening
from octavo.client.messaging.api.hand_over import HandOver
from octavo.client.messaging.membership.tickets import Outcome
from octavo.client.messaging.membership.values import Duty
from octavo.client.messaging.reading.buffers import Ends
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.records import Record
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import IllegalStateError, InconsistentTopicId, UnknownTopic

T = TypeVar("T")
_log = ClientLog("octavo.client")


class GroupHandOver(HandOver):
    """Of one consumer with a group."""

    def __init__(self, opening: GroupOpening, callbacks: Callbacks) -> None:
        super().__init__(opening)
        self._group = opening
        self.group_id = opening.group_id
        self.handout = opening.handout
        self.callbacks = callbacks
        self.blocking = False
        """Callbacks run on the thread of the blocking call, to which `CallbackDue` is raised."""

    async def poll(self, limit: int, deadline: Deadline) -> list[Record]:
        """Records of one poll(); an iteration's rest comes first."""
        records = await self.records(limit, deadline) or []
        return records or self.handout.take(limit)

    async def refill(self) -> bool:
        """As of any consumer; what is left of the last poll may not be ours any more (RB12)."""
        if not self._group.closed:
            self._group.member()
        return await super().refill()

    async def taken(
        self,
        fetcher: Fetcher,
        take: Callable[[], list[T]],
        deadline: Deadline,
        ends: Ends | None = None,
    ) -> list[T] | None:
        """As `Fetcher.taken`, after whatever is due."""
        session = self._group.session or self._group.member()  # which `enter` checks

        def take_what_is_ours() -> list[T]:
            session.look_at_clock()
            return take()

        session.enter()
        try:
            while True:
                if self._group.ending:
                    raise IllegalStateError("the consumer was closed")
                duty = session.next_duty()
                if duty is not None:
                    if self.blocking:
                        raise CallbackDue(duty)
                    await self._call(duty)
                    continue
                self.handout.unhold()
                if self.handout.ready:
                    return []  # of an iteration: it goes on where it was
                try:
                    out = await fetcher.taken(take_what_is_ours, deadline, ends, session.due)
                except (InconsistentTopicId, UnknownTopic) as error:
                    if session.simple:
                        raise
                    # Its coordinator hears of the topic's end, too, and takes its partitions away.
                    _log.warning("group %s: %s", self._group.group_id, error.cause)
                    out = []
                if out or out is None or (deadline.passed and not session.due()):
                    return out
        finally:
            session.leave()

    async def _call(self, duty: Duty | Outcome) -> None:
        session = self._group.member()
        session.begin(duty)
        session.leave()
        try:
            await self.callbacks.run_here(duty)
        finally:
            session.end(duty)
            session.resume()

    async def last_call(self, duty: Duty) -> None:
        """The last callback of a consumer, or of a subscription."""
        if self.blocking:
            await self.callbacks.run_apart(duty)
        else:
            await self.callbacks.run_here(duty)
