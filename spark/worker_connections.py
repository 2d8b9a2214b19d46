"""Connections to bookies that a worker process keeps from task to task.

A Spark worker reads one split after another, each of a ledger on the same bookies; greeting them
anew for each costs more than a small split does. Lives on the loop of `octavo.spark.loop_bridge`;
all methods are called there.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from octavo.client.segments.reader import DescribedLedgers
from octavo.runtime.tasks import TaskOwner

IDLE_S = 30.0
"""How long connections that nobody uses are kept."""
CLUSTERS_MAX = 4
"""Sets of addresses whose connections are kept at the same time, beside those in use."""

Key = tuple[tuple[str, str], ...]


class WorkerConnections:
    """One `DescribedLedgers` for each set of addresses.

    For each set, not for each bookie: ids of bookies say nothing across clusters, and a bookie of
    another one would answer that it has no such ledger.
    """

    def __init__(self, client_name: str) -> None:
        self._client_name = client_name
        self._pid = os.getpid()
        self._kept: OrderedDict[Key, DescribedLedgers] = OrderedDict()
        self._users: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks = TaskOwner("worker-connections")

    @asynccontextmanager
    async def of(self, addresses: Mapping[str, str]) -> AsyncGenerator[DescribedLedgers, None]:
        """Ledgers on these bookies, for as long as the context lasts."""
        if self._pid != os.getpid():  # what a forked child inherits belongs to its parent
            self._pid = os.getpid()
            self._kept, self._users, self._timers = OrderedDict(), {}, {}
        key = tuple(sorted(addresses.items()))
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = DescribedLedgers(addresses, self._client_name)
        self._kept.move_to_end(key)
        self._users[key] = self._users.get(key, 0) + 1
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        try:
            yield found
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                self._idle(key)

    def _idle(self, key: Key) -> None:
        del self._users[key]
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(IDLE_S, self._drop, key)
        idle = [one for one in self._kept if one not in self._users]
        for one in idle[: max(len(idle) - CLUSTERS_MAX, 0)]:
            self._drop(one)

    def _drop(self, key: Key) -> None:
        self._timers.pop(key).cancel()
        self._tasks.spawn(self._kept.pop(key).close(), name="close")
