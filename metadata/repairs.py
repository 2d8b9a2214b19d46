"""What autorecovery keeps in the metadata store: marks, locks, switches, holds (§2.4, §7).

Owns the record formats and their conditional writes. Marks say which ledgers lack copies; they are
hints for workers, never proof: whoever repairs looks again. Used by `client/autorecovery`, by
bookies (holds) and by tools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from octavo.metadata.keys import parent_of
from octavo.metadata.paths import LEDGER_LEVELS, Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, SessionState
from octavo.proto import records_pb2
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    OctavoError,
    UnknownOutcome,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId, Member
from octavo.runtime.telemetry import get_logger

FORMAT_VERSION = 1
CAS_ATTEMPTS_MAX = 16
"""Conflicts tolerated by one change before it gives up with VersionConflict."""

M = TypeVar(
    "M",
    records_pb2.RepairMark,
    records_pb2.BookieAway,
    records_pb2.BookieHold,
    records_pb2.AuditReport,
)
_log = get_logger("octavo.metadata.repairs")


def _parsed(kind: type[M], data: bytes) -> M:
    record = kind()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise MetadataCorrupt(f"{kind.__name__}: {error}") from error
    if record.format_version > FORMAT_VERSION:
        raise UnsupportedVersion(f"{kind.__name__} has format {record.format_version}")
    if record.format_version < 1:
        raise MetadataCorrupt(f"not a {kind.__name__}")
    return record


def _bytes_of(record: Message) -> bytes:
    return record.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class RepairMark:
    """One ledger that lacks copies (A-3)."""

    ledger_id: LedgerId
    members: frozenset[Member] = frozenset()
    """Lost: their slots get other bookies."""
    short: bool = False
    """Some entries are missing on a bookie that is there."""
    marked_ms: int = 0
    """When it was first marked."""

    def merged(self, other: RepairMark) -> RepairMark:
        """Both of them; the time is the older mark's."""
        return replace(self, members=self.members | other.members, short=self.short or other.short)

    def to_bytes(self) -> bytes:
        """The mark as stored."""
        return _bytes_of(
            records_pb2.RepairMark(
                format_version=FORMAT_VERSION,
                ledger_id=self.ledger_id,
                members=sorted(map(str, self.members)),
                short=self.short,
                marked_ms=self.marked_ms,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RepairMark:
        """Parse; raises MetadataCorrupt or UnsupportedVersion."""
        record = _parsed(records_pb2.RepairMark, data)
        try:
            members = frozenset(map(Member.parse, record.members))
        except ValueError as error:
            raise MetadataCorrupt(f"mark of ledger {record.ledger_id}: {error}") from error
        return cls(LedgerId(record.ledger_id), members, record.short, record.marked_ms)


class VersionedMark(NamedTuple):
    """A mark and the version that its removal must name (A-8)."""

    mark: RepairMark
    version: int


@dataclass(frozen=True)
class BookieAway:
    """A bookie that an auditor misses (A-1)."""

    bookie_id: str
    fault_domain: str
    since_ms: int


class HoldKind(Enum):
    """What an operator wants of a bookie."""

    READONLY = "readonly"
    """It takes no new records, and keeps what it has."""
    DRAINING = "draining"
    """It takes no new records, and its copies move elsewhere (7.4)."""
    RETIRED = "retired"
    """No ledger names it any more, and it is not of the cluster any more."""


class BookieHold(NamedTuple):
    """An operator's decision about one incarnation of a bookie."""

    member: Member
    kind: HoldKind


@dataclass(frozen=True)
class AuditReport:
    """What the last whole pass over all ledgers saw (7.3: no marks alone prove nothing)."""

    ended_ms: int = 0
    ledgers: int = 0
    short: int = 0
    unreadable: int = 0
    unchecked: int = 0
    auditor: str = ""
    processes: frozenset[bytes] = frozenset()
    """Nonces of the processes of bookies that were there when it began."""


class RepairCatalog:
    """Marks, locks and switches of one cluster."""

    def __init__(self, store: MetadataStore, paths: Paths, *, clock: Clock) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._writes = SettledWrites(store, clock)

    # --- marks (A-3, A-8) -------------------------------------------------------------------

    async def mark(self, mark: RepairMark) -> None:
        """Create the mark, or merge it into the one that is there.

        Raises MetadataUnavailable, VersionConflict.
        """
        key = self._paths.repair_mark(mark.ledger_id)
        for _ in range(CAS_ATTEMPTS_MAX):
            found = await self._writes.read(key)
            try:
                if found is None:
                    stamped = replace(mark, marked_ms=mark.marked_ms or self._clock.wall_ms())
                    await self._writes.create(key, stamped.to_bytes())
                    return
                known = RepairMark.from_bytes(found.value)
                merged = known.merged(mark)
                if merged != known:
                    await self._writes.put(key, merged.to_bytes(), found.version)
                return
            except (KeyExists, KeyMissing, VersionConflict, UnknownOutcome):
                continue  # what is wanted is compared with what is there
        raise VersionConflict(f"the mark of ledger {mark.ledger_id} kept changing")

    async def read(self, ledger_id: LedgerId) -> VersionedMark | None:
        """The mark of a ledger; None: there is none now."""
        found = await self._writes.read(self._paths.repair_mark(ledger_id))
        return found and VersionedMark(RepairMark.from_bytes(found.value), found.version)

    async def remove(self, found: VersionedMark) -> bool:
        """A-8: only if it is still this version; False: it changed and stays."""
        key = self._paths.repair_mark(found.mark.ledger_id)
        try:
            await self._writes.delete(key, found.version)
        except VersionConflict:
            return False
        except KeyMissing:
            return True
        for _ in range(LEDGER_LEVELS - 1):  # directories that became empty go as well (L-3)
            key = parent_of(key)
            try:
                await self._store.delete(key, expected=None)
            except OctavoError:
                break  # an empty directory harms nobody
        return True

    async def marked(
        self, most: int, *, order: Callable[[list[str]], list[str]] = sorted
    ) -> list[LedgerId]:
        """Ids of marked ledgers, `most` at most. `order`: in which order the names of each
        directory come; a random one (A-4) makes every mark come up in the end."""
        found: list[LedgerId] = []
        async for ledger_id in self._walk(order):
            found.append(ledger_id)
            if len(found) >= most:
                break
        return found

    async def _walk(self, order: Callable[[list[str]], list[str]]) -> AsyncIterator[LedgerId]:
        root = self._paths.under_replicated
        depth_of_leaf = root.count("/") + LEDGER_LEVELS
        pending = [root]
        while pending:
            key = pending.pop()
            if key.count("/") == depth_of_leaf:
                try:
                    yield self._paths.ledger_id_of(self._paths.ledgers + key.removeprefix(root))
                except ValueError:
                    _log.error("repair-mark-unreadable", key=key)
                continue
            names = order(await self._store.children(key))
            pending.extend(f"{key}/{name}" for name in reversed(names))

    # --- locks (A-4, A-9) -------------------------------------------------------------------

    async def lock(self, ledger_id: LedgerId, nonce: bytes) -> RepairLock | None:
        """Take the ledger's ephemeral lock; None: somebody else has it."""
        key = self._paths.repair_lock(ledger_id)
        session = self._store.session_id
        try:
            await self._writes.create(key, nonce, ephemeral=True)
        except KeyExists:
            found = await self._writes.read(key)
            if found is None or found.value != nonce:
                return None
        return RepairLock(self._store, key, nonce, session)

    # --- switches, the auditor and what it knows --------------------------------------------

    async def disabled(self) -> bool:
        """Whether an operator stopped marking and working (A-3)."""
        return await self._writes.read(self._paths.repairs_disabled) is not None

    async def set_disabled(self, disabled: bool) -> None:
        """Stop, or start again; doing it twice is no error."""
        key = self._paths.repairs_disabled
        try:
            if disabled:
                await self._writes.create(key, b"")
            else:
                await self._writes.delete(key, None)
        except (KeyExists, KeyMissing):
            return

    async def elect(self, nonce: bytes) -> bool:
        """Become, or stay, the auditor; two for a moment are harmless (7.1)."""
        key = self._paths.auditor
        found = await self._writes.read(key)
        if found is not None:
            return found.value == nonce
        try:
            await self._writes.create(key, nonce, ephemeral=True)
        except KeyExists:
            return False
        return True

    async def auditor(self) -> bool:
        """Whether some process is elected now."""
        return await self._writes.read(self._paths.auditor) is not None

    async def resign(self, nonce: bytes) -> None:
        """Let another be the auditor; what the store does not hear ends with the session."""
        found = await self._writes.read(self._paths.auditor)
        if found is not None and found.value == nonce:
            await self._delete(self._paths.auditor, found.version)

    async def away(self) -> dict[str, BookieAway]:
        """Bookies that are missed, by id."""
        found: dict[str, BookieAway] = {}
        for name in await self._writes.children(self._paths.bookies_away):
            value = await self._writes.read(self._paths.bookie_away(name))
            if value is not None:
                record = _parsed(records_pb2.BookieAway, value.value)
                found[name] = BookieAway(name, record.fault_domain, record.since_ms)
        return found

    async def miss(self, away: BookieAway) -> None:
        """Remember since when; the first auditor that missed it is right (A-1)."""
        record = records_pb2.BookieAway(
            format_version=FORMAT_VERSION,
            bookie_id=away.bookie_id,
            fault_domain=away.fault_domain,
            since_ms=away.since_ms,
        )
        try:
            await self._writes.create(self._paths.bookie_away(away.bookie_id), _bytes_of(record))
        except KeyExists:
            return

    async def found_again(self, bookie_id: str) -> None:
        """It is registered, or is no bookie of the cluster any more."""
        await self._delete(self._paths.bookie_away(bookie_id), None)

    async def report(self) -> AuditReport | None:
        """The last whole pass; None: there was none yet."""
        found = await self._writes.read(self._paths.audited)
        if found is None:
            return None
        record = _parsed(records_pb2.AuditReport, found.value)
        return AuditReport(
            record.ended_ms,
            record.ledgers,
            record.short,
            record.unreadable,
            record.unchecked,
            record.auditor,
            frozenset(record.processes),
        )

    async def set_report(self, report: AuditReport) -> None:
        """Tell of a pass; the last one counts."""
        record = records_pb2.AuditReport(
            format_version=FORMAT_VERSION,
            ended_ms=report.ended_ms,
            ledgers=report.ledgers,
            short=report.short,
            unreadable=report.unreadable,
            unchecked=report.unchecked,
            auditor=report.auditor,
            processes=sorted(report.processes),
        )
        await self._overwrite(self._paths.audited, _bytes_of(record))

    # --- holds ------------------------------------------------------------------------------

    async def holds(self) -> dict[str, BookieHold]:
        """Operators' decisions, by bookie id."""
        found: dict[str, BookieHold] = {}
        for name in await self._writes.children(self._paths.bookie_holds):
            hold = await self.hold_of(name)
            if hold is not None:
                found[name] = hold
        return found

    async def hold_of(self, bookie_id: str) -> BookieHold | None:
        """What was decided about a bookie; raises MetadataCorrupt."""
        found = await self._writes.read(self._paths.bookie_hold(bookie_id))
        if found is None:
            return None
        record = _parsed(records_pb2.BookieHold, found.value)
        try:
            return BookieHold(Member.parse(record.member), HoldKind(record.kind))
        except ValueError as error:
            raise MetadataCorrupt(f"hold of bookie {bookie_id}: {error}") from error

    async def hold(self, hold: BookieHold) -> None:
        """Decide; the last decision counts."""
        record = records_pb2.BookieHold(
            format_version=FORMAT_VERSION, member=str(hold.member), kind=hold.kind.value
        )
        await self._overwrite(self._paths.bookie_hold(hold.member.bookie_id), _bytes_of(record))

    async def release(self, bookie_id: str) -> None:
        """Decide nothing about it any more."""
        await self._delete(self._paths.bookie_hold(bookie_id), None)

    async def _overwrite(self, key: str, value: bytes) -> None:
        for _ in range(CAS_ATTEMPTS_MAX):
            found = await self._writes.read(key)
            try:
                if found is None:
                    await self._writes.create(key, value)
                elif found.value != value:
                    await self._writes.put(key, value, found.version)
                return
            except (KeyExists, KeyMissing, VersionConflict, UnknownOutcome):
                continue  # what is wanted is compared with what is there
        raise VersionConflict(f"{key} kept changing")

    async def _delete(self, key: str, version: int | None) -> None:
        try:
            await self._writes.delete(key, version)
        except (KeyMissing, VersionConflict):
            return


class RepairLock:
    """One ledger's lock; `held` turns False when it may be gone (A-9)."""

    def __init__(self, store: MetadataStore, key: str, nonce: bytes, session: int) -> None:
        self._store = store
        self._key = key
        self._nonce = nonce
        self._session = session

    @property
    def held(self) -> bool:
        """Whether the session that holds it is there for sure."""
        store = self._store
        return store.session_state is SessionState.CONNECTED and store.session_id == self._session

    async def release(self) -> None:
        """Give it back; a store that is away forgets it with the session."""
        try:
            found = await self._store.get(self._key)
            if found is not None and found.value == self._nonce:
                await self._store.delete(self._key, expected=found.version)
        except OctavoError as error:
            _log.info("repair-lock-left-to-session", key=self._key, cause=str(error))
