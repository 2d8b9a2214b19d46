"""Topics and the segment lists of their partitions (spec/ledger.md §8.1, F015, F016, F026).

Owns the two record formats and their rules. A topic is stored under its folded name, so a
collision of "." and "_" is refused atomically. A partition's list changes only by
compare-and-set; `last_writer_token` makes every write's bytes unique, so that a lost reply can
be settled (M-3, ML-7).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from octavo.metadata.keys import GET_MANY_MAX, SCAN_KEYS_MAX
from octavo.metadata.ledger_record import LedgerMetadata
from octavo.metadata.partition_record import PartitionState, TrashedLedger
from octavo.metadata.paths import Paths
from octavo.metadata.scanning import SCAN_LIMIT
from octavo.metadata.settled import SettledWrites
from octavo.metadata.store import Found, MetadataStore, Put, Unsubscribe, Versioned
from octavo.metadata.topic_record import (
    PARTITIONS_MAX,
    Decommissioned,
    Topic,
    check_for_users,
    check_topic_name,
    is_internal,
)
from octavo.metadata.version_floor import VersionFloor
from octavo.proto.segments import Segment
from octavo.runtime.clock import Clock
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import (
    InvalidPartitions,
    KeyExists,
    KeyMissing,
    MetadataCorrupt,
    TopicAlreadyExists,
    UnknownOutcome,
    UnknownTopic,
    UnsupportedVersion,
)
from octavo.runtime.invariant import invariant
from octavo.runtime.telemetry import get_logger

__all__ = [
    "Decommissioned",
    "PartitionCatalog",
    "PartitionHint",
    "PartitionState",
    "Segment",
    "Topic",
    "TopicCatalog",
    "TrashedLedger",
    "VersionedPartition",
    "VersionedTopic",
    "check_for_users",
    "check_topic_name",
    "is_internal",
]

CREATE_ATTEMPTS_MAX = 4
"""Lost replies tolerated in one creation, each answered with a new life of the name."""

_log = get_logger("octavo.metadata.topics")


class VersionedTopic(NamedTuple):
    """A topic and the version the next update must name."""

    topic: Topic
    version: int


_Keys = list[str]
_Found = list[VersionedTopic]
"""Under names of their own: in the catalog `list` is a method."""


class TopicCatalog:
    """Create, find, list, change and delete topics."""

    def __init__(
        self, store: MetadataStore, paths: Paths, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._paths = paths
        self._clock = clock
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)

    async def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
        creation_token: bytes = b"",
    ) -> VersionedTopic:
        """A new topic.

        Raises InvalidTopic, InvalidPartitions, TopicAlreadyExists (F015), UnknownOutcome.
        """
        check_topic_name(name, internal=internal)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(f"{partitions} is not between 1 and {PARTITIONS_MAX}")
        return await self._create(
            Topic(
                name=name,
                topic_id=self._entropy.uuid(),
                partitions=partitions,
                config=dict(config or {}),
                created_ms=self._clock.wall_ms(),
                creation_token=creation_token,
            )
        )

    async def _create(self, topic: Topic) -> VersionedTopic:
        """A lost creation whose record is not there may have been deleted by somebody else.

        The next attempt is another life of the name, with an id of its own (M-3).
        """
        key = self._paths.topic(topic.name)
        for _ in range(CREATE_ATTEMPTS_MAX):
            try:
                version = await self._writes.create(key, topic.to_bytes(), is_ours=topic.is_life)
            except KeyExists:
                raise await self._collision(topic.name) from None
            except UnknownOutcome:
                if await self._writes.read(key) is not None:
                    raise
            else:
                if version == 0:
                    return VersionedTopic(topic, version)
                return await self.get(topic.name, barrier=True)  # ours, changed meanwhile
            topic = replace(topic, topic_id=self._entropy.uuid())
        raise UnknownOutcome(f"the creation of topic {topic.name!r} could not be settled")

    async def _collision(self, name: str) -> TopicAlreadyExists:
        found = await self._writes.read(self._paths.topic(name))
        other = Topic.from_bytes(found.value).name if found else name
        if other == name:
            return TopicAlreadyExists(f"topic {name!r} exists", topic=name)
        return TopicAlreadyExists(
            f"topic {name!r} collides with {other!r}: names may not differ only in '.' and '_'",
            topic=name,
            existing=other,
        )

    async def get(self, name: str, *, barrier: bool = False) -> VersionedTopic:
        """The topic; raises UnknownTopic only after a barrier read (M-4)."""
        key = self._paths.topic(check_topic_name(name, internal=True))
        found = None if barrier else await self._store.get(key)
        if found is None:
            found = await self._writes.read(key)
        if found is not None:
            topic = Topic.from_bytes(found.value)
            if topic.name == name:
                return VersionedTopic(topic, found.version)
        raise UnknownTopic(f"topic {name!r} does not exist", topic=name)

    async def list(self) -> list[VersionedTopic]:
        """All topics in order of name, those being deleted included.

        Unreadable records are skipped (M-7).
        """
        found = (await self._scan(await self._shards(), "", None, lambda topic: True))[0]
        return sorted(found, key=lambda item: item.topic.name)

    async def page(
        self, after: str, limit: int, wanted: Callable[[Topic], bool]
    ) -> tuple[_Found, bool]:
        """Up to `limit` topics that are `wanted`, behind the name `after`; whether more may follow.

        In order of their keys: a page costs the directories that it lies in and a few more, however
        many topics there are.
        """
        first, name = _directory_and_name(self._paths, after)
        shards = [shard for shard in await self._shards() if shard >= first]
        found, more = await self._scan(shards, name if shards[:1] == [first] else "", limit, wanted)
        return found[:limit], more or len(found) > limit

    async def _shards(self) -> _Keys:
        return await self._writes.children(self._paths.topics)

    async def _scan(
        self, shards: _Keys, after: str, limit: int | None, wanted: Callable[[Topic], bool]
    ) -> tuple[_Found, bool]:
        """The `wanted` topics of these directories in their order, of the first one behind `after`.

        With a `limit` it ends when there are more than that; whether others may follow then.
        """
        found: _Found = []
        count, read = SCAN_KEYS_MAX, 0
        while shards and (limit is None or len(found) <= limit):
            enough = SCAN_LIMIT if limit is None else limit + 1 - len(found)
            keys = [f"{self._paths.topics}/{shard}" for shard in shards[:count]]
            for key, part in zip(keys, await self._store.scan(keys, after, enough), strict=False):
                readable = (_readable(f"{key}/{name}", value) for name, value in part.children)
                found += [item for item in readable if item is not None and wanted(item.topic)]
                after = part.more_after
                if after:  # what lies behind comes before the next directory
                    break
                shards, read = shards[1:], read + 1
            if limit is not None:
                count = _directories_for(limit + 1 - len(found), len(found), read)
        return found, bool(shards)

    async def update(self, old: VersionedTopic, new: Topic) -> VersionedTopic:
        """Compare and set. Partitions never shrink (F026). Raises VersionConflict, UnknownTopic."""
        if not old.topic.partitions <= new.partitions <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"{new.name} has {old.topic.partitions} partitions, cannot have {new.partitions}"
            )
        try:
            version = await self._writes.put(
                self._paths.topic(old.topic.name),
                new.to_bytes(),
                old.version,
                same_life=old.topic.is_life,
            )
        except KeyMissing:
            raise UnknownTopic(f"topic {old.topic.name!r} does not exist") from None
        return VersionedTopic(new, version)

    async def mark_deleting(self, old: VersionedTopic) -> VersionedTopic:
        """First step of a deletion: from now on no owner opens its partitions.

        It is noted beside the topics before, so that `unfinished()` need not read them all.
        """
        name = old.topic.name.encode()
        with suppress(KeyExists):  # noted by an attempt that went no further
            await self._writes.create(self._paths.deletion(old.topic.topic_id), name)
        return await self.update(old, replace(old.topic, deleting=True))

    async def delete(self, old: VersionedTopic) -> None:
        """Last step of a deletion: remove the record, after its partitions and ledgers are gone."""
        try:
            await self._writes.delete(
                self._paths.topic(old.topic.name), old.version, same_life=old.topic.is_life
            )
        except KeyMissing:
            if await self._writes.read(self._paths.topic(old.topic.name)) is not None:
                raise UnknownOutcome("the topic was created again meanwhile") from None
        await self._forget_deletion(self._paths.deletion(old.topic.topic_id))

    async def unfinished(self) -> _Found:
        """Topics whose deletion was begun and noted, and not finished.

        As many reads as there are notes, however many topics exist. Notes of topics that are gone
        are removed.
        """
        found: _Found = []
        for note in await self._writes.children(self._paths.deletions):
            key = f"{self._paths.deletions}/{note}"
            entry = await self._store.get(key)
            if entry is None:
                continue
            try:
                topic = await self.get(entry.value.decode(), barrier=True)
            except UnknownTopic:
                await self._forget_deletion(key)
                continue
            if topic.topic.topic_id.hex != note:
                await self._forget_deletion(key)
            elif topic.topic.deleting:
                found.append(topic)
        return sorted(found, key=lambda versioned: versioned.topic.name)

    async def _forget_deletion(self, key: str) -> None:
        with suppress(KeyMissing):
            await self._writes.delete(key, None)

    def watch_topic(self, name: str, on_change: Callable[[], None]) -> Unsubscribe:
        """Call `on_change()` after the topic was created, changed or deleted, or spuriously.

        Raises InvalidTopic.
        """
        key = self._paths.topic(check_topic_name(name, internal=True))
        return self._store.watch(key, lambda _key: on_change())


def _directories_for(enough: int, found: int, read: int) -> int:
    """How many directories to read next for `enough` topics, where `read` of them gave `found`.

    One more than that: what is read in vain costs less than another round trip.
    """
    return min(SCAN_KEYS_MAX, 1 + -(-enough * read // found)) if found else SCAN_KEYS_MAX


def _directory_and_name(paths: Paths, after: str) -> tuple[str, str]:
    """Where a page begins; both empty for the first one."""
    if not after:
        return "", ""
    directory, _, name = paths.topic(after).removeprefix(f"{paths.topics}/").partition("/")
    return directory, name


def _readable(key: str, found: Versioned | MetadataCorrupt) -> VersionedTopic | None:
    """A record as it was scanned; what cannot be used is logged (M-7)."""
    try:
        if isinstance(found, MetadataCorrupt):
            raise found
        return VersionedTopic(Topic.from_bytes(found.value), found.version)
    except (MetadataCorrupt, UnsupportedVersion) as error:
        _log.error("topic-record-unreadable", key=key, cause=error.cause)
        return None


class VersionedPartition(NamedTuple):
    """A partition's state and the version the next compare-and-set must name."""

    state: PartitionState
    version: int


PartitionHint = VersionedPartition | MetadataCorrupt | UnsupportedVersion | None
"""What one server sees of a partition; None: not opened yet, as far as it knows."""


def _hint(topic_id: uuid.UUID, partition: int, found: Found) -> PartitionHint:
    if found is None or isinstance(found, MetadataCorrupt):
        return found
    try:
        state = PartitionState.from_bytes(found.value, topic_id, partition)
    except (MetadataCorrupt, UnsupportedVersion) as error:
        return error
    return VersionedPartition(state, found.version)


class PartitionCatalog:
    """Segment lists of partitions: read, create, compare-and-set, delete."""

    def __init__(
        self, store: MetadataStore, paths: Paths, *, clock: Clock, entropy: Entropy
    ) -> None:
        self._store = store
        self._paths = paths
        self._entropy = entropy
        self._writes = SettledWrites(store, clock)
        self._floor = VersionFloor()

    async def read(self, topic_id: uuid.UUID, partition: int) -> VersionedPartition | None:
        """Linearizable (M-4); None when the partition was never opened.

        Raises MetadataCorrupt or UnsupportedVersion: the partition exists but must not be served
        (M-7), also when its version went back.
        """
        key = self._paths.partition(topic_id, partition)
        floor = self._floor.of(key)
        found = await self._writes.read(key)
        if found is None:
            return None
        self._floor.check(key, found.version, floor)
        state = PartitionState.from_bytes(found.value, topic_id, partition)
        return VersionedPartition(state, found.version)

    async def read_hint(self, topic_id: uuid.UUID, partition: int) -> VersionedPartition | None:
        """As one server sees it: for descriptions and split planning, never for ownership."""
        (found,) = await self.read_hints([(topic_id, partition)])
        if isinstance(found, MetadataCorrupt | UnsupportedVersion):
            raise found
        return found

    async def read_hints(self, wanted: Sequence[tuple[uuid.UUID, int]]) -> list[PartitionHint]:
        """`read_hint` of each, `GET_MANY_MAX` with one request; an error is a value here."""
        hints: list[PartitionHint] = []
        for start in range(0, len(wanted), GET_MANY_MAX):
            some = wanted[start : start + GET_MANY_MAX]
            found = await self._store.get_many([self._paths.partition(*one) for one in some])
            hints += (_hint(*one, value) for one, value in zip(some, found, strict=True))
        return hints

    async def create(self, state: PartitionState) -> VersionedPartition:
        """The first list of a partition; raises KeyExists, UnknownOutcome."""
        signed = self._signed(state)
        key = self._paths.partition(state.topic_id, state.partition)
        return VersionedPartition(signed, await self._writes.create(key, signed.to_bytes()))

    async def cas(
        self,
        old: VersionedPartition,
        new: PartitionState,
        *,
        creates: LedgerMetadata | None = None,
    ) -> VersionedPartition:
        """Replace the list (ML-4, ML-7). The returned state carries a fresh `last_writer_token`.

        `creates`: with it, in one transaction, the record of a ledger that `new` names. So no
        ledger of a partition exists that its list never named (ML-9), and a list that moved on
        lets nobody create one late.

        Raises VersionConflict (someone else changed it: start over), KeyMissing (topic deleted),
        KeyExists (the ledger's id was used before), MetadataUnavailable (nothing happened in any
        of these), UnknownOutcome.
        """
        old.state.check_successor(new)
        signed = self._signed(new)
        key = self._paths.partition(new.topic_id, new.partition)
        data = signed.to_bytes()
        if creates is None:
            version = await self._writes.put(key, data, old.version)
        else:
            invariant(
                new.knows(creates.ledger_id), "a ledger is created by the list that names it (ML-9)"
            )
            ledger = self._paths.ledger(creates.ledger_id)
            put = Put(key, data, old.version)
            version = await self._writes.create_and_put(ledger, creates.checked_bytes(), put)
        self._floor.saw(key, version)
        return VersionedPartition(signed, version)

    async def delete(self, old: VersionedPartition) -> None:
        """Remove the record of a partition whose topic is being deleted.

        Gone already is success.
        """
        key = self._paths.partition(old.state.topic_id, old.state.partition)
        with suppress(KeyMissing):
            await self._writes.delete(key, old.version)
        self._floor.forget(key)

    def watch(
        self, topic_id: uuid.UUID, partition: int, on_change: Callable[[], None]
    ) -> Unsubscribe:
        """Call `on_change()` after the list changed."""
        key = self._paths.partition(topic_id, partition)
        return self._store.watch(key, lambda _key: on_change())

    def _signed(self, state: PartitionState) -> PartitionState:
        return replace(state, last_writer_token=self._entropy.token())
