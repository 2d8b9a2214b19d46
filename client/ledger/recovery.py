"""The recoverer's brain, a pure state machine: fence, find the last entry, write back, close (§4).

Owns one attempt to recover one ledger whose metadata is IN_RECOVERY. Events come in as method
calls, actions come out as lists of the tuples below; `recover.py` is the shell. Several attempts,
by several clients, may run at once: only the closing CAS decides, and losers discard (R-20).

    start() ──► SendFence × E ──► coverage (R-10) ──► SendRead e, e+1, … in the base ensemble (R-4)
       positive ──► SendWrite to the local ensemble until Qa (R-5);  first negative ──► end (R-6)
       end and every write-back at Qa ──► CloseLedger (R-7);  anything undecidable ──► Aborted (R-8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from octavo.client.ledger.tally import fence_covered, negatives_needed, write_set
from octavo.metadata.ledger_record import Fragment, Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import decode_header
from octavo.runtime.ids import NO_ENTRY, EntryId, Member
from octavo.runtime.invariant import invariant

_NEGATIVE = frozenset({Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER})
LOCAL_CHANGES_MAX = 100
"""Local ensemble changes of one attempt (R-18): each is a fragment of the record (M-6)."""
DEFAULT_WINDOW = 8
"""Most entries read ahead and written back at once (R-4)."""
FIRST_WINDOW = 2
"""Entries read at first, twice as many once all of them were found: of most ledgers one entry is
above the bookies' LAC, and each that is read costs a request to every bookie of its write set."""


class SendFence(NamedTuple):
    """Fence the ledger at `member` and ask for its LAC (R-2)."""

    slot: int
    member: Member


class SendRead(NamedTuple):
    """Recovery read of one entry; `fence` is true in a correct build (R-13)."""

    entry: EntryId
    slot: int
    member: Member
    fence: bool


class SendWrite(NamedTuple):
    """Recovery add of the verbatim bytes (R-5, R-17)."""

    entry: EntryId
    slot: int
    generation: int
    member: Member
    data: bytes


class ChooseSpares(NamedTuple):
    """R-18: members for these slots of the local ensemble; answer with `replacements()`."""

    failed: tuple[tuple[int, Member], ...]
    ensemble: tuple[Member, ...]


class CloseLedger(NamedTuple):
    """R-7: CAS the ledger to CLOSED with exactly this."""

    last_entry: EntryId
    length: int
    fragments: tuple[Fragment, ...]


class Aborted(NamedTuple):
    """R-8: nothing can be decided now; leave IN_RECOVERY and retry with back-off."""

    cause: str
    conflict: bool = False
    """INV-5 is broken: two byte strings for one entry. Retrying cannot help."""


RecoveryAction = SendFence | SendRead | SendWrite | ChooseSpares | CloseLedger | Aborted


class _Entry:
    """One entry being decided or written back."""

    __slots__ = ("acks", "answered", "data", "negatives")

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.answered: set[int] = set()
        self.negatives: set[int] = set()
        self.acks: set[int] = set()


class RecoveryCore:
    """One recovery attempt; see the module's text.

    Args:
        quorum: E, Qw, Qa.
        fragments: those of `base`, the IN_RECOVERY record as committed (R-1), in key order.
        window: most entries in flight.
    """

    def __init__(
        self, quorum: Quorum, fragments: Sequence[Fragment], *, window: int = DEFAULT_WINDOW
    ) -> None:
        quorum.check()
        invariant(fragments and fragments[0][0] == 0, "fragments must begin at entry 0")
        self.quorum = quorum
        self.base = tuple(fragments)
        self.finished = False
        self.start_entry: EntryId | None = None
        self.fence_lac: EntryId = NO_ENTRY
        self._window_max = window
        self._window = min(FIRST_WINDOW, window)
        self._last_key, self._base_members = fragments[-1]
        self._fence_counted: set[int] = set()
        self._fence_answered: set[int] = set()
        self._local: list[Fragment] = list(fragments)
        self._members = list(self._base_members)
        self._generations = [0] * quorum.ensemble
        self._generation = 0
        self._dead: set[int] = set()  # local slots that cannot take write-backs
        self._choosing = False
        self._entries: dict[int, _Entry] = {}
        self._anchor: _Entry | None = None  # entry start-1, read for its length field only
        self._anchor_slots: tuple[int, ...] = ()
        self._written = 0  # lowest entry whose write-back is not complete
        self._frontier = 0  # lowest entry that is not decided
        self._next_read = 0
        self._end: int | None = None  # the first negative entry
        self._last_length: int | None = None

    # --- fencing ---

    def start(self) -> list[RecoveryAction]:
        """R-2: fence every member of the last ensemble."""
        return [SendFence(slot, member) for slot, member in enumerate(self._base_members)]

    def fence_reply(self, slot: int, status: Status, lac: int) -> list[RecoveryAction]:
        """A member answered the fence, or did not (TIMEOUT, DISCONNECTED)."""
        if self.finished or self.start_entry is not None:
            return []
        self._fence_answered.add(slot)
        if status is Status.OK or status in _NEGATIVE:
            self._fence_counted.add(slot)
            self.fence_lac = EntryId(max(self.fence_lac, lac))
        if self._covered():
            return self._begin_reading()
        if len(self._fence_answered) == self.quorum.ensemble:
            return self._abort(
                f"fence coverage missing: {len(self._fence_counted)} of {self.quorum.ensemble} "
                "members answered"
            )
        return []

    def _covered(self) -> bool:
        return fence_covered(self._fence_counted, self.quorum)

    def _first_to_read(self) -> int:
        """R-3: the bookies' LAC is where to start, never where to close."""
        return max(self.fence_lac, self._last_key - 1) + 1

    def _begin_reading(self) -> list[RecoveryAction]:
        start = self._first_to_read()
        self.start_entry = EntryId(start)
        self._written = self._frontier = self._next_read = start
        actions: list[RecoveryAction] = []
        if start == 0:
            self._last_length = 0
        else:
            actions.extend(self._read_anchor(EntryId(start - 1)))
        actions.extend(self._read_more())
        return actions

    def _read_anchor(self, entry: EntryId) -> list[RecoveryAction]:
        """The entry before the first one read: it is acknowledged, only its length is wanted."""
        members = next(m for first, m in reversed(self.base) if first <= entry)
        self._anchor = _Entry()
        self._anchor_slots = write_set(entry, self.quorum)
        return [SendRead(entry, s, members[s], self._fences()) for s in self._anchor_slots]

    # --- reading ---

    def _fences(self) -> bool:
        """R-13: every recovery read fences."""
        return True

    def _read_more(self) -> list[RecoveryAction]:
        actions: list[RecoveryAction] = []
        while self._end is None and self._next_read < self._written + self._window:
            entry = EntryId(self._next_read)
            self._entries[entry] = _Entry()
            self._next_read += 1
            actions.extend(
                SendRead(entry, slot, self._base_members[slot], self._fences())
                for slot in write_set(entry, self.quorum)
            )
        return actions

    def read_reply(
        self, entry: int, slot: int, status: Status, data: bytes | None
    ) -> list[RecoveryAction]:
        """Outcome of a recovery read. `data` are verified whole entry bytes when status is OK.

        A copy that fails its digest arrives as EIO: unknown, never a negative (R-15, E-2).
        """
        if self.finished or self.start_entry is None:
            return []
        if entry == self.start_entry - 1:
            return self._anchor_reply(slot, status, data)
        state = self._entries.get(entry)
        if state is None:
            return []
        state.answered.add(slot)
        if status is Status.OK and data is not None:
            if state.data is not None and state.data != data:
                return self._abort(f"two byte strings exist for entry {entry}", conflict=True)
            state.data = data
        elif status in _NEGATIVE:
            state.negatives.add(slot)
        return self._decide()

    def _anchor_reply(self, slot: int, status: Status, data: bytes | None) -> list[RecoveryAction]:
        anchor = self._anchor
        if anchor is None or self._last_length is not None:
            return []
        anchor.answered.add(slot)
        if status is Status.OK and data is not None:
            self._last_length = decode_header(data).length
            return self._try_close()
        if len(anchor.answered) == len(self._anchor_slots) and self._needs_anchor():
            return self._abort("the last confirmed entry cannot be read")
        return []

    def _needs_anchor(self) -> bool:
        """True once it is known that no entry was found: its length decides the ledger's."""
        return self._end is not None and self._end == self.start_entry

    def _decide(self) -> list[RecoveryAction]:
        """Decide entries in order: positive, negative or undecidable (R-14)."""
        actions: list[RecoveryAction] = []
        while self._end is None and not self.finished:
            state = self._entries.get(self._frontier)
            if state is None:
                break
            if state.data is not None:
                writes = self._write_back(self._frontier, state)
                if len(writes) < self.quorum.ack and not self._choosing:
                    return self._abort(f"entry {self._frontier} cannot reach Qa copies")
                actions.extend(writes)
                self._frontier += 1
                if self._frontier == self._next_read:  # all that was read ahead was there
                    self._window = min(2 * self._window, self._window_max)
            elif len(state.negatives) >= self._negatives_needed():
                self._end = self._frontier
                for higher in [e for e in self._entries if e >= self._end]:
                    del self._entries[higher]  # positives above the end do not matter
            elif len(state.answered) == self.quorum.write:
                return self._abort(f"entry {self._frontier} is neither present nor absent")
            else:
                break
        actions.extend(self._read_more())
        actions.extend(self._try_close())
        return actions

    def _negatives_needed(self) -> int:
        return negatives_needed(self.quorum)

    # --- writing back ---

    def _write_back(self, entry: int, state: _Entry) -> list[RecoveryAction]:
        invariant(state.data is not None, "write-back of an entry without bytes")
        assert state.data is not None
        return [
            SendWrite(EntryId(entry), s, self._generations[s], self._members[s], state.data)
            for s in write_set(entry, self.quorum)
            if s not in self._dead
        ]

    def write_reply(
        self, entry: int, slot: int, generation: int, status: Status
    ) -> list[RecoveryAction]:
        """Outcome of a recovery add; replies for a replaced member are ignored (W-8)."""
        if self.finished or generation != self._generations[slot]:
            return []
        if status is Status.CONFLICT:
            return self._abort(f"entry {entry} conflicts at {self._members[slot]}", conflict=True)
        if status is not Status.OK:
            return self._slot_lost(slot)
        state = self._entries.get(entry)
        if state is None:
            return []
        state.acks.add(slot)
        return self._pop_written()

    def _pop_written(self) -> list[RecoveryAction]:
        while self._written < self._frontier:
            state = self._entries[self._written]
            if len(state.acks) < self.quorum.ack or self._choosing:
                break
            assert state.data is not None
            self._last_length = decode_header(state.data).length
            del self._entries[self._written]
            self._written += 1
        return [*self._read_more(), *self._try_close()]

    def _slot_lost(self, slot: int) -> list[RecoveryAction]:
        if slot in self._dead:
            return []
        self._dead.add(slot)
        if self._choosing:
            return []
        return self._choose()

    def _choose(self) -> list[RecoveryAction]:
        self._choosing = True
        failed = tuple((slot, self._members[slot]) for slot in sorted(self._dead))
        return [ChooseSpares(failed, tuple(self._members))]

    def replacements(self, chosen: Mapping[int, Member]) -> list[RecoveryAction]:
        """R-18: change the local ensemble from the lowest entry that is not written back."""
        if self.finished or not self._choosing:
            return []
        self._choosing = False
        actions: list[RecoveryAction] = []
        if chosen and self._generation < LOCAL_CHANGES_MAX:
            self._generation += 1
            for slot, member in chosen.items():
                self._members[slot] = member
                self._generations[slot] = self._generation
                self._dead.discard(slot)
            names = {member.bookie_id for member in self._members}
            invariant(len(names) == len(self._members), "a bookie appears twice in an ensemble")
            self._change_local(EntryId(self._written))
            actions.extend(self._write_to(chosen))
        stuck = self._stuck_entry()
        if stuck is not None:
            return self._abort(f"entry {stuck} cannot reach {self.quorum.ack} copies")
        actions.extend(self._pop_written())
        return actions

    def _change_local(self, key: EntryId) -> None:
        invariant(key >= self._local[-1][0], "local ensemble change below the last key")
        if self._local[-1][0] == key:
            self._local.pop()
        self._local.append((key, tuple(self._members)))

    def _write_to(self, slots: Mapping[int, Member]) -> list[RecoveryAction]:
        """Send every entry in flight to its new members; old replies do not count."""
        actions: list[RecoveryAction] = []
        for entry in range(self._written, self._frontier):
            state = self._entries[entry]
            state.acks.difference_update(slots)
            actions.extend(w for w in self._write_back(entry, state) if _slot_of(w) in slots)
        return actions

    def _stuck_entry(self) -> int | None:
        for entry in range(self._written, self._frontier):
            acks = self._entries[entry].acks
            alive = acks.union(s for s in write_set(entry, self.quorum) if s not in self._dead)
            if len(alive) < self.quorum.ack:
                return entry
        return None

    # --- end ---

    def _try_close(self) -> list[RecoveryAction]:
        ended = self._end is not None and self._written == self._end and not self._choosing
        if self.finished or not ended:
            return []
        anchor = self._anchor
        if self._last_length is None:
            assert anchor is not None
            if len(anchor.answered) == len(self._anchor_slots):
                return self._abort("the last confirmed entry cannot be read")
            return []
        self.finished = True
        return [CloseLedger(EntryId(self._written - 1), self._last_length, tuple(self._local))]

    def _abort(self, cause: str, *, conflict: bool = False) -> list[RecoveryAction]:
        self.finished = True
        return [Aborted(cause, conflict)]


def _slot_of(action: RecoveryAction) -> int:
    return action.slot if isinstance(action, SendWrite) else -1
