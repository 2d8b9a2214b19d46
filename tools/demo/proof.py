"""What the demo proves, as a pure function of what was sent, acknowledged and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Position = tuple[int, int]
"""(partition, offset)"""


class Verdict(NamedTuple):
    """Counts of everything that must be zero, and of what must be equal."""

    produced: int
    consumed: int
    lost: int
    duplicated: int
    reordered: int
    misplaced: int

    @property
    def ok(self) -> bool:
        """True when every promise held."""
        return (
            self.produced == self.consumed
            and not self.lost
            and not self.duplicated
            and not self.reordered
            and not self.misplaced
        )


def judge(
    keys: Sequence[str | None],
    values: Sequence[bytes],
    acked: Mapping[int, Position | None],
    consumed: Sequence[tuple[int, int, bytes | None, bytes | None]],
) -> Verdict:
    """Compare source, acknowledgements (row -> position) and what was read, in reading order.

    lost: acknowledged, but nothing was read at that position. misplaced: something else was read
    there, or under another key. duplicated: a row read more than once or a position read twice.
    reordered: within one key, a later row before an earlier one.
    """
    row_of = {value: row for row, value in enumerate(values)}
    at: dict[Position, int] = {}
    seen: dict[int, int] = {}
    last_row: dict[bytes, int] = {}
    duplicated = reordered = misplaced = 0
    for partition, offset, key, value in consumed:
        row = row_of.get(value or b"", -1)
        wanted = keys[row] if row >= 0 else None
        if row < 0 or key != (wanted.encode() if wanted is not None else None):
            misplaced += 1
            continue
        if row in seen or (partition, offset) in at:
            duplicated += 1
        seen[row] = seen.get(row, 0) + 1
        at[partition, offset] = row
        if key is not None:
            if last_row.get(key, -1) > row:
                reordered += 1
            last_row[key] = row
    lost = 0
    for row, position in acked.items():
        if position is None:
            # Acknowledged through a later acknowledgement (I5): it must be there, wherever.
            lost += row not in seen
            continue
        found = at.get(position)
        if found is None:
            lost += 1
        elif found != row:
            misplaced += 1
    return Verdict(len(acked), len(consumed), lost, duplicated, reordered, misplaced)
