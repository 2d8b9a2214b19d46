"""What a boot does with deletions that were not finished, and with sorted segments that a lost
index does not name any more (6.9, 6.14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.bookie.journal.segment import Record, RecordType, batch_records, scan_segment
from octavo.bookie.storage.applier import IndexApplier
from octavo.bookie.storage.index import Index
from octavo.bookie.storage.index_jobs import Erase, finish
from octavo.proto.entry import HEADER
from octavo.runtime.errors import CorruptEntry, UnsupportedVersion
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.bookie.boot")


def finish_deletions(index: Index) -> None:
    """End the deletions that a crash cut short: nothing is accepted for their ledgers before."""
    for ledger_id in index.doomed():
        finish(Erase(ledger_id), index)


def adopt_sorted(
    index: Index, applier: IndexApplier, numbers: Iterable[int], load: Callable[[int], bytes]
) -> int:
    """Index the entries of sorted segments that the replayed journal does not bring; returns how
    many.

    For an index that is made anew under a new incarnation (B-25). An entry of a ledger that was
    deleted meanwhile comes back with it, and goes again by garbage collection.
    """
    adopted = 0
    for number in numbers:
        try:
            data = load(number)
            scan = scan_segment(data, 0)
        except (OSError, CorruptEntry, UnsupportedVersion) as error:
            _log.error("sorted-segment-unreadable", segment=number, cause=str(error))
            continue
        for batch in [*scan.batches, *scan.beyond]:
            adopted += _adopt(index, applier, number, batch_records(data, batch))
        applier.commit(applier.mark)
    return adopted


def _adopt(index: Index, applier: IndexApplier, number: int, records: Iterable[Record]) -> int:
    adopted = 0
    for record in records:
        if record.type != RecordType.ENTRY:
            continue
        ledger_id, entry_id = HEADER.unpack_from(record.data)[:2]
        if index.locate(ledger_id, entry_id) is None:
            applier.add_record(number, record)
            adopted += 1
    return adopted
