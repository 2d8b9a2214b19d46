"""Changes of a partition's list by a cleaner (spec groups K7). Pure.

The change that names a ledger in the trash creates it for a cleaner to write (ADR 61), so that
whoever owns the partition next deletes it if nothing comes of it. One change lists it in the place
of what it replaces, and those go to the trash. Each function gives the state it was given when the
change is there already, or is not possible any more; the caller looks at what it got.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.metadata.partition_record import RESERVED, CleanMark, PartitionState, TrashedLedger
from octavo.proto.segments import Segment
from octavo.runtime.ids import LedgerId
from octavo.runtime.invariant import invariant

COMPACTED = "compacted"
"""Why a ledger lies in the trash."""


def reserved(state: PartitionState, ledger_id: LedgerId, now_ms: int) -> PartitionState:
    """The trash names a ledger that comes to exist with this list."""
    if state.knows(ledger_id):
        return state
    return replace(state, trash=(*state.trash, TrashedLedger(ledger_id, RESERVED, now_ms)))


def is_reserved(state: PartitionState, ledger_id: LedgerId) -> bool:
    """Whether the trash still names it so."""
    return any(item.ledger_id == ledger_id and item.reason == RESERVED for item in state.trash)


def replaced(
    state: PartitionState, old: Sequence[LedgerId], new: Segment, now_ms: int
) -> PartitionState:
    """`new` in the place of the consecutive segments `old`, which go to the trash.

    The same state when one of them is not listed any more (trimmed meanwhile), or `new` is listed.
    """
    ids = [segment.ledger_id for segment in state.segments]
    if new.ledger_id in ids or not is_reserved(state, new.ledger_id) or old[0] not in ids:
        return state
    at = ids.index(old[0])
    gone = state.segments[at : at + len(old)]
    if [segment.ledger_id for segment in gone] != list(old):
        return state
    if any(segment.object_version is not None for segment in gone):
        return state  # files hold it as it was (F088)
    invariant(
        (new.base_offset, new.end_offset) == (gone[0].base_offset, gone[-1].end_offset),
        "a cleaned segment takes the place of those it replaces (K4)",
    )
    trash = [item for item in state.trash if item.ledger_id != new.ledger_id]
    trash += [TrashedLedger(ledger_id, COMPACTED, now_ms) for ledger_id in old]
    return replace(
        state,
        segments=(*state.segments[:at], new, *state.segments[at + len(old) :]),
        trash=tuple(trash),
        max_ledger_id_ever=max(state.max_ledger_id_ever, new.ledger_id),
    )


def cleaned(state: PartitionState, cleaned_to: int, marks: Sequence[CleanMark]) -> PartitionState:
    """A pass that began with the state's marks reached `cleaned_to`."""
    if cleaned_to < state.cleaned_to:
        return state
    return replace(state, cleaned_to=cleaned_to, clean_marks=tuple(marks))
