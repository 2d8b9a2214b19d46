"""Two ways in turn: the order, the pairs, and that steady change of the machine is nobody's."""

from __future__ import annotations

import pytest

from bench import groups
from bench.alternating import Cost, Pass, alternate, cost, turns
from bench.stats import Spread, latency


def test_each_pair_has_one_pass_of_both_and_the_order_turns() -> None:
    assert list(turns(4)) == [False, True, True, False, False, True, True, False]
    assert list(turns(0)) == []


def test_passes_that_lie_side_by_side_have_one_index() -> None:
    made: list[str] = []

    def one(name: str) -> Pass:
        made.append(name)
        return Pass(float(len(made)), 1.0)

    first, second = alternate(lambda: one("a"), lambda: one("b"), 3)
    assert "".join(made) == "abbaab"
    assert [taken.wall_s for taken in first] == [1, 4, 5]
    assert [taken.wall_s for taken in second] == [2, 3, 6]


def test_a_machine_that_slows_down_steadily_makes_neither_way_dear() -> None:
    clock = iter(range(100, 140))
    first, second = alternate(
        lambda: Pass(float(next(clock)), 1.0), lambda: Pass(float(next(clock)), 1.0), 20
    )
    assert cost(first, second).wall.median == pytest.approx(1.0, abs=0.001)


def test_one_disturbed_pass_does_not_move_the_median() -> None:
    first = [Pass(1.0, 0.5)] * 5
    second = [Pass(1.1, 0.6), Pass(9.0, 0.6), Pass(1.1, 0.6), Pass(1.1, 0.6), Pass(1.1, 0.6)]
    found = cost(first, second)
    assert found.wall == Spread(1.1, 1.1, 9.0, 5)
    assert found.cpu.median == pytest.approx(1.2)


def test_a_missing_pass_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        cost([Pass(1, 1)], [])


def commits() -> groups.Commits:
    return groups.Commits(500.0, latency([0.002]), 9000.0, 400.0, latency([0.004]))


@pytest.mark.parametrize(("ratio", "holds"), [(1.05, True), (1.051, False)])
def test_the_last_line_says_whether_a_group_costs_no_more_than_it_may(
    ratio: float, holds: bool
) -> None:
    spread = Spread(ratio, 0.9, 1.3, 12)
    found = {"poll": (400_000.0, Cost(spread, Spread(1.2, 1.2, 1.2, 12), ratio))}
    said, line = groups.summary(found, commits())
    assert said is holds
    assert line.startswith(f"bench-groups: {'OK' if holds else 'FAILED'} poll_ratio={ratio:.3f} ")
    assert f"poll_best_ratio={ratio:.3f} poll_cpu_ratio=1.200" in line
    assert "commits_per_s=500 commit_p50_ms=2.00" in line
    assert "async_stored_per_s=400" in line


def test_the_median_judges_and_luck_in_one_pass_does_not() -> None:
    dear = cost([Pass(1.0, 0.5)] * 3, [Pass(0.5, 0.5), Pass(1.1, 0.5), Pass(1.1, 0.5)])
    assert dear.wall.median == pytest.approx(1.1)
    assert dear.best == 0.5
    assert not groups.summary({"poll": (1.0, dear)}, commits())[0]
    disturbed = cost([Pass(1.0, 0.5)] * 3, [Pass(1.0, 0.5), Pass(1.0, 0.5), Pass(1.4, 0.5)])
    assert groups.summary({"poll": (1.0, disturbed)}, commits())[0]
