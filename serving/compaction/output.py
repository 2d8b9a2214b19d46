"""Writing one cleaned segment: batches, a snapshot, a footer (spec groups K7).

Its ledger is closed before the list may name it. Batches are in flight as many as the ledger's
writer allows; the first that fails ends the segment.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from octavo.client.segments.index import SparseIndex
from octavo.proto.segment_entries import SegmentFigures, encode_footer
from octavo.proto.segments import Segment
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from octavo.serving.compaction.cleaning import Left
from octavo.serving.ledger_backend import Writer
from octavo.serving.partition.log import Figures
from octavo.serving.segments import sealed_segment


class Place(NamedTuple):
    """What a cleaned segment stands for."""

    base_offset: int
    end_offset: int
    first_append_ms: int | None
    """Of what it replaces: it is told when nothing is left of that."""
    last_append_ms: int | None


class CleanedSegment:
    """One ledger that is being written."""

    def __init__(self, writer: Writer, base_offset: int, index_interval_bytes: int) -> None:
        self._writer = writer
        self._base_offset = base_offset
        self._index = SparseIndex(index_interval_bytes)
        self._figures = Figures()
        self._in_flight = 0
        self._error: OctavoError | None = None
        self._settled = asyncio.Event()

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger."""
        return self._writer.ledger_id

    @property
    def size_bytes(self) -> int:
        """Payload bytes written so far."""
        return self._writer.length

    @property
    def figures(self) -> SegmentFigures:
        """Of the batches written so far."""
        return self._figures.value

    async def add(self, left: Left) -> None:
        """Send one batch; raises why an earlier one failed, or why the ledger takes none."""
        await self._writer.wait_capacity()
        if self._error is not None:
            raise self._error
        payload = left.payload if isinstance(left.payload, bytes) else bytes(left.payload)
        self._in_flight += 1
        entry_id = self._writer.add(payload, self._done)
        self._index.note(left.header, entry_id, len(payload))
        self._figures.note(left.header, len(payload))

    def _done(self, _: EntryId, error: OctavoError | None) -> None:
        self._in_flight -= 1
        self._error = self._error or error
        self._settled.set()

    async def finish(self, place: Place, snapshot: bytes | None) -> Segment:
        """Close the ledger; the element of the list. Raises when anything was not acknowledged."""
        while self._in_flight and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        if self._error is not None:
            raise self._error
        snapshot_entry = NO_ENTRY
        if snapshot is not None:
            snapshot_entry = await self._writer.append(snapshot)
        footer = self._index.to_footer(
            base_offset=place.base_offset,
            end_offset=place.end_offset,
            snapshot_entry=snapshot_entry,
            figures=self.figures,
        )
        await self._writer.append(encode_footer(footer))
        closed = await self._writer.close()
        figures = self.figures
        if figures.first_append_ms < 0 and place.last_append_ms is not None:
            first_ms = place.first_append_ms
            figures = figures._replace(
                first_append_ms=place.last_append_ms if first_ms is None else first_ms,
                last_append_ms=place.last_append_ms,
            )
        listed = Segment(self.ledger_id, place.base_offset, compacted=True)
        return sealed_segment(listed, closed, place.end_offset, figures)

    def abandon(self) -> None:
        """Nothing comes of it; the ledger goes with the trash."""
        self._writer.abandon("its cleaning ended early")
