"""Topics that a member names and that do not exist: who misspelt one hears of it (F106).

A group reads a topic as soon as it exists, so a missing one is a warning, once for each
subscription; with `allow_missing_topics` off, and for what no topic can be called, an error.

The same look tells which partitions there were: those that come later are read from their start
(F6), as a reader does that follows a topic. The coordinator tells of those that came behind the
subscription of the group: before this member joined it, or of topics that a pattern matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.user_code import ClientLog
from octavo.proto.errors import from_wire
from octavo.runtime.errors import OctavoError, UnknownTopic

_log = ClientLog("octavo.client")


class WantedTopics:
    """Of one consumer.

    Args:
        tell: called when there is an error for the next reading call.
    """

    def __init__(
        self, cluster: Cluster, tasks: LostTasks, *, may_miss: bool, tell: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._may_miss = may_miss
        self._tell = tell
        self._names: tuple[str, ...] = ()
        self._found: dict[str, tuple[bytes, int]] = {}
        """Topic id and number of partitions of each as it was first found; of what was missing:
        no id."""
        self.later: Mapping[bytes, int] = {}
        """By topic id the first partition that came behind the group's subscription, of what was
        assigned last."""
        self.error: OctavoError | None = None
        """Of the newest look; `again` takes it back."""

    def look_for(self, names: Iterable[str]) -> None:
        """These are wanted from now on."""
        self._names = tuple(names)
        self._found = {name: found for name, found in self._found.items() if name in self._names}
        self.again()

    def came_later(self, slot: Slot) -> bool:
        """Whether the partition, or the topic of that name, was made behind the subscription.

        False while that is not known.
        """
        first = self.later.get(slot.topic_id)
        if first is not None and slot.partition >= first:
            return True
        found = self._found.get(slot.topic)
        if found is None:
            return False
        topic_id, partitions = found
        return slot.topic_id != topic_id or slot.partition >= partitions

    def again(self) -> None:
        """Look anew, in the background."""
        self.error = None
        if self._names:
            names = self._names
            again = partial(self.look_for, names)
            self._tasks.start(self._look(names), "looking for topics", again)

    async def _look(self, names: tuple[str, ...]) -> None:
        backoff = self._cluster.calls.backoff()
        while self._names is names:
            try:
                reply = await self._cluster.topics.metadata(names)
            except OctavoError as error:
                _log.debug("whether %s exist is not known yet: %s", names, error)
                await self._cluster.clock.sleep(backoff.next_s())
                continue
            except Exception as error:  # noqa: BLE001 - the next reading call raises it
                _log.exception("whether %s exist", names)
                self.error = our_fault("looking for topics", error)
                self._tell()
                return
            found = {
                one.name: from_wire(one.error) for one in reply.topics if one.HasField("error")
            }
            if self._names is names:
                for one in reply.topics:
                    if one.name not in found:
                        self._found.setdefault(one.name, (one.topic_id, len(one.partitions)))
                    elif isinstance(found[one.name], UnknownTopic):
                        self._found.setdefault(one.name, (b"", 0))
                self._judge(found)
            return

    def _judge(self, found: dict[str, OctavoError]) -> None:
        for name, error in found.items():
            if self._may_miss and isinstance(error, UnknownTopic):
                _log.warning("topic %r does not exist yet; it is read as soon as it does", name)
            elif not error.retriable and self.error is None:
                self.error = error
                self._tell()
