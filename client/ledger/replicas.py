"""In which order a reader asks the replicas of an entry (RD-2)."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.client.ledger.pool import BookiePool
from octavo.runtime.clock import Clock
from octavo.runtime.errors import BookieUnavailable
from octavo.runtime.ids import Member


class ReplicaOrder:
    """Last good replica first, then connected ones in write-set order, slow or failing last."""

    def __init__(self, pool: BookiePool, clock: Clock, *, slow_s: float) -> None:
        self._pool = pool
        self._clock = clock
        self._slow_s = slow_s
        self._last_good: Member | None = None
        self._avoid: dict[Member, float] = {}  # until when

    def sort(self, members: Sequence[Member]) -> list[Member]:
        """The members in the order to ask them."""
        now = self._clock.monotonic()
        self._avoid = {member: until for member, until in self._avoid.items() if until > now}
        return sorted(members, key=self._rank)

    def _rank(self, member: Member) -> tuple[bool, bool, bool]:
        return (member in self._avoid, member != self._last_good, not self._connected(member))

    def _connected(self, member: Member) -> bool:
        try:
            return self._pool.channel(member.bookie_id, "read").ready
        except BookieUnavailable:
            return False

    def answered(self, member: Member) -> None:
        """The replica gave a valid copy: stay with it."""
        self._last_good = member
        self._avoid.pop(member, None)

    def slow(self, member: Member) -> None:
        """The replica did not answer before a rival was asked."""
        self._avoid[member] = self._clock.monotonic() + self._slow_s

    def failed(self, member: Member) -> None:
        """The replica answered without a valid copy, or not at all."""
        if self._last_good == member:
            self._last_good = None
        self.slow(member)
