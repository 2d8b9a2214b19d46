"""kill -9 at every write of metadata in the life of a partition, with real processes (ML-9).

A roll, each step of a compaction and of a trim among them. Either list is valid, what was told to
be durable is there, and no ledger is left that nobody names.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from octavo.metadata.connect import connect_store, root_of
from octavo.metadata.ledgers import LedgerCatalog
from octavo.metadata.paths import Paths
from octavo.metadata.topics import PartitionCatalog
from octavo.runtime.clock import SystemClock
from octavo.runtime.entropy import SystemEntropy
from octavo.testing import LocalCluster
from tests.killed_owner import TOPIC, TOPIC_ID, Order

pytestmark = pytest.mark.process

WHOLE = {"2": "a2", "3": "c3"}
"""What a partition holds at the end: a0 was superseded, b1 trimmed."""
NEEDED = {"create_and_put": 4, "put": 6, "delete": 2}
"""Writes that a life must have, or the sweep proves little."""
TIMEOUT_S = 60.0
ROOT = pathlib.Path(__file__).parents[2]
"""Where `tests` is: with PYTHONSAFEPATH the working directory is not looked in."""


class Owners:
    """The process that forks them."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.killed_owner", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.told: list[dict[str, Any]] = []
        """What the children told, all of it."""

    def play(self, orders: Sequence[Order]) -> None:
        """Returns when all of them are dead."""
        for order in orders:
            print(json.dumps(order._asdict()), file=self._process.stdin, flush=True)
        print(file=self._process.stdin, flush=True)
        living = len(orders)
        for line in self._process.stdout or ():
            self.told.append(json.loads(line))
            ended = self.told[-1].get("ended")
            assert ended in (None, 0, -signal.SIGKILL), self.told[-1]
            living -= ended is not None
            if not living:
                return
        raise AssertionError("the process ended")

    def close(self) -> None:
        """Wait for its end; it has no children then."""
        self._process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def owners(shared_cluster: LocalCluster) -> Iterator[Owners]:
    made = Owners(shared_cluster.metadata)
    yield made
    made.close()


async def _orphans(url: str, partitions: int) -> set[int]:
    """Ledgers of ours that exist and are named nowhere."""
    clock, entropy = SystemClock(), SystemEntropy()
    store = await connect_store(url, client_name="orphans", clock=clock, entropy=entropy)
    paths = Paths(root_of(url))
    lists = PartitionCatalog(store, paths, clock=clock, entropy=entropy)
    ledgers = LedgerCatalog(store, paths, clock=clock, entropy=entropy)
    found = set[int]()
    async for record in ledgers.walk_records():
        if record.metadata.custom.get("topic") == TOPIC:
            found.add(record.metadata.ledger_id)
    for partition in range(partitions):
        listed = await lists.read(TOPIC_ID, partition)
        if listed is not None:
            found -= {one.ledger_id for one in listed.state.segments}
            found -= {one.ledger_id for one in listed.state.trash}
    await store.close()
    return found


async def test_ml9_k7_r4_an_owner_killed_at_any_write_leaves_a_valid_list_and_no_ledger(
    shared_cluster: LocalCluster, owners: Owners
) -> None:
    url, told = shared_cluster.metadata, owners.told
    owners.play([Order(0)])
    names = next(line["writes"] for line in told if "writes" in line)
    assert all(names.count(name) >= count for name, count in NEEDED.items()), names
    orders = [Order(0)]
    for at, name in enumerate(names, 1):
        orders.append(Order(len(orders), at))
        if name == "create_and_put":
            orders.append(Order(len(orders), at, on_its_way=True))
    owners.play(orders[1:])
    assert await _orphans(url, len(orders)) == set()
    killed = sum("ended" in line and line["ended"] < 0 for line in told)
    assert killed >= len(orders) - 4, "but where the trash took a write less"

    owners.play([Order(len(orders), looks=True)])
    assert await _orphans(url, len(orders)) == set()
    durable: dict[int, dict[str, str]] = {order.partition: {} for order in orders}
    for line in told:
        if "offset" in line:
            durable[line["partition"]][str(line["offset"])] = line["value"]
    found = {line["partition"]: line for line in told if "holds" in line}
    assert set(found) == {order.partition for order in orders}
    assert found[0]["holds"] == WHOLE
    for order in orders[1:]:
        start, holds = found[order.partition]["log_start"], found[order.partition]["holds"]
        assert start in (0, 2), order
        kept = {at: value for at, value in durable[order.partition].items() if int(at) >= start}
        superseded = {"0"} if "2" in kept else set[str]()
        missing = {at for at, value in kept.items() if holds.get(at) != value}
        assert missing <= superseded, order
