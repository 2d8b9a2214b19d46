"""Percentiles and spreads of the benchmark, against hand-made answers and a slow definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import stats


def test_percentile_is_the_nearest_rank() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert stats.percentile(samples, 0.5) == 50
    assert stats.percentile(samples, 0.99) == 99
    assert stats.percentile(samples, 0.999) == 100
    assert stats.percentile(samples, 1.0) == 100


def test_percentile_of_one_sample_is_that_sample() -> None:
    assert stats.percentile([7.0], 0.001) == 7.0


def test_binary_rounding_does_not_move_the_rank() -> None:
    samples = [float(n) for n in range(1, 1001)]
    assert stats.percentile(samples, 0.999) == 999
    assert stats.percentile(samples, 0.07) == 70


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        stats.percentile([1.0], fraction)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        stats.percentile([], 0.5)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]),
)
def test_percentile_is_the_smallest_sample_that_covers_the_fraction(
    samples: list[float], fraction: float
) -> None:
    ordered = sorted(samples)
    found = stats.percentile(ordered, fraction)
    covered = sum(sample <= found for sample in ordered) / len(ordered)
    below = sum(sample < found for sample in ordered) / len(ordered)
    assert covered >= fraction - 1e-9
    assert below < fraction


def test_latency_is_in_milliseconds_and_keeps_the_worst() -> None:
    found = stats.latency([0.001] * 999 + [0.5])
    assert found == stats.Latency(1.0, 1.0, 1.0, 500.0)


def test_spread_of_runs() -> None:
    assert stats.spread([3.0, 1.0, 2.0]) == stats.Spread(2.0, 1.0, 3.0, 3)
    assert stats.spread([4.0]) == stats.Spread(4.0, 4.0, 4.0, 1)
