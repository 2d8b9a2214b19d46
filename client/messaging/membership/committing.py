"""The shell of committed offsets: requests to the coordinator, and who hears of their outcomes.

Runs on the client's loop; decides nothing (`offset_commits`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import cast

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.config import GroupConfig
from octavo.client.messaging.membership import wire
from octavo.client.messaging.membership.assigned import AssignedReadings
from octavo.client.messaging.membership.offset_commits import (
    CommitAction,
    OffsetCommits,
    SendCommit,
    Settle,
)
from octavo.client.messaging.membership.tickets import (
    Called,
    CommitCallback,
    Outcome,
    Ticket,
    Waiter,
    by_place,
)
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.records import GroupMetadata, OffsetAndMetadata
from octavo.client.messaging.user_code import ClientLog
from octavo.proto import groups_pb2 as pb
from octavo.runtime.errors import IllegalStateError, OctavoError, RequestTimedOut
from octavo.runtime.errors_of_groups import CommitFailed

OUTCOMES_MAX = 10_000
"""Outcomes of commits that the user's code is still to be told; the oldest ones go."""

_log = ClientLog("octavo.client")
Offsets = Mapping[Slot, OffsetAndMetadata]


class Committing:
    """Of one consumer.

    Args:
        who: the member at this moment; None commits as nobody's membership (O3).
        changed: called when the next deadline may have changed.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        group_id: str,
        *,
        who: Callable[[], GroupMetadata | None],
        tasks: LostTasks,
        readings: AssignedReadings,
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._now_s = cluster.clock.monotonic
        self._config = config
        self._group_id = group_id
        self._who = who
        self._tasks = tasks
        self._readings = readings
        self._changed = changed
        auto_s = config.auto_commit_interval_ms / 1000 if config.enable_auto_commit else None
        self.core = OffsetCommits(
            cluster.entropy,
            auto_interval_s=auto_s,
            backoff_initial_s=config.retry_backoff_ms / 1000,
            backoff_max_s=config.retry_backoff_max_ms / 1000,
        )
        self.outcomes: deque[Outcome] = deque(maxlen=OUTCOMES_MAX)
        self._callers = 0
        """Calls that wait for a commit."""
        self.interceptors: tuple[CommitCallback, ...] = ()
        """They hear of every commit."""

    # --- what is asked for ----------------------------------------------------------------------

    def offsets(self, slots: Iterable[Slot]) -> dict[Slot, OffsetAndMetadata]:
        """Where these stand."""
        found = self._readings.positions(slots)
        return {slot: OffsetAndMetadata(offset) for slot, offset in found.items()}

    def auto(self, slots: Iterable[Slot], now_s: float) -> None:
        """O9: what earlier reading calls returned."""
        self.settle(self.core.auto(self._readings.positions(slots), now_s))

    def before(self, slots: Iterable[Slot], then: Callable[[], None]) -> None:
        """RB11 step 2: bounded by the request timeout, then go on whatever came of it."""

        def told(error: OctavoError | None) -> None:
            if error is not None:
                _log.warning("positions before a revocation are not committed: %s", error)
            then()

        limit_s = self._config.request_timeout_ms / 1000
        self.begin(Called(told), self.offsets(slots), waits=True, timeout_s=limit_s)

    def begin(self, ticket: Ticket, offsets: Offsets, *, waits: bool, timeout_s: float) -> None:
        """Commit; the ticket hears of it."""
        self._tasks.restart()
        now_s = self._now_s()
        deadline_s = now_s + timeout_s
        self.settle(self.core.commit(ticket, offsets, now_s, deadline_s=deadline_s, waits=waits))

    async def commit(self, offsets: Offsets, timeout_s: float) -> None:
        """Commit and wait (O10); CommitFailed when the group does not count on this member."""
        who = self._who()
        if who is not None and who.epoch <= 0:
            raise CommitFailed(f"this consumer is no member of group {self._group_id!r} now")
        waiter = Waiter()
        self.begin(waiter, offsets, waits=True, timeout_s=timeout_s)
        self._callers += 1
        try:
            await waiter.future
        finally:
            self._callers -= 1

    async def last(self, slots: Iterable[Slot], timeout_s: float) -> OctavoError | None:
        """Commit the positions of a consumer that ends, as far as there is time.

        What its caller has to hear: that they may or may not be stored. A refusal is for the log
        (O9): they are somebody else's by then.
        """
        offsets = self.core.unconfirmed(self.offsets(slots))
        if not offsets:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                await self.commit(offsets, timeout_s)
        except TimeoutError:
            why = "no answer"
        except OctavoError as error:
            if not error.retriable:
                _log.warning("the last positions of group %s: %s", self._group_id, error)
                return None
            why = error.cause
        else:
            return None
        return RequestTimedOut(
            f"the last positions of group {self._group_id!r} were not confirmed in {timeout_s:.3g} "
            f"s and may or may not be stored: {why}",
            hint="unless they are, records since the commit before come again to whoever is next",
        )

    async def committed(
        self, slots: Iterable[Slot], timeout_s: float, *, as_member: bool = False
    ) -> dict[Slot, OffsetAndMetadata]:
        """What the group committed of these."""
        wanted = list(slots)
        request = pb.FetchOffsetsRequest(
            group_id=self._group_id,
            who=self._committer() if as_member else wire.NOBODY,
            slots=wire.topic_slots(wanted),
        )
        reply = await self._cluster.coordinators.insist(
            self._group_id,
            lambda stub, limit_s: stub.FetchOffsets(request, timeout=limit_s),
            timeout_s,
        )
        return wire.committed_offsets(reply, wanted)

    def task_lost(self) -> None:
        """Who waits for a commit hears of its end; nobody does when all tasks of a loop end."""
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._callers and not self._tasks.closed:
            self._tasks.restart()

    # --- what comes of it -----------------------------------------------------------------------

    def settle(self, actions: list[CommitAction]) -> None:
        """Do what the core wants."""
        for action in actions:
            if isinstance(action, SendCommit):
                again = partial(self._lost, action.number)
                self._tasks.start(self._send(action), "commit offsets", again, of_request=True)
            else:
                self._settled(action)
        self._changed()

    def _settled(self, settled: Settle) -> None:
        ticket, offsets, error = settled
        if self.interceptors and offsets:
            self.tell(self.interceptors, offsets, error)
        if ticket is not None:
            cast("Ticket", ticket).settled(offsets, error)
        elif error is not None:
            _log.warning("auto-commit of group %s: %s", self._group_id, error)

    def tell(
        self, calls: tuple[CommitCallback, ...], offsets: Offsets, error: OctavoError | None
    ) -> None:
        """Code of the user's hears of it in the next reading call."""
        self.outcomes.append(Outcome(calls, by_place(offsets), error))
        self._readings.wake()

    async def _send(self, action: SendCommit) -> None:
        number, offsets = action
        request = wire.commit(self._group_id, self._committer(), offsets)
        tracing = self._cluster.tracing
        try:
            with nullcontext() if tracing is None else tracing.committing(self._group_id):
                reply = await self._cluster.coordinators.ask(
                    self._group_id,
                    lambda stub, limit_s: stub.CommitOffsets(request, timeout=limit_s),
                    self._cluster.calls.request_timeout_s,
                )
        except OctavoError as error:
            self.settle(self.core.failed(number, error, self._now_s()))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            _log.exception("committing offsets")
            failure = our_fault("committing offsets", error)
            self.settle(self.core.failed(number, failure, self._now_s()))
        else:
            errors = wire.commit_errors(reply, offsets)
            self.settle(self.core.stored(number, errors, self._now_s()))

    def _lost(self, number: int) -> None:
        error = IllegalStateError("the commit was cancelled; it may be stored")
        self.settle(self.core.failed(number, error, self._now_s()))

    def _committer(self) -> pb.Committer:
        who = self._who()
        if who is None:
            return wire.NOBODY
        return pb.Committer(member_id=who.member_id, epoch=who.epoch, instance_id=who.instance_id)
