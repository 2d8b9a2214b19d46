"""The words that dashboards are described with: panels, and the expressions of usual ones."""

from __future__ import annotations

from typing import NamedTuple

from octavo.metrics import catalogue as m
from octavo.metrics.metric import Metric

RATE = "[$__rate_interval]"
HERE = 'instance=~"$instance"'


class Query(NamedTuple):
    """One expression and how its series are named."""

    expression: str
    legend: str = "{{instance}}"


class Panel(NamedTuple):
    """A graph over time, or with `text` a paragraph in place of one."""

    title: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    """As Grafana calls it."""
    text: str = ""


class Row(NamedTuple):
    """Panels below one heading."""

    title: str
    panels: tuple[Panel, ...]


class Choice(NamedTuple):
    """A list to choose from on top of a dashboard: values of a label."""

    name: str
    query: str
    every: str = ""
    """What stands for all; empty: all values, one by one."""


class Dashboard(NamedTuple):
    """One file."""

    uid: str
    title: str
    meaning: str
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()


def selected(name: str, *matchers: str) -> str:
    """Series of a name; those of the chosen servers."""
    return f"{name}{{{','.join((*matchers, HERE))}}}"


def per_second(metric: Metric, *matchers: str, by: str = "instance") -> str:
    """How fast a counter, or the count of a histogram, grows, summed by labels."""
    name = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
    return f"sum by ({by}) (rate({selected(name, *matchers)}{RATE}))"


def quantile(metric: Metric, part: float, *matchers: str, by: str = "instance") -> str:
    """A quantile of a histogram, by labels."""
    buckets = selected(f"{metric.name}_bucket", *matchers)
    return f"histogram_quantile({part}, sum by ({by}, le) (rate({buckets}{RATE})))"


def counter(title: str, metric: Metric, unit: str = "ops", label: str = "") -> Panel:
    """A counter as a rate, by server and perhaps by a label."""
    by, legend = ("instance", "{{instance}}")
    if label:
        by, legend = f"instance, {label}", f"{{{{instance}}}} {{{{{label}}}}}"
    return Panel(title, (Query(per_second(metric, by=by), legend),), unit)


def gauge(title: str, *metrics: Metric, unit: str = "short") -> Panel:
    """Gauges as they are, by server; several are named by their metric."""
    if len(metrics) == 1:
        return Panel(title, (Query(selected(metrics[0].name)),), unit)
    queries = (Query(selected(one.name), f"{{{{instance}}}} {one.name}") for one in metrics)
    return Panel(title, tuple(queries), unit)


def graph(title: str, expression: str, legend: str = "{{instance}}", unit: str = "short") -> Panel:
    """One expression."""
    return Panel(title, (Query(expression, legend),), unit)


def times(title: str, metric: Metric) -> Panel:
    """Median and 99th percentile of a histogram of seconds, by server."""
    queries = (
        Query(quantile(metric, 0.5), "{{instance}} median"),
        Query(quantile(metric, 0.99), "{{instance}} 99 %"),
    )
    return Panel(title, queries, "s")


def servers(server: str) -> Choice:
    """The servers to choose from: of one kind, or all."""
    named = f'{m.BUILD_INFO.name}{{server="{server}"}}' if server else m.BUILD_INFO.name
    return Choice("instance", f"label_values({named}, instance)")
