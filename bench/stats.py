"""Percentiles of samples and the spread of repeated runs: pure arithmetic."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Latency(NamedTuple):
    """Percentiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Spread(NamedTuple):
    """What repeated runs of one measure gave."""

    median: float
    low: float
    high: float
    runs: int


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Nearest rank: the smallest sample that is at least as large as `fraction` of all samples.

    No interpolation, so every percentile is a value that really occurred.
    """
    if not ordered:
        raise ValueError("no samples")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction {fraction} is not in (0, 1]")
    # The small slack undoes binary rounding: 0.999 * 1000 is a little above 999.
    rank = math.ceil(fraction * len(ordered) - 1e-9)
    return ordered[max(rank, 1) - 1]


def latency(samples_s: Sequence[float]) -> Latency:
    """p50, p99, p99.9 and the maximum of samples in seconds."""
    ordered = sorted(samples_s)
    p50, p99, p999 = (1e3 * percentile(ordered, fraction) for fraction in (0.5, 0.99, 0.999))
    return Latency(p50, p99, p999, 1e3 * ordered[-1])


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))
