"""The table of served partitions: each is told once as served and once as left, in this order."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.shell import PartitionShell
from octavo.serving.served import PartitionListener, ServedPartitions
from tests.serving_rig import NAME, Rig

NEXT_LIFE = PartitionName(NAME.topic, uuid.UUID(int=8), NAME.partition)
OTHER = PartitionName(NAME.topic, NAME.topic_id, 1)


class Follower:
    """What a listener heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, PartitionShell]] = []

    @property
    def listener(self) -> PartitionListener:
        return PartitionListener(self._served, self._left)

    def _served(self, shell: PartitionShell) -> None:
        self.heard.append(("served", shell))

    def _left(self, shell: PartitionShell) -> None:
        self.heard.append(("left", shell))


@pytest.fixture
async def make() -> Callable[[PartitionName], PartitionShell]:
    return Rig().broker().shell


Make = Callable[[PartitionName], PartitionShell]


async def test_served_and_left(make: Make) -> None:
    table, follower = ServedPartitions(), Follower()
    table.listen(follower.listener)
    shell = make(NAME)
    assert table.add(shell, 3) is None
    assert follower.heard == [("served", shell)]
    assert (list(table), len(table), table.of_bundle(3), table.of_bundle(4)) == (
        [shell],
        1,
        [shell],
        [],
    )
    table.forget(shell)
    assert follower.heard == [("served", shell), ("left", shell)]
    assert not list(table)


async def test_one_that_is_unloaded_in_good_order_left_when_it_begins(make: Make) -> None:
    table, follower = ServedPartitions(), Follower()
    table.listen(follower.listener)
    shell = make(NAME)
    table.add(shell, 0)
    table.leave(shell)
    assert follower.heard[-1] == ("left", shell)
    assert list(table) == [shell]  # it says where its partition went
    table.leave(shell)
    table.forget(shell)
    table.forget(shell)
    assert len(follower.heard) == 2


async def test_the_names_next_life_replaces_the_earlier_one(make: Make) -> None:
    table, follower = ServedPartitions(), Follower()
    table.listen(follower.listener)
    old, new = make(NAME), make(NEXT_LIFE)
    table.add(old, 0)
    assert table.add(new, 1) is old
    assert follower.heard == [("served", old), ("left", old), ("served", new)]
    table.forget(old)  # it gives up late: the new one stays
    table.leave(old)
    assert list(table) == [new]
    assert len(follower.heard) == 3
    assert table.of_topic(NEXT_LIFE.topic_id) == [new]
    assert table.of_topic(NAME.topic_id) == []


async def test_who_comes_late_hears_of_what_is_served_already(make: Make) -> None:
    table, follower = ServedPartitions(), Follower()
    shell, leaving = make(NAME), make(OTHER)
    table.add(shell, 0)
    table.add(leaving, 0)
    table.leave(leaving)
    table.listen(follower.listener)
    assert follower.heard == [("served", shell)]
    table.forget(leaving)
    table.forget(shell)
    assert follower.heard == [("served", shell), ("left", shell)]


async def test_everybody_is_told(make: Make) -> None:
    table, followers = ServedPartitions(), [Follower(), Follower()]
    for follower in followers:
        table.listen(follower.listener)
    shell = make(NAME)
    table.add(shell, 0)
    assert [follower.heard for follower in followers] == [[("served", shell)]] * 2
