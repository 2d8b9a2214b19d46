"""Upkeep gives way to those who write and read, and never wholly (B-18, 6.15)."""

from __future__ import annotations

import threading

import pytest

from octavo.bookie.reclaim.pace import MEASURE_S, SHARE_MIN, YIELD_ENTRIES_PER_S, Pace, Stopped
from octavo.bookie.scrub.scrub_actions import Progress
from octavo.bookie.scrub.scrub_core import ScrubCore, ScrubLimits
from octavo.runtime.clock import ManualClock


class Served:
    """Entries that a bookie took and gave."""

    def __init__(self) -> None:
        self.entries = 0

    def __call__(self) -> int:
        return self.entries


def beside(entries_per_s: float, *, is_urgent: bool = False) -> Pace:
    clock, served = ManualClock(), Served()
    pace = Pace(1 << 20, clock, served)
    pace.is_urgent = is_urgent
    clock.advance(2 * MEASURE_S)
    served.entries += round(entries_per_s * 2 * MEASURE_S)
    pace.share()
    return pace


@pytest.mark.parametrize(
    ("entries_per_s", "share"),
    [(0, 1.0), (YIELD_ENTRIES_PER_S, 0.5), (3 * YIELD_ENTRIES_PER_S, 0.25), (1e6, SHARE_MIN)],
)
def test_b18_the_rate_is_shared_with_traffic(entries_per_s: float, share: float) -> None:
    assert beside(entries_per_s).share() == pytest.approx(share)


def test_b18_a_disk_that_runs_full_gives_way_to_nobody() -> None:
    assert beside(1e6, is_urgent=True).share() == 1.0


def test_b18_the_rate_comes_back_when_the_traffic_ends() -> None:
    clock, served = ManualClock(), Served()
    pace = Pace(1 << 20, clock, served)
    clock.advance(MEASURE_S)
    served.entries = 10_000
    assert pace.share() == SHARE_MIN
    clock.advance(MEASURE_S)
    assert pace.share() == 1.0


def test_615_a_scrub_that_takes_longer_than_its_interval_is_late() -> None:
    core = ScrubCore(
        ScrubLimits(600.0, 100, 10.0), Progress(5, 1_000, 0), first_s=0.0, now_s=0.0, now_ms=2_000
    )  # a pass goes on that another process began
    assert (core.in_pass, core.is_late(601_000), core.is_late(601_001)) == (True, False, True)


def test_whoever_waits_is_woken_by_the_end() -> None:
    pace = Pace(1.0, ManualClock(), Served())
    ended: list[bool] = []

    def work() -> None:
        try:
            pace.spend(1 << 30)
        except Stopped:
            ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    pace.stop()
    thread.join(60)
    assert ended == [True]
