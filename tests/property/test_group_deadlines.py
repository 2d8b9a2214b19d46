"""Deadlines against a plain dictionary, and that the heap does not grow with what only moves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from octavo.serving.groups.deadlines import Deadlines, Due, DueKey

KEYS = [DueKey(due, name) for due in (Due.SESSION, Due.HELD_HEARTBEAT) for name in "abc"]


def run(seed: int, make: Callable[[], Deadlines] = Deadlines) -> None:
    rng = random.Random(seed)
    deadlines, model, now_s = make(), dict[DueKey, float](), 0.0
    for _ in range(80):
        key = rng.choice(KEYS)
        match rng.randrange(4):
            case 0 | 1:
                model[key] = now_s + rng.choice((1.0, 3.0, 45.0))
                deadlines.set(key, model[key])
            case 2:
                model.pop(key, None)
                deadlines.clear(key)
            case _:
                now_s += rng.choice((0.0, 1.0, 10.0))
                due = deadlines.due(now_s)
                assert sorted(due) == sorted(key for key, at_s in model.items() if at_s <= now_s)
                assert due == sorted(due, key=lambda one: (model[one], one))
                model = {key: at_s for key, at_s in model.items() if at_s > now_s}
        assert deadlines.next_s() == min(model.values(), default=None)
        assert all((key in deadlines) == (key in model) for key in KEYS)


def run_all(make: Callable[[], Deadlines] = Deadlines) -> None:
    for seed in range(200):
        run(seed, make)


def test_what_is_due_and_when() -> None:
    run_all()


def test_a_session_that_moves_costs_no_memory() -> None:
    deadlines = Deadlines()
    for moment in range(10_000):
        for key in KEYS:
            deadlines.set(key, moment + 45.0)
        deadlines.due(float(moment))
    assert deadlines.size <= 2 * len(KEYS)


class _ForgetsEarlierOnes(Deadlines):
    def set(self, key: DueKey, at_s: float) -> None:
        self.latest = max(getattr(self, "latest", 0.0), at_s)
        super().set(key, self.latest)


class _KeepsTheOldPlace(Deadlines):
    def clear(self, key: DueKey) -> None:
        pass


class _IsDueTooLate(Deadlines):
    def due(self, now_s: float) -> list[DueKey]:
        return super().due(now_s - 0.5)


@pytest.mark.parametrize("planted", [_ForgetsEarlierOnes, _KeepsTheOldPlace, _IsDueTooLate])
def test_planted_faults_are_found(planted: type[Deadlines]) -> None:
    with pytest.raises(AssertionError):
        run_all(planted)
