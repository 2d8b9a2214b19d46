"""Registrations, directory and cookies of bookies, and the cluster id (6.10, 6.11).

Owns the record formats. The bookie process registers through `BookieRegistrar`; the ledger
client looks addresses up in `BookieDirectory`, never in ledger metadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from google.protobuf.message import DecodeError

from octavo.metadata.directory import Directory
from octavo.metadata.ledger_ids import LedgerIdAllocator
from octavo.metadata.paths import Paths
from octavo.metadata.registration import RETRY_S, TAKEN_WAIT_S, Registration
from octavo.metadata.restored_mark import RestoredMark, require_whole, restored_mark
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore
from octavo.proto import records_pb2
from octavo.runtime.address import bare_host
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    MetadataCorrupt,
    MetadataUnavailable,
    UnsupportedVersion,
)
from octavo.runtime.ids import Member
from octavo.runtime.telemetry import get_logger

COOKIE_FORMAT_VERSION = 1

BookieState = Literal["rw", "ro"]

_log = get_logger("octavo.metadata.bookies")


@dataclass(frozen=True)
class BookieRegistration:
    """One live bookie and where to reach it."""

    bookie_id: str
    incarnation: uuid.UUID
    wire_address: str
    """host:port of the framed protocol."""
    control_address: str = ""
    """host:port of the gRPC control service."""
    fault_domain: str = ""
    state: BookieState = "rw"
    process_nonce: bytes = field(default=b"", compare=False)
    """Of the process that registered, as read; another one means that it was away in between."""
    ledgers_before: int | None = field(default=None, compare=False)
    """No ledger above this one was made before the process came; None: not known, of any it may
    lack what was written while its bookie was away."""

    @property
    def member(self) -> Member:
        """How ledger metadata names this bookie."""
        return Member(self.bookie_id, self.incarnation)

    @property
    def host(self) -> str:
        """The host that clients are told: bookies that name the same one run on one machine."""
        return bare_host(self.wire_address.rpartition(":")[0]).lower()


def _registration_bytes(
    registration: BookieRegistration, nonce: bytes, ledgers_before: int | None
) -> bytes:
    return records_pb2.BookieRegistration(
        bookie_id=registration.bookie_id,
        incarnation=str(registration.incarnation),
        wire_address=registration.wire_address,
        control_address=registration.control_address,
        fault_domain=registration.fault_domain,
        process_nonce=nonce,
        ledgers_before=ledgers_before,
    ).SerializeToString(deterministic=True)


def _parse_registration(state: BookieState, data: bytes) -> BookieRegistration:
    record = records_pb2.BookieRegistration()
    try:
        record.ParseFromString(data)
        incarnation = uuid.UUID(record.incarnation)
    except (DecodeError, ValueError) as error:
        raise MetadataCorrupt(f"bookie registration: {error}") from error
    if not record.bookie_id or not record.wire_address:
        raise MetadataCorrupt("bookie registration without id or address")
    return BookieRegistration(
        bookie_id=record.bookie_id,
        incarnation=incarnation,
        wire_address=record.wire_address,
        control_address=record.control_address,
        fault_domain=record.fault_domain,
        state=state,
        process_nonce=record.process_nonce,
        ledgers_before=record.ledgers_before if record.HasField("ledgers_before") else None,
    )


class BookieDirectory:
    """Live bookies, cached and followed by watch; writable ones first."""

    def __init__(self, store: MetadataStore, paths: Paths, *, clock: Clock | None = None) -> None:
        def parse(folder: str, data: bytes) -> BookieRegistration:
            return _parse_registration("rw" if folder == paths.bookies_rw else "ro", data)

        self._directory: Directory[BookieRegistration] = Directory(
            store, (paths.bookies_rw, paths.bookies_ro), parse, clock=clock or SystemClock()
        )

    async def start(self) -> None:
        """Load and follow; raises MetadataUnavailable."""
        await self._directory.start()

    async def close(self) -> None:
        """Stop following."""
        await self._directory.close()

    def live(self) -> list[BookieRegistration]:
        """Registered bookies, each once; one that is switching counts as read-only (6.13)."""
        found = self._directory.live()
        read_only = {b.bookie_id for b in found if b.state == "ro"}
        return [b for b in found if b.state == "ro" or b.bookie_id not in read_only]

    def find(self, bookie: Member | str) -> BookieRegistration | None:
        """The registration of a member (exact incarnation) or of a bookie id (any)."""
        for found in self.live():
            if bookie in (found.member, found.bookie_id):
                return found
        return None

    async def wait_changed(self) -> None:
        """Return after the next change."""
        await self._directory.wait_changed()

    async def refresh(self) -> None:
        """Read everything anew, without waiting for a watch."""
        await self._directory.refresh()


class BookieRegistrar:
    """Keeps one bookie registered as `rw` or `ro` (B-28, B-30, 6.13)."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        registration: BookieRegistration,
        *,
        clock: Clock,
        entropy: Entropy,
        on_taken: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._paths = paths
        self._registration = registration
        self._clock = clock
        self._nonce = entropy.token()
        self._on_taken = on_taken
        self._current: Registration | None = None
        self._ledgers_before: int | None = None

    @property
    def state(self) -> BookieState:
        """What the bookie is registered as, or will be."""
        return self._registration.state

    @property
    def present(self) -> bool:
        """True while, as far as we know, the registration exists."""
        return self._current is not None and self._current.present

    async def register(self, taken_wait_s: float = TAKEN_WAIT_S) -> None:
        """Register in the state given.

        Raises IllegalStateError when another process holds the id (B-28).
        """
        if self._current is not None:
            raise IllegalStateError("already registered")
        self._ledgers_before = await self._last_ledger_id()
        self._current = await self._establish(self.state, taken_wait_s)

    async def _last_ledger_id(self) -> int | None:
        """The largest ledger id given out so far; None: that cannot be read now."""
        try:
            return await LedgerIdAllocator(self._store, self._paths, self._clock).last_id()
        except (MetadataCorrupt, MetadataUnavailable) as error:
            _log.warning("last-ledger-id-unknown", cause=error.cause)
            return None

    async def switch(self, state: BookieState) -> None:
        """Create the new registration, then delete the old one, in this order (6.13)."""
        if state == self.state:
            return
        old = self._current
        self._current = await self._establish(state, TAKEN_WAIT_S)
        self._registration = replace(self._registration, state=state)
        if old is not None:
            await old.withdraw()

    async def close(self) -> None:
        """Unregister."""
        if self._current is not None:
            await self._current.withdraw()
            self._current = None

    async def _establish(self, state: BookieState, taken_wait_s: float) -> Registration:
        bookie_id = self._registration.bookie_id
        rw, ro = self._paths.bookie_rw(bookie_id), self._paths.bookie_ro(bookie_id)
        registration = Registration(
            self._store,
            rw if state == "rw" else ro,
            _registration_bytes(self._registration, self._nonce, self._ledgers_before),
            clock=self._clock,
            on_taken=self._on_taken,
        )
        await registration.establish(taken_wait_s)
        return registration


async def wait_unregistered(
    store: MetadataStore, paths: Paths, bookie_id: str, wait_s: float, *, clock: Clock
) -> None:
    """Return once no process is registered under this id; its session may have to end first.

    Raises IllegalStateError when one still is after `wait_s` (B-28), MetadataUnavailable.
    """
    reads = SettledWrites(store, clock)
    give_up = clock.monotonic() + wait_s
    for key in (paths.bookie_rw(bookie_id), paths.bookie_ro(bookie_id)):
        while await reads.read(key) is not None:
            if clock.monotonic() >= give_up:
                raise IllegalStateError(
                    f"{key} is held by another process",
                    hint="give each process its own id, or stop the other one",
                    key=key,
                )
            await clock.sleep(RETRY_S)


# --- cookies and cluster id ------------------------------------------------------------------


@dataclass(frozen=True)
class Cookie:
    """Persistent identity of a bookie, compared with what its directories say (B-27)."""

    bookie_id: str
    instance_id: str
    incarnation: uuid.UUID
    directories: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role of a data directory → its uuid."""
    salvage: tuple[uuid.UUID, ...] = ()
    """Older incarnations still named by some ledger (B-26)."""
    boot_counter: int = 0
    durable_up_to: tuple[int, int] = (0, 0)
    """(segment, offset): the log of this incarnation was durable at least up to there; (0, 0) while
    nothing is published. Evidence that a directory was rolled back (B-23)."""

    def to_bytes(self) -> bytes:
        """The cookie as stored, in the metadata store and in every data directory."""
        return records_pb2.Cookie(
            format_version=COOKIE_FORMAT_VERSION,
            bookie_id=self.bookie_id,
            instance_id=self.instance_id,
            incarnation=str(self.incarnation),
            directories=dict(self.directories),
            salvage=[str(old) for old in self.salvage],
            boot_counter=self.boot_counter,
            durable_segment=self.durable_up_to[0],
            durable_offset=self.durable_up_to[1],
        ).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> Cookie:
        """Parse; raises MetadataCorrupt or UnsupportedVersion."""
        record = records_pb2.Cookie()
        try:
            record.ParseFromString(data)
            if record.format_version > COOKIE_FORMAT_VERSION:
                raise UnsupportedVersion(f"cookie has format {record.format_version}")
            if record.format_version < 1 or not record.bookie_id:
                raise MetadataCorrupt("not a cookie")
            return cls(
                bookie_id=record.bookie_id,
                instance_id=record.instance_id,
                incarnation=uuid.UUID(record.incarnation),
                directories=dict(record.directories),
                salvage=tuple(uuid.UUID(old) for old in record.salvage),
                boot_counter=record.boot_counter,
                durable_up_to=(record.durable_segment, record.durable_offset),
            )
        except (DecodeError, ValueError) as error:
            raise MetadataCorrupt(f"cookie: {error}") from error

    @property
    def incarnations(self) -> frozenset[uuid.UUID]:
        """All incarnations that this bookie is known by."""
        return frozenset((self.incarnation, *self.salvage))

    def is_of(self, stored: bytes) -> bool:
        """Whether `stored` is a cookie of the same bookie, not of a later one with its id."""
        return bool(self.incarnations & Cookie.from_bytes(stored).incarnations)


class VersionedCookie(NamedTuple):
    """A cookie and the version the next update must name."""

    cookie: Cookie
    version: int


class CookieCatalog:
    """Cookies of all bookies and the id of the cluster."""

    def __init__(
        self, store: MetadataStore, paths: Paths, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._writes = SettledWrites(store, clock)
        self._paths = paths
        self._entropy = entropy

    async def read_cookie(self, bookie_id: str) -> VersionedCookie | None:
        """Linearizable; None means the bookie is new to this cluster (B-27)."""
        found = await self._writes.read(self._paths.cookie(bookie_id))
        return found and VersionedCookie(Cookie.from_bytes(found.value), found.version)

    async def create_cookie(self, cookie: Cookie) -> VersionedCookie:
        """Must not exist yet (B-27); raises KeyExists."""
        key = self._paths.cookie(cookie.bookie_id)
        version = await self._writes.create(key, cookie.to_bytes(), is_ours=cookie.is_of)
        return VersionedCookie(cookie, version)

    async def update_cookie(self, old: VersionedCookie, new: Cookie) -> VersionedCookie:
        """Compare and set (boot counter, incarnation); raises VersionConflict."""
        key = self._paths.cookie(new.bookie_id)
        version = await self._writes.put(
            key, new.to_bytes(), old.version, same_life=old.cookie.is_of
        )
        return VersionedCookie(new, version)

    async def delete_cookie(self, old: VersionedCookie) -> None:
        """Forget a bookie; only when no metadata names any of its incarnations (B-29)."""
        key = self._paths.cookie(old.cookie.bookie_id)
        await self._writes.delete(key, old.version, same_life=old.cookie.is_of)

    async def bookie_ids(self) -> list[str]:
        """Ids of all bookies that ever registered and were not decommissioned."""
        return await self._writes.children(self._paths.cookies)

    async def restored(self) -> RestoredMark | None:
        """The last time that the metadata was put back from a copy; None: never (ADR 51).

        Raises MetadataUnavailable, MetadataCorrupt.
        """
        return await restored_mark(self._writes, self._paths)

    async def stored_cluster_id(self) -> str:
        """The cluster's uuid as the store has it now, which this never makes; empty for none."""
        found = await self._writes.read(self._paths.instance_id)
        return "" if found is None else found.value.decode("ascii", "replace")

    async def cluster_id(self) -> str:
        """The cluster's uuid (INSTANCEID), written once by whoever comes first.

        Every server asks for it when it starts: IllegalStateError while a copy is being put back.
        """
        await require_whole(self._writes, self._paths)
        found = await self._writes.read(self._paths.instance_id)
        if found is None:
            fresh = str(self._entropy.uuid()).encode()
            try:
                await self._writes.create(self._paths.instance_id, fresh, lasting=True)
                return fresh.decode()
            except KeyExists:
                found = await self._writes.read(self._paths.instance_id)
        try:
            return str(uuid.UUID((found.value if found else b"").decode()))
        except ValueError as error:
            raise MetadataCorrupt(f"{self._paths.instance_id} is not a uuid") from error
