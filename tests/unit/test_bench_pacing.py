"""Open-loop pacing: due times never depend on how late the caller is."""

from __future__ import annotations

import itertools

import pytest

from bench import pacing


class FakeTime:
    """A clock that moves only when somebody waits or says that work took time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def wait_async(self, seconds: float) -> None:
        self.wait(seconds)


def test_a_fast_caller_gets_each_record_when_it_is_due() -> None:
    time = FakeTime()
    schedule = pacing.Schedule(100.5, 1000, 5)
    for number, due in enumerate(pacing.paced(schedule, time.clock, time.wait)):
        assert due == pytest.approx(100.5 + number / 1000)
        assert time.now == pytest.approx(due)


def test_a_stall_shifts_no_due_time_and_is_seen_by_the_records_behind_it() -> None:
    """No coordinated omission: a stall of 50 ms makes 50 records late, the last by 1 ms."""
    time = FakeTime()
    schedule = pacing.Schedule(100.0, 1000, 100)
    late: list[float] = []
    for number, due in enumerate(pacing.paced(schedule, time.clock, time.wait)):
        late.append(time.now - due)
        if number == 9:
            time.now += 0.050
    assert late[:10] == pytest.approx([0.0] * 10, abs=1e-9)
    assert late[10] == pytest.approx(0.049)
    assert sum(delay > 1e-9 for delay in late) == 49
    assert late[60:] == pytest.approx([0.0] * 40, abs=1e-9)


def test_a_wait_that_returns_early_is_repeated() -> None:
    time = FakeTime()
    schedule = pacing.Schedule(101.0, 10, 2)
    for due in pacing.paced(schedule, time.clock, lambda s: time.wait(s / 2 + 1e-6)):
        assert time.now >= due
    assert len(time.waits) > 2


async def test_the_loop_gets_a_turn_between_records_even_when_late() -> None:
    time = FakeTime()
    schedule = pacing.Schedule(90.0, 1000, 20)
    dues = [due async for due in pacing.paced_async(schedule, time.clock, time.wait_async)]
    assert dues == [schedule.due(number) for number in range(20)]
    assert time.waits == [0.0] * 20


async def test_async_pacing_never_yields_early() -> None:
    time = FakeTime()
    schedule = pacing.Schedule(100.1, 100, 30)
    async for due in pacing.paced_async(schedule, time.clock, time.wait_async):
        assert time.now >= due
    assert time.now == pytest.approx(schedule.due(29))


def test_a_schedule_starts_in_the_future() -> None:
    time = FakeTime()
    assert pacing.soon(time.clock, 500, 10) == pacing.Schedule(100.0 + pacing.LEAD_S, 500, 10)


def test_limited_ends_by_count() -> None:
    time = FakeTime()
    values = pacing.Limited(itertools.count(), time.clock, 10, 70)
    assert list(values) == list(range(70))
    assert values.taken == 70


def test_limited_ends_by_time_and_loses_no_value_of_the_stream() -> None:
    time = FakeTime()
    stream = itertools.count()
    first = pacing.Limited(stream, time.clock, 1.0, 10**9)
    for _ in first:
        time.now += 0.01
    assert 100 <= first.taken <= 100 + pacing.CHECK_EVERY
    second = pacing.Limited(stream, time.clock, 1.0, 3)
    assert list(second) == [first.taken, first.taken + 1, first.taken + 2]
