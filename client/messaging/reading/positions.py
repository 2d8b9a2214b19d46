"""Where a partition is read from: first positions, resets, refusals, lives of a topic. Pure.

A position is chosen once (F6). It moves by itself only on proof: the present owner named a range
that it lies outside of (F5), or the topic that it was in is another one now. What is not known
(no answer, no owner, an error of whatever kind) never moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.client.messaging.cluster.search_pauses import search_pause_s
from octavo.client.messaging.cluster.topic_lives import TopicView, created_again
from octavo.client.messaging.reading.buffers import Buffers
from octavo.client.messaging.reading.reading_errors import beyond_the_end
from octavo.client.messaging.reading.readings import (
    Action,
    AskRange,
    LearnTopic,
    LifeIsOver,
    LookUp,
    Mark,
    OwnerIs,
    Reading,
    ReadingSettings,
    Say,
    Tell,
)
from octavo.client.messaging.reading.requests import Requests
from octavo.client.messaging.reading.retries import Retries
from octavo.client.messaging.records import TopicPartition
from octavo.runtime.errors import (
    CorruptBatch,
    InconsistentTopicId,
    InvariantViolation,
    LogTruncated,
    NoOffsetForPartition,
    NotLeader,
    OctavoError,
    OffsetOutOfRange,
    UnknownTopic,
)

ABOVE_END_ATTEMPTS = 3
"""F5: a position above the end is asked about this often before it counts as truncated."""
UNKNOWN_TOPIC_ATTEMPTS = 10
"""After this many refusals in a row poll() raises; before, the topic may just be new."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """What a look-up found: an offset for each of its partitions, and the topics they are in."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[TopicPartition, bytes]


@dataclass(frozen=True, slots=True)
class Range:
    """What an owner said: records from `start` up to and without `end`, in which topic."""

    start: int
    end: int
    topic_id: bytes = b""


class Positions:
    """Moves the positions of the readings of `buffers`."""

    def __init__(
        self,
        buffers: Buffers,
        requests: Requests,
        settings: ReadingSettings,
        retries: Retries,
        views: Mapping[str, TopicView],
    ) -> None:
        self._buffers = buffers
        self._requests = requests
        self._reset = settings.reset
        self._retries = retries
        self._views = views
        self.followed: dict[str, str | int] = {}
        """Topics read by name, all partitions, with the policy of their first positions."""

    def move(self, reading: Reading, offset: int, policy: str | int = "") -> None:
        """Go on at `offset` (-1: as `policy` will tell); drops what belonged to the old one."""
        self._buffers.clear(reading)
        reading.position = reading.fetch_at = offset
        reading.policy = policy
        reading.error = None
        reading.corrupt_at = -1
        reading.above_end = reading.failures = 0
        reading.retry_at_s = 0.0
        reading.chosen = reading.out_of_range = False
        reading.topic_id = b""

    def known_id(self, where: TopicPartition) -> bytes:
        """Id of the topic as last heard; empty: not known."""
        view = self._views.get(where.topic)
        return b"" if view is None else view.topic_id

    def known_owner(self, where: TopicPartition) -> str:
        """What the last metadata say; empty for a partition that they do not have."""
        view = self._views.get(where.topic)
        return view.owners[where.partition] if view and where.partition < view.partitions else ""

    # --- look-ups (F6) --------------------------------------------------------------------------

    def unknown(self, readings: Iterable[Reading], now_s: float) -> list[Action]:
        """Begin to look up the positions of these readings, each by its policy."""
        by_policy: dict[str | int, list[Reading]] = {}
        for reading in readings:
            by_policy.setdefault(reading.policy, []).append(reading)
        actions: list[Action] = []
        for policy, some in by_policy.items():
            if policy == "none":
                self._refuse_to_choose(some, now_s)
                actions.append(Tell())
                continue
            for reading in some:
                reading.looking = True
            marks = tuple(Mark(reading, reading.generation) for reading in some)
            actions.append(LookUp(marks, policy))
        return actions

    def _refuse_to_choose(self, readings: list[Reading], now_s: float) -> None:
        names = ", ".join(str(reading.where) for reading in readings)
        for reading in readings:
            self._later(reading, now_s)
            reading.error = NoOffsetForPartition(
                f"no position for {names} and auto_offset_reset is none",
                hint="seek() before the first poll, or choose earliest or latest",
            )

    def looked_up(self, work: LookUp, found: Offsets, now_s: float) -> list[Action]:
        """Take positions in, once and for all (F6).

        One in another topic than metadata name is in none: whichever of the two is out of date,
        taking it would begin a reading whose life is over.
        """
        actions: list[Action] = []
        for mark in work.marks:
            if not mark.current:
                continue
            reading = mark.reading
            topic_id = found.topic_ids.get(reading.where, b"")
            if self._contradicts(topic_id, self.known_id(reading.where)):
                reading.looking = False
                self._later(reading, now_s)
                actions.append(LearnTopic(reading.where.topic))
            else:
                self.move(reading, found.offsets[reading.where])
                reading.topic_id = topic_id
        return actions

    @staticmethod
    def _contradicts(one: bytes, other: bytes) -> bool:
        """Whether these are different topics; an id that is not known contradicts nothing."""
        return bool(one and other and one != other)

    def _later(self, reading: Reading, now_s: float) -> None:
        """Once more failed: try again after a while."""
        reading.failures += 1
        reading.retry_at_s = now_s + self._retries.delay_s(reading.failures)

    def look_up_failed(self, work: LookUp, error: OctavoError, now_s: float) -> None:
        """Try again later, after poll() raised what cannot heal by itself."""
        for mark in work.marks:
            if mark.current:
                reading = mark.reading
                reading.looking = False
                reading.error = error
                self._later(reading, now_s)

    # --- refusals -------------------------------------------------------------------------------

    def refused(self, reading: Reading, error: OctavoError, now_s: float) -> list[Action]:
        """An owner refused the position, or none was found."""
        self._later(reading, now_s)
        if isinstance(error, OffsetOutOfRange):
            reading.out_of_range = True
            reading.retry_at_s = 0.0
        elif isinstance(error, InconsistentTopicId):
            return self._refused_life(reading)
        elif isinstance(error, CorruptBatch):
            self._buffers.damaged(reading, error)
        elif isinstance(error, NotLeader):
            reading.owner = str(error.details.get("owner_address", ""))
            if reading.owner and reading.failures == 1:
                reading.retry_at_s = 0.0
            return [OwnerIs(reading.where, reading.owner)]
        elif isinstance(error, UnknownTopic):
            reading.owner = ""
            if reading.failures >= UNKNOWN_TOPIC_ATTEMPTS:
                reading.error = error
                reading.failures = 0
            return [OwnerIs(reading.where, "")]
        elif not error.retriable:
            reading.error = error
        return []

    def no_owner(self, reading: Reading, error: OctavoError, now_s: float) -> list[Action]:
        """A look for its owner found none; `error` may name one after all."""
        reading.searching = True
        actions: list[Action] = []
        if isinstance(error, OffsetOutOfRange | InconsistentTopicId | CorruptBatch):
            self._later(reading, now_s)  # who is asked for an owner knows nothing of the position
        else:
            actions = self.refused(reading, error, now_s)
        if not reading.owner:
            searching = sum(one.searching for one in self._buffers.readings.values())
            delay_s = self._retries.delay_s(reading.failures)
            reading.retry_at_s = now_s + search_pause_s(delay_s, error, searching)
        return actions

    # --- ranges (F5) ----------------------------------------------------------------------------

    def range_told(self, work: AskRange, told: Range, now_s: float) -> list[Action]:
        """Continue, try again or reset, as the owner's range says."""
        reading, where = work.mark.reading, work.mark.reading.where
        if not work.mark.current:
            return []
        reading.ranging = reading.out_of_range = False
        reading.retry_at_s = now_s + self._retries.delay_s(1)
        at = reading.fetch_at
        if self._contradicts(told.topic_id, reading.topic_id):
            return [LearnTopic(where.topic)]  # the range of another topic proves nothing
        if told.start <= at <= told.end:
            return []
        if at > told.end and reading.above_end < ABOVE_END_ATTEMPTS:
            reading.above_end += 1
        elif reading.chosen and at > told.end and self._reset != "none":
            reading.error = beyond_the_end(where, at, told.end)
        elif self._reset == "none":
            kind = LogTruncated if at > told.end else OffsetOutOfRange
            reading.error = kind(
                f"position {at} of {where} is outside {told.start}..{told.end} and "
                "auto_offset_reset is none",
                hint="seek() to an offset in the range",
                log_start=told.start,
                end=told.end,
            )
        else:
            self.move(reading, -1, self._reset)
            reading.retry_at_s = now_s + self._retries.delay_s(1)  # edges may contradict each other
            reset = self._reset if isinstance(self._reset, str) else f"by_time:{self._reset}"
            outside = f"position {at} of {where} is outside {told.start}..{told.end}"
            return [Say(f"{outside}, reset to {reset}")]
        return []

    def range_unknown(self, work: AskRange, error: OctavoError, now_s: float) -> list[Action]:
        """Nothing is known, so nothing moves; the next fetch finds out again."""
        reading = work.mark.reading
        if not work.mark.current:
            return []
        reading.ranging = reading.out_of_range = False
        reading.retry_at_s = now_s + self._retries.delay_s(reading.failures)
        if isinstance(error, InvariantViolation):
            reading.error = error
            return []
        return [Say(f"range of {reading.where} is not known yet: {error.cause}")]

    # --- lives of a topic -----------------------------------------------------------------------

    def _refused_life(self, reading: Reading) -> list[Action]:
        """The owner says that the topic of this position is gone and another one has its name."""
        topic = reading.where.topic
        actions: list[Action] = [LifeIsOver(topic, reading.topic_id)]
        if topic not in self.followed or self._requests.ends is not None:
            reading.error = self._over(reading)
        view = self._views.get(topic)
        return actions if view is None else actions + self.view_changed(view)

    @staticmethod
    def _over(reading: Reading) -> InconsistentTopicId:
        fate = f"position {reading.position} of {reading.where} was in the old one"
        return created_again(reading.where.topic, fate)

    def view_changed(self, view: TopicView) -> list[Action]:
        """Metadata came: go on in the topic's next life, or say that a position has none (F6)."""
        readings = self._buffers.readings
        mine = [reading for reading in readings.values() if reading.where.topic == view.name]
        over = [
            reading
            for reading in mine
            if self._contradicts(reading.topic_id, view.topic_id)
            or reading.where.partition >= view.partitions
        ]
        if view.name not in self.followed or (over and self._requests.ends is not None):
            for reading in over:
                if reading.error is None:
                    reading.error = self._over(reading)
            return []
        known = {reading.where.partition for reading in mine}
        fresh = [TopicPartition(view.name, n) for n in range(view.partitions) if n not in known]
        if not over and not fresh:
            return []
        # What is met later was written later: "latest" was chosen once, at the beginning (F6).
        policy = self.followed[view.name]
        start = "earliest" if policy == "latest" else policy
        gone = {reading.where for reading in over if reading.where.partition >= view.partitions}
        new = self._buffers.assign([*(where for where in readings if where not in gone), *fresh])
        for reading in new:
            reading.policy = start
        for reading in over:
            if reading.where not in gone:
                self.move(reading, -1, start)
                reading.owner = ""
        if not over:
            return []
        return [
            Say(
                f"topic {view.name} was deleted and created again; reading goes on at the start of "
                f"the new one ({view.partitions} partitions, {len(mine)} before)"
            )
        ]
