"""The storage layer as one broker sees it: ledgers, live bookies, and who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.metadata.bookies import BookieRegistration
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.ledgers import ReadLedger
from octavo.runtime.ids import LedgerId, Member
from octavo.serving.ledger_backend import LedgerBackend


class Holder(NamedTuple):
    """What one member of a ledger's ensembles says of it."""

    member: Member
    reachable: bool
    last_add_confirmed: int
    fenced: bool
    error: str


class Storage(Protocol):
    """Bookies and ledgers."""

    @property
    def backend(self) -> LedgerBackend:
        """Creates, recovers, reads and deletes ledgers."""
        ...

    async def start(self) -> None:
        """Connect."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    def bookies(self) -> list[BookieRegistration]:
        """Registered bookies."""
        ...

    async def read_record(self, ledger_id: LedgerId) -> LedgerMetadata:
        """A ledger's record; raises NoSuchLedger."""
        ...

    async def read_records(self, ledger_ids: Sequence[LedgerId]) -> list[ReadLedger]:
        """The records of several, many with one request; an error is a value here."""
        ...

    async def holders(self, record: LedgerMetadata) -> list[Holder]:
        """Ask every member of the ledger's ensembles."""
        ...
