"""The pure core of committed offsets of one consumer: O9, O10, O11.

Events in, actions out. One request is under way at a time; what is to be committed meanwhile is
gathered, the newer offset of a partition in place of the older: an older commit never overwrites a
newer one. Every commit has a ticket, settled once; that of an auto-commit is None. It succeeds
only if all of its offsets are stored, or newer ones: not when a partition of it was given up before
its offset was sent, though the others are committed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.client.messaging.membership.values import Slot
from octavo.client.messaging.records import OffsetAndMetadata
from octavo.runtime.entropy import Entropy
from octavo.runtime.errors import OctavoError
from octavo.runtime.errors_of_groups import CommitFailed, CommitReplaced
from octavo.runtime.invariant import invariant
from octavo.runtime.retry import Backoff

Offsets = Mapping[Slot, OffsetAndMetadata]
Ticket = object


class SendCommit(NamedTuple):
    """Commit these; `stored` or `failed` with its number."""

    number: int
    offsets: dict[Slot, OffsetAndMetadata]


class Settle(NamedTuple):
    """A commit is decided."""

    ticket: Ticket
    offsets: Offsets
    error: OctavoError | None


CommitAction = SendCommit | Settle


@dataclass(slots=True, eq=False)
class _Commit:
    """One commit that was asked for."""

    ticket: Ticket
    offsets: Offsets
    deadline_s: float
    """It is tried again until then; -inf: it is not (O9)."""
    waits: bool
    """Somebody waits for it: a newer one does not cancel it."""
    unsent: set[Slot] = field(default_factory=set[Slot])
    """What was given up before it was sent, or before it was sent again (O11)."""


class OffsetCommits:
    """Of one consumer. Not for several threads."""

    def __init__(
        self,
        entropy: Entropy,
        *,
        auto_interval_s: float | None,
        backoff_initial_s: float = 0.1,
        backoff_max_s: float = 1.0,
    ) -> None:
        self._auto_interval_s = auto_interval_s
        self._auto_at_s = -math.inf
        self._backoff = Backoff(entropy, initial_s=backoff_initial_s, max_s=backoff_max_s)
        self._waiting: dict[Slot, OffsetAndMetadata] = {}
        self._wanted: list[_Commit] = []
        self._under_way: SendCommit | None = None
        self._asked: list[_Commit] = []
        """Those whose offsets the request under way carries."""
        self._gone: set[Slot] = set()
        """What it carries and is not this consumer's any more (O11)."""
        self._number = 0
        self._retry_at_s = -math.inf
        self._stored: dict[Slot, int] = {}
        """What this consumer committed last, or found committed."""

    def next_deadline_s(self) -> float | None:
        """When `tick` is wanted next."""
        waits = self._under_way is None and self._waiting
        return self._retry_at_s if waits else None

    def auto_due(self, now_s: float) -> bool:
        """O9: whether a reading call that begins now commits what earlier ones returned."""
        return self._auto_interval_s is not None and now_s >= self._auto_at_s

    # --- what is asked for ----------------------------------------------------------------------

    def auto(self, positions: Mapping[Slot, int], now_s: float) -> list[CommitAction]:
        """O9: commit the positions that moved, once; the next interval tries again."""
        interval_s = self._auto_interval_s
        self._auto_at_s = math.inf if interval_s is None else now_s + interval_s
        offsets = {
            slot: OffsetAndMetadata(offset)
            for slot, offset in positions.items()
            if self._newest(slot) != offset
        }
        if not offsets:
            return []
        return self.commit(None, offsets, now_s, deadline_s=-math.inf)

    def _newest(self, slot: Slot) -> int | None:
        """What was asked for last, or is committed."""
        waiting = self._waiting.get(slot)
        return self._stored.get(slot) if waiting is None else waiting.offset

    def commit(
        self,
        ticket: Ticket,
        offsets: Offsets,
        now_s: float,
        *,
        deadline_s: float,
        waits: bool = True,
    ) -> list[CommitAction]:
        """Commit these; an older commit of them that nobody waits for is not sent any more."""
        if not offsets:
            return [Settle(ticket, {}, None)]
        actions: list[CommitAction] = []
        for older in [one for one in self._wanted if not one.waits]:
            if older.offsets.keys() <= offsets.keys():
                self._wanted.remove(older)
                if older.ticket is not None:
                    error = CommitReplaced("a later commit took the place of this one")
                    actions.append(Settle(older.ticket, older.offsets, error))
        self._wanted.append(
            _Commit(ticket, dict(offsets), deadline_s, waits and ticket is not None)
        )
        self._waiting.update(offsets)
        return actions + self._send(now_s)

    def unconfirmed(self, offsets: Offsets) -> dict[Slot, OffsetAndMetadata]:
        """Those of which nobody said that they are stored, and were stored last."""
        under_way = {} if self._under_way is None else self._under_way.offsets
        return {
            slot: value
            for slot, value in offsets.items()
            if self._stored.get(slot) != value.offset or slot in self._waiting or slot in under_way
        }

    def known(self, committed: Mapping[Slot, int]) -> None:
        """Offsets that were found committed: they need no commit."""
        self._stored.update(committed)

    def discard(self, slots: Iterable[Slot]) -> list[CommitAction]:
        """O11: these are not this consumer's any more, whatever waits for them is not committed."""
        gone = set(slots)
        for slot in gone:
            self._waiting.pop(slot, None)
            self._stored.pop(slot, None)
        for one in self._wanted:
            one.unsent |= gone.intersection(one.offsets)
        if self._under_way is not None:
            self._gone |= gone.intersection(self._under_way.offsets)
        over = [one for one in self._wanted if self._waiting.keys().isdisjoint(one.offsets)]
        self._wanted = [one for one in self._wanted if one not in over]
        return [Settle(one.ticket, one.offsets, _not_ours(one.unsent)) for one in over]

    # --- what came of it ------------------------------------------------------------------------

    def stored(
        self, number: int, errors: Mapping[Slot, OctavoError], now_s: float
    ) -> list[CommitAction]:
        """The request was carried out, but for what `errors` names (O2)."""
        request, asked = self._ended(number)
        self._backoff.reset()
        for slot, value in request.offsets.items():
            if slot not in errors and slot not in self._gone:
                self._stored[slot] = value.offset
        return [*self._settle(asked, errors), *self._send(now_s)]

    def failed(self, number: int, error: OctavoError, now_s: float) -> list[CommitAction]:
        """Nothing is stored, or that is not known: it is tried again while it may succeed (O4)."""
        request, asked = self._ended(number)
        again = [one for one in asked if error.retriable and now_s < one.deadline_s]
        over = [one for one in asked if one not in again]
        left = {slot: at for slot, at in request.offsets.items() if slot not in self._gone}
        gone = [one for one in again if left.keys().isdisjoint(one.offsets)]
        again = [one for one in again if one not in gone]
        for one in again:
            kept = {slot: left[slot] for slot in one.offsets if slot in left}
            one.unsent |= self._gone.intersection(one.offsets)
            self._waiting = {**kept, **self._waiting}
        self._wanted = again + self._wanted
        if again:
            self._retry_at_s = now_s + self._backoff.next_s()
        actions: list[CommitAction] = [Settle(one.ticket, one.offsets, error) for one in over]
        actions += [Settle(one.ticket, one.offsets, _not_ours(one.offsets)) for one in gone]
        return actions + self._send(now_s)

    def tick(self, now_s: float) -> list[CommitAction]:
        """A moment that `next_deadline_s` named."""
        return self._send(now_s)

    def validate(self) -> None:
        """Raise InvariantViolation when what waits belongs to nobody, or nobody's waits."""
        lost = [one for one in self._wanted if self._waiting.keys().isdisjoint(one.offsets)]
        invariant(not lost, "a commit waits for nothing")
        named = {slot for one in self._wanted for slot in one.offsets}
        invariant(named.issuperset(self._waiting), f"{self._waiting} are nobody's commits")
        invariant(self._under_way is not None or not self._asked, "asked for in no request")

    # --- the rules ------------------------------------------------------------------------------

    def _send(self, now_s: float) -> list[CommitAction]:
        if self._under_way is not None or not self._waiting or now_s < self._retry_at_s:
            return []
        self._number += 1
        self._retry_at_s = -math.inf
        self._under_way = SendCommit(self._number, self._waiting)
        self._waiting = {}
        self._gone = set()
        self._asked = self._take_wanted()
        return [self._under_way]

    def _take_wanted(self) -> list[_Commit]:
        wanted, self._wanted = self._wanted, []
        return wanted

    def _ended(self, number: int) -> tuple[SendCommit, list[_Commit]]:
        request = self._under_way
        if request is None or request.number != number:
            invariant(False, f"commit {number} is not under way")
            raise AssertionError
        self._under_way = None
        asked, self._asked = self._asked, []
        return request, asked

    @staticmethod
    def _settle(asked: list[_Commit], errors: Mapping[Slot, OctavoError]) -> list[CommitAction]:
        settled: list[CommitAction] = []
        for one in asked:
            error = next((errors[slot] for slot in one.offsets if slot in errors), None)
            if error is None and one.unsent:
                error = _not_ours(one.unsent)
            settled.append(Settle(one.ticket, one.offsets, error))
        return settled


def _not_ours(slots: Iterable[Slot]) -> CommitFailed:
    names = ", ".join(sorted(str(slot.where) for slot in slots))
    return CommitFailed(f"not this consumer's any more, and not committed: {names}")
