"""Which records of each partition `octavo consume` prints: from a first offset up to an end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from octavo.client.messaging import Consumer, Record, TopicPartition


class Window:
    """Follows a consumer until every partition reached its end.

    Args:
        floors: offsets that do not exist yet where reading was to begin; nothing below is printed.
        ends: where each partition ends (exclusive); None: nowhere.
    """

    def __init__(
        self,
        consumer: Consumer,
        floors: dict[TopicPartition, int],
        ends: dict[TopicPartition, int] | None,
    ) -> None:
        self._consumer = consumer
        self._floors = floors
        self._ends = ends
        self._left = set(ends or ())
        self.look()

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted."""
        return self._ends is not None and not self._left

    def look(self) -> None:
        """Compare the positions with the ends: a tail may have no records (F3)."""
        if self._ends is not None:
            for place in list(self._left):
                self._reached(place, self._consumer.position(place))

    def _reached(self, place: TopicPartition, offset: int) -> None:
        if self._ends is not None and place in self._left and offset >= self._ends[place]:
            self._left.discard(place)
            if self._left:
                self._consumer.pause(place)  # what it grows by is for others to read

    def records(self, polled: list[Record]) -> Iterator[Record]:
        """Those of a poll that are wanted; call `look` when a poll gave none."""
        for record in polled:
            place = record.topic_partition
            if self._ends is not None:
                end = self._ends.get(place, 0)
                if record.offset >= end - 1:
                    self._reached(place, record.offset + 1)
                if record.offset >= end:
                    continue
            if record.offset >= self._floors.get(place, 0):
                yield record

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of an Arrow poll that are wanted."""
        # Imported here: loads Arrow.
        import pyarrow.compute as pc

        from octavo.client.messaging import TopicPartition

        if not batch.num_rows:
            return batch
        topic = batch.column("topic")[0].as_py()
        for number in pc.unique(batch.column("partition")).to_pylist():
            place = TopicPartition(topic, number)
            offsets = batch.column("offset")
            outside = pc.less(offsets, self._floors.get(place, 0))
            if self._ends is not None:
                outside = pc.or_(outside, pc.greater_equal(offsets, self._ends.get(place, 0)))
            here = pc.equal(batch.column("partition"), number)
            last = pc.max(offsets.filter(here)).as_py()
            self._reached(place, last + 1)
            batch = batch.filter(pc.invert(pc.and_(here, outside)))
        return batch
