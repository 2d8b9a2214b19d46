"""Whether the open segment ends, and who asked for it (ML-5, A6). Pure."""

from __future__ import annotations

from octavo.runtime.errors import OctavoError
from octavo.serving.partition.actions import Action, AnswerRolls
from octavo.serving.partition.open_segment import OpenSegment
from octavo.serving.partition.world import World
from octavo.serving.segments import RollLimits, RollReason, roll_reason


class RollPlan:
    """When to roll.

    Everybody who asked is answered together: one roll serves them all.
    """

    def __init__(self, limits: RollLimits, world: World) -> None:
        self.limits = limits
        self._world = world
        self._is_asked = False
        self._is_expired = False

    def expire(self, is_expired: bool) -> None:
        """Whether all of the open segment is past retention (R3)."""
        self._is_expired = is_expired

    def listed(self) -> None:
        """A roll step is listed."""
        self._is_expired = False

    def ask(self) -> None:
        """Somebody wants the open segment closed, if it holds batches."""
        self._is_asked = True

    def answered(self, outcome: int | OctavoError) -> list[Action]:
        """Tell whoever asked the high watermark, or why there was no roll."""
        was_asked, self._is_asked = self._is_asked, False
        return [AnswerRolls(outcome)] if was_asked else []

    def reason(
        self, segment: OpenSegment, now_s: float, *, sent: int, writer_wants: bool
    ) -> RollReason | None:
        """Why `segment` should end now, if it should.

        Args:
            sent: batches that are on their way to it.
            writer_wants: its ledger's writer asks.
        """
        has_batches = segment.has_batches() or sent > 0
        if self._is_asked and has_batches:
            return RollReason.ASKED
        if not self._world.metadata_connected() or not (has_batches or writer_wants):
            return None  # without metadata a roll could not finish; the open ledger goes on
        reason = roll_reason(
            self.limits,
            size_bytes=segment.size_bytes,
            age_ms=(now_s - segment.opened_at_s) * 1000,
            writer_wants=writer_wants,
            live_bookies=self._world.live_bookies(),
        )
        return RollReason.EXPIRED if reason is None and self._is_expired and not sent else reason
