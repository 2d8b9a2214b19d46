"""The bookie's per-ledger brain: one object per ledger, decisions without I/O (ledger §6.3, §6.6).

Owns what is true of a ledger at this bookie (admitted, fenced, LAC, entries not yet in the index)
and the decision about each add. It does not write, read files or ask the metadata store:
`octavo.bookie.store` does and comes back. Everything here runs on the event loop between two
awaits, which is what makes "under the ledger's object" of B-F1 true without a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from octavo.bookie.journal.item import EntryHead
from octavo.bookie.storage.index import LedgerState
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import HEADER, HEADER_BYTES, digest_of
from octavo.runtime.checksum import Buffer
from octavo.runtime.invariant import invariant

_unpack = HEADER.unpack_from


class Fence(Enum):
    """How far the fence of a ledger got; adds are refused from the first step on (B-F1)."""

    NONE = 0
    UNRECORDED = 1
    """Flag set, but the record could not be stored (DISK_FULL): the next fence queues another."""
    ACCEPTED = 2
    """Flag set, record queued behind every accepted add."""
    DURABLE = 3
    """Record synced: replies to fences and fenced reads may leave (B-F2)."""


class Ledger:
    """What this bookie knows of one ledger. Never two alive for one id (H11)."""

    __slots__ = (
        "accepting",
        "admitted",
        "condemned",
        "doomed",
        "exists",
        "fence",
        "fence_waiters",
        "known",
        "lac",
        "last_entry",
        "ledger_id",
        "pending",
        "pins",
        "pollers",
        "refused_until_s",
    )

    def __init__(self, ledger_id: int, state: LedgerState | None, incarnation_tag: int) -> None:
        self.ledger_id = ledger_id
        self.admitted = state is not None and state.admitted_tag == incarnation_tag
        """An admit record of this incarnation is in the stream (6.12); never set by fences or
        recovery (B-34).
        """
        self.fence = Fence.DURABLE if state is not None and state.fenced else Fence.NONE
        self.accepting = self.admitted and self.fence is Fence.NONE
        """Ordinary adds of new entries need no further check; equals admitted and not fenced."""
        self.condemned = False
        """Nobody is told which of its entries are here: they may be given up (G-4)."""
        self.doomed = False
        """Its deletion is in the stream: nothing more is accepted, and this object stays so when
        the deletion has ended and another one takes its place (G-5)."""
        self.exists = False
        """The metadata store has shown this ledger once: recovery adds need no further check
        (B-32).
        """
        self.lac = state.lac if state is not None else -1
        """RD-5: largest LAC heard of; never goes down."""
        self.last_entry = state.last_entry if state is not None else -1
        """Largest entry id accepted; an id above it is certainly new."""
        self.known = state is not None
        """Some record of this ledger was accepted here."""
        self.pending: dict[int, Buffer] = {}
        """Accepted entries that the index does not answer for yet (B-4, B-5)."""
        self.fence_waiters: list[asyncio.Future[Status]] = []
        self.pollers: list[tuple[int, asyncio.Future[None]]] = []
        """(previous LAC, future) of long polls (RD-7)."""
        self.pins = 0
        """Requests in flight and control records not yet in the index; pinned is not evicted
        (B-1).
        """
        self.refused_until_s = 0.0
        """Until then admission is refused without asking the metadata store again (B-32)."""

    @property
    def fenced(self) -> bool:
        """True from the moment a fence was accepted."""
        return self.fence is not Fence.NONE

    @property
    def idle(self) -> bool:
        """True if forgetting this object loses nothing that the index does not hold."""
        return not (
            self.pins
            or self.doomed
            or self.pending
            or self.pollers
            or self.fence_waiters
            or self.fence in (Fence.UNRECORDED, Fence.ACCEPTED)
        )

    def admit(self) -> None:
        """An admit record is queued in front of this ledger's first ordinary add."""
        self.admitted = True
        self.known = True
        self.accepting = not self.fenced

    def doom(self) -> None:
        """Its deletion is being queued: whatever is decided from now on is refused (G-5)."""
        self.doomed = True
        self.accepting = self.exists = False

    def spare(self) -> None:
        """The deletion could not be stored (DISK_FULL): as if it had never been asked for."""
        self.doomed = False
        self.accepting = self.admitted and not self.fenced

    def take(self, head: EntryHead, entry: Buffer) -> None:
        """Accept an entry: visible to reads from now on, never answered as absent (B-4)."""
        _, entry_id, lac, _, _ = head
        self.pending[entry_id] = entry
        self.known = True
        if entry_id > self.last_entry:
            self.last_entry = entry_id
        self.raise_lac(lac)

    def revoke_admission(self) -> None:
        """The admit record could not be stored (DISK_FULL)."""
        self.admitted = self.accepting = False

    def accept_fence(self) -> bool:
        """B-F1: refuse ordinary adds from now on; True if a fence record must be queued."""
        needed = self.fence in (Fence.NONE, Fence.UNRECORDED)
        if needed:
            self.fence = Fence.ACCEPTED
            self.known = True
            self.accepting = False
            self.wake(always=True)
        return needed

    def settle_fence(self, status: Status) -> None:
        """The fence record is synced (B-F2), or could not be stored; tell those who wait for it."""
        invariant(self.fence is Fence.ACCEPTED, f"ledger {self.ledger_id}: no fence to settle")
        self.fence = Fence.DURABLE if status is Status.OK else Fence.UNRECORDED
        waiters, self.fence_waiters = self.fence_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(status)

    def raise_lac(self, lac: int) -> None:
        """RD-5: hear of a LAC."""
        if lac > self.lac:
            self.lac = lac
            self.wake()

    def wake(self, *, always: bool = False) -> None:
        """Wake long polls whose condition holds; all of them when `always`, as RD-7 allows."""
        if not self.pollers:
            return
        keep: list[tuple[int, asyncio.Future[None]]] = []
        for previous, future in self.pollers:
            if future.done():
                continue
            if always or self.lac > previous:
                future.set_result(None)
            else:
                keep.append((previous, future))
        self.pollers = keep

    def validate(self) -> None:
        """Check this object's own promises."""
        invariant(
            self.accepting == (self.admitted and not self.fenced and not self.doomed),
            f"ledger {self.ledger_id}: accepting flag is stale",
        )
        invariant(
            all(entry_id <= self.last_entry for entry_id in self.pending),
            f"ledger {self.ledger_id}: pending entry above last_entry",
        )


class AddPlan:
    """What the core decided about the entries of one request."""

    __slots__ = ("accepted", "advanced", "heads", "refused", "undecided")

    def __init__(self) -> None:
        self.heads: list[EntryHead] = []
        self.accepted: list[Buffer] = []
        """Entries now pending, to be submitted in this order; `heads` are their headers."""
        self.refused: list[tuple[int, Status]] = []
        """(index in the request, why)."""
        self.undecided: list[int] = []
        """Indexes that need more knowledge: admission, or a look into the index (B-3)."""
        self.advanced: list[Ledger] = []
        """Ledgers with long polls whose LAC may have moved."""

    def accepted_indexes(self, count: int) -> list[int]:
        """Which of the request's `count` entries `accepted` holds."""
        others = {*self.undecided, *(index for index, _ in self.refused)}
        return [index for index in range(count) if index not in others]


def plan_adds(
    ledgers: dict[int, Ledger],
    entries: Sequence[Buffer],
    *,
    recovery: bool,
    unsettled: Container[int] = (),
) -> AddPlan:
    """Decide all adds that need nothing but memory: the hot path (B-1..B-4).

    An entry is taken at once when its digest holds, its ledger is open to it, and its id is above
    every id accepted before. Everything else is refused or left undecided.

    Ledgers in `unsettled` have earlier adds that are still undecided: later ones queue behind them,
    so that ids keep coming in order.
    """
    plan = AddPlan()
    heads, accepted = plan.heads, plan.accepted
    current_id = -1
    ledger: Ledger | None = None
    open_ledger = False
    for index, entry in enumerate(entries):
        if len(entry) < HEADER_BYTES:
            plan.refused.append((index, Status.BAD_DIGEST))
            continue
        head = _unpack(entry)
        ledger_id, entry_id, lac, _, crc = head
        if digest_of(entry) != crc:
            plan.refused.append((index, Status.BAD_DIGEST))
            continue
        if ledger_id != current_id or ledger is None:
            current_id = ledger_id
            ledger = ledgers.get(ledger_id)
            open_ledger = (
                ledger is not None
                and (ledger.exists if recovery else ledger.accepting)
                and ledger_id not in unsettled
            )
        if (
            ledger is None
            or not open_ledger
            or entry_id <= ledger.last_entry
            or not -1 <= lac < entry_id
        ):
            plan.undecided.append(index)
            continue
        ledger.pending[entry_id] = entry
        ledger.last_entry = entry_id
        if lac > ledger.lac:
            ledger.lac = lac
            if ledger.pollers:
                plan.advanced.append(ledger)
        heads.append(head)
        accepted.append(entry)
    return plan


class EntryIds(NamedTuple):
    """Identity of an entry whose digest was checked."""

    ledger_id: int
    entry_id: int
    lac: int


def head_of(entry: Buffer) -> EntryHead:
    """An entry's header; the caller knows that it is long enough."""
    ledger_id, entry_id, lac, length, crc = _unpack(entry)
    return ledger_id, entry_id, lac, length, crc


def ids_of(entry: Buffer) -> EntryIds:
    """The ids in an entry's header."""
    return EntryIds(*head_of(entry)[:3])


def is_sane(ids: EntryIds) -> bool:
    """P-7, E-3: ids are not negative and the LAC is below the entry that carries it."""
    return ids.ledger_id >= 0 and ids.entry_id >= 0 and -1 <= ids.lac < ids.entry_id


class Verdict(Enum):
    """What to do with one add that was undecided."""

    ACCEPT = "accept"
    FENCED = "fenced"
    DUPLICATE = "duplicate"
    """Same bytes are pending: answer when that copy is durable, or refused (B-3)."""
    CONFLICT = "conflict"
    LOOK_UP = "look-up"
    """The id may be stored already: ask the index, then decide again with its answer."""
    DOOMED = "doomed"
    """The ledger is being deleted: who tries again meets admission (G-5)."""
    ADMISSION = "admission"
    """The metadata store must be asked first (6.12)."""


def judge_add(
    ledger: Ledger, entry_id: int, entry: Buffer, *, recovery: bool, absent_in_index: bool
) -> Verdict:
    """Decide one add against the ledger's present state.

    `absent_in_index`: the index was asked after the last await and has no such key.
    """
    if ledger.doomed:
        return Verdict.DOOMED
    if not recovery:
        if ledger.fenced:
            return Verdict.FENCED
        if not ledger.admitted:
            return Verdict.ADMISSION
    elif not ledger.exists:
        return Verdict.ADMISSION
    pending = ledger.pending.get(entry_id)
    if pending is not None:
        return Verdict.DUPLICATE if pending == entry else Verdict.CONFLICT
    if entry_id <= ledger.last_entry and not absent_in_index:
        return Verdict.LOOK_UP
    return Verdict.ACCEPT


class LedgerTable:
    """All ledger objects in memory, at most `max_ledgers` plus those in use."""

    def __init__(self, max_ledgers: int, incarnation_tag: int) -> None:
        self.by_id: dict[int, Ledger] = {}
        self._max = max_ledgers
        self._tag = incarnation_tag

    def install(self, ledger_id: int, state: LedgerState | None) -> Ledger:
        """The object of a ledger, made from its indexed state unless one is alive."""
        ledger = self.by_id.get(ledger_id)
        if ledger is None:
            if len(self.by_id) >= self._max:
                self._evict(len(self.by_id) // 10 + 1)
            ledger = self.by_id[ledger_id] = Ledger(ledger_id, state, self._tag)
        return ledger

    def _evict(self, wanted: int) -> None:
        """Forget the oldest idle objects; their state is in the index."""
        idle = (ledger_id for ledger_id, ledger in self.by_id.items() if ledger.idle)
        for ledger_id in [ledger_id for ledger_id, _ in zip(idle, range(wanted), strict=False)]:
            del self.by_id[ledger_id]

    def forget_pending(self, heads: Iterable[EntryHead]) -> None:
        """The index now answers for these entries (B-5)."""
        current_id = -1
        pending: dict[int, Buffer] = {}
        for ledger_id, entry_id, _, _, _ in heads:
            if ledger_id != current_id:
                current_id = ledger_id
                pending = self.by_id[ledger_id].pending
            del pending[entry_id]

    def each(self, visit: Callable[[Ledger], None]) -> None:
        """Visit every object in memory."""
        for ledger in self.by_id.values():
            visit(ledger)
