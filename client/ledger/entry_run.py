"""A run of entries of one ledger on its way to the bookies: built once, sent to every slot.

Owns the buffers of consecutive entries (header and payload as separate parts, never joined) and
knows how to cut a part of itself. The same objects go to all Qw connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.proto.entry import HEADER_BYTES


class EntryRun:
    """Entries `ids`, their lengths, and their buffers: two per entry."""

    __slots__ = ("ids", "lengths", "parts", "total_bytes")

    def __init__(
        self, ids: Sequence[int], lengths: list[int], parts: list[bytes], total_bytes: int
    ) -> None:
        self.ids = ids
        self.lengths = lengths
        self.parts = parts
        self.total_bytes = total_bytes

    @property
    def first(self) -> int:
        """The lowest entry."""
        return self.ids[0]

    @property
    def last(self) -> int:
        """The highest entry."""
        return self.ids[-1]

    def cut(self, start: int, stop: int) -> EntryRun:
        """The entries at positions `start`..`stop`-1; buffers are shared."""
        if start == 0 and stop == len(self.ids):
            return self
        lengths = self.lengths[start:stop]
        return EntryRun(
            self.ids[start:stop], lengths, self.parts[2 * start : 2 * stop], sum(lengths)
        )

    def above(self, entry: int) -> EntryRun | None:
        """The entries above `entry`, or None."""
        if self.first > entry:
            return self
        start = sum(1 for known in self.ids if known <= entry)
        return self.cut(start, len(self.ids)) if start < len(self.ids) else None

    def select(self, keep: Sequence[int]) -> EntryRun | None:
        """The entries at the positions `keep`, or None when there are none (striped ledgers)."""
        if not keep:
            return None
        if len(keep) == len(self.ids):
            return self
        lengths = [self.lengths[i] for i in keep]
        parts = [part for i in keep for part in self.parts[2 * i : 2 * i + 2]]
        return EntryRun([self.ids[i] for i in keep], lengths, parts, sum(lengths))


class RunBuilder:
    """The run being filled by one writer during one turn of the event loop."""

    __slots__ = ("first", "lengths", "parts", "total_bytes")

    def __init__(self, first: int) -> None:
        self.first = first
        self.lengths: list[int] = []
        self.parts: list[bytes] = []
        self.total_bytes = 0

    def append(self, header: bytes, payload: bytes) -> int:
        """Add the next entry; returns the bytes so far."""
        length = HEADER_BYTES + len(payload)
        self.lengths.append(length)
        self.parts.append(header)
        self.parts.append(payload)
        self.total_bytes += length
        return self.total_bytes

    def seal(self) -> EntryRun:
        """The finished run."""
        ids = range(self.first, self.first + len(self.lengths))
        return EntryRun(ids, self.lengths, self.parts, self.total_bytes)
