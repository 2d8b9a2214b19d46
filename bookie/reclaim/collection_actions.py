"""What garbage collection asks its shell to do; each action says which event answers it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Alarm(Enum):
    """Why nothing is deleted. The value is the word that gauges and logs show."""

    NONE = ""
    OTHER_CLUSTER = "other-cluster"
    """The metadata store does not hold this bookie's cluster or not this bookie."""
    OLDER_METADATA = "older-metadata"
    """The metadata store knows less than it did: an older copy was put back."""
    UNEXPLAINED = "unexplained"
    """More ledgers are missing than deletions explain (G-3)."""
    LISTING = "listing"
    """The listing leaves out ledgers that exist."""


class StoreFacts(NamedTuple):
    """What the metadata store says of itself, read behind a barrier."""

    session_id: int
    """Session over which this was read."""
    instance_id: str
    """Of the cluster; empty when there is none."""
    cookie_version: int
    """Version of this bookie's cookie; -1 when there is none."""
    cookie_is_ours: bool
    """The cookie names this incarnation."""
    cookie_floor: int
    """Version that the cookie had before this was read, as this process knows it."""
    went_back: str
    """Not empty: other evidence that the store holds an older state, in words."""
    last_id: int
    """The largest ledger id that can have been given out."""
    deletions: int
    """Deletions of ledgers that were begun in the life of the cluster."""
    restored: str = ""
    """Name of the last restoration of the metadata from a copy; empty: there was none."""
    restored_words: str = ""
    """When that was, and how old the copy, for people."""


class Memory(NamedTuple):
    """What garbage collection remembers over restarts."""

    explained: int
    """Deletions counted when a pass found no ledger missing, and those since then whose ledgers
    were deleted here; -1 when there was no such pass yet."""
    doubt: str
    """Not empty: the metadata went back, in words; nothing is deleted until an operator says so."""
    restored: str = ""
    """The restoration that was there when nothing was missing, or that an operator accepted."""


class ReadFacts(NamedTuple):
    """Read the store's facts → `facts_read`, or `failed`."""


class ListLocal(NamedTuple):
    """List the ledgers of the index → `locals_listed`."""


class WalkLedgers(NamedTuple):
    """List the ledgers of the metadata store, behind a barrier → `listed` as often as needed, then
    `walk_ended`; or `failed`, for any error whatever (L-2)."""


class ReadLedgers(NamedTuple):
    """Read each record behind a barrier → `ledger_read` for each, then `reads_ended`; or
    `failed`."""

    ledger_ids: list[int]


class DeleteLedgers(NamedTuple):
    """Delete these → `deleted`."""

    ledger_ids: list[int]


class Remember(NamedTuple):
    """Keep this over restarts; nothing waits for it."""

    memory: Memory


class RaiseAlarm(NamedTuple):
    """Tell people: nothing is deleted, and why; once for each pass that ends so."""

    alarm: Alarm
    cause: str


class PassEnded(NamedTuple):
    """Tell what a pass came to."""

    deleted: int
    waiting: int
    """Ledgers found missing once, to be looked at again."""


Action = (
    ReadFacts
    | ListLocal
    | WalkLedgers
    | ReadLedgers
    | DeleteLedgers
    | Remember
    | RaiseAlarm
    | PassEnded
)
