"""Where an offset or a time lies in a segment: a sparse index. Pure.

It grows with durable entries of the open segment (about one point for each 64 KiB of payload) and
is written as the ledger's footer. Without a footer `octavo.client.segments.search` takes its place.

A point is (base offset of the batch in entry e, e, highest timestamp of all batches before e). The
last column never falls, so both questions are one bisection: start reading at the returned entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from octavo.proto.batch import BatchHeader
from octavo.proto.entry import MAX_PAYLOAD_BYTES
from octavo.proto.segment_entries import Footer, SegmentFigures
from octavo.runtime.invariant import invariant

BEFORE_ALL_TIME_MS = -(1 << 63)
MAX_FOOTER_POINTS = (MAX_PAYLOAD_BYTES - 4096) // 24
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
