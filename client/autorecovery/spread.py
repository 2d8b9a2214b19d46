"""Copies of an entry that lie closer together than they need to (A-10, 3.8).

Pure. A ledger was written while there was no better place, or its bookies were moved to one host
since. Of a closed ledger a slot is told for which some bookie lies better *now*: on a host that
holds fewer of its entries' other copies, or in a named domain that a write set does not have yet.
Each such move leaves fewer copies side by side than there were, so moves come to an end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from octavo.client.autorecovery.slots import Slot, slots_of
from octavo.client.ledger.placement import SAME_HOST, Candidate, DomainRule
from octavo.client.ledger.tally import windows
from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.runtime.ids import Member


class Closeness(NamedTuple):
    """How badly a bookie's place suits a slot; less is better."""

    on_host: int
    """Other copies of the slot's entries on the same host."""
    domains_short: int
    """Named domains that the slot's write sets lack (3.8), summed up."""


def closeness(
    bookie: Candidate, number: int, others: Sequence[Candidate], quorum: Quorum, rule: DomainRule
) -> Closeness:
    """How `bookie` would lie in slot `number` of an ensemble, whose own place does not count."""
    ensemble = [*others]
    ensemble[number] = bookie
    on_host, short = set[int](), 0
    for window in windows(quorum):
        if number not in window:
            continue
        on_host |= {
            slot
            for slot in window
            if slot != number and ensemble[slot].levels_shared(bookie) == SAME_HOST
        }
        wanted = min(rule.min_domains, quorum.write)
        short += max(0, wanted - len({ensemble[slot].domain for slot in window}))
    return Closeness(len(on_host), short)


def crowded_slots(
    record: LedgerMetadata,
    places: Mapping[Member, Candidate],
    free: Collection[Candidate],
    rule: DomainRule,
) -> list[Slot]:
    """Slots of a closed ledger that another bookie would suit better; one of each fragment at most.

    Args:
        places: where the registered bookies lie. A fragment with another member is left alone: what
            it lacks comes first.
        free: bookies that may take copies.
    """
    if not record.closed_for_good:
        return []
    found: dict[int, Slot] = {}
    for slot in slots_of(record, -1):
        if slot.start in found or not places.keys() >= set(slot.ensemble):
            continue
        ensemble = [places[member] for member in slot.ensemble]
        now = closeness(ensemble[slot.number], slot.number, ensemble, record.quorum, rule)
        if now > Closeness(0, 0) and any(
            better_at(slot, one, places, record.quorum, rule) for one in free
        ):
            found[slot.start] = slot
    return list(found.values())


def better_at(
    slot: Slot,
    bookie: Candidate,
    places: Mapping[Member, Candidate],
    quorum: Quorum,
    rule: DomainRule,
) -> bool:
    """Whether a bookie outside of the ensemble suits the slot better than its member does."""
    if bookie.member.bookie_id in {member.bookie_id for member in slot.ensemble}:
        return False
    ensemble = [places[member] for member in slot.ensemble]
    now = closeness(ensemble[slot.number], slot.number, ensemble, quorum, rule)
    return closeness(bookie, slot.number, ensemble, quorum, rule) < now
