"""Which entries the index looks for in a segment, whatever the segment says of itself.

A look at every row of the index, for the rare times when a segment cannot be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from octavo.bookie.storage.index import MAX_ENTRY_ID, Index, Location

ROWS_PER_STEP = 1024
"""Rows looked at before other threads get their turn."""


def rows_into(
    index: Index, segment: int, rest: Callable[[], None]
) -> Iterator[tuple[int, int, Location]]:
    """(ledger, entry, where) of the rows that name a segment; `rest` is called between steps.

    Of a segment that is not written to any more no row is missed: none is added to it.
    """
    ledger_id = entry_id = 0
    while True:
        rows = index.rows_from(ledger_id, entry_id, ROWS_PER_STEP)
        yield from (row for row in rows if row[2].segment == segment)
        if len(rows) < ROWS_PER_STEP:
            return
        ledger_id, entry_id = rows[-1][0], rows[-1][1]
        if entry_id == MAX_ENTRY_ID:
            ledger_id, entry_id = ledger_id + 1, 0
        else:
            entry_id += 1
        rest()
