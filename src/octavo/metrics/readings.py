"""What one look at a server found: numbers by metric and labels, as the library takes them.

Filled on the event loop with plain numbers; families and text are made of it on another thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)

from octavo.metrics.metric import Metric
from octavo.runtime.histogram import Histogram
from octavo.runtime.invariant import invariant


class _Counts(NamedTuple):
    """A histogram as it was."""

    counts: list[int]
    total: float


class Readings:
    """Numbers of one look.

    Args:
        metrics: those of the server, by which families are told, also when they have no series.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._values: dict[Metric, list[tuple[tuple[str, ...], float]]] = {}
        self._histograms: dict[Metric, list[tuple[tuple[str, ...], _Counts]]] = {}
        for metric in metrics:
            if metric.kind == "histogram":
                self._histograms[metric] = []
            else:
                self._values[metric] = []

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """A number of a metric; None: it is not known, and no series is shown."""
        if value is not None:
            self._values[metric].append((labels, value))

    def add_histogram(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """A histogram as it is now."""
        invariant(histogram.bounds == metric.buckets, f"{metric.name} has other buckets")
        now = _Counts(list(histogram.counts), histogram.total)
        self._histograms[metric].append((labels, now))

    def add_state(self, metric: Metric, states: Sequence[str], now: str) -> None:
        """1 for the state that is, 0 for the others."""
        for state in states:
            self.add(metric, float(state == now), state)

    def families(self) -> Iterator[Family]:
        """For the library."""
        for metric, values in self._values.items():
            family = _family(metric)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family
        for metric, histograms in self._histograms.items():
            yield _histogram(metric, histograms)


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _histogram(
    metric: Metric, histograms: Sequence[tuple[tuple[str, ...], _Counts]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    names = [*map(repr, metric.buckets), "+Inf"]
    for labels, (counts, total) in histograms:
        buckets = list(zip(names, accumulate(counts), strict=True))
        family.add_metric(labels, buckets, sum_value=total)
    return family
