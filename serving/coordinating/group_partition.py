"""One partition of groups that this broker coordinates: carries out what its core decides.

    served ─► loading ─► serving ─► left
                 ▲          │ an append failed, or its fate is unknown (G2)
                 └──────────┘

A partition is read again only when nothing that an earlier life appended is pending: what is read
then is all that there will be of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from octavo.proto import batch as batches
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvariantViolation, NotLeader, OctavoError
from octavo.runtime.errors_of_groups import CoordinatorLoadInProgress, CoordinatorNotAvailable
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.runtime.workers import WorkerPool
from octavo.serving.coordinating.known_topics import KnownTopics
from octavo.serving.coordinating.replay import replay_log
from octavo.serving.groups.append_queue import AppendRecords, Respond
from octavo.serving.groups.assignors import assign
from octavo.serving.groups.group_table import ComputeTarget, PartitionAction
from octavo.serving.groups.partition_core import GroupPartitionCore
from octavo.serving.groups.request_checks import PartitionLimits
from octavo.serving.groups.topics import TopicDirectory
from octavo.serving.groups.values import CompactReply, Heartbeat, Refusal, Reply
from octavo.serving.partition.log import ACKS_ALL, Answer
from octavo.serving.partition.shell import PartitionShell

RELOAD_PAUSE_S = 0.1
"""Before a partition is read again; doubles with each failure."""
RELOAD_PAUSE_MAX_S = 5.0
PENDING_LOOK_S = 0.5
"""How often a partition with appends of unknown fate is looked at, if nothing wakes us."""

DEADLINE_SLACK_S = 0.02
"""How late a deadline may be noticed, so that those that lie close together are met at once."""
LOAD_PATIENCE_S = 0.5
"""How long a request waits for its partition to be read; then its client asks again."""

_log = get_logger("octavo.serving.group_partition")

ENCODED_AT_ONCE = 200
"""Records whose bytes are made on the loop; more are made by a thread."""
LOG_TO_STATE = 3
"""Records of the log for each one that counts, beyond which the log is compacted."""

Event = Callable[[GroupPartitionCore, asyncio.Future[Reply]], list[PartitionAction]]
"""Tells a core of a request that is answered through the future."""


def _encoded(action: AppendRecords, now_ms: int) -> Buffer | OctavoError:
    records = action.records()
    try:
        return batches.encode(
            [now_ms] * len(records),
            [record.key for record in records],
            [record.value for record in records],
        )
    except OctavoError as error:
        return error


@dataclass
class _Log:
    """How long the log is, as far as it has to be read."""

    records: int = 0
    live_records: int = 0
    """Those that count, when it was compacted last."""
    is_compacting: bool = False
    cut_batch: int = 0
    cut_offset: int | None = None
    """Where the compaction under way began."""


@dataclass(frozen=True)
class GroupPartitionDeps:
    """What the partitions of a broker's coordinator share."""

    clock: Clock
    limits: PartitionLimits
    topics: KnownTopics
    targets: WorkerPool
    """Where targets are computed, beside the loop (RB2)."""
    tasks: TaskOwner
    is_owner: Callable[[PartitionShell], bool]
    """Whether the partition may be served here right now (G3)."""
    is_certain: Callable[[], bool]
    """Whether that needs no proof."""
    log_records_max: int
    """Below it a log is never compacted."""


class GroupPartition:
    """From `served` to `left`."""

    def __init__(self, shell: PartitionShell, deps: GroupPartitionDeps) -> None:
        self.shell = shell
        self._deps = deps
        self._core: GroupPartitionCore | None = None
        self._serving = asyncio.Event()
        self._log = _Log()
        self._failure: OctavoError | None = None
        """Why it could not be read the last time."""
        self._has_left = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        """When it rings."""
        self._loading = deps.tasks.spawn(self._load(), name=f"load {shell.name}")

    # -- what is asked of it

    async def ask(self, event: Event) -> Reply:
        """The core's answer to a request, proved.

        Raises CoordinatorLoadInProgress or CoordinatorNotAvailable when the partition is not read
        within a moment. Cancelled, the request is still carried out and nobody is told.
        """
        core = await self._loaded()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._perform(event(core, future))
        return await future

    async def heartbeat(self, group_id: str, heartbeat: Heartbeat) -> Reply:
        """`ask`, for a request that may be held; cancelled, it is not held any more."""
        core, clock = await self._loaded(), self._deps.clock
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        now_ms, now_s = clock.wall_ms(), clock.monotonic()
        self._perform(core.heartbeat(future, group_id, heartbeat, now_ms=now_ms, now_s=now_s))
        try:
            return await future
        except asyncio.CancelledError:
            core.withdraw(future, group_id, heartbeat.member_id)
            raise

    async def _loaded(self) -> GroupPartitionCore:
        if self._core is not None:
            return self._core
        try:
            async with asyncio.timeout(LOAD_PATIENCE_S):
                await self._serving.wait()
        except TimeoutError:
            pass
        if self._core is not None:
            return self._core
        if self._failure is not None:
            raise CoordinatorNotAvailable(
                f"{self.shell.name} could not be read: {self._failure.cause}",
                hint=self._failure.hint,
            )
        raise CoordinatorLoadInProgress(f"{self.shell.name} is being read")

    # -- events

    def left(self) -> None:
        """The partition is not served here any more; whoever waits is told."""
        self._has_left = True
        self._loading.cancel()
        self._drop()

    def topics_changed(self, directory: TopicDirectory) -> None:
        """Topics came, went or grew (RB1)."""
        if self._core is not None:
            clock = self._deps.clock
            self._perform(self._core.topics_changed(directory, clock.wall_ms(), clock.monotonic()))

    def topic_deleted(self, topic_id: str) -> None:
        """A topic is gone for certain (O7)."""
        if self._core is not None:
            self._perform(self._core.topic_deleted(topic_id))

    # -- reading

    async def _load(self) -> None:
        pause_s = RELOAD_PAUSE_S
        while True:
            try:
                await self._load_once()
                return
            except OctavoError as error:
                self._failure = error
                _log.warning("groups-not-read", partition=str(self.shell.name), cause=str(error))
            await self._deps.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RELOAD_PAUSE_MAX_S)

    async def _load_once(self) -> None:
        deps, clock = self._deps, self._deps.clock
        await self._nothing_pending()
        await deps.topics.ready(deps.tasks)
        started_s = clock.monotonic()
        core = GroupPartitionCore(deps.limits, deps.topics.directory)
        found = await replay_log(self.shell, core)
        _log.info(
            "groups-read",
            partition=str(self.shell.name),
            records=found.records,
            bytes=found.size_bytes,
            seconds=round(clock.monotonic() - started_s, 3),
        )
        self._core, self._failure = core, None
        self._log = _Log(records=found.records)
        actions = core.loaded(clock.wall_ms(), clock.monotonic())
        self._perform(actions)
        if self._core is core:
            # Topics may have changed while it was read.
            self.topics_changed(deps.topics.directory)
            deps.topics.prove_deleted(core.committed_topics())
            self._serving.set()
            self._bound_log(core)

    async def _nothing_pending(self) -> None:
        changed = asyncio.Event()
        self.shell.watchers.add(changed.set)
        try:
            while self.shell.pending:
                changed.clear()
                try:
                    async with asyncio.timeout(PENDING_LOOK_S):
                        await changed.wait()
                except TimeoutError:
                    continue
        finally:
            self.shell.watchers.remove(changed.set)

    # -- actions

    def _perform(self, actions: list[PartitionAction]) -> None:
        self._carry_out(actions)
        self._set_timer()

    def _set_timer(self) -> None:
        """One timer, for the earliest deadline; it may ring early."""
        due_s = None if self._core is None else self._core.next_deadline_s()
        now_s = self._deps.clock.monotonic()
        if due_s is not None:  # what is due by now are more steps: after others' turns
            due_s = due_s + DEADLINE_SLACK_S if due_s > now_s else now_s
        if self._timer is not None:
            if due_s is not None and self._timer_s <= due_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer_s = due_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(due_s - now_s, self._tick)

    def _tick(self) -> None:
        """Deadlines that have come."""
        self._timer = None
        core, clock = self._core, self._deps.clock
        actions = [] if core is None else core.tick(clock.wall_ms(), clock.monotonic())
        self._perform(actions)

    def _carry_out(self, actions: list[PartitionAction]) -> None:
        for action in actions:
            match action:
                case AppendRecords():
                    self._append(action)
                case Respond():
                    self._respond(action)
                case ComputeTarget():
                    self._deps.tasks.spawn(
                        self._compute(self._core, action), name=f"target {self.shell.name}"
                    )

    def _append(self, action: AppendRecords) -> None:
        """One batch at a time, so that what is encoded beside the loop keeps its order."""
        if len(action.unstored) <= ENCODED_AT_ONCE:
            self._append_batch(self._core, action, _encoded(action, self._deps.clock.wall_ms()))
        else:
            encoding = self._encode(self._core, action)
            self._deps.tasks.spawn(encoding, name=f"encode {self.shell.name}")

    async def _encode(self, core: GroupPartitionCore | None, action: AppendRecords) -> None:
        batch = await asyncio.to_thread(_encoded, action, self._deps.clock.wall_ms())
        if core is self._core:
            self._append_batch(core, action, batch)

    def _append_batch(
        self,
        core: GroupPartitionCore | None,
        action: AppendRecords,
        batch: Buffer | OctavoError,
    ) -> None:
        appended = partial(self._appended, core, action.number, len(action.unstored))
        try:
            if isinstance(batch, OctavoError):
                raise batch
            self.shell.append(batch, ACKS_ALL, appended)
        except OctavoError as error:
            appended(error)

    def _appended(
        self, core: GroupPartitionCore | None, number: int, records: int, answer: Answer
    ) -> None:
        if core is None or core is not self._core:
            return
        if not isinstance(answer, OctavoError):
            if number == self._log.cut_batch:
                self._log.cut_offset = answer.base_offset
            self._log.records += records
            self._perform(core.stored(number))
            self._bound_log(core)
            return
        _log.warning("groups-not-stored", partition=str(self.shell.name), cause=str(answer))
        self._drop()
        self._failure = answer
        if not self._has_left:
            self._loading = self._deps.tasks.spawn(self._reload(), name=f"reload {self.shell.name}")

    async def _reload(self) -> None:
        await self._deps.clock.sleep(RELOAD_PAUSE_S)
        await self._load()

    def _drop(self) -> None:
        core, self._core = self._core, None
        self._serving.clear()
        if core is not None:
            self._perform(core.lost())

    # -- the length of the log

    def _bound_log(self, core: GroupPartitionCore) -> None:
        """Begin to compact the log when it is long beside what it says."""
        log = self._log
        most = max(self._deps.log_records_max, LOG_TO_STATE * log.live_records)
        if core is self._core and not log.is_compacting and log.records > most:
            log.is_compacting = True
            self._deps.tasks.spawn(self._compact(core, log), name=f"compact {self.shell.name}")

    async def _compact(self, core: GroupPartitionCore, log: _Log) -> None:
        """Write the state anew, then let the log begin there."""
        log.cut_batch, log.cut_offset = core.next_batch, None
        before = log.records
        try:
            while True:
                if core is not self._core:
                    return
                reply = await self.ask(lambda core, token: core.compact(token))
                if not isinstance(reply, CompactReply) or reply.refusal is not None:
                    return
                if reply.is_last:
                    break
            if log.cut_offset is None:
                raise InvariantViolation(f"{self.shell.name}: nobody saw the compaction begin")
            log.live_records = log.records = log.records - before
            await self.shell.trim(log.cut_offset)
            _log.info(
                "groups-compacted",
                partition=str(self.shell.name),
                records=before,
                left=log.records,
                log_start=self.shell.log_start,
            )
        except OctavoError as error:  # the log stays as long as it is; it is tried again later
            _log.warning("groups-not-compacted", partition=str(self.shell.name), cause=error.cause)
        finally:
            log.is_compacting = False

    async def _compute(self, core: GroupPartitionCore | None, action: ComputeTarget) -> None:
        order = action.order
        target = await self._deps.targets.run(
            assign, order.assignor, order.members, order.topics, order.previous
        )
        if core is not None and core is self._core:
            clock = self._deps.clock
            now_ms, now_s = clock.wall_ms(), clock.monotonic()
            self._perform(core.computed(action.number, target, now_ms, now_s))

    def _respond(self, action: Respond) -> None:
        future = cast("asyncio.Future[Reply]", action.token)
        if future.done():
            return
        known = action.proved or action.reply.refusal is Refusal.NOT_COORDINATOR
        if known or (self._deps.is_owner(self.shell) and self._deps.is_certain()):
            future.set_result(action.reply)
        else:
            self._deps.tasks.spawn(
                self._prove(future, action.reply), name=f"proof {self.shell.name}"
            )

    async def _prove(self, future: asyncio.Future[Reply], reply: Reply) -> None:
        """G3: nobody else was the coordinator when this was so."""
        try:
            if not self._deps.is_owner(self.shell):
                raise NotLeader(f"{self.shell.name} is not served here")
            await self.shell.prove_end()
        except OctavoError:
            reply = type(reply)(Refusal.NOT_COORDINATOR)
        if not future.done():
            future.set_result(reply)
