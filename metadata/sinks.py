"""What sinks publish: one decision for each numbered batch, made once (ADR 67).

A sink is a writer that may run a batch again, with other records at other borders: a query of
Spark. It stages a batch where no reader looks, then asks for a decision: which of the staged
copies *is* the batch. The first one that asks decides, by one compare-and-set of the sink's record;
everybody who asks later is told that decision, and may finish what it says. What is decided is
published through a producer that partitions never forget, under an epoch of its own, with
sequences from 0: whoever sends it, however often, it is stored once (I2).

What nobody decided on is swept some day (ADR 74). The record says what is gone before it goes, and
a decision that rests on it is refused: both are compare-and-sets of one record, so that one of them
is first.

What turns one state into the next is pure; `SinkCatalog` carries it out against the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from octavo.metadata.paths import Paths
from octavo.metadata.producer_ids import EPOCH_SHIFT, ProducerIdAllocator
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import MetadataStore, Versioned
from octavo.proto import records_pb2
from octavo.proto.kept_producers import PRODUCER_EPOCH_MAX, kept_id, ordinary_id
from octavo.proto.sink_staging import StagingName, sink_digest, split_sink_digest
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
from octavo.runtime.errors_of_writers import SinkEnded, SinkLimitReached, StagedDataGone
from octavo.runtime.telemetry import get_logger

FORMAT_VERSION = 2
"""Written only where a broker of form 1 would lose something by it."""
SINK_ID_BYTES_MAX = 512
PLAN_BYTES_MAX = 16 << 10
"""A plan says where the batch lies; what it consists of is stored there."""
ATTEMPTS_MAX = 16
"""Compare-and-sets of one decision; each but the first follows a read."""
PAGE_MAX = 500
"""Sinks of one page."""
SCAN_KEYS_MAX = 16
"""Directories that are read with one request."""
SINKS_OF_A_DIRECTORY_MAX = 256
"""Records that one of the 4,096 directories takes; a new sink beyond is refused, for none that is
there may be forgotten (ADR 77). About 800,000 sinks fill the first directory."""
GENERATION_MAX = (1 << 29) - 1
NO_BATCH = -1

_log = get_logger("octavo.metadata.sinks")


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
    generation: int = 0
    """Of the topic in which it stages; earlier ones are gone, or about to go."""
    swept_to: int = 0
    """Of that topic: what lies before is gone, or about to go."""
    is_ended: bool = False
    """By an operator, for ever."""
    touched_ms: int = -1
    """When the record was changed last."""

    @property
    def id_epoch(self) -> int:
        """Of the ids among which its producer's was drawn; it grows when a backup is restored."""
        return ordinary_id(self.producer_id) >> EPOCH_SHIFT


class StagedAt(NamedTuple):
    """Where the staged records lie that a plan names."""

    generation: int
    first_offset: int
    """None lies before it."""


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
    return sink._replace(
        batch_id=batch_id,
        plan=plan,
        is_published=False,
        producer_id=by.producer_id,
        producer_epoch=by.producer_epoch,
        decided_ms=now_ms,
        touched_ms=now_ms,
    )


def check_decidable(sink: Sink, staged: StagedAt | None) -> None:
    """Raise unless a plan that names what is `staged` may be decided; None: it names nothing.

    SinkEnded: an operator ended it. StagedDataGone: it is swept, at least in part.
    """
    if sink.is_ended:
        raise SinkEnded(f"sink {sink.sink_id!r} was ended")
    if staged is None:
        return
    if staged.generation != sink.generation or staged.first_offset < sink.swept_to:
        raise StagedDataGone(
            f"what this batch of sink {sink.sink_id!r} staged is swept: it was left for too long"
        )


def swept(sink: Sink, generation: int, before: int) -> Sink | None:
    """The sink with what it staged below offset `before` given up; None: it is to be kept.

    Never while something is decided and not published.
    """
    if sink.is_published and sink.generation == generation:
        return sink._replace(swept_to=max(sink.swept_to, before))
    return None


def retired(sink: Sink, generation: int) -> Sink | None:
    """The sink with its whole staging topic given up; None: it is to be kept."""
    if sink.is_published and sink.generation == generation < GENERATION_MAX:
        return sink._replace(generation=generation + 1, swept_to=0)
    return None


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


def unknown_sink(sink_id: str) -> InvalidRequest:
    """That nobody knows it."""
    return InvalidRequest(
        f"there is no sink {sink_id!r}", hint="`octavo sink list` shows those there are"
    )


def to_bytes(sink: Sink, nonce: bytes) -> bytes:
    """As it is stored."""
    is_new = sink.batch_id < 0 or sink.generation or sink.swept_to or sink.is_ended
    return records_pb2.SinkRecord(
        format_version=FORMAT_VERSION if is_new else 1,
        sink_id=sink.sink_id,
        batch_id=sink.batch_id,
        plan=sink.plan,
        published=sink.is_published,
        producer_id=sink.producer_id,
        producer_epoch=sink.producer_epoch,
        decided_ms=sink.decided_ms,
        nonce=nonce,
        generation=sink.generation,
        swept_to=sink.swept_to,
        ended=sink.is_ended,
        touched_ms=sink.touched_ms,
    ).SerializeToString()


def from_bytes(data: bytes, digest: str) -> Sink:
    """Parse what lies under a digest; raises MetadataCorrupt, UnsupportedVersion: a newer form."""
    record = records_pb2.SinkRecord()
    try:
        record.ParseFromString(data)
    except DecodeError as error:
        raise MetadataCorrupt(f"record of sink {digest}: {error}") from error
    sink_id = record.sink_id
    if record.format_version > FORMAT_VERSION:
        raise UnsupportedVersion(f"sink {sink_id!r} in form {record.format_version}")
    is_decided = record.batch_id >= 0 and 0 <= record.producer_epoch <= PRODUCER_EPOCH_MAX
    is_open = record.batch_id == NO_BATCH and record.published and record.format_version > 1
    if (
        not record.format_version
        or sink_digest(sink_id) != digest
        or not (is_decided or is_open)
        or record.swept_to < 0
        or record.generation > GENERATION_MAX
    ):
        raise MetadataCorrupt(f"the record of sink {sink_id!r} at {digest} contradicts itself")
    return Sink(
        sink_id,
        record.batch_id,
        record.plan,
        record.published,
        record.producer_id,
        record.producer_epoch,
        record.decided_ms,
        record.generation,
        record.swept_to,
        record.ended,
        max(record.touched_ms, record.decided_ms),
    )


def _readable(digest: str, found: Versioned | MetadataCorrupt) -> Sink | None:
    """A record as it was scanned; what cannot be used is logged (M-7)."""
    try:
        if isinstance(found, MetadataCorrupt):
            raise found
        return from_bytes(found.value, digest)
    except (MetadataCorrupt, UnsupportedVersion) as error:
        _log.error("sink-record-unreadable", digest=digest, cause=error.cause)
        return None


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
        self._store = store
        self._writes = SettledWrites(store, clock)
        self._producer_ids = producer_ids
        self._clock = clock
        self._entropy = entropy

    async def read(self, sink_id: str) -> Sink:
        """What is decided now, proved fresh; raises InvalidRequest, MetadataUnavailable."""
        return (await self._read(sink_id))[0]

    async def decide(
        self, sink_id: str, batch_id: int, plan: bytes, staged: StagedAt | None
    ) -> Sink:
        """Decide a batch, unless one is to be published before, or it is decided already.

        What is returned says which: of this batch the plan that counts, of a later one that this
        one is published, of an earlier one that is not published what comes first. Raises
        InvalidRequest, MetadataUnavailable, SinkLimitReached, and as `check_decidable`;
        UnknownOutcome: ask again.
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
            check_decidable(sink, staged)
            by = next_identity(sink, await self._producer_ids.epoch())
            if by is None:
                by = Identity(kept_id(await self._producer_ids.allocate()), 0)
            wanted = decided(sink, batch_id, plan, by, self._clock.wall_ms())
            if await self._written(wanted, version):
                return wanted
        raise UnknownOutcome(f"sink {sink_id!r} kept changing while a batch was decided")

    async def published(self, sink_id: str, batch_id: int) -> None:
        """Note that all of a batch is in the log. Raises as `decide`."""
        await self._change(sink_id, lambda sink: published(sink, batch_id))

    async def open(self, sink_id: str) -> Sink:
        """The sink, with a record from now on: it is about to stage. Raises as `decide`."""
        for _ in range(ATTEMPTS_MAX):
            sink, version = await self._read(sink_id)
            wanted = sink._replace(touched_ms=self._clock.wall_ms())
            if version is not None:
                return sink
            if await self._written(wanted, version):
                return wanted
        raise UnknownOutcome(f"sink {sink_id!r} kept changing while it was opened")

    async def end(self, sink_id: str) -> Sink:
        """Nothing of it is decided from now on. As `decide`; InvalidRequest: there is none."""

        def ended(sink: Sink) -> Sink:
            if sink.touched_ms < 0:
                raise unknown_sink(sink_id)
            return sink._replace(is_ended=True)

        found = await self._change(sink_id, ended)
        assert found is not None  # `ended` never is None
        return found

    async def sweep(self, sink: Sink, before: int) -> bool:
        """Whether what it staged below `before` is given up, in the record; see `swept`."""
        found = await self._change(sink.sink_id, lambda now: swept(now, sink.generation, before))
        return found is not None

    async def retire(self, sink: Sink) -> bool:
        """Whether its staging topic is given up, in the record: `sink` is how it was seen.

        False as well when anything happened to it since. Raises as `decide`.
        """

        def unseen(now: Sink) -> Sink | None:
            return retired(now, sink.generation) if now == sink else None

        return await self._change(sink.sink_id, unseen) is not None

    async def of_staging(self, name: StagingName) -> Sink | None:
        """The sink that stages, or staged, in a topic of that name; None: it has no record.

        Raises MetadataUnavailable, MetadataCorrupt, UnsupportedVersion.
        """
        directory, beginning = split_sink_digest(name.digest)
        for rest in await self._writes.children(f"{self._paths.sinks}/{directory}"):
            if rest.startswith(beginning):
                digest = directory + rest
                found = await self._writes.read(self._paths.sink_of_digest(digest))
                return None if found is None else from_bytes(found.value, digest)
        return None

    async def page(self, after: str, limit: int) -> tuple[list[Sink], str]:
        """Sinks behind a digest, in order of theirs, and the digest behind which others follow.

        Unreadable ones are left out (M-7). Raises MetadataUnavailable.
        """
        limit = min(limit, PAGE_MAX) if limit > 0 else PAGE_MAX
        first, name = split_sink_digest(after)
        directories = sorted(await self._writes.children(self._paths.sinks))
        directories = [one for one in directories if one >= first]
        if directories[:1] != [first]:
            name = ""
        found: list[Sink] = []
        while directories and len(found) <= limit:
            keys = [f"{self._paths.sinks}/{one}" for one in directories[:SCAN_KEYS_MAX]]
            scanned = await self._store.scan(keys, name, limit + 1 - len(found))
            for directory, part in zip(directories[:SCAN_KEYS_MAX], scanned, strict=False):
                listed = (_readable(directory + child.name, child.found) for child in part.children)
                found += [one for one in listed if one is not None]
                name = part.more_after
                if name:
                    break
                directories = directories[1:]
        page = found[:limit]
        return page, sink_digest(page[-1].sink_id) if len(found) > limit else ""

    async def _change(self, sink_id: str, change: Callable[[Sink], Sink | None]) -> Sink | None:
        """The sink once `change` is made of it; None, and nothing done, if that is what it says."""
        for _ in range(ATTEMPTS_MAX):
            sink, version = await self._read(sink_id)
            wanted = change(sink)
            if wanted is None or wanted == sink:
                return wanted
            wanted = wanted._replace(touched_ms=self._clock.wall_ms())
            if await self._written(wanted, version):
                return wanted
        raise UnknownOutcome(f"sink {sink_id!r} kept changing")

    async def _read(self, sink_id: str) -> tuple[Sink, int | None]:
        check_sink_id(sink_id)
        found = await self._writes.read(self._paths.sink(sink_id))
        if found is None:
            return Sink(sink_id), None
        return from_bytes(found.value, sink_digest(sink_id)), found.version

    async def _check_room(self, sink_id: str) -> None:
        """Those who ask at the same moment may go beyond the bound, by as many as they are."""
        directory, _ = split_sink_digest(sink_digest(sink_id))
        there = await self._writes.children(f"{self._paths.sinks}/{directory}")
        if len(there) >= SINKS_OF_A_DIRECTORY_MAX:
            raise SinkLimitReached(
                f"the cluster takes no new sink like {sink_id!r}: {len(there)} share its directory",
                hint="write at least once, or go on with a checkpoint that there is",
            )

    async def _written(self, sink: Sink, version: int | None) -> bool:
        """Whether it is stored; False: somebody else was first (M-1), or a new look tells (M-3).

        Raises SinkLimitReached for a new one where there is no room.
        """
        key, value = self._paths.sink(sink.sink_id), to_bytes(sink, self._entropy.token())
        try:
            if version is None:
                await self._check_room(sink.sink_id)
                await self._writes.create(key, value, lasting=True)
            else:
                await self._writes.put(key, value, version)
        except (KeyExists, VersionConflict, UnknownOutcome):
            return False
        return True
