"""A segment: one element of a partition's list, the offsets that one ledger holds (ML-1).

The one value that stands for it everywhere: in the list of the metadata store, in what a broker
tells about a log, in a reader's plan. Its two stored forms are in `octavo.proto.segment_codecs`.
Import-light, without protobuf: Spark's workers load it before they know what they will read.

What is not known is None, never a number that could be one. A ledger's id is the segment's identity
(ML-3), also when its records lie in exported files and the ledger is gone (F088).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from octavo.runtime.checksum import Buffer
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId

if TYPE_CHECKING:
    from octavo.proto.batch import BatchHeader  # loads the codecs


@dataclass(frozen=True, slots=True)
class Segment:
    """One element of a partition's list: a ledger and the offsets it holds."""

    ledger_id: LedgerId
    base_offset: int
    end_offset: int | None = None
    """Exclusive; None while the ledger is not CLOSED: then it may still grow."""
    size_bytes: int = 0
    """Payload bytes; of an open one those so far, and 0 in the list."""
    first_append_ms: int | None = None
    """None: no batch was appended, or it is not known."""
    last_append_ms: int | None = None
    last_entry: EntryId = NO_ENTRY
    """Of a closed one, NO_ENTRY when it is empty; of an open one always NO_ENTRY."""
    max_timestamp_ms: int | None = None
    """No record is newer; None: it holds no record, or it is not known."""
    compacted: bool = False
    """Whether offsets may be missing inside: a cleaner removed records that were superseded."""
    dense: bool = False
    """Whether each of its offsets, of an open one each that could be read when it was told, is a
    record that every reader gets: none was removed, is a marker, is of a transaction. False: no,
    or it is not known."""
    object_version: int | None = None
    """From this version on the manifest of the topic's tree names files that hold all of its
    records; None: only its ledger holds them."""
    in_ledger: bool = True
    """Whether its ledger is there; False: it is in the trash or deleted, and the files hold it."""
    ledger_record: bytes = field(default=b"", repr=False)
    """octavo.records.LedgerRecord, for readers that go straight to the bookies; not in the list."""

    @property
    def closed(self) -> bool:
        """Whether its end is known and final."""
        return self.end_offset is not None

    @property
    def state(self) -> str:
        """CLOSED or OPEN, as it is written on the wire and for people."""
        return "OPEN" if self.end_offset is None else "CLOSED"

    @property
    def shown_state(self) -> str:
        """As `state`; of a closed one that files hold COPIED, and TIERED without its ledger."""
        if self.object_version is None:
            return self.state
        return "COPIED" if self.in_ledger else "TIERED"

    def end_below(self, high_watermark: int) -> int:
        """Exclusive end of what it holds for a reader who may read up to `high_watermark`."""
        return high_watermark if self.end_offset is None else min(self.end_offset, high_watermark)


class StoredBatch(NamedTuple):
    """One batch as a segment holds it, and where it lies."""

    ledger_id: LedgerId
    entry_id: EntryId
    batch: Buffer


class StoredHeader(NamedTuple):
    """The header of such a batch alone."""

    entry_id: EntryId
    header: BatchHeader
