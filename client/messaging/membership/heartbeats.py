"""The heartbeats of a member: one outstanding at most, when the next may go, when it is late. Pure.

What they say is the member's business (`member_core`).
"""

from __future__ import annotations

import math

from octavo.client.messaging.membership.values import (
    JOIN_EPOCH,
    Beat,
    GiveUp,
    MemberSettings,
    Told,
)
from octavo.runtime.entropy import Entropy
from octavo.runtime.retry import Backoff

QUIET_REPLIES_MAX = 3
"""A coordinator that answers so often at once and with no news does not hold heartbeats: from then
on they are sent an interval apart."""


class Heartbeats:
    """Of one member, over all of its lives."""

    def __init__(self, settings: MemberSettings, entropy: Entropy) -> None:
        self.sequence = settings.first_sequence
        """Of the newest one."""
        self.under_way: Beat | None = None
        self.next_s = 0.0
        """None is sent before."""
        self.full = True
        """The next one says everything: something changed, or an outcome is unknown (RB10)."""
        self._backoff = Backoff(
            entropy, initial_s=settings.backoff_initial_s, max_s=settings.backoff_max_s
        )
        self._sent_s = 0.0
        self.late_at_s = math.inf
        """From then on nothing is its own (RB12); inf: it is no member. A field, for every reading
        call looks at it."""
        self._quiet = 0
        self._interval_s = 3.0
        self._session_s = 45.0

    @property
    def limit_s(self) -> float:
        """How long a member may go on without an answer (RB12), well below the session timeout."""
        return max(self._session_s - 2 * self._interval_s, self._session_s / 2)

    def may_go(self, now_s: float) -> bool:
        """Whether the next one may be sent now."""
        return self.under_way is None and now_s >= self.next_s

    def send(self, beat: Beat, now_s: float) -> None:
        """It is under way."""
        self.under_way = beat
        self.full = False
        self._sent_s = now_s

    def give_up(self) -> list[GiveUp]:
        """Nobody waits for the one under way any more: its outcome is unknown."""
        beat, self.under_way = self.under_way, None
        self.full = True
        return [] if beat is None else [GiveUp(beat.sequence)]

    def forget(self) -> None:
        """It is no member any more."""
        self.late_at_s = math.inf

    def ended(self, sequence: int) -> bool:
        """The one with this number is over; False when it was given up before."""
        if self.under_way is None or self.under_way.sequence != sequence:
            return False
        self.under_way = None
        return True

    def answered(self, told: Told, now_s: float, *, news: bool) -> None:
        """It was answered; the coordinator holds the next one until there are news (RB5)."""
        self._interval_s, self._session_s = told.heartbeat_interval_s, told.session_timeout_s
        is_member = told.epoch != JOIN_EPOCH
        self.late_at_s = self._sent_s + self.limit_s if is_member else math.inf
        self._backoff.reset()
        at_once = not news and now_s - self._sent_s < self._interval_s / 2
        self._quiet = self._quiet + 1 if at_once else 0
        self.next_s = now_s
        if self._quiet >= QUIET_REPLIES_MAX:
            self.next_s = now_s + self._interval_s

    def pause(self, now_s: float) -> None:
        """It was not answered, or in vain: the next one goes after a while."""
        self.full = True
        self.next_s = now_s + self._backoff.next_s()

    def begin_anew(self, now_s: float) -> None:
        """The next one may go at once, and says everything."""
        self.full = True
        self.next_s = now_s
        self._quiet = 0
