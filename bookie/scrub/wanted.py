"""Which entries a bookie should have, as the metadata tells: the judgement of an entry that lies in
a segment and that the index does not show (6.15)."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.bookie.storage.index import Index, Suspect
from octavo.metadata.ledgers import LedgerCatalog, LedgerMetadata
from octavo.runtime.errors import MetadataCorrupt, NoSuchLedger, UnsupportedVersion
from octavo.runtime.ids import LedgerId


class WantedEntries:
    """Asks the catalog what is wanted of one bookie."""

    def __init__(self, catalog: LedgerCatalog, index: Index, bookie_id: str) -> None:
        self._catalog = catalog
        self._index = index
        self._bookie_id = bookie_id

    async def of(self, lacking: Iterable[Suspect]) -> tuple[Suspect, ...]:
        """Those that a record wants here, or may want: an entry that was given up with its ledger,
        or that its ledger's recovery left out, is dead and no loss. Raises MetadataUnavailable."""
        by_ledger: dict[int, list[Suspect]] = {}
        for suspect in lacking:
            by_ledger.setdefault(suspect.ledger_id, []).append(suspect)
        wanted: list[Suspect] = []
        for ledger_id, suspects in by_ledger.items():
            try:
                record = (await self._catalog.read(LedgerId(ledger_id), barrier=True)).metadata
            except NoSuchLedger:
                continue
            except (MetadataCorrupt, UnsupportedVersion):  # M-7: it does not stop the others
                wanted += suspects
                continue
            state = self._index.ledger(ledger_id)
            lac = -1 if state is None else state.lac
            wanted += [s for s in suspects if is_wanted(record, s.entry_id, lac, self._bookie_id)]
        return tuple(wanted)


def is_wanted(record: LedgerMetadata, entry_id: int, lac: int, bookie_id: str) -> bool:
    """Whether an entry is of the ledger for sure, and lies on this bookie, in any incarnation."""
    last = record.last_entry if record.closed_for_good else lac
    if last is None or entry_id > last:
        return False
    holders = [members for start, members in record.fragments if start <= entry_id]
    return any(member.bookie_id == bookie_id for member in holders[-1]) if holders else False
