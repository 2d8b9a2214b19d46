"""What reading a segment needs of whatever holds its entries, and one for segments of ledgers.

`octavo.client.ledger.LedgerReader` fulfils the protocol; tests read from memory. A segment whose
entries lie elsewhere needs no more than another class with these four methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from octavo.client.ledger import LedgerClientConfig, LedgerMetadata, LedgerReader
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.ids import EntryId


class SegmentReader(Protocol):
    """Reads confirmed entries of one segment; never fences, never changes anything."""

    async def read(self, first: EntryId, *, max_count: int, max_bytes: int) -> Sequence[Buffer]:
        """Whole verified entries (INV-3), consecutive from `first` on, at least one.

        Raises NoSuchEntry only when it surely does not exist, ReadUnknown when nobody can tell.
        """
        ...

    async def last_add_confirmed(self) -> EntryId:
        """The last entry that may be read, asked anew; at once when it cannot move any more."""
        ...

    async def wait_beyond(self, entry: EntryId, timeout_s: float) -> EntryId:
        """The same once it is beyond `entry`, or as it is at the timeout (RD-7)."""
        ...

    async def close(self) -> None:
        """Release connections and watches."""
        ...


def open_described(
    segment: Segment, addresses: Mapping[str, str], client_name: str
) -> SegmentReader:
    """A reader of a segment as a broker described it, without a metadata store (RD-9).

    Needs a running loop. `addresses`: bookie id to host:port of its framed protocol. Raises
    MetadataCorrupt or UnsupportedVersion when the ledger's record cannot be used.
    """
    return LedgerReader.from_record(
        LedgerMetadata.from_bytes(segment.ledger_record),
        addresses,
        LedgerClientConfig(client_name=client_name),
    )
