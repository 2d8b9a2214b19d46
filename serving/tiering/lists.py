"""Changes of a partition's list by tiering (ledger §8.9, ADR 70). Pure.

A segment's files are named by one change, its ledger goes by a later one. Whoever dies between two
steps, and whatever becomes of a write whose outcome is not known, both copies are there or the list
names the one that is. Each function gives the state it was given when nothing is left to change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from octavo.metadata.partition_record import PartitionState, TrashedLedger
from octavo.proto.segments import Segment
from octavo.runtime.ids import LedgerId
from octavo.serving.segments import newest_snapshot

TIERED = "tiered"
"""Why a ledger lies in the trash."""
RECOVERED_LAST = 2
"""Segments at the end of a list whose ledgers an opener looks at (ML-4): they stay."""


def copied(state: PartitionState, ledger_ids: Collection[LedgerId], version: int) -> PartitionState:
    """From manifest version `version` on files hold what these closed segments hold."""
    segments = tuple(
        replace(one, object_version=version)
        if one.ledger_id in ledger_ids and one.closed and one.object_version is None
        else one
        for one in state.segments
    )
    return state if segments == state.segments else replace(state, segments=segments)


def may_go(state: PartitionState, open_snapshot: LedgerId | None) -> tuple[Segment, ...]:
    """Segments whose ledgers are not needed to open the partition, as files hold their records.

    Producers' state and the end of the log are in ledgers only (I10, ML-4).

    Args:
        open_snapshot: the open segment's ledger, when its first entry is durable.
    """
    count = min(newest_snapshot(state, open_snapshot), len(state.segments) - RECOVERED_LAST)
    return tuple(
        one
        for one in state.segments[: max(count, 0)]
        if one.in_ledger and one.object_version is not None
    )


def freed(
    state: PartitionState,
    ledger_ids: Collection[LedgerId],
    *,
    now_ms: int,
    open_snapshot: LedgerId | None = None,
) -> PartitionState:
    """The ledgers of these segments to the trash; the segments stay, in their files (ML-9)."""
    gone = [one for one in may_go(state, open_snapshot) if one.ledger_id in ledger_ids]
    if not gone:
        return state
    ids = {one.ledger_id for one in gone}
    return replace(
        state,
        segments=tuple(
            replace(one, in_ledger=False) if one.ledger_id in ids else one for one in state.segments
        ),
        trash=(*state.trash, *(TrashedLedger(ledger_id, TIERED, now_ms) for ledger_id in ids)),
    )


def due_objects(state: PartitionState, now_ms: int, delay_ms: int) -> Sequence[TrashedLedger]:
    """What lies in the trash for long enough and has files that are still to be removed."""
    return [one for one in state.trash if one.has_objects and one.since_ms + delay_ms <= now_ms]


def without_objects(state: PartitionState, gone: Collection[LedgerId]) -> PartitionState:
    """No manifest names files of these any more; their ledgers are next."""
    trash = tuple(
        replace(one, has_objects=False) if one.ledger_id in gone else one for one in state.trash
    )
    return state if trash == state.trash else replace(state, trash=trash)
