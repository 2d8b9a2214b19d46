"""What went through a partition: counted by batch, never by record."""

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
    records_out: int = 0
    """Of them, counted by offsets: what a compacted log lacks counts as well."""

    def plus(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.bytes_in + other.bytes_in,
            self.records_in + other.records_in,
            self.batches_in + other.batches_in,
            self.bytes_out + other.bytes_out,
            self.reads + other.reads,
            self.records_out + other.records_out,
        )

    def less(self, other: Traffic) -> Traffic:
        """What came behind `other`, of the same partition."""
        return Traffic(*(now - before for now, before in zip(self, other, strict=True)))


class PartitionTraffic:
    """The counters of one partition; they only rise."""

    __slots__ = (
        "_batches_in",
        "_bytes_in",
        "_bytes_out",
        "_reads",
        "_records_in",
        "_records_out",
        "_taken",
    )

    def __init__(self) -> None:
        self._records_in = self._bytes_in = self._batches_in = 0
        self._records_out = self._bytes_out = self._reads = 0
        self._taken = Traffic()

    def wrote(self, records: int, size_bytes: int) -> None:
        """A batch is durable."""
        self._records_in += records
        self._bytes_in += size_bytes
        self._batches_in += 1

    def read(self, offsets: int, size_bytes: int) -> None:
        """A reply gives so many bytes of batches, and goes on so many offsets further."""
        self._records_out += offsets
        self._bytes_out += size_bytes
        self._reads += 1

    @property
    def bytes_in(self) -> int:
        """Of batches that became durable."""
        return self._bytes_in

    @property
    def total(self) -> Traffic:
        """Everything so far."""
        return Traffic(
            self._bytes_in,
            self._records_in,
            self._batches_in,
            self._bytes_out,
            self._reads,
            self._records_out,
        )

    def take(self) -> Traffic:
        """What was counted since the last call."""
        before, self._taken = self._taken, self.total
        return self._taken.less(before)
