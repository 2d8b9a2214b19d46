"""What went through a partition since the last look: counted by batch, never by record."""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """Amounts of one partition, bundle or broker, in some stretch of time."""

    bytes_in: int = 0
    """Of batches that became durable."""
    records_in: int = 0
    batches_in: int = 0
    bytes_out: int = 0
    """Of batches given to readers."""
    reads: int = 0
    """Replies that gave any."""

    def plus(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.bytes_in + other.bytes_in,
            self.records_in + other.records_in,
            self.batches_in + other.batches_in,
            self.bytes_out + other.bytes_out,
            self.reads + other.reads,
        )


class PartitionTraffic:
    """The counters of one partition."""

    __slots__ = ("_batches_in", "_bytes_in", "_bytes_out", "_reads", "_records_in")

    def __init__(self) -> None:
        self._zero()

    def _zero(self) -> None:
        self._bytes_in = self._records_in = self._batches_in = self._bytes_out = self._reads = 0

    def wrote(self, records: int, size_bytes: int) -> None:
        """A batch is durable."""
        self._records_in += records
        self._bytes_in += size_bytes
        self._batches_in += 1

    def read(self, size_bytes: int) -> None:
        """A reply gives so many bytes of batches."""
        self._bytes_out += size_bytes
        self._reads += 1

    def take(self) -> Traffic:
        """What was counted since the last call."""
        taken = Traffic(
            self._bytes_in, self._records_in, self._batches_in, self._bytes_out, self._reads
        )
        self._zero()
        return taken
