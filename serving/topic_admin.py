"""Create, list and delete topics (F015, F016, F051, F133-F135, ML-9).

A name is not an identity: a deletion is of the topic that had the name when it was read, or of the
one the request names by id; a topic created again meanwhile is left alone.

A deletion marks the topic first, so that no owner opens it again; then each partition's list is
emptied into its trash by compare-and-set (which ends its owner, ledger §8.3), its ledgers are
closed and deleted, then its record; then its exported files (F088), at last the topic. A crash
leaves a marked topic: `resume` finishes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from octavo.metadata.topics import (
    PartitionCatalog,
    Topic,
    TopicCatalog,
    VersionedPartition,
    VersionedTopic,
    check_for_users,
    is_internal,
)
from octavo.runtime.clock import Clock
from octavo.runtime.errors import (
    InconsistentTopicId,
    InvalidConfig,
    InvalidPartitions,
    InvalidRequest,
    KeyMissing,
    NoSuchLedger,
    OctavoError,
    RetriableError,
    TopicAlreadyExists,
    UnknownOutcome,
    UnknownTopic,
    VersionConflict,
)
from octavo.runtime.ids import LedgerId
from octavo.runtime.telemetry import get_logger
from octavo.serving import segments as lists
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_config import (
    CONFIG_ENTRIES_MAX,
    check_replication,
    check_tier_root,
    parse_topic_config,
)

CONCURRENT_PARTITIONS = 16
FENCE_TIMEOUT_S = 5.0
"""Closing a deleted topic's ledger is best effort: admission (6.12) keeps late writers out."""
LIST_LIMIT_MAX = 1_000
LIST_PARTITIONS_MAX = 20_000
"""A page ends with the topic that reaches so many: about one MiB of reply."""
CREATION_TOKEN_BYTES_MAX = 64

_log = get_logger("octavo.serving.topics")


class TopicAdmin:
    """Topic administration; any broker may do it."""

    def __init__(
        self,
        topics: TopicCatalog,
        partitions: PartitionCatalog,
        backend: LedgerBackend,
        *,
        config: BrokerConfig,
        clock: Clock,
        live_bookies: Callable[[], int],
        drop_topic: Callable[[Topic], Awaitable[None]],
        delete_files: Callable[[Topic], Awaitable[None]],
        store_answers: StoreAnswers,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._backend = backend
        self._config = config
        self._clock = clock
        self._live_bookies = live_bookies
        self._drop_topic = drop_topic
        self._delete_files = delete_files
        self._store_answers = store_answers
        self._deleting: dict[str, asyncio.Lock] = {}

    async def create(
        self, name: str, partitions: int, config: Mapping[str, str], creation_token: bytes = b""
    ) -> Topic:
        """A new topic.

        Raises InvalidTopic, InvalidPartitions, InvalidConfig, InvalidReplicationFactor or
        TopicAlreadyExists.

        A topic that was made by the same `creation_token` is the answer to a repetition.
        """
        if len(creation_token) > CREATION_TOKEN_BYTES_MAX:
            raise InvalidRequest(f"a creation token of {len(creation_token)} bytes is too long")
        limit = self._config.max_partitions_per_topic
        if not 1 <= partitions <= limit:
            raise InvalidPartitions(f"{partitions} is not between 1 and {limit}")
        if len(config) > CONFIG_ENTRIES_MAX:
            raise InvalidConfig(f"{len(config)} settings are too many")
        settings = parse_topic_config(config, self._config)
        check_tier_root(settings, self._config)
        try:
            # Only before the first write: what comes after it may have happened.
            found = (await self._store_answers.during(self._topics.get(name))).topic
        except UnknownTopic:
            check_replication(settings, self._live_bookies())
        else:
            return _same_creation(found, creation_token)
        try:
            made = await self._topics.create(
                name, partitions, config, creation_token=creation_token
            )
            return made.topic
        except TopicAlreadyExists as error:
            if "existing" in error.details:
                raise
            return _same_creation(await self._read(name), creation_token)

    async def _read(self, name: str) -> Topic:
        return (await self._topics.get(name, barrier=True)).topic

    async def list(
        self, *, include_internal: bool, after: str, limit: int
    ) -> tuple[list[Topic], bool]:
        """A page of topics behind that name, and whether more may follow (F028, F135).

        In an order of the store's, which stays the same; of topics with many partitions fewer.
        """
        size = min(limit, LIST_LIMIT_MAX) if limit > 0 else LIST_LIMIT_MAX
        found, more = await self._topics.page(
            after,
            size,
            lambda topic: not topic.deleting and (include_internal or not is_internal(topic.name)),
        )
        page: list[Topic] = []
        partitions = 0
        for topic, _ in found:
            page.append(topic)
            partitions += topic.partitions
            if partitions >= LIST_PARTITIONS_MAX:
                break
        return page, more or len(page) < len(found)

    async def delete(self, name: str, topic_id: bytes = b"") -> None:
        """Delete the topic and its data; with `topic_id` only if it is that one.

        Raises UnknownTopic; InvalidTopic for one of the cluster's own; InconsistentTopicId when
        another topic has the name by now.
        """
        check_for_users(name)
        found = await self._store_answers.during(self._topics.get(name, barrier=True))
        if topic_id and found.topic.topic_id.bytes != topic_id:
            raise _another(found.topic)
        await self._delete(found)

    async def resume(self, *, thorough: bool) -> None:
        """Finish deletions that a crash interrupted.

        `thorough` reads every topic instead of the notes that deletions leave.
        """
        for versioned in await (self._topics.list() if thorough else self._topics.unfinished()):
            if versioned.topic.deleting:
                _log.info("topic-deletion-resumes", topic=versioned.topic.name)
                await self._delete(versioned)

    async def _delete(self, versioned: VersionedTopic) -> None:
        name = versioned.topic.name
        lock = self._deleting.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                await self._delete_locked(versioned)
        finally:
            if not lock.locked():
                self._deleting.pop(name, None)

    async def _delete_locked(self, versioned: VersionedTopic) -> None:
        if not versioned.topic.deleting:
            try:
                versioned = await self._topics.mark_deleting(versioned)
            except VersionConflict:
                found = await self._topics.get(versioned.topic.name, barrier=True)
                if found.topic.topic_id != versioned.topic.topic_id:
                    raise _another(found.topic) from None
                versioned = found
                if not versioned.topic.deleting:
                    versioned = await self._topics.mark_deleting(versioned)
        try:
            await self._remove_marked(versioned)
        except RetriableError as error:  # whatever it says of its own step: the deletion began
            raise UnknownOutcome(
                f"topic {versioned.topic.name!r} is marked as deleted and its data are being "
                f"removed, which met: {error.cause}",
                hint="a broker finishes it by itself; look again later",
            ) from error

    async def _remove_marked(self, versioned: VersionedTopic) -> None:
        topic = versioned.topic
        await self._drop_topic(topic)
        gate = asyncio.Semaphore(CONCURRENT_PARTITIONS)

        async def remove(partition: int) -> None:
            async with gate:
                await self._remove_partition(topic, partition)

        await asyncio.gather(*(remove(partition) for partition in range(topic.partitions)))
        await self._delete_files(topic)
        try:
            await self._topics.delete(versioned)
        except VersionConflict:  # somebody else finished this deletion, and the name is in use
            _log.info("topic-name-in-use-again", topic=topic.name)
        _log.info("topic-deleted", topic=topic.name)

    async def _remove_partition(self, topic: Topic, partition: int) -> None:
        record = await self._empty(topic, partition)
        if record is None:
            return
        for item in record.state.trash:
            await self._delete_ledger(item.ledger_id)
        await self._partitions.delete(record)

    async def _empty(self, topic: Topic, partition: int) -> VersionedPartition | None:
        while True:
            record = await self._partitions.read(topic.topic_id, partition)
            if record is None:
                return None
            wanted = lists.emptied(record.state, "topic deleted", self._clock.wall_ms())
            try:
                return await self._partitions.cas(record, wanted)
            except (VersionConflict, UnknownOutcome):
                continue  # its owner rolled just now, or ours may be in: the next list tells
            except KeyMissing:
                return None

    async def _delete_ledger(self, ledger_id: LedgerId) -> None:
        try:
            async with asyncio.timeout(FENCE_TIMEOUT_S):
                await self._backend.recover_ledger(ledger_id)
        except NoSuchLedger:
            return
        except (OctavoError, TimeoutError) as error:
            _log.info("deleted-ledger-not-fenced", ledger_id=ledger_id, cause=str(error))
        try:
            await self._backend.delete_ledger(ledger_id)
        except NoSuchLedger:
            return


def _same_creation(found: Topic, creation_token: bytes) -> Topic:
    """`found` when this very request made it earlier and its reply was lost (M-3)."""
    if creation_token and found.creation_token == creation_token and not found.deleting:
        return found
    if found.deleting:
        raise TopicAlreadyExists(
            f"topic {found.name!r} was deleted, and its data are still being removed",
            hint="its name is free once they are; try again later",
            topic=found.name,
        )
    raise TopicAlreadyExists(f"topic {found.name!r} exists", topic=found.name)


def _another(found: Topic) -> InconsistentTopicId:
    return InconsistentTopicId(
        f"topic {found.name!r} was created again meanwhile: its id is {found.topic_id.hex}",
        hint="the topic that was meant is gone already; the new one was left alone",
        topic=found.name,
    )
