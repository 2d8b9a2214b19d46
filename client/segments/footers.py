"""The footer of a closed segment: an index that spares readers the search.

Only a help: a ledger that was closed by recovery has none, and one that is damaged is as good as
none. That it could not be read says nothing, so read errors are raised.
"""

from __future__ import annotations

import logging

from octavo.client.segments.pieces import read_entry
from octavo.client.segments.reader import SegmentReader
from octavo.proto.entry import payload_of
from octavo.proto.segment_entries import Footer, decode_footer, is_footer
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion
from octavo.runtime.ids import LedgerId

_log = logging.getLogger("octavo.segments")


async def read_footer(reader: SegmentReader, ledger_id: LedgerId, last_entry: int) -> Footer | None:
    """The footer of a CLOSED ledger, if its last entry is a readable one."""
    if last_entry < 0:
        return None
    payload = payload_of(await read_entry(reader, last_entry))
    if not is_footer(payload):
        return None
    try:
        return decode_footer(payload)
    except (CorruptEntry, UnsupportedVersion) as error:
        _log.warning("footer of ledger %d cannot be used: %s", ledger_id, error.cause)
        return None
