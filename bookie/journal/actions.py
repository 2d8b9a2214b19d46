"""What `JournalCore` asks of its shell.

The shell does the actions of a list in order. Those marked with an outcome stand last in their
list; the shell reports the outcome by the event that is named, or `failed(error)` for any action
that raised.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.bookie.journal.item import CommittedGroup, JournalItem
from octavo.bookie.journal.segment import Position, SegmentHeader
from octavo.proto.bookie_wire import Status


class CreateSegment(NamedTuple):
    """Make a new file and allocate all of it (B-7). Outcome: `file_created`."""

    number: int
    size_bytes: int


class WriteHeader(NamedTuple):
    """Write this header at the start of the file just made. Outcome: `written`."""

    header: SegmentHeader


class SyncSegment(NamedTuple):
    """fdatasync of the file written to last; never repeated after an error (B-8).

    Outcome: `synced`.
    """


class SyncDirectory(NamedTuple):
    """fsync of the segments' folder, so that the new name stays. Outcome: `directory_synced`."""


class DropSegment(NamedTuple):
    """Close and remove the file being made, so that no power cut brings it back: fsync the folder.

    There was no space for it. Its header may be on the disk already, and would declare void what
    the segment before it gets from now on. Outcome: `segment_dropped`.
    """

    number: int


class EnterSegment(NamedTuple):
    """The new segment counts: batches go there; `retired` is full and gets its footer."""

    header: SegmentHeader
    retired: SegmentHeader | None
    """None at the first segment of a boot."""


class WriteCarried(NamedTuple):
    """Write a batch that the boot found behind the proven end once more. Outcome: `written`."""

    which: int
    """Of the batches given to `open`."""
    segment: int
    sequence: int
    durable_up_to: Position
    offset: int
    """Where its first record's bytes will lie."""


class WriteBatch(NamedTuple):
    """Write these items, whose offsets are set, as one batch. Outcome: `written`."""

    segment: int
    sequence: int
    durable_up_to: Position
    items: list[JournalItem]
    """Empty for a mark (B-15)."""
    nbytes: int


class NoteDurable(NamedTuple):
    """Note outside of the segment that the log is durable up to here (ADR 14)."""

    position: Position


class Publish(NamedTuple):
    """Hand these to the index, which may know them from now on (B-5)."""

    group: CommittedGroup


class Acknowledge(NamedTuple):
    """Answer these items in this order."""

    items: list[JournalItem]
    status: Status


class End(NamedTuple):
    """All that was queued is written and proven: the last segment is retired, the thread ends."""

    retired: SegmentHeader


class Fail(NamedTuple):
    """Fail-stop (B-8): nothing more is written, synced or acknowledged."""

    error: Exception


Action = (
    CreateSegment
    | WriteHeader
    | SyncSegment
    | SyncDirectory
    | DropSegment
    | EnterSegment
    | WriteCarried
    | WriteBatch
    | NoteDurable
    | Publish
    | Acknowledge
    | End
    | Fail
)
