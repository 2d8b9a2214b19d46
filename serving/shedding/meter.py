"""What a broker says of its load, and when that is worth a write. Pure.

The capacity of a broker is the one thread of its event loop, or all processors of its machine,
whichever is nearer to its end: the usage is the larger share. It is split among bundles by what
went through them, in bytes; a batch or reply costs as much as `BATCH_BYTES` besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.metadata.load_reports import REPORT_BUNDLES_MAX, Load
from octavo.serving.partition.traffic import Traffic

BATCH_BYTES = 64 * 1024
"""What handling one batch or reply costs, in bytes that cost the same (HACKING, Measuring)."""
USAGE_STEP = 0.02
"""A change of the usage, of all or of one bundle, that is told."""
RATE_STEP = 0.2
"""The same of rates, as a part of the larger one; what is below RATE_FLOOR_BYTES does not count."""
RATE_FLOOR_BYTES = 256 * 1024
REFRESH_INTERVALS = 4
"""A report that says nothing new is written once in so many intervals: it is not stale."""


class Counters(NamedTuple):
    """What a process used since its start."""

    process_s: float
    """Processor time of all threads."""
    loop_s: float
    """Of the event loop's thread."""


class Held(NamedTuple):
    """How much a broker has."""

    partitions: int
    bundles: int
    busiest: tuple[str, Traffic] = ("", Traffic())
    """The partition that had the most to do since the last measurement, and how much."""


class LoadMeter:
    """One broker's load over the time since the last measurement.

    Args:
        cpus: processors that the process may use.
    """

    def __init__(self, cpus: int, counters: Counters, now_s: float) -> None:
        self._cpus = cpus
        self._counters = counters
        self._since_s = now_s
        self._told: Load | None = None
        self._quiet_intervals = 0

    def measured(
        self, counters: Counters, traffic: Mapping[int, Traffic], held: Held, now_s: float
    ) -> Load | None:
        """The load since the last call; `traffic` by bundle, since then. None: no time passed."""
        elapsed_s = now_s - self._since_s
        if elapsed_s <= 0:
            return None
        before, self._counters, self._since_s = self._counters, counters, now_s
        loop_share = _part((counters.loop_s - before.loop_s) / elapsed_s)
        cpu_share = _part((counters.process_s - before.process_s) / elapsed_s / self._cpus)
        total = Traffic()
        for one in traffic.values():
            total = total.plus(one)
        return Load(
            usage=max(loop_share, cpu_share),
            loop_share=loop_share,
            cpu_share=cpu_share,
            bytes_in_per_s=round(total.bytes_in / elapsed_s),
            bytes_out_per_s=round(total.bytes_out / elapsed_s),
            records_in_per_s=round(total.records_in / elapsed_s),
            partitions=held.partitions,
            bundles=held.bundles,
            shares=_shares(traffic, weight_of(total)),
            hottest=held.busiest[0],
            partition_load_ratio=_ratio(held, weight_of(total)),
        )

    def is_news(self, load: Load) -> bool:
        """Whether this load is to be published; it counts as told then."""
        self._quiet_intervals += 1
        told = self._told
        is_due = self._quiet_intervals >= REFRESH_INTERVALS
        if told is not None and not is_due and not _differs(told, load):
            return False
        self._told, self._quiet_intervals = load, 0
        return True

    def not_told(self) -> None:
        """The last one could not be published: the next one is news."""
        self._told = None


def _part(share: float) -> float:
    """Rounding of clocks apart, a share is from 0 to 1."""
    return min(1.0, max(0.0, round(share, 4)))


def weight_of(traffic: Traffic) -> int:
    """How much it gives a broker to do, as far as one partition can be told from another."""
    handled = traffic.batches_in + traffic.reads
    return traffic.bytes_in + traffic.bytes_out + BATCH_BYTES * handled


def _shares(traffic: Mapping[int, Traffic], total: int) -> dict[int, float]:
    """The bundles with the most to do, and their parts of everything."""
    weights = {bundle: weight for bundle, one in traffic.items() if (weight := weight_of(one))}
    largest = sorted(weights, key=lambda bundle: (-weights[bundle], bundle))[:REPORT_BUNDLES_MAX]
    return {bundle: round(weights[bundle] / total, 4) for bundle in largest}


def _ratio(held: Held, total: int) -> float:
    """F175: the part of everything that the busiest partition takes."""
    return round(weight_of(held.busiest[1]) / total, 4) if total else 0.0


def _differs(told: Load, load: Load) -> bool:
    if told.bundles != load.bundles or abs(told.usage - load.usage) >= USAGE_STEP:
        return True
    rates = (
        (told.bytes_in_per_s, load.bytes_in_per_s),
        (told.bytes_out_per_s, load.bytes_out_per_s),
    )
    if any(abs(a - b) >= max(RATE_FLOOR_BYTES, RATE_STEP * max(a, b)) for a, b in rates):
        return True
    bundles = told.shares.keys() | load.shares.keys()
    return any(abs(told.usage_of(one) - load.usage_of(one)) >= USAGE_STEP for one in bundles)
