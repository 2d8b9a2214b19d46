"""The repair of one slot, a pure state machine: look, copy, prove, and only then say so (A-5).

    start() ──► ListHeld target … ──► ReadSource ──► WriteTarget … ──► ProveHeld target …
        a lost member's slot ──► CommitMember ──► Finished;   a gap of a present one ──► Finished
        anything that is not known ──► GaveUp, and nothing is said

One action is under way at a time. The record is changed after every entry of the slot was read
back from the target with the right ids and digest, never before (INV-7). Absence at a source is no
absence of the entry: the next source is asked; what none can give is named in GaveUp (A-7). Copies
are the stored bytes, never encoded anew (INV-5, E-3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.client.autorecovery.slots import Run, Slot, stored_runs, without
from octavo.client.ledger.tally import write_set
from octavo.metadata.ledger_record import Quorum
from octavo.proto.bookie_wire import Status
from octavo.proto.entry import verify
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import CorruptEntry
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.runtime.invariant import invariant

BATCH_ENTRIES = 64
"""Entries that one read asks for; the reply is bounded by bytes as well (A-9)."""
UNREADABLE_RUNS_MAX = 100
"""Runs that GaveUp names; a slot with more is given up at once."""

ABSENT = frozenset({Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER})
"""Answers that say that a bookie has nothing of it; everything else but OK is unknown (R-15)."""
_NOT_GOOD = ABSENT | {Status.EIO, Status.OK}
"""Answers to a read-back that speak of the copy, not of the way there."""


class ListHeld(NamedTuple):
    """Ask the target which of first..last it has: `listed()`."""

    member: Member
    first: int
    last: int


class ReadSource(NamedTuple):
    """Read entries from a source: `source_read()`."""

    member: Member
    first: int
    most: int


class WriteTarget(NamedTuple):
    """Recovery adds of these bytes, one status for each: `written()` (R-17)."""

    member: Member
    entries: tuple[Buffer, ...]


class ProveHeld(NamedTuple):
    """Read entries back from the target: `proof_read()`."""

    member: Member
    first: int
    most: int


class CommitMember(NamedTuple):
    """Put the target in the lost member's place, by compare-and-set: `committed()`."""

    start: EntryId
    old: Member
    new: Member


class Finished(NamedTuple):
    """The slot holds all its entries, and the record says so."""

    entries: int
    nbytes: int


class GaveUp(NamedTuple):
    """Nothing was said; another attempt may succeed."""

    cause: str
    unreadable: tuple[Run, ...] = ()
    """Entries that no source could give (A-7)."""
    conflict: bool = False
    """INV-5 is broken: two byte strings for one entry."""


SlotAction = ListHeld | ReadSource | WriteTarget | ProveHeld | CommitMember | Finished | GaveUp


class SlotCore:
    """One attempt at one slot; see the module's text.

    Args:
        quorum: of the ledger.
        target: who shall hold the slot's entries: its member, or a spare in a lost one's place.
        last_resort: members that are asked only when the others could not help.
        joins: no record names the target yet: every entry is read back, and another may tell.
    """

    def __init__(
        self,
        ledger_id: LedgerId,
        quorum: Quorum,
        slot: Slot,
        target: Member,
        *,
        last_resort: frozenset[Member] = frozenset(),
        joins: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.slot = slot
        self.target = target
        self.copied_entries = 0
        self.copied_bytes = 0
        self._quorum = quorum
        self._last_resort = last_resort
        self._replacing = target != slot.member
        self._joins = joins
        invariant(
            not self._replacing or slot.settled, "a slot that is not settled keeps its member"
        )
        self._wanted = stored_runs(quorum, slot.number, slot.first, slot.last)
        self._held: list[Run] = []
        self._missing: list[Run] = []
        self._unreadable: list[Run] = []
        self._tried: set[Member] = set()
        self._good: Member | None = None
        self._batch: tuple[Buffer, ...] = ()
        self._to_prove: list[Run] = []
        self._asked = 0
        self._mended: set[int] = set()
        """Entries whose copy at the target proved to be no good, and was made again."""
        self._expects: type[SlotAction] | None = None

    # --- events -----------------------------------------------------------------------------

    def start(self) -> list[SlotAction]:
        """Begin by asking what the target has already (an earlier attempt's copies, say)."""
        if not self._wanted:
            return self._prove()
        return self._list_from(self._wanted[0][0])

    def listed(self, status: Status, through: int, runs: Sequence[Run]) -> list[SlotAction]:
        """The target's answer; only OK tells anything of absence."""
        self._answers(ListHeld)
        if status in ABSENT:
            status, through, runs = Status.OK, self._wanted[-1][1], ()
        if status is not Status.OK:
            return self._give_up(f"{self.target} does not tell what it has: {status.name}")
        self._held += runs
        if through < self._wanted[-1][1]:
            return self._list_from(through + 1)
        self._missing = without(self._wanted, self._held)
        self._to_prove = (
            list(self._wanted) if self._replacing or self._joins else list(self._missing)
        )
        return self._copy()

    def source_read(
        self, member: Member, first: int, status: Status, entries: Sequence[Buffer]
    ) -> list[SlotAction]:
        """What a source gave; damage and absence both mean: ask the next one."""
        self._answers(ReadSource)
        good = self._intact(first, entries) if status is Status.OK else ()
        if not good:
            self._tried.add(member)
            if self._good == member:
                self._good = None
            return self._copy()
        self._good = member
        self._tried.clear()
        self._batch = good
        return self._do(WriteTarget(self.target, good))

    def written(self, statuses: Sequence[Status]) -> list[SlotAction]:
        """Durable at the target, or not: one status for each entry."""
        self._answers(WriteTarget)
        if Status.CONFLICT in statuses:
            return self._give_up(
                f"{self.target} has other bytes for an entry of ledger {self.ledger_id}",
                conflict=True,
            )
        bad = next((status for status in statuses if status is not Status.OK), None)
        if bad is not None or len(statuses) != len(self._batch):
            why = "an incomplete answer" if bad is None else bad.name
            return self._give_up(f"{self.target} did not take a copy: {why}")
        count = len(self._batch)
        self.copied_entries += count
        self.copied_bytes += sum(map(len, self._batch))
        self._batch = ()
        self._take_from(self._missing, count)
        return self._copy()

    def proof_read(self, first: int, status: Status, entries: Sequence[Buffer]) -> list[SlotAction]:
        """What the target gives back of its copies (E-2)."""
        self._answers(ProveHeld)
        good = self._intact(first, entries) if status is Status.OK else ()
        if not good and status in _NOT_GOOD and first not in self._mended:
            self._mended.add(first)  # the add of verbatim bytes replaces a damaged copy (6.15)
            self._missing = [(first, first)]
            return self._copy()
        if not good:
            return self._give_up(f"{self.target} does not give entry {first} back: {status.name}")
        self._take_from(self._to_prove, len(good))
        return self._prove()

    def committed(self, cause: str = "") -> list[SlotAction]:
        """The record names the target now; or why it does not."""
        self._answers(CommitMember)
        if cause:
            return self._give_up(cause)
        return [Finished(self.copied_entries, self.copied_bytes)]

    def validate(self) -> None:
        """Check the state against itself."""
        invariant(
            all(a <= b for a, b in (*self._missing, *self._to_prove, *self._unreadable)),
            "an empty run of entries",
        )
        invariant(
            self._expects is not CommitMember or not (self._missing or self._to_prove),
            "the record is changed before the copies are proven",
        )

    # --- steps ------------------------------------------------------------------------------

    def _list_from(self, first: int) -> list[SlotAction]:
        return self._do(ListHeld(self.target, first, self._wanted[-1][1]))

    def _copy(self) -> list[SlotAction]:
        while self._missing:
            first, last = self._missing[0]
            source = self._next_source(first)
            if source is not None:
                striped = self._quorum.ensemble != self._quorum.write
                count = 1 if striped else min(last - first + 1, BATCH_ENTRIES)
                self._asked = count
                return self._do(ReadSource(source, first, count))
            self._unreadable.append((first, first))
            if len(self._unreadable) >= UNREADABLE_RUNS_MAX:
                break
            self._tried.clear()
            self._take_from(self._missing, 1)
        if self._unreadable:
            runs = _joined(self._unreadable)
            shown = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:5])
            return self._give_up(f"no copy could be read of entries {shown}", unreadable=runs)
        return self._prove()

    def _next_source(self, entry: int) -> Member | None:
        """Who to ask for an entry: who gave the last one, then others of its write set."""
        slots = write_set(entry, self._quorum)
        members = [self.slot.ensemble[slot] for slot in slots]
        able = [m for m in members if m != self.target and m not in self._tried]
        able.sort(key=lambda member: (member in self._last_resort, member != self._good))
        return able[0] if able else None

    def _prove(self) -> list[SlotAction]:
        if self._to_prove:
            first, last = self._to_prove[0]
            self._asked = min(last - first + 1, BATCH_ENTRIES)
            return self._do(ProveHeld(self.target, first, self._asked))
        if self._replacing:
            return self._do(CommitMember(self.slot.start, self.slot.member, self.target))
        return [Finished(self.copied_entries, self.copied_bytes)]

    # --- parts ------------------------------------------------------------------------------

    def _do(self, action: SlotAction) -> list[SlotAction]:
        self._expects = type(action)
        return [action]

    def _answers(self, action: type[SlotAction]) -> None:
        invariant(self._expects is action, f"an answer to {action.__name__}, which was not asked")
        self._expects = None

    def _give_up(
        self, cause: str, *, unreadable: tuple[Run, ...] = (), conflict: bool = False
    ) -> list[SlotAction]:
        self._expects = None
        return [GaveUp(cause, unreadable, conflict)]

    def _intact(self, first: int, entries: Sequence[Buffer]) -> tuple[Buffer, ...]:
        """The entries from `first` on up to the first one that is damaged or another's (E-2)."""
        good: list[Buffer] = []
        for entry in entries[: self._asked]:
            try:
                header = verify(entry)
            except CorruptEntry:
                break
            if (header.ledger_id, header.entry_id) != (self.ledger_id, first + len(good)):
                break
            good.append(entry)
        return tuple(good)

    @staticmethod
    def _take_from(runs: list[Run], count: int) -> None:
        """Take `count` entries off the front of the first run."""
        first, last = runs.pop(0)
        invariant(count <= last - first + 1, "more entries than were asked for")
        if first + count <= last:
            runs.insert(0, (first + count, last))


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    out: list[Run] = []
    for first, last in runs:
        if out and out[-1][1] + 1 == first:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
    return tuple(out)
