"""The two ends of a log that can be asked for by name.

They are a kind of their own, for no time and no offset means them. The words are those of
`auto_offset_reset`, readers and Spark's options; the numbers stand for them where JSON has offsets
only, as in Spark's Kafka source.
"""

from __future__ import annotations

from enum import Enum


class Edge(Enum):
    """An end of the log."""

    EARLIEST = "earliest"
    """The first retained offset."""
    LATEST = "latest"
    """The offset behind the last readable record."""

    @property
    def kafka_offset(self) -> int:
        """The number that stands for it among offsets."""
        return -2 if self is Edge.EARLIEST else -1


EARLIEST, LATEST = Edge.EARLIEST, Edge.LATEST
EDGE_WORDS = tuple(edge.value for edge in Edge)
"""earliest and latest, in the order of the log."""
