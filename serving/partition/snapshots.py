"""Snapshots of a partition between its batches: what a new owner goes on from (I8). Pure."""

from __future__ import annotations

from octavo.proto.segment_entries import Snapshot, encode_snapshot
from octavo.serving.partition.dedup import DedupWindow
from octavo.serving.partition.log import Append, PartitionLog
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.producers import ProducerStates


class SnapshotMaker:
    """Makes the payloads of one partition's snapshot entries."""

    def __init__(
        self,
        name: PartitionName,
        log: PartitionLog,
        producers: ProducerStates[Append],
        dedup: DedupWindow[Append],
    ) -> None:
        self._name = name
        self._log = log
        self._producers = producers
        self._dedup = dedup

    def payload(self, segment: OpenSegment, now_ms: int) -> bytes:
        """The state as of all entries sent so far (I8): if this entry survives, so do they."""
        pending = list(self._log.sent_batches())
        end_offset = pending[-1].header.next_offset if pending else self._log.high_watermark
        return encode_snapshot(
            Snapshot(
                self._name.topic_id,
                self._name.partition,
                end_offset,
                self._log.owner_epoch,
                now_ms,
                segment.figures_with(pending),
                dedup_ids=self._dedup.packed(_is_sent),
            ),
            self._producers.packed(_is_sent),
        )


def _is_sent(append: Append) -> bool:
    return append.entry_id is not None
