"""The catalog of ledger records: create, read, compare-and-set, close, delete, walk (§2.2-2.4).

Callers work with frozen `LedgerMetadata` values and the version they read; every lost reply is
settled here (M-3) and absence is reported only after a barrier (M-4). Used by the ledger client,
bookies (admission, garbage collection) and autorecovery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from octavo.metadata.keys import GET_MANY_MAX, parent_of
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.ledger_record import Fragment, LedgerMetadata, LedgerState, Quorum
from octavo.metadata.paths import LEDGER_LEVELS, Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import Found, MetadataStore, Versioned
from octavo.metadata.version_floor import VersionFloor
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    Fenced,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    MetadataRefused,
    MetadataUnavailable,
    NoSuchLedger,
    OctavoError,
    UnknownOutcome,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.ids import EntryId, LedgerId, Member
from octavo.runtime.telemetry import get_logger

__all__ = [
    "CREATED_VERSION",
    "Fragment",
    "LedgerCatalog",
    "LedgerMetadata",
    "LedgerState",
    "Quorum",
    "ReadLedger",
    "VersionedLedger",
]

CAS_ATTEMPTS_MAX = 16
"""Conflicts tolerated by `update` before it gives up with VersionConflict."""

CREATED_VERSION = 0
"""Of a record that nobody changed yet."""

ALLOCATIONS_MAX = 64
"""Ids drawn while looking for one above `above` (ML-3), or for one that is free."""

_log = get_logger("octavo.metadata.ledgers")


class VersionedLedger(NamedTuple):
    """A record and the version the next compare-and-set must name."""

    metadata: LedgerMetadata
    version: int


ReadLedger = VersionedLedger | NoSuchLedger | MetadataCorrupt | UnsupportedVersion
"""A record, or why there is none that can be used."""


class LedgerCatalog:
    """Ledger records of one cluster."""

    def __init__(
        self, store: MetadataStore, paths: Paths, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)
        self._ids = LedgerIdAllocator(store, paths, clock)
        self._floor = VersionFloor()
        self.corrupt_records = 0
        """Records that could not be parsed so far (M-7); every one is also logged."""

    async def allocate_id(self) -> LedgerId:
        """A fresh id, larger than every id allocated before (ID-1..ID-3)."""
        return await self._ids.allocate()

    async def create(
        self,
        quorum: Quorum,
        members: Sequence[Member],
        *,
        custom: Mapping[str, str] | None = None,
        degraded: bool = False,
        wanted_copies: int = 0,
    ) -> VersionedLedger:
        """A new OPEN ledger on `members`, which no list names: a broker's come by their list.

        Raises MetadataUnavailable (nothing created) or UnknownOutcome (a record nobody uses may
        exist).
        """
        for _ in range(ALLOCATIONS_MAX):
            record = await self.draft(
                quorum, members, custom=custom, degraded=degraded, wanted_copies=wanted_copies
            )
            try:
                return await self._insert(record)
            except KeyExists:  # a restored backup drew an old id (ID-3); never reuse it
                _log.error("ledger-id-taken", ledger_id=record.ledger_id)
        raise UnknownOutcome("no free ledger id could be drawn")

    async def draft(
        self,
        quorum: Quorum,
        members: Sequence[Member],
        *,
        custom: Mapping[str, str] | None = None,
        degraded: bool = False,
        wanted_copies: int = 0,
        above: int = -1,
    ) -> LedgerMetadata:
        """The record of a ledger that does not exist yet, with an id greater than `above` (ML-3).

        It is created once, by `PartitionCatalog.cas` or not at all: its id is never drawn again.
        Raises MetadataUnavailable, or UnknownOutcome after repeated lost replies.
        """
        quorum.check()
        for _ in range(ALLOCATIONS_MAX):
            ledger_id = await self.allocate_id()
            if ledger_id > above:
                break
        else:
            raise UnknownOutcome(f"no ledger id above {above} could be drawn")
        return LedgerMetadata(
            ledger_id=ledger_id,
            quorum=quorum,
            state=LedgerState.OPEN,
            fragments=((EntryId(0), tuple(members)),),
            custom=dict(custom or {}),
            creator_token=self._entropy.token(),
            degraded=degraded,
            wanted_copies=wanted_copies if degraded else 0,
            ctime_ms=self._clock.wall_ms(),
        )

    async def _insert(self, record: LedgerMetadata) -> VersionedLedger:
        data = record.checked_bytes()

        def is_ours(stored: bytes) -> bool:
            try:
                found = LedgerMetadata.from_bytes(stored, record.ledger_id)
            except (MetadataCorrupt, UnsupportedVersion):
                return False
            return found.creator_token == record.creator_token

        key = self._paths.ledger(record.ledger_id)
        # `lasting`: a ledger is deleted through the list that names it, and none does yet (ML-9)
        version = await self._writes.create(key, data, is_ours=is_ours, lasting=True)
        self._floor.saw(key, version)
        return VersionedLedger(record, version)

    async def read(self, ledger_id: LedgerId, *, barrier: bool = False) -> VersionedLedger:
        """The record. `barrier=True` makes the read linearizable (R-1).

        Raises NoSuchLedger only after a barrier read (M-4); MetadataCorrupt, UnsupportedVersion:
        the ledger exists but is unavailable (M-7), also when its version went back;
        MetadataUnavailable.
        """
        try:
            found = await self._read(self._paths.ledger(ledger_id), barrier)
            if found is None:
                raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id)
            return VersionedLedger(LedgerMetadata.from_bytes(found.value, ledger_id), found.version)
        except (MetadataCorrupt, UnsupportedVersion) as error:
            self._count_unreadable(ledger_id, error)
            raise

    async def read_many(self, ledger_ids: Sequence[LedgerId]) -> list[ReadLedger]:
        """What `read` says of each, without a barrier, `GET_MANY_MAX` with one request.

        An error is a value here. Raises MetadataUnavailable.
        """
        read: list[ReadLedger] = []
        for start in range(0, len(ledger_ids), GET_MANY_MAX):
            some = ledger_ids[start : start + GET_MANY_MAX]
            keys = [self._paths.ledger(ledger_id) for ledger_id in some]
            floors = [self._floor.of(key) for key in keys]
            found = await self._store.get_many(keys)
            for one in zip(some, keys, floors, found, strict=True):
                read.append(await self._judged(*one))
        return read

    async def _judged(self, ledger_id: LedgerId, key: str, floor: int, found: Found) -> ReadLedger:
        if found is None or (isinstance(found, Versioned) and found.version < floor):
            try:  # absent or old: a follower proves neither
                return await self.read(ledger_id, barrier=True)
            except (NoSuchLedger, MetadataCorrupt, UnsupportedVersion) as error:
                return error
        try:
            if isinstance(found, MetadataCorrupt):
                raise found
            self._floor.saw(key, found.version)
            return VersionedLedger(LedgerMetadata.from_bytes(found.value, ledger_id), found.version)
        except (MetadataCorrupt, UnsupportedVersion) as error:
            self._count_unreadable(ledger_id, error)
            return error

    def _count_unreadable(self, ledger_id: LedgerId, error: OctavoError) -> None:
        self.corrupt_records += 1
        _log.error("ledger-record-unreadable", ledger_id=ledger_id, cause=error.cause)

    async def _read(self, key: str, barrier: bool) -> Versioned | None:
        floor = self._floor.of(key)
        found = None if barrier else await self._store.get(key)
        if found is None or found.version < floor:  # absent or old: a follower proves neither
            found = await self._writes.read(key)
        if found is not None:
            self._floor.check(key, found.version, floor)
        return found

    async def cas(self, old: VersionedLedger, new: LedgerMetadata) -> VersionedLedger:
        """Replace `old` by `new` (M-1).

        Nothing happened unless this returns or raises UnknownOutcome.

        Raises VersionConflict (re-read and re-check), NoSuchLedger, MetadataUnavailable,
        UnknownOutcome (it may have happened, whatever the record says now).
        """
        key = self._paths.ledger(new.ledger_id)
        try:
            # Ids are never given twice: the number alone is enough, and costs one round trip.
            version = await self._writes.put(key, new.to_bytes(), int(old.version))
        except KeyMissing:
            raise NoSuchLedger(f"ledger {new.ledger_id} was deleted") from None
        self._floor.saw(key, version)
        return VersionedLedger(new, version)

    async def update(
        self,
        ledger_id: LedgerId,
        change: Callable[[LedgerMetadata], LedgerMetadata],
        *,
        known: VersionedLedger | None = None,
    ) -> VersionedLedger:
        """Read, `change`, compare-and-set, again on conflict (M-1).

        `change` checks its precondition on every attempt and raises to refuse; returning an
        equal record ends without a write. `known` saves the first read.
        """
        current = known or await self.read(ledger_id)
        for _ in range(CAS_ATTEMPTS_MAX):
            wanted = change(current.metadata)
            if wanted == current.metadata:
                return current
            try:
                return await self.cas(current, wanted)
            except VersionConflict:
                current = await self.read(ledger_id, barrier=True)
        raise VersionConflict(f"ledger {ledger_id} kept changing", ledger_id=ledger_id)

    async def close_as_writer(
        self, written: VersionedLedger, last_entry: EntryId, length: int
    ) -> VersionedLedger:
        """The writer's close at its LAC. `written` is what the handle wrote last.

        A ledger already CLOSED at the same end is success, any other end of it is Fenced (M-2).
        """

        def close(found: LedgerMetadata) -> LedgerMetadata:
            if found.is_closed_at(last_entry, length):
                return found
            if (
                found.state is not LedgerState.OPEN
                or found.last_fragment != written.metadata.last_fragment
            ):
                raise Fenced(
                    f"ledger {found.ledger_id} is {found.state.name}, closed by someone else"
                )
            return found.closed(last_entry, length)

        return await self.update(written.metadata.ledger_id, close, known=written)

    async def delete(self, versioned: VersionedLedger) -> None:
        """Delete the record if it still has this version; deleting what is gone is success.

        The deletion is counted first: bookies believe that a ledger is gone only as far as counted
        deletions explain it (6.14). Raises VersionConflict, MetadataUnavailable, UnknownOutcome.
        """
        key = self._paths.ledger(versioned.metadata.ledger_id)
        await self._count_deletion()
        try:
            await self._writes.delete(key, int(versioned.version))
        except KeyMissing:
            if await self._writes.read(key) is not None:  # M-4: a follower's absence proves nothing
                raise VersionConflict(f"{key} was created again", key=key) from None
        self._floor.forget(key)
        await self._prune(key)

    async def _count_deletion(self) -> None:
        """Once at least: a deletion counted twice only explains more than there is."""
        for _ in range(CAS_ATTEMPTS_MAX):
            try:
                await self._store.fetch_add(self._paths.ledgers_deleted)
            except UnknownOutcome:
                continue
            return
        raise MetadataUnavailable("the deletion of a ledger could not be counted")

    async def deletions(self) -> int:
        """Deletions of ledgers that were begun so far, as of now; raises MetadataUnavailable."""
        found = await self._writes.read(self._paths.ledgers_deleted)
        return 0 if found is None else int(found.version)

    async def _prune(self, key: str) -> None:
        """Remove directories that became empty (L-3); a creator makes them again."""
        for _ in range(LEDGER_LEVELS - 1):
            key = parent_of(key)
            try:
                await self._store.delete(key, expected=None)
            except (MetadataRefused, MetadataUnavailable, MetadataCorrupt, UnknownOutcome):
                return  # an empty directory harms nobody

    async def walk(self) -> AsyncIterator[LedgerId]:
        """All ledger ids in order: lazy, depth-first, not a snapshot (L-2).

        A directory that vanishes on the way is skipped; any other error ends the walk by being
        raised.
        """
        pending = [self._paths.ledgers]
        depth_of_leaf = self._paths.ledgers.count("/") + LEDGER_LEVELS
        while pending:
            key = pending.pop()
            if key.count("/") == depth_of_leaf:
                try:
                    yield self._paths.ledger_id_of(key)
                except ValueError:
                    self.corrupt_records += 1
                    _log.error("ledger-key-unreadable", key=key)
                continue
            pending.extend(f"{key}/{name}" for name in reversed(await self._store.children(key)))

    async def walk_found(
        self, at_once: int = GET_MANY_MAX
    ) -> AsyncIterator[list[tuple[LedgerId, ReadLedger]]]:
        """All ledgers as `read_many` finds them, in order of their ids, `at_once` at a time.

        Not a snapshot; a ledger that is deleted meanwhile is NoSuchLedger or left out.
        """
        some: list[LedgerId] = []
        async for ledger_id in self.walk():
            some.append(ledger_id)
            if len(some) == at_once:
                yield list(zip(some, await self.read_many(some), strict=True))
                some = []
        if some:
            yield list(zip(some, await self.read_many(some), strict=True))

    async def walk_records(self) -> AsyncIterator[VersionedLedger]:
        """All readable records in id order; unreadable ones are counted and skipped (M-7)."""
        async for some in self.walk_found():
            for _, found in some:
                if isinstance(found, VersionedLedger):
                    yield found
