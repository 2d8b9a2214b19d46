"""Open-loop schedules and timed streams: when a record is due does not depend on the system.

The clock and the wait are passed in, so all of it is tested without time passing.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

T = TypeVar("T")
Clock = Callable[[], float]
LEAD_S = 0.05
"""A schedule begins this much after it is made, so that the first record is not late already."""


class Schedule(NamedTuple):
    """`records` moments, `per_s` of them in each second, from `start_s` on."""

    start_s: float
    per_s: float
    records: int

    def due(self, number: int) -> float:
        """When record `number` is due, whatever happened to those before it."""
        return self.start_s + number / self.per_s


def soon(clock: Clock, per_s: float, count: int) -> Schedule:
    """A schedule that begins in a moment."""
    return Schedule(clock() + LEAD_S, per_s, count)


def paced(schedule: Schedule, clock: Clock, wait: Callable[[float], object]) -> Iterator[float]:
    """Yield each due time no earlier than it comes; a late caller gets the next ones at once.

    Latency counted from the yielded time therefore contains the time a record had to queue
    behind slower ones (no coordinated omission).
    """
    for number in range(schedule.records):
        due = schedule.due(number)
        while (early_s := due - clock()) > 0:
            wait(early_s)
        yield due


async def paced_async(
    schedule: Schedule, clock: Clock, wait: Callable[[float], Awaitable[object]]
) -> AsyncIterator[float]:
    """The same on an event loop; a late caller still lets the loop run between records."""
    for number in range(schedule.records):
        due = schedule.due(number)
        early_s = due - clock()
        await wait(max(early_s, 0.0))
        while (early_s := due - clock()) > 0:
            await wait(early_s)
        yield due


CHECK_EVERY = 32
"""Records between two looks at the clock in `limited`."""


class Limited(Iterable[T]):
    """Values until `seconds` passed or `count_max` were taken; remembers how many were."""

    def __init__(self, values: Iterator[T], clock: Clock, seconds: float, count_max: int) -> None:
        self._values = values
        self._clock = clock
        self._seconds = seconds
        self._count_max = count_max
        self.taken = 0

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self._steps())  # no Python between two records

    def _steps(self) -> Iterator[Iterator[T]]:
        until = self._clock() + self._seconds
        while self.taken < self._count_max and self._clock() < until:
            step = min(CHECK_EVERY, self._count_max - self.taken)
            self.taken += step
            yield itertools.islice(self._values, step)
