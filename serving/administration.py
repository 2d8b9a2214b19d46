"""Topics as one broker administers them: created, changed, deleted, and deletions seen through.

Owns what does each (`topic_admin`, `topic_changes`) and when deletions that some broker began are
gone on with: by the first broker of the fleet, every `RESUME_DELETIONS_TICKS` ticks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from octavo.metadata.topics import PartitionCatalog, Topic, TopicCatalog
from octavo.runtime.clock import Clock
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.config import BrokerConfig
from octavo.serving.ledger_backend import LedgerBackend
from octavo.serving.registry import PartitionRegistry
from octavo.serving.store_answers import StoreAnswers
from octavo.serving.topic_admin import TopicAdmin
from octavo.serving.topic_changes import TopicChanges
from octavo.serving.topic_directory import TopicDirectory

RESUME_DELETIONS_TICKS = 60

_log = get_logger("octavo.serving.administration")


class Administration:
    """Of one broker.

    Args:
        delete_files: of a topic that is being deleted; again after a crash.
        is_first: whether this broker goes on with what others began.
    """

    def __init__(
        self,
        catalog: TopicCatalog,
        partitions: PartitionCatalog,
        backend: LedgerBackend,
        *,
        topics: TopicDirectory,
        registry: PartitionRegistry,
        delete_files: Callable[[Topic], Awaitable[None]],
        live_bookies: Callable[[], int],
        is_first: Callable[[], bool],
        config: BrokerConfig,
        clock: Clock,
        store_answers: StoreAnswers,
    ) -> None:
        self._topics = topics
        self._registry = registry
        self._is_first = is_first
        self._ticks = 0
        self._thorough = True
        """Once in a process: a note may have been lost."""
        self.admin = TopicAdmin(
            catalog,
            partitions,
            backend,
            config=config,
            clock=clock,
            live_bookies=live_bookies,
            drop_topic=self._drop_topic,
            delete_files=delete_files,
            store_answers=store_answers,
        )
        self.changes = TopicChanges(
            catalog,
            partitions,
            config=config,
            clock=clock,
            live_bookies=live_bookies,
            changed=topics.forget,
            store_answers=store_answers,
        )

    async def tick(self) -> None:
        """Once in `housekeeping_interval_s`; what fails is gone on with later."""
        self._ticks += 1
        if self._ticks % RESUME_DELETIONS_TICKS or not self._is_first():
            return
        try:
            await self.admin.resume(thorough=self._thorough)
            self._thorough = False
        except OctavoError as error:
            _log.info("deletions-not-resumed", cause=error.cause)

    async def _drop_topic(self, topic: Topic) -> None:
        self._topics.forget(topic.name)
        await self._registry.drop_topic(topic.topic_id)
