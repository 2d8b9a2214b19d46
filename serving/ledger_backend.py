"""What a partition needs of the storage layer, as narrow protocols.

`octavo.client.ledger.LedgerClient` fulfils them; tests also drive partitions over an in-memory
model with the same promises (fencing, LAC, recovery, unknown outcomes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from octavo.client.segments.reader import SegmentReader
from octavo.metadata.ledger_record import LedgerMetadata, Quorum
from octavo.runtime.errors import OctavoError
from octavo.runtime.ids import EntryId, LedgerId

OnDone = Callable[[EntryId, OctavoError | None], None]
OnFirstCopy = Callable[[EntryId], None]


class Writer(Protocol):
    """The only writer of one open ledger."""

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger."""
        ...

    @property
    def metadata(self) -> LedgerMetadata:
        """What was written to the metadata store last."""
        ...

    @property
    def length(self) -> int:
        """Payload bytes added so far."""
        ...

    @property
    def in_flight_bytes(self) -> int:
        """Bytes not yet answered by all replicas (W-10)."""
        ...

    @property
    def wants_roll(self) -> bool:
        """Whether a new ledger would be better."""
        ...

    @property
    def stopped(self) -> OctavoError | None:
        """Why nothing more can be added; None while it can."""
        ...

    def add(
        self, payload: bytes, on_done: OnDone, on_first_copy: OnFirstCopy | None = None
    ) -> EntryId:
        """Send an entry; callbacks come in entry order, UnknownOutcome after a stop (W-6)."""
        ...

    async def append(self, payload: bytes) -> EntryId:
        """Add and wait for the acknowledgement."""
        ...

    async def wait_capacity(self) -> None:
        """Return when the byte budgets allow more (W-10)."""
        ...

    async def close(self) -> LedgerMetadata:
        """Close at the LAC (W-9)."""
        ...

    def abandon(self, cause: str) -> None:
        """Stop at once without touching metadata; whoever comes next recovers the ledger."""
        ...

    def on_stopped(self, callback: Callable[[OctavoError], None]) -> object:
        """Call back once when the writer stops by itself."""
        ...


class LedgerBackend(Protocol):
    """Drafts, recovers, reads and deletes ledgers; a partition's list creates them (ML-9)."""

    async def draft_ledger(
        self,
        quorum: Quorum,
        custom: Mapping[str, str],
        *,
        allow_degraded: bool = True,
        above: int = -1,
    ) -> LedgerMetadata:
        """The record of a ledger with an id greater than `above` (ML-3), for a list to create."""
        ...

    def writer_of(self, created: LedgerMetadata, wanted: Quorum) -> Writer:
        """The only writer of a drafted ledger, once a list created it."""
        ...

    async def recover_ledger(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Fence and close; returns the CLOSED record."""
        ...

    def reader_of(self, closed: LedgerMetadata) -> SegmentReader:
        """A reader of a ledger whose CLOSED record was just read or written."""
        ...

    async def open_reader(self, ledger_id: LedgerId) -> SegmentReader:
        """A reader that changes nothing."""
        ...

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Remove the ledger's record; bookies free its entries."""
        ...
