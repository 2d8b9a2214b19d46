"""Does what `PartitionCore` decides: adds, answers, and one piece of ledger work at a time.

Everything between two awaits is one step on the event loop; batches are admitted and sent in the
step in which they came. One task owns every change of ledger: it asks the core for the next
actions, does them, and sleeps until something happened.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState
from octavo.runtime.clock import Clock
from octavo.runtime.errors import InvariantViolation, OctavoError
from octavo.runtime.retry import Backoff
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger
from octavo.serving.cache import PartitionTail
from octavo.serving.ledger_backend import Writer
from octavo.serving.partition.actions import (
    Action,
    AnswerChange,
    AnswerRolls,
    AnswerTrims,
    Change,
    Close,
    Durable,
    FirstCopy,
    GiveUp,
    KeepIndex,
    Pause,
    Proceed,
    Publish,
    Recover,
    Refuse,
    Send,
    SendSnapshot,
    Tell,
    Trim,
    WakeReaders,
    Work,
)
from octavo.serving.partition.chain import SegmentChain
from octavo.serving.partition.core import PartitionCore, PartitionStateName
from octavo.serving.partition.deps import PartitionDeps
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.open_ledger import OpenLedger
from octavo.serving.partition.traffic import PartitionTraffic
from octavo.serving.partition.waiters import OffsetWaiters
from octavo.serving.partition.watchers import Watchers

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0

_log = get_logger("octavo.serving.partition")


class PartitionDriver:
    """The hands of one partition.

    Args:
        tasks: owns the driver's task; ended by the shell.
        on_gone: called once when the core gave the partition up by itself.
    """

    def __init__(
        self,
        name: PartitionName,
        core: PartitionCore,
        chain: SegmentChain,
        *,
        deps: PartitionDeps,
        tasks: TaskOwner,
        on_gone: Callable[[OctavoError], None],
    ) -> None:
        self.core = core
        self.tail: PartitionTail = deps.tail_cache.tail()
        self._name = name
        self._chain = chain
        self._backend = deps.backend
        self._cold = deps.cold
        self._clock = deps.clock
        self._trash_delay_ms = deps.config.trash_delay_ms
        self._on_gone = on_gone
        self._tasks = tasks
        self._backoff = Backoff(deps.entropy, initial_s=RETRY_FIRST_S, max_s=RETRY_MAX_S)
        self.ledger: OpenLedger | None = None
        """The ledger being written."""
        self._running: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._leaving = asyncio.Event()
        self._pauses = False
        self.watchers = Watchers()
        self.traffic = PartitionTraffic()
        self._roll_waiters = OffsetWaiters()
        self._trim_waiters = OffsetWaiters()
        self._change_waiters: deque[asyncio.Future[None]] = deque()

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to drive a core that was loaded."""
        self._chain.listen(self._list_changed)
        self._running = self._tasks.spawn(self._run(), name="driver")

    def _list_changed(self, state: PartitionState) -> None:
        self.core.seat.listed(state.writer_epoch, state.writer)
        self.perform(
            self.core.list_changed(state.log_start_offset, decommissioned=state.decommissioned)
        )

    async def leave(self, deadline_s: float) -> None:
        """Let the core unload in good order, for at most `deadline_s`."""
        self.perform(self.core.leave())
        self._leaving.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=deadline_s)

    def end(self, reason: OctavoError) -> None:
        """Stop serving at once; everybody who waits is answered before this returns."""
        self.perform(self.core.end(reason))
        self._forget()

    def release(self) -> None:
        """Free the ledger's handle; whoever opens the partition next recovers what is open."""
        ledger, self.ledger = self.ledger, None
        if ledger is not None:  # not closed in good order
            ledger.writer.abandon("its owner gave the partition up")

    def failed(self, error: BaseException) -> None:
        """The driver's task broke."""
        self.perform(self.core.give_up(InvariantViolation(f"{self._name}: {error!r}")))

    def _forget(self) -> None:
        self.tail.close()
        self.watchers.clear()

    # --- doing --------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Do what is done at once; `Work` is not among it."""
        for action in actions:
            if isinstance(action, Send):
                if self.ledger is not None:
                    self.ledger.send(action.append)
            elif isinstance(action, Durable):
                append = action.append
                header = append.header
                self.tail.append(header.base_offset, header.next_offset, append.payload)
                records = header.next_offset - header.base_offset
                self.traffic.wrote(records, len(append.payload))
                append.answer(append.appended())
            elif isinstance(action, WakeReaders):
                self.watchers.wake()
            elif isinstance(action, Proceed):
                self._wake.set()
            else:
                self._perform_rare(action)

    def _perform_rare(self, action: Action) -> None:
        match action:
            case SendSnapshot(payload):
                if self.ledger is not None:
                    self.ledger.send_snapshot(payload, self._clock.monotonic())
            case FirstCopy(append):
                append.answer_one()
            case Refuse(append, error):
                append.answer(error)
            case Tell(reply, answer):
                reply(answer)
            case AnswerRolls() | AnswerTrims() | AnswerChange():
                self._tell(action)
            case KeepIndex(ledger_id, sparse):
                self._cold.remember_index(ledger_id, sparse)
            case Pause():
                self._pauses = True
                self._wake.set()
            case GiveUp(reason):
                _log.warning("partition-given-up", partition=str(self._name), cause=reason.cause)
                self._forget()
                self._on_gone(reason)
            case _:
                raise InvariantViolation(f"{self._name}: {action!r} takes time")

    def _tell(self, action: AnswerRolls | AnswerTrims | AnswerChange) -> None:
        match action:
            case AnswerRolls(outcome):
                self._roll_waiters.answer(outcome)
            case AnswerTrims(outcome):
                self._trim_waiters.answer(outcome)
            case AnswerChange(error):
                waiter = self._change_waiters.popleft()
                if waiter.done():  # whoever asked went away
                    return
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    # --- ledger work --------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.core.has_left:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._proceed()
                self._backoff.reset()
            except OctavoError as error:
                _log.info("partition-step-failed", partition=str(self._name), cause=str(error))
                self.perform(self.core.work_failed(error))
            if self._pauses:
                self._pauses = False
                # While leaving the full pause is kept: the deadline of `leave` decides.
                cut_short = None if self._leaving.is_set() else self._leaving
                await _pause(self._clock, self._backoff.next_s(), cut_short)

    async def _proceed(self) -> None:
        """Everything that can be done now."""
        while actions := self._next_actions():
            for action in actions:
                if isinstance(action, Work):
                    await self._work(action)
                else:
                    self.perform((action,))
        segment = self.core.segment
        is_draining = segment is not None and not segment.usable
        if self.core.state is PartitionStateName.SERVING and not is_draining:
            await self._chain.sweep_trash(self._trash_delay_ms)

    def _next_actions(self) -> list[Action]:
        return self.core.next_actions(
            self._clock.wall_ms(), self._clock.monotonic(), writer_wants=self._writer_wants
        )

    @property
    def _writer_wants(self) -> bool:
        return self.ledger is not None and self.ledger.writer.wants_roll

    async def _work(self, work: Work) -> None:
        match work:
            case Recover(ledger_id):
                closed = await self._backend.recover_ledger(ledger_id)
                self.ledger = None
                self.perform(self.core.ledger_closed(closed))
            case Close(footer, reason):
                await self._close(footer, reason)
            case Publish(sealed, open_new, base_offset):
                writer = await self._chain.publish(
                    sealed=sealed, open_new=open_new, base_offset=base_offset
                )
                self._listed(writer)
            case Trim(log_start, open_snapshot, reason):
                await self._chain.trim(log_start, open_snapshot, reason)
                self.perform(self.core.trims.done())
            case Change(wanted, creates):
                await self._chain.change(wanted, creates=creates)
                self.perform(self.core.changes.done())

    async def _close(self, footer: bytes, reason: str) -> None:
        ledger = self.ledger
        if ledger is None:
            return
        _log.info("segment-rolls", partition=str(self._name), reason=reason)
        try:
            await ledger.writer.append(footer)
            closed = await ledger.writer.close()
        except OctavoError as error:
            _log.info("close-unknown", partition=str(self._name), cause=str(error))
            return  # the core asks for its recovery
        self.ledger = None
        self.perform(self.core.ledger_closed(closed))

    def _listed(self, writer: Writer | None) -> None:
        now_ms, now_s = self._clock.wall_ms(), self._clock.monotonic()
        actions = self.core.listed(writer.ledger_id if writer else None, now_ms, now_s)
        if writer is not None:
            if self.core.segment is None:  # it ended meanwhile
                writer.abandon("its owner gave the partition up")
                return
            self.ledger = OpenLedger(writer, self.core.segment, self.core, self.perform)
        self.perform(actions)

    # --- asked by the shell -------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second."""
        now_ms, now_s, core, state = (
            self._clock.wall_ms(),
            self._clock.monotonic(),
            self.core,
            self._chain.state,
        )
        self.perform(
            core.tick(
                now_ms,
                now_s,
                writer_wants=self._writer_wants,
                has_trash=bool(state.trash),
            )
        )
        self.perform(core.retention.tick(state.segments, core.segment, now_ms, now_s))

    def roll(self, *, renew: bool = False) -> asyncio.Future[int]:
        """Ask for a roll, if `renew` to a new ledger; the result is the high watermark then."""
        actions = self.core.roll(renew=renew)
        waiter = self._roll_waiters.add()
        self.perform(actions)
        return waiter

    def change(
        self,
        wanted: Callable[[PartitionState], PartitionState],
        creates: LedgerMetadata | None = None,
    ) -> asyncio.Future[None]:
        """Ask for a change of the list, pure and repeatable; it goes on when nobody waits.

        `creates`: a drafted ledger that the new list names.
        """
        self.core.check_serving()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change_waiters.append(waiter)
        self.perform(self.core.changes.ask(wanted, creates))
        return waiter

    def trim(self, before: int) -> asyncio.Future[int]:
        """Ask for a trim; the result is the log's start after it."""
        self.core.check_serving()
        actions = self.core.trims.ask(before)
        waiter = self._trim_waiters.add()
        self.perform(actions)
        return waiter


async def _pause(clock: Clock, seconds: float, cut_short: asyncio.Event | None) -> None:
    """Wait `seconds`, or until `cut_short` is set."""
    waiting: list[asyncio.Future[None] | asyncio.Future[Literal[True]]]
    waiting = [asyncio.ensure_future(clock.sleep(seconds))]
    if cut_short is not None:
        waiting.append(asyncio.ensure_future(cut_short.wait()))
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.wait(waiting)
