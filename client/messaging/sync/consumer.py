"""The blocking consumer.

Written by `tools/gen_sync.py` from `api/consumer.py`: change that, then run `make sync`.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.client.messaging.reading.limits import When
from octavo.client.messaging.records import TopicPartition
from octavo.client.messaging.sync.by_hand import ConsumerByHand


class Consumer(ConsumerByHand):
    """Reads assigned partitions; made by `Client.consumer()`.

    For one thread at a time.

    Without `assign()`, all partitions of the topics given at creation are read.
    """

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these partitions; kept ones keep their position."""
        self._thread.run(self._async.assign(list(partitions)))

    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._thread.run(self._async.assignment())

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`; buffered records of the partition are dropped (F8).

        An offset beyond the end is no position: the next poll raises OffsetOutOfRange.
        """
        self._thread.run(self._async.seek(partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first retained record of the given (default: all) partitions."""
        self._thread.run(self._async.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue behind the last record; what is sent from now on will be read."""
        self._thread.run(self._async.seek_to_end(*partitions))

    def seek_to_time(self, when: When, *partitions: TopicPartition) -> None:
        """Continue at the first record with a timestamp at or after `when`, else at the end."""
        self._thread.run(self._async.seek_to_time(when, *partitions))

    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record of `partition` to be handed out."""
        return self._thread.run(self._async.position(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of the given (default: all) partitions until `resume`.

        An iteration under way yields nothing of them either, from its next record on.
        """
        self._thread.run(self._async.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        self._thread.run(self._async.resume(*partitions))

    def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """First retained offset of each partition."""
        return self._thread.run(self._async.beginning_offsets(*partitions))

    def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Offset behind the last readable record of each partition."""
        return self._thread.run(self._async.end_offsets(*partitions))

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Records between position and end, never negative (M1)."""
        return self._thread.run(self._async.lag(*partitions))
