"""Measures the load of this broker, publishes it, and looks at what the others say.

Costs a look at each open partition in an interval, a write when there is news, and a read for each
broker. What fails is left for the next time: a broker that cannot publish is soon not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from octavo.metadata.brokers import BrokerInfo
from octavo.metadata.load_reports import Load, LoadReport, LoadReports
from octavo.runtime.clock import Clock
from octavo.runtime.cpu import CpuTimes, cpu_times, usable_cpus
from octavo.runtime.errors import OctavoError
from octavo.runtime.telemetry import get_logger
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.traffic import Traffic
from octavo.serving.shedding.board import LoadBoard
from octavo.serving.shedding.meter import Counters, Held, LoadMeter, weight_of

_log = get_logger("octavo.serving.load")


class Counted(NamedTuple):
    """What is asked of the owner of partitions."""

    me: Callable[[], BrokerInfo]
    take_traffic: Callable[[], Iterable[tuple[int, PartitionName, Traffic]]]
    """Of each open partition: its bundle, name, and what went through since the last call."""
    bundles: Callable[[], int]
    """How many are held."""


class LoadReporter:
    """One broker's side of the load reports.

    Args:
        times: the processor time of this process, asked for on the event loop.
    """

    def __init__(
        self,
        reports: LoadReports,
        board: LoadBoard,
        counted: Counted,
        *,
        clock: Clock,
        interval_s: float,
        times: Callable[[], CpuTimes] = cpu_times,
    ) -> None:
        self._reports = reports
        self._board = board
        self._counted = counted
        self._clock = clock
        self._interval_s = interval_s
        self._times = times
        self._meter = LoadMeter(usable_cpus(), Counters(*times()), clock.monotonic())
        self._number = 0

    async def run(self) -> None:
        """For as long as the broker lives."""
        while True:
            await self._clock.sleep(self._interval_s)
            await self.report()

    async def report(self) -> None:
        """Measure, tell if it is news, and read the reports of all."""
        load = self._measure()
        try:
            if load is not None and self._meter.is_news(load):
                self._number += 1
                me = self._counted.me()
                report = LoadReport(me.broker_id, me.process_nonce, self._number, load)
                await self._reports.publish(report)
        except OctavoError as error:  # it may be there all the same: the next one has its number
            self._meter.not_told()
            _log.info("load-not-published", cause=error.cause)
        try:
            self._board.looked(await self._reports.read(), self._clock.monotonic())
        except OctavoError as error:
            _log.info("loads-not-read", cause=error.cause)

    def _measure(self) -> Load | None:
        by_bundle: dict[int, Traffic] = {}
        partitions = most = 0
        busiest: tuple[str, Traffic] = ("", Traffic())
        for bundle, name, traffic in self._counted.take_traffic():
            partitions += 1
            if (size := weight_of(traffic)) > most:
                most, busiest = size, (str(name), traffic)
            by_bundle[bundle] = by_bundle.get(bundle, Traffic()).plus(traffic)
        held = Held(partitions, self._counted.bundles(), busiest)
        return self._meter.measured(
            Counters(*self._times()), by_bundle, held, self._clock.monotonic()
        )
