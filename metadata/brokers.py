"""Brokers as the metadata store knows them: registration and directory (O-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.metadata.directory import Directory
from octavo.metadata.paths import Paths
from octavo.metadata.registration import TAKEN_WAIT_S, Registration
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore
from octavo.proto import records_pb2
from octavo.runtime.clock import Clock, SystemClock
from octavo.runtime.errors import (
    IllegalStateError,
    KeyMissing,
    MetadataCorrupt,
    VersionConflict,
)


@dataclass(frozen=True)
class BrokerInfo:
    """One broker process and where clients reach it."""

    broker_id: str
    address: str
    """host:port as advertised to clients."""
    process_nonce: bytes = b""
    """Unique to one run of the process: tells a restarted broker from its predecessor."""
    started_ms: int = 0

    def to_bytes(self) -> bytes:
        """The registration as stored."""
        return records_pb2.BrokerRegistration(
            broker_id=self.broker_id,
            address=self.address,
            process_nonce=self.process_nonce,
            started_ms=self.started_ms,
        ).SerializeToString(deterministic=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> BrokerInfo:
        """Parse; raises MetadataCorrupt."""
        record = records_pb2.BrokerRegistration()
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise MetadataCorrupt(f"broker registration: {error}") from error
        if not record.broker_id or not record.address:
            raise MetadataCorrupt("broker registration without id or address")
        return cls(record.broker_id, record.address, record.process_nonce, record.started_ms)


def _parse(_folder: str, data: bytes) -> BrokerInfo:
    return BrokerInfo.from_bytes(data)


class BrokerDirectory:
    """Live brokers, cached and followed by watch."""

    def __init__(self, store: MetadataStore, paths: Paths, *, clock: Clock | None = None) -> None:
        self._directory: Directory[BrokerInfo] = Directory(
            store, (paths.brokers,), _parse, clock=clock or SystemClock()
        )

    async def start(self) -> None:
        """Load and follow; raises MetadataUnavailable."""
        await self._directory.start()

    async def close(self) -> None:
        """Stop following."""
        await self._directory.close()

    def live(self) -> list[BrokerInfo]:
        """Registered brokers in order of id."""
        return self._directory.live()

    def find(self, broker_id: str) -> BrokerInfo | None:
        """The registration of one broker."""
        return next((b for b in self.live() if b.broker_id == broker_id), None)

    async def wait_changed(self) -> None:
        """Return after the next change."""
        await self._directory.wait_changed()

    async def refresh(self) -> None:
        """Read everything anew, without waiting for a watch."""
        await self._directory.refresh()


async def unregister(
    store: MetadataStore, paths: Paths, broker: BrokerInfo, *, clock: Clock
) -> bool:
    """Delete the registration of one life of a broker that is to be replaced.

    True: it is gone. False: another life is registered. Its process may live: it registers anew.
    """
    writes = SettledWrites(store, clock)
    key = paths.broker(broker.broker_id)

    def is_it(stored: bytes) -> bool:
        return BrokerInfo.from_bytes(stored).process_nonce == broker.process_nonce

    found = await writes.read(key)
    if found is None:
        return True
    if not is_it(found.value):
        return False
    try:
        await writes.delete(key, found.version, same_life=is_it)
    except KeyMissing:
        return True
    except VersionConflict:
        return False
    return True


class BrokerRegistrar:
    """Keeps one broker registered, across sessions.

    Args:
        renewed: who the broker is when its registration is gone and made again.
        on_present: called after it was made again.
    """

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        info: BrokerInfo,
        *,
        clock: Clock,
        on_taken: Callable[[], None] | None = None,
        renewed: Callable[[], BrokerInfo] | None = None,
        on_present: Callable[[], None] | None = None,
    ) -> None:
        if not info.process_nonce:
            raise IllegalStateError("a broker registers with a process nonce (B-28)")
        self._registration = Registration(
            store,
            paths.broker(info.broker_id),
            info.to_bytes(),
            clock=clock,
            on_taken=on_taken,
            renewed=None if renewed is None else lambda: renewed().to_bytes(),
            on_present=on_present,
        )

    @property
    def present(self) -> bool:
        """True while, as far as we know, the registration exists."""
        return self._registration.present

    async def register(self, taken_wait_s: float = TAKEN_WAIT_S) -> None:
        """Register; raises IllegalStateError when another process holds the id (B-28)."""
        await self._registration.establish(taken_wait_s)

    async def stands(self) -> bool:
        """Whether we were registered at some moment during the call."""
        return await self._registration.stands()

    async def close(self) -> None:
        """Unregister."""
        await self._registration.withdraw()

    async def abandon(self) -> None:
        """Register never again; the registration goes with the session."""
        await self._registration.abandon()
