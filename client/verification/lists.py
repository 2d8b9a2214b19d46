"""Do the segments of a partition fit each other and their ledgers? Pure (ML-1..ML-4, INV-13).

That segments follow each other without gap or overlap is a rule of the list's record itself: one
that breaks it cannot be read, and is told as that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState
from octavo.proto.segment_entries import is_batch, peek_offsets
from octavo.proto.segments import Segment
from octavo.runtime.errors import CorruptBatch

LedgerOf = Callable[[int], LedgerMetadata | str | None]
"""The record of a ledger, why it cannot be read, or None: it surely does not exist."""


def judge_list(state: PartitionState, ledger_of: LedgerOf) -> list[str]:
    """What is wrong with a list, in words."""
    wrong: list[str] = []
    if state.segments and state.log_start_offset < state.segments[0].base_offset:
        wrong.append(
            f"offsets {state.log_start_offset} to {state.segments[0].base_offset - 1} are in no "
            "segment, and the log begins there"
        )
    for segment in state.segments:
        if not segment.in_ledger:
            continue  # `tier_files` looks at what holds it
        found = ledger_of(segment.ledger_id)
        if found is None:
            wrong.append(f"ledger {segment.ledger_id} ({_offsets(segment)}) does not exist")
        elif not isinstance(found, str):
            problem = _judge_segment(state, segment, found)
            if problem:
                wrong.append(f"ledger {segment.ledger_id} ({_offsets(segment)}): {problem}")
    return wrong


def owner_of(record: LedgerMetadata) -> tuple[str, uuid.UUID, int] | None:
    """Topic, its id and the partition that a ledger was made for; None: for none."""
    custom = record.custom
    try:
        return custom["topic"], uuid.UUID(hex=custom["topic_id"]), int(custom["partition"])
    except (KeyError, ValueError):
        return None


def _judge_segment(state: PartitionState, segment: Segment, record: LedgerMetadata) -> str:
    owner = owner_of(record)
    if owner is not None and owner[1:] != (state.topic_id, state.partition):
        return f"it was made for partition {owner[2]} of {owner[0]}"
    if not segment.closed:
        return ""
    if record.last_entry is None:
        return f"it is closed in the list, and {record.state.name} by its record"
    if record.last_entry != segment.last_entry:
        return (
            f"its last entry is {segment.last_entry} in the list, {record.last_entry} by its record"
        )
    return ""


def _offsets(segment: Segment) -> str:
    end = "" if segment.end_offset is None else segment.end_offset - 1
    if end != "" and segment.end_offset == segment.base_offset:
        return f"no records at offset {segment.base_offset}"
    return f"offsets {segment.base_offset} to {end}".rstrip()


class OffsetRun:
    """The offsets that the batches of one ledger hold, seen in order of entries.

    Args:
        segment: what the list says of the ledger.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._due: int | None = segment.base_offset
        """The offset of the next batch; None: entries before it were not seen."""
        self._seen = -1
        self._problem = ""

    def entry(self, entry_id: int, begins: bytes) -> None:
        """The next entry, by how its payload begins; those that are no batches take no offset."""
        if entry_id == 0:  # the ledger is read from the beginning, perhaps again
            self._due, self._seen, self._problem = self._segment.base_offset, -1, ""
        if entry_id != self._seen + 1:
            self._due = None
        self._seen = entry_id
        if self._problem or not is_batch(begins):
            return
        try:
            base, following = peek_offsets(begins)
        except CorruptBatch as error:
            self._problem = f"entry {entry_id}: {error.cause}"
            return
        due, self._due = self._due, following
        skips = self._segment.compacted and due is not None and base >= due
        if due is not None and base != due and not skips:
            self._problem = f"entry {entry_id} begins at offset {base}, not at {due} (INV-13)"

    def problem(self) -> str:
        """What does not fit, once all entries that can be read were seen; empty: nothing."""
        segment, end = self._segment, self._segment.end_offset
        if self._problem or end is None or self._due is None or self._seen != segment.last_entry:
            return self._problem
        if self._due == end or (segment.compacted and self._due < end):
            return ""
        return f"its batches end at offset {self._due}, the list says {end} (INV-13)"
