"""Bundles that were moved by decision: which broker each of them is for (ledger §8.4, O-3, O-4).

One versioned record for the whole cluster. Whoever decides reads it behind a barrier and replaces
it by compare-and-set: of two that decide at once only one has an effect, and the other has to look
again at what became of it. What is not named here goes by rendezvous hashing. The record says where
a bundle is to be; who owns it is said by its ephemeral key alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.metadata.paths import Paths
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, Unsubscribe
from octavo.proto import records_pb2
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    IllegalStateError,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    OctavoError,
    UnsupportedVersion,
    VersionConflict,
)
from octavo.runtime.tasks import TaskOwner
from octavo.runtime.telemetry import get_logger

FORMAT_VERSION = 1
RETRY_S = 0.5
"""Pause before a read that failed is tried again."""

_log = get_logger("octavo.metadata.placements")


class Placed(NamedTuple):
    """The record as it was read."""

    brokers: Mapping[int, str]
    """The broker that each moved bundle is for."""
    version: int | None
    """None: there is no record yet."""

    @classmethod
    def from_bytes(cls, data: bytes, version: int) -> Placed:
        """Parse; raises MetadataCorrupt, or UnsupportedVersion for a newer form."""
        record = records_pb2.PlacementRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"placement of bundles: {error}") from error
        if record.format_version > FORMAT_VERSION:
            raise UnsupportedVersion(f"placement of bundles in form {record.format_version}")
        if not record.format_version or any(not one.broker_id for one in record.bundles):
            raise MetadataCorrupt("placement of bundles without form or broker")
        return cls({one.bundle: one.broker_id for one in record.bundles}, version)


NOTHING = Placed({}, None)


class Placements:
    """The record, cached and followed by watch; the cache keeps its last contents meanwhile."""

    def __init__(
        self, store: MetadataStore, paths: Paths, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._key = paths.placement
        self._clock = clock
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)
        self._seen = NOTHING
        self._dirty = asyncio.Event()
        self._changed = asyncio.Event()  # replaced at every change: each waiter sees the next one
        self._tasks = TaskOwner("placements")
        self._unsubscribe: Unsubscribe = lambda: None

    async def start(self) -> None:
        """Load once and follow; raises MetadataUnavailable.

        A record that cannot be read counts as none, which is logged: bundles go by hashing.
        """
        self._unsubscribe = self._store.watch(self._key, lambda _key: self._dirty.set())
        await self._refresh()
        self._tasks.spawn(self._follow(), name="follow")

    async def close(self) -> None:
        """Follow no more; what was seen stays readable."""
        self._unsubscribe()
        await self._tasks.close()

    def brokers(self) -> Mapping[int, str]:
        """The broker that each moved bundle is for, as last seen."""
        return self._seen.brokers

    async def wait_changed(self) -> None:
        """Return after the next change."""
        await self._changed.wait()

    async def read(self) -> Placed:
        """The record as of now; raises MetadataUnavailable, MetadataCorrupt, UnsupportedVersion."""
        found = await self._writes.read(self._key)
        return NOTHING if found is None else Placed.from_bytes(found.value, found.version)

    async def replace(self, before: Placed, brokers: Mapping[int, str]) -> bool:
        """Whether `brokers` stands now in the place of `before`; False: somebody else was first.

        Raises UnknownOutcome, MetadataUnavailable: then it may stand there.
        """
        record = records_pb2.PlacementRecord(
            format_version=FORMAT_VERSION,
            bundles=[
                records_pb2.PlacedBundle(bundle=bundle, broker_id=broker)
                for bundle, broker in sorted(brokers.items())
            ],
            writer_token=self._entropy.token(),  # recognises our own write (M-3)
        )
        value = record.SerializeToString(deterministic=True)
        try:
            if before.version is None:
                version = await self._writes.create(self._key, value, lasting=True)
            else:
                version = await self._writes.put(self._key, value, before.version)
        except (KeyExists, KeyMissing, VersionConflict):
            return False
        self._see(Placed(dict(brokers), version))
        return True

    async def _refresh(self) -> None:
        try:
            self._see(await self.read())
        except (MetadataCorrupt, UnsupportedVersion) as error:  # M-7: alarm, go on
            _log.error("placement-unreadable", key=self._key, cause=error.cause)

    def _see(self, seen: Placed) -> None:
        before, self._seen = self._seen, seen
        if seen.brokers != before.brokers:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._refresh()
            except IllegalStateError:
                return  # the store was closed under us
            except OctavoError as error:
                _log.info("placement-not-read", cause=error.cause)
                await self._clock.sleep(RETRY_S)
                self._dirty.set()
