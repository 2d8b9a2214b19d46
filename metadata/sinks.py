"""What sinks publish: one decision for each numbered batch, made once (ADR 67).

A sink is a writer that may run a batch again, with other records at other borders: a query of
Spark. It stages a batch where no reader looks, then asks for a decision: which of the staged
copies *is* the batch. The first one that asks decides, by one compare-and-set of the sink's record;
everybody who asks later is told that decision, and may finish what it says. What is decided is
published through a producer that partitions never forget, under an epoch of its own, with
sequences from 0: whoever sends it, however often, it is stored once (I2).

`decided` and `published` are pure; `SinkCatalog` carries them out against the store.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import EPOCH_SHIFT, ProducerIdAllocator
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore
from octavo.proto import records_pb2
from octavo.proto.kept_producers import PRODUCER_EPOCH_MAX, kept_id, ordinary_id
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    InvalidRequest,
    KeyExists,
    MetadataCorrupt,
    UnknownOutcome,
    UnsupportedVersion,
    VersionConflict,
)

FORMAT_VERSION = 1
SINK_ID_BYTES_MAX = 512
PLAN_BYTES_MAX = 16 << 10
"""A plan says where the batch lies; what it consists of is stored there."""
ATTEMPTS_MAX = 16
"""Compare-and-sets of one decision; each but the first follows a read."""
NO_BATCH = -1


class Sink(NamedTuple):
    """What is known of one sink."""

    sink_id: str
    batch_id: int = NO_BATCH
    """The one that was decided last."""
    plan: bytes = b""
    """Of that batch; once it is published, it says what need not be staged any more."""
    is_published: bool = True
    """Whether all of that batch is in the log."""
    producer_id: int = -1
    producer_epoch: int = -1
    decided_ms: int = -1

    @property
    def id_epoch(self) -> int:
        """Of the ids among which its producer's was drawn; it grows when a backup is restored."""
        return ordinary_id(self.producer_id) >> EPOCH_SHIFT


class Identity(NamedTuple):
    """Through whom a batch is published."""

    producer_id: int
    producer_epoch: int


def needs_decision(sink: Sink, batch_id: int) -> bool:
    """Whether `batch_id` may be decided now.

    False: it is decided already, or later ones are, or the one before it is not published.
    """
    return batch_id > sink.batch_id and sink.is_published


def next_identity(sink: Sink, id_epoch: int) -> Identity | None:
    """Through whom the next batch goes; None: through a new producer, from epoch 0 on.

    Not through one that was drawn before a backup was restored: since that backup it may have
    published what the restored record knows nothing of, under the epochs that come now (ADR 23).
    """
    known = sink.producer_id >= 0 and sink.id_epoch == id_epoch
    if not known or sink.producer_epoch >= PRODUCER_EPOCH_MAX:
        return None
    return Identity(sink.producer_id, sink.producer_epoch + 1)


def decided(sink: Sink, batch_id: int, plan: bytes, by: Identity, now_ms: int) -> Sink:
    """The sink with this batch decided; only where `needs_decision`."""
    return Sink(sink.sink_id, batch_id, plan, False, by.producer_id, by.producer_epoch, now_ms)


def published(sink: Sink, batch_id: int) -> Sink:
    """The sink with this batch in the log; of an earlier one nothing is to be noted.

    Raises InvalidRequest for a batch that nobody decided.
    """
    if batch_id > sink.batch_id:
        raise InvalidRequest(
            f"batch {batch_id} of sink {sink.sink_id!r} was never decided; the last one is "
            f"{sink.batch_id}"
        )
    if batch_id < sink.batch_id or sink.is_published:
        return sink
    return sink._replace(is_published=True)


def check_sink_id(sink_id: str) -> None:
    """Raise InvalidRequest unless it may be the id of a sink."""
    size_bytes = len(sink_id.encode())
    if not 0 < size_bytes <= SINK_ID_BYTES_MAX:
        raise InvalidRequest(
            f"the id of a sink has 1 to {SINK_ID_BYTES_MAX} bytes, not {size_bytes}"
        )


def to_bytes(sink: Sink, nonce: bytes) -> bytes:
    """As it is stored."""
    return records_pb2.SinkRecord(
        format_version=FORMAT_VERSION,
        sink_id=sink.sink_id,
        batch_id=sink.batch_id,
        plan=sink.plan,
        published=sink.is_published,
        producer_id=sink.producer_id,
        producer_epoch=sink.producer_epoch,
        decided_ms=sink.decided_ms,
        nonce=nonce,
    ).SerializeToString()


def from_bytes(data: bytes, sink_id: str) -> Sink:
    """Parse; raises MetadataCorrupt, or UnsupportedVersion for a newer form."""
    record = records_pb2.SinkRecord()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise MetadataCorrupt(f"record of sink {sink_id!r}: {error}") from error
    if record.format_version > FORMAT_VERSION:
        raise UnsupportedVersion(f"sink {sink_id!r} in form {record.format_version}")
    if (
        not record.format_version
        or record.sink_id != sink_id
        or record.batch_id < 0
        or not 0 <= record.producer_epoch <= PRODUCER_EPOCH_MAX
    ):
        raise MetadataCorrupt(f"the record of sink {sink_id!r} contradicts itself")
    return Sink(
        sink_id,
        record.batch_id,
        record.plan,
        record.published,
        record.producer_id,
        record.producer_epoch,
        record.decided_ms,
    )


class SinkCatalog:
    """The records of sinks; any broker may change one, and asking again is safe."""

    def __init__(
        self,
        store: MetadataStore,
        paths: Paths,
        producer_ids: ProducerIdAllocator,
        *,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._paths = paths
        self._writes = SettledWrites(store, clock)
        self._producer_ids = producer_ids
        self._clock = clock
        self._entropy = entropy

    async def read(self, sink_id: str) -> Sink:
        """What is decided now, proved fresh; raises InvalidRequest, MetadataUnavailable."""
        return (await self._read(sink_id))[0]

    async def decide(self, sink_id: str, batch_id: int, plan: bytes) -> Sink:
        """Decide a batch, unless one is to be published before, or it is decided already.

        What is returned says which: of this batch the plan that counts, of a later one that this
        one is published, of an earlier one that is not published what comes first. Raises
        InvalidRequest, MetadataUnavailable; UnknownOutcome: ask again.
        """
        if batch_id < 0 or not 0 < len(plan) <= PLAN_BYTES_MAX:
            raise InvalidRequest(
                f"batch {batch_id} with a plan of {len(plan)} bytes: batches count from 0, and a "
                f"plan has 1 to {PLAN_BYTES_MAX} bytes"
            )
        for _ in range(ATTEMPTS_MAX):
            sink, version = await self._read(sink_id)
            if not needs_decision(sink, batch_id):
                return sink
            by = next_identity(sink, await self._producer_ids.epoch())
            if by is None:
                by = Identity(kept_id(await self._producer_ids.allocate()), 0)
            wanted = decided(sink, batch_id, plan, by, self._clock.wall_ms())
            if await self._written(wanted, version):
                return wanted
        raise UnknownOutcome(f"sink {sink_id!r} kept changing while a batch was decided")

    async def published(self, sink_id: str, batch_id: int) -> None:
        """Note that all of a batch is in the log. Raises as `decide`."""
        for _ in range(ATTEMPTS_MAX):
            sink, version = await self._read(sink_id)
            wanted = published(sink, batch_id)
            if wanted == sink or await self._written(wanted, version):
                return
        raise UnknownOutcome(f"sink {sink_id!r} kept changing while a batch was noted")

    async def _read(self, sink_id: str) -> tuple[Sink, int | None]:
        check_sink_id(sink_id)
        found = await self._writes.read(self._paths.sink(sink_id))
        if found is None:
            return Sink(sink_id), None
        return from_bytes(found.value, sink_id), found.version

    async def _written(self, sink: Sink, version: int | None) -> bool:
        """Whether it is stored; False: somebody else was first (M-1), or a new look tells (M-3)."""
        key, value = self._paths.sink(sink.sink_id), to_bytes(sink, self._entropy.token())
        try:
            if version is None:
                await self._writes.create(key, value, lasting=True)
            else:
                await self._writes.put(key, value, version)
        except (KeyExists, VersionConflict, UnknownOutcome):
            return False
        return True
