"""How a member carries out what it is assigned, in RB11's order. Pure; a part of `member_core`.

Owns what is owned, the change that is being carried out, and what of it is the user's to do next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.client.messaging.membership.values import (
    Action,
    Begin,
    Drop,
    Duty,
    Slot,
    Stop,
    Task,
    Tell,
)

Slots = frozenset[Slot]
NOTHING: Slots = frozenset()


@dataclass(slots=True)
class Change:
    """An assignment that is being carried out."""

    number: int
    seen: int
    revoked: tuple[Slot, ...]
    added: tuple[Slot, ...]
    task: Task | None = None
    """The user's next one; None while positions are looked up."""
    begun: bool = False


class Reconciliation:
    """Of one member.

    Args:
        acknowledge: tells the coordinator what is owned, and which assignment was carried out.
    """

    def __init__(self, *, auto_commit: bool, acknowledge: Callable[[float], None]) -> None:
        self._auto_commit = auto_commit
        self._acknowledge_owned = acknowledge
        self.owned: Slots = NOTHING
        """What it may commit; what goes is its until its callback is done."""
        self._seen: int = 0
        """Number of the newest assignment that came."""
        self._applied: int = 0
        """Number of the newest that was carried out."""
        self._newest: Slots | None = None
        """The newest assignment of this life of the member."""
        self._fresh = True
        """Its user has heard of no assignment in this life."""
        self._change: Change | None = None
        self._running: Duty | None = None
        """The callback that the user's code is in."""
        self._lost: tuple[Slot, ...] = ()
        self._parting: tuple[Slot, ...] = ()
        self._duties: int = 0
        self._ending = False
        """Nothing is read any more, and the goodbye is not said yet."""
        self._unreleased = False
        """The coordinator may wait to hear that the newest assignment was carried out: a revocation
        is to be acknowledged, or an assignment never arrived."""
        self._actions: list[Action] = []

    @property
    def duty(self) -> Duty | None:
        """What the user's reading call does first; None while it is in a callback."""
        if self._running is not None:
            return None
        if self._lost:
            return Duty(self._duties, Task.LOST, self._lost)
        if self._parting:
            return Duty(self._duties, Task.REVOKED, self._parting)
        change = self._change
        if change is None or change.task is None or change.begun:
            return None
        slots = change.added if change.task is Task.ASSIGNED else change.revoked
        return Duty(self._duties, change.task, slots)

    @property
    def in_callback(self) -> bool:
        """Whether the user's code is in a callback: no other reading call goes on."""
        return self._running is not None

    def looks_up(self, number: int) -> bool:
        """Whether positions of the change with that number are still to be found."""
        change = self._change
        return change is not None and change.number == number and change.task is None

    def begun(self, duty: Duty) -> None:
        """The duty is being done."""
        if duty != self.duty:
            return
        if self._change is not None and not (self._lost or self._parting):
            self._change.begun = True
        if duty.task is not Task.COMMIT:
            self._running = duty

    def not_begun(self, duty: Duty) -> list[Action]:
        """Whoever took the duty was interrupted before it began: it is due again."""
        if duty == self._running:
            self._running = None
            if self._change is not None:
                self._change.begun = False
        return [Tell()]

    def _take_newest(self, now_s: float) -> None:
        """RB11: begin to carry out the newest assignment, unless one is under way."""
        newest = self._newest
        if newest is None or self._change is not None or self._lost or self._ending:
            return
        revoked, added = tuple(sorted(self.owned - newest)), tuple(sorted(newest - self.owned))
        if not revoked and not added and not self._fresh:
            self._carried_out(self._seen, now_s)
            return
        self._fresh = False
        self._duties += 1
        change = self._change = Change(self._duties, self._seen, revoked, added)
        if not revoked:
            self._find_positions(change, now_s)
            return
        self._actions.append(Stop(revoked))
        self._offer(change, Task.COMMIT if self._auto_commit else Task.REVOKED)

    def _offer(self, change: Change, task: Task) -> None:
        change.task, change.begun = task, False
        self._actions.append(Tell())

    def _acknowledge(self, change: Change, now_s: float) -> None:
        """RB11 step 4: what went is nobody's from here on, and the coordinator is told so."""
        self.owned = self.owned.difference(change.revoked)
        self._actions.append(Drop(change.revoked))
        change.revoked = ()
        self._unreleased = True
        self._find_positions(change, now_s)

    def _find_positions(self, change: Change, now_s: float) -> None:
        """RB11 step 5; also with nothing to add, the callback says that the change is over."""
        self._carried_out(change.seen, now_s)
        if change.added:
            change.task = None
            self._actions.append(Begin(change.number, change.added))
        else:
            self._offer(change, Task.ASSIGNED)

    def _carried_out(self, number: int, now_s: float) -> None:
        """Whatever that assignment took away is given up; said at once where somebody waits."""
        self._applied = number
        if self._unreleased:
            self._unreleased = number < self._seen
            self._acknowledge_owned(now_s)
