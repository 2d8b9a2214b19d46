"""The ledger being written, beside its segment in the core: adds, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.proto.segment_entries import encode_mark
from octavo.runtime.errors import Fatal, NotLeader, OctavoError
from octavo.runtime.ids import EntryId
from octavo.serving.ledger_backend import Writer
from octavo.serving.partition.actions import Action
from octavo.serving.partition.core import PartitionCore
from octavo.serving.partition.log import Append
from octavo.serving.partition.open_segment import OpenSegment

CONGESTED_BYTES = 16 * 1024 * 1024
"""In-flight bytes of one ledger above which a produce stream waits for its budget (W-10, BP-3)."""


class OpenLedger:
    """A writer whose events go to the core.

    Args:
        perform: does what the core answers to an event.
    """

    def __init__(
        self,
        writer: Writer,
        segment: OpenSegment,
        core: PartitionCore,
        perform: Callable[[list[Action]], None],
    ) -> None:
        self.writer = writer
        self.segment = segment
        self._core = core
        self._perform = perform
        writer.on_stopped(self._on_stopped)

    def send(self, append: Append) -> None:
        """Add a batch; one that comes when the writer stopped stays queued."""
        if self.segment.must_recover:
            return
        first = partial(self._on_first_copy, append) if append.waiting_one else None
        try:
            entry_id = self.writer.add(append.payload, self._on_done, first)
        except Fatal as error:
            self._on_stopped(error)
            return
        self._core.sent(self.segment, append, entry_id)

    def send_snapshot(self, payload: bytes, now_s: float) -> None:
        """Add a snapshot; one that comes when the writer stopped is not missed."""
        if self.segment.must_recover:
            return
        try:
            entry_id = self.writer.add(payload, self._on_done)
        except Fatal as error:
            self._on_stopped(error)
            return
        self.segment.snapshot_sent(entry_id, len(payload), now_s)

    async def append_mark(self) -> None:
        """Add an entry without records and wait for Qa; raises NotLeader when it takes none."""
        if not self.segment.usable:
            raise NotLeader("no ledger is open that could prove it")
        await self.writer.append(encode_mark())

    @property
    def congested(self) -> bool:
        """Whether it has more bytes in flight than a stream should add to."""
        return self.writer.in_flight_bytes > CONGESTED_BYTES

    async def wait_capacity(self, timeout_s: float) -> None:
        """Return when the ledger takes more, it stopped, or the time is over."""
        if not self.segment.usable:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.writer.wait_capacity()
        except (TimeoutError, OctavoError):
            return

    def _on_done(self, entry_id: EntryId, error: OctavoError | None) -> None:
        if error is None:
            self._perform(self._core.added(self.segment, entry_id))
        else:
            self._on_stopped(error)

    def _on_first_copy(self, append: Append, _entry_id: EntryId) -> None:
        self._perform(self._core.first_copy(self.segment, append))

    def _on_stopped(self, _error: OctavoError) -> None:
        self._perform(self._core.stopped(self.segment))
