"""What the collection of surplus copies asks its shell to do; each action says what answers it."""

from __future__ import annotations

from typing import NamedTuple


class Held(NamedTuple):
    """What the index holds of a ledger; it changes with every entry that is added."""

    entries: int
    nbytes: int
    last_entry: int


class RecordFacts(NamedTuple):
    """What a ledger's record says, read behind a barrier."""

    closed: bool
    names_us: bool
    """Some incarnation of this bookie is in some ensemble."""


class ListLocal(NamedTuple):
    """List the ledgers of the index → `locals_listed`."""


class ReadFacts(NamedTuple):
    """Judge the metadata store, as garbage collection does → `facts_read`, or `failed`."""


class ReadRecords(NamedTuple):
    """Read each record → `record_read` for each, then `reads_ended`; or `failed`."""

    ledger_ids: list[int]


class TakeLock(NamedTuple):
    """Take the ledger's repair lock → `locked`, or `failed`."""

    ledger_id: int


class Condemn(NamedTuple):
    """Tell nobody any more that entries of it are here, unless somebody writes it → `condemned`."""

    ledger_id: int


class ReadRecord(NamedTuple):
    """Read the record behind a barrier → `record_read`, or `failed`."""

    ledger_id: int


class TouchRecord(NamedTuple):
    """Write the record that was read last again, by compare-and-set, while the lock is held →
    `touched`, or `failed`."""

    ledger_id: int


class DeleteCopies(NamedTuple):
    """Delete the entries, unless somebody writes them now → `deleted`."""

    ledger_id: int


class Spare(NamedTuple):
    """Undo `Condemn`; nothing waits for it."""

    ledger_id: int


class Unlock(NamedTuple):
    """Give the lock back; nothing waits for it."""

    ledger_id: int


class PassEnded(NamedTuple):
    """Tell what a pass came to."""

    deleted: int
    waiting: int
    """Ledgers that are surplus so far, to be looked at again."""


Action = (
    ListLocal
    | ReadFacts
    | ReadRecords
    | TakeLock
    | Condemn
    | ReadRecord
    | TouchRecord
    | DeleteCopies
    | Spare
    | Unlock
    | PassEnded
)
