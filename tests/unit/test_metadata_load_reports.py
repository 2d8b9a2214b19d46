"""Reports of load in the metadata store: the newest of each broker, gone with its session (O-4)."""

from __future__ import annotations

import pytest

from octavo.metadata.load_reports import Load, LoadReport, LoadReports
from octavo.metadata.memory import MemoryCluster
from octavo.runtime.errors import MetadataCorrupt, MetadataUnavailable, UnknownOutcome
from tests.unit.metadata_stores import PATHS

LOAD = Load(0.5, 0.5, 0.1, 1, 2, 3, 4, 5, {7: 0.25})


def report(number: int = 1, broker: str = "a", load: Load = LOAD) -> LoadReport:
    return LoadReport(broker, b"n", number, load)


async def test_each_broker_has_one_report_the_newest() -> None:
    cluster = MemoryCluster()
    first, second = LoadReports(cluster.connect(), PATHS), LoadReports(cluster.connect(), PATHS)
    assert await first.read() == []
    for number in (1, 2, 3):
        await first.publish(report(number))
    await second.publish(report(9, "b"))
    assert await second.read() == [report(3), report(9, "b")]


async def test_a_report_goes_with_its_session_and_is_made_again() -> None:
    cluster = MemoryCluster()
    store, other = cluster.connect(), LoadReports(cluster.connect(), PATHS)
    mine = LoadReports(store, PATHS)
    await mine.publish(report(1))
    cluster.expire(store)
    assert await other.read() == []
    await mine.publish(report(2))
    assert await other.read() == [report(2)]
    await store.close()
    assert await other.read() == []


async def test_what_an_earlier_process_of_the_broker_left_is_replaced() -> None:
    cluster = MemoryCluster()
    before = cluster.connect()
    await LoadReports(before, PATHS).publish(report(100))
    mine = LoadReports(cluster.connect(), PATHS)
    await mine.publish(report(1))
    assert await mine.read() == [report(1)]
    await before.close()  # the key was of that session
    assert await mine.read() == []
    await mine.publish(report(2))
    assert await mine.read() == [report(2)]


async def test_failures_are_told_and_the_next_report_counts() -> None:
    store = MemoryCluster().connect()
    mine = LoadReports(store, PATHS)
    await mine.publish(report(1))
    store.faults.lose_reply()
    with pytest.raises(UnknownOutcome):
        await mine.publish(report(2))
    store.suspend()
    for failing in (mine.publish(report(3)), mine.read()):
        with pytest.raises((MetadataUnavailable, UnknownOutcome)):
            await failing


async def test_a_report_that_nobody_can_read_is_not_known_and_is_replaced() -> None:
    store = MemoryCluster().connect()
    reports = LoadReports(store, PATHS)
    await reports.publish(report(1, "a"))
    await reports.publish(report(1, "b"))
    await store.put(PATHS.load("a"), b"\xff", expected=None)
    assert await reports.read() == [report(1, "b")]
    await reports.publish(report(2, "a"))
    assert await reports.read() == [report(2, "a"), report(1, "b")]


@pytest.mark.parametrize(
    "wrong",
    [
        report(load=LOAD._replace(usage=1.5)),
        report(load=LOAD._replace(usage=-0.1)),
        report(load=LOAD._replace(usage=float("nan"))),
        report(load=LOAD._replace(shares={1: 2.0})),
        report(broker=""),
    ],
)
def test_figures_that_cannot_be_are_damage(wrong: LoadReport) -> None:
    with pytest.raises(MetadataCorrupt):
        LoadReport.from_bytes(wrong.to_bytes())


def test_what_a_bundle_takes_is_its_part_of_the_usage() -> None:
    assert LOAD.usage_of(7) == 0.125
    assert LOAD.usage_of(8) == 0.0
