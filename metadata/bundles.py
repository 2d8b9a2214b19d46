"""Who serves which bundle: one ephemeral key per bundle (spec/ledger.md §8.4).

Ownership here is an optimisation, never a guard: two brokers that both believe to own a
partition are kept apart by ledger fencing and by the compare-and-set of the partition's list
(§8.3). Which broker should own what is decided in `octavo.serving`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.metadata.paths import Paths
from octavo.metadata.scanning import scan_all
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, Unsubscribe
from octavo.proto import records_pb2
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.errors import KeyExists, KeyMissing, MetadataCorrupt, VersionConflict
from octavo.runtime.telemetry import get_logger

_log = get_logger("octavo.metadata.bundles")


@dataclass(frozen=True)
class BundleOwner:
    """The broker process that serves a bundle."""

    broker_id: str
    address: str
    process_nonce: bytes

    def to_bytes(self) -> bytes:
        """The ownership as stored."""
        return records_pb2.BundleOwner(
            broker_id=self.broker_id, address=self.address, process_nonce=self.process_nonce
        ).SerializeToString(deterministic=True)

    def is_bytes(self, stored: bytes) -> bool:
        """Whether `stored` is this ownership; the process nonce makes it unique."""
        return stored == self.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> BundleOwner:
        """Parse; raises MetadataCorrupt."""
        record = records_pb2.BundleOwner()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"bundle owner: {error}") from error
        return cls(record.broker_id, record.address, record.process_nonce)


class BundleRegistry:
    """Acquire, look up and release bundles."""

    def __init__(self, store: MetadataStore, paths: Paths, *, clock: Clock | None = None) -> None:
        self._store = store
        self._paths = paths
        self._writes = SettledWrites(store, clock or SystemClock())

    async def acquire(self, bundle: int, me: BundleOwner) -> bool:
        """True if `bundle` is ours now (also if it was), False if another process owns it.

        After the session was LOST every bundle must be acquired again (O-5).
        """
        key = self._paths.bundle(bundle)
        while True:
            try:
                await self._writes.create(key, me.to_bytes(), ephemeral=True)
                return True
            except KeyExists:
                found = await self._writes.read(key)
                if found is not None:
                    return found.value == me.to_bytes()

    async def owner(self, bundle: int) -> BundleOwner | None:
        """The owner as one server sees it: a hint; the target verifies on connect (O-2)."""
        found = await self._store.get(self._paths.bundle(bundle))
        return found and BundleOwner.from_bytes(found.value)

    async def owners(self) -> dict[int, BundleOwner]:
        """All owned bundles; unreadable ones are skipped (M-7): nobody else gets them."""
        owners: dict[int, BundleOwner] = {}
        async for name, found in scan_all(self._store, self._paths.bundles):
            if not name.isdecimal():
                continue
            try:
                if isinstance(found, MetadataCorrupt):
                    raise found
                owners[int(name)] = BundleOwner.from_bytes(found.value)
            except MetadataCorrupt as error:  # M-7: alarm, skip, go on
                _log.error("bundle-owner-unreadable", bundle=int(name), cause=error.cause)
        return owners

    async def release(self, bundle: int, me: BundleOwner) -> None:
        """Give the bundle up if it is ours; nothing happens when it is not."""
        key = self._paths.bundle(bundle)
        found = await self._writes.read(key)
        if found is None or found.value != me.to_bytes():
            return
        try:
            # Version 0 is that of each owner: only the bytes tell our ownership from the next one.
            await self._writes.delete(key, found.version, same_life=me.is_bytes)
        except (KeyMissing, VersionConflict):
            return

    async def evict(self, bundle: int, owner: BundleOwner) -> bool:
        """Delete the ownership of a process known to be dead (eager take-over, design §6).

        True when the bundle is free afterwards. Safe even if `owner` still runs, by §8.3.
        """
        key = self._paths.bundle(bundle)
        found = await self._writes.read(key)
        if found is None:
            return True
        if found.value != owner.to_bytes():
            return False
        try:
            await self._writes.delete(key, found.version, same_life=owner.is_bytes)
        except KeyMissing:
            return True
        except VersionConflict:
            return False
        return True

    def watch(self, on_change: Callable[[], None]) -> Unsubscribe:
        """Call `on_change()` after any bundle was acquired or released."""
        return self._store.watch(self._paths.bundles, lambda _key: on_change())
