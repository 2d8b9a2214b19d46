"""Which entries belong on which bookie, and which slots of a ledger need something (A-4..A-6).

Pure. A *slot* is one place of one fragment's ensemble; its entries are those whose write set has
it (3.2). What may be done to a slot follows from the ledger's state (2.2):

    fragment               lost member                     member that is there
    settled                copy all, then one CAS          copy what it lacks
    last of an OPEN one    recovery first (A-6)            copy what it lacks up to the LAC
    last, IN_RECOVERY      recovery first (A-6)            nothing: its recovery decides the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from octavo.client.ledger.tally import in_write_set
from octavo.metadata.ledger_record import LedgerMetadata, LedgerState, Quorum
from octavo.runtime.ids import EntryId, Member

Run = tuple[int, int]
"""First and last entry, both inclusive."""


class Fate(Enum):
    """What is known of a member."""

    THERE = "there"
    """Registered under this incarnation: it can be asked, and be given what it lacks."""
    AWAY = "away"
    """Not registered, not given up: nothing is known of its copies."""
    LOST = "lost"
    """Its slots get other bookies (A-1, 7.4)."""


class Slot(NamedTuple):
    """One place of one fragment."""

    start: EntryId
    """Key of the fragment."""
    first: int
    last: int
    """Entries of the fragment; first > last: it is empty, which is legal (M-5)."""
    number: int
    """Its place in the ensemble."""
    ensemble: tuple[Member, ...]
    settled: bool
    """Its set of entries never changes again, and its members are nobody's but ours to change."""

    @property
    def member(self) -> Member:
        """Who holds it, according to the record."""
        return self.ensemble[self.number]


class Plan(NamedTuple):
    """What a record asks for now."""

    replace: tuple[Slot, ...]
    """Settled slots of lost members."""
    check: tuple[Slot, ...]
    """Slots of members that are there, which may lack entries."""
    away: tuple[Slot, ...]
    """Slots of which nothing is known now: no proof that the ledger has all its copies."""
    recover: bool
    """The last fragment has a lost member, and the ledger is not CLOSED (A-6)."""
    undecided: bool
    """The ledger is IN_RECOVERY: what its last fragment holds is not decided."""


def slots_of(record: LedgerMetadata, lac: int) -> list[Slot]:
    """Every slot of a record; `lac` bounds the last fragment of a ledger that is not CLOSED."""
    closed = record.last_entry if record.closed_for_good else None
    out: list[Slot] = []
    for number, (start, ensemble) in enumerate(record.fragments):
        is_last = number + 1 == len(record.fragments)
        if not is_last:
            last = record.fragments[number + 1][0] - 1
        else:
            last = lac if closed is None else closed
        if closed is not None:
            last = min(last, closed)
        settled = closed is not None or not is_last
        out += [
            Slot(start, start, last, index, ensemble, settled) for index in range(len(ensemble))
        ]
    return out


def plan(record: LedgerMetadata, lac: int, fate_of: Callable[[Member], Fate]) -> Plan:
    """Sort the slots of a record by what they need."""
    replace: list[Slot] = []
    check: list[Slot] = []
    away: list[Slot] = []
    recover = False
    recovering = record.state is LedgerState.IN_RECOVERY
    for slot in slots_of(record, lac):
        fate = fate_of(slot.member)
        if fate is Fate.LOST and slot.settled:
            replace.append(slot)
        elif fate is Fate.LOST:
            recover = True
        elif not slot.settled and recovering:
            continue
        elif fate is Fate.AWAY:
            away.append(slot)
        elif slot.first <= slot.last:
            check.append(slot)
    return Plan(tuple(replace), tuple(check), tuple(away), recover, recovering)


def stored_runs(quorum: Quorum, slot: int, first: int, last: int) -> list[Run]:
    """Entries of first..last that `slot` stores, as runs."""
    if first > last:
        return []
    if quorum.ensemble == quorum.write:
        return [(first, last)]
    runs: list[Run] = []
    for entry in range(first, last + 1):
        if in_write_set(slot, entry, quorum):
            _append(runs, entry)
    return runs


def _append(runs: list[Run], entry: int) -> None:
    if runs and runs[-1][1] + 1 == entry:
        runs[-1] = (runs[-1][0], entry)
    else:
        runs.append((entry, entry))


def without(wanted: Iterable[Run], held: Sequence[Run]) -> list[Run]:
    """The entries of `wanted` that are not in `held`; both in order."""
    out: list[Run] = []
    position = 0
    for first, last in wanted:
        while position < len(held) and held[position][1] < first:
            position += 1
        at = first
        look = position
        while look < len(held) and held[look][0] <= last:
            if held[look][0] > at:
                out.append((at, held[look][0] - 1))
            at = max(at, held[look][1] + 1)
            look += 1
        if at <= last:
            out.append((at, last))
    return out
