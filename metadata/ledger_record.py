"""The metadata record of one ledger: fields, rules, legal transitions (ledger §2.1, §2.2).

Pure values: parsing validates every constraint of §2.1 and raises MetadataCorrupt or
UnsupportedVersion; transitions return a new record and refuse what the state machine forbids.
Who may change what, and the compare-and-set itself, live in `octavo.metadata.ledgers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.proto import records_pb2
from octavo.runtime.errors import (
    IllegalStateError,
    InvalidRequest,
    MetadataCorrupt,
    UnsupportedVersion,
)
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.runtime.invariant import invariant

FORMAT_VERSION = 1
DIGEST_TYPE = "CRC32C"
RECORD_BYTES_MAX = 256 * 1024
"""M-6: a record must stay below this."""


class LedgerState(Enum):
    """OPEN → IN_RECOVERY → CLOSED, or OPEN → CLOSED; never backwards."""

    OPEN = records_pb2.OPEN
    IN_RECOVERY = records_pb2.IN_RECOVERY
    CLOSED = records_pb2.CLOSED


class Quorum(NamedTuple):
    """Ensemble size, copies written per entry, acknowledgements needed: E ≥ Qw ≥ Qa ≥ 1."""

    ensemble: int
    write: int
    ack: int

    def check(self) -> Quorum:
        """Return self if the sizes are legal, else raise InvalidRequest."""
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise InvalidRequest(f"need E >= Qw >= Qa >= 1, got {tuple(self)}")
        return self


Fragment = tuple[EntryId, tuple[Member, ...]]
"""First entry of a run and the ensemble that stores it."""


@dataclass(frozen=True)
class LedgerMetadata:
    """What the metadata store knows of one ledger."""

    ledger_id: LedgerId
    quorum: Quorum
    state: LedgerState
    fragments: tuple[Fragment, ...]
    """First entries strictly increase from 0; each ensemble has exactly E members."""
    last_entry: EntryId | None = None
    """Set if and only if CLOSED; -1 when the ledger is empty."""
    length: int | None = None
    """Payload bytes of entries 0..last_entry; set if and only if CLOSED."""
    custom: Mapping[str, str] = field(default_factory=dict[str, str])
    """Owner kind, topic, partition, owner epoch: never interpreted here."""
    creator_token: bytes = b""
    """Lets a creator recognise its own record after a lost reply (M-3)."""
    degraded: bool = False
    """Created with fewer copies than configured because too few bookies lived (3.7)."""
    ctime_ms: int = 0
    wanted_copies: int = 0
    """Of a degraded ledger: the copies that it was meant to have; 0: not known."""

    # --- placement --------------------------------------------------------------------------

    @property
    def closed_for_good(self) -> bool:
        """True once the ledger's contents can never change (INV-7)."""
        return self.state is LedgerState.CLOSED

    @property
    def last_fragment(self) -> Fragment:
        """The fragment new entries go to, or went to last."""
        return self.fragments[-1]

    def fragment_for(self, entry_id: int) -> Fragment:
        """The fragment that stores `entry_id`."""
        for fragment in reversed(self.fragments):
            if fragment[0] <= entry_id:
                return fragment
        raise IllegalStateError(f"no fragment of ledger {self.ledger_id} holds entry {entry_id}")

    def members_for(self, entry_id: int) -> tuple[Member, ...]:
        """The ensemble that stores `entry_id`, in slot order."""
        return self.fragment_for(entry_id)[1]

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Slots that hold `entry_id`: (e + i) mod E for i in 0..Qw-1 (3.2)."""
        size, copies, _ = self.quorum
        return tuple((entry_id + i) % size for i in range(copies))

    def is_closed_at(self, last_entry: int, length: int) -> bool:
        """True if CLOSED with exactly this end (M-2)."""
        return (
            self.state is LedgerState.CLOSED
            and self.last_entry == last_entry
            and self.length == length
        )

    # --- transitions ------------------------------------------------------------------------

    def with_ensemble_change(self, start: EntryId, members: tuple[Member, ...]) -> LedgerMetadata:
        """The writer's change: new ensemble from `start`; replaces one that starts there (C-3)."""
        if self.state is not LedgerState.OPEN:
            raise IllegalStateError(f"ledger {self.ledger_id} is {self.state.name}, not OPEN")
        last_key = self.fragments[-1][0]
        invariant(start >= last_key, f"ensemble change at {start} below fragment {last_key}")
        kept = self.fragments[:-1] if start == last_key else self.fragments
        return replace(self, fragments=(*kept, (start, members)))._checked()

    def in_recovery(self) -> LedgerMetadata:
        """A recoverer's first step: OPEN → IN_RECOVERY and nothing else (R-1)."""
        if self.state is not LedgerState.OPEN:
            raise IllegalStateError(f"ledger {self.ledger_id} is {self.state.name}, not OPEN")
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed(
        self,
        last_entry: EntryId,
        length: int,
        fragments: tuple[Fragment, ...] | None = None,
    ) -> LedgerMetadata:
        """CLOSED at `last_entry`, with recovered `fragments` if given.

        Empty trailing ones dropped (M-5).
        """
        if self.state is LedgerState.CLOSED:
            raise IllegalStateError(f"ledger {self.ledger_id} is already CLOSED")
        kept = self.fragments if fragments is None else fragments
        while len(kept) > 1 and kept[-1][0] > last_entry:
            kept = kept[:-1]
        return replace(
            self, state=LedgerState.CLOSED, last_entry=last_entry, length=length, fragments=kept
        )._checked()

    def with_member_replaced(
        self, first_entry: EntryId, old: Member, new: Member
    ) -> LedgerMetadata:
        """A re-replicator's change: `new` takes the slot of `old` in one settled fragment (2.2)."""
        if self.state is not LedgerState.CLOSED and first_entry == self.fragments[-1][0]:
            raise IllegalStateError("the last fragment of an open ledger belongs to its writer")
        fragments: list[Fragment] = []
        for start, members in self.fragments:
            if start == first_entry:
                if old not in members:
                    raise IllegalStateError(f"{old} is not in fragment {first_entry}")
                members = tuple(new if member == old else member for member in members)
            fragments.append((start, members))
        return replace(self, fragments=tuple(fragments))._checked()

    @property
    def may_grow(self) -> bool:
        """A degraded ledger that has all its entries, and could have one more copy (ADR 47).

        Only with E = Qw every member holds every entry, whatever their number is.
        """
        size, copies, _ = self.quorum
        return self.closed_for_good and self.degraded and size == copies < self.wanted_copies

    def grown(self, added: Mapping[EntryId, Member]) -> LedgerMetadata:
        """One more copy: `added` has who joins each fragment, and holds all of it (ADR 47)."""
        if not self.may_grow:
            raise IllegalStateError(f"ledger {self.ledger_id} has the copies that it will have")
        size, copies, acks = self.quorum
        return replace(
            self,
            quorum=Quorum(size + 1, copies + 1, acks),
            fragments=tuple((start, (*members, added[start])) for start, members in self.fragments),
            degraded=copies + 1 < self.wanted_copies,
        )._checked()

    # --- bytes ------------------------------------------------------------------------------

    def checked_bytes(self) -> bytes:
        """`to_bytes` of a new record, read back: nothing is stored that readers would refuse."""
        data = self.to_bytes()
        LedgerMetadata.from_bytes(data, self.ledger_id)
        return data

    def to_bytes(self) -> bytes:
        """The record as stored; equal records give equal bytes."""
        record = records_pb2.LedgerRecord(
            format_version=FORMAT_VERSION,
            ledger_id=self.ledger_id,
            ensemble_size=self.quorum.ensemble,
            write_quorum=self.quorum.write,
            ack_quorum=self.quorum.ack,
            state=self.state.value,
            fragments=[
                records_pb2.Fragment(first_entry=start, members=[str(m) for m in members])
                for start, members in self.fragments
            ],
            digest_type=DIGEST_TYPE,
            ctime_ms=self.ctime_ms,
            custom=dict(self.custom),
            creator_token=self.creator_token,
            degraded=self.degraded,
            wanted_copies=self.wanted_copies,
        )
        if self.last_entry is not None:
            record.last_entry = self.last_entry
        if self.length is not None:
            record.length = self.length
        data = record.SerializeToString(deterministic=True)
        if len(data) >= RECORD_BYTES_MAX:
            raise InvalidRequest(
                f"record of ledger {self.ledger_id} has {len(data)} bytes (M-6)",
                hint="roll to a new ledger",
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, ledger_id: LedgerId | None = None) -> LedgerMetadata:
        """Parse and validate.

        `ledger_id` is the id the record was found under (misplaced records).
        """
        record = records_pb2.LedgerRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"ledger record cannot be parsed: {error}") from error
        if record.format_version > FORMAT_VERSION:
            raise UnsupportedVersion(f"ledger record has format {record.format_version}")
        if record.format_version < 1:
            raise MetadataCorrupt("ledger record has no format version")
        if record.digest_type != DIGEST_TYPE:
            raise UnsupportedVersion(f"ledger record has digest type {record.digest_type!r}")
        if ledger_id is not None and record.ledger_id != ledger_id:
            raise MetadataCorrupt(f"record of ledger {record.ledger_id} found under {ledger_id}")
        try:
            state = LedgerState(record.state)
            fragments = tuple(
                (EntryId(f.first_entry), tuple(Member.parse(m) for m in f.members))
                for f in record.fragments
            )
        except ValueError as error:
            raise MetadataCorrupt(f"record of ledger {record.ledger_id}: {error}") from error
        return cls(
            ledger_id=LedgerId(record.ledger_id),
            quorum=Quorum(record.ensemble_size, record.write_quorum, record.ack_quorum),
            state=state,
            fragments=fragments,
            last_entry=EntryId(record.last_entry) if record.HasField("last_entry") else None,
            length=record.length if record.HasField("length") else None,
            custom=dict(record.custom),
            creator_token=record.creator_token,
            degraded=record.degraded,
            ctime_ms=record.ctime_ms,
            wanted_copies=record.wanted_copies,
        )._checked()

    def _checked(self) -> LedgerMetadata:
        problem = self._problem()
        if problem:
            raise MetadataCorrupt(f"record of ledger {self.ledger_id}: {problem}")
        return self

    def _problem(self) -> str | None:
        size, copies, acks = self.quorum
        if not 0 <= self.ledger_id < 1 << 63:
            return "id out of range"
        if not size >= copies >= acks >= 1:
            return f"quorum {tuple(self.quorum)}"
        return self._fragment_problem(size) or self._end_problem()

    def _fragment_problem(self, size: int) -> str | None:
        if not self.fragments or self.fragments[0][0] != 0:
            return "first fragment does not start at 0"
        starts = [start for start, _ in self.fragments]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            return "fragments are not strictly increasing"
        for start, members in self.fragments:
            if len(members) != size or len({member.bookie_id for member in members}) != size:
                return f"fragment {start} does not have {size} distinct bookies"
        return None

    def _end_problem(self) -> str | None:
        if self.state is not LedgerState.CLOSED:
            ended = self.last_entry is not None or self.length is not None
            return "end is set although not CLOSED" if ended else None
        if self.last_entry is None or self.length is None:
            return "CLOSED without an end"
        if self.last_entry < -1 or self.length < 0 or (self.last_entry == -1 and self.length):
            return f"impossible end {self.last_entry}, {self.length} bytes"
        return None
