"""How much of what is there one trigger of a stream takes (spec/spark.md §7). Pure.

A limit is split over the partitions in proportion to what waits in each. What a partition is owed
beyond whole offsets, or was given beyond its share, is remembered for the next trigger: so shares
are right in the long run, the limit is met exactly, and no partition waits for ever beside a busy
one. The memory is that of the running query; after a restart it begins anew, which loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Place = tuple[str, int]
"""Topic and partition."""
Weights = tuple[tuple[int, float], ...]
"""(end, weight of an offset) of runs of offsets, in order."""


class Stretch(NamedTuple):
    """The offsets [first, end) of a partition that wait to be delivered."""

    first: int
    end: int
    weights: Weights = ()
    """Stored bytes of an offset, by file or ledger; what lies behind the last weighs nothing."""


class Limits(NamedTuple):
    """Of one trigger; None: without."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None
    """Of stored bytes. Soft: the size of an offset is that of the average one beside it, and one
    offset is always taken."""
    max_delay_s: float = 900.0
    """How long `min_offsets` may hold back what is there."""


class Admission:
    """Decides trigger after trigger; remembers shares, and when it last let something pass."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._passed_s: float | None = None
        self._owed_offsets: dict[Place, float] = {}
        self._owed_bytes: dict[Place, float] = {}

    def held_back(self, waiting: Mapping[Place, Stretch], now_s: float) -> bool:
        """Whether so little waits that the trigger takes nothing; the first one takes what is."""
        least, passed_s = self._limits.min_offsets, self._passed_s
        count = sum(stretch.end - stretch.first for stretch in waiting.values())
        early = passed_s is not None and now_s - passed_s < self._limits.max_delay_s
        if least is not None and count < least and early:
            return True
        self._passed_s = now_s
        return False

    def ends(self, waiting: Mapping[Place, Stretch]) -> dict[Place, int]:
        """The exclusive end of what is taken of each partition; of none of them nothing at all."""
        taken = dict(waiting)
        if self._limits.max_offsets is not None:
            ends = _shares(taken, self._limits.max_offsets, self._owed_offsets, _by_count)
            taken = {place: taken[place]._replace(end=end) for place, end in ends.items()}
        if self._limits.max_bytes is not None:
            ends = _shares(taken, self._limits.max_bytes, self._owed_bytes, _by_bytes)
            taken = {place: taken[place]._replace(end=end) for place, end in ends.items()}
        return {place: stretch.end for place, stretch in taken.items()}


def _by_count(stretch: Stretch) -> Weights:
    return ((stretch.end, 1.0),)


def _by_bytes(stretch: Stretch) -> Weights:
    return (*stretch.weights, (stretch.end, 0.0))


def _shares(
    waiting: Mapping[Place, Stretch],
    budget: int,
    owed: dict[Place, float],
    weigh: Callable[[Stretch], Weights],
) -> dict[Place, int]:
    """The ends of what `budget` pays for; changes what the partitions are `owed`."""
    weights = {place: weigh(stretch) for place, stretch in waiting.items()}
    sizes = {
        place: _weight(weights[place], stretch.first, stretch.end)
        for place, stretch in waiting.items()
    }
    total = sum(sizes.values())
    ends = {place: stretch.first for place, stretch in waiting.items()}
    before = {place: min(max(owed.get(place, 0.0), -budget), budget) for place in waiting}
    owed.clear()
    if total <= budget:
        return {place: stretch.end for place, stretch in waiting.items()}
    owed |= {place: before[place] + budget * sizes[place] / total for place in waiting}
    left = float(budget)
    for portion in ("share", "one more", "rest"):
        for place in sorted(owed, key=lambda one: (-owed[one], one)):
            end = waiting[place].end
            if portion == "one more":
                end = min(ends[place] + 1, end)
            allowance = min(owed[place], left) if portion == "share" else left
            ends[place], used = _reach(weights[place], ends[place], end, allowance)
            left -= used
            owed[place] -= used
    if all(ends[place] == stretch.first for place, stretch in waiting.items()):
        # No offset is as small as the budget: one is taken, for else nothing would ever move.
        place = max(waiting, key=lambda one: (owed[one], one))
        ends[place] += 1
        owed[place] -= _weight(weights[place], ends[place] - 1, ends[place])
    return ends


def _weight(weights: Weights, first: int, end: int) -> float:
    """What the offsets [first, end) weigh."""
    total = 0.0
    for upto, weight in weights:
        if first < (upto := min(upto, end)):
            total += (upto - first) * weight
            first = upto
    return total


def _reach(weights: Weights, at: int, end: int, allowance: float) -> tuple[int, float]:
    """How far `allowance` goes from offset `at` on, `end` at most, and what that weighs."""
    used = 0.0
    for upto, weight in weights:
        upto = min(upto, end)
        if upto <= at:
            continue
        fits = upto - at
        room = max(allowance - used, 0.0)
        if fits * weight > room:  # only then is the quotient a number of offsets, and finite
            fits = min(fits, int(room / weight))
        at += fits
        used += fits * weight
        if at < upto:
            break
    return at, used
