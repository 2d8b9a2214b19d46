"""Where an offset or a time lies in a segment: a sparse index and its stand-in. Pure.

`SparseIndex` grows with durable entries of the open segment (about one point for each 64 KiB of
payload) and is written as the ledger's footer. `OffsetSearch` finds an offset in a closed ledger
that has no footer by binary search over batch headers.

A point is (base offset of the batch in entry e, e, highest timestamp of all batches before e). The
last column never falls, so both questions are one bisection: start reading at the returned entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from octavo.proto.batch import BatchHeader
from octavo.proto.segment_entries import MAX_BYTES, Footer, SegmentFigures
from octavo.runtime.invariant import invariant

BEFORE_ALL_TIME_MS = -(1 << 63)
MAX_FOOTER_POINTS = (MAX_BYTES - 4096) // 24
"""A footer must fit one entry; an index with more points is thinned, never refused."""


class SparseIndex:
    """Offset and time index of one segment.

    Args:
        interval_bytes: payload bytes between two points.
    """

    def __init__(self, interval_bytes: int = 64 * 1024) -> None:
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._entries = array("q")
        self._times_before = array("q")
        self._max_timestamp_ms = BEFORE_ALL_TIME_MS
        self._bytes_since_point = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, header: BatchHeader, entry_id: int, payload_bytes: int) -> None:
        """Account for the next durable batch; entries come in order."""
        if not self._offsets or self._bytes_since_point >= self._interval_bytes:
            invariant(
                not self._entries or entry_id > self._entries[-1],
                "index points are added in entry order",
            )
            self._offsets.append(header.base_offset)
            self._entries.append(entry_id)
            self._times_before.append(self._max_timestamp_ms)
            self._bytes_since_point = 0
        self._bytes_since_point += payload_bytes
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp_ms)

    @property
    def max_timestamp_ms(self) -> int:
        """The highest timestamp noted so far."""
        return self._max_timestamp_ms

    def entry_for_offset(self, offset: int) -> int | None:
        """The entry at which a reader of `offset` starts; None when the segment has no batch."""
        if not self._offsets:
            return None
        return self._entries[max(0, bisect_right(self._offsets, offset) - 1)]

    def entry_for_time(self, timestamp_ms: int) -> int | None:
        """The entry at which a search for the first batch reaching `timestamp_ms` starts."""
        if not self._offsets:
            return None
        return self._entries[max(0, bisect_left(self._times_before, timestamp_ms) - 1)]

    def to_footer(
        self, *, base_offset: int, end_offset: int, snapshot_entry: int, figures: SegmentFigures
    ) -> Footer:
        """The footer of this segment, thinned to fit one entry."""
        step = -(-len(self._offsets) // MAX_FOOTER_POINTS) or 1
        return Footer(
            base_offset,
            end_offset,
            snapshot_entry,
            figures,
            self._offsets[::step],
            self._entries[::step],
            self._times_before[::step],
        )

    @classmethod
    def from_footer(cls, footer: Footer) -> SparseIndex:
        """The index a footer holds; it is complete and takes no further notes."""
        index = cls()
        index._offsets = array("q", footer.offsets)
        index._entries = array("q", footer.entries)
        index._times_before = array("q", footer.max_timestamps_before)
        index._max_timestamp_ms = footer.figures.max_timestamp_ms
        return index


class Probe(NamedTuple):
    """Read the first batch at or after `entry`, not beyond `last`."""

    entry: int
    last: int


class OffsetSearch:
    """Binary search for the batch holding `offset` among entries 0..last_entry of a closed ledger.

    Entries that are no batch take no offset, so a probe looks forward to the next batch. Drive it:
    while `probe` is not None, read and answer with `found` or `none_found`; then `result` is the
    entry to start at (the batch holding the offset, or the next one when it lies in a gap), or
    None when no batch ends after `offset`.
    """

    def __init__(self, offset: int, last_entry: int) -> None:
        self._offset = offset
        self._low = 0
        self._high = last_entry  # the answer is in low..high, or `result`
        self.result: int | None = None
        self.probes = 0

    @property
    def probe(self) -> Probe | None:
        """What to read next; None when done."""
        if self._low > self._high:
            return None
        return Probe((self._low + self._high) // 2, self._high)

    def found(self, entry_id: int, header: BatchHeader) -> None:
        """The first batch at or after the probe lies in `entry_id`."""
        self.probes += 1
        asked = (self._low + self._high) // 2
        if header.next_offset <= self._offset:
            self._low = entry_id + 1
            return
        self.result = entry_id
        self._high = asked - 1
        if header.base_offset <= self._offset:
            self._low = self._high + 1  # exactly this batch

    def none_found(self) -> None:
        """No batch lies between the probe and its end."""
        self.probes += 1
        self._high = (self._low + self._high) // 2 - 1
