"""What a broker measures and tells of its load, and whose word is trusted (O-4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from octavo.metadata.brokers import BrokerInfo
from octavo.metadata.load_reports import (
    REPORT_BUNDLES_MAX,
    REPORT_MAX_BYTES,
    Load,
    LoadReport,
    LoadReports,
)
from octavo.metadata.memory import MemoryCluster
from octavo.runtime.clock import ManualClock
from octavo.runtime.cpu import CpuTimes, cpu_times, usable_cpus
from octavo.serving.partition.name import PartitionName
from octavo.serving.partition.traffic import PartitionTraffic, Traffic
from octavo.serving.shedding.board import LoadBoard
from octavo.serving.shedding.meter import (
    BATCH_BYTES,
    RATE_FLOOR_BYTES,
    REFRESH_INTERVALS,
    Counters,
    Held,
    LoadMeter,
)
from octavo.serving.shedding.reporter import Counted, LoadReporter
from tests.serving_rig import NAME
from tests.unit.metadata_stores import PATHS

NOTHING = Held(0, 0)
MIB = 1 << 20


def load(usage: float = 0.5, **changes: object) -> Load:
    return Load(usage, usage, 0.1, 1, 2, 3, 4, 5, {7: 0.25})._replace(**changes)  # type: ignore[arg-type]


def report(number: int = 1, broker: str = "a", nonce: bytes = b"n") -> LoadReport:
    return LoadReport(broker, nonce, number, load())


def measured(meter: LoadMeter, traffic: dict[int, Traffic], now_s: float, loop_s: float) -> Load:
    found = meter.measured(Counters(loop_s, loop_s), traffic, Held(3, 2), now_s)
    assert found is not None
    return found


# --- counting ----------------------------------------------------------------------------------


def test_a_partition_counts_by_batch_and_from_one_look_to_the_next() -> None:
    traffic = PartitionTraffic()
    assert traffic.take() == Traffic()
    traffic.wrote(100, 5_000)
    traffic.wrote(1, 50)
    traffic.read(40, 7_000)
    assert traffic.take() == Traffic(5_050, 101, 2, 7_000, 1, 40)
    assert traffic.take() == Traffic()
    traffic.read(2, 10)
    assert traffic.take() == Traffic(bytes_out=10, reads=1, records_out=2)
    assert traffic.total == Traffic(5_050, 101, 2, 7_010, 2, 42)  # a look takes nothing away
    assert Traffic(1, 2, 3, 4, 5).plus(Traffic(1, 1, 1, 1, 1)) == Traffic(2, 3, 4, 5, 6)


# --- measuring ---------------------------------------------------------------------------------


def test_usage_is_the_larger_of_the_loop_and_the_machine() -> None:
    meter = LoadMeter(4, Counters(10.0, 5.0), 100.0)
    found = meter.measured(Counters(22.0, 6.0), {}, NOTHING, 110.0)
    assert found is not None
    # 12 s of 4 processors in 10 s; 1 s of the loop's thread in 10 s
    assert (found.usage, found.cpu_share, found.loop_share) == (0.3, 0.3, 0.1)
    found = meter.measured(Counters(30.0, 14.0), {}, NOTHING, 120.0)
    assert found is not None
    assert (found.usage, found.cpu_share, found.loop_share) == (0.8, 0.2, 0.8)
    assert meter.measured(Counters(30.0, 14.0), {}, NOTHING, 120.0) is None
    found = meter.measured(Counters(99.0, 99.0), {}, NOTHING, 130.0)
    assert found is not None
    assert found.usage == 1.0


def test_rates_and_shares_are_those_of_the_time_since_the_last_look() -> None:
    meter = LoadMeter(2, Counters(0.0, 0.0), 0.0)
    traffic = {
        3: Traffic(bytes_in=3 * MIB, records_in=600, batches_in=16),
        8: Traffic(bytes_out=MIB, reads=16),
        9: Traffic(),
    }
    found = measured(meter, traffic, 2.0, 1.0)
    assert (found.bytes_in_per_s, found.bytes_out_per_s) == (3 * MIB // 2, MIB // 2)
    assert (found.records_in_per_s, found.partitions, found.bundles) == (300, 3, 2)
    # 16 batches or replies cost as much as a mebibyte: 4 of 6, and 2 of 6.
    assert 16 * BATCH_BYTES == MIB
    assert found.shares == {3: pytest.approx(4 / 6, abs=1e-4), 8: pytest.approx(2 / 6, abs=1e-4)}
    assert found.usage_of(3) == found.usage * found.shares[3]
    assert found.usage_of(9) == 0.0
    assert measured(meter, {}, 4.0, 1.0).shares == {}


def test_a_report_names_the_bundles_with_the_most_and_is_never_large() -> None:
    meter = LoadMeter(2, Counters(0.0, 0.0), 0.0)
    traffic = {n: Traffic(bytes_in=MIB + n, batches_in=1) for n in range(4096)}
    found = measured(meter, traffic, 15.0, 1.0)
    assert sorted(found.shares) == list(range(4096 - REPORT_BUNDLES_MAX, 4096))
    told = LoadReport("b" * 200, b"n" * 16, 1 << 40, found)
    assert len(told.to_bytes()) <= REPORT_MAX_BYTES
    assert LoadReport.from_bytes(told.to_bytes()) == told


def test_nothing_is_written_while_nothing_changes_but_once_in_a_while() -> None:
    meter = LoadMeter(2, Counters(0.0, 0.0), 0.0)
    assert meter.is_news(load(0.50))
    news = [meter.is_news(load(0.51)) for _ in range(2 * REFRESH_INTERVALS)]
    assert news == [n % REFRESH_INTERVALS == 0 for n in range(1, 2 * REFRESH_INTERVALS + 1)]
    changed = load()
    for changed in (
        load(0.55),
        load(0.55, bundles=6),
        load(0.55, bundles=6, bytes_in_per_s=2 * RATE_FLOOR_BYTES),
        load(0.55, bundles=6, bytes_in_per_s=2 * RATE_FLOOR_BYTES, shares={7: 0.9}),
        load(0.55, bundles=6, bytes_in_per_s=2 * RATE_FLOOR_BYTES, shares={8: 0.9}),
    ):
        assert meter.is_news(changed), changed
        assert not meter.is_news(changed)
    meter.not_told()
    assert meter.is_news(changed)


# --- trusting ----------------------------------------------------------------------------------


def test_a_report_that_was_there_before_is_trusted_when_it_changes() -> None:
    board = LoadBoard(100.0)
    board.looked([report(4)], 0.0)
    assert board.fresh(0.0) == {}  # perhaps of a week ago
    board.looked([report(4), report(1, "b")], 10.0)
    assert set(board.fresh(10.0)) == {"b"}  # it was not there a moment ago
    board.looked([report(5), report(1, "b")], 20.0)
    assert set(board.fresh(20.0)) == {"a", "b"}


def test_a_report_that_does_not_change_becomes_stale_and_one_that_goes_is_gone() -> None:
    board = LoadBoard(100.0)
    board.looked([], 0.0)
    board.looked([report(1), report(1, "b")], 10.0)
    for now_s in (60.0, 110.0):
        board.looked([report(1), report(round(now_s), "b")], now_s)
    assert set(board.fresh(110.0)) == {"a", "b"}
    assert set(board.fresh(111.0)) == {"b"}
    board.looked([report(1, nonce=b"another life")], 120.0)
    assert set(board.fresh(120.0)) == {"a"}


def test_who_could_not_look_for_long_knows_nothing() -> None:
    board = LoadBoard(100.0)
    board.looked([], 0.0)
    board.looked([report(1)], 10.0)
    board.looked([report(2)], 111.0)  # written at any time since then
    assert board.fresh(111.0) == {}
    board.looked([report(3)], 120.0)
    assert set(board.fresh(120.0)) == {"a"}


# --- telling -----------------------------------------------------------------------------------


class Rig:
    """A reporter over a metadata store, and the time it measures."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.store = self.cluster.connect()
        self.reports = LoadReports(self.store, PATHS)
        self.board = LoadBoard(100.0)
        self.clock = ManualClock()
        self.times = CpuTimes(0.0, 0.0)
        self.traffic: list[tuple[int, Traffic]] = []
        counted = Counted(
            me=lambda: BrokerInfo("a", "a:1", b"nonce"),
            take_traffic=self.take,
            bundles=lambda: 2,
        )
        self.reporter = LoadReporter(
            self.reports,
            self.board,
            counted,
            clock=self.clock,
            interval_s=10.0,
            times=lambda: self.times,
        )

    def take(self) -> Iterable[tuple[int, PartitionName, Traffic]]:
        taken, self.traffic = self.traffic, []
        for number, (bundle, traffic) in enumerate(taken):
            yield bundle, NAME._replace(partition=number), traffic

    async def interval(self, busy_s: float) -> LoadReport | None:
        """One interval with so much work; what the store says afterwards."""
        self.clock.advance(10.0)
        self.times = CpuTimes(self.times.process_s + busy_s, self.times.thread_s + busy_s)
        await self.reporter.report()
        found = await self.reports.read()
        return found[0] if found else None


async def test_f175_a_hot_partition_is_named_with_how_much_more_it_has_to_do() -> None:
    rig = Rig()
    one = Traffic(bytes_in=64 * 1024, records_in=10, batches_in=1)
    hot = Traffic(bytes_in=10 * 64 * 1024, records_in=10, batches_in=10)
    rig.traffic = [(5, one), (6, hot), (7, Traffic())]
    found = await rig.interval(4.0)
    assert found is not None
    assert (found.load.hottest, found.load.partition_load_ratio) == ("orders-1", 0.9091)
    rig.traffic = [(5, one), (6, one)]
    for _ in range(REFRESH_INTERVALS):
        found = await rig.interval(9.0)
    assert found is not None
    assert found.load.hottest == ""
    assert found.load.partition_load_ratio == 0.0, "nothing went through any of them"
    rig.traffic = [(5, one), (6, one)]
    rig.reporter._meter.not_told()  # pyright: ignore[reportPrivateUsage]
    found = await rig.interval(1.0)
    assert found is not None
    assert found.load.partition_load_ratio == 0.5, "both have as much to do"


async def test_a_broker_publishes_what_changed_and_reads_what_others_say() -> None:
    rig = Rig()
    rig.traffic = [(5, Traffic(100, 1, 1, 0, 0)), (5, Traffic(100, 1, 1, 0, 0)), (6, Traffic())]
    found = await rig.interval(4.0)
    assert found is not None
    assert (found.broker_id, found.process_nonce, found.number) == ("a", b"nonce", 1)
    assert (found.load.usage, found.load.partitions, found.load.bundles) == (0.4, 3, 2)
    assert found.load.shares == {5: 1.0}
    rig.traffic = [(5, Traffic(300, 1, 1, 0, 0))]
    assert (await rig.interval(4.1) or found).number == 1
    rig.traffic = [(5, Traffic(300, 1, 1, 0, 0))]
    found = await rig.interval(6.0)
    assert found is not None
    assert (found.number, found.load.usage) == (2, 0.6)
    assert rig.board.fresh(rig.clock.monotonic())["a"].usage == 0.6


async def test_what_could_not_be_told_is_told_the_next_time_and_goes_with_the_session() -> None:
    rig = Rig()
    assert (await rig.interval(1.0)) is not None
    rig.store.faults.lose_request()
    before = await rig.interval(9.0)
    assert before is not None
    assert before.number == 1
    after = await rig.interval(9.0)
    assert after is not None
    assert (after.number, after.load.usage) == (3, 0.9)
    await rig.store.close()
    assert await LoadReports(rig.cluster.connect(), PATHS).read() == []


async def test_the_time_of_the_loop_is_that_of_its_thread() -> None:
    before = cpu_times()
    await asyncio.to_thread(sum, range(2_000_000))
    after = cpu_times()
    assert after.process_s - before.process_s > after.thread_s - before.thread_s
    assert usable_cpus() >= 1
