"""What travels through the append stream: loop, commit thread, index thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.bookie.journal.segment import (
    CONTROL,
    Position,
    Record,
    RecordType,
    SegmentHeader,
)
from octavo.proto.bookie_wire import Status
from octavo.runtime.checksum import Buffer
from octavo.runtime.disk import Appender

JOIN_BELOW_BYTES = 8 * 1024
"""Items whose entries are smaller on average are joined into one buffer: fewer iovecs, fewer crc
calls."""

OnDone = Callable[[Status], None]

EntryHead = tuple[int, int, int, int, int]
"""(ledger id, entry id, lac, length, crc): an entry's header as unpacked once on the loop."""

ControlRecord = tuple[RecordType, int, int]
"""(type, ledger id, value)."""


class JournalItem:
    """One unit of work of the stream: control records, then entries; acknowledged as a whole.

    Made on the loop, not changed after `submit()` except `offset`, which the commit thread sets,
    and `submitted_s`, which is the loop's.
    """

    __slots__ = (
        "controls",
        "entries",
        "heads",
        "lazy",
        "nbytes",
        "offset",
        "on_done",
        "records",
        "reserve",
        "run",
        "submitted_s",
    )

    def __init__(
        self,
        heads: list[EntryHead],
        entries: list[Buffer],
        on_done: OnDone,
        *,
        controls: tuple[ControlRecord, ...] = (),
        reserve: bool = False,
        lazy: bool = False,
        run: Buffer | None = None,
    ) -> None:
        self.heads = heads
        self.entries = entries
        self.controls = controls
        self.on_done = on_done
        self.reserve = reserve
        """May use the space kept back for fences and recovery (6.13)."""
        self.lazy = lazy
        """Does not force a sync of its own (explicit LAC, RD-6)."""
        self.run = run
        """The entries as one piece, if they lie back to back in memory."""
        self.records = len(entries) + len(controls)
        self.nbytes = sum(map(len, entries)) + CONTROL.size * len(controls)
        self.submitted_s = 0.0
        """When it was queued, as the writer's clock says; not later than that."""
        self.offset = 0
        """Where the first record's bytes lie in the segment."""


class CommittedGroup(NamedTuple):
    """Items that are durable, for the index thread; `mark`: the stream's durable end with them."""

    segment: int
    items: list[JournalItem]
    mark: Position


class RetiredSegment(NamedTuple):
    """A full segment, all of whose groups were handed over before: to be sealed with a footer."""

    header: SegmentHeader
    appender: Appender


def body_of_items(items: list[JournalItem]) -> tuple[list[int], list[Buffer]]:
    """Words and bytes of the items' records in order, for `encode_batch`; large ones uncopied."""
    words: list[int] = []
    data: list[Buffer] = []
    for item in items:
        for kind, ledger_id, value in item.controls:
            words.append(kind << 24 | CONTROL.size)
            data.append(CONTROL.pack(ledger_id, value))
        entries = item.entries
        words.extend(map(len, entries))
        if item.run is not None:
            data.append(item.run)
        elif item.nbytes < JOIN_BELOW_BYTES * len(entries):
            data.append(b"".join(entries))
        else:
            data.extend(entries)
    return words, data


def body_of_records(records: Sequence[Record]) -> tuple[list[int], list[Buffer]]:
    """The same of records that a boot found, as they were."""
    words = [record.type << 24 | len(record.data) for record in records]
    return words, [record.data for record in records]
