"""Segments in memory whose entries may be gone or damaged, and a plain model of reading them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.client.segments.index import SparseIndex
from octavo.proto.batch import decode_header, stamp
from octavo.proto.entry import encode_header
from octavo.proto.segment_entries import (
    SegmentFigures,
    Snapshot,
    encode_footer,
    encode_mark,
    encode_snapshot,
    is_batch,
)
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.errors import NoSuchEntry, OctavoError, ReadUnknown
from octavo.runtime.ids import EntryId, LedgerId
from tests.serving_rig import NOW_MS, TOPIC_ID, make_batch

LEDGER = LedgerId(7)


def snapshot(end_offset: int) -> bytes:
    """The payload of a snapshot entry."""
    return encode_snapshot(Snapshot(TOPIC_ID, 0, end_offset, 1, 0, SegmentFigures()))


def stored_batch(count: int, base_offset: int) -> bytes:
    """A batch of `count` records as a broker stores it."""
    made = make_batch([b"v"] * count)
    return bytes(stamp(made, base_offset=base_offset, owner_epoch=1, append_time_ms=NOW_MS))


@dataclass
class StoredSegment:
    """The payloads of a segment's entries; a `SegmentReader` over some of them."""

    base_offset: int
    payloads: list[bytes]
    chunk: int = 3
    """Entries in one answer, at most."""
    lac: int = -1
    """Entries that may be read; all of them when the segment is closed."""
    later: list[int] = field(default_factory=list[int])
    """What the LAC becomes, one for each wait."""
    broken: dict[int, type[OctavoError]] = field(default_factory=dict[int, type[OctavoError]])
    empty: set[int] = field(default_factory=set[int])
    """Entries at which an answer holds nothing, which the protocol forbids."""
    reads: list[int] = field(default_factory=list[int])

    def segment(self, *, closed: bool) -> Segment:
        """Its element in the list."""
        if not closed:
            return Segment(LEDGER, self.base_offset)
        return Segment(
            LEDGER, self.base_offset, self.end, last_entry=EntryId(len(self.payloads) - 1)
        )

    @property
    def end(self) -> int:
        """The offset behind the last batch."""
        ends = [decode_header(item).next_offset for item in self.payloads if is_batch(item)]
        return max(ends, default=self.base_offset)

    def holding(self, offset: int) -> int | None:
        """The model of every search: the first batch that ends after `offset`."""
        for entry_id, payload in enumerate(self.payloads):
            if is_batch(payload) and decode_header(payload).next_offset > offset:
                return entry_id
        return None

    def batches_from(self, offset: int, end: int | None = None) -> list[int]:
        """The model of a scan: entries of the batches that a reader of [offset, end) gets."""
        found: list[int] = []
        for entry_id, payload in enumerate(self.payloads):
            if is_batch(payload):
                header = decode_header(payload)
                if end is not None and header.base_offset >= end:
                    break
                if header.next_offset > offset:
                    found.append(entry_id)
        return found

    # --- SegmentReader ---

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> Sequence[Buffer]:
        """Entries up to one that is broken or silent."""
        self.reads.append(first)
        if not 0 <= first <= self.lac:
            raise NoSuchEntry(f"entry {first} is beyond the end {self.lac}")
        if first in self.broken:
            raise self.broken[first](f"entry {first} is broken")
        if first in self.empty:
            return []
        found: list[Buffer] = []
        for entry_id in range(first, min(first + min(max_count, self.chunk), self.lac + 1)):
            if entry_id in self.broken or entry_id in self.empty:
                break
            payload = self.payloads[entry_id]
            head = encode_header(LEDGER, entry_id, entry_id - 1, 0, payload)
            found.append(memoryview(head + payload))
        return found

    async def last_add_confirmed(self) -> EntryId:
        """The LAC."""
        return EntryId(self.lac)

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        """The LAC after the next of its changes."""
        self.lac = self.later.pop(0) if self.later else self.lac
        return EntryId(self.lac)

    async def close(self) -> None:
        """Nothing to release."""


def world_of(seed: int) -> StoredSegment:
    """A closed segment with batches, gaps, snapshots, marks, and a footer or none."""
    rng = random.Random(seed)
    base = offset = rng.choice([0, 5, 1000])
    index = SparseIndex(rng.choice([1, 300, 1 << 20]))
    payloads: list[bytes] = []
    for _ in range(rng.randrange(25)):
        kind = rng.randrange(8)
        if kind == 0:
            payloads.append(snapshot(offset))
        elif kind == 1:
            payloads.append(encode_mark())
        else:
            offset += rng.choice([0, 0, 0, 4])  # a gap, as compaction leaves it
            batch = stored_batch(rng.randrange(1, 4), offset)
            index.note(decode_header(batch), len(payloads), len(batch))
            payloads.append(batch)
            offset = decode_header(batch).next_offset
    if rng.random() < 0.4:
        footer = index.to_footer(
            base_offset=base, end_offset=offset, snapshot_entry=-1, figures=SegmentFigures()
        )
        payload = encode_footer(footer)
        payloads.append(payload if rng.random() < 0.7 else payload[:-1] + b"\xff")
    world = StoredSegment(base, payloads, chunk=rng.choice([1, 2, 7, 100]), lac=len(payloads) - 1)
    if payloads and rng.random() < 0.5:
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(payloads))
            if rng.random() < 0.3:
                world.empty.add(at)
            else:
                world.broken[at] = rng.choice([NoSuchEntry, ReadUnknown])
    return world
