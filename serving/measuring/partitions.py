"""What went through the partitions of a broker, those that it has no more included.

Each partition counts for itself (`partition/traffic`); here the numbers are only added up when
somebody looks, and kept when a partition goes, so that no total ever falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from octavo.runtime.clock import Clock
from octavo.runtime.histogram import WORK_SECONDS, Histogram
from octavo.serving.partition.core import PartitionStateName
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.partition.traffic import Traffic
from octavo.serving.registry import PartitionRegistry
from octavo.serving.served import PartitionKey, PartitionListener
from octavo.serving.shedding.meter import weight_of

TAKE_OVER_S = 60.0
"""A partition that is served later than that after its bundle was taken was asked for anew."""


class Shares(NamedTuple):
    """Parts of a broker's load in the last load interval."""

    busiest: float
    """Of the partition with the most."""
    of: dict[PartitionKey, float]
    """Of each that had any, internal ones left out."""


class PartitionFigures:
    """Of one broker.

    Args:
        shares_max: of how many partitions the share is remembered, those with the most.
    """

    def __init__(self, registry: PartitionRegistry, clock: Clock, shares_max: int) -> None:
        self._registry = registry
        self._clock = clock
        self._shares_max = shares_max
        self._gone = Traffic()
        """Of those that were closed."""
        self._leaving: list[PartitionShell] = []
        """They may still finish batches; at most those that were served."""
        self._taken: dict[int, float] = {}
        self.shares = Shares(0.0, {})
        self.take_over_seconds = Histogram(WORK_SECONDS)
        registry.listen(PartitionListener(self._served, self._left))

    def total(self) -> Traffic:
        """Of all partitions that users write to, since the start."""
        self._fold()
        total = self._gone
        open_now = set(self._registry.shells())
        for shell in (*open_now, *(one for one in self._leaving if one not in open_now)):
            if not shell.is_internal:
                total = total.plus(shell.traffic.total)
        return total

    def take(self) -> Iterator[tuple[int, PartitionName, Traffic]]:
        """What went through each open partition since the last call, with its bundle and name."""
        weights: dict[PartitionKey, int] = {}
        whole = 0
        for shell in self._registry.shells():
            name, traffic = shell.name, shell.traffic.take()
            weight = weight_of(traffic)
            whole += weight
            if weight and not shell.is_internal:
                weights[name.topic, name.partition] = weight
            yield self._registry.bundle(name.topic_id, name.partition), name, traffic
        largest = sorted(weights.items(), key=lambda item: -item[1])[: max(1, self._shares_max)]
        shares = {key: weight / whole for key, weight in largest}
        self.shares = Shares(max(shares.values(), default=0.0), shares)

    def taken(self, bundle: int) -> None:
        """A bundle was taken because its owner is gone: its partitions are awaited."""
        now_s = self._clock.monotonic()
        self._taken = {b: at_s for b, at_s in self._taken.items() if now_s - at_s < TAKE_OVER_S}
        self._taken[bundle] = now_s

    def _served(self, shell: PartitionShell) -> None:
        if not self._taken:
            return
        at_s = self._taken.get(self._registry.bundle(shell.name.topic_id, shell.name.partition))
        if at_s is not None and (passed_s := self._clock.monotonic() - at_s) < TAKE_OVER_S:
            self.take_over_seconds.observe(passed_s)

    def _left(self, shell: PartitionShell) -> None:
        self._fold()
        self._leaving.append(shell)

    def _fold(self) -> None:
        """Keep the numbers of partitions that count no more."""
        left: list[PartitionShell] = []
        for shell in self._leaving:
            if shell.state is not PartitionStateName.CLOSED:
                left.append(shell)
            elif not shell.is_internal:
                self._gone = self._gone.plus(shell.traffic.total)
        self._leaving = left
