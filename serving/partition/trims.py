"""What is to be cut off at the beginning of one partition (R4, ML-8). Pure."""

from __future__ import annotations

from octavo.runtime.errors import OctavoError, OffsetOutOfRange
from octavo.serving.partition.actions import PROCEED, Action, AnswerTrims, Trim
from octavo.serving.partition.log import PartitionLog
from octavo.serving.partition.open_segment import OpenSegment

ASKED = "trimmed"
"""Why a ledger lies in the trash."""
TO_THE_END = -1
"""Everything that can be read now."""


class Trims:
    """The trims that were asked for; one list write serves them all."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._before: int | None = None
        self._reason = ASKED
        self._is_awaited = False

    def ask(self, before: int) -> list[Action]:
        """The log is to begin at `before`, or later; `TO_THE_END`: at the high watermark of now.

        Raises OffsetOutOfRange for what lies above the high watermark.
        """
        end = self._log.high_watermark
        if before == TO_THE_END:
            before = end
        if not 0 <= before <= end:
            raise OffsetOutOfRange(
                f"records before offset {before} cannot be deleted: the log holds "
                f"{self._log.log_start}..{end}",
                hint="name an offset up to the high watermark, or -1 for all that is there",
                log_start=self._log.log_start,
                high_watermark=end,
            )
        self._is_awaited = True
        return self.begin(before, ASKED)

    def begin(self, before: int, reason: str) -> list[Action]:
        """As `ask`, of an offset that is not above the high watermark; nobody waits for it."""
        if self._before is None or before > self._before:
            self._before, self._reason = before, reason
        return [PROCEED]

    def next_trim(self, segment: OpenSegment | None) -> Trim | None:
        """What is to be published now; `segment` is the open one."""
        if self._before is None:
            return None
        has_snapshot = segment is not None and segment.last_durable_entry >= 0
        snapshot = segment.ledger_id if segment and has_snapshot else None
        return Trim(self._before, snapshot, self._reason)

    def done(self) -> list[Action]:
        """A trim is listed: answer, unless somebody asked for more since it began."""
        start = self._log.log_start
        if self._before is not None and self._before > start:
            return []
        return self.answered(start)

    def answered(self, outcome: int | OctavoError) -> list[Action]:
        """Tell whoever asked where the log begins, or why that is not known."""
        was_awaited, self._is_awaited = self._is_awaited, False
        self._before = None
        return [AnswerTrims(outcome)] if was_awaited else []
