"""Two ways of doing the same, in turn within one run, and what one costs beside the other: pure.

On a shared machine neighbours change within seconds, so passes that lie side by side are compared
with each other only. The order is A B B A A B B A …: what grows or shrinks steadily meanwhile falls
on both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.stats import Spread, spread


class Pass(NamedTuple):
    """What one pass over all of the data took."""

    wall_s: float
    cpu_s: float
    """Of the process that reads, all of its threads."""


class Cost(NamedTuple):
    """What the second way takes, as a multiple of the first: 1.03 is three per cent more."""

    wall: Spread
    cpu: Spread
    best: float
    """Of the fastest pass of each: what is left when nobody else had the processors."""


def turns(pairs: int) -> Iterator[bool]:
    """Whether the next pass is one of the second way; two passes for each pair."""
    for number in range(pairs):
        yield from (False, True) if number % 2 == 0 else (True, False)


def alternate(
    first: Callable[[], Pass], second: Callable[[], Pass], pairs: int
) -> tuple[list[Pass], list[Pass]]:
    """Passes of both, one after another; those with the same index lay side by side."""
    passes: tuple[list[Pass], list[Pass]] = ([], [])
    for is_second in turns(pairs):
        passes[is_second].append((second if is_second else first)())
    return passes


def cost(first: list[Pass], second: list[Pass]) -> Cost:
    """Spread of the ratios of neighbours: the median is what one way costs beside the other."""
    both = list(zip(first, second, strict=True))
    return Cost(
        spread([b.wall_s / a.wall_s for a, b in both]),
        spread([b.cpu_s / a.cpu_s for a, b in both]),
        min(b.wall_s for b in second) / min(a.wall_s for a in first),
    )
