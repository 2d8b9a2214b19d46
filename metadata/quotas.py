"""What single clients may use of a broker, by client id (X24, S19; ADR 52).

One versioned record for the whole cluster, replaced by compare-and-set and followed by watch: a
change counts at every broker within the time of a watch, without a restart. A quota slows down, it
guards nothing: a record that cannot be read leaves the last one that could in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
CLIENTS_MAX = 1_000
"""Clients with quotas of their own in one cluster: the record stays far below a store's limit."""

_log = get_logger("octavo.metadata.quotas")


class QuotaLimits(NamedTuple):
    """What a client id may use of one broker; None: not said, 0: as much as it can."""

    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    requests_per_s: int | None = None
    connections_max: int | None = None


class StoredQuotas(NamedTuple):
    """The record as it was read."""

    clients: Mapping[str, QuotaLimits]
    version: int | None
    """None: there is no record yet."""

    @classmethod
    def from_bytes(cls, data: bytes, version: int) -> StoredQuotas:
        """Parse; raises MetadataCorrupt, or UnsupportedVersion for a newer form."""
        record = records_pb2.QuotaRecord()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"quotas of clients: {error}") from error
        if record.format_version > FORMAT_VERSION:
            raise UnsupportedVersion(f"quotas of clients in form {record.format_version}")
        clients = {one.client_id: _limits_of(one) for one in record.clients}
        values = [value for limits in clients.values() for value in limits if value is not None]
        if not record.format_version or any(value < 0 for value in values):
            raise MetadataCorrupt("quotas of clients without form, or below 0")
        return cls(clients, version)


NO_QUOTAS = StoredQuotas({}, None)


def _limits_of(one: records_pb2.ClientQuota) -> QuotaLimits:
    return QuotaLimits(
        one.bytes_in_per_s if one.HasField("bytes_in_per_s") else None,
        one.bytes_out_per_s if one.HasField("bytes_out_per_s") else None,
        one.requests_per_s if one.HasField("requests_per_s") else None,
        one.connections_max if one.HasField("connections_max") else None,
    )


class QuotaCatalog:
    """The record, cached and followed.

    Args:
        changed: called with what every client may use, after each change and once at the start.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        *,
        clock: Clock,
        entropy: Entropy,
        changed: Callable[[Mapping[str, QuotaLimits]], None],
    ) -> None:
        self._store = store
        self._key = paths.quotas
        self._clock = clock
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)
        self._changed = changed
        self._dirty = asyncio.Event()
        self._tasks = TaskOwner("quotas")
        self._unsubscribe: Unsubscribe = lambda: None

    async def start(self) -> None:
        """Load once and follow; raises MetadataUnavailable."""
        self._unsubscribe = self._store.watch(self._key, lambda _key: self._dirty.set())
        await self._refresh()
        self._tasks.spawn(self._follow(), name="follow")

    async def close(self) -> None:
        """Follow no more."""
        self._unsubscribe()
        await self._tasks.close()

    async def read(self) -> StoredQuotas:
        """The record as of now; raises MetadataUnavailable, MetadataCorrupt, UnsupportedVersion."""
        found = await self._writes.read(self._key)
        return NO_QUOTAS if found is None else StoredQuotas.from_bytes(found.value, found.version)

    async def replace(self, before: StoredQuotas, clients: Mapping[str, QuotaLimits]) -> bool:
        """Whether `clients` stands now in the place of `before`; False: somebody else was first.

        Raises UnknownOutcome, MetadataUnavailable: then it may stand there.
        """
        record = records_pb2.QuotaRecord(
            format_version=FORMAT_VERSION,
            clients=[
                records_pb2.ClientQuota(client_id=client_id, **limits._asdict())
                for client_id, limits in sorted(clients.items())
            ],
            writer_token=self._entropy.token(),  # recognises our own write (M-3)
        )
        value = record.SerializeToString(deterministic=True)
        try:
            if before.version is None:
                await self._writes.create(self._key, value, lasting=True)
            else:
                await self._writes.put(self._key, value, before.version)
        except (KeyExists, KeyMissing, VersionConflict):
            return False
        self._dirty.set()  # whoever wrote it needs no watch
        return True

    async def _refresh(self) -> None:
        try:
            self._changed((await self.read()).clients)
        except (MetadataCorrupt, UnsupportedVersion) as error:  # M-7: alarm, go on
            _log.error("quotas-unreadable", key=self._key, cause=error.cause)

    async def _follow(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._refresh()
            except IllegalStateError:
                return  # the store was closed under us
            except OctavoError as error:
                _log.info("quotas-not-read", cause=error.cause)
                await self._clock.sleep(RETRY_S)
                self._dirty.set()
