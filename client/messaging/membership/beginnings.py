"""Where the partitions of a member begin: what the group committed, else as the policy says.

The shell of RB11 step 5 (O5, F6). Runs on the client's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from octavo.client.messaging.cluster.cluster import Cluster
from octavo.client.messaging.membership.assigned import AssignedReadings
from octavo.client.messaging.membership.committing import Committing
from octavo.client.messaging.membership.values import Begin, Slot, places
from octavo.client.messaging.reading.lost_tasks import LostTasks
from octavo.client.messaging.reading.reading_errors import our_fault
from octavo.client.messaging.user_code import ClientLog
from octavo.runtime.errors import OctavoError
from octavo.runtime.errors_of_groups import CommitFailed, FencedInstanceId

_log = ClientLog("octavo.client")


class Beginnings:
    """Of one consumer.

    Args:
        reset: name of the policy where nothing is committed, for the log.
        later: whether a partition came to its topic behind the subscription; `latest` is not for
            it: what is in it was sent since.
        wanted: whether positions of the change with that number are still to be found.
        found: called when they are known, or their look-up goes on in the background.
        tell: called with what waiting does not heal.
    """

    def __init__(
        self,
        cluster: Cluster,
        commits: Committing,
        readings: AssignedReadings,
        tasks: LostTasks,
        *,
        reset: str,
        later: Callable[[Slot], bool],
        wanted: Callable[[int], bool],
        found: Callable[[int], None],
        tell: Callable[[OctavoError], None],
    ) -> None:
        self._cluster = cluster
        self._commits = commits
        self._readings = readings
        self._tasks = tasks
        self._reset = reset
        self._later = later
        self._wanted = wanted
        self._found = found
        self._tell = tell

    def find(self, begin: Begin) -> None:
        """In the background, until the coordinator says them, or they are lost again."""
        self._tasks.start(self._find(begin), "finding committed offsets", partial(self.find, begin))

    async def _find(self, begin: Begin) -> None:
        backoff = self._cluster.calls.backoff()
        limit_s = self._cluster.calls.request_timeout_s
        while self._wanted(begin.number):
            try:
                found = await self._commits.committed(begin.slots, limit_s, as_member=True)
            except OctavoError as error:
                _log.warning("committed offsets of %s: %s", begin.slots[0].where, error.cause)
                self._failed(error)
                await self._cluster.clock.sleep(backoff.next_s())
                continue
            except Exception as error:  # noqa: BLE001 - the next reading call raises it
                _log.exception("committed offsets of %s", begin.slots[0].where)
                self._failed(our_fault("finding committed offsets", error))
                await self._cluster.clock.sleep(backoff.next_s())
                continue
            if not self._wanted(begin.number):
                return
            self.at(begin.slots, {slot: value.offset for slot, value in found.items()})
            self._found(begin.number)

    def _failed(self, error: OctavoError) -> None:
        membership = isinstance(error, CommitFailed | FencedInstanceId)  # a heartbeat tells
        if not error.retriable and not membership:
            self._tell(error)

    def at(self, slots: Iterable[Slot], committed: Mapping[Slot, int]) -> None:
        """Partitions that are new here, with what is committed of them."""
        anew = [slot for slot in slots if slot not in committed]
        later = [slot for slot in anew if self._reset == "latest" and self._later(slot)]
        self._readings.add(slots, committed, later)
        self._commits.core.known(committed)
        if later:
            names = ", ".join(map(str, places(later)))
            _log.info("%s came to its topic behind the subscription: read from its start", names)
        anew = [slot for slot in anew if slot not in later]
        if anew:
            names = ", ".join(map(str, places(anew)))
            _log.info("nothing is committed of %s: %s", names, self._reset)
