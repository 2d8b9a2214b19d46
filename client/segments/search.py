"""The entry at which a reader of an offset starts, found by binary search over batch headers.

The search is pure: it says what to read next and is told what was found. `find_entry` drives it;
who reads, from bookies or through a cache, is the caller's affair. An entry that cannot be read is
never "no batch": whatever reading raises ends the search, for a wrong "no" would hide records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from octavo.proto.batch import BatchHeader

FirstBatch = Callable[[int, int], Awaitable[tuple[int, BatchHeader] | None]]
"""The first batch among entries first..last and its entry; None: they surely hold none."""


class Probe(NamedTuple):
    """Read the first batch at or after `entry`, not beyond `last`."""

    entry: int
    last: int


class OffsetSearch:
    """Binary search for the batch holding `offset` among entries 0..last_entry of a ledger.

    Entries that are no batch take no offset, so a probe looks forward to the next batch. Drive it:
    while `probe` is not None, read and answer with `found` or `none_found`; then `result` is the
    entry to start at (the batch holding the offset, or the next one when it lies in a gap), or
    None when no batch ends after `offset`.
    """

    def __init__(self, offset: int, last_entry: int) -> None:
        self._offset = offset
        self._low = 0
        self._high = last_entry  # the answer is in low..high, or `result`
        self.result: int | None = None
        self.probes = 0

    @property
    def probe(self) -> Probe | None:
        """What to read next; None when done."""
        if self._low > self._high:
            return None
        return Probe((self._low + self._high) // 2, self._high)

    def found(self, entry_id: int, header: BatchHeader) -> None:
        """The first batch at or after the probe lies in `entry_id`."""
        self.probes += 1
        asked = (self._low + self._high) // 2
        if header.next_offset <= self._offset:
            self._low = entry_id + 1
            return
        self.result = entry_id
        self._high = asked - 1
        if header.base_offset <= self._offset:
            self._low = self._high + 1  # exactly this batch

    def none_found(self) -> None:
        """No batch lies between the probe and its end."""
        self.probes += 1
        self._high = (self._low + self._high) // 2 - 1


async def find_entry(offset: int, last_entry: int, first_batch: FirstBatch) -> int | None:
    """The entry of the batch that holds `offset`, or of the next batch when it lies in a gap.

    None: no batch of entries 0..last_entry ends after `offset`. Raises what `first_batch` raises.
    """
    search = OffsetSearch(offset, last_entry)
    while (probe := search.probe) is not None:
        found = await first_batch(probe.entry, probe.last)
        if found is None:
            search.none_found()
        else:
            search.found(*found)
    return search.result
