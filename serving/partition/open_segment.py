"""The segment being written: its index, figures, control entries and way to an end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.client.segments.index import SparseIndex
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.proto.segment_entries import Footer, SegmentFigures, known_time
from octavo.proto.segments import Segment
from octavo.runtime.ids import NO_ENTRY, EntryId, LedgerId
from octavo.runtime.invariant import invariant
from octavo.serving.partition.log import Append, Figures
from octavo.serving.segments import RollReason, sealed_segment


class SnapshotLimits(NamedTuple):
    """When the next snapshot entry is due (I8): bounds what a new owner replays."""

    records: int
    size_bytes: int
    interval_ms: int


class OpenSource(NamedTuple):
    """The open segment as a reader needs it."""

    ledger_id: LedgerId
    base_offset: int
    last_entry: EntryId  # newest durable
    sparse: SparseIndex


class OpenSegment:
    """One ledger from its place in the list until its end is known.

    It accepts batches; then it drains: batches queue, what was sent is waited for; then it is
    closed. From the moment the close is asked for, or when its writer stopped, only its CLOSED
    record tells where it ends (W-9, ML-6).
    """

    def __init__(
        self, ledger_id: LedgerId, base_offset: int, *, index: SparseIndex, now_s: float
    ) -> None:
        self.ledger_id = ledger_id
        self.base_offset = base_offset
        self.index = index
        self.figures = Figures(whole_from=base_offset)
        self.opened_at_s = now_s
        self.size_bytes = 0
        """Payload bytes of every entry sent."""
        self.ends: RollReason | None = None
        """Set: it drains, and why."""
        self.must_recover = False
        """Only recovery tells its end: its writer stopped, or its close was asked for (W-9)."""
        self.last_durable_entry = NO_ENTRY
        self._controls: dict[EntryId, bool] = {}  # pending control entries -> is it a snapshot
        self._snapshot_entry = NO_ENTRY  # newest durable snapshot
        self._snapshot_at_s = now_s
        self._records_since = 0
        self._bytes_since = 0
        self._handover_sent = False

    @property
    def controls_pending(self) -> bool:
        """Whether a control entry is on its way."""
        return bool(self._controls)

    @property
    def usable(self) -> bool:
        """Whether a batch may be added now."""
        return self.ends is None and not self.must_recover

    @property
    def owes_handover(self) -> bool:
        """Whether a snapshot is still due before its footer (I8: at clean handover)."""
        return self.ends is RollReason.UNLOAD and not self._handover_sent

    def snapshot_due(self, limits: SnapshotLimits, now_s: float) -> bool:
        """Whether the next entry should be a snapshot."""
        return (
            self._records_since >= limits.records
            or self._bytes_since >= limits.size_bytes
            or (
                self._records_since > 0
                and (now_s - self._snapshot_at_s) * 1000 >= limits.interval_ms
            )
        )

    def snapshot_sent(self, entry_id: EntryId, size_bytes: int, now_s: float) -> None:
        """A snapshot became an entry."""
        self.size_bytes += size_bytes
        self._controls[entry_id] = True
        self._handover_sent = self.ends is RollReason.UNLOAD
        self._records_since = 0
        self._bytes_since = 0
        self._snapshot_at_s = now_s

    def batch_sent(self, append: Append) -> None:
        """A batch became an entry."""
        size = len(append.payload)
        self.size_bytes += size
        self._records_since += append.header.record_count
        self._bytes_since += size

    def control_durable(self, entry_id: EntryId) -> bool:
        """Account for an acknowledged entry; True when it is a control entry, not a batch."""
        self.last_durable_entry = entry_id
        is_snapshot = self._controls.pop(entry_id, None)
        if is_snapshot:
            self._snapshot_entry = entry_id
        return is_snapshot is not None

    def note(self, append: Append, entry_id: EntryId) -> None:
        """A batch is durable in this ledger."""
        size = len(append.payload)
        self.index.note(append.header, entry_id, size)
        self.figures.note(append.header, size)

    def has_batches(self) -> bool:
        """Whether any batch is durable here."""
        return self.figures.value.first_append_ms >= 0

    def footer(self, end_offset: int) -> Footer:
        """The footer as of now; nothing may be pending."""
        return self.index.to_footer(
            base_offset=self.base_offset,
            end_offset=end_offset,
            snapshot_entry=self._snapshot_entry,
            figures=self.figures.value,
        )

    def figures_with(self, pending: Iterable[Append]) -> SegmentFigures:
        """The figures once `pending` is durable too."""
        figures = Figures(self.figures.value)
        for append in pending:
            figures.note(append.header, len(append.payload))
        return figures.value

    def sealed(self, closed: LedgerMetadata, end_offset: int) -> Segment:
        """The list element once the ledger is CLOSED (ML-6)."""
        last = closed.last_entry if closed.last_entry is not None else NO_ENTRY
        invariant(
            last >= self.last_durable_entry,
            f"ledger {closed.ledger_id} closed at {last}, below acknowledged entry "
            f"{self.last_durable_entry} (INV-2)",
        )
        listed = Segment(self.ledger_id, self.base_offset)
        figures = self.figures
        return sealed_segment(
            listed, closed, end_offset, figures.value, dense=figures.dense_to == end_offset
        )

    def source(self) -> OpenSource:
        """What a reader needs to read its durable part."""
        return OpenSource(self.ledger_id, self.base_offset, self.last_durable_entry, self.index)

    def described(self) -> Segment:
        """The list element as it would be now, without an end offset."""
        figures = self.figures.value
        return Segment(
            self.ledger_id,
            self.base_offset,
            size_bytes=figures.payload_bytes,
            first_append_ms=known_time(figures.first_append_ms),
            last_append_ms=known_time(figures.last_append_ms),
            max_timestamp_ms=known_time(figures.max_timestamp_ms),
            dense=self.figures.dense_to is not None,
        )
