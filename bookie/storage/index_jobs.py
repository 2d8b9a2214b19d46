"""Changes of the index that no record of the stream makes: deletions, moves, notes (B-19, 6.14).

The index thread does them between groups, a bounded piece at a time, so that no add waits for a
large one. Each piece is one batch and leaves the index consistent: a job that a crash cuts short is
begun again, or given up, as its owner decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from octavo.bookie.journal.segment import Position
from octavo.bookie.storage.index import MAX_ENTRY_ID, Batch, Index, Location, Suspect
from octavo.bookie.storage.keyed_index import (
    COUNT,
    ENTRY_VALUE,
    SEGMENT_KEY,
    SUSPECT_VALUE,
    doom_key,
    entry_key,
    ledger_key,
    note_key,
    suspect_key,
)

KEYS_PER_PIECE = 1024
"""Entries that one piece of a job looks at."""


class IndexJob(Protocol):
    """Work for the index thread."""

    def step(self, index: Index) -> bool:
        """Do a piece; True when nothing is left."""
        ...


def finish(job: IndexJob, index: Index) -> None:
    """All of a job at once, where nobody waits (a boot)."""
    while not job.step(index):
        pass


class Move(NamedTuple):
    """An entry that lies in two places, and which of them the index should name."""

    ledger_id: int
    entry_id: int
    source: Location
    target: Location


class _LiveBytes:
    """Changes of segments' live bytes, to be written with the keys that cause them."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._changes: dict[int, int] = {}

    def change(self, segment: int, nbytes: int) -> None:
        """So many bytes more."""
        self._changes[segment] = self._changes.get(segment, 0) + nbytes

    def put_into(self, batch: Batch) -> None:
        """The new counts. They may only be too large, so a count is never below nothing."""
        for segment, change in self._changes.items():
            live = max(0, self._index.live_bytes(segment) + change)
            batch.put(SEGMENT_KEY.pack(b"s", segment), COUNT.pack(live))


class Erase:
    """Removes a ledger: its entries first, its state and the note of its deletion last."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.nbytes = 0
        """Bytes of the entries removed so far."""
        self._next = 0

    def step(self, index: Index) -> bool:
        """Remove some of its entries."""
        ledger_id = self.ledger_id
        rows = index.entries_of(ledger_id, self._next, KEYS_PER_PIECE)
        batch, live = index.new_batch(), _LiveBytes(index)
        for entry_id, location in rows:
            batch.delete(entry_key(ledger_id, entry_id))
            live.change(location.segment, -location.length)
            self.nbytes += location.length
        live.put_into(batch)
        done = len(rows) < KEYS_PER_PIECE or rows[-1][0] == MAX_ENTRY_ID
        if done:
            batch.delete(ledger_key(ledger_id))
            batch.delete(doom_key(ledger_id))
        else:
            self._next = rows[-1][0] + 1
        index.write(batch)
        return done


class Repoint:
    """Names the new places of entries, of those that still lie at the old one (B-19)."""

    def __init__(self, moves: Sequence[Move]) -> None:
        self._moves = moves
        self._next = 0
        self.moved = 0
        """Entries that lie at their new place now."""

    def step(self, index: Index) -> bool:
        """Repoint some of them."""
        piece = self._moves[self._next : self._next + KEYS_PER_PIECE]
        self._next += len(piece)
        batch, live = index.new_batch(), _LiveBytes(index)
        for ledger_id, entry_id, source, target in piece:
            if index.locate(ledger_id, entry_id) != source:
                continue  # deleted meanwhile, or added again elsewhere
            batch.put(entry_key(ledger_id, entry_id), ENTRY_VALUE.pack(*target))
            live.change(source.segment, -source.length)
            live.change(target.segment, target.length)
            self.moved += 1
        live.put_into(batch)
        index.write(batch)
        return self._next >= len(self._moves)


class Notes:
    """Sets notes, together."""

    def __init__(self, notes: Mapping[bytes, bytes]) -> None:
        self._notes = notes

    def step(self, index: Index) -> bool:
        """Set them."""
        batch = index.new_batch()
        for name, value in self._notes.items():
            batch.put(note_key(name), value)
        index.write(batch)
        return True


class Suspicions:
    """Adds entries to those that a scrub suspects, and takes others off, with notes (6.15)."""

    def __init__(
        self,
        *,
        added: Sequence[Suspect] = (),
        removed: Sequence[Suspect] = (),
        notes: Mapping[bytes, bytes],
    ) -> None:
        self._changes = [(one, True) for one in added] + [(one, False) for one in removed]
        self._notes = notes
        self._next = 0

    def step(self, index: Index) -> bool:
        """Write some of them; the notes go with the first."""
        batch = index.new_batch()
        if not self._next:
            for name, value in self._notes.items():
                batch.put(note_key(name), value)
        piece = self._changes[self._next : self._next + KEYS_PER_PIECE]
        self._next += len(piece)
        for suspect, is_added in piece:
            key = suspect_key(suspect.ledger_id, suspect.entry_id)
            if is_added:
                batch.put(key, SUSPECT_VALUE.pack(*suspect.location, suspect.has_row))
            else:
                batch.delete(key)
        index.write(batch)
        return self._next >= len(self._changes)


class ForgetSegment:
    """Ends the count of a segment that is removed."""

    def __init__(self, segment: int) -> None:
        self._segment = segment

    def step(self, index: Index) -> bool:
        """Remove it."""
        batch = index.new_batch()
        batch.delete(SEGMENT_KEY.pack(b"s", self._segment))
        index.write(batch)
        return True


class Flush:
    """Makes everything applied so far survive a crash."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self.mark = Position(0, 0)
        """The mark that no crash takes back any more (B-10)."""

    def step(self, index: Index) -> bool:
        """Flush."""
        mark = index.mark(self._stream)
        index.flush()
        self.mark = mark or self.mark
        return True
