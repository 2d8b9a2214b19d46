"""What reading a segment needs of whatever holds its entries, and one for segments of ledgers.

`octavo.client.ledger.LedgerReader` fulfils the protocol; tests read from memory. A segment whose
entries lie elsewhere needs no more than another class with these four methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from octavo.client.ledger import LedgerClientConfig, LedgerMetadata, LedgerReader
from octavo.client.ledger.pool import BookiePool
from octavo.client.ledger.record_view import RecordView
from octavo.proto.segments import Segment
from octavo.runtime.checksum import Buffer
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
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


class DescribedLedgers:
    """Readers of segments as a broker described them, without a metadata store (RD-9).

    Owns one set of connections to the bookies, which all its readers share: a connection and its
    greeting for each bookie, however many ledgers are read. Needs a running loop. `addresses`:
    bookie id to host:port of its framed protocol. They are those of one cluster; ids of bookies
    say nothing in another.
    """

    def __init__(self, addresses: Mapping[str, str], client_name: str) -> None:
        self._addresses = dict(addresses)
        self._clock = SystemClock()
        self._pool = BookiePool(
            self,
            config=LedgerClientConfig(client_name=client_name),
            clock=self._clock,
            entropy=SystemEntropy(),
        )
        self._pool.start()

    def learn(self, addresses: Mapping[str, str]) -> None:
        """More bookies of the same cluster, or new addresses of some."""
        self._addresses.update(addresses)

    def address_of(self, bookie_id: str) -> str | None:
        """host:port of a bookie; None when it is not known."""
        return self._addresses.get(bookie_id)

    def open(self, segment: Segment) -> SegmentReader:
        """A reader of one segment; closing it leaves the connections open.

        Raises MetadataCorrupt or UnsupportedVersion when the ledger's record cannot be used.
        """
        record = LedgerMetadata.from_bytes(segment.ledger_record)
        return LedgerReader(RecordView(record), self._pool, clock=self._clock)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
