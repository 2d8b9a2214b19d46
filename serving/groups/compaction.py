"""Writing the state of a partition's groups anew at the end of its log, so that the rest can go.

Pure. A piece at a time, between other events: from the moment it begins, each record that counts is
either written by a piece or by an event, and what is gone has its tombstone behind the beginning.
So the log from there on says what the whole one says, as if it had been compacted (O1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from octavo.proto.group_records import Kind, Record, Slot
from octavo.serving.groups.append_queue import Unstored
from octavo.serving.groups.group_table import GroupTable

PIECE_RECORDS = 500
"""Records of a piece, about: a few milliseconds of work."""

T = TypeVar("T")


class _Piece(NamedTuple):
    group_id: str
    members: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()


class Compaction:
    """One pass over the groups that exist when it begins."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._pieces = deque(_pieces(table))
        self._first = table.queue.next_started

    def write(self) -> bool:
        """Write the next piece; whether it was the last."""
        table = self._table
        written = 0
        while self._pieces and written < PIECE_RECORDS:
            written += self._write(self._pieces.popleft())
        if not self._pieces and table.queue.newest < self._first:
            # Nothing is left of any group: something must be appended for the log to begin there.
            table.queue.add([Unstored("", Record(Kind.GROUP, "", None))])
        return not self._pieces

    def _write(self, piece: _Piece) -> int:
        group = self._table.groups.get(piece.group_id)
        if group is None:  # it went since, and left its tombstones
            return 0
        records: Iterable[Record]
        if piece.slots:
            records = group.offsets.snapshot_of(piece.slots)
        elif piece.members:
            records = group.core.state.snapshot_of(piece.members)
        else:
            records = group.core.state.snapshot_of_group()
        found = list(records)
        self._table.append(piece.group_id, group, found)
        return len(found)


def _pieces(table: GroupTable) -> Iterator[_Piece]:
    for group_id, group in table.groups.items():
        yield _Piece(group_id)
        for members in _chunks(list(group.core.state.members)):
            yield _Piece(group_id, members=members)
        for slots in _chunks(list(group.offsets)):
            yield _Piece(group_id, slots=slots)


def _chunks(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    left = iter(items)
    while some := tuple(islice(left, PIECE_RECORDS // 3)):
        yield some
