"""The shell of a member: its heartbeats, what they bring, and the clock of both cores.

Runs on the client's loop until `close`; decides nothing. What the user's next reading call has to
do first comes out of `next_duty`; `enter` and `leave` stand around each reading call, because time
in which the user's code runs is limited (RB13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.config import GroupConfig
from octavo.client.messaging.membership import wire
from octavo.client.messaging.membership.assigned import AssignedReadings
from octavo.client.messaging.membership.beginnings import Beginnings
from octavo.client.messaging.membership.committing import Committing
from octavo.client.messaging.membership.member_core import MemberCore
from octavo.client.messaging.membership.tickets import Outcome
from octavo.client.messaging.membership.values import (
    JOIN_EPOCH,
    Action,
    Beat,
    Begin,
    Drop,
    Duty,
    GiveUp,
    MemberSettings,
    Refused,
    Slot,
    Start,
    Stop,
    Task,
)
from octavo.client.messaging.membership.wanted_topics import WantedTopics
from octavo.client.messaging.reading.fetcher import Fetcher
from octavo.client.messaging.reading.handout import Handout
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.records import GroupMetadata
from octavo.client.messaging.user_code import ClientLog
from octavo.proto.group_records import Subscription
from octavo.runtime.deadline import Deadline
from octavo.runtime.errors import IllegalStateError, OctavoError
from octavo.runtime.errors_of_groups import (
    FencedInstanceId,
    FencedMemberEpoch,
    UnknownMemberId,
)

HEARTBEAT_GRACE_S = 3.0
"""How much longer than the interval, for which it may be held, a heartbeat is waited for."""
HOLD_EVERY_S = 5.0
"""An iteration over what was fetched comes to the loop at least so often: to show that the user's
code goes on, and for what is due (O9, RB13)."""
COMMIT_PART, CALLBACK_PART = 0.4, 0.7
"""Of the time for an end: when the last commit, and then the last callback, must be over."""

_log = ClientLog("octavo.client")


class Session:
    """One consumer's membership."""

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        group_id: str,
        fetcher: Fetcher,
        handout: Handout,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._group_id = group_id
        self._now_s = cluster.clock.monotonic
        self.simple = False
        """Partitions are assigned by hand: offsets are committed as nobody's membership (O3)."""
        self.readings = AssignedReadings(fetcher, handout)
        settings = MemberSettings(
            config.group_instance_id,
            config.enable_auto_commit,
            config.max_poll_interval_ms / 1000,
            config.retry_backoff_ms / 1000,
            config.retry_backoff_max_ms / 1000,
            first_sequence=cluster.clock.wall_ms() * 1024,
        )
        self.core = MemberCore(settings, cluster.entropy)
        self._member_id = f"{cluster.config.client_id}-{cluster.entropy.uuid()}"
        self._tasks = LostTasks("octavo-member", self._task_lost)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.commits = Committing(
            cluster,
            config,
            group_id,
            who=lambda: None if self.simple else self.metadata,
            tasks=self._tasks,
            readings=self.readings,
            changed=self._set_timer,
        )
        self.topics = WantedTopics(
            cluster, self._tasks, may_miss=config.allow_missing_topics, tell=self.readings.wake
        )
        self.beginnings = Beginnings(
            cluster,
            self.commits,
            self.readings,
            self._tasks,
            reset=config.auto_offset_reset,
            later=self.topics.came_later,
            wanted=self.core.looks_up,
            found=lambda number: self.perform(self.core.positions_known(number, self._now_s())),
            tell=self._tell_of,
        )
        self._beat: tuple[int, asyncio.Task[object]] | None = None
        self._interval_s = 3.0
        self._held_at_s = 0.0
        self._parted = asyncio.Event()
        """Set while no goodbye is under way."""
        self._error: OctavoError | None = None
        """Of a heartbeat; raised by the next reading call."""
        self._fatal: OctavoError | None = None
        """The same, raised by every one."""

    @property
    def metadata(self) -> GroupMetadata:
        """Who it is at this moment."""
        instance_id = self._config.group_instance_id
        return GroupMetadata(self._group_id, self._member_id, self.core.epoch, instance_id)

    @property
    def owned(self) -> list[Slot]:
        """What it may commit."""
        return list(self.readings.slots.values()) if self.simple else sorted(self.core.owned)

    # --- around reading calls -------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None) -> None:
        """Read these from the next reading call on, or at once as a member."""
        config = self._config
        subscription = Subscription(
            topics=frozenset(topics),
            pattern=pattern,
            assignor=next(iter(config.assignors), None),
            rack=config.client_rack,
            rebalance_timeout_s=config.max_poll_interval_ms / 1000,
            client_id=self._cluster.config.client_id,
        )
        self.topics.look_for(subscription.topics)
        self.perform(self.core.subscribe(subscription, self._now_s()))

    def enter(self) -> None:
        """A reading call begins: joins, commits what earlier ones returned (O9)."""
        if self.core.in_callback:
            raise IllegalStateError(
                "a callback asks for records",
                hint="poll() goes on when the callback is done; seek, pause and commit are allowed",
            )
        now_s = self._now_s()
        actions = self.core.entered(now_s)
        if actions:
            self.perform(actions)
        if self.commits.core.auto_due(now_s):
            self.commits.auto(self.owned, now_s)

    def leave(self) -> None:
        """The reading call ends, or user code runs in it."""
        self.core.left(self._now_s())

    def look_at_clock(self) -> None:
        """Nothing is handed out or committed that time took away, also while the loop stood still
        and its timer has not rung yet (RB12)."""
        now_s = self._now_s()
        if now_s >= self.core.beats.late_at_s:
            self.perform(self.core.tick(now_s))

    def due(self) -> bool:
        """Whether a reading call that waits has something to do before it goes on."""
        wrong = self._error or self._fatal or self.topics.error
        return bool(self.core.duty or wrong or self.commits.outcomes or self._tasks.lost)

    def next_duty(self) -> Duty | Outcome | None:
        """What user code has to be called for now; raises what a heartbeat met."""
        self._tasks.restart()
        if self.commits.outcomes:
            return self.commits.outcomes[0]
        duty = self.core.duty
        if duty is not None and duty.task is Task.COMMIT:
            self.core.begun(duty)
            self.commits.before(duty.slots, partial(self.end, duty))
            duty = self.core.duty
        if duty is None:
            error, self._error = self._error or self._fatal, None
            if error is None and self.topics.error is not None:
                error = self.topics.error
                self.topics.again()
            if error is not None:
                raise error
        return duty

    def begin(self, duty: Duty | Outcome) -> None:
        """User code is about to be called for it; `end` follows whatever comes of that."""
        if isinstance(duty, Duty):
            self.core.begun(duty)
        elif self.commits.outcomes and self.commits.outcomes[0] is duty:
            self.commits.outcomes.popleft()

    def not_begun(self, duty: Duty | Outcome) -> None:
        """Whoever began it was interrupted before the call: it is due again."""
        if isinstance(duty, Duty):
            self.perform(self.core.not_begun(duty))
        else:
            self.commits.outcomes.appendleft(duty)

    def end(self, duty: Duty | Outcome) -> None:
        """The user's code is through with it, however that ended."""
        if isinstance(duty, Duty):
            self.perform(self.core.done(duty, self._now_s()))

    def resume(self) -> None:
        """The reading call goes on after a callback."""
        self.perform(self.core.entered(self._now_s()))

    # --- heartbeats and what they bring ---------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        """Do what the core wants."""
        for action in actions:
            if isinstance(action, Beat):
                again = partial(self._beat_lost, action.sequence)
                task = self._tasks.start(self._heartbeat(action), "heartbeat", again)
                self._beat = (action.sequence, task)
            elif isinstance(action, GiveUp):
                if self._beat is not None and self._beat[0] == action.sequence:
                    self._beat[1].cancel()
            elif isinstance(action, Stop):
                self.readings.stop(action.slots)
            elif isinstance(action, Drop):
                self.readings.drop(action.slots)
                self.commits.settle(self.commits.core.discard(action.slots))
            elif isinstance(action, Begin):
                self.beginnings.find(action)
            elif isinstance(action, Start):
                self.readings.start(action.slots)
            else:
                self.readings.wake()
        if not self.core.leaving:
            self._parted.set()
        self.readings.handout.good_until_s = self.core.beats.late_at_s
        self._set_timer()

    async def _heartbeat(self, beat: Beat) -> None:
        request = wire.heartbeat(
            beat, self._group_id, self._member_id, self._config.group_instance_id
        )
        try:
            reply = await self._cluster.coordinators.ask(
                self._group_id,
                lambda stub, limit_s: stub.Heartbeat(request, timeout=limit_s),
                self._interval_s + HEARTBEAT_GRACE_S,
                held_s=self._interval_s,
            )
            told = wire.told(reply, {s.topic_id: s.topic for s in self.readings.slots.values()})
        except OctavoError as error:
            self._beat_failed(beat.sequence, error)
        except Exception as error:  # noqa: BLE001 - the next reading call raises it
            _log.exception("heartbeat of group %s", self._group_id)
            self._error = our_fault("a heartbeat", error)
            self.perform(self.core.unanswered(beat.sequence, self._now_s()))
        else:
            self._interval_s = told.heartbeat_interval_s
            if told.assigned is not None:
                self.topics.later = told.later
            self.perform(self.core.answered(beat.sequence, told, self._now_s()))

    def _beat_failed(self, sequence: int, error: OctavoError) -> None:
        now_s = self._now_s()
        if isinstance(error, UnknownMemberId | FencedMemberEpoch):
            _log.warning("group %s: %s; joining again", self._group_id, error.cause)
            self.perform(self.core.refused(sequence, Refused.FENCED, now_s))
        elif isinstance(error, FencedInstanceId):
            self._fatal = error
            self.perform(self.core.refused(sequence, Refused.FATAL, now_s))
        elif error.retriable or isinstance(error, IllegalStateError):
            _log.info("heartbeat of group %s: %s", self._group_id, error.cause)
            self.perform(self.core.unanswered(sequence, now_s))
        else:
            self._error = error
            self.perform(self.core.refused(sequence, Refused.REJECTED, now_s))

    def _beat_lost(self, sequence: int) -> None:
        self.perform(self.core.unanswered(sequence, self._now_s()))

    def _tell_of(self, error: OctavoError) -> None:
        self._error = error
        self.readings.wake()

    def _task_lost(self) -> None:
        """Somebody cancelled one: calls under way begin it again."""
        self.readings.fetcher.tell()
        self.commits.task_lost()

    # --- time -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """One timer for both cores; it may ring early."""
        dues = (self.core.next_deadline_s(), self.commits.core.next_deadline_s())
        due_s = min((due for due in dues if due is not None), default=None)
        now_s = self._now_s()
        if self.readings.slots:
            held_s = now_s + HOLD_EVERY_S
            due_s = held_s if due_s is None else min(due_s, held_s)
        if self._timer is not None:
            if due_s is not None and self._timer_s <= due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None and not self._tasks.closed:
            self._timer_s = due_s
            delay_s = max(due_s - now_s, 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._now_s()
        if now_s >= self._held_at_s + HOLD_EVERY_S:
            self._held_at_s = now_s
            self.readings.handout.hold()
        self.commits.settle(self.commits.core.tick(now_s))
        self.perform(self.core.tick(now_s))

    # --- the end --------------------------------------------------------------------------------

    async def part(
        self,
        run: Callable[[Duty], Awaitable[None]],
        *,
        stays: bool,
        timeout_s: float,
        commits: bool = True,
    ) -> None:
        """Commit (with auto-commit), call the last callback, say goodbye; the parts share the time.

        Without `commits` what was handed out last counts as not processed. The goodbye is on its
        way when this returns, and heard if there was time. RequestTimedOut after all of it when
        nobody confirmed the commit in time.
        """
        deadline = Deadline(self._cluster.clock, timeout_s)
        self.look_at_clock()
        owned, member = self.owned, self.core.epoch > JOIN_EPOCH
        unconfirmed: OctavoError | None = None
        self.topics.look_for(())
        self.perform(self.core.part(self._now_s()))
        try:
            if commits and self._config.enable_auto_commit and owned:
                unconfirmed = await self.commits.last(owned, timeout_s * COMMIT_PART)
        finally:  # each step also when the one before is cancelled, or raises
            try:
                used_s = timeout_s - deadline.left_s()
                await self._last_callback(run, max(timeout_s * CALLBACK_PART - used_s, 0.05))
            finally:
                self._parted.clear()
                self.perform(self.core.leave(self._now_s(), stays=stays))
                await self._goodbye(deadline, member=member)
        if unconfirmed is not None:
            raise unconfirmed

    async def _last_callback(
        self, run: Callable[[Duty], Awaitable[None]], timeout_s: float
    ) -> None:
        duty = self.core.duty
        if duty is not None:
            self.core.begun(duty)
            try:
                await _limited(run(duty), timeout_s)
            finally:
                self.end(duty)

    async def _goodbye(self, deadline: Deadline, *, member: bool) -> None:
        try:
            async with asyncio.timeout(deadline.left_s()):
                await self._parted.wait()
        except TimeoutError:
            if member:
                _log.warning(
                    "group %s did not hear that this member leaves; what it read is free after its "
                    "session timeout",
                    self._group_id,
                )

    async def close(self) -> None:
        """End what runs in the background; harmless when repeated."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()


async def _limited(running: Awaitable[None], timeout_s: float) -> None:
    """A callback at the end of a consumer, which it does not hold up."""
    try:
        async with asyncio.timeout(timeout_s):
            await running
    except TimeoutError:
        _log.warning("a callback of a consumer that ends took longer than %.1f s", timeout_s)
