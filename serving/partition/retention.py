"""When the beginning of one partition goes by its topic's rule (R1-R4). Pure.

Looks once in an interval. A segment that is past goes by a trim; the open one is rolled when all of
it is past, so that idle topics empty too (R3). The newest snapshot must stay (I10): when it lies in
a segment that is to go, a new ledger is opened, whose first entry is a snapshot, and then it goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.proto.segments import Segment
from octavo.runtime.ids import NO_ENTRY
from octavo.serving.partition.actions import PROCEED, Action
from octavo.serving.partition.limits import RetentionLimits
from octavo.serving.partition.log import PartitionLog
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.rolls import RollPlan
from octavo.serving.partition.trims import Trims
from octavo.serving.partition.world import World
from octavo.serving.retention import consumed_from, retained_from

RETENTION = "retention"
"""Why a ledger lies in the trash."""


class Retention:
    """The rule of one partition.

    Args:
        spread: 0..1, part of the interval after which is looked first: partitions that are loaded
            together do not all look at once.
    """

    def __init__(
        self,
        limits: RetentionLimits,
        *,
        log: PartitionLog,
        trims: Trims,
        rolls: RollPlan,
        world: World,
        spread: float = 0.0,
    ) -> None:
        self.limits = limits
        self.consumed_to = 0
        """Every registered group has consumed what lies below (R5); 0: not known, or nothing."""
        self.wants_ledger = False
        """A new ledger is to be opened although no batch waits for one."""
        self._log = log
        self._trims = trims
        self._rolls = rolls
        self._world = world
        self._spread = spread
        self._next_check_s: float | None = None

    def adopt(self, limits: RetentionLimits) -> None:
        """The topic was altered: look soon if that changes what is kept."""
        if limits != self.limits:
            self.limits = limits
            self._next_check_s = 0.0

    def consumed(self, offset: int) -> None:
        """Every registered group has committed `offset` or more: look soon."""
        if self.limits.goes_when_consumed and offset > self._log.log_start:
            self.consumed_to = min(offset, self._log.high_watermark)
            self._next_check_s = 0.0

    def tick(
        self, segments: Sequence[Segment], opened: OpenSegment | None, now_ms: int, now_s: float
    ) -> list[Action]:
        """Once a second, of a partition that is served; `segments` as they are listed."""
        interval_s = self.limits.check_interval_ms / 1000
        if self._next_check_s is None:
            self._next_check_s = now_s + interval_s * self._spread
        if now_s < self._next_check_s:
            return []
        self._next_check_s = now_s + interval_s
        return self._check(segments, opened, now_ms, now_s)

    def _check(
        self, segments: Sequence[Segment], opened: OpenSegment | None, now_ms: int, now_s: float
    ) -> list[Action]:
        closed = [one for one in segments if one.end_offset is not None]
        cut = retained_from(
            closed,
            self.limits.rule,
            log_start=self._log.log_start,
            open_bytes=opened.size_bytes if opened is not None else 0,
            now_ms=now_ms,
        )
        if self.limits.goes_when_consumed:
            cut = max(cut, consumed_from(closed, self._log.log_start, self.consumed_to))
            self.consumed_to = 0  # true when it was told: a group may have come since
        self._rolls.expire(False)
        self.wants_ledger = False
        actions: list[Action] = []
        if cut > self._log.log_start or self._can_drop(closed, opened, cut):
            actions += self._trims.begin(cut, RETENTION)
        if not self._can_roll():
            return actions
        if opened is not None:
            if self._is_past(opened, cut, now_ms):
                self._rolls.expire(True)
                self.wants_ledger = True
                self._next_check_s = now_s  # for what is closed then
                actions.append(PROCEED)
            elif closed and _is_below(closed[-1], cut) and opened.last_durable_entry < 0:
                self._next_check_s = now_s  # until the snapshot is durable
        elif len(closed) == len(segments) and _holds_only_what_goes(closed, cut):
            self.wants_ledger = True
            self._next_check_s = now_s
            actions.append(PROCEED)
        return actions

    def _can_roll(self) -> bool:
        """Housekeeping opens no ledger that would start degraded (A6)."""
        world, copies = self._world, self._rolls.limits.write_quorum
        return world.metadata_connected() and world.live_bookies() >= copies

    @staticmethod
    def _can_drop(closed: Sequence[Segment], opened: OpenSegment | None, cut: int) -> bool:
        """Whether a segment that an earlier trim had to leave may go now."""
        if not closed or not _is_below(closed[0], cut):
            return False
        has_snapshot = opened is not None and opened.last_durable_entry >= 0
        return has_snapshot or any(one.last_entry != NO_ENTRY for one in closed[1:])

    def _is_past(self, opened: OpenSegment, cut: int, now_ms: int) -> bool:
        if not opened.usable or not opened.has_batches() or self._log.pending:
            return False
        is_trimmed = self._log.high_watermark <= cut
        newest_ms = opened.figures.value.last_append_ms
        return is_trimmed or self.limits.rule.is_past(newest_ms, now_ms)

    def listed(self, *, has_ledger: bool) -> None:
        """A roll step is listed."""
        if has_ledger:
            self.wants_ledger = False

    def failed(self) -> None:
        """A step failed: the next look asks again."""
        self.wants_ledger = False


def _holds_only_what_goes(closed: Sequence[Segment], cut: int) -> bool:
    """Whether the newest segment has records, and none that is kept."""
    return bool(closed) and _is_below(closed[-1], cut) and closed[-1].base_offset < cut


def _is_below(segment: Segment, offset: int) -> bool:
    return segment.end_offset is not None and segment.end_offset <= offset
