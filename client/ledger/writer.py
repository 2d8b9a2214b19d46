"""The writing handle of one ledger: a thin shell around `QuorumCore` (§3).

Owns entry bytes from `add` until the LAC passes them, the callbacks of their senders, the lanes
to the ensemble, and the close. `add` is synchronous: it encodes the header once and appends to
the run of this loop turn; the pool sends runs once per turn. Everything happens on one event
loop; no lock, and no await between a check and its update (P-2).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from octavo.client.ledger.ensemble_change import EnsembleChanger
from octavo.client.ledger.entry_callbacks import EntryCallbacks, OnDone, OnFirstCopy
from octavo.client.ledger.entry_run import EntryRun, RunBuilder
from octavo.client.ledger.handle_budget import HandleBudget
from octavo.client.ledger.handle_errors import refusal, stop_error
from octavo.client.ledger.lane_set import LaneSet
from octavo.client.ledger.lanes import SlotLane
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.quorum import QuorumCore
from octavo.client.ledger.quorum_actions import (
    Action,
    ChooseReplacements,
    CommitEnsemble,
    HandleState,
    Resend,
    RetrySlot,
    Stopped,
    StopReason,
    WriteLac,
)
from octavo.metadata.ledgers import LedgerCatalog, LedgerMetadata, Quorum, VersionedLedger
from octavo.proto.bookie_wire import (
    MAX_ENTRIES_PER_FRAME,
    TARGET_FRAME_BYTES,
    Status,
)
from octavo.proto.entry import MAX_PAYLOAD_BYTES, encode_header
from octavo.runtime.errors import Fatal, MessageTooLarge, OctavoError
from octavo.runtime.ids import EntryId, LedgerId
from octavo.runtime.tasks import TaskOwner

_log = logging.getLogger("octavo.ledger.writer")


class LedgerWriter:
    """The only writer of one open ledger; made by `LedgerClient.create_ledger`.

    Args:
        wanted: the quorum asked for, which a degraded ledger falls short of.
        changer: chooses and commits ensembles.
        tasks: owns the ensemble changes under way.
        on_closed: called once when the handle has ended.
    """

    def __init__(
        self,
        core: QuorumCore,
        versioned: VersionedLedger,
        *,
        wanted: Quorum,
        pool: BookiePool,
        catalog: LedgerCatalog,
        changer: EnsembleChanger,
        tasks: TaskOwner,
        on_closed: Callable[[LedgerWriter], object],
    ) -> None:
        self.ledger_id: LedgerId = versioned.metadata.ledger_id
        self.budget = HandleBudget(pool)
        self._core = core
        self._versioned = versioned
        self._wanted = wanted
        self._pool = pool
        self._catalog = catalog
        self._changer = changer
        self._on_closed = on_closed
        self._tasks = tasks
        self._open_run: RunBuilder | None = None
        self._pending: deque[EntryRun] = deque()  # sealed runs that end above the LAC
        self._callbacks = EntryCallbacks(self.ledger_id)
        self._stop_callbacks: list[Callable[[OctavoError], None]] = []
        self._error: OctavoError | None = None
        self._quiet = asyncio.Event()  # nothing pending, or stopped
        self._quiet.set()
        self._settled = asyncio.Event()  # no ensemble change is unresolved
        self._settled.set()
        self._closed: LedgerMetadata | None = None
        self._close_lock = asyncio.Lock()  # held across the closing CAS: one at a time
        self._lanes = LaneSet(self, core, pool)

    # --- state ---

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as this handle wrote it last."""
        return self._versioned.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        """LAC: this entry and all before it have Qa copies."""
        return self._core.lac

    @property
    def length(self) -> int:
        """Payload bytes added so far."""
        return self._core.length

    @property
    def in_flight_bytes(self) -> int:
        """Bytes at bookies, every copy counted, not answered (W-10)."""
        return self.budget.in_flight_bytes

    @property
    def stopped(self) -> OctavoError | None:
        """Why nothing more can be added; None while the handle works."""
        return self._error

    @property
    def degraded(self) -> bool:
        """True while some entries get fewer than the wanted copies (3.7)."""
        return self.metadata.degraded or bool(self._core.slots.failed)

    @property
    def wants_roll(self) -> bool:
        """M-6, 3.7: the owner should open a new ledger; a better one is possible now."""
        if self._core.too_many_changes:
            return True
        short = self._core.quorum.write < self._wanted.write
        return short and self._changer.writable_bookies() >= self._wanted.write

    def on_stopped(self, callback: Callable[[OctavoError], None]) -> None:
        """Call back once when the handle stops by itself; at once if it has."""
        if self._error is not None:
            callback(self._error)
        else:
            self._stop_callbacks.append(callback)

    # --- adding ---

    def add(
        self, payload: bytes, on_done: OnDone, on_first_copy: OnFirstCopy | None = None
    ) -> EntryId:
        """Send an entry (W-1); callbacks run on the loop, in entry order.

        `on_done(entry, error)` gets None once the entry is confirmed. After a stop the error is
        UnknownOutcome: the entry may or may not be in the ledger (W-6). `on_first_copy(entry)`
        comes when it and every earlier entry has a first copy (A4).

        Raises MessageTooLarge, Fenced, LedgerConflict or LedgerClosed; then nothing was sent.
        """
        core = self._core
        if core.state is not HandleState.OPEN:
            raise refusal(self.ledger_id, core.stopped)
        size = len(payload)
        if size > MAX_PAYLOAD_BYTES:
            raise MessageTooLarge(f"entry of {size} bytes, limit {MAX_PAYLOAD_BYTES} (E-4)")
        lac = core.lac
        entry = core.add(size, self._pool.now)
        run = self._open_run
        if run is None:
            run = self._open_run = RunBuilder(entry)
            self._quiet.clear()
            self._pool.writer_dirty(self)
        total = run.append(encode_header(self.ledger_id, entry, lac, core.length, payload), payload)
        self._callbacks.add(entry, on_done, on_first_copy)
        if total >= TARGET_FRAME_BYTES or len(run.lengths) >= MAX_ENTRIES_PER_FRAME:
            self.flush_adds()
        return entry

    async def append(self, payload: bytes) -> EntryId:
        """Add one entry and wait until it is confirmed; cancelling does not undo it (W-5)."""
        future: asyncio.Future[EntryId] = asyncio.get_running_loop().create_future()

        def done(entry: EntryId, error: OctavoError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(entry)
            else:
                future.set_exception(error)

        self.add(payload, done)
        return await future

    async def wait_capacity(self) -> None:
        """W-10: return while handle and process have budget for more, or the handle stopped."""
        await self.budget.wait()

    def flush_adds(self) -> None:
        """Hand the run of this loop turn to the lanes of its write set."""
        builder = self._open_run
        if builder is None:
            return
        self._open_run = None
        if self._error is not None:
            return  # stopped before the run left; its entries are reported as unknown
        run = builder.seal()
        self._pending.append(run)
        self._lanes.send(run)

    # --- answers, called by the lanes ---

    def lane_acked(self, lane: SlotLane, first: int, last: int) -> None:
        """A bookie confirmed entries of its slot."""
        actions = self._core.acked(lane.slot, lane.generation, first, last)
        if actions:
            self._perform(actions)
        self._report()

    def lane_refused(self, lane: SlotLane, first: int, last: int, status: Status) -> bool:
        """A bookie refused entries (3.4); True: the lane keeps them for another attempt."""
        core = self._core
        now = self._pool.now
        actions = list(core.refused(lane.slot, lane.generation, first, last, status, now))
        self._pool.keep_ticking(self)
        open_ = core.state is not HandleState.STOPPED
        keep = open_ and core.slots.takes(lane.slot, lane.generation)
        retry = [action for action in actions if isinstance(action, RetrySlot)]
        self._perform(action for action in actions if action not in retry)
        for action in retry:  # only after the lane has kept what was refused
            asyncio.get_running_loop().call_soon(self._lanes.retry, action)
        self._report()
        return keep

    def lane_failed(self, lane: SlotLane, status: Status) -> None:
        """The slot's bookie does not answer."""
        actions = self._core.slot_failed(lane.slot, lane.generation, status, self._pool.now)
        self._pool.keep_ticking(self)
        self._perform(actions)
        self._report()

    def tick(self, now: float) -> bool:
        """100 ms passed (3.9)."""
        self._perform(self._core.tick(now))
        self._report()
        return self._core.busy

    def bookies_changed(self) -> None:
        """The directory or a connection changed: try to replace or revive failed slots now."""
        self._perform(self._core.retry_change(self._pool.now))
        self._report()

    # --- actions ---

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Resend():
                    self._lanes.resend(action, self._pending)
                case RetrySlot():
                    self._lanes.retry(action)
                case ChooseReplacements():
                    core, now = self._core, self._pool.now
                    members = core.slots.members
                    found = self._changer.choose(action.failed, members, core.quorum, self)
                    self._perform(
                        core.change_deferred(now)
                        if found is None
                        else core.replacements(found.members, now, found.domains, found.revived)
                    )
                case CommitEnsemble():
                    self._settled.clear()
                    self._tasks.spawn(self._commit(action), name="ensemble change")
                case WriteLac():
                    self._lanes.write_lac(self.ledger_id, action.lac)
                case Stopped():
                    self._stop(action)

    async def _commit(self, action: CommitEnsemble) -> None:
        """C-4; ends only when the outcome is known, or the handle's owner closes the client."""
        try:
            committed = await self._changer.commit(self._versioned, action)
        except OctavoError as error:
            actions = self._core.change_conflicted(str(error))
        else:
            if committed is None:
                actions = self._core.change_deferred(self._pool.now)
            else:
                self._versioned = committed
                actions = self._core.change_committed(self._pool.now)
        self._settled.set()
        self._perform(actions)
        self._report()

    # --- results ---

    def _report(self) -> None:
        """Resolve confirmed entries in bulk and in order; then provisional first copies."""
        core = self._core
        if self._callbacks.first_copies and self._error is None:
            self._callbacks.copied(core.first_copy)
        if core.lac == self._callbacks.resolved:
            return
        pending = self._pending
        while pending and pending[0].last <= core.lac:
            pending.popleft()
        if core.pending == 0:
            self._quiet.set()
        self._callbacks.confirmed(core.lac)

    def _stop(self, action: Stopped) -> None:
        """W-6: report what is confirmed, then every pending entry as unknown."""
        self._report()
        error = self._error = stop_error(self.ledger_id, action)
        _log.warning("ledger %d stopped at %d: %s", self.ledger_id, self._core.lac, action.cause)
        self._open_run = None
        self._pending.clear()
        self._lanes.release()
        self._callbacks.unknown(error)
        self._quiet.set()
        self.budget.end()
        callbacks, self._stop_callbacks = self._stop_callbacks, []
        for stopped in callbacks:
            stopped(error)

    # --- close ---

    def abandon(self, cause: str) -> None:
        """Stop at once without touching metadata; the ledger must be recovered by someone."""
        self._perform(self._core.abandon(cause))
        self._end()

    async def close(self) -> LedgerMetadata:
        """W-9: stop new adds, wait for pending ones, close at the LAC.

        After a failure this closes at the frozen LAC. Raises Fenced when somebody else recovered or
        closed the ledger: its real end must then come from `recover_ledger`, never from here.
        """
        self.flush_adds()
        self._core.begin_close()
        async with self._close_lock:
            if self._closed is not None:
                return self._closed
            await self._quiet.wait()
            await self._settled.wait()
            stopped = self._core.stopped
            foreign = (StopReason.FENCED, StopReason.CONFLICT)
            if stopped is not None and stopped.reason in foreign:
                self._end()
                raise stop_error(self.ledger_id, stopped)
            last_entry, length = self._core.close_point()
            self._core.end()
            try:
                closed = await self._catalog.close_as_writer(self._versioned, last_entry, length)
            except Fatal as error:
                self._error = error
                self._end()
                raise
            self._versioned = closed
            self._closed = closed.metadata
            self._end()
            return self._closed

    def _end(self) -> None:
        self._pool.forget(self)
        self._lanes.forget_waiter(self.bookies_changed)
        self._on_closed(self)
